"""The enforcer's settings, from the environment that core/admission/sidecar/container.py writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV
from webhook.core.pod.duration import parse_seconds
from webhook.names import (
    BLIND_AFTER_ENV,
    CAP_BYTES_ENV,
    GRACE_ENV,
    POLL_INTERVAL_ENV,
    TOLERANCE_ENV,
    WHEN_BLIND_ENV,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    T = TypeVar("T")

_PERCENTAGE: Final = re.compile(r"([0-9]{1,3})(?:\.([0-9]))?%")
_TOLERANCE: Final = "2%"
_MOST_PERMILLE: Final = 500
_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]+")
_LARGEST_BYTES: Final = 2**63 - 1
_WHEN_BLIND: Final = ("Report", "Terminate")
_BOUNDS_S: Final = {
    POLL_INTERVAL_ENV: (0.1, 60.0),
    GRACE_ENV: (0.0, 3600.0),
    BLIND_AFTER_ENV: (0.0, 86400.0),
}


class SettingsError(Exception):
    """The environment does not say what to do; each problem names its variable."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


@dataclass(frozen=True, slots=True)
class EnforcerSettings:
    """What the pod is held to, and how."""

    cap_bytes: int
    """Per GPU."""
    tolerance_bytes: int
    poll_interval_s: float
    grace_s: float
    blind_after_s: float
    terminate_when_blind: bool
    only: frozenset[str] | None
    """The UUIDs of the pod's GPUs; None for all that the driver shows."""


def read_settings(environment: Mapping[str, str]) -> EnforcerSettings:
    """Read all variables; raises SettingsError with everything that is wrong.

    Only the cap has no default. Nothing malformed ever means "no limit".
    """
    problems: list[str] = []

    def read(name: str, parse: Callable[[str], T], default: T | None = None) -> T | None:
        text = environment.get(name, "").strip()
        if not text and default is not None:
            return default
        try:
            return parse(text)
        except ValueError as error:
            problems.append(f"{name}: {error}")
            return default

    def seconds(name: str, default_s: float) -> float:
        return read(name, lambda text: _seconds(text, *_BOUNDS_S[name]), default_s) or 0.0

    cap_bytes = read(CAP_BYTES_ENV, _cap) or 0
    settings = EnforcerSettings(
        cap_bytes=cap_bytes,
        tolerance_bytes=read(TOLERANCE_ENV, lambda text: _tolerance(text, cap_bytes)) or 0,
        poll_interval_s=seconds(POLL_INTERVAL_ENV, 1.0),
        grace_s=seconds(GRACE_ENV, 5.0),
        blind_after_s=seconds(BLIND_AFTER_ENV, 60.0),
        terminate_when_blind=read(WHEN_BLIND_ENV, _when_blind, "Report") == "Terminate",
        only=read(VISIBLE_DEVICES_ENV, _only),
    )
    if problems:
        raise SettingsError(tuple(problems))
    return settings


def _cap(text: str) -> int:
    if not text:
        raise ValueError("is not set; it is the cap per GPU in bytes, e.g. 8589934592")
    if not re.fullmatch("[0-9]{1,19}", text) or not 0 < int(text) <= _LARGEST_BYTES:
        raise ValueError(f"{text!r} is not a number of bytes above 0, e.g. 8589934592")
    return int(text)


def _tolerance(text: str, cap_bytes: int) -> int:
    """Read `2%` of the cap, rounded down, or a number of bytes; bounds are those of policies."""
    if match := _PERCENTAGE.fullmatch(text or _TOLERANCE):
        permille = int(match[1]) * 10 + int(match[2] or 0)
        if permille > _MOST_PERMILLE:
            raise ValueError(f"{text!r} must be at most {_MOST_PERMILLE // 10}%")
        return cap_bytes * permille // 1000
    if re.fullmatch("[0-9]{1,19}", text) and int(text) <= _LARGEST_BYTES:
        return int(text)
    raise ValueError(f"{text!r} is neither a percentage, e.g. 2%, nor a number of bytes")


def _seconds(text: str, least_s: float, most_s: float) -> float:
    value_s = parse_seconds(text)
    if not least_s <= value_s <= most_s:
        raise ValueError(f"{text!r} must be between {least_s:g}s and {most_s:g}s")
    return value_s


def _when_blind(text: str) -> str:
    if text not in _WHEN_BLIND:
        raise ValueError(f"{text!r} must be one of {', '.join(_WHEN_BLIND)}")
    return text


def _only(text: str) -> frozenset[str] | None:
    """Read the GPUs assigned at binding; `all`, numbers and the like leave it to the runtime."""
    names = [name.strip() for name in text.split(",")]
    return frozenset(names) if all(map(_UUID.fullmatch, names)) else None
