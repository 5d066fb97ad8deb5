"""Examples in policies: comparisons, and rejection of a policy with a failing example."""

# ruff: noqa: E501 - a row of a table is one line: a message cut in two cannot be searched for

from __future__ import annotations

import pytest

from tests.support.policies import SHIPPED, load, load_spec, problems_of_spec
from webhook.core.admission import decide as admission
from webhook.core.admission import workload_review
from webhook.core.admission.policy_examples import run_example
from webhook.core.pod.views import read_labels, read_service_account
from webhook.core.policy.match import Subject

RULES = """  rules:
  - name: ignored
    match: {namespaces: [kube-system]}
    action: Ignore
  - name: warned
    match: {namespaces: [warn-a]}
    action: Warn
    memory: {max: 8Gi}
  - name: sliced
    match: {namespaces: [sliced]}
    accounting: MIG
  - name: main
    match: {namespaces: ["a-*"]}
    memory: {max: 8Gi}
    env: [{name: OURS, value: one}, {name: EMPTY, value: ""}, {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    tolerations: [{key: gpu, value: a}, {operator: Exists}]
"""


def mismatches(folder, pod: str, expect: str) -> list[str]:
    """Return the mismatches of one example, without file, line and name."""
    spec = f"{RULES}  examples:\n  - {{name: one, pod: {pod}, expect: {expect}}}\n"
    found = problems_of_spec(folder, spec)
    prefix = "a.yaml:22: example 'one': "
    assert all(problem.startswith(prefix) for problem in found)
    return [problem.removeprefix(prefix) for problem in found]


SMALL = "{namespace: a-1, annotations: {vramwarden.io/gpu-memory: 4Gi}}"
SLICED = SMALL.replace("a-1", "sliced")
BAD = "{namespace: none, spec: {containers: [{name: c, resources: {limits: {a.b/c: x}}}]}}"
LARGE = "{namespace: a-1, annotations: {vramwarden.io/gpu-memory: 9Gi}}"
TWICE = (
    "{namespace: a-1, annotations: {vramwarden.io/gpu-memory: 4Gi}, spec: {containers: [{name: c, "
    "env: [{name: MINE, value: first}, {name: MINE, value: second}]}, {name: d}]}}"
)
OWN = (
    "{namespace: a-1, annotations: {vramwarden.io/gpu-memory: 'c=1Gi,d=1Gi'}, spec: {containers: ["
    "{name: c}, {name: d, env: [{name: OURS, value: own}]}]}}"
)
TOO_LARGE = (
    "TooLarge: metadata.annotations[vramwarden.io/gpu-memory]: asks for 9Gi per GPU; "
    'rule "main" allows at most 8Gi'
)


@pytest.mark.parametrize(
    ("pod", "expect"),
    [
        (SMALL, "{allowed: true, reasons: [], rule: main, vram: 4Gi, nodeSelector: {vramwarden.io/gpu: 'true'}}"),
        (SMALL, "{allowed: true, vram: 4096Mi}"),
        (LARGE, "{allowed: false, reasons: [TooLarge], rule: main, vram: 0}"),
        (LARGE.replace("a-1", "warn-a"), "{allowed: true, reasons: [TooLarge], rule: warned}"),
        (LARGE.replace("a-1", "kube-system"), "{allowed: true, reasons: [], rule: ignored, vram: 0}"),
        (LARGE.replace("a-1", "elsewhere"), "{allowed: true, reasons: [], vram: 0}"),
        (SMALL.replace("annotations: {", "annotations: {vramwarden.io/gpu-count: '3', "), "{allowed: true, vram: 12Gi}"),
        ("{namespace: a-1, spec: {containers: [{name: c, resources: {limits: {vramwarden.io/vram: 1Gi}}}]}}", "{allowed: true, vram: 1Gi}"),
        (SMALL, "{allowed: true, runtimeClassName: ''}"),
        (SMALL, "{allowed: true, runtimeClassName: nvidia}, runtimeClasses: [runc, nvidia]"),
        (SMALL, "{allowed: true, runtimeClassName: ''}, runtimeClasses: [runc]"),
        ("{namespace: a-1}", "{allowed: true, runtimeClassName: ''}, runtimeClasses: [nvidia]"),
        (SMALL, "{allowed: true, env: {OURS: one, EMPTY: '', XLA_PYTHON_CLIENT_PREALLOCATE: 'false'}}"),
        (SMALL, "{allowed: true, tolerations: [{key: gpu, operator: Equal, value: a}, {operator: Exists, effect: ''}]}"),
        (SMALL, "{allowed: true, annotations: {vramwarden.io/gpu-memory: 4Gi}, env: {}, tolerations: []}"),
        (TWICE, "{allowed: true, env: {MINE: second}}"),
        ("{namespace: a-1, labels: {app: x}, spec: {containers: [{name: c, image: i}]}}", "{allowed: true, pod: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i}]}}}"),
        ("{namespace: a-1, name: one}", "{allowed: true, pod: {apiVersion: v1, kind: Pod, metadata: {name: one, namespace: a-1}, spec: {containers: [{name: main, image: example}]}}}"),
        ("{namespace: a-1}", "{allowed: true, pod: {spec: {containers: [{name: main, image: example}]}}}"),
        (SMALL, "{allowed: true, resources: {vramwarden.io/vram: 4Gi, cpu: 0}}"),
        (SLICED, "{allowed: true, vram: 0, resources: {nvidia.com/mig-1g.10gb: 1}}, migProfiles: {1g.10gb: 9728Mi, 2g.20gb: 19968Mi}"),
        (SLICED, "{allowed: false, reasons: [TooLarge]}, migProfiles: {1g.10gb: 1Gi}"),
        (SLICED, "{allowed: false, reasons: [EnforcementImpossible]}"),
    ],
)  # fmt: skip
def test_an_example_that_holds_says_nothing(tmp_path, pod, expect):
    assert mismatches(tmp_path, pod, expect) == []


@pytest.mark.parametrize(
    ("pod", "expect", "expected"),
    [
        (SMALL, "{allowed: false}", ["wanted allowed: false, got allowed (mutated by rule main)"]),
        (LARGE, "{allowed: true}", [f"wanted allowed: true, got denied by rule main: {TOO_LARGE}"]),
        (LARGE, "{allowed: false, reasons: [TooSmall]}", [f"wanted reasons [TooSmall], got [TooLarge]: {TOO_LARGE}"]),
        (LARGE, "{allowed: false, reasons: []}", [f"wanted reasons [], got [TooLarge]: {TOO_LARGE}"]),
        (LARGE, "{allowed: false, reasons: [TooLarge, TooSmall]}", [f"wanted reasons [TooLarge, TooSmall], got [TooLarge]: {TOO_LARGE}"]),
        (SMALL, "{allowed: true, reasons: [TooLarge]}", ["wanted reasons [TooLarge], got []"]),
        (SMALL, "{allowed: true, rule: warned}", ["wanted rule warned, got main"]),
        ("{namespace: none}", "{allowed: true, rule: main}", ["wanted rule main, got none"]),
        (SMALL, "{allowed: true, vram: 8Gi}", ["wanted vram 8Gi, got 4Gi"]),
        (SMALL, "{allowed: true, nodeSelector: {gpu: a100}}", ['wanted nodeSelector gpu: "a100", got none']),
        (SMALL, "{allowed: true, nodeSelector: {vramwarden.io/gpu: a}}", ['wanted nodeSelector vramwarden.io/gpu: "a", got "true"']),
        (LARGE.replace("a-1", "warn-a"), "{allowed: false}", ["wanted allowed: false, got allowed (with warnings, by rule warned)"]),
        (SMALL, "{allowed: true, runtimeClassName: nvidia}", ["wanted runtimeClassName nvidia, got none"]),
        (SMALL, "{allowed: true, runtimeClassName: ''}, runtimeClasses: [nvidia]", ["wanted runtimeClassName none, got nvidia"]),
        (SMALL, "{allowed: true, env: {OURS: two, NONE: x}}", ['wanted env OURS: "two" in container main, got "one"', 'wanted env NONE: "x" in container main, got none']),
        (SMALL, "{allowed: true, env: {POD: x}}", ['wanted env POD: "x" in container main, got a reference: {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}']),
        (OWN, "{allowed: true, env: {OURS: one}}", ['wanted env OURS: "one" in container d, got "own"']),
        ("{namespace: a-1}", "{allowed: true, env: {A: '1', B: '2'}}", ["wanted env A, B, got no container with VRAM"]),
        (SMALL, "{allowed: true, tolerations: [{key: gpu, operator: Exists}]}", ['wanted toleration {"key": "gpu", "operator": "Exists"}, got {"key": "gpu", "value": "a"}, {"operator": "Exists"}']),
        ("{namespace: a-1}", "{allowed: true, tolerations: [{key: gpu, operator: Exists}]}", ['wanted toleration {"key": "gpu", "operator": "Exists"}, got none']),
        ("{namespace: a-1, spec: {containers: [{name: c}], tolerations: [{key: a}, {key: b}, {key: c}, {key: d}, {key: e}]}}", "{allowed: true, tolerations: [{key: f}]}", ['wanted toleration {"key": "f"}, got {"key": "a"}, {"key": "b"}, {"key": "c"} and 2 more']),
        (SMALL, "{allowed: true, annotations: {vramwarden.io/gpu-memory: 8Gi, other: x}}", ['wanted annotation vramwarden.io/gpu-memory: "8Gi", got "4Gi"', 'wanted annotation other: "x", got none']),
        ("{namespace: a-1}", "{allowed: true, pod: {metadata: {name: other}, spec: {containers: [{name: main, image: x, tty: true}]}}}", ['wanted pod.metadata.name: "other", got "example"', 'wanted pod.spec.containers[0].image: "x", got "example"', "wanted pod.spec.containers[0].tty: true, got none"]),
        ("{namespace: a-1, labels: {a.b/c: d}, spec: {containers: [{name: c}], hostPID: true}}", "{allowed: true, pod: {spec: {containers: [], hostPID: 1}}}", ['wanted pod.metadata.labels: none, got {"a.b/c": "d"}', 'wanted pod.spec.containers[0]: none, got {"name": "c"}', "wanted pod.spec.hostPID: 1, got true"]),
        ("{namespace: a-1, spec: {containers: [{name: c}], a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1}}", "{allowed: true, pod: {spec: {containers: [{name: c}]}}}", [*(f"wanted pod.spec.{key}: none, got 1" for key in "abcdef"), "and 1 more differences of the pod"]),
        (SMALL, "{allowed: true, resources: {vramwarden.io/vram: 8Gi}}", ["wanted resources vramwarden.io/vram: 8Gi, got 4Gi"]),
        (SLICED, "{allowed: true, resources: {nvidia.com/mig-1g.10gb: 2}}, migProfiles: {1g.10gb: 9728Mi}", ["wanted resources nvidia.com/mig-1g.10gb: 2, got 1"]),
        (BAD, "{allowed: true, resources: {a.b/c: 1}}", ["wanted resources a.b/c: 1, got an amount that cannot be read"]),
        (SMALL.replace("a-1", "kube-system"), "{allowed: false}", ["wanted allowed: false, got allowed (ignored by rule ignored)"]),
        (SMALL.replace("a-1", "none"), "{allowed: false}", ["wanted allowed: false, got allowed (no rule matches)"]),
        ("{namespace: a-1}", "{allowed: false}", ["wanted allowed: false, got allowed (unchanged, by rule main)"]),
        ("{namespace: a-1, spec: {containers: [5]}}", "{allowed: true}", ["wanted allowed: true, got denied: spec.containers[0]: must be an object, not a number"]),
        (SMALL, "{allowed: false, rule: warned, vram: 8Gi}", ["wanted allowed: false, got allowed (mutated by rule main)", "wanted rule warned, got main", "wanted vram 8Gi, got 4Gi"]),
    ],
)  # fmt: skip
def test_an_example_that_fails_says_what_it_wanted_and_got(tmp_path, pod, expect, expected):
    assert mismatches(tmp_path, pod, expect) == expected


def test_the_pod_of_an_example_has_one_container_called_main_by_default(tmp_path):
    spec = f"{RULES}  examples: [{{name: one, pod: {SMALL}, expect: {{allowed: true}}}}]"
    (example,) = load_spec(tmp_path, spec).examples
    assert example.pod["spec"] == {"containers": [{"name": "main", "image": "example"}]}
    assert example.pod["metadata"]["name"] == "example"
    assert example.where.endswith("/a.yaml:21")


def test_the_vram_of_an_example_is_what_the_scheduler_counts(tmp_path):
    pod = (
        "{namespace: a-1, annotations: {vramwarden.io/gpu-memory: 'main=2Gi, setup=3Gi'}, "
        "spec: {containers: [{name: main}], initContainers: [{name: setup}]}}"
    )
    assert mismatches(tmp_path, pod, "{allowed: true, vram: 3Gi}") == []


def test_an_example_is_decided_in_both_phases(tmp_path, monkeypatch):
    phases = []

    def decide(request, policy, cluster, phase):
        phases.append((phase, "resources" in request.obj["spec"]["containers"][0]))
        return admission.decide(request, policy, cluster, phase)

    monkeypatch.setattr(workload_review, "decide", decide)
    assert mismatches(tmp_path, SMALL, "{allowed: true}") == []
    assert phases == [(admission.Phase.MUTATE, False), (admission.Phase.VALIDATE, True)]


def test_decimals_in_a_pod_stay_what_was_written(tmp_path):
    pod = "{namespace: a-1, spec: {containers: [{name: c, resources: {limits: {cpu: 0.1}}}]}}"
    spec = f"{RULES}  examples: [{{name: one, pod: {pod}, expect: {{allowed: true}}}}]"
    (example,) = load_spec(tmp_path, spec).examples
    assert example.pod["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "0.1"}}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_shipped_policy_loads_and_its_examples_hold(file):
    policy = load(file)
    assert policy.rules
    assert policy.examples
    for example in policy.examples:
        assert run_example(example, policy) == ()


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_rule_of_a_shipped_policy_has_an_example(file):
    policy = load(file)
    proven = set()
    for example in policy.examples:
        subject = Subject(
            namespace=example.namespace,
            namespace_labels=example.namespace_labels,
            pod_labels=read_labels(example.pod),
            service_account=read_service_account(example.pod),
        )
        rule = policy.rule_for(subject)
        proven.add(rule and rule.name)
    assert {rule.name for rule in policy.rules} <= proven


@pytest.mark.parametrize("file", SHIPPED[1:], ids=lambda file: file.stem)
def test_every_example_policy_begins_with_the_question_it_answers(file):
    head = file.read_text().split("\n")[:5]
    assert head[0] == "# yaml-language-server: $schema=../policy.schema.json"
    assert any(line.startswith("# ") and line.endswith("?") for line in head[1:])


def test_the_default_policy_leaves_the_system_alone_and_has_no_upper_bound():
    policy = load(SHIPPED[0])
    for namespace in ("kube-system", "vramwarden-system", "gpu-operator", "nvidia-device-plugin"):
        assert policy.rule_for(Subject(namespace=namespace)).name == "system"
    rule = policy.rule_for(Subject(namespace="anything"))
    assert (rule.name, rule.memory.max_bytes, rule.max_gpu_count) == ("default", None, 16)
    assert rule.memory.min_bytes == 64 * 2**20
    for resource in (
        "nvidia.com/gpu",
        "amd.com/gpu",
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/gpu.shared",
    ):
        assert policy.is_whole_gpu(resource)
