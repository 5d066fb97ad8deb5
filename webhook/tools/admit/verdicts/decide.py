"""Decision about one pod or pod template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from webhook.core.admission.controller_gpu_counts import gpu_count_advice
from webhook.core.admission.decision import Decision, Outcome
from webhook.core.admission.stray_keys import find_invalid_amounts, stray_key_warnings
from webhook.core.admission.workload_review import (
    create_request,
    decide_both_phases,
    with_template_paths,
)
from webhook.core.nvidia.programs import warn_of_size
from webhook.core.pod.fields import Json, find_object, find_string
from webhook.core.pod.findings import annotation_path
from webhook.core.pod.pod_templates import Form, Template, as_object_list, format_path
from webhook.core.pod.template_search import is_builtin_without_pods
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.match import add_name_label
from webhook.core.policy.model import Policy
from webhook.names import MIRROR_POD_ANNOTATION, NODES_GROUP, REQUEST_ANNOTATIONS, VRAM_RESOURCE
from webhook.tools.admit.verdicts.creation import as_sent, decide_accepted, sent_pod
from webhook.tools.admit.verdicts.verdict import PodVerdict, find_demand
from webhook.tools.manifests.documents import LineIndex, Target

_STATIC: Final = (
    "remove it, and run the pod by a DaemonSet; a static pod can have no share, since the kubelet "
    "starts it without asking the API server"
)


def decide_target(
    target: Target,
    policy: Policy,
    cluster: Cluster,
    namespace: str,
    lines: LineIndex,
    namespace_labels: Mapping[str, str],
) -> PodVerdict:
    """Decide a pod as the webhook does at its creation: mutate, then validate."""
    found = target.object
    namespace = find_string(found.value, "metadata", "namespace") or namespace
    if target.found.pod is None:
        is_apart = target.found.form is Form.ELSEWHERE
        decision = _decide_amounts(target) if is_apart else None
        # Rules may match any namespace label.
        useless = [item for item in target.unread if item.key not in policy.namespace_labels]
        return PodVerdict(
            target=target,
            namespace=namespace,
            lines=lines,
            decision=decision,
            notes=tuple(item.warning for item in target.stray if item.cure and item not in useless),
            unread_keys=tuple(item.warning for item in useless),
        )
    pod, copied = sent_pod(as_sent(target.pod))
    known = replace(cluster, namespaces={namespace: add_name_label(namespace, namespace_labels)})
    creation = create_request(pod, namespace)
    is_mirror = MIRROR_POD_ANNOTATION in find_object(pod, "metadata", "annotations")
    if is_mirror:
        creation = replace(creation, groups=(NODES_GROUP,))
    first, last, rejected = decide_accepted(creation, policy, known)
    first = first.with_advice(warn_of_size(first.advice_bytes or 0))

    def decided(other: Json) -> Decision:
        return decide_both_phases(create_request(other, namespace), policy, known)[0]

    form = target.found.form
    is_own = form is Form.POD and not rejected
    first, last = (with_template_paths(item, target.found) for item in (first, last))
    stray = stray_key_warnings(target.stray, target.found, pod, decided, last.findings)
    unread = (
        *first.unread_keys,
        *stray,
        *(_requests(pod, _STATIC) if is_mirror else ()),
        *(_virtual_machine_requests(target.found) if form is Form.MACHINE and last.allowed else ()),
    )
    demand, asks = find_demand(last.obj)
    count = demand.gpu_count if demand else 1
    counted = gpu_count_advice(found.value, found.version, target.found, count) if asks else ""
    return PodVerdict(
        target=target,
        namespace=namespace,
        lines=lines,
        decision=last,
        patch=first.patch if last.allowed and is_own else (),
        notes=first.notes,
        unread_keys=unread,
        remarks=tuple(filter(None, (copied, counted))),
        rejected=tuple(map(target.found.shown_text, rejected)),
        is_translated=last.allowed and bool(first.patch) and form is not Form.MACHINE,
    )


def _requests(pod: Json, cure: str) -> Iterator[str]:
    """Yield a message for each VRAM request of a pod that can get no share."""
    for key in REQUEST_ANNOTATIONS:
        if key in find_object(pod, "metadata", "annotations"):
            yield f"{annotation_path(key)}: {cure}"
    for index, item in enumerate(as_object_list(find_object(pod, "spec").get("containers"))):
        if VRAM_RESOURCE in find_object(item, "resources", "limits"):
            yield f"spec.containers[{index}].resources.limits[{VRAM_RESOURCE}]: {cure}"


def _virtual_machine_requests(template: Template) -> Iterator[str]:
    """Return a message for each VRAM request of a virtual machine."""
    devices = format_path((*template.path, "spec", "domain", "devices", "gpus"))
    cure = f"remove the annotation and use {devices}; a share of a GPU reaches no virtual machine"
    return map(template.shown_text, _requests(template.pod or {}, cure))


def _decide_amounts(target: Target) -> Decision:
    """Decide only the amounts in an object whose pods another controller creates."""
    findings = tuple(
        finding
        for item in target.stray
        if not item.is_in_text
        and not is_builtin_without_pods(target.object.kind, target.object.version)
        for finding in find_invalid_amounts(item.key, item.value, item.field)
    )
    return Decision(outcome=Outcome.DENIED if findings else Outcome.SKIPPED, findings=findings)
