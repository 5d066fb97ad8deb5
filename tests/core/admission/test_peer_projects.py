"""Tests of other GPU-sharing projects, applied to vramwarden, by survey row.

Each row of the survey is rewritten with vramwarden's annotation and reasons. `COVERED` lists rows
that other vramwarden tests cover, `ELSEWHERE` rows without a counterpart and the reason.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.core.admission.decisions import VRAM, assert_unchanged, decide_pod, find_container
from tests.support.pods import RULE, a_container, a_pod, a_policy, a_review, a_rule
from webhook.adapters.review_json import BadReviewError, read_review, write_review
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import Action, Policy

COUNT = "vramwarden.io/gpu-count"
CLASS = "vramwarden.io/gpu-class"

ELSEWHERE = {
    17: "no sharing mode to choose: MPS is not ours",
    40: "quota of a namespace: Kubernetes' ResourceQuota counts vramwarden.io/vram",
    41: "quota, as 40; the exact boundary of a rule is in rules/test_demand",
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
    75: "policy files: tests/adapters/policy",
    76: "placement at binding: several GPUs",
    78: "placement at binding: the sum on one GPU",
    79: "quota, as 40; a share beside a MIG slice is row 3",
    80: "placement at binding; who sees the GPU is row 29",
    81: "a whole cluster with its scheduler: tests/cluster",
}
# Rows that another test covers, keyed by file.
COVERED = {
    "pod/test_quantity.py": (1, 2, 6, 7, 9, 49, 50, 53, 73),
    "pod/test_demand.py": (10, 11, 36, 54, 65),
    "admission/rules/test_demand.py": (22, 62, 77),
    "admission/rules/test_containers.py": (3, 4, 5, 13, 14, 27, 31, 39, 52, 59, 61),
    "admission/rules/test_visible_devices.py": (25, 26, 28, 30),
    "admission/rules/test_pods.py": (37, 38),
    "admission/rules/test_actions.py": (15, 18),
    "admission/sidecar/test_security_context.py": (71,),
    "admission/test_container_variables.py": (21, 23, 29, 55),
    "admission/test_runtime_class.py": (32, 33, 34, 56),
    "admission/test_whole_gpu_translation.py": (16,),
}
TESTED: set[int] = set()


def row(number: int, peer: str, words: str, *values: Any):
    """Return a parameter named by its row, and record the row as tested."""
    TESTED.add(number)
    return pytest.param(*values, id=f"row-{number:02}-{peer}-{words.replace(' ', '-')}")


def test_every_row_of_the_survey_is_tested_here_or_elsewhere():
    stands = [number for numbers in COVERED.values() for number in numbers]
    assert set(ELSEWHERE) & {*stands, *TESTED} == set()
    assert sorted({*ELSEWHERE, *stands, *TESTED}) == list(range(1, 83))
    assert all((Path(__file__).parents[1] / file).is_file() for file in COVERED)


DENIED = [
    row(8, "KAI", "half a byte in scientific form", a_pod("5e-1"), "InvalidQuantity"),
    row(19, "KAI", "a share for no container", a_pod("8Gi", containers=[]), "UnknownContainer"),
    row(63, "Koordinator", "a size of 101 percent", a_pod("101%"), "InvalidQuantity"),
]


@pytest.mark.parametrize(("pod", "reason"), DENIED)
@pytest.mark.parametrize("phase", Phase)
def test_what_peers_deny_is_denied(pod, reason, phase):
    decision = decide_pod(pod, phase=phase)
    assert (decision.outcome, decision.reasons) == (Outcome.DENIED, (reason,))


@pytest.mark.parametrize(
    ("notes", "quotes"),
    [
        row(63, "Koordinator", "a count of 2.5", {COUNT: "2.5"}, '"2.5"'),
        row(63, "Koordinator", "a class of 200", {CLASS: "200"}, '"200"'),
    ],
)
def test_the_message_quotes_the_value(notes, quotes):
    assert quotes in decide_pod(a_pod("8Gi", annotations=notes)).message


INVALID = a_pod("8GB", hostPID=True)
NAMES_TEAMS = a_rule(namespaces=("team-*",), action=Action.IGNORE)
NAMES_OTHERS = a_rule(namespaces=("research-*", "team"))
NAMES_SKIP = a_rule(pod_labels={"skip": "yes"}, action=Action.IGNORE)
LABELLED = a_pod("8GB", labels={"skip": "yes"})
LEFT_ALONE = [
    row(19, "KAI", "a pod without containers", a_pod(containers=[]), a_policy()),
    row(20, "KAI", "a pod without an annotation", a_pod(annotations={"team": "a"}), a_policy()),
    row(64, "Koordinator", "the gate is off", INVALID, a_policy(a_rule(action=Action.IGNORE))),
    row(64, "Koordinator", "the gate only records", INVALID, a_policy(a_rule(action=Action.AUDIT))),
    row(66, "Koordinator", "no policy", INVALID, Policy()),
    row(66, "Koordinator", "a policy without rules", INVALID, Policy(digest="ab" * 32)),
    row(66, "Koordinator", "a namespace left alone", INVALID, a_policy(NAMES_TEAMS, RULE)),
    row(66, "Koordinator", "a namespace no rule names", INVALID, a_policy(NAMES_OTHERS)),
    row(66, "Koordinator", "a label that skips", LABELLED, a_policy(NAMES_SKIP, RULE)),
]


@pytest.mark.parametrize(("pod", "policy"), LEFT_ALONE)
@pytest.mark.parametrize("phase", Phase)
def test_what_peers_leave_alone_is_left_alone(pod, policy, phase):
    decision = decide_pod(pod, phase=phase, policy=policy)
    assert (decision.allowed, decision.patch) == (True, ())


@pytest.mark.parametrize("operation", [row(66, "Koordinator", "a deletion", "DELETE")])
def test_another_operation_is_left_alone(operation):
    review = a_review(None, operation=operation, oldObject=INVALID)
    request = read_review(json.dumps(review).encode())
    assert decide(request, a_policy(), UNKNOWN_CLUSTER, Phase.VALIDATE).outcome is Outcome.SKIPPED


def amount_of_main(pod):
    """Return the container's amount, which requests and limits must both have."""
    resources = find_container(pod, "main")["resources"]
    assert resources["requests"][VRAM] == resources["limits"][VRAM]
    return resources["limits"][VRAM]


def cap_of(pod):
    env = {
        entry["name"]: entry.get("value") for entry in find_container(pod, "vram-enforcer")["env"]
    }
    return int(env["VRAM_CAP_BYTES"])


TWO_GPUS = a_pod("1000Mi", annotations={COUNT: "2"})
PEAK = a_pod("main=4Gi,init=6Gi", initContainers=[a_container("init")])
PROXY = a_container("proxy", restartPolicy="Always")
NATIVE = a_pod("main=4Gi,proxy=3Gi", initContainers=[PROXY])
TRANSLATED = [
    row(8, "KAI", "bytes in scientific form", a_pod("8e9"), amount_of_main, "7630Mi"),
    row(12, "KAI", "two GPUs of 1000Mi each", TWO_GPUS, amount_of_main, "2000Mi"),
    row(12, "KAI", "but a cap per GPU", TWO_GPUS, cap_of, 1000 * 2**20),
    row(57, "HAMi", "a larger init container sets the peak", PEAK, cap_of, 6 * 2**30),
    row(82, "KAI", "a native sidecar is summed", NATIVE, cap_of, 7 * 2**30),
]


@pytest.mark.parametrize(("pod", "read", "wanted"), TRANSLATED)
def test_what_peers_translate_is_translated(pod, read, wanted):
    decision = decide_pod(pod)
    assert decision.outcome is Outcome.MUTATED, decision.message
    assert read(decision.obj) == wanted
    assert_unchanged(decide_pod(decision.obj, phase=Phase.VALIDATE))


@pytest.mark.parametrize("name", [row(24, "KAI", "a name with dots", "train.v1.2")])
def test_names_we_make_are_labels_whatever_the_pods_name_is(name):
    pod = a_pod("8Gi")
    pod["metadata"]["name"] = name
    after = decide_pod(pod, name=name).obj
    assert after["metadata"]["name"] == name
    volumes = {volume["name"] for volume in after["spec"]["volumes"]}
    enforcer = find_container(after, "vram-enforcer")
    assert volumes == {mount["name"] for mount in enforcer["volumeMounts"]}
    for made in volumes | {enforcer["name"]}:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", made)


EMPTY = b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}}'


@pytest.mark.parametrize(
    "body",
    [
        row(69, "DRA", "no body", b""),
        row(69, "DRA", "an empty object", b"{}"),
        row(69, "DRA", "a review of nothing", b'{"kind": "AdmissionReview"}'),
        row(69, "DRA", "an empty review", EMPTY),
        row(69, "DRA", "a review without a request", EMPTY.replace(b', "request": {}', b"")),
    ],
)
def test_an_empty_review_is_rejected_in_one_sentence(body):
    with pytest.raises(BadReviewError) as caught:
        read_review(body)
    assert re.fullmatch(r"[^\n]+", str(caught.value))


@pytest.mark.parametrize(
    "faults", [row(70, "DRA", "two faults in one object", {"hostPID": True, "nodeName": "n"})]
)
def test_one_answer_lists_every_fault_with_its_path(faults):
    request = read_review(json.dumps(a_review(a_pod("8Gi", **faults))).encode())
    decision = decide(request, a_policy(), UNKNOWN_CLUSTER, Phase.MUTATE)
    response = json.loads(write_review(request.uid, decision))["response"]
    assert (response["uid"], response["allowed"]) == (request.uid, False)
    status = response["status"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    causes = status["details"]["causes"]
    assert {cause["field"] for cause in causes} == {"spec.hostPID", "spec.nodeName"}
    for cause in causes:
        assert f"{cause['reason']}: {cause['field']}: {cause['message']}" in status["message"]


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
    assert decide_pod(pod, policy=policy, namespace=request_namespace).allowed is allowed


@pytest.mark.parametrize(
    "names", [row(67, "Koordinator", "the first of several rules", ("strict", "lenient"))]
)
def test_the_first_rule_decides_and_is_named(names):
    strict, lenient = names
    policy = a_policy(a_rule(name=strict, max_gpu_count=0), a_rule(name=lenient))
    decision = decide_pod(a_pod("8Gi"), policy=policy)
    assert (decision.rule, decision.reasons) == (strict, ("InvalidCount",))
    assert f'rule "{strict}"' in decision.message
