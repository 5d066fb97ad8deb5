"""Containers without a device see none, by the API server's policy alone.

The cluster has only this vramwarden policy, and rules for namespaces with many names. A row is
a pod in a namespace and its voided containers; nothing else in the pod changes.
"""

from __future__ import annotations

import copy

import pytest

from tests.chart.admission_policies import BINDING, POLICY, apply, parameter, write_parameter
from tests.chart.fenced import Fenced, mirrored, with_observed
from tests.chart.fences import SENTRY
from tests.support.charts import NAMESPACE, one
from tests.support.control_planes import needs, wait_until
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from tests.support.webhook_configurations import installed
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.pod.complexity import CEL_LIMITS
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.fence import GPUS_KEY, MAX_WHOLE_GPUS_BYTES, _pattern, fence_data
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.core.policy.match import Match
from webhook.core.policy.model import Action, VisibleDevices

NAME, KIND = "vramwarden-void", "MutatingAdmissionPolicy"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOID = {"name": VISIBLE, "value": "void"}
OTHER = {"name": "A", "value": "1"}
FIELDS = ("containers", "initContainers", "ephemeralContainers")

IGNORE = {"visible_devices": VisibleDevices.IGNORE}
INTERNS = {"namespace_labels": {"tier": "intern"}}
RULES = [
    ("ignoring", IGNORE),
    ("warned", {"action": Action.WARN}),
    ("audited", {"action": Action.AUDIT}),
    ("ignored", {"action": Action.IGNORE}),
    ("by-labels", {"pod_labels": {"tier": "free"}}),
    ("by-name-*", {"visible_devices": VisibleDevices.VOID}),
    ("*-name-*", IGNORE),
    ("interns-*", INTERNS),
    ("interns-*", IGNORE),
    ("except-*", {"exception": Match(**INTERNS)}),
    ("except-*", IGNORE),
    ("staff-*", INTERNS | IGNORE),
    ("staff-*", {}),
    ("*-nobodys", {"action": Action.IGNORE}),
    ("*", {}),
]
"""Special fields of a rule, keyed by namespace pattern; the first match applies."""
VOIDING = a_policy(
    *(
        a_rule(name=f"r{number}", namespaces=(pattern,), **fields)
        for number, (pattern, fields) in enumerate(RULES)
    ),
    whole_gpu_resources=WHOLE_GPU_RESOURCES,
)
OBSERVED = a_policy(a_rule(namespaces=("observed",)))
DEBUG = "/ephemeralcontainers"


def debugging(*containers):
    return {"spec": {"ephemeralContainers": list(containers)}}


@pytest.fixture(scope="module")
def cluster(control_plane, helm):
    """Return the cluster, which has a pod with a debugging container."""
    needs(control_plane.api, KIND)
    found = Fenced(control_plane, helm, NAME)
    for name, tier in {"a": "intern", "b": "staff"}.items():
        for prefix in ("interns", "except", "staff"):
            found.namespace(f"{prefix}-{name}", {"tier": tier})
    found.namespace("labelled-void", {"vramwarden.io/webhook": "disabled"})
    plain, debugger = found.create(a_pod(), dry_run=False), debugging(a_container("old"))
    found.stored = found.patch(plain, debugger, DEBUG, dry_run=False)
    write_parameter(found.api, with_observed(VOIDING, OBSERVED))
    made = [one(found.objects, kind, NAME) for kind in (f"{KIND}Binding", KIND)]
    for thing in made:
        apply(found.api, thing)
    wait_until("it holds these rules", lambda: holds(found))
    yield found
    for thing in made:
        found.api.delete(thing)
    found.close()


def holds(cluster):
    return is_voided(cluster) and not is_voided(cluster, "ignoring")


def is_voided(cluster, namespace="default"):
    return voided(a_pod(), cluster.create(a_pod(), namespace)) == {"main"}


def voided(pod, found):
    """Return the voided containers of a pod; check that nothing else changed."""
    names = set()
    for field in FIELDS:
        for before, after in zip(
            pod["spec"].get(field, []), found["spec"].get(field, []), strict=True
        ):
            env = [{k: v for k, v in entry.items() if v != ""} for entry in before.get("env", [])]
            if after.get("env", []) == [*env, VOID]:
                names.add(before["name"])
            else:
                assert after.get("env", []) == env
    return names


UNPROMISED = {
    "bare": {},
    "empty": {"env": []},
    "other": {"env": [OTHER]},
    "from": {"envFrom": [{"configMapRef": {"name": "m"}}]},
    "cuda": {"env": [{"name": "CUDA_VERSION", "value": "12.4"}]},
    "zero": {"resources": {"limits": {"nvidia.com/gpu": "0"}}},
    "own": {"resources": {"limits": {"cpu": "1", "hugepages-2Mi": "2Mi"}}},
    "native": {"resources": {}, "restartPolicy": None},
    "rdma": {"resources": {"limits": {"rdma/hca": "1"}}},
    "card": {"resources": {"limits": {"nvidia.com/hostdev": "1"}}},
    "fpga": {"resources": {"limits": {"example.com/fpga": "2"}}},
}
PROMISED = {
    **{
        what: {"resources": {"limits": {resource: "1"}}}
        for what, resource in {
            "a whole GPU": "nvidia.com/gpu",
            "VRAM": "vramwarden.io/vram",
            "a slice": "nvidia.com/mig-1g.10gb",
            "a GPU of another name": "nvidia.com/a100",
            "another product's": "tencent.com/vcuda-core",
            "a device of a class": "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
        }.items()
    },
    "a claim": {"resources": {"claims": [{"name": "gpu"}]}},
    "the sidecar": {"name": "vram-enforcer"},
}
NAMED = [
    {"value": "all"},
    {"value": "void"},
    {"value": ""},
    {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
]
MANY = [{"name": f"A{number}"} for number in range(CEL_LIMITS["variables"] + 1)]
CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}


def row(what, *names, namespace="default", **spec):
    return pytest.param(a_pod(**spec), namespace, set(names), id=what)


ROWS = [
    *(
        row(f"{field} without a promise", "main", *UNPROMISED, **{
            "containers": [a_container()],
            "initContainers": [],
            field: [a_container(name, **fields) for name, fields in UNPROMISED.items()]
            + [a_container()] * (field == "containers"),
        })
        for field in FIELDS[:2]
    ),
    *(
        row(f"{field} with {what}", "next", *["main"] * (field != "containers"), **{
            "containers": [a_container()],
            field: [{**a_container("promised"), **fields}, a_container("next")],
        }, **CLAIM)
        for field in FIELDS[:2]
        for what, fields in PROMISED.items()
    ),
    *(  # the scheduler did not check that the node offers it
        row(f"{field} with {what}, whose creator chose the node", "next",
            *["main"] * (field != "containers"),
            *["promised"] * (what not in {"a claim", "the sidecar"}), nodeName="n1", **{
            "containers": [a_container()],
            field: [{**a_container("promised"), **fields}, a_container("next")],
        }, **CLAIM)
        for field in FIELDS[:2]
        for what, fields in PROMISED.items()
    ),
    *(  # the policy's rule decides about these
        row(f"names it: {entry}", "other",
            containers=[a_container(env=[{"name": VISIBLE, **entry}]), a_container("other")])
        for entry in NAMED
    ),
    # Too large to evaluate; the second line denies this pod.
    row("too many variables", containers=[a_container(env=MANY)]),
    row("many variables", "main", containers=[a_container(env=MANY[1:])]),
    *(
        row(f"where the rule has it: {name}", "main", namespace=name)
        for name in ("team-v", "by-name-v", "interns-a", "except-b", "staff-b")
    ),
    *(
        row(f"where the rule does not say so: {name}", namespace=name)
        for name in ("ignoring", "warned", "audited", "ignored", "by-labels", "observed",
                     "another-name-v", "interns-b", "except-a", "staff-a")
    ),
    *(
        row(f"exempt: {name}", namespace=name)
        for name in ("labelled-void", "nvidia-void", "kube-system")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "namespace", "names"), ROWS)
def test_which_containers_of_a_new_pod_are_voided(cluster, pod, namespace, names):
    assert voided(pod, cluster.create(pod, namespace)) == names


def test_an_update_voids_nothing(cluster):
    found = cluster.patch(cluster.stored, {"metadata": {"labels": {"app": "web"}}})
    assert voided(cluster.stored, found) == set()


def test_new_debugging_containers_are_voided(cluster):
    none = {"name": VISIBLE, "value": "none"}
    new = {"bare": [], "other": [OTHER], "named": [none]}
    change = debugging(*(a_container(name, env=env) for name, env in new.items()))
    spec = cluster.patch(cluster.stored, change, DEBUG)["spec"]
    debugging_containers = spec["ephemeralContainers"]
    assert {container["name"]: container.get("env", []) for container in debugging_containers} == {
        "old": [], "bare": [VOID], "other": [OTHER, VOID], "named": [none],
    }  # fmt: skip
    assert "env" not in spec["containers"][0]  # created before, so not part of this request


def test_mirror_pods_are_left_alone_and_forged_ones_are_not(cluster):
    with mirrored(cluster, a_pod()) as (kubelet, pod):
        assert voided(pod, cluster.create(pod, api=kubelet)) == set()
        assert voided(pod, cluster.create(pod)) == {"main"}


def test_translation_comes_after_it_and_shows_containers_their_gpu(cluster):
    """The webhook receives a voided container with VRAM, and denies nothing for that reason."""
    pod = a_pod("8Gi", containers=[a_container(env=[OTHER]), a_container("second")])
    found = cluster.create(pod)
    assert voided(pod, found) == {"main", "second"}
    for policy in (VOIDING, a_policy(a_rule(visible_devices=VisibleDevices.VOID))):
        after, plain = (
            decide(a_request(item, namespace="default"), policy, UNKNOWN_CLUSTER, Phase.MUTATE)
            for item in (found, pod)
        )
        assert after.outcome is Outcome.MUTATED, after.message
        first, second = named(after)
        assert [first, second] == named(plain)
        assert VOID not in first
        assert second == [VOID]


def named(decision):
    """Return the device variables of the containers."""
    containers = decision.obj["spec"]["containers"]
    return [
        [entry for entry in container["env"] if entry["name"] == VISIBLE]
        for container in containers
    ]


def test_a_plain_pod_is_voided_without_a_call_of_ours(cluster, helm):
    """Webhooks are called afterwards, so none of their conditions may react to `void`.

    No server listens at the webhooks' addresses, and all webhooks are `Fail`.
    """
    objects = helm.render()
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    configurations = copy.deepcopy([one(objects, kind) for kind in kinds])
    for webhook in (hook for found in configurations for hook in found["webhooks"]):
        webhook.update(clientConfig={"url": "https://127.0.0.1:1/"}, failurePolicy="Fail")
    with installed(cluster.api, *configurations):
        wait_until("the webhooks are in force", lambda: cluster.denies(a_pod("8Gi")))
        pod = a_pod(initContainers=[a_container("init")])
        assert voided(pod, cluster.create(pod)) == {"main", "init"}
        whole = a_container(env=[{"name": VISIBLE, "value": "all"}])
        assert "failed calling webhook" in cluster.denies(a_pod(containers=[whole]))


def test_without_a_second_line_it_denies_what_is_too_large(cluster, helm):
    objects = helm.render({"fence": {"void": True, "secondLine": False}})
    apply(cluster.api, one(objects, KIND, NAME))
    large = a_pod(containers=[a_container(env=MANY)])
    wait_until("it does", lambda: cluster.denies(large))
    assert NAME in cluster.denies(large)
    assert "the pod is too large to be judged" in cluster.denies(large)
    assert is_voided(cluster)
    assert cluster.denies(large, "ignored") == ""
    apply(cluster.api, one(cluster.objects, KIND, NAME))
    wait_until("it is as before", lambda: cluster.denies(large) == "")


LONG = ".".join(letter * 58 for letter in "abcd")


def zero(containers, count, name="r{}.io/x"):
    """Return a pod whose containers have zero limits for this number of resources."""
    limits = {name.format(f"{number:02}"): "0" for number in range(count)}
    return a_pod(
        containers=[
            a_container(f"c{number}", resources={"limits": limits}) for number in range(containers)
        ]
    )


ZEROS = {
    **{
        f"{containers} x {count}, long names": zero(
            containers, count, f"r{{}}.{LONG}.io/{'e' * 63}"
        )
        for containers, count in ((1, 66), (2, 30), (2, 66), (3, 40), (4, 32))
    },
    **{
        f"{containers} x {count}": zero(containers, count)
        for containers, count in ((12, 30), (40, 66), (80, 60), (120, 60))
    },
}


@pytest.fixture(scope="module")
def second_line(cluster):
    """Install the second line, too."""
    made = [one(cluster.objects, kind, "vramwarden-second-line") for kind in (BINDING, POLICY)]
    for thing in made:
        apply(cluster.api, thing)
    wait_until("it denies", lambda: cluster.denies(a_pod(containers=[a_container(env=MANY)])))
    yield cluster
    for thing in made:
        cluster.api.delete(thing)
    wait_until("it is gone", lambda: not cluster.denies(a_pod(containers=[a_container(env=MANY)])))


@pytest.mark.parametrize("what", ZEROS)
def test_no_number_of_resources_keeps_a_container_from_being_voided(second_line, what):
    """Either the pod is denied or all its containers are voided."""
    pod = ZEROS[what]
    if not (why := second_line.denies(pod)):
        assert voided(pod, second_line.create(pod)) == {
            container["name"] for container in pod["spec"]["containers"]
        }
    else:
        assert "is too large to be judged" in why


def as_many_as_fit():
    """Return the maximum number of GPU resource names that the parameter can hold."""
    names = list(WHOLE_GPU_RESOURCES)
    while len(_pattern([*names, "example.com/gpu-0000"])) <= MAX_WHOLE_GPUS_BYTES:
        names.append(f"example.com/gpu-{len(names):04}")
    return tuple(names)


def test_the_largest_pod_that_is_read_costs_no_more_than_an_expression_may(second_line):
    """Each name is matched with both patterns, and the first is as long as allowed."""
    data = fence_data(a_policy(a_rule(), whole_gpu_resources=as_many_as_fit()))
    write_parameter(second_line.api, data)
    count = CEL_LIMITS["domainCharacters"] // 30
    names = [f"nvidia.com/net{number:016}" for number in range(count)]
    for each in (64, 1):
        containers = [
            a_container(
                f"c{start}",
                env=[OTHER] * 40,
                resources={"limits": dict.fromkeys(names[start : start + each], "1")},
            )
            for start in range(0, count, each)
        ]
        containers += [
            a_container(f"d{number}")
            for number in range(CEL_LIMITS["containers"] - len(containers))
        ]
        pod = a_pod(containers=containers)
        found = second_line.create(pod)
        assert voided(pod, found) == {container["name"] for container in containers}
    write_parameter(second_line.api, with_observed(VOIDING, OBSERVED))


def test_it_fails_closed_but_where_a_cluster_recovers(cluster):
    """A pod is denied if an expression cannot be evaluated and a rule may void the pod."""
    pod = a_pod(containers=[a_container(resources={"limits": {"example.com/fpga": "1"}})])
    data = with_observed(VOIDING, OBSERVED)
    write_parameter(cluster.api, {**data, GPUS_KEY: "( ^$"})
    wait_until("that is read", lambda: cluster.denies(pod))
    assert "vramwarden-void" in cluster.denies(pod)
    for namespace in (
        *("kube-system", NAMESPACE, SENTRY, "gpu-operator", "nvidia-void", "labelled-void"),
        *("ignored", "warned", "audited", "ignoring", "by-labels", "observed"),
    ):
        assert cluster.denies(pod, namespace) == "", namespace
    write_parameter(cluster.api, data)
    wait_until("it holds these rules", lambda: cluster.denies(pod) == "")


def test_without_the_parameter_nothing_is_voided(cluster, api):
    """This test must be the last one."""
    api.delete(parameter())
    wait_until("it is gone", lambda: not is_voided(cluster))
