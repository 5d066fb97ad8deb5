"""What a pod must hold when it is stored."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from jsonpatch import JsonPatchException, JsonPointerException

from tests.core.admission.decisions import (
    RICH_RULE,
    VRAM,
    WITHOUT_SIDECAR,
    a_plain_pod,
    assert_left,
    container_of,
    decided,
    stored_pod,
)
from tests.support.pods import RULE, a_policy, a_request
from webhook.core.admission.decide import Outcome, Phase, decide
from webhook.core.pod.patch import apply_patch
from webhook.core.policy.cluster import UNKNOWN


def undoings():
    """Yield each operation of the translation undone alone, with the pod that is left."""
    before = a_plain_pod()
    decision = decided(before, RICH_RULE)
    for index, operation in enumerate(decision.patch):
        rest = [other for at, other in enumerate(decision.patch) if at != index]
        try:
            pod = apply_patch(before, rest)
        except (JsonPatchException, JsonPointerException):  # a later operation stands on this one
            continue
        yield pytest.param(pod, id=operation["path"])


def added(old, new, path=()):
    """Yield the path of each member and item that stands in one JSON value only."""
    if isinstance(new, dict):
        old = old if isinstance(old, dict) else {}
        for key, value in new.items():
            if key not in old:
                yield (*path, key)
            yield from added(old.get(key), value, (*path, key))
    elif isinstance(new, list):
        old = {item["name"]: item for item in old or [] if "name" in item}
        for index, value in enumerate(new):
            known = old.get(value.get("name")) if isinstance(value, dict) else None
            if known is None:
                yield (*path, index)
            yield from added(known, value, (*path, index))


# A name is no part; AlwaysPullImages sets the policy; without expressions a term fits no node; a
# variable that is there with other content is the user's.
NO_PART = (
    ".name",
    ".imagePullPolicy",
    ".nodeSelectorTerms.0.matchExpressions",
    "spec.containers.0.env.0.value",
    "spec.containers.0.env.1.valueFrom",
    "spec.containers.0.env.1.valueFrom.fieldRef",
    "spec.containers.0.env.1.valueFrom.fieldRef.fieldPath",
    "spec.containers.0.env.3.value",
    "spec.containers.0.env.4.value",
)


ADVICE = "preferredDuringScheduling"  # and nothing depends on it: see test_preferred_nodes.py

# Of these the reason is a better one than that something is missing.
BETTER_REASONS = {
    "spec.initContainers.0.command": "ReservedName",
    "spec.volumes.0.emptyDir$": "ReservedName",
    "spec.volumes.1.emptyDir$": "ReservedName",
    "spec.volumes.2.downwardAPI$": "ReservedName",
    "spec.containers.0.resources.limits": "RequestsLimitsMismatch",
    "spec.containers.0.env.2.valueFrom.fieldRef.": "VisibleDevicesOverride",
}


def path_of(keys):
    return ".".join(map(str, keys))


def parts():
    """Yield each of them, taken away alone from the stored pod; the sidecar's parts as well."""
    before, after = a_plain_pod(), stored_pod(RICH_RULE)
    for path in added(before, after):
        if any(map(path_of(path).endswith, NO_PART)) or ADVICE in path_of(path):
            continue
        pod = copy.deepcopy(after)
        holder: Any = pod
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]
        yield pytest.param(pod, path, id=path_of(path))


def test_the_pod_as_translation_leaves_it_is_stored():
    for rule in (RULE, RICH_RULE, WITHOUT_SIDECAR):
        request = a_request(stored_pod(rule))
        assert_left(decide(request, a_policy(rule), UNKNOWN, Phase.VALIDATE))


@pytest.mark.parametrize("pod", list(undoings()))
def test_an_operation_of_the_patch_that_is_missing_is_noticed(pod):
    decision = decided(pod, RICH_RULE, Phase.VALIDATE)
    assert decision.outcome is Outcome.DENIED
    assert decision.reasons == ("Unmutated",)


def test_every_step_of_the_translation_is_undone_once():
    undone = " ".join(case.id for case in parts())
    for part in (
        "resources.requests",
        "nodeSelector.vramwarden.io/gpu",
        "nodeSelector.nvidia.com/gpu.product",
        "matchExpressions.0",
        "matchExpressions.1",
        "matchExpressions.2",
        "tolerations.0",
        "tolerations.1",
        "runtimeClassName",
        "containers.0.env.0",
        "containers.0.env.1",
        "containers.0.env.2",
        "containers.0.env.3",
        "containers.0.env.4",
        "containers.1.env",
        "initContainers.0",
        "imagePullSecrets.0",
        "shareProcessNamespace",
        "volumes.0",
        "volumes.1",
        "volumes.2",
        "vramwarden.io/managed",
        "vramwarden.io/admitted",
    ):
        assert part in undone


@pytest.mark.parametrize(("pod", "path"), list(parts()))
def test_each_thing_that_translation_adds_is_missed_and_named(pod, path):
    decision = decided(pod, RICH_RULE, Phase.VALIDATE)
    assert decision.outcome is Outcome.DENIED
    better = [r for start, r in BETTER_REASONS.items() if f"{path_of(path)}$".startswith(start)]
    if better:
        assert decision.reasons[0] == better[0]
        return
    (finding,) = decision.findings
    assert finding.reason.value == "Unmutated"
    assert decision.message == f"Unmutated: {finding.path}: {finding.detail}"
    assert finding.path.startswith(".".join(path[:2]))


@pytest.mark.parametrize(
    ("break_", "path"),
    [
        (
            lambda pod: container_of(pod, "main")["resources"]["limits"].pop(VRAM),
            "spec.containers[0].resources",
        ),
        (lambda pod: container_of(pod, "second").pop("env"), "spec.containers[1].env"),
        (lambda pod: pod["spec"].pop("nodeSelector"), "spec.nodeSelector"),
        (lambda pod: pod["spec"].pop("affinity"), "spec.affinity"),
        (lambda pod: pod["spec"].pop("shareProcessNamespace"), "spec.shareProcessNamespace"),
        (lambda pod: pod["spec"]["initContainers"].pop(0), "spec.initContainers[0]"),
        (lambda pod: pod["spec"]["volumes"].pop(2), "spec.volumes[2]"),
        (
            lambda pod: pod["metadata"]["labels"].pop("vramwarden.io/managed"),
            "metadata.labels[vramwarden.io/managed]",
        ),
        (
            lambda pod: pod["metadata"]["annotations"].pop("vramwarden.io/admitted"),
            "metadata.annotations[vramwarden.io/admitted]",
        ),
        (lambda pod: pod["metadata"].pop("labels"), "metadata.labels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_missing_part_is_named_by_its_path(break_, path):
    pod = stored_pod()
    # resources taken from limits alone would be a mismatch of requests and limits
    if "resources" in path:
        del container_of(pod, "main")["resources"]["requests"]
    break_(pod)
    decision = decided(pod, phase=Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)
    (finding,) = decision.findings
    assert finding.path.startswith(path)
    assert finding.path in finding.detail


def test_a_pod_that_was_never_translated_is_denied_with_few_words():
    decision = decided(a_plain_pod(), RICH_RULE, Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)
    assert len(decision.findings) == 1
    assert "more" in decision.message
    assert "mutating webhook" in decision.message
    assert len(decision.message) < 700
