"""Containers of the reserved name: the sidecar, forged sidecars and changed sidecars."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from tests.core.admission.decisions import (
    BY_SENTRY,
    VISIBLE,
    VRAM,
    WITHOUT_SIDECAR,
    a_full_pod,
    another_policy,
    assert_denied,
    assert_unchanged,
    decide_pod,
    find_container,
    limits,
    merge_fields,
    merge_into_container,
    request_and_limit,
    translate,
    variable,
)
from tests.support.pods import RULE, a_container, a_policy, a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.model import VisibleDevices

FORGERIES = [
    {"command": ["sleep", "inf"]},
    {"command": []},
    {"command": ["python3", "-I", "-m", "webhook.sidecar", "--version"]},
    {"args": ["--help"]},
]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("forged", FORGERIES, ids=str)
def test_a_sidecar_that_runs_something_else_is_denied(forged, phase):
    pod = translate(a_full_pod())
    ours = find_container(pod, "vram-enforcer")["command"]
    merge_fields(find_container(pod, "vram-enforcer"), dict.fromkeys(forged))
    holder = merge_into_container(pod, "vram-enforcer", forged)
    decision = decide_pod(pod, phase=phase)
    assert_denied(decision, "ReservedName", f"{holder}.name")
    assert "give the container another name" in decision.message
    run = " ".join([*forged.get("command", ours), *forged.get("args", ())])
    assert decision.message.endswith(
        f'its command changed from "{" ".join(ours)}" to "{run}"; if you did not write it, '
        "another webhook did"
    )


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize("annotations", [{}, {"vramwarden.io/admitted": "v1 default 0123456789ab"}])
def test_a_container_of_the_reserved_name_is_denied_whatever_the_annotations(field, annotations):
    pod = a_full_pod(annotations=annotations, labels={"vramwarden.io/managed": "true"})
    pod["spec"][field].append(a_container("vram-enforcer"))
    index = len(pod["spec"][field]) - 1
    decision = decide_pod(pod)
    assert_denied(decision, "ReservedName", f"spec.{field}[{index}].name")
    assert "its command changed" not in decision.message


OUR_IMAGES = [
    "vramwarden/enforcer:0",
    "vramwarden/enforcer",
    "vramwarden/enforcer@sha256:ab",
]
OTHER_IMAGES = [
    "example",
    "evil/vramwarden/enforcer:1",
    "vramwarden/enforcer2:1",
    "registry:5000/vramwarden/enforcer",
    None,
]


@pytest.mark.parametrize("image", [*OUR_IMAGES, *OTHER_IMAGES])
def test_a_sidecar_with_our_command_gets_our_image_and_is_not_stored_with_another(image):
    clean = translate(a_full_pod())
    pod = copy.deepcopy(clean)
    find_container(pod, "vram-enforcer")["image"] = image
    assert decide_pod(pod).obj == clean
    if image in OUR_IMAGES:
        return
    for policy in (a_policy(), another_policy()):
        stored = decide_pod(pod, phase=Phase.VALIDATE, policy=policy)
        assert stored.reasons == ("Unmutated",)
        assert stored.findings[0].path.startswith("spec.initContainers")


OF_THE_API_SERVER = {
    "its defaults": {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "startupProbe": {"successThreshold": 1},
        "livenessProbe": {"successThreshold": 1},
    },
    "AlwaysPullImages": {"imagePullPolicy": "Always"},
    "LimitRanger": {
        "resources": {
            "limits": {"ephemeral-storage": "1Gi"},
            "requests": {"ephemeral-storage": "1Mi"},
        }
    },
    "LimitRanger, of a device": {
        "resources": {"limits": {"rdma/ib": "0"}, "requests": {"rdma/ib": "0"}}
    },
}
OF_WEBHOOKS = {
    "variables of others": {
        "env": [
            {"name": "AWS_ROLE_ARN", "value": "x"},
            {"name": "HTTP_PROXY", "value": "http://proxy"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ]
    },
    "credentials of a cloud": {
        "volumeMounts": [
            {"name": "aws", "mountPath": "/var/run/secrets/eks.amazonaws.com/serviceaccount"}
        ]
    },
    "the log as a last message": {"terminationMessagePolicy": "FallbackToLogsOnError"},
    "a limit that a LimitRange sets low": {"resources": {"limits": {"ephemeral-storage": "1"}}},
}


@pytest.mark.parametrize(
    "fields", [{}, *OF_WEBHOOKS.values(), {"envFrom": [{"configMapRef": {"name": "x"}}]}], ids=str
)
@pytest.mark.parametrize("others", OF_THE_API_SERVER.values(), ids=OF_THE_API_SERVER)
def test_what_the_api_servers_plugins_set_stays_where_all_else_is_written_again(fields, others):
    kept = translate(a_full_pod())
    merge_into_container(kept, "vram-enforcer", others)
    pod = copy.deepcopy(kept)
    if "resources" not in fields or "resources" not in others:
        merge_into_container(pod, "vram-enforcer", fields)
    again = find_container(decide_pod(pod).obj, "vram-enforcer")
    for probe in ("startupProbe", "livenessProbe"):
        again[probe].setdefault("successThreshold", 1)
    for key in ("terminationMessagePath", "terminationMessagePolicy"):
        again.setdefault(key, OF_THE_API_SERVER["its defaults"][key])
    wanted = find_container(kept, "vram-enforcer")
    merge_fields(wanted, OF_THE_API_SERVER["its defaults"])
    assert again == wanted


IN_ONE_FIELD = {
    f"LimitRanger, of a device, in {kind}": {"resources": {kind: {"rdma/ib": "0"}}}
    for kind in ("limits", "requests")
}


@pytest.mark.parametrize("added", [*OF_THE_API_SERVER, *OF_WEBHOOKS, *IN_ONE_FIELD])
def test_what_others_add_in_good_faith_is_stored_but_of_webhooks_never_taken_over(added):
    clean = translate(a_full_pod())
    pod = copy.deepcopy(clean)
    merge_into_container(
        pod, "vram-enforcer", (OF_THE_API_SERVER | OF_WEBHOOKS | IN_ONE_FIELD)[added]
    )
    assert decide_pod(pod).obj == (clean if added in OF_WEBHOOKS else pod)
    assert_unchanged(decide_pod(pod, phase=Phase.VALIDATE))


HARMFUL = {
    "LD_PRELOAD": variable("LD_PRELOAD", "/x.so"),
    "LD_LIBRARY_PATH": variable("LD_LIBRARY_PATH", "/x"),
    "PYTHONPATH": variable("PYTHONPATH", "/x"),
    "PATH": variable("PATH", "/x"),
    "where its last message goes": {"terminationMessagePath": "/run/vram-enforcer/heartbeat"},
    "no last message": {"terminationMessagePolicy": "Nothing"},
    "an image that is never pulled": {"imagePullPolicy": "Never"},
    "another threshold": {"livenessProbe": {"successThreshold": 2}},
    "a second cap": variable("VRAM_CAP_BYTES", "999999999999"),
    "NVML's debugging": variable("__NVML_DBG_FILE", "/x"),
    "OpenSSL's settings": variable("OPENSSL_CONF", "/x"),
    "a variable of nobody we know": variable("OURS", "1"),
    "another setting": variable("VRAM_UNHEARD_OF", "1"),
    "another GPU": variable(VISIBLE, "void"),
    "variables from a map": {"envFrom": [{"configMapRef": {"name": "m"}}]},
    "mount over /usr": {"volumeMounts": [{"name": "v", "mountPath": "/usr"}]},
    "mount over /usr by a detour": {
        "volumeMounts": [{"name": "v", "mountPath": "/var/run/secrets/../../../usr"}]
    },
    "mount over the heartbeat by a detour": {
        "volumeMounts": [{"name": "v", "mountPath": "/run/secrets/../vram-enforcer"}]
    },
    "hook": {"lifecycle": {"preStop": {"exec": {"command": ["x"]}}}},
    "other user": {"securityContext": {"runAsUser": 65534}},
    "writable root": {"securityContext": {"readOnlyRootFilesystem": False}},
    "a probe less": {"livenessProbe": None},
    "easier probe": {"startupProbe": {"exec": {"command": ["true"]}}},
    "no restart": {"restartPolicy": None},
    "more memory": {"resources": {"limits": {"memory": "1Gi"}}},
    "working directory": {"workingDir": "/x"},
    "VRAM of its own": request_and_limit(VRAM, "1Gi", "1Gi"),
}


@pytest.mark.parametrize("fields", HARMFUL.values(), ids=HARMFUL)
def test_a_sidecar_that_was_tampered_with_is_repaired_or_else_denied(fields):
    clean = translate(a_full_pod())
    pod = copy.deepcopy(clean)
    merge_into_container(pod, "vram-enforcer", fields)
    stored = decide_pod(pod, phase=Phase.VALIDATE)
    assert stored.reasons == ("Unmutated",)
    assert stored.findings[0].path.startswith("spec.initContainers")
    repaired = decide_pod(pod)
    assert repaired.outcome is Outcome.MUTATED
    assert repaired.obj == clean


NAMED = {
    "LD_PRELOAD": 'added: AT.env[LD_PRELOAD]: {"name": "LD_PRELOAD", "value": "/x.so"}',
    "where its last message goes": (
        'changed: AT.terminationMessagePath from "/dev/termination-log" to '
        '"/run/vram-enforcer/heartbeat"'
    ),
    "an image that is never pulled": ('changed: AT.imagePullPolicy from "IfNotPresent" to "Never"'),
    "another threshold": "changed: AT.livenessProbe.successThreshold from 1 to 2",
    "a second cap": (
        'added: AT.env[VRAM_CAP_BYTES]: {"name": "VRAM_CAP_BYTES", "value": "999999999999"}'
    ),
    "mount over /usr": 'added: AT.volumeMounts[v]: {"name": "v", "mountPath": "/usr"}',
    "hook": 'added: AT.lifecycle: {"preStop": {"exec": {"command": ["x"]}}}',
    "other user": "changed: AT.securityContext.runAsUser from 0 to 65534",
    "writable root": "changed: AT.securityContext.readOnlyRootFilesystem from true to false",
    "a probe less": "missing: AT.livenessProbe",
    "no restart": "missing: AT.restartPolicy",
    "more memory": 'changed: AT.resources.limits[memory] from "64Mi" to "1Gi"',
    "VRAM of its own": (
        'added: AT.resources.requests[vramwarden.io/vram]: "1Gi", '
        'added: AT.resources.limits[vramwarden.io/vram]: "1Gi"'
    ),
}


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("change", "said"), NAMED.items(), ids=NAMED)
def test_what_another_webhook_changed_in_the_sidecar_is_named_and_nothing_else(change, said, index):
    pod = translate(a_full_pod())
    inits = pod["spec"]["initContainers"]
    inits.insert(index, inits.pop(0))
    for fields in (*OF_THE_API_SERVER.values(), *OF_WEBHOOKS.values(), HARMFUL[change]):
        merge_into_container(pod, "vram-enforcer", fields)
    (finding,) = decide_pod(pod, phase=Phase.VALIDATE).findings
    at = f"spec.initContainers[{index}]"
    assert finding.path.startswith(f"{at}.")
    assert finding.detail.endswith(f"changed the pod after it ({said.replace('AT', at)})")


def test_a_sidecar_behind_an_init_container_with_vram_is_moved_before_it():
    clean = translate(a_full_pod("init=8Gi"))
    pod = copy.deepcopy(clean)
    inits = pod["spec"]["initContainers"]
    inits.append(inits.pop(0))
    assert decide_pod(pod).obj == clean
    for policy in (a_policy(), replace(a_policy(), digest="f" * 64)):
        stored = decide_pod(pod, phase=Phase.VALIDATE, policy=policy)
        assert stored.reasons == ("Unmutated",)


@pytest.mark.parametrize("memory", ["main=8Gi", "side=8Gi"])
def test_a_sidecar_behind_an_init_container_without_vram_stays(memory):
    pod = translate(a_full_pod(memory))
    pod["spec"]["initContainers"].insert(0, pod["spec"]["initContainers"].pop(1))
    assert decide_pod(pod).patch == ()
    assert decide_pod(pod, phase=Phase.VALIDATE).allowed


def test_a_second_sidecar_is_removed():
    clean = translate(a_full_pod())
    pod = copy.deepcopy(clean)
    pod["spec"]["containers"].append(find_container(pod, "vram-enforcer") | {"restartPolicy": None})
    assert decide_pod(pod).obj == clean
    assert decide_pod(pod, phase=Phase.VALIDATE).reasons == ("Unmutated",)


GPU_BY_NAME = [
    pytest.param(None, RULE, variable(VISIBLE, "all"), id="no demand, sees all"),
    pytest.param(None, RULE, limits("nvidia.com/gpu", "500m"), id="no demand, half a GPU"),
    pytest.param(None, RULE, limits(VRAM, "8Gi"), id="no demand but its own"),
    pytest.param("main=8Gi", WITHOUT_SIDECAR, variable(VISIBLE, "all"), id="no sidecar, sees all"),
    pytest.param(
        "main=8Gi", WITHOUT_SIDECAR, limits("nvidia.com/gpu", "1"), id="no sidecar, whole"
    ),
    pytest.param(
        "main=8Gi",
        WITHOUT_SIDECAR,
        {"securityContext": {"privileged": True}},
        id="no sidecar, privileged",
    ),
]


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("memory", "rule", "fields"), GPU_BY_NAME)
def test_the_reserved_name_hides_no_fault(memory, rule, fields, phase, field):
    pod = (
        a_full_pod(memory)
        if phase is Phase.MUTATE or memory is None
        else translate(a_full_pod(memory), rule)
    )
    pod["spec"][field].append(a_container("vram-enforcer", **copy.deepcopy(fields)))
    decision = decide_pod(pod, rule, phase)
    assert decision.outcome is Outcome.DENIED


@pytest.mark.parametrize("rule", [BY_SENTRY, WITHOUT_SIDECAR], ids=["sentry", "none"])
def test_where_no_sidecar_is_wanted_ours_is_taken_out_and_is_not_stored(rule):
    clean = translate(a_full_pod(), rule)
    pod = copy.deepcopy(clean)
    ours = find_container(translate(a_full_pod()), "vram-enforcer")
    pod["spec"]["containers"].append(ours | variable(VISIBLE, "all"))
    pod["spec"]["volumes"] = translate(a_full_pod())["spec"]["volumes"]
    assert decide_pod(pod, rule).obj == clean
    for digest in ("0123456789abcdef", "fedcba9876543210"):
        policy = a_policy(rule, digest=digest)
        stored = decide_pod(pod, phase=Phase.VALIDATE, policy=policy)
        assert stored.reasons == ("Unmutated",)
        assert stored.findings[0].path.startswith("spec.containers[2]")


@pytest.mark.parametrize(
    "fields",
    [
        limits("nvidia.com/gpu", "1"),
        request_and_limit("nvidia.com/gpu", "1", "1"),
        limits("amd.com/gpu", "1"),
        {"resources": {"claims": [{"name": "gpu"}]}},
    ],
    ids=str,
)
def test_the_sidecar_gets_no_gpu_of_its_own(fields):
    clean = translate(a_full_pod())
    pod = copy.deepcopy(clean)
    merge_into_container(pod, "vram-enforcer", fields)
    assert not decide_pod(pod, phase=Phase.VALIDATE).allowed
    again = decide_pod(pod)
    for name in fields["resources"].get("limits", {}):
        merge_into_container(clean, "vram-enforcer", request_and_limit(name, "0", "0"))
    assert not again.allowed or again.obj == clean


def test_a_rule_that_voids_does_so_under_the_reserved_name_too():
    pod = a_full_pod(None)
    pod["spec"]["containers"].append(a_container("vram-enforcer", **variable(VISIBLE, "all")))
    decision = decide_pod(pod, a_rule(visible_devices=VisibleDevices.VOID))
    seen = find_container(decision.obj, "vram-enforcer")["env"]
    assert not decision.allowed or seen == [{"name": VISIBLE, "value": "void"}]
