"""The enforcer's settings, from environment variables of core/admission/sidecar/container.py."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar

from webhook.core.enforcement.driver_limit import DRIVER_LIMITS
from webhook.core.enforcement.parameters import (
    BLIND_AFTER,
    GRACE,
    POLL_INTERVAL,
    WHEN_BLIND,
    Span,
    parse_cap,
    parse_stops,
    parse_tolerance,
)
from webhook.core.frozen import dataclass
from webhook.core.pod.duration import parse_seconds
from webhook.names import (
    BLIND_AFTER_ENV,
    CAP_BYTES_ENV,
    DRIVER_LIMIT_ENV,
    GPUS_ENV,
    GRACE_ENV,
    ON_EXCESS_ENV,
    POLL_INTERVAL_ENV,
    TOLERANCE_ENV,
    WHEN_BLIND_ENV,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    T = TypeVar("T")

_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]+")


class SettingsError(Exception):
    """The environment is invalid; each problem names its variable."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcerSettings:
    """The pod's cap, and how the enforcer enforces it."""

    cap_bytes: int
    """Cap per GPU, in bytes."""
    tolerance_bytes: int
    poll_interval_s: float
    grace_s: float
    blind_after_s: float
    terminate_when_blind: bool
    gpus: frozenset[str] | None
    """UUIDs of the pod's GPUs; None for all GPUs that the driver shows."""
    stops_processes: bool = True
    """True if an excess stops processes; False if it is only reported."""
    driver_limit: str = ""
    """One of `DRIVER_LIMITS` if the driver should also enforce the cap; empty otherwise."""


def read_settings(environment: Mapping[str, str]) -> EnforcerSettings:
    """Parse all environment variables; raises SettingsError with all problems.

    Only the cap has no default, and `VRAM_GPUS` must not be empty if it is set. A malformed value
    never means "no limit".
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

    def seconds(name: str, span: Span) -> float:
        default_s, *bounds_s = map(parse_seconds, (span.default, span.least, span.most))
        return read(name, lambda text: parse_seconds(text, *bounds_s), default_s) or 0.0

    cap_bytes = read(CAP_BYTES_ENV, parse_cap) or 0
    settings = EnforcerSettings(
        cap_bytes=cap_bytes,
        tolerance_bytes=read(TOLERANCE_ENV, lambda text: parse_tolerance(text, cap_bytes)) or 0,
        poll_interval_s=seconds(POLL_INTERVAL_ENV, POLL_INTERVAL),
        grace_s=seconds(GRACE_ENV, GRACE),
        blind_after_s=seconds(BLIND_AFTER_ENV, BLIND_AFTER),
        terminate_when_blind=read(WHEN_BLIND_ENV, _parse_choice(WHEN_BLIND), WHEN_BLIND[0])
        == WHEN_BLIND[1],
        stops_processes=read(ON_EXCESS_ENV, parse_stops, default=True) is not False,
        driver_limit=read(DRIVER_LIMIT_ENV, _parse_choice(DRIVER_LIMITS), "") or "",
        gpus=read(GPUS_ENV, _parse_gpus) if GPUS_ENV in environment else None,
    )
    if problems:
        raise SettingsError(tuple(problems))
    return settings


def _parse_choice(words: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} must be one of {', '.join(words)}")
        return text

    return read


def _parse_gpus(text: str) -> frozenset[str] | None:
    """Parse the UUIDs of the pod's GPUs; return None, for every GPU, if a name is not a UUID.

    NVIDIA's environment variable is not read: a runtime may overwrite it, or use other GPU names.
    """
    if not text:
        raise ValueError("is empty: the pod has no GPU; delete it, so that it is bound again")
    names = [name.strip() for name in text.split(",")]
    return frozenset(names) if all(map(_UUID.fullmatch, names)) else None
