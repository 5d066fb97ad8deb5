"""What other GPU-sharing projects test, asked of ours: one case for each row of our survey.

The rows are those of the survey's table of peers' tests, in its order; each is written anew with
our annotation and our reasons. A row without a counterpart stands in `ELSEWHERE` with the cause.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from builders import RULE, a_container, a_pod, a_policy, a_request, a_review, a_rule

from webhook.adapters.review_json import read_review, write_review
from webhook.core.admission import Outcome, Phase, decide
from webhook.core.policy import Action, Bounds, Policy, Rule, VisibleDevices
from webhook.core.review import BadReviewError

VRAM = "vramwarden.io/vram"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
COUNT = "vramwarden.io/gpu-count"
CLASS = "vramwarden.io/gpu-class"
OURS = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/gpu']"}}
FROM_MAP = {"configMapKeyRef": {"name": "settings", "key": "gpus"}}

ELSEWHERE = {
    17: "no sharing mode to choose: MPS is not ours",
    40: "quota of a namespace: Kubernetes' ResourceQuota counts vramwarden.io/vram",
    41: "quota, as 40; the exact boundary of a rule is in test_rules",
    42: "quota, as 40; the product with the count is row 12",
    43: "quota, as 40; the peak of init containers is in test_demand and row 57",
    44: "quota, as 40; the peak of init containers is in test_demand and row 57",
    45: "quota that follows running pods, as 40",
    46: "quota of zero, as 40; a size of zero is row 53",
    47: "quota edited in use, as 40",
    48: "no sizes in percent",
    51: "no sizes in percent; sums beyond an int64 are in test_demand",
    58: "placement at binding: the free memory of each GPU",
    60: "no GPU is set aside on its node's annotation",
    68: "HTTP: tests/server",
    72: "HTTP: tests/server",
    74: "the node agent: usable memory in whole MiB",
    75: "policy files: tests/policies",
    76: "placement at binding: several GPUs",
    78: "placement at binding: the sum on one GPU",
    79: "quota, as 40; a share beside a MIG slice is row 3",
    80: "placement at binding; who sees the GPU is row 29",
    81: "a whole cluster with its scheduler: tests/cluster",
}
TESTED: set[int] = set()


def row(number: int, peer: str, words: str, *values: Any):
    """Name a case by its row, and note that the row is tested."""
    TESTED.add(number)
    return pytest.param(*values, id=f"row-{number:02}-{peer}-{words.replace(' ', '-')}")


def decided(pod, rule: Rule = RULE, phase: Phase = Phase.MUTATE, **fields: Any):
    return decide(a_request(pod, **fields), a_policy(rule), phase)


def seeing(value: str | None = None, source=None, name: str = "main", **more: Any):
    entry = {"name": VISIBLE, "value": value} if source is None else {"name": VISIBLE}
    return a_container(
        name, env=[entry if source is None else entry | {"valueFrom": source}], **more
    )


def limited(amount: Any, resource: str = "nvidia.com/gpu", name: str = "main", **more: Any):
    return a_container(name, resources={"limits": {resource: amount}}, **more)


def counted(count: str, memory: str | None = None, **more: Any):
    return a_pod(memory, annotations={COUNT: count}, **more)


def container_of(pod, name: str):
    return next(
        container
        for field in ("containers", "initContainers")
        for container in pod["spec"].get(field, [])
        if container["name"] == name
    )


def vram_of(pod):
    """Return what each container gets, as requests and limits say alike."""
    amounts = {}
    for field in ("containers", "initContainers"):
        for container in pod["spec"].get(field, []):
            resources = container.get("resources", {})
            if VRAM in resources.get("limits", {}):
                assert resources["requests"][VRAM] == resources["limits"][VRAM]
                amounts[container["name"]] = resources["limits"][VRAM]
    return amounts


def seen_by(pod):
    """Return what each container of the user sees."""
    return {
        container["name"]: entry.get("value", entry.get("valueFrom"))
        for field in ("containers", "initContainers")
        for container in pod["spec"].get(field, [])
        if container["name"] != "vram-enforcer"
        for entry in container.get("env", [])
        if entry["name"] == VISIBLE
    }


def cap_of(pod):
    env = {entry["name"]: entry.get("value") for entry in container_of(pod, "vram-enforcer")["env"]}
    return int(env["VRAM_CAP_BYTES"])


APP_AND_WHOLE = [a_container(), limited("1", name="second")]
REFUSED = [
    row(1, "KAI", "a negative size", a_pod("-1"), ["InvalidQuantity"]),
    row(1, "KAI", "a negative size with its unit", a_pod("-1Gi"), ["InvalidQuantity"]),
    row(2, "KAI", "a size of zero", a_pod("0"), ["InvalidQuantity"]),
    row(
        3,
        "KAI",
        "a share and a whole GPU",
        a_pod("8Gi", containers=[limited("1")]),
        ["WholeGPUAndShare"],
    ),
    row(
        3,
        "KAI",
        "a share and a MIG slice",
        a_pod("8Gi", containers=[limited("1", "nvidia.com/mig-1g.10gb")]),
        ["WholeGPUAndShare"],
    ),
    row(
        4,
        "KAI",
        "whole GPU in the second container",
        a_pod("8Gi", containers=APP_AND_WHOLE),
        ["WholeGPUAndShare"],
    ),
    row(
        5,
        "KAI",
        "two sizes",
        a_pod("8Gi", containers=[limited("4Gi", VRAM)]),
        ["ConflictingAmounts"],
    ),
    *(
        row(6, "KAI", f"a fraction of {size}", a_pod(size), ["InvalidQuantity"])
        for size in ("0.5", "1.5", "1.2", "-1", "-0.5")
    ),
    *(
        row(7, "KAI", f"a size of {size}", a_pod(size), ["InvalidQuantity"])
        for size in ("NaN", "nan", "inf", "Infinity", "-inf")
    ),
    row(8, "KAI", "half a byte in scientific form", a_pod("5e-1"), ["InvalidQuantity"]),
    *(
        row(9, "KAI", f"hex {size}", a_pod(size), ["InvalidQuantity"])
        for size in ("0x1p-1", "0x8", "0x200000000")
    ),
    row(10, "KAI", "a count without a size", counted("2"), ["InvalidCount"]),
    *(
        row(11, "KAI", f"a count of {count}", counted(count, "8Gi"), ["InvalidCount"])
        for count in ("1.2", "0", "-2", "two")
    ),
    row(
        15,
        "KAI",
        "a thousandth of a GPU and a share",
        a_pod("8Gi", containers=[limited("2m")]),
        ["FractionalWholeGPU", "WholeGPUAndShare"],
    ),
    row(19, "KAI", "a share for no container", a_pod("8Gi", containers=[]), ["UnknownContainer"]),
    row(22, "KAI", "a container that is not there", a_pod("other=8Gi"), ["UnknownContainer"]),
    row(
        25,
        "KAI",
        "all GPUs by hand",
        a_pod(containers=[a_container(), seeing("all", name="second")]),
        ["VisibleDevicesOverride"],
    ),
    row(
        25,
        "KAI",
        "all GPUs by hand in an init container",
        a_pod(initContainers=[seeing("all", name="init")]),
        ["VisibleDevicesOverride"],
    ),
    *(
        row(27, "KAI", f"GPU {value} by hand", a_pod(m, containers=[seeing(value)]), wanted)
        for value in ("0", "0,1")
        for m, wanted in ((None, ["VisibleDevicesOverride"]), ("8Gi", ["VisibleDevicesOverride"]))
    ),
    row(
        28,
        "KAI",
        "GPUs by a config map",
        a_pod(containers=[seeing(source=FROM_MAP)]),
        ["VisibleDevicesOverride"],
    ),
    row(36, "HAMi", "no containers", a_pod("8Gi", containers=[]), ["UnknownContainer"]),
    row(37, "HAMi", "a node chosen by hand", a_pod("8Gi", nodeName="n"), ["NodeNamePreset"]),
    row(
        52,
        "HAMi",
        "a request alone",
        a_pod(containers=[a_container(resources={"requests": {VRAM: "8Gi"}})]),
        ["RequestsLimitsMismatch"],
    ),
    row(53, "HAMi", "zero is no missing limit", a_pod("0Gi"), ["InvalidQuantity"]),
    row(
        53,
        "HAMi",
        "an explicit zero is no missing limit",
        a_pod(containers=[limited("0", VRAM)]),
        ["InvalidQuantity"],
    ),
    row(54, "HAMi", "no size is made up for a count", counted("1"), ["InvalidCount"]),
    row(
        59,
        "HAMi",
        "another type than the class has",
        a_pod("8Gi", annotations={CLASS: "a100"}, nodeSelector={"nvidia.com/gpu.product": "T4"}),
        ["NodeSelectorConflict"],
    ),
    row(
        59,
        "HAMi",
        "a GPU chosen by hand",
        a_pod("8Gi", annotations={"vramwarden.io/gpu": "GPU-1"}),
        ["VisibleDevicesOverride"],
    ),
    row(
        61,
        "Koordinator",
        "two sizes in the second container",
        a_pod("main=8Gi,second=1Gi", containers=[a_container(), limited("2Gi", VRAM, "second")]),
        ["ConflictingAmounts"],
    ),
    row(62, "Koordinator", "two shares of nothing", counted("2", "0"), ["InvalidQuantity"]),
    row(73, "DRA", "less than a MiB", a_pod("1023Ki"), ["TooSmall"]),
    row(
        73,
        "DRA",
        "an index or UUID that nobody knows",
        a_pod("8Gi", annotations={"vramwarden.io/gpu": "99"}),
        ["VisibleDevicesOverride"],
    ),
    row(
        77,
        "device-plugin",
        "an unknown choice falls back to nothing",
        a_pod("8Gi", annotations={CLASS: "nonesuch"}),
        ["UnknownClass"],
    ),
]


@pytest.mark.parametrize(("pod", "reasons"), REFUSED)
@pytest.mark.parametrize("phase", Phase)
def test_what_peers_refuse_is_refused(pod, reasons, phase):
    decision = decided(pod, phase=phase)
    assert decision.outcome is Outcome.DENIED
    assert list(decision.reasons) == reasons


LEFT_ALONE = [
    row(13, "KAI", "two whole GPUs", a_pod(containers=[limited("2")])),
    row(14, "KAI", "two whole GPUs in thousandths", a_pod(containers=[limited("2000m")])),
    row(
        16,
        "KAI",
        "whole GPUs in two containers",
        a_pod(containers=[limited("1"), limited("2", name="second")]),
    ),
    row(19, "KAI", "a pod without containers", a_pod(containers=[])),
    row(20, "KAI", "a pod without an annotation", a_pod(annotations={"team": "a"})),
    *(
        row(26, "KAI", f"GPUs hidden by {value!r}", a_pod(containers=[seeing(value)]))
        for value in ("void", "none", "")
    ),
    row(31, "KAI", "a MIG slice", a_pod(containers=[limited("1", "nvidia.com/mig-1g.5gb")])),
    row(39, "HAMi", "a pod without a GPU", a_pod(containers=[limited("500m", "cpu")])),
]


@pytest.mark.parametrize("pod", LEFT_ALONE)
@pytest.mark.parametrize("phase", Phase)
def test_what_peers_leave_alone_is_left_alone(pod, phase):
    decision = decided(pod, phase=phase)
    assert (decision.outcome, decision.patch, decision.findings) == (Outcome.ALLOWED, (), ())


SIDE = a_container("side")
NVIDIA = a_rule(runtime_class_name="nvidia")
TRANSLATED = [
    row(8, "KAI", "bytes in scientific form", a_pod("8e9"), RULE, vram_of, {"main": "7630Mi"}),
    row(
        12,
        "KAI",
        "two GPUs of 1000Mi each",
        counted("2", "1000Mi"),
        RULE,
        vram_of,
        {"main": "2000Mi"},
    ),
    row(12, "KAI", "but a cap per GPU", counted("2", "1000Mi"), RULE, cap_of, 1000 * 2**20),
    row(
        21,
        "KAI",
        "only the container that is named",
        a_pod("main=8Gi", containers=[SIDE, a_container()]),
        RULE,
        vram_of,
        {"main": "8Gi"},
    ),
    row(
        23,
        "KAI",
        "an init container that is named",
        a_pod("init=8Gi", initContainers=[a_container("init")]),
        RULE,
        vram_of,
        {"init": "8Gi"},
    ),
    row(
        26,
        "KAI",
        "GPUs hidden beside a share",
        a_pod("8Gi", containers=[seeing("none")]),
        RULE,
        seen_by,
        {"main": OURS},
    ),
    row(
        29,
        "KAI",
        "a CPU container beside a share",
        a_pod("main=8Gi", containers=[SIDE, a_container()]),
        RULE,
        seen_by,
        {"side": "void", "main": OURS},
    ),
    row(
        30,
        "KAI",
        "a CPU container that had chosen GPUs",
        a_pod("main=8Gi", containers=[seeing("0", name="side"), a_container()]),
        a_rule(visible_devices=VisibleDevices.VOID),
        seen_by,
        {"side": "void", "main": OURS},
    ),
    row(
        30,
        "KAI",
        "a CPU pod that had chosen GPUs",
        a_pod(containers=[seeing("0"), seeing(source=FROM_MAP, name="side")]),
        a_rule(visible_devices=VisibleDevices.VOID),
        seen_by,
        {"main": "void", "side": "void"},
    ),
    row(
        32,
        "KAI",
        "a runtime class from the policy",
        a_pod("8Gi"),
        NVIDIA,
        lambda pod: pod["spec"]["runtimeClassName"],
        "nvidia",
    ),
    row(
        33,
        "KAI",
        "a runtime class of its own",
        a_pod("8Gi", runtimeClassName="own"),
        NVIDIA,
        lambda pod: pod["spec"]["runtimeClassName"],
        "own",
    ),
    row(
        34,
        "KAI",
        "no runtime class in the policy",
        a_pod("8Gi"),
        RULE,
        lambda pod: "runtimeClassName" in pod["spec"],
        False,
    ),
    row(
        38,
        "HAMi",
        "another scheduler",
        a_pod("8Gi", schedulerName="other"),
        RULE,
        lambda pod: pod["spec"]["schedulerName"],
        "other",
    ),
    row(49, "HAMi", "a size with its unit", a_pod("16Gi"), RULE, vram_of, {"main": "16Gi"}),
    row(50, "HAMi", "a size with decimals", a_pod("16.0Gi"), RULE, vram_of, {"main": "16Gi"}),
    row(
        55,
        "HAMi",
        "an init container without VRAM",
        a_pod("8Gi", initContainers=[a_container("init")]),
        RULE,
        seen_by,
        {"main": OURS, "init": "void"},
    ),
    row(
        56,
        "HAMi",
        "a runtime class of the user",
        a_pod("8Gi", runtimeClassName="kata"),
        NVIDIA,
        lambda pod: pod["spec"]["runtimeClassName"],
        "kata",
    ),
    row(
        57,
        "HAMi",
        "a larger init container sets the peak",
        a_pod("main=4Gi,init=6Gi", initContainers=[a_container("init")]),
        RULE,
        cap_of,
        6 * 2**30,
    ),
    row(
        57,
        "HAMi",
        "app containers are summed",
        a_pod(
            "main=4Gi,side=4Gi,init=6Gi",
            containers=[a_container(), SIDE],
            initContainers=[a_container("init")],
        ),
        RULE,
        cap_of,
        8 * 2**30,
    ),
    row(
        65,
        "Koordinator",
        "an amount written as a limit",
        a_pod(containers=[limited("16Gi", VRAM)]),
        RULE,
        vram_of,
        {"main": "16Gi"},
    ),
    row(
        82,
        "KAI",
        "a native sidecar is summed",
        a_pod("main=4Gi,proxy=3Gi", initContainers=[a_container("proxy", restartPolicy="Always")]),
        RULE,
        cap_of,
        7 * 2**30,
    ),
]


@pytest.mark.parametrize(("pod", "rule", "look", "wanted"), TRANSLATED)
def test_what_peers_translate_is_translated(pod, rule, look, wanted):
    decision = decided(pod, rule)
    assert decision.outcome is Outcome.MUTATED, decision.message
    assert look(decision.obj) == wanted
    assert decided(decision.obj, rule, Phase.VALIDATE).outcome is Outcome.ALLOWED


@pytest.mark.parametrize("name", [row(24, "KAI", "a name with dots", "train.v1.2")])
def test_names_we_make_are_labels_whatever_the_pods_name_is(name):
    pod = a_pod("8Gi")
    pod["metadata"]["name"] = name
    after = decided(pod, name=name).obj
    assert after["metadata"]["name"] == name
    volumes = {volume["name"] for volume in after["spec"]["volumes"]}
    enforcer = container_of(after, "vram-enforcer")
    assert volumes == {mount["name"] for mount in enforcer["volumeMounts"]}
    for made in volumes | {enforcer["name"]}:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", made)


INVALID = a_pod("8GB", hostPID=True)
OFF = [
    row(18, "KAI", "sharing is off", a_pod("8Gi"), a_policy(a_rule(action=Action.IGNORE))),
    row(64, "Koordinator", "the gate is off", INVALID, a_policy(a_rule(action=Action.IGNORE))),
    row(64, "Koordinator", "the gate only records", INVALID, a_policy(a_rule(action=Action.AUDIT))),
    row(66, "Koordinator", "no policy", INVALID, Policy()),
    row(66, "Koordinator", "a policy without rules", INVALID, Policy(digest="ab" * 32)),
    row(
        66,
        "Koordinator",
        "a namespace that is left alone",
        INVALID,
        a_policy(a_rule(namespaces=("team-*",), action=Action.IGNORE), RULE),
    ),
    row(
        66,
        "Koordinator",
        "a namespace that no rule names",
        INVALID,
        a_policy(a_rule(namespaces=("research-*", "team"))),
    ),
    row(
        66,
        "Koordinator",
        "a label that skips",
        a_pod("8GB", labels={"skip": "yes"}),
        a_policy(a_rule(pod_labels={"skip": "yes"}, action=Action.IGNORE), RULE),
    ),
]


@pytest.mark.parametrize(("pod", "policy"), OFF)
@pytest.mark.parametrize("phase", Phase)
def test_a_policy_that_says_nothing_of_a_pod_leaves_it_alone(pod, policy, phase):
    decision = decide(a_request(pod), policy, phase)
    assert (decision.allowed, decision.patch) == (True, ())


@pytest.mark.parametrize("operation", [row(66, "Koordinator", "a deletion", "DELETE")])
def test_another_operation_is_left_alone(operation):
    review = a_review(None, operation=operation, oldObject=INVALID)
    request = read_review(json.dumps(review).encode())
    assert decide(request, a_policy(), Phase.VALIDATE).outcome is Outcome.SKIPPED


@pytest.mark.parametrize(
    ("namespace", "request_namespace", "allowed"),
    [
        row(35, "KAI", "another namespace in the object", "kube-system", "team-a", False),
        row(35, "KAI", "no namespace in the object", None, "team-a", False),
        row(35, "KAI", "the namespace of the request", "team-a", "kube-system", True),
    ],
)
def test_the_namespace_of_the_request_counts(namespace, request_namespace, allowed):
    pod = a_pod("8GB")
    pod["metadata"]["namespace"] = namespace
    policy = a_policy(a_rule(namespaces=("kube-*",), action=Action.IGNORE), RULE)
    request = a_request(pod, namespace=request_namespace)
    assert decide(request, policy, Phase.MUTATE).allowed is allowed


@pytest.mark.parametrize(
    ("pod", "quotes"),
    [
        row(63, "Koordinator", "a count of 2.5", counted("2.5", "8Gi"), '"2.5"'),
        row(63, "Koordinator", "a size of 101 percent", a_pod("101%"), '"101%"'),
        row(63, "Koordinator", "a class of 200", a_pod("8Gi", annotations={CLASS: "200"}), '"200"'),
    ],
)
def test_the_message_quotes_the_value(pod, quotes):
    assert quotes in decided(pod).message


@pytest.mark.parametrize(
    "names", [row(67, "Koordinator", "the first of several rules", ("strict", "lenient"))]
)
def test_the_first_rule_decides_and_is_named(names):
    strict, lenient = names
    policy = a_policy(a_rule(name=strict, memory=Bounds(max_bytes=2**30)), a_rule(name=lenient))
    decision = decide(a_request(a_pod("8Gi")), policy, Phase.MUTATE)
    assert (decision.rule, decision.reasons) == (strict, ("TooLarge",))
    assert f'rule "{strict}"' in decision.message


@pytest.mark.parametrize(
    "body",
    [
        row(69, "DRA", "no body", b""),
        row(69, "DRA", "an empty object", b"{}"),
        row(69, "DRA", "a review of nothing", b'{"kind": "AdmissionReview"}'),
        row(
            69,
            "DRA",
            "an empty review",
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}}',
        ),
        row(
            69,
            "DRA",
            "a review without a request",
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
        ),
    ],
)
def test_an_empty_review_is_told_so_in_one_sentence(body):
    with pytest.raises(BadReviewError) as caught:
        read_review(body)
    assert re.fullmatch(r"[^\n]+", str(caught.value))


@pytest.mark.parametrize(
    "faults", [row(70, "DRA", "two faults in one object", {"hostPID": True, "nodeName": "n"})]
)
def test_one_answer_lists_every_fault_with_its_path(faults):
    request = read_review(json.dumps(a_review(a_pod("8Gi", **faults))).encode())
    decision = decide(request, a_policy(), Phase.MUTATE)
    response = json.loads(write_review(request.uid, decision))["response"]
    assert (response["uid"], response["allowed"]) == (request.uid, False)
    status = response["status"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    causes = status["details"]["causes"]
    assert {cause["field"] for cause in causes} == {"spec.hostPID", "spec.nodeName"}
    for cause in causes:
        assert f"{cause['reason']}: {cause['field']}: {cause['message']}" in status["message"]


@pytest.mark.parametrize(
    "context",
    [
        row(
            71,
            "DRA",
            "the key of the policy",
            {
                "allowPrivilegeEscalation": False,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        )
    ],
)
def test_a_refusal_that_the_policy_could_lift_names_its_key(context):
    decision = decided(a_pod("8Gi", containers=[a_container(securityContext=context)]))
    assert decision.reasons == ("EnforcementImpossible",)
    assert "enforcement.runAs: Root" in decision.message


def test_every_row_of_the_survey_is_tested_or_listed():
    assert set(ELSEWHERE) & TESTED == set()
    assert sorted([*ELSEWHERE, *TESTED]) == list(range(1, 83))
