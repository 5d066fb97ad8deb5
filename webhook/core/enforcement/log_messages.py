"""The constant messages in the logs of sidecar and sentry that other programs read."""

from __future__ import annotations

from enum import StrEnum


class LogMessage(StrEnum):
    """The key `msg` of a log line; of a verdict, also the start of the termination message."""

    STOPPING = "stopping a process"
    STOPPING_CONTAINER = "stopping a container"
    WOULD_STOP = "would stop a process"
    KILLING = "killing a process"
    CAME_BACK = "memory came back"
    STAYED = "memory did not come back"
    ENDING_POD = "the pod must restart"
    BLIND = "cannot measure"
    MEASURING = "measuring again"
    SELF_TEST = "self-test"
    DRIVER_CHANGED = "the driver changed"
    WAITING_FOR_LIMIT = "waiting for the driver's limit"
    HELD = "held by the driver"
    HELD_LATE = "held by the driver, late"
    NOT_HELD = "not held by the driver"
