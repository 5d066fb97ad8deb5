"""Rules about where a pod may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.core.admission.mutation import working_nodes
from webhook.core.pod.fields import mapping, strings, text
from webhook.core.pod.findings import Finding, Reason, quoted
from webhook.names import GPU_CLASS_ANNOTATION, OS_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.views import Pod


def node_selector(case: Case) -> Iterable[Finding]:
    """Rule: the pod's node selector agrees with what translation asks of nodes.

    Fields: spec.nodeSelector
    Allowed values: absent, or the same value for the keys of the rule's and the class's selector;
    for the labels `enforcement` and `device-names` one that the required affinity allows
    """
    present = _selector(case.pod)
    return _conflicts(case, present) if present else ()


def _conflicts(case: Case, present: Mapping[str, str]) -> Iterator[Finding]:
    pod, rule = case.pod, case.rule
    name = pod.annotations.get(GPU_CLASS_ANNOTATION) or rule.default_class
    gpu_class = case.policy.class_for(name)
    wanted = {**rule.node_selector, **(gpu_class.node_selector if gpu_class else {})}
    for key, value in wanted.items():
        if key in present and present[key] != value:
            detail = (
                f"selects {quoted(present[key])} but pods with VRAM need {quoted(value)} "
                f"(rule {quoted(rule.name)}); remove the line"
            )
            yield Finding(Reason.NODE_SELECTOR_CONFLICT, f"spec.nodeSelector[{key}]", detail)
    for term in working_nodes(rule):
        key = term["key"]
        if key in present and (present[key] in term["values"]) is not (term["operator"] == "In"):
            detail = (
                f"selects {quoted(present[key])}, but no pod with VRAM can run on such a node "
                f"(rule {quoted(rule.name)}); remove the line"
            )
            yield Finding(Reason.NODE_SELECTOR_CONFLICT, f"spec.nodeSelector[{key}]", detail)


def operating_system(case: Case) -> tuple[Finding, ...]:
    """Rule: VRAM is shared on Linux only.

    Fields: spec.os.name, spec.nodeSelector[kubernetes.io/os]
    Allowed values: absent, or anything but windows
    """
    if text(mapping(case.pod.spec, "os", "spec"), "name", "spec.os") == "windows":
        path = "spec.os.name"
    elif _selector(case.pod).get(OS_LABEL) == "windows":
        path = f"spec.nodeSelector[{OS_LABEL}]"
    else:
        return ()
    detail = "VRAM cannot be shared on Windows; remove the request for VRAM"
    return (Finding(Reason.UNSUPPORTED_OS, path, detail),)


def node_name(case: Case) -> tuple[Finding, ...]:
    """Rule: the scheduler chooses the node, because it counts the VRAM.

    Fields: spec.nodeName
    Allowed values: absent on create
    """
    name = text(case.pod.spec, "nodeName", "spec")
    if not name:
        return ()
    detail = (
        f"{quoted(name)} bypasses the scheduler, which counts the VRAM; remove it and use "
        "nodeSelector kubernetes.io/hostname"
    )
    return (Finding(Reason.NODE_NAME_PRESET, "spec.nodeName", detail),)


def _selector(pod: Pod) -> Mapping[str, str]:
    return strings(pod.spec, "nodeSelector", "spec")
