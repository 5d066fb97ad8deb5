"""Parts that a pod must have when it is stored."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.core.admission.decisions import (
    BY_SENTRY,
    RICH_RULE,
    WITHOUT_SIDECAR,
    a_plain_pod,
    assert_unchanged,
    decide_pod,
    stored_pod,
)
from tests.support.pods import RULE, a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.model import Accounting, Placement, PodRestart


def added(old, new, path=()):
    """Yield the path of each member and item that only one of two JSON values has."""
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


# Exceptions: names are no parts. AlwaysPullImages sets the policy. A term without expressions
# matches no node. A variable with other content is the user's.
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


ADVICE = "preferredDuringScheduling"  # nothing depends on it: see test_preferred_nodes.py

# Missing parts with a more specific reason.
BETTER_REASONS = {
    "spec.initContainers.0.command": "ReservedName",
    "spec.volumes.0.emptyDir$": "ReservedName",
    "spec.volumes.1.emptyDir$": "ReservedName",
    "spec.containers.0.resources.limits": "RequestsLimitsMismatch",
    "spec.containers.0.env.2.valueFrom.fieldRef.": "VisibleDevicesOverride",
}


def path_of(keys):
    return ".".join(map(str, keys))


def as_text(keys):
    """Return a path in the form of findings."""
    head, *rest = keys
    in_metadata = {"labels", "annotations"}
    for before, key in zip(keys, rest, strict=False):
        head += f"[{key}]" if isinstance(key, int) or before in in_metadata else f".{key}"
    return head


def parts():
    """Yield each part of the stored pod and its sidecar, and the pod without this part."""
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
    for rule in (RULE, RICH_RULE, BY_SENTRY, WITHOUT_SIDECAR):
        assert_unchanged(decide_pod(stored_pod(rule), rule, Phase.VALIDATE))


STEPS = """
resources.requests nodeSelector.vramwarden.io/gpu nodeSelector.nvidia.com/gpu.product
matchExpressions.0 matchExpressions.1 matchExpressions.2 tolerations.0 tolerations.1
runtimeClassName containers.0.env.0 containers.0.env.1 containers.0.env.2 containers.0.env.3
containers.0.env.4 containers.1.env initContainers.0 shareProcessNamespace
volumes.0 volumes.1 volumes.2 vramwarden.io/managed vramwarden.io/admitted
"""


def test_every_step_of_the_translation_is_undone_once():
    undone = " ".join(case.id for case in parts())
    for part in STEPS.split():
        assert part in undone


@pytest.mark.parametrize(("pod", "path"), list(parts()))
def test_each_thing_that_translation_adds_is_missed_and_named(pod, path):
    decision = decide_pod(pod, RICH_RULE, Phase.VALIDATE)
    assert decision.outcome is Outcome.DENIED
    better = [r for start, r in BETTER_REASONS.items() if f"{path_of(path)}$".startswith(start)]
    if better:
        assert decision.reasons[0] == better[0]
        return
    (finding,) = decision.findings
    assert finding.reason.value == "Unmutated"
    assert decision.message == f"Unmutated: {finding.path}: {finding.detail}"
    assert finding.path in finding.detail
    wanted = as_text(path)
    if (path[1] == "tolerations" and len(path) > 2) or (path[1] == "volumes" and len(path) == 3):
        # The part is appended again.
        wanted = as_text((*path[:2], len(pod["spec"][path[1]])))
    assert wanted.startswith(finding.path)
    assert finding.path.startswith(as_text(path[:2]))


def test_an_image_that_another_webhook_rewrites_is_named_with_the_value_that_changes_it():
    pod = stored_pod()
    sidecar, main = pod["spec"]["initContainers"][0], pod["spec"]["containers"][0]
    before = sidecar["image"]
    sidecar["image"] = f"mirror.test/{before}"
    main["image"] = f"mirror.test/{main['image']}"
    (found,) = decide_pod(pod, phase=Phase.VALIDATE).findings
    assert (found.reason, found.path) == ("Unmutated", "spec.initContainers[0].image")
    assert found.detail == (
        'ask your platform team to write enforcer.repository: "mirror.test/vramwarden/enforcer" '
        '(or enforcement.image of rule "default"); another webhook changed the image from '
        f'"{before}" to "mirror.test/{before}"'
    )
    del sidecar["startupProbe"]
    image, other = decide_pod(pod, phase=Phase.VALIDATE).findings
    assert image == found
    assert other.detail.endswith("(missing: spec.initContainers[0].startupProbe)")


def change_variable(pod):
    env = pod["spec"]["containers"][0]["env"]
    next(one for one in env if one["name"] == "VRAMWARDEN_GPU_MEMORY_MIB")["value"] = "81920"


def change_medium(pod):
    pod["spec"]["volumes"][0]["emptyDir"]["medium"] = "HugePages"


def sort_variables(pod):
    pod["spec"]["containers"][0]["env"].sort(key=lambda one: one["name"])


LATE = {
    change_variable: 'changed: spec.containers[0].env from "8192" to "81920"',
    change_medium: 'changed: spec.volumes[0].emptyDir from {"medium": "Memory", ',
    sort_variables: "changed: spec.containers[0].env from [{",
}


@pytest.mark.parametrize("change", LATE)
def test_what_another_webhook_changed_outside_the_sidecar_is_not_called_missing(change):
    pod = stored_pod()
    change(pod)
    (found,) = decide_pod(pod, phase=Phase.VALIDATE).findings
    assert f"changed the pod after it ({LATE[change]}" in found.detail
    assert "missing" not in found.detail


EACH_WAY = {
    "Sidecar": RICH_RULE,
    "Sentry": replace(RICH_RULE, enforcement=BY_SENTRY.enforcement),
    "None": WITHOUT_SIDECAR,
    "restarts": a_rule(enforcement={"pod_restart": PodRestart.ALL_CONTAINERS}),
    "CapOnly": a_rule(accounting=Accounting.CAP_ONLY),
    "not placed": a_rule(placement=Placement.NONE),
}
# A variable or a RuntimeClass with other content is the user's. Nothing depends on advice.
THEIRS = re.compile(
    r"preferredDuring|^spec\.runtimeClassName$|"
    r"^spec\.containers\[main\]\.env\[(VRAMWARDEN_GPU_MEMORY_MIB|VRAMWARDEN_GPU_MEMORY_FRACTION|"
    r"XLA_PYTHON_CLIENT_PREALLOCATE|NVIDIA_DRIVER_CAPABILITIES)\]\.value"
)


def changes(rule):
    """Yield the path of each value that translation writes, and a pod with another value there."""
    before, after = a_plain_pod(), stored_pod(rule)
    for path in added(before, after):
        value, shown = after, ""
        for key in path:
            value = value[key]
            name = value.get("name", key) if isinstance(value, dict) else key
            shown += f"[{name}]" if isinstance(key, int) else f".{key}" if shown else key
        if isinstance(value, str | int):
            pod = copy.deepcopy(after)
            holder: Any = pod
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = f"{value}x" if isinstance(value, str) else not value
            yield shown, pod


@pytest.mark.parametrize("rule", EACH_WAY.values(), ids=EACH_WAY)
def test_each_value_that_translation_writes_is_missed_if_it_is_another(rule):
    decisions = {path: decide_pod(pod, rule, Phase.VALIDATE) for path, pod in changes(rule)}
    assert len(decisions) > 20
    stored = {path for path, decision in decisions.items() if decision.allowed}
    assert stored == set(filter(THEIRS.search, decisions))


def test_a_pod_that_was_never_translated_is_denied_with_few_words():
    decision = decide_pod(a_plain_pod(), RICH_RULE, Phase.VALIDATE)
    assert decision.reasons == ("Unmutated",)
    assert len(decision.findings) == 1
    assert "more" in decision.message
    assert "mutating webhook" in decision.message
    assert len(decision.message) < 700
