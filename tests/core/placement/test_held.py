"""What a list says a pod is held to: what its sidecar reads of its own environment."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import Phase, decide
from webhook.core.placement import held
from webhook.core.placement.assignments import Hold, read_pod_state
from webhook.core.pod.patch import apply_patch
from webhook.core.policy.values import EnforceBy, OnExcess, Placement, Style
from webhook.sidecar import guard
from webhook.sidecar.settings import SettingsError, read_settings

GIB = 2**30
NAMES = (
    "VRAM_CAP_BYTES",
    "VRAM_TOLERANCE",
    "VRAM_POLL_INTERVAL",
    "VRAM_GRACE",
    "VRAM_ON_EXCESS",
)
COMMAND = ["python3", "-I", "-m", "webhook.sidecar"]
ALONE = Hold(8 * GIB, 8 * GIB // 50, 6.5, may_act=False)


def enforcer(*env, **more):
    """Return a sidecar with a cap of 3 GiB, unless variables are given."""
    env = env or (variable("VRAM_CAP_BYTES", str(3 * GIB)),)
    made = {"name": "vram-enforcer", "image": "x", "command": COMMAND, "restartPolicy": "Always"}
    return made | {"env": list(env)} | more


def variable(name, value):
    return {"name": name, "value": value}


def hold_of(*init, **more):
    """Return what a pod of 8 GiB is held to, as it is stored, with these init containers."""
    amounts = {"limits": {"vramwarden.io/vram": "8Gi"}}
    raw = a_pod(containers=[a_container(resources=amounts)], initContainers=list(init), **more)
    return read_pod_state(raw).hold


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("style", Style)
def test_a_pod_with_our_sidecar_may_be_acted_on_and_one_without_may_not(style, placement):
    for by, may_act in ((EnforceBy.SIDECAR, True), (EnforceBy.NONE, False)):
        enforcement = {"by": by, "style": style, "tolerance": "1048576", "grace": "1m"}
        rule = a_rule(placement=placement, enforcement=enforcement)
        raw = a_pod("8Gi")
        decision = decide(a_request(raw), a_policy(rule), Phase.MUTATE)
        expected = Hold(8 * GIB, 2**20, 61.5, may_act=True) if may_act else ALONE
        assert read_pod_state(apply_patch(raw, decision.patch)).hold == expected


def test_a_pod_whose_sidecar_only_reports_is_reported_and_not_acted_on():
    raw = a_pod("8Gi")
    rule = a_rule(enforcement={"on_excess": OnExcess.REPORT})
    decision = decide(a_request(raw), a_policy(rule), Phase.MUTATE)
    expected = Hold(8 * GIB, 8 * GIB // 50, 6.5, may_act=False, reports=True)
    assert read_pod_state(apply_patch(raw, decision.patch)).hold == expected


def test_who_takes_nothing_is_held_to_nothing():
    assert read_pod_state(a_pod(initContainers=[enforcer()])).hold is None


def test_it_is_late_by_a_poll_a_confirmation_and_the_grace():
    def late_s(poll, grace):
        env = zip(NAMES, ("5", "0", poll, grace, ""), strict=True)
        return hold_of(enforcer(*(variable(*each) for each in env))).late_s

    assert held.CONFIRMING_S == guard.JUDGING_S
    assert late_s("", "") == 1 + 0.5 + 5
    assert late_s("60s", "1h") == 60 + 0.5 + 3600
    assert late_s("100ms", "0s") == 0.2
    assert late_s("100ms", "100ms") == 0.3  # the sum of three floats has many more digits


@pytest.mark.parametrize(
    "init",
    [
        [],
        [enforcer(command=["sleep"])],
        [enforcer(command=[*COMMAND, "x"])],
        [enforcer(command=None)],
        [enforcer(args=["x"])],
        [enforcer(name="another")],
        [enforcer(), enforcer()],  # no API server stores it
        [enforcer(env=[])],
        [enforcer(env=None)],
        [enforcer(variable("VRAM_CAP_BYTES", None))],
        [enforcer({"name": "VRAM_CAP_BYTES", "valueFrom": {"fieldRef": {"fieldPath": "x"}}})],
        [enforcer(variable("VRAM_CAP_BYTES", "5"), {"name": "VRAM_GRACE", "valueFrom": {"a": {}}})],
        [enforcer(variable("VRAM_CAP_BYTES", "$(OTHER)"))],
        [enforcer(*[variable("VRAM_CAP_BYTES", "5")] * 2)],
        [enforcer(variable("VRAM_CAP_BYTES", "5"), variable("VRAM_GRACE", "9" * 2**20))],
        [enforcer(variable("VRAM_CAP_BYTES", "5" + " " * 64))],
    ],
)
def test_what_no_sidecar_of_ours_says_well_is_measured_alone_by_what_was_asked_for(init):
    assert hold_of(*init) == ALONE


def test_an_annotation_says_nothing():
    annotations = {"vramwarden.io/gpu-memory": "1Mi", "vramwarden.io/admitted": "v1 a 0123456789ab"}
    assert hold_of(enforcer(), annotations=annotations).cap_bytes == 3 * GIB
    annotations["vramwarden.io/gpu-memory"] = "8Gi"
    assert hold_of(annotations=annotations) == ALONE


TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(alphabet="0123456789.%-+ehmsGi $()", max_size=8),
    st.integers(0, 2**64).map(str),
    st.sampled_from(["", " 5 ", "2%", "50.1%", "1s", "100ms", "61s", "1h", "2h", "0", "inf"]),
    st.sampled_from(["Stop", "Report", " Report ", "report", "None"]),
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, TEXTS)))
@example({"VRAM_CAP_BYTES": "100", "VRAM_TOLERANCE": "2.5%", "VRAM_POLL_INTERVAL": "200ms"})
def test_it_is_what_the_sidecar_reads_itself(environment):
    env = [variable(*each) for each in environment.items()]
    hold = hold_of(enforcer(env=env))
    try:
        settings = read_settings(environment)
    except SettingsError:
        assert hold == ALONE
    else:
        late_s = settings.poll_interval_s + min(settings.poll_interval_s, 0.5) + settings.grace_s
        assert hold == Hold(
            settings.cap_bytes,
            settings.tolerance_bytes,
            pytest.approx(late_s),
            may_act=settings.stops,
            reports=not settings.stops,
        )
