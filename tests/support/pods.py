"""Pods, policies and requests that state only what a test needs."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, replace
from typing import Any

from webhook.core.pod.request import Request
from webhook.core.policy.match import Match
from webhook.core.policy.model import (
    AUTO_RUNTIME_CLASS,
    CAPABILITIES,
    Accounting,
    Action,
    DriverLimit,
    EnforceBy,
    Enforcement,
    GPUClass,
    Isolation,
    MemoryBounds,
    OnExcess,
    Placement,
    PodRestart,
    Policy,
    ResourceAmounts,
    ResourceClaims,
    Rule,
    RunAs,
    VisibleDevices,
    WhenBlind,
)
from webhook.names import GPU_MEMORY_ANNOTATION

Json = dict[str, Any]

ENFORCEMENT = Enforcement(
    by=EnforceBy.SIDECAR,
    run_as=RunAs.AUTO,
    image="vramwarden/enforcer:1",
    poll_interval="1s",
    grace="5s",
    tolerance="2%",
    blind_after="60s",
    when_blind=WhenBlind.REPORT,
    on_excess=OnExcess.STOP,
    driver_limit=DriverLimit.AUTO,
    pod_restart=PodRestart.NONE,
    resources=ResourceAmounts(),
)

RULE = Rule(
    name="default",
    match=Match(),
    action=Action.ENFORCE,
    memory=MemoryBounds(),
    max_gpu_count=None,
    allowed_classes=("*",),
    default_class=None,
    node_selector={"vramwarden.io/gpu": "true"},
    tolerations=(),
    runtime_class_name=AUTO_RUNTIME_CLASS,
    env=(),
    programs=(),
    visible_devices=VisibleDevices.DENY,
    isolation=Isolation.ANY,
    host_paths=None,
    capabilities=frozenset(CAPABILITIES),
    resource_claims=ResourceClaims.DENY,
    translate_whole_gpu_bytes=None,
    accounting=Accounting.VRAM,
    placement=Placement.BINDING,
    enforcement=ENFORCEMENT,
)

A100 = GPUClass(
    name="a100",
    node_selector={"nvidia.com/gpu.product": "A100"},
    tolerations=({"key": "a100", "operator": "Exists"},),
)


_CRITERIA = {field.name for field in fields(Match)}


def a_rule(**changes: Any) -> Rule:
    """Return the default rule with some fields changed.

    `enforcement` may be a dict of changes. Fields of `match` are given by name.
    """
    criteria = {name: changes.pop(name) for name in _CRITERIA & changes.keys()}
    changes.setdefault("match", Match(**criteria))
    if isinstance(changes.get("enforcement"), dict):
        changes["enforcement"] = replace(ENFORCEMENT, **changes["enforcement"])
    return replace(RULE, **changes)


def a_policy(*rules: Rule, **changes: Any) -> Policy:
    """Return a policy with these rules (default: one that enforces) and the class a100."""
    policy = Policy(
        rules=rules or (RULE,),
        classes={"a100": A100},
        whole_gpu_resources=("nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-*"),
        digest="0123456789abcdef",
    )
    return replace(policy, **changes)


def a_container(name: str = "main", **fields: Any) -> Json:
    return {"name": name, "image": "example", **fields}


def a_pod(
    memory: str | None = None,
    *,
    containers: list[Json] | None = None,
    annotations: Json | None = None,
    labels: Json | None = None,
    **spec: Any,
) -> Json:
    """Return a pod; `memory` is the annotation, other keyword arguments are spec fields."""
    notes = dict(annotations or {})
    if memory is not None:
        notes[GPU_MEMORY_ANNOTATION] = memory
    metadata: Json = {"name": "train", "namespace": "team-a"}
    if notes:
        metadata["annotations"] = notes
    if labels:
        metadata["labels"] = labels
    containers = [a_container()] if containers is None else containers
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": containers, **spec},
    }
    return copy.deepcopy(pod)


def a_request(pod: Json, **fields: Any) -> Request:
    request = Request(
        uid="u-1",
        kind="Pod",
        operation="CREATE",
        subresource="",
        namespace="team-a",
        name="train",
        dry_run=False,
        obj=pod,
        old={},
    )
    return replace(request, **fields)


def a_review(pod: Any, **fields: Any) -> Json:
    """Return the AdmissionReview for the creation of a pod; keyword arguments replace fields."""
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "train",
        "namespace": "team-a",
        "operation": "CREATE",
        "userInfo": {"username": "dev", "groups": ["system:authenticated"]},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
    }
    request.update(fields)
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def as_the_api_server_writes_it(review: Json) -> bytes:
    """Return a review as bytes, with the envelope's fields first."""
    envelope = {"kind": review["kind"], "apiVersion": review["apiVersion"]}
    return json.dumps(envelope | review, separators=(",", ":")).encode()
