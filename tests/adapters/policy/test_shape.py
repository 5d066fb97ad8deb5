"""One file: the values that each field accepts, and the sentence for any other value."""

# ruff: noqa: E501 - a row of a table is one line: a message cut in two cannot be searched for

from __future__ import annotations

import json
from dataclasses import replace
from operator import attrgetter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapters.policy.policy_strategies import WHOLE, anything, places, replaced
from tests.support.pods import ENFORCEMENT
from tests.support.policies import HEAD, IMAGE, load, load_spec, problems, problems_of_spec, write
from webhook.adapters.policy.files import PolicyInvalidError
from webhook.core.nvidia.programs import Program
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.core.policy.match import Subject
from webhook.core.policy.model import (
    Action,
    DriverLimit,
    EnforceBy,
    Isolation,
    MemoryBounds,
    Placement,
    PodRestart,
    ResourceAmounts,
    ResourceClaims,
    RunAs,
    VisibleDevices,
    WhenBlind,
)

MINIMAL = "  rules:\n  - name: a\n"


def rule_problem(folder, field: str) -> str:
    """Return the only problem of a rule with an additional field, which is on line 7."""
    (problem,) = problems_of_spec(folder, f"{MINIMAL}    {field}\n")
    assert problem.startswith("a.yaml:7: spec.rules[0].")
    return problem.removeprefix("a.yaml:7: spec.rules[0].")


def test_what_is_left_out_has_the_documented_default(tmp_path):
    policy = load_spec(tmp_path, MINIMAL)
    (rule,) = policy.rules
    assert rule.match.matches(Subject(namespace="any-namespace"))
    assert rule.action is Action.ENFORCE
    assert rule.memory == MemoryBounds(None, None)
    assert (rule.max_gpu_count, rule.allowed_classes, rule.default_class) == (None, ("*",), None)
    assert rule.node_selector == {"vramwarden.io/gpu": "true"}
    assert (rule.tolerations, rule.env, rule.runtime_class_name) == ((), (), "Auto")
    assert rule.programs == ("jax", "tensorflow")
    assert rule.visible_devices is VisibleDevices.DENY
    assert (rule.isolation, rule.resource_claims) == (Isolation.ANY, ResourceClaims.DENY)
    assert (rule.host_paths, rule.capabilities) == (None, {"NET_ADMIN", "NET_RAW", "IPC_LOCK"})
    assert rule.placement is Placement.BINDING
    held = rule.enforcement
    assert (held.by, held.run_as) == (EnforceBy.SIDECAR, RunAs.AUTO)
    assert (held.image, held.poll_interval, held.grace) == (IMAGE, "1s", "5s")
    assert (held.tolerance, held.blind_after) == ("2%", "60s")
    assert held.when_blind is WhenBlind.REPORT
    assert (held.pod_restart, held.driver_limit) == (PodRestart.NONE, DriverLimit.AUTO)
    assert held.resources == ResourceAmounts()
    assert policy.whole_gpu_resources == WHOLE_GPU_RESOURCES


@pytest.mark.parametrize("programs", [[], ["cupy"], [*map(str, Program)]], ids=str)
def test_a_rule_names_programs_in_any_number(tmp_path, programs):
    (rule,) = load_spec(tmp_path, f"{MINIMAL}    programs: {json.dumps(programs)}\n").rules
    assert rule.programs == tuple(programs)
    assert {type(name) for name in rule.programs} <= {str}  # strings, not members of `Program`


OF_THE_SIDECAR = {
    "runAs": "Auto",
    "image": "null",
    "blindAfter": "60s",
    "whenBlind": "Report",
    "podRestart": "None",
    "resources": "null",
}
"""Fields of `enforcement` that only apply to a sidecar, each with its default."""


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("match: {namespaces: []}", "match.namespaces: is an empty list; list a pattern or leave the field out"),
        ("match: {namespaces: }", "match.namespaces: is empty; write a list, or leave the field out"),
        ("match: {namespaces: [A]}", 'match.namespaces[0]: "A" is not a namespace; write lower-case letters, digits and -, and * for any text'),
        ("match: {namespaces: ['a?']}", 'match.namespaces[0]: "a?" is not a namespace'),
        ("match: {podLabels: {a: '*'}}", "match.podLabels.a: \"*\" is not a label's value"),
        ("action: deny", 'action: "deny" is not one of Enforce, Warn, Audit, Ignore; did you mean Enforce?'),
        ("action: dryrun", 'action: "dryrun" is not one of Enforce, Warn, Audit, Ignore; did you mean Audit?'),
        ("mesage: x", "mesage: unknown field; did you mean message? known fields: name, match, action, message, memory and 17 more"),
        ("action: enforce", 'action: "enforce" is not one of Enforce, Warn, Audit, Ignore; did you mean Enforce?'),
        ("action: 5", "action: must be one of Enforce, Warn, Audit, Ignore"),
        ("action: null", "action: must be one of Enforce, Warn, Audit, Ignore"),
        ("action: yes", "action: yes is a boolean in some YAML"),
        ("memory: {max: 8GB}", 'memory.max: "8GB" is not a Kubernetes quantity; use 8G or 8Gi'),
        ("memory: {max: 8192}", 'memory.max: "8192" is 8192 bytes; for MiB write 8192Mi'),
        ("memory: {max: 0}", 'memory.max: "0" must be greater than zero'),
        ("memory: {max: -1Gi}", 'memory.max: "-1Gi" must be greater than zero'),
        ("memory: {max: true}", "memory.max: must be text, e.g. 8Gi"),
        ("memory: {max: [8Gi]}", "memory.max: must be text, e.g. 8Gi"),
        ("memory: {min: 8Gi, max: 4Gi}", "memory.max: 4Gi is less than min, 8Gi; swap them"),
        ("memory: {maxx: 4Gi}", "memory.maxx: unknown field; did you mean max? known fields: min, max"),
        ("memory: 8Gi", 'memory: must be a map of fields, not "8Gi"'),
        ("memory:", "memory: is empty; write a map of fields, or leave the field out"),
        ("gpuCount: {max: 0}", "gpuCount.max: 0 is out of bounds; write an integer from 1 to 9999"),
        ("gpuCount: {max: 10000}", "gpuCount.max: 10000 is out of bounds; write an integer from 1 to 9999"),
        ("gpuCount: {max: '2'}", 'gpuCount.max: must be an integer, not "2"'),
        ("gpuCount: {max: 1.5}", 'gpuCount.max: must be an integer, not "1.5"'),
        ("gpuCount: {max: true}", "gpuCount.max: must be an integer, not true"),
        ("gpucount: {max: 1}", "gpucount: unknown field; did you mean gpuCount? known fields: name, match,"),
        ("classes: {default: b}", 'classes.default: class "b" is not defined; the policy has no classes'),
        ("nodeSelector: {a: true}", "nodeSelector.a: must be text, not true; put it in quotes"),
        ("nodeSelector: {a b: c}", 'nodeSelector["a b"]: "a b" is not a label\'s key'),
        (f"nodeSelector: {{a: {'x' * 64}}}", "is longer than 63 characters"),
        (f"nodeSelector: {{a/{'x' * 64}: a}}", "is longer than 63 characters"),
        (f"nodeSelector: {{{'x' * 254}/a: a}}", "is longer than 253 characters"),
        ("nodeSelector: [a]", "nodeSelector: must be a map, not a list"),
        ("tolerations: {}", "tolerations: must be a list, not a map"),
        ("tolerations: [{key: a, operator: Exists, value: b}]", "tolerations[0]: operator Exists takes no value; remove value, or use Equal"),
        ("tolerations: [{value: b}]", "tolerations[0]: has no key; add one, or use operator Exists to tolerate every taint"),
        ("tolerations: [{key: a, operator: Lt, value: b}]", "tolerations[0]: operator Lt compares integers; write one as value"),
        ("tolerations: [{key: a, tolerationSeconds: 5}]", "tolerations[0]: tolerationSeconds works with effect NoExecute only; set it"),
        ("tolerations: [{key: a, effect: NoRun}]", 'tolerations[0].effect: "NoRun" is not one of NoSchedule, PreferNoSchedule, NoExecute'),
        ("tolerations: [{key: a, seconds: 5}]", "tolerations[0].seconds: unknown field"),
        ("runtimeClassName: Nvidia", "runtimeClassName: \"Nvidia\" is not a RuntimeClass's name; write Auto, null, or a name, e.g. nvidia"),
        ("runtimeClassName: auto", 'runtimeClassName: "auto" would be taken for a name; did you mean Auto?'),
        ("runtimeClassName: ''", "runtimeClassName: \"\" is not a RuntimeClass's name"),
        ("isolation: nonroot", 'isolation: "nonroot" is not one of Any, NonRoot; did you mean NonRoot?'),
        ("enforcement: {runAs: Workload}\n    isolation: NonRoot", "enforcement: runAs Workload gives the sidecar a user that can be signalled, against isolation NonRoot; write runAs Auto, or isolation Any"),
        ("resourceClaims: Allow", 'resourceClaims: "Allow" is not one of Deny, Ignore; did you mean Ignore?'),
        ("hostPaths: safe", "hostPaths: must be Safe, or a list of paths, e.g. [/data]; [] allows none"),
        ("hostPaths: null", "hostPaths: must be Safe, or a list of paths, e.g. [/data]; [] allows none"),
        ("hostPaths: /data", "hostPaths: must be Safe, or a list of paths"),
        ("hostPaths: [Safe]", 'hostPaths: "Safe" is not a path of the node; write an absolute one, e.g. /data'),
        ("hostPaths: [data]", 'hostPaths: "data" is not a path of the node; write an absolute one, e.g. /data'),
        ("hostPaths: ['']", 'hostPaths: "" is not a path of the node'),
        ("hostPaths: [/data/../dev]", 'hostPaths: "/data/../dev" has .. in it; write the path that it leads to'),
        ("hostPaths: [5]", 'hostPaths: must be text, e.g. /data, not "5"'),
        (f"hostPaths: [/{'x' * 4096}]", "is longer than 4096 characters"),
        ("capabilities: NET_ADMIN", 'capabilities: must be a list, not "NET_ADMIN"'),
        ("capabilities: [CAP_NET_ADMIN]", 'capabilities[0]: "CAP_NET_ADMIN" is no capability of Linux; did you mean NET_ADMIN?'),
        ("capabilities: [net_admin]", 'capabilities[0]: "net_admin" is no capability of Linux; did you mean NET_ADMIN?'),
        ("capabilities: [ALL]", 'capabilities[0]: "ALL" is no capability of Linux; write e.g. NET_ADMIN, without CAP_'),
        ("capabilities: [KILL, KILL]", "capabilities: names KILL more than once; keep one entry"),
        ("env: [{name: A}]", "env[0]: needs either value or valueFrom"),
        ("env: [{name: A, value: '', valueFrom: {fieldRef: {}}}]", "env[0]: needs either value or valueFrom"),
        ("env: [{name: A, valueFrom: {}}]", "env[0]: valueFrom needs exactly one source"),
        ("env: [{name: A, value: 1}]", "env[0].value: must be text, not 1; put it in quotes"),
        ("env: [{name: A=B, value: a}]", "env[0].name: \"A=B\" is not a variable's name"),
        ("env: [{name: NVIDIA_VISIBLE_DEVICES, value: a}]", "env[0].name: NVIDIA_VISIBLE_DEVICES is set by placement; choose with the field placement"),
        ("env: [{name: VRAM_CAP_BYTES, value: a}]", "env[0].name: VRAM_CAP_BYTES begins with VRAM_, which is kept for the sidecar; rename it"),
        ("env: [{name: A, value: a}, {name: A, value: b}]", "env: sets A more than once; keep one entry"),
        ("env: [{name: VRAMWARDEN_GPU_MEMORY_MIB, value: a}]", "env[0].name: VRAMWARDEN_GPU_MEMORY_MIB begins with VRAMWARDEN_, which translation sets; rename it"),
        ("programs: [torch]", 'programs[0]: "torch" is not one of jax, tensorflow, jax-fraction, pytorch, cupy, julia, ollama; did you mean pytorch?'),
        ("programs: [jax, 7]", "programs[1]: must be one of jax, tensorflow, jax-fraction, pytorch, cupy, julia, ollama"),
        ("programs: jax", 'programs: must be a list, not "jax"'),
        ("programs: null", "programs: is empty; write a list, or leave the field out"),
        ("programs: [cupy, jax, cupy]", "programs: names cupy more than once; keep one"),
        ("placement: Node", 'placement: "Node" is not one of Binding, None'),
        ("enforcement: {image: 'a b'}", 'enforcement.image: "a b" is not an image'),
        ("enforcement: {image: ''}", 'enforcement.image: "" is not an image'),
        ("enforcement: {grace: 5}", 'enforcement.grace: "5" is not a duration; add its unit, e.g. 5s'),
        ("enforcement: {grace: 5 s}", 'enforcement.grace: "5 s" is not a duration; write e.g. 500ms, 1s or 1m30s'),
        ("enforcement: {grace: 61m}", 'enforcement.grace: "61m" is too long; choose between 0s and 1h'),
        ("enforcement: {grace: 0.5ms}", 'enforcement.grace: "0.5ms" is finer than a millisecond'),
        ("enforcement: {pollInterval: 99ms}", 'enforcement.pollInterval: "99ms" is too short; choose between 100ms and 60s'),
        ("enforcement: {blindAfter: 0s}", 'enforcement.blindAfter: "0s" is too short; choose between 1s and 1h'),
        ("enforcement: {tolerance: 51%}", 'enforcement.tolerance: "51%" is more than 50%; write less'),
        ("enforcement: {tolerance: 50.1%}", 'enforcement.tolerance: "50.1%" is more than 50%; write less'),
        ("enforcement: {tolerance: 2.55%}", 'enforcement.tolerance: "2.55%" is not a percentage; write e.g. 2% or 2.5%'),
        ("enforcement: {tolerance: 2}", 'enforcement.tolerance: "2" is no sensible tolerance; write a percentage, e.g. 2%, or at least 1Mi'),
        ("enforcement: {tolerance: -1Gi}", 'enforcement.tolerance: "-1Gi" is no sensible tolerance'),
        ("enforcement: {tolerance: 1048576.5}", 'enforcement.tolerance: "1048576.5" is a fraction of a byte; write e.g. 256Mi'),
        ("enforcement: {resources: 64Mi}", 'enforcement.resources: must be a map of fields, not "64Mi"'),
        ("enforcement: {resources: {cpu: 1}}", "enforcement.resources.cpu: unknown field; known fields: requests, limits"),
        ("enforcement: {resources: {limits: {nvidia.com/gpu: 1}}}", "enforcement.resources.limits[nvidia.com/gpu]: unknown field; known fields: cpu, memory"),
        ("enforcement: {resources: {limits: {memory: 47Mi}}}", "enforcement.resources.limits.memory: \"47Mi\" is too little for its interpreter and NVIDIA's library, so the kernel would end the sidecar; write at least 48Mi"),
        ("enforcement: {resources: {requests: {memory: 64}}}", 'enforcement.resources.requests.memory: "64" is too little'),
        ("enforcement: {resources: {limits: {memory: -64Mi}}}", 'enforcement.resources.limits.memory: "-64Mi" is too little'),
        ("enforcement: {resources: {limits: {memory: 64MB}}}", 'enforcement.resources.limits.memory: "64MB" is not a Kubernetes quantity; use 64M or 64Mi'),
        ("enforcement: {resources: {limits: {memory: 67108864.5}}}", 'enforcement.resources.limits.memory: "67108864.5" is a fraction of a byte; write e.g. 64Mi'),
        ("enforcement: {resources: {limits: {memory: [64Mi]}}}", "enforcement.resources.limits.memory: must be text, e.g. 64Mi"),
        ("enforcement: {resources: {limits: {cpu: 9m}}}", 'enforcement.resources.limits.cpu: "9m" lets no sidecar start within a minute; write at least 10m'),
        ("enforcement: {resources: {limits: {cpu: 0}}}", 'enforcement.resources.limits.cpu: "0" lets no sidecar start'),
        ("enforcement: {resources: {requests: {cpu: half}}}", 'enforcement.resources.requests.cpu: "half" is not an amount of CPU; write e.g. 100m or 1'),
        ("enforcement: {resources: {requests: {cpu: -1}}}", 'enforcement.resources.requests.cpu: "-1" is not an amount of CPU'),
        ("enforcement: {resources: {requests: {cpu: 64Mi}}}", 'enforcement.resources.requests.cpu: "64Mi" is not an amount of CPU'),
        ("enforcement: {resources: {requests: {cpu: 0.0005}}}", 'enforcement.resources.requests.cpu: "0.0005" is finer than 1m, a thousandth of a CPU; write e.g. 100m'),
        ("enforcement: {resources: {requests: {cpu: 1}, limits: {cpu: 500m}}}", "enforcement.resources.limits: cpu is 500m, less than the request, 1; raise it"),
        ("enforcement: {resources: {requests: {memory: 1Gi}, limits: {memory: 64Mi}}}", "enforcement.resources.limits: memory is 64Mi, less than the request, 1Gi; raise it"),
        ("enforcement: {podRestart: restart}", 'enforcement.podRestart: "restart" is not one of None, RestartAllContainers'),
        ("enforcement: {driverLimit: require}", 'enforcement.driverLimit: "require" is not one of Auto, Require, Off; did you mean Require?'),
        ("enforcement: {by: None, driverLimit: Require}", "enforcement.driverLimit: Require needs by Sidecar: without a sidecar no container waits for the limit; change by, or write Auto"),
        ("enforcement: {onExcess: Report, driverLimit: Require}", "enforcement.driverLimit: Require needs onExcess Stop: Report holds nobody to the cap, and the limit would; change onExcess, or write Auto"),
        ("enforcement: {by: Sentry, driverLimit: Require}", "enforcement.driverLimit: Require needs by Sidecar: without a sidecar no container waits for the limit; change by, or write Auto"),
        ("enforcement: {by: Sentry}\n    accounting: CapOnly", "enforcement: by Sentry needs accounting VRAM: on nodes whose GPUs a device plugin gives, the sentry knows no caps; change accounting, or write by Sidecar"),
        *(
            (f"enforcement: {{by: Sentry, {name}: {value}}}", f"enforcement.{name}: is of the sidecar, and by Sentry adds none; remove the line, or write by Sidecar")
            for name, value in OF_THE_SIDECAR.items()
        ),
        ("enforcement: {by: None, onExcess: Report, driverLimit: Require}", "change by, or write Auto; it needs onExcess Stop: Report holds"),
        ("enforcement: {driverLimit: Require}\n    placement: None", "enforcement: driverLimit Require needs placement Binding: what sees all GPUs is promised none; change placement, or write driverLimit Auto"),
        ("enforcement: {driverLimit: Require}\n    accounting: MIG", "enforcement: driverLimit Require needs accounting VRAM: a device plugin gives the GPU, and says not which; change accounting, or write driverLimit Auto"),
        ("enforcement: {driverLimit: Require}\n    nodeSelector: {vramwarden.io/driver-limit: 'false'}", 'enforcement.driverLimit: Require selects "true"; remove nodeSelector[vramwarden.io/driver-limit] of the rule'),
    ],
)  # fmt: skip
def test_a_mistake_in_a_rule_is_told_with_line_and_path(tmp_path, field, problem):
    assert problem in rule_problem(tmp_path, field)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("  rules:\n  - action: Warn\n", "a.yaml:6: spec.rules[0].name: is missing; add it: The rule's name"),
        ("  rules:\n  - name: A_b\n", 'a.yaml:6: spec.rules[0].name: "A_b" is not a name; write lower-case'),
        ("  rules:\n  -\n", "a.yaml:6: spec.rules[0]: is empty; write a map of fields"),
        ("  rulez: []\n", "a.yaml:5: spec.rulez: unknown field; did you mean rules? known fields: wholeGPUResources, classes, rules, examples"),
        ("  wholeGPUResources: ['*']\n", "a.yaml:5: spec.wholeGPUResources[0]: \"*\" is not a resource's full name"),
        ("  wholeGPUResources: ['v*/*']\n", 'a.yaml:5: spec.wholeGPUResources[0]: "v*/*" covers vramwarden.io/vram too'),
        ("  classes: {A: {}}\n", 'a.yaml:5: spec.classes.A: "A" is not a name'),
        ("  classes: {a: {memory: {max: 1Gi}}}\n", "a.yaml:5: spec.classes.a.memory: unknown field; known fields: nodeSelector, tolerations, accounting"),
        ("  examples: [{name: a, pod: {namespace: a}, expect: {}}]\n", "a.yaml:5: spec.examples[0].expect.allowed: is missing"),
        ("  examples: [{name: a, pod: {namespace: a, annotations: {b: 5}}, expect: {allowed: true}}]\n", "spec.examples[0].pod.annotations.b: must be text, not 5; put it in quotes"),
        ("  examples: [{name: a, pod: {namespace: a}, expect: {allowed: false, reasons: [toolarge]}}]\n", "Unmutated; did you mean TooLarge?"),
    ],
)  # fmt: skip
def test_a_mistake_elsewhere_is_told_with_line_and_path(tmp_path, spec, problem):
    (found,) = problems_of_spec(tmp_path, spec)
    assert problem in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ['must be a map of fields, not "a"']),
        ("[]", ["must be a map of fields, not a list"]),
        (HEAD, ["spec: is empty; write a map of fields"]),
        (
            "apiVersion: v1\nkind: Pod\nspec: {}\n",
            [
                'apiVersion: "v1" is not vramwarden.io/v1alpha1',
                "metadata: is missing; add it: Metadata of the policy.",
                'kind: "Pod" is not VRAMPolicy',
            ],
        ),
    ],
)
def test_a_file_of_another_kind_is_rejected(tmp_path, text, expected):
    folder = write(tmp_path / "policy")
    (folder / "a.yaml").write_text(text)
    assert [found.split(": ", 1)[1] for found in problems(folder)] == expected


def test_each_field_without_meaning_by_sentry_is_told_with_its_line(tmp_path):
    fields = OF_THE_SIDECAR | {"driverLimit": "Require"}
    lines = "".join(f"\n      {name}: {value}" for name, value in fields.items())
    spec = f"  rules:\n  - name: a\n    enforcement:\n      by: Sentry{lines}\n"
    places = [problem.split(": ")[:2] for problem in problems_of_spec(tmp_path, spec)]
    assert places == [
        [f"a.yaml:{line}", f"spec.rules[0].enforcement.{name}"]
        for line, name in enumerate(fields, start=9)
    ]


@pytest.mark.parametrize("by", ["Sidecar", "None"])
def test_the_sidecars_fields_may_be_given_otherwise(tmp_path, by):
    given = "".join(f", {name}: {value}" for name, value in OF_THE_SIDECAR.items())
    (rule,) = load_spec(tmp_path, f"{MINIMAL}    enforcement: {{by: {by}{given}}}\n").rules
    assert rule.enforcement == replace(ENFORCEMENT, by=EnforceBy(by), image=IMAGE)


def test_the_sentry_takes_pace_grace_and_tolerance_of_the_rule(tmp_path):
    held = "{by: Sentry, pollInterval: 2s, grace: 1m, tolerance: 1Gi, onExcess: Report}"
    (rule,) = load_spec(tmp_path, f"{MINIMAL}    enforcement: {held}\n").rules
    found = rule.enforcement
    assert (found.poll_interval, found.grace, found.on_excess) == ("2s", "60s", "Report")
    assert (found.by, found.tolerance, rule.driver_limit) == ("Sentry", str(2**30), "Off")


def test_all_mistakes_are_told_at_once_and_in_order(tmp_path):
    spec = (
        "  rules:\n  - name: a\n    memory: {min: 8GB, max: x}\n    action: no\n  - name: b\n"
        "    gpuCount: {max: 0}\n    gpuCount: {}\n    spam: 1\n    classes: {allowed: [zz]}\n"
    )
    other = "  rules:\n  - name: b\n    classes: {allowed: [yy]}\n  - name: b\n"
    folder = write(tmp_path / "policy", a=spec, b=other)
    places = [problem.split(": ")[:2] for problem in problems(folder)]
    assert places == [
        ["a.yaml:7", "spec.rules[0].memory.min"],
        ["a.yaml:7", "spec.rules[0].memory.max"],
        ["a.yaml:8", "spec.rules[0].action"],
        ["a.yaml:10", "spec.rules[1].gpuCount.max"],
        ["a.yaml:11", "spec.rules[1].gpuCount"],
        ["a.yaml:12", "spec.rules[1].spam"],
        ["b.yaml:7", "spec.rules[0].classes.allowed[0]"],
        ["b.yaml:8", "spec.rules[1].name"],
    ]


def test_a_file_with_thousands_of_mistakes_shows_the_first_hundred(tmp_path):
    found = problems_of_spec(tmp_path, "".join(f"  x{n}: 1\n" for n in range(3000)))
    assert len(found) == 101
    assert found[-1] == "a.yaml: and 2900 more problems"


KEPT = [
    ("hostPaths: Safe", "host_paths", None),
    ("hostPaths: []", "host_paths", ()),
    ("hostPaths: [/]", "host_paths", ("/",)),
    ("hostPaths: [/data, //mnt//models/./, /a b]", "host_paths", ("/data", "/mnt/models", "/a b")),
    ("isolation: NonRoot\n    enforcement: {runAs: Auto}", "isolation", Isolation.NON_ROOT),
    ("isolation: NonRoot\n    enforcement: {runAs: Root}", "isolation", Isolation.NON_ROOT),
    # a name, or Auto, which the cluster decides
    ("runtimeClassName: Auto", "runtime_class_name", "Auto"),
    ("runtimeClassName: null", "runtime_class_name", None),
    ("runtimeClassName: nvidia", "runtime_class_name", "nvidia"),
    ("runtimeClassName: a.b", "runtime_class_name", "a.b"),
    # every form of a quantity
    *((f"memory: {{max: {text}}}", "memory.max_bytes", 2**33) for text in ("8Gi", "8192Mi", "8589934592", "'8589934592'")),
    ("memory: {max: 8e9}", "memory.max_bytes", 7630 * 2**20),
    # the sidecar's amounts, exact and normalized
    ("enforcement: {resources: null}", "enforcement.resources", ResourceAmounts()),
    ("enforcement: {resources: {}}", "enforcement.resources", ResourceAmounts()),
    ("enforcement: {resources: {limits: {cpu: 1000m, memory: 0.25Gi}}}", "enforcement.resources", ResourceAmounts(cpu_limit="1", memory_limit="256Mi")),
    ("enforcement: {resources: {requests: {cpu: 0.5, memory: 64M}}}", "enforcement.resources", ResourceAmounts("500m", None, "62500Ki", None)),
    ("enforcement: {resources: {requests: {cpu: 0, memory: 48Mi}, limits: {cpu: 2, memory: 67108864}}}", "enforcement.resources", ResourceAmounts("0", "2", "48Mi", "64Mi")),
    ("enforcement: {resources: {requests: {cpu: null}, limits: {memory: null}}}", "enforcement.resources", ResourceAmounts()),
    # the sidecar's image, pull secrets and restarts
    ("enforcement: {image: mirror/enforcer@sha256:a}", "enforcement.image", "mirror/enforcer@sha256:a"),
    ("enforcement: {podRestart: RestartAllContainers}", "enforcement.restarts_pod", True),
    ("enforcement: {podRestart: None}", "enforcement.restarts_pod", False),
    # the driver's limit, and its nodes; never Auto if no container waits for it
    *((f"enforcement: {{driverLimit: {each}}}", "driver_limit", each) for each in DriverLimit),
    *((f"enforcement: {{{each}}}", "driver_limit", "Off") for each in ("by: None", "onExcess: Report")),
    ("placement: None", "driver_limit", "Off"),
    # durations, as the sidecar reads them
    ("enforcement: {grace: 1m30s}", "enforcement.grace", "90s"),
    ("enforcement: {grace: 0.5s}", "enforcement.grace", "500ms"),
    ("enforcement: {grace: 1500ms}", "enforcement.grace", "1500ms"),
    ("enforcement: {grace: 2000ms}", "enforcement.grace", "2s"),
    ("enforcement: {grace: 0.1m}", "enforcement.grace", "6s"),
    # tolerances, a percentage or bytes
    *((f"enforcement: {{tolerance: {text}}}", "enforcement.tolerance", text) for text in ("2%", "0%", "2.5%", "50%", "0", "1048576")),
    ("enforcement: {tolerance: 2.0%}", "enforcement.tolerance", "2%"),
    ("enforcement: {tolerance: 256Mi}", "enforcement.tolerance", str(2**28)),
    ("enforcement: {tolerance: 1G}", "enforcement.tolerance", "1000000000"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "field", "value"), KEPT, ids=[row[0] for row in KEPT])
def test_what_is_written_in_a_rule_is_kept_in_one_form(tmp_path, written, field, value):
    (rule,) = load_spec(tmp_path, f"{MINIMAL}    {written}\n").rules
    assert attrgetter(field)(rule) == value


def test_tolerations_and_variables_are_kept_as_the_api_server_stores_them(tmp_path):
    policy = load_spec(
        tmp_path,
        f"""{MINIMAL}    tolerations: [{{key: a, value: "", effect: NoSchedule, tolerationSeconds: null}}]
    env:
    - {{name: A, value: ""}}
    - {{name: B, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}
""",
    )
    assert policy.rules[0].tolerations == ({"key": "a", "effect": "NoSchedule"},)
    field = {"apiVersion": "v1", "fieldPath": "metadata.name"}
    assert policy.rules[0].env == ({"name": "A"}, {"name": "B", "valueFrom": {"fieldRef": field}})


def test_the_whole_policy_that_the_next_test_breaks_is_valid(tmp_path):
    folder = write(tmp_path / "policy")
    (folder / "a.yaml").write_text(json.dumps(WHOLE).replace('{"a": "b"}', "{}"))
    assert problems(folder) == []


@settings(
    max_examples=settings.default.max_examples * 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(path=st.sampled_from(list(places(WHOLE))), new=anything)
def test_any_value_in_place_of_any_other_is_a_policy_or_a_sentence(tmp_path, path, new):
    file = tmp_path / "a.yaml"
    file.write_text(json.dumps(replaced(WHOLE, path, new)))
    try:
        load(file)
    except PolicyInvalidError as error:
        assert error.problems
        assert all(str(problem).startswith(f"{file}:") for problem in error.problems)
