"""`python3 -I -m webhook.sidecar`: the enforcer, and with --probe the kubelet's probes of it."""

import os
import sys

from webhook.sidecar.heartbeat import RUN_FOLDER, answer

USAGE = """\
usage: python3 -m webhook.sidecar [--self-test] [--run-folder FOLDER] [--gpu-folder FOLDER]
                                  [--termination-log FILE]
       python3 -m webhook.sidecar --probe startup|liveness [--wait SECONDS] [--run-folder FOLDER]"""
WRONG_USAGE = 2
GPU_FOLDER = "/run/vram-enforcer-gpu"
TERMINATION_LOG = "/dev/termination-log"
"""The kubelet's default terminationMessagePath."""


def main(arguments: list[str]) -> int:
    """Return the exit code; by hand, since argparse would be a tenth of the start."""
    options = {
        "--probe": "",
        "--wait": "0",
        "--run-folder": RUN_FOLDER,
        "--gpu-folder": GPU_FOLDER,
        "--termination-log": TERMINATION_LOG,
    }
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
    seconds = options["--wait"]
    if options["--probe"] not in ("", "startup", "liveness") or not seconds.isdecimal():
        print(USAGE, file=sys.stderr)  # noqa: T201
        return WRONG_USAGE
    if options["--probe"]:
        answer(options["--run-folder"], options["--probe"], int(seconds))
    folders = options["--gpu-folder"], options["--run-folder"]
    return start(*folders, options["--termination-log"], only_test=only_test)


def start(gpu_folder: str, run_folder: str, termination_log: str, *, only_test: bool) -> int:
    """Wait for a GPU where the pod has none yet, else enforce; return the exit code."""
    # Imported here: a probe has no use for all this, and what is large comes after `ending`.
    from webhook.names import GPUS_ENV  # noqa: PLC0415
    from webhook.sidecar.ending import end_on_signals  # noqa: PLC0415
    from webhook.sidecar.journal import EnforcerJournal  # noqa: PLC0415

    # Where it is closed, the number may soon be another file's.
    output = 1 if sys.stdout else -1
    # A self-test by hand, beside the enforcer that guards, leaves nothing for that one's probes.
    journal = EnforcerJournal(output, termination_log, "" if only_test else run_folder)
    end_on_signals(journal)
    # Where it is not set, a release before 0.2 wrote the container, or the pod sees every GPU.
    if os.environ.get(GPUS_ENV) == "" and not only_test:
        from webhook.sidecar.waiting import wait_for_gpus  # noqa: PLC0415

        code = wait_for_gpus(gpu_folder, run_folder, journal)
        if code is not None:
            return code
    from webhook.sidecar.program import enforce  # noqa: PLC0415

    return enforce(os.environ, run_folder, journal, only_test=only_test)


if __name__ == "__main__":
    # Without tidying up: a driver that hangs would hold it up, and a busy node does.
    os._exit(main(sys.argv[1:]))
