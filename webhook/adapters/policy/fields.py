"""Types of the scalar fields of policy files, with their checks and error messages.

A value in a file is a string, so each type has a pattern for the JSON Schema and a check. The check
is stricter than the pattern, and its message suggests a valid value.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from webhook.adapters.bounds import (
    LEAST_CPU_LIMIT,
    LEAST_MEMORY,
    LONGEST_HOST_PATH,
    LONGEST_LINE,
    MOST_CPU,
)
from webhook.adapters.yaml_documents import show
from webhook.core.bounds import MAX_GPU_COUNT, MAX_REFERENCE_LENGTH
from webhook.core.enforcement.parameters import Span, parse_permille
from webhook.core.nvidia.device_plugin import MIG_PROFILE
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV
from webhook.core.pod.duration import DURATION, parse_ms
from webhook.core.pod.quantity import MIB, format_bytes, parse_quantity, parse_vram
from webhook.core.policy.match import matches_any
from webhook.core.policy.model import AUTO_RUNTIME_CLASS, SAFE_HOST_PATHS
from webhook.names import (
    MAX_LABEL_LENGTH,
    MAX_NAME_LENGTH,
    MAX_QUALIFIED_NAME_LENGTH,
    VRAM_RESOURCE,
)

_T = TypeVar("_T")

DNS_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN: Final = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
LABEL_NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
LABEL_KEY: Final = rf"({DNS_SUBDOMAIN}/)?{LABEL_NAME}"
LABEL_VALUE: Final = rf"({LABEL_NAME})?"
NAMESPACE_PATTERN: Final = r"[a-z0-9*]([-a-z0-9*]*[a-z0-9*])?"
SERVICE_ACCOUNT_PATTERN: Final = r"[a-z0-9*]([-.a-z0-9*]*[a-z0-9*])?"
RESOURCE_PATTERN: Final = r"[a-z0-9.*-]+/[A-Za-z0-9_.*-]+"
ENV_NAME: Final = r"[-._A-Za-z][-._A-Za-z0-9]*"
_WORD: Final = r"\S+"
_LINE: Final = r"\S(.*\S)?"
HOST_PATH: Final = r"/.*"
# As of Linux 5.9: include/uapi/linux/capability.h.
CAPABILITIES: Final = (
    *("AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE"),
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER"),
    *("KILL", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN"),
    *("NET_BIND_SERVICE", "NET_BROADCAST", "NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP"),
    *("SETUID", "SYSLOG", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT", "SYS_MODULE", "SYS_NICE"),
    *("SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG"),
    "WAKE_ALARM",
)


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Part of the JSON Schema that a type adds to the schema of its Python type."""

    schema: dict[str, Any]


def _check(text: str, pattern: str, length: int, what: str) -> str:
    if len(text) > length:
        raise ValueError(f"{show(text)} is longer than {length} characters")
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{show(text)} is not {what}")
    return text


def _text(pattern: str, length: int, what: str) -> tuple[AfterValidator, Shape]:
    check = partial(_check, pattern=pattern, length=length, what=what)
    return AfterValidator(check), Shape({"pattern": f"^{pattern}$", "maxLength": length})


def _subdomain(what: str, pattern: str = DNS_SUBDOMAIN) -> tuple[AfterValidator, Shape]:
    return _text(pattern, MAX_NAME_LENGTH, what)


def _word_or_name(text: str, word: str) -> str:
    """Reject a name that differs from the keyword only in case."""
    if text != word and text.lower() == word.lower():
        raise ValueError(f"{show(text)} would be taken for a name; did you mean {word}?")
    return text


def _one_line(what: str) -> tuple[AfterValidator, Shape]:
    return _text(_LINE, LONGEST_LINE, f"{what}; write one line of text without spaces around it")


def _label_key(text: str) -> str:
    what = "a label's key; write letters, digits, - _ . with a domain before, e.g. example.com/pool"
    _check(text, LABEL_KEY, MAX_QUALIFIED_NAME_LENGTH, what)
    prefix, slash, name = text.rpartition("/")
    _check(name, LABEL_NAME, MAX_LABEL_LENGTH, what)
    if slash:
        _check(prefix, DNS_SUBDOMAIN, MAX_NAME_LENGTH, what)
    return text


def _taint_key(text: str) -> str:
    return _label_key(text) if text else text


def _resource_pattern(text: str) -> str:
    what = "a resource's full name; write e.g. nvidia.com/gpu or nvidia.com/mig-*"
    _check(text, RESOURCE_PATTERN, MAX_QUALIFIED_NAME_LENGTH, what)
    if matches_any(VRAM_RESOURCE, (text,)):
        raise ValueError(f"{show(text)} covers {VRAM_RESOURCE} too, which is shared; narrow it")
    return text


def _host_path(text: object) -> str:
    """Validate a path of the node; return it normalized, without a trailing slash."""
    what = "a path of the node; write an absolute one, e.g. /data"
    if type(text) is not str:
        raise ValueError(f"must be text, e.g. /data, not {show(str(text))}")
    _check(text, HOST_PATH, LONGEST_HOST_PATH, what)
    if ".." in text.split("/"):
        raise ValueError(f"{show(text)} has .. in it; write the path that it leads to")
    return posixpath.normpath(f"/{text.lstrip('/')}")


def _host_paths(value: object) -> tuple[str, ...] | None:
    if value == SAFE_HOST_PATHS:
        return None
    if type(value) is not list:
        hint = "or a list of paths, e.g. [/data]; [] allows none"
        raise ValueError(f"must be {SAFE_HOST_PATHS}, {hint}")
    return tuple(map(_host_path, value))


def _capability(text: str) -> str:
    if text not in CAPABILITIES:
        meant = get_close_matches(text.upper().removeprefix("CAP_"), CAPABILITIES, n=1)
        hint = f"did you mean {meant[0]}?" if meant else "write e.g. NET_ADMIN, without CAP_"
        raise ValueError(f"{show(text)} is no capability of Linux; {hint}")
    return text


def _env_name(text: str) -> str:
    what = "a variable's name; write letters, digits, _ - . and no digit first"
    _check(text, ENV_NAME, MAX_NAME_LENGTH, what)
    if text == VISIBLE_DEVICES_ENV:
        raise ValueError(f"{text} is set by placement; choose with the field placement")
    if text.startswith("VRAM_"):
        raise ValueError(f"{text} begins with VRAM_, which is kept for the sidecar; rename it")
    if text.startswith("VRAMWARDEN_"):
        raise ValueError(f"{text} begins with VRAMWARDEN_, which translation sets; rename it")
    return text


def _to_text(value: object, example: str) -> str:
    """Return a string or an integer as string: Kubernetes accepts both for quantities."""
    if value is None:
        raise ValueError(f"is empty; write e.g. {example}, or leave the field out")
    if type(value) not in (str, int):
        raise ValueError(f"must be text, e.g. {example}")
    return str(value)


def _read(parse: Callable[[str], _T], text: str) -> _T:
    """Parse a string; a parser's error message gets the string as prefix."""
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{show(text)} {error}") from None


def _parsed(value: object, parse: Callable[[str], _T]) -> _T:
    return _read(parse, _to_text(value, "8Gi"))


def _tolerance(value: object) -> str:
    """Validate a tolerance; return a percentage, or the number of bytes of a quantity."""
    text = _to_text(value, "2%")
    if text.endswith("%"):
        whole, part = divmod(_read(parse_permille, text), 10)
        return f"{whole}.{part}%" if part else f"{whole}%"
    amount = _read(parse_quantity, text)
    if amount and amount < MIB:
        hint = "write a percentage, e.g. 2%, or at least 1Mi"
        raise ValueError(f"{show(text)} is no sensible tolerance; {hint}")
    if amount.denominator != 1:
        raise ValueError(f"{show(text)} is a fraction of a byte; write e.g. 256Mi")
    return str(amount)


def _cpu(value: object) -> str:
    """Validate an amount of CPU; return it in the API server's notation."""
    text = _to_text(value, "100m")
    try:
        milli = parse_quantity(text) * 1000
    except ValueError:
        milli = Fraction(-1)
    if not 0 <= milli <= MOST_CPU * 1000:
        raise ValueError(f"{show(text)} is not an amount of CPU; write e.g. 100m or 1")
    if milli.denominator != 1:
        raise ValueError(f"{show(text)} is finer than 1m, a thousandth of a CPU; write e.g. 100m")
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def _cpu_limit(value: object) -> str:
    amount = _cpu(value)
    if parse_quantity(amount) < parse_quantity(LEAST_CPU_LIMIT):
        hint = f"write at least {LEAST_CPU_LIMIT}"
        raise ValueError(f"{show(amount)} lets no sidecar start within a minute; {hint}")
    return amount


def _sidecars_memory(value: object) -> str:
    """Validate an amount of memory for the sidecar; return it as a size."""
    text = _to_text(value, "64Mi")
    amount = _read(parse_quantity, text)
    if amount < LEAST_MEMORY:
        raise ValueError(
            f"{show(text)} is too little for its interpreter and NVIDIA's library, so the kernel "
            f"would end the sidecar; write at least {format_bytes(LEAST_MEMORY)}"
        )
    if amount.denominator != 1:
        raise ValueError(f"{show(text)} is a fraction of a byte; write e.g. 64Mi")
    return format_bytes(int(amount))


def _duration(value: object, span: Span) -> str:
    """Validate a duration; return it in the sidecar's notation: seconds or milliseconds."""
    text = _to_text(value, "5s")
    total_ms = _read(parse_ms, text)
    if not parse_ms(span.least) <= total_ms <= parse_ms(span.most):
        how = "short" if total_ms < parse_ms(span.least) else "long"
        raise ValueError(f"{show(text)} is too {how}; choose between {span.least} and {span.most}")
    seconds, rest_ms = divmod(total_ms, 1_000)
    return f"{total_ms}ms" if rest_ms else f"{seconds}s"


def within(span: Span) -> tuple[BeforeValidator, Shape]:
    """Return the validator of a duration within a span, and its part of the JSON Schema."""
    return BeforeValidator(partial(_duration, span=span)), Shape({"pattern": f"^{DURATION}$"})


_TEXT_OR_INTEGER: Final = Shape({"type": ["string", "integer"]})

Name = Annotated[
    str, *_text(DNS_LABEL, MAX_LABEL_LENGTH, "a name; write lower-case letters, digits and -")
]
PodName = Annotated[str, *_subdomain("a pod's name; write e.g. train")]
RuntimeClassName = Annotated[str, *_subdomain("a RuntimeClass's name; write e.g. nvidia")]
MigProfile = Annotated[
    str, *_text(MIG_PROFILE, MAX_LABEL_LENGTH, "the name of a slice's profile; write e.g. 1g.10gb")
]
_CHOSEN = f"a RuntimeClass's name; write {AUTO_RUNTIME_CLASS}, null, or a name, e.g. nvidia"
ChosenRuntimeClass = Annotated[
    str,
    AfterValidator(partial(_word_or_name, word=AUTO_RUNTIME_CLASS)),
    *_subdomain(_CHOSEN, f"({AUTO_RUNTIME_CLASS}|{DNS_SUBDOMAIN})"),
]
_EXPECTED = "a RuntimeClass's name; write e.g. nvidia, or '' for none"
ExpectedRuntimeClass = Annotated[str, *_subdomain(_EXPECTED, f"({DNS_SUBDOMAIN})?")]
_NAMESPACE = "a namespace; write lower-case letters, digits and -, and * for any text"
NamespacePattern = Annotated[str, *_text(NAMESPACE_PATTERN, MAX_LABEL_LENGTH, _NAMESPACE)]
_ACCOUNT = "a ServiceAccount's name; write it without its namespace, and * for any text"
ServiceAccountPattern = Annotated[str, *_subdomain(_ACCOUNT, SERVICE_ACCOUNT_PATTERN)]
Message = Annotated[str, *_one_line("a message")]
Title = Annotated[str, *_one_line("a title")]
ClassPattern = Annotated[
    str, *_text(NAMESPACE_PATTERN, MAX_LABEL_LENGTH, "a class's name, nor a pattern with *")
]
ResourcePattern = Annotated[
    str, AfterValidator(_resource_pattern), Shape({"pattern": f"^{RESOURCE_PATTERN}$"})
]
LabelKey = Annotated[str, AfterValidator(_label_key), Shape({"pattern": f"^{LABEL_KEY}$"})]
LabelValue = Annotated[
    str, *_text(LABEL_VALUE, MAX_LABEL_LENGTH, "a label's value; write letters, digits, - _ .")
]
TaintKey = Annotated[str, AfterValidator(_taint_key), Shape({"pattern": f"^({LABEL_KEY})?$"})]
EnvName = Annotated[
    str,
    AfterValidator(_env_name),
    Shape({"pattern": f"^(?!{VISIBLE_DEVICES_ENV}$|VRAM_|VRAMWARDEN_){ENV_NAME}$"}),
]
Image = Annotated[
    str, *_text(_WORD, MAX_REFERENCE_LENGTH, "an image; write e.g. registry.example/image:tag")
]
Vram = Annotated[int, BeforeValidator(partial(_parsed, parse=parse_vram)), _TEXT_OR_INTEGER]
Quantity = Annotated[Any, BeforeValidator(partial(_parsed, parse=parse_quantity)), _TEXT_OR_INTEGER]
Tolerance = Annotated[str, BeforeValidator(_tolerance), _TEXT_OR_INTEGER]
Cpu = Annotated[str, BeforeValidator(_cpu), _TEXT_OR_INTEGER]
CpuLimit = Annotated[str, BeforeValidator(_cpu_limit), _TEXT_OR_INTEGER]
SidecarsMemory = Annotated[str, BeforeValidator(_sidecars_memory), _TEXT_OR_INTEGER]
GpuCount = Annotated[
    int, Field(ge=1, le=MAX_GPU_COUNT), Shape({"minimum": 1, "maximum": MAX_GPU_COUNT})
]
HostPaths = Annotated[
    Any,
    BeforeValidator(_host_paths),
    Shape(
        {
            "type": ["string", "array"],
            "pattern": f"^{SAFE_HOST_PATHS}$",
            "items": {"type": "string", "pattern": f"^{HOST_PATH}$"},
        }
    ),
]
Capability = Annotated[str, AfterValidator(_capability), Shape({"enum": list(CAPABILITIES)})]
NamespacePatterns = Annotated[list[NamespacePattern], Field(min_length=1), Shape({"minItems": 1})]
