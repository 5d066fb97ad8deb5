"""The agent's command as a user runs it, without a cluster and with an in-memory API server."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.agent.stepped import SHARING, is_verdict
from tests.support import other_programs
from tests.support.cluster_programs import wait_until
from tests.support.scripted_nvml import MEASURED, VRAM, AgentProcess
from webhook.agent.heartbeat import probe
from webhook.core.pod.quantity import MIB, parse_quantity
from webhook.names import DOCUMENTATION_URL_ENV

GPUS = (
    "driver {version}\n"
    "gpu GPU-a total=85899345920 reserved=650000000 name=NVIDIA_A100-SXM4-80GB\n"
    "gpu GPU-b total=42949672960 reserved=650000001 name=NVIDIA_A100-SXM4-40GB\n"
)
NODE = "/api/v1/nodes/n"
DRY = ("--once", "--dry-run")


@pytest.fixture
def agent(tmp_path, library):
    made = AgentProcess(tmp_path, library, "--fence-void")
    made.script(GPUS.format(version="570.86.15"))
    return made


@pytest.fixture
def without_driver(tmp_path):
    return AgentProcess(tmp_path, None)


@pytest.fixture
def cluster(api_server):
    """Return an API server with the node `n`, and the options for it."""
    made = "2020-01-01T00:00:00Z"  # so old that the agent waits for no other allocator
    api_server.put(NODE, {"metadata": {"labels": {"a": "b"}, "creationTimestamp": made}})
    api_server.options = ("--node", "n", "--kubeconfig", api_server.kubeconfig)
    return api_server


def documents(text):
    return list(yaml.safe_load_all(text))


def patched_by(agent):
    """Return the patches of a dry run without a cluster."""
    return documents(agent.run(*DRY).stdout)


def test_a_dry_run_prints_both_patches_where_there_is_no_cluster(agent):
    done = agent.run("--once", "--dry-run")
    assert done.returncode == 0
    metadata, status = documents(done.stdout)
    assert metadata["metadata"]["labels"] == {
        "vramwarden.io/gpu": "true",
        "vramwarden.io/gpu-memory-mib": "81300",
        "vramwarden.io/gpu-memory-free-mib": "81300",
        "vramwarden.io/gpu-memory-free-mib.2": "40340",
        "vramwarden.io/gpu-count": "2",
        "vramwarden.io/gpu-product": "NVIDIA-A100-SXM4-80GB",
        "vramwarden.io/driver-version": "570.86.15",
        "vramwarden.io/enforcement": MEASURED,
        "vramwarden.io/device-names": "uuid",
    }
    gpus = json.loads(metadata["metadata"]["annotations"]["vramwarden.io/gpus"])
    assert [gpu["memory"] for gpu in gpus] == [81300 * 2**20, 40340 * 2**20]
    assert status == {"status": {"capacity": {VRAM: "121640Mi"}, "allocatable": {VRAM: "121640Mi"}}}
    assert "no node is named" in done.stderr
    assert "a node that carries nothing of ours yet" in done.stderr


def test_a_dry_run_prints_only_what_differs_where_the_node_can_be_read(agent, cluster):
    metadata, status = patched_by(agent)
    cluster.put(NODE, metadata)
    done = agent.run(*DRY, *cluster.options)
    assert (done.returncode, documents(done.stdout), done.stderr) == (0, [status], "")
    cluster.put(NODE, metadata | status)
    done = agent.run(*DRY, *cluster.options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "nothing to patch\n")
    assert cluster.sent() == []


def test_once_patches_labels_and_then_capacity_and_says_what(agent, cluster):
    metadata, status = patched_by(agent)
    done = agent.run("--once", "--kubeconfig", cluster.kubeconfig, NODE_NAME="n")
    assert (done.returncode, done.stderr) == (0, "")
    assert [(request.method, request.path) for request in cluster.asked] == [
        ("GET", NODE),
        ("GET", "/apis/resource.k8s.io/v1/resourceslices"),
        ("PATCH", NODE),
        ("PATCH", f"{NODE}/status"),
    ]
    assert f"capacity[{VRAM}]: absent -> 121640Mi" in done.stdout.splitlines()
    labels = {"a": "b", **metadata["metadata"]["labels"]}
    assert cluster.objects[NODE]["metadata"]["labels"] == labels
    assert cluster.objects[NODE]["status"] == status["status"]


@pytest.mark.parametrize(
    ("deny", "said", "asked"),
    [
        (lambda api: api.denied.add(("patch", "nodes")), "nodes is forbidden", "PATCH"),
        (lambda api: api.remove(NODE), 'nodes "n" not found', "GET"),
    ],
    ids=["it may not patch", "there is no such node"],
)
def test_once_fails_with_the_server_s_words(agent, cluster, deny, said, asked):
    deny(cluster)
    done = agent.run("--once", *cluster.options)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert cluster.asked[-1].method == asked


@pytest.mark.parametrize(
    ("options", "inside", "label", "advice"),
    [
        (("--runtime-class=nvidia",), "void", "runtime.nvidia.com", "fence.void"),
        (("--runtime-class=nvidia",), "all", "uuid", "RuntimeClass nvidia"),
        (("--runtime-class=nvidia", "--fence-void"), "all", "uuid", ""),
        ((), "void", "runtime.nvidia.com", "fence.void"),
        (("--runtime-class=",), "all", "uuid", "fence.void"),
        ((), "", "none", "agent.deviceNames"),
        (("--gpu-access=VolumeMounts",), "all", "none", "agent.gpuAccess"),
        (("--gpu-access=Privileged", "--device-names=uuid"), "all", "uuid", ""),
        (("--gpu-access=Privileged", "--device-names="), "void", "none", "agent.deviceNames"),
        (("--fence-void", "--device-names=nvidia.com"), "void", "nvidia.com", ""),
    ],
)
def test_a_dry_run_shows_which_names_pods_get_and_what_to_change(
    options, inside, label, advice, agent
):
    agent.options = options
    done = agent.run("--once", "--dry-run", NVIDIA_VISIBLE_DEVICES=inside)
    metadata, _ = documents(done.stdout)
    assert metadata["metadata"]["labels"]["vramwarden.io/device-names"] == label
    said = [line for line in done.stderr.splitlines() if "GPU" in line]
    assert [advice in line for line in said] == ([True] if advice else [])


def test_a_gpu_that_the_driver_calls_broken_is_shown_as_not_healthy(agent):
    agent.script("gpu GPU-a total=99999999 recovery=4\ngpu GPU-b total=99999999 recovery=0\n")
    metadata, _ = documents(agent.run("--once", "--dry-run").stdout)
    gpus = json.loads(metadata["metadata"]["annotations"]["vramwarden.io/gpus"])
    assert [gpu.get("fault") for gpu in gpus] == ["needs a drain and a reset of the GPU", None]
    assert [gpu.get("healthy") for gpu in gpus] == [False, None]


def test_a_gpu_in_mig_mode_is_skipped_with_a_line(agent):
    agent.script("driver 570.86.15\ngpu GPU-a total=99999999 mig=1\ngpu GPU-b total=99999999\n")
    done = agent.run("--once", "--dry-run")
    assert "skipped: GPU GPU-a: it is in MIG mode" in done.stderr
    assert "GPU-a" not in done.stdout


@pytest.mark.parametrize(
    ("version", "label"), [("570.86.15", MEASURED), ("565.77", "none"), ("535.54", "none")]
)
def test_enforcement_is_promised_only_where_the_driver_can_keep_it(version, label, agent):
    agent.script(GPUS.format(version=version))
    metadata, _ = documents(agent.run("--once", "--dry-run").stdout)
    assert metadata["metadata"]["labels"]["vramwarden.io/enforcement"] == label


def test_a_fixed_amount_needs_no_driver_and_promises_no_enforcement(without_driver):
    done = without_driver.run("--once", "--dry-run", "--vram", "48.0005Gi")
    metadata, status = documents(done.stdout)
    assert metadata["metadata"] == {
        "labels": {
            "vramwarden.io/gpu": "true",
            "vramwarden.io/gpu-memory-mib": "49152",
            "vramwarden.io/enforcement": "none",
        },
        "annotations": {SHARING: "Shared: its GPUs are shared by memory"},
    }
    assert status["status"]["capacity"] == {VRAM: "48Gi"}
    assert done.returncode == 0


def test_where_nothing_can_be_read_it_says_why_and_what_to_do(without_driver):
    done = without_driver.run("--once", "--dry-run")
    assert (done.returncode, done.stdout) == (1, "")
    assert "libnvidia-ml.so.1 cannot be loaded" in done.stderr
    assert done.stderr.endswith("deploy/laptop.md in the documentation\n")
    variable = {DOCUMENTATION_URL_ENV: "https://docs.example/{page}.html"}
    done = without_driver.run("--once", "--dry-run", **variable)
    assert done.stderr.endswith("https://docs.example/deploy/laptop.html\n")


def test_a_scan_by_hand_leads_to_the_page_by_its_url(agent, cluster):
    labels = {"nvidia.com/gpu.deploy.device-plugin": "false"}
    status = {"allocatable": {"nvidia.com/gpu": "2"}}
    cluster.put(NODE, {"metadata": {"labels": labels}, "status": status})
    done = agent.run(*DRY, *cluster.options, "--documentation-url=https://d.example/{page}")
    assert "https://d.example/deploy/take-the-plugin-off\n" in done.stderr


def test_what_was_advertised_is_kept_where_the_driver_is_down(agent, cluster):
    metadata, status = patched_by(agent)
    agent.script("fail * 9\n")
    cluster.put(NODE, metadata)  # without the capacity, as after a reset by the kubelet
    done = agent.run(*DRY, *cluster.options)
    assert (done.returncode, documents(done.stdout)) == (0, [status])
    assert "driver is not loaded" in done.stderr


TYPE = {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"


def test_tags_are_those_of_the_node_as_its_gpus_are(agent, cluster):
    cluster.put(NODE, {"metadata": {"labels": TYPE}})
    done = agent.run(*DRY, "-o", "tags", "--startup-taint", TAINT, *cluster.options)
    assert (done.returncode, done.stderr) == (0, "")
    tags, overlay, pool = documents(done.stdout)
    template = "k8s.io/cluster-autoscaler/node-template"
    labels = {
        "vramwarden.io/gpu": "true",
        "vramwarden.io/gpu-memory-mib": "81300",
        "vramwarden.io/enforcement": MEASURED,
        "vramwarden.io/device-names": "uuid",
    }
    of_labels = {f"{template}/label/{key}": value for key, value in labels.items()}
    assert tags == {
        f"{template}/resources/vramwarden.io/vram": "121640Mi",
        **of_labels,
        f"{template}/taint/{TAINT}": "true:NoSchedule",
    }
    assert overlay["metadata"] == {"name": "vramwarden-p4d.24xlarge"}
    assert overlay["spec"]["capacity"] == {VRAM: "121640Mi"}
    assert pool["spec"]["template"]["metadata"]["labels"] == labels
    assert "replaces\n# the startup taints" in done.stdout
    assert f"--register-with-taints={TAINT}=true:NoSchedule" in done.stdout
    assert cluster.sent() == []


def test_tags_of_an_advertised_node_are_known_without_its_driver(agent, without_driver, cluster):
    metadata, status = patched_by(agent)
    cluster.put(NODE, metadata | status)
    done = without_driver.run(*DRY, "-o", "tags", *cluster.options)
    tags, overlay, pool = documents(done.stdout)
    assert done.returncode == 0
    assert tags["k8s.io/cluster-autoscaler/node-template/resources/vramwarden.io/vram"] == (
        "121640Mi"
    )
    assert overlay["spec"]["requirements"][0]["values"] == ["INSTANCE-TYPE"]
    assert "# INSTANCE-TYPE: the node has no label node.kubernetes.io/instance-type" in done.stdout
    assert set(pool["spec"]["template"]) == {"metadata"}
    assert "the startup taints" not in done.stdout


def test_tags_of_a_node_without_gpus_are_none(agent):
    agent.script("driver 570.86.15\n")
    done = agent.run("--once", "--dry-run", "-o", "tags")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no GPU to share is known of this node" in done.stderr


PLUGIN = {"status": {"allocatable": {"nvidia.com/gpu": "8"}}}


@pytest.mark.parametrize("inside", ["all", "GPU-a", None])
def test_once_leaves_a_node_with_the_plugin_alone_and_says_the_cure_alone(
    agent, without_driver, cluster, inside
):
    """It needs no driver for this, gives no advice about sharing, and writes its verdict."""
    cluster.put(NODE, PLUGIN)
    environment = {"NVIDIA_VISIBLE_DEVICES": inside} if inside else {}
    done = (agent if inside else without_driver).run("--once", *cluster.options, **environment)
    ((_, _, sent),) = cluster.sent()
    assert (done.returncode, list(sent["metadata"])) == (0, ["annotations"])
    *driver, sharing = done.stderr.splitlines()
    assert sharing.startswith("sharing: a device plugin offers the GPUs whole")
    assert sharing.removeprefix("sharing") in sent["metadata"]["annotations"][SHARING]
    assert "nvidia.com/gpu.deploy.device-plugin=false" in sharing
    assert bool(driver) == (not inside)


def test_once_withdraws_what_nobody_has_and_keeps_what_nobody_can_count(agent, cluster):
    metadata, status = patched_by(agent)
    status["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    cluster.put(NODE, metadata | status)
    done = agent.run(*DRY, *cluster.options)
    (held,) = documents(done.stdout)
    assert (done.returncode, list(held["metadata"])) == (0, ["annotations"])
    assert "pods may have VRAM here" in held["metadata"]["annotations"][SHARING]
    assert "pods may have VRAM here" in done.stderr
    done = agent.run(*DRY, *cluster.options, "--namespace", "vramwarden")  # there it has no list
    metadata, status = documents(done.stdout)
    assert set(metadata["metadata"]["labels"].values()) == {None}
    assert status["status"]["capacity"] == {VRAM: "0"}


def test_once_waits_for_gpus_that_are_in_use(agent):
    agent.script("driver 570.86.15\ngpu GPU-a total=85899345920 used=1073741824 name=H200\n")
    done = agent.run("--once", "--dry-run")
    (verdict,) = documents(done.stdout)
    assert verdict["metadata"]["annotations"][SHARING].startswith("InUse: ")
    assert "drain the whole-GPU pods first" in done.stderr


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--node", "n", "-o", "tags"), "add --once --dry-run"),
        (("--once", "--node", "n", "-o", "tags"), "add --once --dry-run"),
        (("--node", "n", "--startup-taint", "a/b/c"), "no key of a taint"),
        (("--node", "n", "--startup-taint", "a=b:NoSchedule"), "write it alone"),
        ((), "NODE_NAME"),
        (("--once",), "NODE_NAME"),
        (("--dry-run",), "NODE_NAME"),
        (("--node", "n", "--interval", "0s"), "between 1s and 3600s"),
        (("--node", "n", "--interval", "soon"), "write e.g."),
        (("--node", "n", "--lost-after", "-1s"), "--lost-after"),
        (("--node", "n", "--vram", "48GB"), "use 48G or 48Gi"),
        (("--node", "n", "--vram", "48"), "less than 1Mi"),
        (("--node", "n", "--vram", "-1Gi"), "less than 1Mi"),
        (("--node", "n", "--gpu-access", "environment"), "'Environment', 'VolumeMounts'"),
        (("--node", "n", "--device-names", "nvidia.com/gpu"), "'runtime.nvidia.com'"),
    ],
)
def test_wrong_usage_says_what_is_right(options, what, without_driver):
    done = without_driver.run(*options)
    assert done.returncode == 2
    assert what in done.stderr


def test_no_api_server_at_all_ends_the_agent_with_a_sentence(agent, tmp_path):
    done = agent.run("--node", "n", "--kubeconfig", tmp_path / "none")
    assert done.returncode == 1
    (event,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (event["msg"], event["level"]) == ("no API server", "error")


def test_it_starts_without_an_api_server_retries_and_stops_on_sigterm(agent, cluster):
    cluster.fails(".*", (503, {"message": "starting"}), forever=True)
    agent.options = cluster.options
    with agent:
        agent.wait_for("the node cannot be watched; retrying")
        cluster.recovers()
        agent.wait_for("node patched")
        assert agent.stop() == 0
    assert agent.events()[-1]["msg"] == "stopped"


BEFORE_DRIVER = """
from webhook.core.node import access
access.LOADED_AFTER_S = 2.0
from webhook.cli.main import main
main()
"""


def readiness(agent):
    return probe("ready", str(agent.run_folder))


def test_an_agent_that_was_there_before_the_driver_ends_once_the_kernel_has_one(
    agent, cluster, tmp_path
):
    """Nodes of autoscalers start like this. The wait for the kernel is shortened to 2 s."""
    options = (*cluster.options, "--interval=1s")
    early = AgentProcess(tmp_path, None, *options)
    early.program = (sys.executable, "-c", BEFORE_DRIVER, "agent")
    with early:
        early.wait_for("no GPU can be read on this node; waiting, and leaving the node alone")
        wait_until("the reason", lambda: "no NVIDIA driver yet" in readiness(early))
        assert "libnvidia-ml.so.1 cannot be loaded" in readiness(early)
        (tmp_path / "kernel-driver").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module\n")
        wait_until("the cure", lambda: "runtimeClassName" in readiness(early))
        assert early.process.wait(60) == 75
    assert early.events()[-1]["msg"] == "a new container is needed"
    assert "agent.runtimeClassName" in early.events()[-1]["why"]
    assert all(is_verdict(body) for *_, body in cluster.sent())
    agent.options = options
    with agent:  # the new container has the library
        agent.wait_for("node patched")
        wait_until("ready", lambda: readiness(agent) == "")


@pytest.mark.parametrize(
    ("machine", "gpus", "mib", "product", "enforcement"),
    [
        ("a100", 8, 40377, "NVIDIA-A100-SXM4-40GB", "none"),
        ("b200", 8, 195584, "NVIDIA-B200", "none"),
        ("gb200", 8, 195584, "NVIDIA-GB200", MEASURED),
        ("gb300", 8, 293376, "NVIDIA-GB300-NVL", MEASURED),
        ("h100", 8, 80896, "NVIDIA-H100-80GB-HBM3", "none"),
        ("l40s", 8, 48640, "NVIDIA-L40S", "none"),
        ("t4", 4, 16084, "NVIDIA-T4", "none"),
    ],
)
def test_its_figures_of_the_machines_that_nvidias_own_mock_plays(
    tmp_path, machine, gpus, mib, product, enforcement
):
    if reason := other_programs.why_not("NVIDIA_MOCK"):
        pytest.skip(f"needs {reason}")
    library = Path(str(other_programs.find("NVIDIA_MOCK", other_programs.LIBRARY)))
    (tmp_path / other_programs.LIBRARY).symlink_to(library)
    played = {"MOCK_NVML_CONFIG": str(other_programs.profile(machine))}
    done = AgentProcess(tmp_path, None).run("--once", "--dry-run", **played)
    metadata, status = documents(done.stdout)
    labels = metadata["metadata"]["labels"]
    told = ("gpu-count", "gpu-memory-mib", "gpu-memory-free-mib", "gpu-product", "enforcement")
    assert {name: labels[f"vramwarden.io/{name}"] for name in told} == {
        "gpu-count": str(gpus),
        "gpu-memory-mib": str(mib),
        "gpu-memory-free-mib": str(mib),
        "gpu-product": product,
        "enforcement": enforcement,
    }
    assert {
        name: parse_quantity(amount[VRAM]) for name, amount in status["status"].items()
    } == dict.fromkeys(("capacity", "allocatable"), gpus * mib * MIB)
