"""The enforcer from start to exit code: settings, self-test, guard."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Final

from webhook.adapters.nvml import Nvml, NvmlError
from webhook.core.enforcement.messages import LogMessage
from webhook.core.nvidia.drivers import counts_unidentified
from webhook.sidecar.guard import Guard
from webhook.sidecar.heartbeat import remove_failure, write_failure
from webhook.sidecar.observer import DriverChangedError
from webhook.sidecar.self_test import Ability, self_test
from webhook.sidecar.settings import SettingsError, read_settings
from webhook.sidecar.shutdown import STOPPED, write_final_figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.sidecar.journal import EnforcerJournal

SELF_TEST_FAILED: Final = 70
DRIVER_CHANGED: Final = 75

SELF_TEST_TIMEOUT_S: Final = 120
"""Maximum duration of the self-test, in seconds. If the driver hangs, only SIGALRM ends the
process: Python code does not run, and no probe is configured to kill the process yet."""

_PROBED_WITHIN_S: Final = 2.0
"""Time within which the kubelet probes the container, in seconds; it probes every second
(core/admission/sidecar/container.py)."""


def enforce(
    environment: Mapping[str, str],
    run_folder: str,
    journal: EnforcerJournal,
    *,
    only_test: bool = False,
) -> int:
    """Run the self-test, then guard until SIGTERM; return the exit code.

    | exit code | meaning |
    | --- | --- |
    | 0 | stopped by SIGTERM (`shutdown`), or only the self-test was requested and passed |
    | 70 | the self-test failed, or the settings are wrong: nothing would be guarded |
    | 75 | the node's driver was replaced |
    | 88 | the pod must restart |
    | 142 | the self-test hung for `SELF_TEST_TIMEOUT_S` (128 and SIGALRM) |
    """
    try:
        code = _enforce(environment, run_folder, journal, only_test=only_test)
    except DriverChangedError as error:
        journal.verdict("error", LogMessage.DRIVER_CHANGED, str(error))
        code = DRIVER_CHANGED
    if not only_test:
        write_final_figures(journal)
    if code == SELF_TEST_FAILED and not only_test:
        # A startup probe can report the reason only while the container runs.
        time.sleep(_PROBED_WITHIN_S)
    return code


def _enforce(
    environment: Mapping[str, str], run_folder: str, journal: EnforcerJournal, *, only_test: bool
) -> int:
    try:
        settings = read_settings(environment)
    except SettingsError as error:
        if not only_test:
            write_failure(run_folder, str(error))
        values = {"ability": Ability.BLIND.value}
        journal.verdict("error", LogMessage.SELF_TEST, str(error), report=False, **values)
        return SELF_TEST_FAILED
    # Never closed: the kernel closes it, and a missing driver could delay the exit.
    nvml = Nvml(settings.gpus)
    if not only_test:
        signal.alarm(SELF_TEST_TIMEOUT_S)
    result = self_test(nvml)
    signal.alarm(0)
    level = {Ability.FULL: "info", Ability.OBSERVE: "warning"}.get(result.ability, "error")
    if result.ability is Ability.BLIND and not only_test:
        write_failure(run_folder, result.why)
    # The startup probe reports a failure. Full ability needs no report.
    report = result.ability is Ability.OBSERVE
    journal.verdict(level, LogMessage.SELF_TEST, result.why, report=report, **result.values())
    if result.ability is Ability.BLIND:
        return SELF_TEST_FAILED
    if only_test:
        return STOPPED
    remove_failure(run_folder)
    try:
        ours = counts_unidentified(nvml.driver_version())
    except NvmlError:
        ours = False
    return Guard(settings, nvml, journal, run_folder, counts_unidentified=ours).run()
