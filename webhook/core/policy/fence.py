"""The part of a policy that the API server enforces itself: the fence's parameters.

The chart's admission policies (templates fence-*.yaml) read the parameters from a ConfigMap with
one line per rule, in the order of the rules. The first line that matches a pod's namespace applies
to the pod.

    ^(kube-.*|gpu-operator)$ - ^$ -
    ^(team-.*)$ tier=intern,zone=a ^(team-x)$ - translated sidecar sidecar-gate marks
    ^(.*)$ - ^$ - translated container-gates marks variables annotations void

| field | condition on the namespace |
| --- | --- |
| 1 | its name matches this pattern |
| 2 | it has these labels; `-` means none |
| 3, 4 | its name and its labels do not both match these: the rule's exception |
| all others | words for the checks of the API server |

| word | check of the API server |
| --- | --- |
| `translated` | a pod with a demand has our marks, and no annotations that only a binding writes |
| `sidecar` | the pod has the sidecar |
| `sidecar-gate` | in a pod with VRAM, the sidecar waits for the pod's GPU |
| `container-gates` | each container with VRAM waits for the pod's GPU |
| `plugin` | NVIDIA's device plugin counts the pod's GPUs; the pod has no VRAM of ours |
| `sees-all` | the pod may see all GPUs of its node, since none are chosen |
| `marks` | our marks are denied on a pod without a demand |
| `variables` | NVIDIA_VISIBLE_DEVICES in a manifest or a debugging container is denied |
| `annotations` | annotations that request devices from a container runtime (CDI) are denied |
| `void` | a container without an assigned GPU gets a variable that hides all GPUs |

The API server checks nothing for a line without words. Rules whose action is not Enforce have such
a line. So do rules that match by more than namespaces and namespace labels: the API server cannot
identify the pods of such a rule, so the line matches all namespaces that may contain these pods.
With rollout Observe, the words from `marks` on are left out.

Replicas seal the data that they share in a ConfigMap, to recognize data that a replica wrote. The
token of the webhook's ServiceAccount is enough to write the ConfigMap, so the seal needs a key. The
key is mounted as a file, and no vramwarden ServiceAccount may read the key from the API server. The
seal includes the time, so that older data cannot be restored. The seal also includes the sealed
keys of the data, so that releases that write more or fewer keys accept each other's data during an
upgrade. Without a key the seal can be forged.
"""

from __future__ import annotations

import hmac
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from webhook.core.bounds import MAX_TIME_DIGITS
from webhook.core.policy.gpu_resources import GPU_RESOURCES, NETWORK_RESOURCES
from webhook.core.policy.match import Match
from webhook.core.policy.model import (
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
"""Two patterns for resource names. The first matches resources that provide GPUs; the second
matches resources below nvidia.com that provide none. All other resources below nvidia.com
provide GPUs. GPUs are not hidden from a container that requests a resource with GPUs.

The `v2` in the keys is the version of the format. A release with another format uses other keys, so
that two releases never overwrite each other's data during an upgrade.
"""

SEAL_KEY: Final = "seal.v1"

MAX_RULES_BYTES: Final = 32 * 1024
"""Maximum size of all lines, in bytes. The API server compiles each pattern for each judged pod."""
MAX_WHOLE_GPUS_BYTES: Final = 2 * 1024
"""Maximum size in bytes of the pattern that the API server matches with each resource of a
container. The cost of the match is limited (webhook/core/pod/complexity.py)."""
_ANY_TEXT: Final = ".*"
_NO_NAMESPACE: Final = "^$"
_NO_LABELS: Final = "-"
_EVERYTHING: Final = Match()


def fence_data(policy: Policy, rollout: Rollout = Rollout.ENFORCE) -> dict[str, str]:
    """Return the `data` of the ConfigMap; equal policies give equal data in every replica.

    If the data is too large, the API server does not check the rules beyond the limit, and every
    resource with a domain counts as providing GPUs. So the fence then denies fewer pods, never
    more.
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
    """Return the `data` of a ConfigMap with its seal added."""
    head = f"{int(now_s)} {','.join(sorted(data))}"
    return {**data, SEAL_KEY: f"{head} {_authenticate(data, head, key)}"}


def seal_age_s(data: Mapping[str, str], names: Iterable[str], key: bytes, now_s: float) -> float:
    """Return the age of a valid seal of these keys, in seconds; infinite without such a seal.

    A replica of another release may have sealed more or fewer keys.
    """
    head, _, code = data.get(SEAL_KEY, "").rpartition(" ")
    at, _, listed = head.partition(" ")
    covered, wanted = set(listed.split(",")), set(names)
    ours = _authenticate({name: data.get(name) for name in covered}, head, key)
    is_ours = hmac.compare_digest(code.encode(errors="replace"), ours.encode())
    if not is_ours or not (covered <= wanted or covered >= wanted):
        return math.inf
    is_time = at.isascii() and at.isdecimal() and len(at) <= MAX_TIME_DIGITS
    return abs(now_s - int(at)) if is_time else math.inf


def _format_line(match: Match, words: Iterable[str]) -> str:
    exception = match.exception
    # An exception that depends on the pod excludes only some pods. The line must match the others.
    if exception is None or exception.depends_on_pod:
        left_out = (_NO_NAMESPACE, _NO_LABELS)
    else:
        left_out = _format_match(exception)
    return " ".join((*_format_match(match), *left_out, *words))


def _format_match(match: Match) -> tuple[str, str]:
    labels = sorted(f"{key}={value}" for key, value in match.namespace_labels.items())
    return _pattern(match.namespaces or ("*",)), ",".join(labels) or _NO_LABELS


def _pattern(names: Iterable[str]) -> str:
    found = (_ANY_TEXT.join(map(re.escape, name.split("*"))) for name in names)
    return f"^({'|'.join(found)})$"


def _list_words(rule: Rule, rollout: Rollout, accountings: set[Accounting]) -> Iterable[str]:
    """Yield the checks that apply to all pods of a rule, whatever their GPU class."""
    if rule.action is not Action.ENFORCE or rule.match.depends_on_pod:
        return
    yield "translated"
    if rule.enforcement.by is EnforceBy.SIDECAR and Accounting.MIG not in accountings:
        yield "sidecar"
    if rule.chooses_gpus and Accounting.VRAM in accountings:  # pods of other classes have no VRAM
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
