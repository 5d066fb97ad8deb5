"""Warnings about unread vramwarden keys; denials of keys that only vramwarden may write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.admission.decisions import (
    VISIBLE,
    a_bound_pod,
    assert_denied,
    assert_unchanged,
    decide_pod,
    decide_update,
    reasons_and_paths,
    stored_pod,
    variable,
)
from tests.support.pods import A100, a_container, a_pod, a_policy, a_rule
from webhook.adapters.review_json import encode_review
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.model import Action, MemoryBounds

PREFIX = "vramwarden.io/"
NO, AS_LABEL = "nothing reads this key", "as a label it asks for nothing"
LIMITS = "spec.containers[0].resources.limits"
ASKING = [f"{PREFIX}gpu-memory", f"{PREFIX}gpu-class", f"{PREFIX}gpu-count"]


LINES = {
    "gpu-memory": f"{ASKING[0]}: 8Gi",
    "gpu-class": f'{ASKING[1]}: "8Gi" and {ASKING[0]}: 8Gi, for example',
}


def notes(pod, **rule):
    return decide_pod(pod, a_rule(**rule)).warnings


def mistyped(name: str = "gpu-mem", **fields):
    return a_pod(annotations={f"{PREFIX}{name}": "8Gi"}, **fields)


def warnings(decision):
    return encode_review("u-1", decision, "")["response"].get("warnings")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu-mem", "gpu-memory"),
        ("gpumemory", "gpu-memory"),
        ("gpu_memory", "gpu-memory"),
        ("GPU-memory", "gpu-memory"),
        ("GPU-MEMORY", "gpu-memory"),
        ("memory", "gpu-memory"),
        ("gpu-memory-mib", "gpu-memory"),
        ("gpu-memory ", "gpu-memory"),
        ("vram", "gpu-memory"),
        ("gpu-clas", "gpu-class"),
    ],
)
def test_a_mistyped_key_earns_a_warning_with_the_key_that_was_meant(name, meant):
    policy = a_policy(a_rule(), classes={"8Gi": A100})
    decision = decide_pod(mistyped(name), policy=policy)
    assert_unchanged(decision)
    assert decision.findings == decision.patch == ()
    path = f"metadata.annotations[{PREFIX}{name}]"
    line = LINES[meant]
    assert decision.unread_keys == (f"{path}: write {line} in its place; nothing reads this key",)


@pytest.mark.parametrize("name", ["webhook", "team", "", "x" * 63, "managed", "workload"])
def test_a_key_that_is_like_none_earns_a_warning_with_those_that_developers_set(name):
    path = f"metadata.annotations[{PREFIX}{name}]"
    why = f"nothing reads this key, unlike {', '.join(ASKING)}"
    assert notes(mistyped(name)) == (f"{path}: remove it; {why}",)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        (ASKING[0], "8Gi", f"{ASKING[0]}: 8Gi"),
        (f"{PREFIX}gpu-mem", "8Gi", f"{ASKING[0]}: 8Gi"),
        (ASKING[0], "8GB", f"{ASKING[0]}: 8G"),
        (ASKING[1], "a100", f'{ASKING[1]}: "a100" and {ASKING[0]}: 8Gi, for example'),
        (ASKING[2], "2", f'{ASKING[2]}: "2" and {ASKING[0]}: 8Gi, for example'),
    ],
)
def test_an_annotation_of_ours_among_the_labels_earns_a_warning(key, value, line):
    decision = decide_pod(a_pod(labels={key: value, "app": "train"}))
    assert_unchanged(decision)
    (note,) = decision.unread_keys
    assert note == (
        f"metadata.labels[{key}]: write {line} under metadata.annotations; as a label it asks for "
        "nothing"
    )


def test_a_key_for_which_no_line_is_admitted_is_to_be_removed():
    keys = {f"{PREFIX}GPU-class": "b", ASKING[0]: "8Gi"}
    limits = {f"{PREFIX}gpu-clas": "1"}
    main = a_container("main", resources={"limits": limits})
    pod = a_pod(annotations=keys, labels={ASKING[1]: "a"}, containers=[main])
    assert decide_pod(pod).unread_keys == tuple(
        f"{path}: remove it; {why}, and as {ASKING[1]} the pod would be denied"
        for path, why in (
            (f"metadata.labels[{ASKING[1]}]", AS_LABEL),
            (f"metadata.annotations[{PREFIX}GPU-class]", NO),
            (f"{LIMITS}[{PREFIX}gpu-clas]", NO_NODE),
        )
    )


def test_a_mistyped_key_with_a_wrong_amount_earns_the_right_one():
    (note,) = decide_pod(a_pod(annotations={f"{PREFIX}gpu-mem": "8GB"})).unread_keys
    assert ": write vramwarden.io/gpu-memory: 8G in its place; " in note


NEAR = "vramwarden.com/vram"
NO_NODE = "no node has this resource"


@pytest.mark.parametrize(
    ("fields", "path", "why"),
    [
        ({"labels": {ASKING[0]: "8Gi"}}, f"metadata.labels[{ASKING[0]}]", AS_LABEL),
        ({"labels": {f"{PREFIX}gpu-mem": "4Gi"}}, f"metadata.labels[{PREFIX}gpu-mem]", AS_LABEL),
        (
            {"annotations": {f"{PREFIX}gpu-mem": "8Gi"}},
            f"metadata.annotations[{PREFIX}gpu-mem]",
            NO,
        ),
        ({"annotations": {NEAR: "8Gi"}}, f"metadata.annotations[{NEAR}]", NO),
        ({"limits": {f"{PREFIX}vramm": "8Gi"}}, f"{LIMITS}[{PREFIX}vramm]", NO_NODE),
        ({"limits": {f"{PREFIX}team": "8Gi"}}, f"{LIMITS}[{PREFIX}team]", NO_NODE),
        ({"limits": {"vramwarden.dev/vram": "8Gi"}}, f"{LIMITS}[vramwarden.dev/vram]", NO_NODE),
    ],
)
@pytest.mark.parametrize("explicit", [False, True])
def test_beside_the_right_key_a_near_miss_is_to_be_removed(fields, path, why, explicit):
    limits = {**fields.get("limits", {}), **({f"{PREFIX}vram": "8Gi"} if explicit else {})}
    main = a_container("main", resources={"limits": limits})
    keys = {key: one for key, one in fields.items() if key != "limits"}
    pod = a_pod(None if explicit else "8Gi", containers=[main], **keys)
    assert notes(pod) == (f"{path}: remove it; {why}",)


def test_the_resource_of_a_container_that_the_demand_leaves_out_is_no_second_one():
    side = a_container("side", resources={"limits": {f"{PREFIX}vramm": "2Gi"}})
    (note,) = notes(a_pod("main=8Gi", containers=[a_container("main"), side]))
    assert f"{ASKING[0]}: side=2Gi; " in note


@pytest.mark.parametrize("name", ["share", "webhook", "foo", "gpu", "admitted", "sharing"])
def test_a_label_that_nothing_reads_on_a_pod_is_to_be_removed(name):
    key = f"{PREFIX}{name}"
    assert notes(a_pod("8Gi", labels={key: "true"})) == (
        f"metadata.labels[{key}]: remove it; nothing reads this key",
    )
    assert notes(a_pod("8Gi", labels={key: "true"}), pod_labels={key: "true"}) == ()


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(),
        a_pod("8Gi"),
        a_pod("8Gi", annotations={ASKING[1]: "a100", ASKING[2]: "2"}),
        stored_pod(),
        a_bound_pod(),
        a_pod(annotations={"example.com/gpu-mem": "8Gi", "vram.example.com/gpu-memory": "8Gi"}),
        a_pod(labels={f"{PREFIX}managed": "true", f"{PREFIX}workload": "a"}),
    ],
)
def test_what_is_read_or_written_by_us_or_none_of_ours_earns_no_warning(pod):
    assert notes(pod) == ()


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        (Action.ENFORCE, Outcome.DENIED),
        (Action.WARN, Outcome.WARNED),
    ],
)
def test_every_action_that_tells_of_findings_warns_and_decides_as_before(action, outcome):
    rule = a_rule(action=action)
    wrong = [a_container(**variable(VISIBLE, "all"))]
    right = decide_pod(a_pod(containers=wrong), rule)
    decision = decide_pod(mistyped(containers=wrong), rule)
    assert len(decision.unread_keys) == 1
    assert right.outcome is outcome
    assert replace(decision, unread_keys=()) == right


def test_a_demand_beside_a_mistyped_key_is_still_translated():
    pod = a_pod("8Gi", annotations={f"{PREFIX}gpu-cuont": "2"})
    decision = decide_pod(pod)
    assert decision.outcome is Outcome.MUTATED
    assert ': write vramwarden.io/gpu-count: "2" in its place; ' in decision.unread_keys[0]


@pytest.mark.parametrize("rule", [{"action": Action.IGNORE}, {"namespaces": ("elsewhere",)}])
def test_a_rule_that_ignores_warns_of_nothing_and_neither_does_no_rule(rule):
    assert notes(mistyped(), **rule) == ()


def test_only_the_mutating_phase_of_a_creation_warns_so_that_nobody_reads_it_twice():
    assert decide_pod(mistyped(), phase=Phase.VALIDATE).warnings == ()
    for phase in Phase:
        assert decide_update(a_pod(), mistyped(), phase=phase).warnings == ()


def test_the_answer_has_notes_as_warnings_behind_the_findings():
    rule = a_rule(action=Action.WARN, memory=MemoryBounds(max_bytes=2**30))
    pod = a_pod("8Gi", annotations={f"{PREFIX}gpu-mem": "1Gi"})
    decision = decide_pod(pod, rule)
    assert warnings(decision) == [str(decision.findings[0]), *decision.unread_keys]
    assert warnings(decide_pod(mistyped())) == list(decide_pod(mistyped()).unread_keys)
    assert warnings(decide_pod(a_pod("8Gi"))) is None


def test_a_denial_has_the_notes_as_warnings_and_not_its_findings():
    decision = decide_pod(a_pod("8GB", annotations={f"{PREFIX}gpu-mem": "1Gi"}))
    assert decision.outcome is Outcome.DENIED
    assert warnings(decision) == list(decision.unread_keys)
    assert "gpu-mem]" not in decision.message


def test_a_thousand_of_such_keys_are_a_few_short_warnings():
    keys = {f"{PREFIX}gpu-mem{n}{'y' * 5000}": "8Gi" for n in range(1000)}
    decision = decide_pod(a_pod(annotations=keys))
    shown = warnings(decision)
    assert len(shown) == 10
    assert max(map(len, shown)) <= 256
    assert all(line.endswith("gpu-count") for line in shown)


ANNOTATIONS = [
    "vramwarden.io/admitted",
    "vramwarden.io/gpu",
    "vramwarden.io/visible-devices",
    "vramwarden.io/gpu-memory-fraction",
    "vramwarden.io/gpu-waits",
]


MANAGED = "vramwarden.io/managed"


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        *(("annotations", key, value) for key in ANNOTATIONS for value in ("x", "")),
        *(("labels", MANAGED, value) for value in ("true", "false", "")),
    ],
)
def test_our_marks_without_a_demand_are_denied(place, key, value, phase):
    decision = decide_pod(a_pod(**{place: {key: value}}), phase=phase)
    assert_denied(decision, "ReservedName", f"metadata.{place}[{key}]")


def test_all_marks_of_a_pod_whose_demand_was_taken_out_are_reported():
    pod = a_pod(
        labels={"vramwarden.io/managed": "true"}, annotations=dict.fromkeys(ANNOTATIONS, "x")
    )
    assert reasons_and_paths(decide_pod(pod)) == [
        ("ReservedName", "metadata.labels[vramwarden.io/managed]"),
        *(("ReservedName", f"metadata.annotations[{key}]") for key in ANNOTATIONS),
    ]


def test_labels_and_annotations_of_ours_that_mark_nothing_are_fine():
    pod = a_pod(
        labels={"vramwarden.io/workload": "nightly", "vramwarden.io/gpu": "x"},
        annotations={"vramwarden.io/managed": "true"},
    )
    assert_unchanged(decide_pod(pod))


def test_with_a_demand_the_label_is_where_it_belongs():
    pod = a_pod("8Gi", labels={"vramwarden.io/managed": "true"})
    assert decide_pod(pod).outcome is Outcome.MUTATED
