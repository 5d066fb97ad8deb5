"""What a message tells people to write: only lines with which their pod would be admitted.

Whoever finds something wrong proposes lines, the likeliest first, each as the `Change` of the pod
that it is; `LineCheck` knows which of them the rule that sends the message would admit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.pod.fields import EXAMPLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from webhook.core.pod.quantity import QuantityError
    from webhook.core.pod.views import Change


class LineCheck:
    """Where no rule is known, all lines are admitted."""

    __slots__ = ()
    kept: Change | None = None
    """The lines that a message has already; None for none, and where they do not matter."""

    def why_not(self, change: Change) -> str | None:
        """Say why a pod with a change would be denied for what it asks; None where it would not.

        Empty where nobody knows.
        """
        del change
        return None

    def wrong(self, change: Change) -> str:
        """Say what would be wrong with what a pod with a change asks for; empty for nothing."""
        del change
        return ""

    def keep(self, change: Change) -> None:
        """Take a line that the message has: those after it stand beside it."""

    def examples(self) -> Iterable[str]:
        """Return amounts to show as an example, the best first."""
        return (EXAMPLE,)

    def admitted(self, change: Change) -> bool:
        """Say whether a line may be written; then it is kept."""
        if self.why_not(change) is not None:
            return False
        self.keep(change)
        return True

    def example(self, write: Callable[[str], Change]) -> str:
        """Return an amount that may be written at a place; empty where there is none."""
        return next((one for one in self.examples() if self.admitted(write(one))), "")


class NothingToWrite(LineCheck):
    """None is admitted: where nobody reads what to write."""

    __slots__ = ()

    def why_not(self, change: Change) -> str | None:
        """Say nothing, not even why."""
        del change
        return ""


NO_LINES: Final = NothingToWrite()


def instead_of(
    error: QuantityError, write: Callable[[str], Change], lines: LineCheck
) -> tuple[str, str]:
    """Say why a text is no amount and what to write at its place, which is returned as well."""
    refused = [lines.why_not(write(meant.amount)) for meant in error.meant]
    meant = [one for one, why in zip(error.meant, refused, strict=True) if why is None]
    if meant:
        lines.keep(write(meant[0].amount))
        return f"{error.why}; {error.cure(meant, '')}", meant[0].amount
    example = lines.example(write)
    if refused and refused[0]:
        do = f"; write e.g. {example}" if example else ""
        return f"{error.why}; {error.meant[0].amount} would be denied: {refused[0]}{do}", example
    return f"{error.why}; {error.cure((), example)}", example
