from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.gpus import a_gpu
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from tests.support.policies import load_spec
from webhook.adapters.policy.files import PolicyInvalidError
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement import cap_terms
from webhook.core.placement.assignment_codec import write_assignments
from webhook.core.placement.assignments import Assignment
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.placement.gpu_annotations import gpu_annotations
from webhook.core.placement.pod_state import read_pod_state, terms_by_rule
from webhook.core.pod.patch import apply_patch
from webhook.core.pod.quantity import MIB
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster
from webhook.core.policy.match import Match
from webhook.core.policy.model import DriverLimit, EnforceBy, OnExcess, Placement
from webhook.sidecar import guard
from webhook.sidecar.settings import SettingsError, read_settings

GIB = 1024 * MIB
GPU = replace(a_gpu("a", 15_000), total_bytes=16_000 * MIB)
NAMES = (
    "VRAM_CAP_BYTES",
    "VRAM_TOLERANCE",
    "VRAM_POLL_INTERVAL",
    "VRAM_GRACE",
    "VRAM_ON_EXCESS",
)
COMMAND = ["python3", "-I", "-m", "webhook.sidecar"]
LIMIT, LIMIT_OF_GPU = (
    {
        "name": "VRAM_DRIVER_LIMIT",
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['vramwarden.io/{key}']"}},
    }
    for key in ("driver-limit", "gpu")
)
ALONE = CapTerms(
    cap_bytes=8 * GIB,
    tolerance_bytes=8 * GIB // 50,
    delay_s=1.5,
    enforce=False,
    by=EnforceBy.NONE,
)
SENTRY = replace(ALONE, enforce=True, by=EnforceBy.SENTRY)
ADMITTED = {"vramwarden.io/admitted": "v1 a 0123456789ab"}


def enforcer(*env, **more):
    """Return a sidecar, by default with a cap of 3 GiB."""
    env = env or (variable("VRAM_CAP_BYTES", str(3 * GIB)),)
    made = {"name": "vram-enforcer", "image": "x", "command": COMMAND, "restartPolicy": "Always"}
    return made | {"env": list(env)} | more


def variable(name, value):
    return {"name": name, "value": value}


def state_of(*init, asked=tuple, **more):
    """Return the state of a stored pod of 8 GiB with these init containers."""
    amounts = {"limits": {"vramwarden.io/vram": "8Gi"}}
    raw = a_pod(containers=[a_container(resources=amounts)], initContainers=list(init), **more)
    raw["metadata"]["namespace"] = "team-a"
    return read_pod_state(raw, asked)


def held_to(*init, **more):
    """Return the terms of a stored pod of 8 GiB with these init containers."""
    return state_of(*init, **more).terms


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("excess", OnExcess)
@pytest.mark.parametrize(
    ("by", "delay_s"),
    [(EnforceBy.SIDECAR, 60.2), (EnforceBy.SENTRY, 0.2), (EnforceBy.NONE, 0.2)],
)
def test_the_terms_of_a_mutated_pod_are_its_rules(by, delay_s, excess, placement):
    enforcement = {
        "by": by,
        "tolerance": "1048576",
        "poll_interval": "100ms",
        "grace": "1m",
        "on_excess": excess,
        "driver_limit": DriverLimit.OFF,
    }
    policy = a_policy(a_rule(placement=placement, enforcement=enforcement))
    raw = a_pod("8Gi")
    decision = decide(a_request(raw), policy, UNKNOWN_CLUSTER, Phase.MUTATE)
    enforced = by is not EnforceBy.NONE
    state = read_pod_state(apply_patch(raw, decision.patch))
    assert terms_by_rule(state, policy, UNKNOWN_CLUSTER) == CapTerms(
        cap_bytes=8 * GIB,
        tolerance_bytes=2**20,
        delay_s=delay_s,
        enforce=enforced and excess is OnExcess.STOP,
        reports=enforced and excess is OnExcess.REPORT,
        by=by,
        grace_s=60.0,
    )


def admitting(**match):
    return a_rule(name="a", enforcement={"by": EnforceBy.SENTRY, "grace": "1s"}, **match)


def other(**match):
    return a_rule(name="b", enforcement={"by": EnforceBy.NONE, "grace": "2s"}, **match)


@pytest.mark.parametrize(
    ("rules", "grace_s"),
    [
        pytest.param([other(), admitting()], 1, id="its rule, although another is first"),
        pytest.param([admitting(namespaces=("team-*",)), other()], 1, id="its namespace"),
        pytest.param([admitting(namespaces=("others",)), other()], 2, id="another namespace"),
        pytest.param([admitting(namespace_labels={"tier": "gold"}), other()], 1, id="labels"),
        pytest.param([admitting(namespace_labels={"tier": "tin"}), other()], 2, id="no labels"),
        pytest.param(
            [other(), admitting(pod_labels={"x": "y"}, service_accounts=("z",))],
            1,
            id="labels and account of the pod do not matter once it was admitted",
        ),
        pytest.param(
            [other(), admitting(exception=Match(namespaces=("team-a",)))],
            2,
            id="an excepted namespace",
        ),
        pytest.param(
            [other(), admitting(exception=Match(pod_labels={"app": "web"}))],
            1,
            id="an exception for pods does not matter either",
        ),
        pytest.param([other()], 2, id="the first that matches, if that rule is gone"),
        pytest.param(
            [
                other(pod_labels={"app": "db"}),
                other(service_accounts=("others",)),
                other(namespace_labels={"tier": "tin"}),
                a_rule(
                    name="c",
                    enforcement={"grace": "3s"},
                    pod_labels={"app": "web"},
                    service_accounts=("runner",),
                    namespace_labels={"tier": "gold"},
                ),
                other(),
            ],
            3,
            id="the first that matches all of the pod",
        ),
        pytest.param([other(namespaces=("others",))], 5, id="the defaults"),
        pytest.param([], 5, id="an empty policy"),
    ],
)
def test_the_rule_that_admitted_a_pod_has_its_terms_or_the_first_that_matches(rules, grace_s):
    policy, labels = a_policy(*rules), {"app": "web", "secret": "x" * 63}
    state = state_of(
        annotations=ADMITTED,
        labels=labels,
        asked=lambda: policy.pod_labels,
        serviceAccountName="runner",
    )
    cluster = Cluster(namespaces={"team-a": {"tier": "gold"}})
    by = EnforceBy.NONE if grace_s == 2 else EnforceBy.SENTRY
    expected = replace(ALONE, by=by, enforce=by is EnforceBy.SENTRY, grace_s=grace_s)
    assert terms_by_rule(state, policy, cluster) == expected
    assert state.admission.subject.pod_labels.keys() <= policy.pod_labels


def test_terms_that_depend_on_labels_of_a_namespace_wait_until_they_are_known():
    state = state_of(annotations=ADMITTED)
    by_labels = admitting(namespace_labels={"tier": "gold"})
    assert terms_by_rule(state, a_policy(by_labels), UNKNOWN_CLUSTER) is None
    assert terms_by_rule(state, a_policy(other(), by_labels), UNKNOWN_CLUSTER) is None
    assert terms_by_rule(state, a_policy(other()), UNKNOWN_CLUSTER).grace_s == 2
    by_sidecar = state_of(enforcer(), annotations=ADMITTED)
    assert terms_by_rule(by_sidecar, a_policy(by_labels), UNKNOWN_CLUSTER) == by_sidecar.terms


@pytest.mark.parametrize(
    "mark",
    [
        "",
        "v1",
        "v1 a",
        "v1 a 0123456789a",
        "v1 a 0123456789abc",
        "v1 a 0123456789aB",
        "v1  0123456789ab",
        "v1 A 0123456789ab",
        "v1 a b 0123456789ab",
        "v2 a 0123456789ab",
        " v1 a 0123456789ab",
        "v1 a 0123456789ab\n",
        f"v1 {'a' * 64} 0123456789ab",
        "v1 " + "a" * 2**20,
    ],
)
def test_a_pod_without_a_well_formed_mark_was_not_mutated_and_is_measured_only(mark):
    state = state_of(annotations={"vramwarden.io/admitted": mark})
    assert state.admission is None
    assert terms_by_rule(state, a_policy(admitting()), UNKNOWN_CLUSTER) == ALONE


def test_a_cap_is_at_most_the_amount_in_resources():
    for cap, expected in ((3 * GIB, 3 * GIB), (8 * GIB, 8 * GIB), (8 * GIB + 1, 8 * GIB)):
        terms = held_to(enforcer(variable("VRAM_CAP_BYTES", str(cap))))
        assert (terms.cap_bytes, terms.tolerance_bytes) == (expected, expected // 50)
        assert (terms.by, terms.enforce) == (EnforceBy.SIDECAR, True)


def test_who_takes_nothing_is_held_to_nothing():
    assert read_pod_state(a_pod(initContainers=[enforcer()])).terms is None


def test_it_is_late_by_a_poll_a_confirmation_and_the_grace():
    def delay_s(poll, grace):
        env = zip(NAMES, ("5", "0", poll, grace, ""), strict=True)
        return held_to(enforcer(*(variable(*each) for each in env))).delay_s

    assert cap_terms.CONFIRMING_S == guard.JUDGING_INTERVAL_S
    assert delay_s("", "") == 1 + 0.5 + 5
    assert delay_s("60s", "1h") == 60 + 0.5 + 3600
    assert delay_s("100ms", "0s") == 0.2
    assert delay_s("100ms", "100ms") == 0.3  # the sum of three floats has many more digits


@pytest.mark.parametrize(
    "init",
    [
        [],
        [enforcer(command=["sleep"])],
        [enforcer(command=[*COMMAND, "x"])],
        [enforcer(command=None)],
        [enforcer(args=["x"])],
        [enforcer(name="another")],
        [enforcer(), enforcer()],  # the API server would reject it
        [enforcer(env=[])],
        [enforcer(env=None)],
        [enforcer(variable("VRAM_CAP_BYTES", None))],
        [enforcer({"name": "VRAM_CAP_BYTES", "valueFrom": {"fieldRef": {"fieldPath": "x"}}})],
        [enforcer(variable("VRAM_CAP_BYTES", "5"), {"name": "VRAM_GRACE", "valueFrom": {"a": {}}})],
        [enforcer(variable("VRAM_CAP_BYTES", "$(other())"))],
        [enforcer(*[variable("VRAM_CAP_BYTES", "5")] * 2)],
        [enforcer(variable("VRAM_CAP_BYTES", "5"), variable("VRAM_GRACE", "9" * 2**20))],
        [enforcer(variable("VRAM_CAP_BYTES", "5" + " " * 64))],
        [enforcer(variable("VRAM_CAP_BYTES", "5"), variable("VRAM_DRIVER_LIMIT", "Auto"))],
        [enforcer(variable("VRAM_CAP_BYTES", "5"), *[LIMIT] * 2)],
        [enforcer(variable("VRAM_CAP_BYTES", "5"), LIMIT_OF_GPU)],
    ],
)
def test_a_pod_without_one_sidecar_that_can_be_read_has_none(init):
    assert held_to(*init) == ALONE
    state = state_of(*init, annotations=ADMITTED)
    assert (state.terms, state.admission.rule) == (SENTRY, "a")


LABEL = "vramwarden.io/driver-limit"


@pytest.mark.parametrize(
    ("env", "selector", "limit"),
    [
        ([], {}, "Off"),
        ([], {LABEL: "true"}, "Off"),
        ([LIMIT], None, "Auto"),
        ([LIMIT], {LABEL: "false"}, "Auto"),
        ([LIMIT], {"a": "b", LABEL: "true"}, "Require"),  # regardless of the selector's author
    ],
)
def test_a_pods_own_spec_says_what_it_was_promised_of_the_drivers_limit(env, selector, limit):
    env = [variable("VRAM_CAP_BYTES", "5"), *env]
    assert held_to(enforcer(env=env), nodeSelector=selector).limit == limit


@pytest.mark.parametrize(
    ("written", "limit"),
    [({}, "Off"), ({LABEL: "Auto"}, "Auto"), ({LABEL: "Require"}, "Require"), ({LABEL: ""}, "Off")],
)
@pytest.mark.parametrize("selector", [{}, {LABEL: "true"}])
def test_a_pod_with_gpus_has_the_limit_that_was_written_with_them(written, limit, selector):
    env = [variable("VRAM_CAP_BYTES", "5"), LIMIT]
    annotations = {"vramwarden.io/gpu": "GPU-a", **written}
    made = held_to(enforcer(env=env), annotations=annotations, nodeSelector=selector)
    assert made.limit == limit


@pytest.mark.parametrize("gates", [*product(EnforceBy, OnExcess, Placement)])
@pytest.mark.parametrize("mode", DriverLimit)
def test_each_rule_promises_the_drivers_limit_whole_or_not_at_all_or_is_no_rule(
    tmp_path, mode, gates
):
    """Variable, node selector, entry and annotation agree in every combination."""
    by, excess, placement = gates
    enforcement = f"{{by: {by}, onExcess: {excess}, driverLimit: {mode}}}"
    spec = f"  rules: [{{name: a, placement: {placement}, enforcement: {enforcement}}}]\n"
    opens = gates == ("Sidecar", "Stop", "Binding")
    if mode == "Require" and not opens:
        with pytest.raises(PolicyInvalidError, match="Require needs"):
            load_spec(tmp_path, spec)
        return
    promised = mode if opens else DriverLimit.OFF
    raw = a_pod("6000Mi")
    decision = decide(a_request(raw), load_spec(tmp_path, spec), UNKNOWN_CLUSTER, Phase.MUTATE)
    state = read_pod_state(apply_patch(raw, decision.patch))
    named = [
        env["name"]
        for container in decision.obj["spec"].get("initContainers", ())
        for env in container["env"]
    ]
    assert named.count("VRAM_DRIVER_LIMIT") == (promised != "Off")
    assert decision.obj["spec"]["nodeSelector"].get(LABEL) == (
        "true" if promised == "Require" else None
    )
    assert state.limit is promised
    entry = Assignment(pod="a/b", uuids=("x",), memory_bytes=5, since_s=6, terms=state.terms)
    ((line,),) = map(str.splitlines, write_assignments({"u": entry}).values())
    assert json.loads(line).get("limit", "Off") == promised
    given = gpu_annotations(("GPU-a",), [GPU], DeviceNames.UUID, 6000 * MIB, state.limit)
    assert given.get(LABEL, "Off") == promised
    fraction = "0.3187" if promised == "Off" else "0.8500"
    assert given["vramwarden.io/gpu-memory-fraction"] == fraction


def test_no_annotation_has_a_cap():
    for memory in ("1Mi", "8Gi", "16Gi"):
        annotations = {"vramwarden.io/gpu-memory": memory, **ADMITTED}
        assert held_to(enforcer(), annotations=annotations).cap_bytes == 3 * GIB
        assert held_to(annotations=annotations) == SENTRY


TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(alphabet="0123456789.%-+ehmsGi $()", max_size=8),
    st.integers(0, 2**64).map(str),
    st.sampled_from(["", " 5 ", "2%", "50.1%", "1s", "100ms", "61s", "1h", "2h", "0", "inf"]),
    st.sampled_from(["Stop", "Report", " Report ", "report", "None"]),
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, TEXTS)))
@example({"VRAM_CAP_BYTES": str(2**63 - 1)})
@example({"VRAM_CAP_BYTES": "100", "VRAM_TOLERANCE": "2.5%", "VRAM_POLL_INTERVAL": "200ms"})
def test_it_is_what_the_sidecar_reads_itself(environment):
    env = [variable(*each) for each in environment.items()]
    terms = held_to(enforcer(env=env))
    try:
        settings = read_settings(environment)
    except SettingsError:
        assert terms == ALONE
    else:
        cap_bytes = str(min(settings.cap_bytes, 8 * GIB))  # at most the amount in `resources`
        settings = read_settings(environment | {"VRAM_CAP_BYTES": cap_bytes})
        delay_s = settings.poll_interval_s + min(settings.poll_interval_s, 0.5) + settings.grace_s
        assert terms == CapTerms(
            cap_bytes=settings.cap_bytes,
            tolerance_bytes=settings.tolerance_bytes,
            delay_s=pytest.approx(delay_s),
            enforce=settings.stops_processes,
            reports=not settings.stops_processes,
            grace_s=settings.grace_s,
        )
