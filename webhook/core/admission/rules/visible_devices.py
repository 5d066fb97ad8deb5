"""Rules about environment variables and RuntimeClasses that show or hide GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from webhook.core.admission.accounting import count_amounts, find_missing_amounts
from webhook.core.admission.rules.case import Case
from webhook.core.admission.rules.device_injection import HOW_TO_REQUEST_GPUS, NOT_COUNTED
from webhook.core.admission.rules.near_misses import MAX_HINTS
from webhook.core.bounds import MAX_STRING_LENGTH
from webhook.core.formatting import shorten
from webhook.core.nvidia.variables import (
    DRIVER_CAPABILITIES_ENV,
    GPU_PREFIXES,
    VISIBLE_DEVICES_ENV,
    chooses_devices,
    hides_gpus,
    is_read_by_mps,
    limits_memory,
    shows_all,
    shows_bound_gpus,
    widens_access,
)
from webhook.core.pod.command_lines import CommandLine
from webhook.core.pod.fields import Json, get_objects, get_string
from webhook.core.pod.findings import WRITTEN_BY_ANOTHER, Finding, Reason, quote
from webhook.core.pod.views import Container
from webhook.core.policy.model import AUTO_RUNTIME_CLASS, Accounting, VisibleDevices
from webhook.names import NVIDIA_RUNTIME_CLASS

_CUDA_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
_MOST_JUDGED: Final = 64
"""Maximum number of judged variables per pod, and of judged assignments per command line."""
_ASSIGNMENT: Final = re.compile(
    r"(?<![A-Za-z0-9_])CUDA_VISIBLE_DEVICES=(?P<quote>[\"']?)"
    r"(?P<value>(?:[0-9+]|GPU-|MIG-)[A-Za-z0-9,+/-]{0,255})(?P=quote)(?![^\s\0;&|)])"
)
"""Regular expression for an assignment of one or more GPUs in a command line, without a
reference."""
_UUID: Final = ("GPU-", "MIG-")
_INDEX: Final = re.compile(r"\+?[0-9]{1,9}")
_COMPUTE: Final = frozenset({"compute", "all"})
_OTHERS: Final = ("utility", "graphics", "video", "display", "ngx", "compat32")

_SANDBOX: Final = re.compile(
    r"kata(?:containers)?|gvisor|runsc|wasm[a-z]*|firecracker|sysbox|youki"
)
"""Regular expression for words in names of RuntimeClasses whose containers see no share of a
GPU."""
_PLAIN: Final = frozenset({"runc", "crun"})
"""Names of RuntimeClasses that only show GPUs if the node's default runtime does."""


def visible_devices_of_demand(case: Case) -> Iterator[Finding]:
    """Rule: in a pod with a demand, only translation sets the visible GPUs and their memory limits.

    Fields: spec.[initContainers,containers][*].env[*]
    Allowed values: NVIDIA_VISIBLE_DEVICES void, none or empty, or as a release of vramwarden writes
    it; no NVIDIA_GPU_MEMORY_* and no CUDA_MPS_* except the rule's own; no variable that gives
    access to more GPUs or memory
    """
    rule = case.rule
    denies = rule.visible_devices is VisibleDevices.DENY
    for container in case.pod.containers:
        env = container.env()
        if not env:
            continue
        names = [entry["name"] for entry in env]
        ours = names.count(VISIBLE_DEVICES_ENV) == 1 and DRIVER_CAPABILITIES_ENV in names
        for index, entry in enumerate(env):
            if not entry["name"].startswith(GPU_PREFIXES):
                continue
            reason, detail = Reason.DRIVER_VARIABLE, f"remove {entry['name']}; "
            if widens_access(entry):
                detail += "it gives more than the pod's share of a GPU"
            elif limits_memory(entry):
                if entry in rule.env:
                    continue
                detail += _limit_variable_reason(entry, case)
            elif (
                not denies
                or hides_gpus(entry)
                or _is_from_translation(entry, container, case, beside=ours)
            ):
                continue
            else:
                reason, detail = (
                    Reason.VISIBLE_DEVICES_OVERRIDE,
                    _visible_devices_advice(case, entry),
                )
            yield Finding(reason, f"{container.path}.env[{index}]", detail)


def _visible_devices_advice(case: Case, entry: Json) -> str:
    end = f"; {WRITTEN_BY_ANOTHER}" * (not shows_bound_gpus(entry))
    has_others = case.requests_vram or case.has_whole_gpus
    why = "the pod sees the GPUs that it asks for without it" if has_others else NOT_COUNTED
    return f"remove {VISIBLE_DEVICES_ENV}; {why}{end}"


def _limit_variable_reason(entry: Json, case: Case) -> str:
    if any(map(limits_memory, case.rule.env)):
        return f"rule {quote(case.rule.name)} has another value for it"
    if is_read_by_mps(entry):
        return "MPS is not used here, and compute is not divided"
    return f"the pod's limit comes from {case.requested_by}"


def _is_from_translation(entry: Json, container: Container, case: Case, *, beside: bool) -> bool:
    """Return True if translation set a variable, in this pod or in the pod it was copied from.

    | container | shows the assigned GPUs | shows all |
    | --- | --- | --- |
    | without VRAM | yes if translation may follow: the container had VRAM | no |
    | with VRAM, and all that translation writes into it | yes | yes |
    | with VRAM otherwise | yes | yes unless the rule chooses GPUs |

    `beside` is True if the container's other variables are as translation writes them.
    """
    demand = case.demand_if_any
    if demand is None:
        return shows_bound_gpus(entry)
    if container.name not in demand.amounts:
        return case.mutating and shows_bound_gpus(entry)
    if shows_all(entry):
        if not case.rule.chooses_gpus or not beside:
            return not case.rule.chooses_gpus
        counted = count_amounts(case.pod, demand, case.rule, case.policy, case.cluster)
        return not any(find_missing_amounts(container, counted))
    return shows_bound_gpus(entry)


def visible_devices_without_demand(case: Case) -> Iterator[Finding]:
    """Rule: in a pod without a demand no container makes GPUs visible by hand.

    Fields: spec.[initContainers,containers][*].env[*] named NVIDIA_VISIBLE_DEVICES
    Allowed values: void, none or empty; anything unless the rule's visibleDevices is Deny
    """
    if not case.finds_visible_devices:
        return
    for container in case.pod.containers:
        for index, entry in enumerate(container.env()):
            if not hides_gpus(entry):
                path = f"{container.path}.env[{index}]"
                yield Finding(
                    Reason.VISIBLE_DEVICES_OVERRIDE, path, _visible_devices_advice(case, entry)
                )


def shown_by_runtime(case: Case) -> tuple[str, ...]:
    """Rule: a pod with NVIDIA's RuntimeClass also requests a GPU.

    Fields: spec.runtimeClassName
    Allowed values: any; it returns a warning and not a finding, if the name begins with `nvidia`,
    the pod has no demand, whole GPU or claim, some container does not set NVIDIA_VISIBLE_DEVICES,
    and the rule's visibleDevices is not Ignore
    """
    pod = case.pod
    name = get_string(pod.spec, "runtimeClassName", "spec")
    if not name.startswith(NVIDIA_RUNTIME_CLASS) or case.requests_vram or case.has_whole_gpus:
        return ()
    if case.rule.visible_devices is VisibleDevices.IGNORE or get_objects(
        pod.spec, "resourceClaims", "spec"
    ):
        return ()
    if all(any(map(chooses_devices, container.env())) for container in pod.containers):
        return ()
    hint = (
        f"spec.runtimeClassName: remove it; with {quote(name)} an image can show the pod every "
        f"GPU of its node; {HOW_TO_REQUEST_GPUS}"
    )
    return (hint,)


def hidden_by_variables(case: Case) -> tuple[str, ...]:
    """Rule: variables let the programs of a container see its GPUs.

    Fields: spec.[initContainers,containers][*].env[*].value, .command, .args of containers with
    VRAM, the first of each
    Allowed values: CUDA_VISIBLE_DEVICES with indices below the number of GPUs, without repetition,
    and any index or UUID if the rule shows all of a node's GPUs; NVIDIA_DRIVER_CAPABILITIES with
    compute or all; values with a reference, or of more than 256 characters. Command lines may set
    CUDA_VISIBLE_DEVICES to no GPU for a single step

    It returns warnings and not findings.
    """
    if case.demand_if_any is None:
        return ()
    rule, demand = case.rule, case.demand_if_any
    containers = [each for each in case.pod.containers if each.name in demand.amounts]
    is_known = rule.chooses_gpus or rule.accounting is not Accounting.VRAM
    gpu_count = demand.gpu_count if is_known else None
    lines = (line for each, line in case.command_lines if each.name in demand.amounts)
    found = chain(
        _variable_warnings(containers, gpu_count), _command_line_warnings(lines, gpu_count)
    )
    return tuple(islice(found, MAX_HINTS))


def _variable_warnings(containers: Iterable[Container], gpu_count: int | None) -> Iterator[str]:
    variables = (
        (f"{container.path}.env[{index}]", entry["name"], entry.get("value") or "")
        for container in containers
        for index, entry in enumerate(container.env())
        if entry["name"] in {_CUDA_DEVICES, DRIVER_CAPABILITIES_ENV} and not entry.get("valueFrom")
    )
    for path, name, value in islice(variables, _MOST_JUDGED):
        if "$(" in value or len(value) > MAX_STRING_LENGTH:
            continue
        names = {word.strip() for word in value.split(",")} - {""}
        if name == _CUDA_DEVICES:
            why = _hiding_reason(value, gpu_count)
            if why:
                yield f"{path}: remove it; {why}"
        elif names and names.isdisjoint(_COMPUTE):
            wanted = ",".join(("compute", *(one for one in _OTHERS if one in names)))
            yield f"{path}.value: write {wanted}; without compute CUDA does not work"


def _command_line_warnings(lines: Iterable[CommandLine], gpu_count: int | None) -> Iterator[str]:
    for line in lines:
        found = _ASSIGNMENT.finditer(line.words.text, 0, line.end)
        for match in islice(found, _MOST_JUDGED):
            why = _hiding_reason(match["value"], gpu_count)
            if why:
                yield f"{line.words.at(match).path}: remove {shorten(match[0], 64)}; {why}"


def _hiding_reason(value: str, gpu_count: int | None) -> str:
    """Return the reason why a list hides the container's GPUs, or "" if it may be correct.

    `gpu_count` is None if the container sees all GPUs of its node. CUDA stops at the first invalid
    name, and finds no GPU if a name is repeated (CUDA C++ Programming Guide, "CUDA Environment
    Variables"; `_parse_visible_devices` in PyTorch's torch/cuda/__init__.py).
    """
    found: set[str] = set()
    for name in map(str.strip, value.split(",")):
        is_uuid = name.startswith(_UUID)
        number = _INDEX.match(name)
        if is_uuid and gpu_count is not None:
            return "the GPU is chosen when the pod is bound to a node, so no UUID written here fits"
        if not is_uuid and number is None:
            shown = f"{quote(name)} is no GPU's number" if name else "it is empty"
            return "" if found else f"{shown}, so CUDA finds no GPU"
        gpu = name if is_uuid or number is None else str(int(number[0]))
        if gpu in found:
            return f"it names {quote(gpu)} twice, so CUDA finds no GPU"
        if gpu_count is not None and int(gpu) >= gpu_count:
            return f"inside the pod GPUs are numbered from 0, and it has no GPU {gpu}"
        found.add(gpu)
    return ""


def hidden_by_runtime(case: Case) -> tuple[str, ...]:
    """Rule: the RuntimeClass is one that can show a share of a GPU.

    Fields: spec.runtimeClassName
    Allowed values: the rule's own; no known sandbox, and not runc or crun if the rule sets another
    one. It returns a warning and not a finding.
    """
    name = get_string(case.pod.spec, "runtimeClassName", "spec")
    rule = case.rule
    if case.demand_if_any is None or not name or name == rule.runtime_class_name:
        return ()
    runtime_class = case.cluster.runtime_class_for(rule)
    is_sandbox = any(map(_SANDBOX.fullmatch, re.split("[-.]", name.lower()[:MAX_STRING_LENGTH])))
    if not is_sandbox and not (name in _PLAIN and runtime_class):
        return ()
    sets = f"; rule {quote(rule.name)} sets {runtime_class}" if runtime_class else ""
    if rule.runtime_class_name == AUTO_RUNTIME_CLASS and not runtime_class:
        sets = f"; rule {quote(rule.name)} sets {NVIDIA_RUNTIME_CLASS} if the cluster has it"
    return (f"spec.runtimeClassName: remove it; {quote(name)} shows no share of a GPU{sets}",)
