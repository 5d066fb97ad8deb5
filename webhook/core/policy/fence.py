"""What the API server needs of a policy to hold part of it by itself: the fence's parameter.

The chart's admission policies (its templates fence-*.yaml) read it from a ConfigMap: one line per
rule, in order, and the first that matches a pod's namespace applies to the pod.

    ^(kube-.*|gpu-operator)$ - ^$ -
    ^(team-.*)$ tier=intern,zone=a ^(team-x)$ - translated sidecar sidecar-gate marks
    ^(.*)$ - ^$ - translated container-gates marks variables annotations void

| field | what it says of a namespace that the line matches |
| --- | --- |
| 1 | its name matches this pattern |
| 2 | it has these labels; `-` is none |
| 3, 4 | its name and its labels do not both match these: the rule's exception |
| all further | what is held there, in words |

| word | what the API server holds |
| --- | --- |
| `translated` | a pod with a demand bears our marks; what only a binding writes, it does not |
| `sidecar` | and it has the sidecar |
| `sidecar-gate` | and with VRAM the sidecar waits for the pod's GPU |
| `container-gates` | or each container with VRAM does |
| `plugin` | its GPUs are counted by NVIDIA's device plugin, and not as VRAM of ours |
| `sees-all` | it may see all GPUs of its node, since none are chosen |
| `marks` | our marks are denied on a pod without a demand |
| `variables` | NVIDIA_VISIBLE_DEVICES set by hand is denied, in a debugging container, too |
| `annotations` | so are annotations by which a container runtime is asked for devices (CDI) |
| `void` | a container that nobody promised a GPU gets a variable by which it sees none |

A line without words is left to the webhook, or to nobody. So is a rule that does not enforce, and
one that matches by more than namespaces and their labels: the API server cannot say which pods it
applies to, and its line matches all that it might. While a policy is only observed, the words from
`marks` on are not written.

What replicas keep together in a ConfigMap is sealed, so that they know what one of them wrote. With
the token of the webhook's account anybody could write there, so the seal takes a key that is
mounted as a file and that no account of ours may read from the API server. It says when, too: an
older text that is put back is not what a replica wrote now. And it names what it seals, so that
releases which write more or less of it know each other's during an upgrade. Without a key anybody
can seal.
"""

from __future__ import annotations

import hmac
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from webhook.core.bounds import LONGEST_TIME
from webhook.core.policy.match import Match
from webhook.core.policy.model import (
    GPU_RESOURCES,
    NETWORK_RESOURCES,
    Accounting,
    Action,
    EnforceBy,
    Policy,
    Rollout,
    Rule,
    VisibleDevices,
)
from webhook.names import VRAM_RESOURCE

RULES_KEY: Final = "rules.v2"
GPUS_KEY: Final = "brings-gpus.v2"
"""Two patterns for names of resources: one that brings GPUs, and of others below nvidia.com, which
bring some too, one that brings none: a container that asks for what brings GPUs is not voided.

The `v2` in the keys is the format. A release with another format uses other keys and leaves these
alone, so that two releases never overwrite each other's data during an upgrade.
"""

SEAL_KEY: Final = "seal.v1"

MAX_RULES_BYTES: Final = 32 * 1024
"""Far below a ConfigMap's 1 MiB: for pods that matter the API server compiles every pattern."""
MAX_WHOLE_GPUS_BYTES: Final = 2 * 1024
"""The API server matches each resource of a container with this pattern, and bounds what that costs
(webhook/core/pod/complexity.py)."""
_ANY_TEXT: Final = ".*"
_NO_NAMESPACE: Final = "^$"
_NO_LABELS: Final = "-"
_EVERYTHING: Final = Match()


def fence_data(policy: Policy, rollout: Rollout = Rollout.ENFORCE) -> dict[str, str]:
    """Return the `data` of the ConfigMap; equal policies give equal text, in every replica.

    Where it would be too large, the rules beyond the bound are left to the webhook, and every
    resource with a domain brings GPUs: the fence then holds less, never more.
    """
    lines: list[str] = []
    rest = _format_line(_EVERYTHING, ())
    room = MAX_RULES_BYTES - len(rest) - 1
    for rule in policy.rules:
        line = _format_line(rule.match, _list_words(rule, rollout, policy.accountings_for(rule)))
        room -= len(line) + 1
        if room < 0:
            lines.append(rest)
            break
        lines.append(line)
    gpus = _pattern((VRAM_RESOURCE, *GPU_RESOURCES, *policy.whole_gpu_resources))
    if len(_pattern(policy.whole_gpu_resources)) > MAX_WHOLE_GPUS_BYTES:
        gpus = "/"
    return {
        RULES_KEY: "".join(f"{line}\n" for line in lines),
        GPUS_KEY: f"{gpus} {_pattern(NETWORK_RESOURCES)}",
    }


def seal_data(data: Mapping[str, str], key: bytes, now_s: float) -> dict[str, str]:
    """Return the `data` of a ConfigMap with its seal; keys of others beside it are not sealed."""
    head = f"{int(now_s)} {','.join(sorted(data))}"
    return {**data, SEAL_KEY: f"{head} {_authenticate(data, head, key)}"}


def seal_age_s(data: Mapping[str, str], names: Iterable[str], key: bytes, now_s: float) -> float:
    """Return how long ago a replica sealed these keys; infinite where none did.

    One of another release seals some more of them, or less.
    """
    head, _, code = data.get(SEAL_KEY, "").rpartition(" ")
    at, _, listed = head.partition(" ")
    covered, wanted = set(listed.split(",")), set(names)
    ours = _authenticate({name: data.get(name) for name in covered}, head, key)
    is_ours = hmac.compare_digest(code.encode(errors="replace"), ours.encode())
    if not is_ours or not (covered <= wanted or covered >= wanted):
        return math.inf
    is_time = at.isascii() and at.isdecimal() and len(at) <= LONGEST_TIME
    return abs(now_s - int(at)) if is_time else math.inf


def _format_line(match: Match, words: Iterable[str]) -> str:
    exception = match.exception
    # What more an exception asks for makes it one for fewer pods, and the line must match the rest.
    if exception is None or exception.depends_on_pod:
        left_out = (_NO_NAMESPACE, _NO_LABELS)
    else:
        left_out = _format_match(exception)
    return " ".join((*_format_match(match), *left_out, *words))


def _format_match(match: Match) -> tuple[str, str]:
    """Return what the API server compares with a namespace: a pattern, and labels."""
    labels = sorted(f"{key}={value}" for key, value in match.namespace_labels.items())
    return _pattern(match.namespaces or ("*",)), ",".join(labels) or _NO_LABELS


def _pattern(names: Iterable[str]) -> str:
    """Return an RE2 expression for names in which `*` is any text."""
    found = (_ANY_TEXT.join(map(re.escape, name.split("*"))) for name in names)
    return f"^({'|'.join(found)})$"


def _list_words(rule: Rule, rollout: Rollout, accountings: set[Accounting]) -> Iterable[str]:
    """Yield what is held of a rule's pods, whatever class they name: what not all have is not."""
    if rule.action is not Action.ENFORCE or rule.match.depends_on_pod:
        return
    yield "translated"
    if rule.enforcement.by is EnforceBy.SIDECAR and Accounting.MIG not in accountings:
        yield "sidecar"
    if rule.chooses_gpus and Accounting.VRAM in accountings:  # of other classes no pod has VRAM
        yield "container-gates" if rule.gates_workload else "sidecar-gate"
    if accountings != {Accounting.VRAM}:
        yield "plugin"
    if not rule.chooses_gpus or Accounting.CAP_ONLY in accountings:
        yield "sees-all"
    if rollout is Rollout.OBSERVE:
        return
    yield "marks"
    if rule.visible_devices is VisibleDevices.DENY:
        yield "variables"
    if rule.visible_devices is not VisibleDevices.IGNORE:
        yield "annotations"
        yield "void"


def _authenticate(data: Mapping[str, str | None], head: str, key: bytes) -> str:
    text = json.dumps([head, sorted(data.items())])
    return hmac.digest(key, text.encode(errors="replace"), "sha256").hex()
