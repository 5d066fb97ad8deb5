"""GPUNode on a real API server: the sentry's writes, and readers."""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import replace

import pytest

from tests.chart.accounts import forget, kinds_known
from tests.chart.admission_policies import is_denied_by
from tests.chart.fenced import MERGE
from tests.chart.fences import ACCOUNTS, OTHER, OWN
from tests.chart.recorded_reviews import denial
from tests.support.charts import one
from tests.support.control_planes import Api, ApiError, wait_until
from webhook import names
from webhook.adapters.journal import Journal
from webhook.adapters.kube.connection import connect
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.node_objects import read_figures, read_own_node, write_figures
from webhook.core.kinds.nodes import (
    MAX_PODS,
    GpuFigures,
    NodeFigures,
    PodFigures,
    read_gpu_node,
    write_gpu_node,
    write_time,
)
from webhook.core.nvidia.drivers import Proof
from webhook.core.pod.gpus import MAX_GPUS
from webhook.names import GPU_NODES_PATH as GPU_NODES
from webhook.sentry.gpu_node_writer import GpuNodeWriter


def figures(node=OWN, **gpu):
    uid = "6d0c1111-0000-4000-8000-000000000001"
    pods = (
        PodFigures(
            uid=uid,
            cap_bytes=2**34,
            used_bytes=2**33,
            peak_bytes=2**33 + 5,
            stops=1,
            would_stop=2,
            would_stop_since_s=1_799_000_000.0,
            held_by="driver, late",
            idle_since_s=1_799_999_000.0,
        ),
    )
    others = {"": 2**30, "91ab-2": 3 * 2**30}
    one = GpuFigures(
        uuid="GPU-8f1", index=0, product="NVIDIA H100", total_bytes=80 * 2**30,
        usable_bytes=79 * 2**30, promised_bytes=2**34, used_bytes=2**34, free_bytes=63 * 2**30,
        unattributed_bytes=5, measured=True,
        pods=pods, unmanaged=others,
    )  # fmt: skip
    return NodeFigures(
        name=node,
        observed_s=1_800_000_000.0,
        driver_version="580.95.05",
        enforcement="sidecar",
        acts=True,
        gpus=(replace(one, **gpu),),
        limit=Proof(holds=True, back_end="misc"),
    )


@pytest.fixture(scope="module")
def crds(control_plane, helm):
    with kinds_known(control_plane.api, helm.render()) as made:
        yield made


@pytest.fixture
def kube(fences, tmp_path):
    return connect(fences.kubeconfig("the sentry", tmp_path), tries=1)


@pytest.fixture
def written(fences, crds, kube):
    """Make the sentry write the figures of its node; return the stored object."""
    write_figures(kube, figures(), read_own_node(kube, OWN).uid)
    yield fences.admin.request("GET", f"{GPU_NODES}/{OWN}")
    with contextlib.suppress(ApiError):
        fences.admin.request("DELETE", f"{GPU_NODES}/{OWN}")


def test_without_the_kind_the_writer_says_so(fences, kube, control_plane, helm):
    """This test precedes those that install the kind. Helm keeps an installed kind."""
    kinds = [item for item in helm.render() if item["kind"] == "CustomResourceDefinition"]
    forget(control_plane.api, kinds)
    said = []
    writer = GpuNodeWriter(kube, OWN, Journal(said.append), 0.0)
    writer.offer(figures())
    writer.step(lambda _: None)
    (line,) = said
    assert json.loads(line)["msg"].startswith("the cluster knows no GPUNode")


def test_it_writes_the_figures_of_its_node_and_reads_them_again(fences, kube, written):
    node = fences.admin.request("GET", f"/api/v1/nodes/{OWN}")["metadata"]
    assert written["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": OWN, "uid": node["uid"]}
    ]
    assert written["status"] == write_gpu_node(figures())["status"]
    less = figures(promised_bytes=None, used_bytes=None, free_bytes=None, unattributed_bytes=None)
    less = replace(less, limit=None)
    write_figures(kube, less, node["uid"])
    stored = fences.admin.request("GET", f"{GPU_NODES}/{OWN}")
    assert stored["status"] == write_gpu_node(less)["status"]
    assert read_figures(kube, OWN) == read_gpu_node(write_gpu_node(less))


def test_the_sentrys_writer_lives_with_a_deleted_object(fences, kube, written):
    said, sent, now_s = [], [], [0.0]
    writer = GpuNodeWriter(kube, OWN, Journal(said.append), 0.0, clock=lambda: now_s[0])
    writer.step(sent.append)
    for second in range(3):
        now_s[0] += 60.0
        writer.offer(replace(figures(), observed_s=1_900_000_000.0 + second))
        writer.step(sent.append)
        found = fences.admin.request("GET", f"{GPU_NODES}/{OWN}")
        assert found["status"]["observedAt"] == write_time(1_900_000_000.0 + second)
        fences.admin.request("DELETE", f"{GPU_NODES}/{OWN}")
    assert ([bool(request.gpus) for request in sent], said) == ([True], [])


def test_it_writes_the_figures_of_no_other_node(fences, crds, kube):
    with pytest.raises(KubeError, match="the GPUNode of its own node only"):
        write_figures(kube, figures(OTHER))
    fences.admin.create(write_gpu_node(figures(OTHER)))
    try:
        with pytest.raises(KubeError, match="the GPUNode of its own node only"):
            write_figures(kube, figures(OTHER))
        nobody, sentry = fences.who("the sentry of no pod"), fences.who("the sentry")
        why = denial(lambda: nobody.create(write_gpu_node(figures()), dry_run=True))
        assert is_denied_by(why, ACCOUNTS)
        for method in ("DELETE", "PUT"):
            with pytest.raises(ApiError, match=r"cannot (delete|update)"):
                sentry.request(method, f"{GPU_NODES}/{OWN}", write_gpu_node(figures()))
    finally:
        fences.admin.request("DELETE", f"{GPU_NODES}/{OTHER}")


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"a": "team-a"}},
        {"annotations": {"a": "team-a"}},
        {"finalizers": ["example.com/x"]},
    ],
    ids=["labels", "annotations", "finalizers"],
)
def test_it_writes_nothing_but_figures(fences, written, metadata):
    merge = {"content_type": MERGE, "dryRun": "All"}
    path = f"{GPU_NODES}/{OWN}"
    sentry = fences.who("the sentry")
    why = denial(lambda: sentry.request("PATCH", path, {"metadata": metadata}, **merge))
    assert is_denied_by(why, ACCOUNTS)
    assert "nothing of a GPUNode but figures" in why
    # Labels by others are kept, and do not prevent the write.
    fences.admin.request("PATCH", path, {"metadata": metadata | {"finalizers": None}}, **merge)


def test_no_name_of_a_namespace_or_a_pod_can_stand_in_it(fences, crds, kube):
    """Unknown fields are pruned, and no known field contains a name."""
    made = write_gpu_node(figures())
    made["spec"] = {"namespace": "team-a"}
    made["status"]["namespace"] = made["status"]["gpus"][0]["team-a"] = "team-a"
    made["status"]["summary"]["pod"] = "team-a"
    made["status"]["gpus"][0]["pods"][0] |= {"namespace": "team-a", "pod": "team-a"}
    made["status"]["gpus"][0]["unmanaged"][0]["command"] = "team-a"
    stored = fences.who("the sentry").create(made)
    try:
        assert stored["status"] == write_gpu_node(figures())["status"]
        assert "team-a" not in str({**stored, "metadata": {}})
    finally:
        fences.admin.request("DELETE", f"{GPU_NODES}/{OWN}")
    for where in ("pods", "unmanaged"):
        made = write_gpu_node(figures())
        made["status"]["gpus"][0][where][0]["uid"] = "team-x"
        assert "in body should match" in denial(lambda it=made: fences.who("the sentry").create(it))


def test_what_is_too_large_is_no_figure_and_the_most_is(fences, crds):
    def stored(gpus=1, pods=1):
        gpu = write_gpu_node(figures())["status"]["gpus"][0]
        gpu |= {"pods": gpu["pods"] * pods, "unmanaged": gpu["unmanaged"][:1] * pods}
        made = write_gpu_node(figures())
        made["status"]["gpus"] = [gpu] * gpus
        return denial(lambda: fences.who("the sentry").create(made, dry_run=True))

    assert stored(MAX_GPUS, 1) == stored(1, MAX_PODS) == ""
    assert "must have at most" in stored(MAX_GPUS + 1)
    assert "must have at most" in stored(1, MAX_PODS + 1)


def as_table(fences):
    """Request the table that kubectl shows."""
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    return Api(fences.admin.url, fences.admin._pool, {**fences.admin._headers, **accept})


def test_kubectl_shows_figures_as_columns(fences, written):
    shown = as_table(fences).request("GET", GPU_NODES)
    columns = [definition["name"] for definition in shown["columnDefinitions"]]
    assert columns == [
        "Name", "GPUs", "Usable", "Promised", "Used", "Largest-Free", "Unmanaged", "Seen",
    ]  # fmt: skip
    (row,) = shown["rows"]
    assert row["cells"][:7] == [OWN, 1, "79Gi", "16Gi", "16Gi", "63Gi", "4Gi"]


def test_who_may_view_one_namespace_reads_figures_of_nodes_and_no_history_elsewhere(
    fences, crds, written
):
    """A controller aggregates `view`. Here, its rule is bound directly."""
    objects = fences.objects
    roles = [one(objects, "ClusterRole", f"vramwarden-{name}") for name in ("gpunodes", "view")]
    assert roles[1]["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    bound = one(objects, "ClusterRoleBinding", "vramwarden-gpunodes")
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}
    here = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "ann", "namespace": "default"},
        "roleRef": {**bound["roleRef"], "name": "vramwarden-view"},
        "subjects": [user],
    }
    made = [*roles, bound, here]
    for thing in made:
        fences.admin.apply(thing)
    ann = fences.admin.acting_as("ann", "system:authenticated")
    group = "/apis/vramwarden.io/v1alpha1"
    try:

        def reads(path):
            return denial(lambda: ann.request("GET", group + path))

        wait_until("she may", lambda: reads("/gpunodes") == "")
        wait_until("she may", lambda: reads("/namespaces/default/vramhistories") == "")
        assert "cannot list" in reads("/namespaces/kube-system/vramhistories")
        assert "cannot list" in reads("/vramhistories")
        fences.admin.delete(bound)
        wait_until("she may not", lambda: "cannot list" in reads("/gpunodes"))
    finally:
        for thing in made:
            with contextlib.suppress(ApiError):
                fences.admin.delete(thing)


def test_a_history_is_stored_as_it_is_written(fences, crds):
    run = {
        "pod": "embed-29411-8tq5w", "endedAt": "2026-11-22T12:00:00Z", "askedMi": 8192, "gpus": 1,
        "peakMi": 7000, "stops": 0, "seconds": 11520.5, "product": "NVIDIA H100",
    }  # fmt: skip
    history = {
        "apiVersion": names.GROUP_VERSION,
        "kind": names.VRAM_HISTORY_KIND,
        "metadata": {"name": "job-embed", "namespace": "default"},
        "status": {
            "workload": {"kind": "Job", "name": "embed"},
            "summary": {"runs": "20", "asks": "8Gi", "peak": "6.8Gi", "advice": "8Gi"},
            "advice": "largest peak + 15 %",
            "runs": [run] * 20,
        },
    }
    path = "/apis/vramwarden.io/v1alpha1/namespaces/default/vramhistories"
    stored = fences.admin.create(copy.deepcopy(history))
    try:
        assert stored["status"] == history["status"]
        (row,) = as_table(fences).request("GET", path)["rows"]
        assert row["cells"] == ["job-embed", "20", "8Gi", "6.8Gi", "8Gi"]
        history["status"]["runs"].append(run)
        too_many = {**history, "metadata": {"name": "x", "namespace": "default"}}
        assert "must have at most" in denial(lambda: fences.admin.create(too_many))
    finally:
        fences.admin.request("DELETE", f"{path}/job-embed")
