"""Debugging containers that are added later: permissions and visible GPUs."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    VISIBLE,
    VRAM,
    a_bound_pod,
    a_debugger,
    assert_denied,
    assert_unchanged,
    capability,
    decide_debugging,
    decide_update,
    reasons_and_paths,
    stored_pod,
    variable,
    with_debuggers,
)
from tests.core.admission.faults import DEBUGGER_FAULTS, FROM_MAP
from tests.support.pods import a_container, a_pod, a_policy, a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.pod.findings import Reason
from webhook.core.policy.model import Action, EnforceBy, Isolation, VisibleDevices


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("fields", "path"), DEBUGGER_FAULTS, ids=str)
def test_a_debugging_container_that_defeats_the_cap_is_denied(fields, path, index, phase):
    debuggers = [a_debugger("harmless")] * index + [a_debugger(**fields)]
    decision = decide_debugging(a_bound_pod(), *debuggers, phase=phase)
    assert_denied(decision, "EphemeralContainer", f"spec.ephemeralContainers[{index}].{path}")
    assert "kubectl debug --profile=baseline" in decision.message


def test_the_default_profile_of_kubectl_debug_is_denied_with_one_that_works():
    debugger = a_debugger(securityContext={"capabilities": {"add": ["SYS_PTRACE"]}})
    assert decide_debugging(a_bound_pod(), debugger).message == (
        "EphemeralContainer: "
        "spec.ephemeralContainers[0].securityContext.capabilities.add[0]: "
        f"{Reason.EPHEMERAL_CONTAINER.example}"
    )


def test_all_faults_of_a_debugging_container_are_reported_at_once():
    debugger = a_debugger(
        **variable(VISIBLE, "all"),
        securityContext={"privileged": True, "capabilities": {"add": ["SYS_PTRACE"]}},
        targetContainerName="vram-enforcer",
    )
    assert len(decide_debugging(a_bound_pod(), debugger).findings) == 4


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"command": ["sh"], "stdin": True, "tty": True},
        {"targetContainerName": "main"},
        variable(VISIBLE, "void"),
        variable(VISIBLE, "none"),
        variable(VISIBLE, ""),
        variable("CUDA_VISIBLE_DEVICES", "0"),
        {"securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}},
        {"securityContext": {"runAsUser": 1000, "privileged": False}},
    ],
    ids=str,
)
def test_a_harmless_debugging_container_is_allowed(fields, phase):
    old = a_bound_pod()
    decision = decide_debugging(old, a_debugger(**fields), phase=phase)
    assert (decision.allowed, decision.findings) == (True, ())
    expected = a_debugger(**fields)
    if phase is Phase.MUTATE:
        names = [entry["name"] for entry in expected.setdefault("env", [])]
        if VISIBLE not in names:
            expected["env"] = [*expected["env"], {"name": VISIBLE, "value": "void"}]
    assert decision.obj == with_debuggers(old, expected)


@pytest.mark.parametrize(("fields", "path"), DEBUGGER_FAULTS, ids=str)
def test_a_debugging_container_that_exists_is_not_judged_again(fields, path):
    old = with_debuggers(a_bound_pod(), a_debugger("old", **fields))
    assert_unchanged(decide_debugging(old, a_debugger("new")))
    decision = decide_debugging(old, a_debugger("new", **fields))
    assert reasons_and_paths(decision) == [
        ("EphemeralContainer", f"spec.ephemeralContainers[1].{path}")
    ]


# --- in pods with a sidecar, and in those without


@pytest.mark.parametrize("now", EnforceBy)
@pytest.mark.parametrize("by", EnforceBy)
def test_kill_is_denied_only_in_a_pod_with_a_sidecar_that_it_could_stop(by, now):
    """A stored pod keeps its sidecar, whatever the current policy."""
    old = stored_pod(a_rule(enforcement={"by": by}))
    policy = a_policy(a_rule(enforcement={"by": now}))
    debugger = a_debugger(**capability("KILL"))
    assert decide_debugging(old, debugger, policy=policy).allowed is (by is not EnforceBy.SIDECAR)


@pytest.mark.parametrize("now", EnforceBy)
@pytest.mark.parametrize("by", EnforceBy)
def test_a_denial_names_the_sidecar_that_holds_the_cap_only_in_a_pod_that_has_it(by, now):
    old = stored_pod(a_rule(enforcement={"by": by}))
    policy = a_policy(a_rule(enforcement={"by": now}, isolation=Isolation.NON_ROOT))
    mount = {"name": "vram-enforcer-run", "mountPath": "/run/vram-enforcer"}
    debugger = a_debugger(targetContainerName="vram-enforcer", volumeMounts=[mount])
    message = decide_debugging(old, debugger, policy=policy).message
    has_sidecar = by is EnforceBy.SIDECAR
    for sentence, expected in {
        "may run as root, which may stop the sidecar that holds the cap": has_sidecar,
        'may run as root, which rule "default" does not allow': not has_sidecar,
        "; the sidecar that holds the cap cannot be debugged": has_sidecar,
        "; the pod has no container vram-enforcer": not has_sidecar,
        "; volumes called vram-enforcer-run are reserved for vramwarden's sidecar": True,
    }.items():
        assert (sentence in message) is expected, message


# --- in pods without a demand

SHOWING = [
    *(variable(VISIBLE, value) for value in ("all", "0", "GPU-1", "$(X)")),
    variable(VISIBLE, **FROM_MAP),
]
NOT_SHOWING = [
    {},
    {"envFrom": [{"configMapRef": {"name": "x"}}]},
    variable(VISIBLE, "void"),
    variable(VISIBLE, "none"),
    variable(VISIBLE, ""),
    *(fields for fields, _ in DEBUGGER_FAULTS if VISIBLE not in str(fields)),
]
MOUNTED = {"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}


def unmanaged(label):
    return a_pod(labels={} if label is None else {"vramwarden.io/managed": label})


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("label", [None, "false", ""])
@pytest.mark.parametrize("fields", SHOWING, ids=str)
def test_without_a_demand_too_a_debugging_container_shows_no_gpu(fields, label, phase):
    debuggers = [a_debugger("harmless"), a_debugger(**fields)]
    decision = decide_debugging(unmanaged(label), *debuggers, phase=phase)
    assert_denied(decision, "EphemeralContainer", "spec.ephemeralContainers[1].env[0]")
    assert "kubectl debug --profile=baseline" in decision.message


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("label", [None, "false"])
@pytest.mark.parametrize(
    ("devices", "fields"),
    [
        *((devices, fields) for devices in VisibleDevices for fields in NOT_SHOWING),
        *((VisibleDevices.IGNORE, fields) for fields in (*SHOWING, {"volumeMounts": [MOUNTED]})),
    ],
    ids=str,
)
def test_ordinary_debugging_without_a_demand_is_left_alone(devices, fields, label, phase):
    policy = a_policy(a_rule(visible_devices=devices))
    assert_unchanged(
        decide_debugging(unmanaged(label), a_debugger(**fields), phase=phase, policy=policy)
    )


@pytest.mark.parametrize("fields", SHOWING, ids=str)
def test_a_rule_may_void_what_a_debugging_container_without_a_demand_shows(fields):
    policy = a_policy(a_rule(visible_devices=VisibleDevices.VOID))
    old = with_debuggers(a_pod(), a_debugger("old", **fields))
    more = {"env": [{"name": "A", "value": "1"}, *fields["env"]]}
    decision = decide_debugging(old, a_debugger(**more), phase=Phase.MUTATE, policy=policy)
    assert decision.outcome is Outcome.MUTATED
    void = {"env": [{"name": "A", "value": "1"}, {"name": VISIBLE, "value": "void"}]}
    assert decision.obj == with_debuggers(old, a_debugger(**void))


@pytest.mark.parametrize(
    ("make", "devices"),
    [
        (a_pod, VisibleDevices.DENY),
        (a_pod, VisibleDevices.VOID),
        *((a_bound_pod, devices) for devices in VisibleDevices),
    ],
)
def test_a_mount_that_shows_devices_is_denied_in_a_debugging_container(devices, make):
    policy = a_policy(a_rule(visible_devices=devices))
    decision = decide_debugging(make(), a_debugger(volumeMounts=[MOUNTED]), policy=policy)
    path = "spec.ephemeralContainers[0].volumeMounts[0].mountPath"
    assert_denied(decision, "EphemeralContainer", path)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("make", [a_pod, a_bound_pod])
@pytest.mark.parametrize("devices", VisibleDevices)
def test_the_sidecars_name_is_reserved_in_debugging_containers_of_every_pod(devices, make, phase):
    policy = a_policy(a_rule(visible_devices=devices))
    decision = decide_debugging(make(), a_debugger("vram-enforcer"), policy=policy, phase=phase)
    assert_denied(decision, "ReservedName", "spec.ephemeralContainers[0].name")
    assert "kubectl debug --profile=baseline" in decision.message


@pytest.mark.parametrize("make", [a_pod, a_bound_pod])
def test_the_sidecars_volumes_are_not_mounted_into_debugging_containers(make):
    mount = {"name": "vram-enforcer-run", "mountPath": "/run/vram-enforcer"}
    decision = decide_debugging(make(), a_debugger(volumeMounts=[mount]))
    path = "spec.ephemeralContainers[0].volumeMounts[0].name"
    assert_denied(decision, "EphemeralContainer", path)


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("8Gi"),
        a_pod("8GB"),
        a_pod(containers=[a_container(resources={"limits": {VRAM: "8Gi"}})]),
        a_pod(labels={"vramwarden.io/managed": "true"}),
    ],
    ids=["asks", "asks unreadably", "asks by resource", "is marked"],
)
def test_a_pod_that_asks_for_vram_is_guarded_though_it_lacks_a_mark(pod):
    decision = decide_debugging(pod, a_debugger(**variable(VISIBLE, "all")))
    assert decision.reasons == ("EphemeralContainer",)


# --- the profiles of kubectl


def by_profile(profile, custom=None):
    """Return a debugging container as kubectl 1.36 builds it (pkg/cmd/debug/profiles.go)."""
    context = {
        "general": {"capabilities": {"add": ["SYS_PTRACE"]}},
        "legacy": None,
        "baseline": None,
        "restricted": {
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "allowPrivilegeEscalation": False,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "netadmin": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
        "sysadmin": {"privileged": True},
    }[profile]
    merged = {**(context or {}), **(custom or {})}
    return a_debugger(**({"securityContext": merged} if merged else {}))


NON_ROOT = a_policy(a_rule(isolation=Isolation.NON_ROOT))
A_USER = {"runAsUser": 1000}


def a_pod_of_user(user):
    pod = a_bound_pod()
    if user is not None:
        pod["spec"]["securityContext"] = {"runAsUser": user}
    return pod


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    ("profile", "policy", "pod", "custom", "works"),
    [
        *(
            (profile, a_policy(), a_bound_pod(), None, profile not in {"general", "sysadmin"})
            for profile in ("general", "legacy", "baseline", "restricted", "netadmin", "sysadmin")
        ),
        (
            "general",
            a_policy(a_rule(capabilities=frozenset({"SYS_PTRACE"}))),
            a_bound_pod(),
            None,
            True,
        ),
        ("netadmin", a_policy(a_rule(capabilities=frozenset())), a_bound_pod(), None, False),
        *(
            (profile, NON_ROOT, a_pod_of_user(1000), A_USER, profile == "restricted")
            for profile in ("general", "legacy", "baseline", "restricted", "netadmin", "sysadmin")
        ),
        ("restricted", NON_ROOT, a_pod_of_user(1000), None, True),
        ("restricted", NON_ROOT, a_pod_of_user(None), A_USER, True),
        ("restricted", NON_ROOT, a_pod_of_user(None), None, False),
        ("restricted", NON_ROOT, a_pod_of_user(0), None, False),
        ("restricted", NON_ROOT, a_pod_of_user(1000), {"runAsUser": 0}, False),
        ("baseline", NON_ROOT, a_pod(), None, True),
    ],
)
def test_which_profiles_work(profile, policy, pod, custom, works, phase):
    decision = decide_debugging(pod, by_profile(profile, custom), policy=policy, phase=phase)
    assert decision.allowed is works
    assert set(decision.reasons) == (set() if works else {"EphemeralContainer"})


@pytest.mark.parametrize("user", [1000, None, 0])
@pytest.mark.parametrize("fault", ["general", "sysadmin", "baseline"])
def test_under_non_root_a_denial_names_the_profile_that_works_there(fault, user):
    pod = a_pod_of_user(user)
    named = "use kubectl debug --profile=restricted"
    if user != 1000:
        named += " --custom=FILE, with securityContext.runAsUser in FILE"
    findings = decide_debugging(pod, by_profile(fault), policy=NON_ROOT).findings
    assert findings
    assert all(finding.detail.startswith(f"{named}; ") for finding in findings)
    custom = None if user == 1000 else A_USER
    assert decide_debugging(pod, by_profile("restricted", custom), policy=NON_ROOT).allowed


def test_a_pod_without_a_demand_is_debugged_with_the_usual_profile_under_non_root_too():
    (finding,) = decide_debugging(
        a_pod(), a_debugger(volumeMounts=[MOUNTED]), policy=NON_ROOT
    ).findings
    assert "use kubectl debug --profile=baseline; " in finding.detail


@pytest.mark.parametrize(
    ("field", "value"),
    [("runAsNonRoot", None), ("runAsUser", 0), ("allowPrivilegeEscalation", True)],
)
def test_under_non_root_a_debugging_container_that_may_be_root_is_denied(field, value):
    debugger = by_profile("restricted", {**A_USER, field: value})
    path = f"spec.ephemeralContainers[0].securityContext.{field}"
    assert_denied(
        decide_debugging(a_bound_pod(), debugger, policy=NON_ROOT), "EphemeralContainer", path
    )


# --- content that admission cannot see


def test_a_debugging_container_gets_no_view_of_gpus_whatever_its_image_or_a_map_says():
    elsewhere = {"envFrom": [{"configMapRef": {"name": "x"}}]}
    void = variable(VISIBLE, "void")
    for fields in ({}, elsewhere):
        decision = decide_debugging(stored_pod(), a_debugger(**fields), phase=Phase.MUTATE)
        assert decision.outcome is Outcome.MUTATED
        assert decision.obj == with_debuggers(stored_pod(), a_debugger(**fields, **void))
        again = decide_update(stored_pod(), decision.obj, subresource="ephemeralcontainers")
        assert_unchanged(again)
    denied = decide_debugging(stored_pod(), a_debugger(**elsewhere))
    assert_denied(denied, "EphemeralContainer", "spec.ephemeralContainers[0].envFrom")


@pytest.mark.parametrize(
    ("make", "fields", "rule", "outcome"),
    [
        (a_bound_pod, variable(VISIBLE, "all"), {"action": Action.WARN}, Outcome.WARNED),
        (a_bound_pod, variable(VISIBLE, "all"), {"action": Action.AUDIT}, Outcome.AUDITED),
        (a_bound_pod, {}, {"action": Action.AUDIT}, Outcome.ALLOWED),
        (
            a_pod,
            variable(VISIBLE, "all"),
            {"action": Action.AUDIT, "visible_devices": VisibleDevices.VOID},
            Outcome.AUDITED,
        ),
    ],
    ids=["warns", "audits", "audits, harmless", "audits, would void"],
)
def test_the_rule_of_the_pod_decides_and_where_it_audits_nothing_is_voided(
    make, fields, rule, outcome
):
    policy = a_policy(a_rule(**rule))
    decision = decide_debugging(make(), a_debugger(**fields), policy=policy, phase=Phase.MUTATE)
    assert (decision.outcome, decision.patch) == (outcome, ())
    assert bool(decision.warnings) is (outcome is Outcome.WARNED)
