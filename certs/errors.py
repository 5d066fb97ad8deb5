"""The one error of this package."""


class CertificatesError(Exception):
    """Say where something is wrong with certificates, what, and what to do about it.

    The three parts stay apart so that a command can lay them out and a log can index them.
    """

    def __init__(self, where: str, what: str, cure: str) -> None:
        super().__init__(f"{where}: {what}; {cure}")
        self.where = where
        self.what = what
        self.cure = cure

    @property
    def sentence(self) -> str:
        """Return the error as one finding, in the form of ``problems``."""
        return f"{self.where} {self.what}; {self.cure}"
