"""`python3 -I -m webhook.sidecar`: the enforcer."""

import os
import sys

from webhook.sidecar.heartbeat import RUN_FOLDER

USAGE = """\
usage: python3 -m webhook.sidecar [--self-test] [--run-folder FOLDER] [--termination-log FILE]"""
WRONG_USAGE = 2
TERMINATION_LOG = "/dev/termination-log"
"""The kubelet's default terminationMessagePath."""


def main(arguments: list[str]) -> int:
    """Parse the arguments, run the enforcer, and return the exit code.

    argparse would add a tenth to the start time.
    """
    options = {"--run-folder": RUN_FOLDER, "--termination-log": TERMINATION_LOG}
    only_test = False
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--self-test":
            only_test = True
        elif name in options and (value := value if equals else next(words, "")):
            options[name] = value
        else:
            print(USAGE, file=sys.stderr)  # noqa: T201
            return 0 if word in ("-h", "--help") else WRONG_USAGE
    return start(options["--run-folder"], options["--termination-log"], only_test=only_test)


def start(run_folder: str, termination_log: str, *, only_test: bool) -> int:
    """Enforce the cap and return the exit code.

    The large imports come last. They take nearly as long as everything before them, seconds on a
    busy node. A SIGTERM during these imports ends the program with 0.
    """
    from webhook.sidecar.journal import EnforcerJournal  # noqa: PLC0415
    from webhook.sidecar.shutdown import exit_on_signals  # noqa: PLC0415

    # The descriptor of a closed stdout may be reused by another file.
    output = 1 if sys.stdout else -1
    # A manual self-test in a pod with an enforcer must not leave files for the enforcer's probes.
    journal = EnforcerJournal(output, termination_log, "" if only_test else run_folder)
    exit_on_signals(journal)
    from webhook.sidecar.program import enforce  # noqa: PLC0415

    return enforce(os.environ, run_folder, journal, only_test=only_test)


if __name__ == "__main__":
    # Exit without cleanup, which a hanging driver or a busy node would delay.
    os._exit(main(sys.argv[1:]))
