"""The command as a user runs it, without a cluster, and with an API server of our own."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.core.nvidia.test_xids import OF_PROGRAMS
from tests.support import strangers
from tests.support.agents import MEASURED, VRAM, AgentProcess, wait_until
from webhook.agent.heartbeat import probe
from webhook.core.pod.quantity import MIB, parse_quantity

GPUS = (
    "driver {version}\n"
    "gpu GPU-a total=85899345920 reserved=650000000 name=NVIDIA_A100-SXM4-80GB\n"
    "gpu GPU-b total=42949672960 reserved=650000001 name=NVIDIA_A100-SXM4-40GB\n"
)
NODE = {"metadata": {"name": "n", "resourceVersion": "1", "labels": {"a": "b"}}, "status": {}}


@pytest.fixture
def agent(tmp_path, library):
    made = AgentProcess(tmp_path, library, "--runtime-class=nvidia")
    made.script(GPUS.format(version="570.86.15"))
    return made


@pytest.fixture
def without_driver(tmp_path):
    return AgentProcess(tmp_path, None)


def documents(text):
    return list(yaml.safe_load_all(text))


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


def test_a_dry_run_prints_only_what_differs_where_the_node_can_be_read(agent, api_server):
    options = ("--once", "--dry-run", "--node", "n", "--kubeconfig", api_server.kubeconfig)
    metadata, status = documents(agent.run("--once", "--dry-run").stdout)
    api_server.answers = [(200, {**NODE, **metadata})]
    done = agent.run(*options)
    assert (done.returncode, documents(done.stdout), done.stderr) == (0, [status], "")
    api_server.answers = [(200, {**NODE, **metadata, **status})]
    done = agent.run(*options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "nothing to patch\n")
    assert {method for method, *_ in api_server.asked} == {"GET"}


def test_once_patches_labels_and_then_capacity_and_says_what(agent, api_server):
    api_server.answers = [(200, NODE)]
    done = agent.run("--once", "--kubeconfig", api_server.kubeconfig, NODE_NAME="n")
    assert (done.returncode, done.stderr) == (0, "")
    asked = [(method, path.partition("?")[0]) for method, path, *_ in api_server.asked]
    assert asked == [
        ("GET", "/api/v1/nodes/n"),
        ("GET", "/apis/resource.k8s.io/v1/resourceslices"),
        ("PATCH", "/api/v1/nodes/n"),
        ("PATCH", "/api/v1/nodes/n/status"),
    ]
    assert f"capacity[{VRAM}]: absent -> 121640Mi" in done.stdout.splitlines()


def test_once_fails_with_the_server_s_words_where_it_may_not_patch(agent, api_server):
    api_server.answers = [(200, NODE), (403, {"message": "nodes is forbidden"})]
    done = agent.run("--once", "--kubeconfig", api_server.kubeconfig, "--node", "n")
    assert done.returncode == 1
    assert "nodes is forbidden" in done.stderr
    assert done.stdout == ""


def test_once_patches_nothing_where_the_node_cannot_be_read(agent, api_server):
    api_server.answers = [(404, {"message": 'nodes "n" not found'}), (200, NODE)]
    done = agent.run("--once", "--kubeconfig", api_server.kubeconfig, "--node", "n")
    assert (done.returncode, done.stdout) == (1, "")
    assert 'nodes "n" not found' in done.stderr
    assert len(api_server.asked) == 1


@pytest.mark.parametrize(
    ("options", "inside", "label", "advice"),
    [
        (("--runtime-class=nvidia",), "void", "runtime.nvidia.com", ""),
        (("--runtime-class=nvidia",), "all", "uuid", ""),
        ((), "void", "runtime.nvidia.com", "fence.void"),
        (("--runtime-class=",), "all", "uuid", "fence.void"),
        ((), "", "none", "agent.deviceNames"),
        (("--gpu-access=VolumeMounts",), "all", "none", "agent.gpuAccess"),
        (("--gpu-access=Privileged", "--device-names=uuid"), "all", "uuid", ""),
        (("--gpu-access=Privileged", "--device-names="), "void", "none", "agent.deviceNames"),
        (("--runtime-class=a", "--device-names=nvidia.com"), "void", "nvidia.com", ""),
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


def test_a_gpu_in_mig_mode_is_skipped_with_a_line(agent):
    agent.script("driver 570.86.15\ngpu GPU-a total=99999999 mig=1\ngpu GPU-b total=99999999\n")
    done = agent.run("--once", "--dry-run")
    assert "skipped: GPU GPU-a: it is in MIG mode" in done.stderr
    assert "GPU-a" not in done.stdout


@pytest.mark.parametrize(
    ("version", "label"), [("565.57.01", MEASURED), ("560.35.03", "none"), ("535.54", "none")]
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
        }
    }
    assert status["status"]["capacity"] == {VRAM: "48Gi"}
    assert done.returncode == 0


def test_where_nothing_can_be_read_it_says_why_and_what_to_do(without_driver):
    done = without_driver.run("--once", "--dry-run")
    assert (done.returncode, done.stdout) == (1, "")
    assert "libnvidia-ml.so.1 cannot be loaded" in done.stderr
    assert "--vram" in done.stderr


def test_what_was_advertised_is_kept_where_the_driver_is_down(agent, api_server):
    options = ("--once", "--dry-run", "--node", "n", "--kubeconfig", api_server.kubeconfig)
    metadata, status = documents(agent.run("--once", "--dry-run").stdout)
    agent.script("fail * 9\n")
    api_server.answers = [(200, {**NODE, **metadata})]  # and the capacity was zeroed
    done = agent.run(*options)
    assert (done.returncode, documents(done.stdout)) == (0, [status])
    assert "driver is not loaded" in done.stderr


TYPE = {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"


def test_tags_are_those_of_the_node_as_its_gpus_are(agent, api_server):
    api_server.answers = [(200, {**NODE, "metadata": {**NODE["metadata"], "labels": TYPE}})]
    options = ("--once", "--dry-run", "-o", "tags", "--startup-taint", TAINT)
    done = agent.run(*options, "--node", "n", "--kubeconfig", api_server.kubeconfig)
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
    assert {method for method, *_ in api_server.asked} == {"GET"}


def test_tags_of_an_advertised_node_are_known_without_its_driver(agent, without_driver, api_server):
    metadata, status = documents(agent.run("--once", "--dry-run").stdout)
    api_server.answers = [(200, {**NODE, **metadata, **status})]
    options = ("--once", "--dry-run", "-o", "tags", "--kubeconfig", api_server.kubeconfig)
    done = without_driver.run(*options, "--node", "n")
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


PLUGIN = {"allocatable": {"nvidia.com/gpu": "8"}}


def test_once_leaves_a_node_with_the_plugin_alone_and_says_the_cure(agent, api_server):
    api_server.answers = [(200, {**NODE, "status": PLUGIN})]
    done = agent.run("--once", "--kubeconfig", api_server.kubeconfig, "--node", "n")
    assert (done.returncode, done.stdout) == (0, "")
    assert "sharing: the GPUs of this node are not shared by memory" in done.stderr
    assert "nvidia.com/gpu.deploy.device-plugin=false" in done.stderr
    assert {method for method, *_ in api_server.asked} == {"GET"}


@pytest.mark.parametrize("inside", ["all", "GPU-a"])
def test_once_gives_no_advice_on_a_node_that_shares_nothing(agent, api_server, inside):
    api_server.answers = [(200, {**NODE, "status": PLUGIN})]
    options = ("--once", "--kubeconfig", api_server.kubeconfig, "--node", "n")
    done = agent.run(*options, NVIDIA_VISIBLE_DEVICES=inside)
    assert (done.returncode, done.stdout) == (0, "")
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == [
        "sharing",
        "nothing to patch",
    ]


def test_once_needs_no_driver_where_nothing_is_shared(without_driver, api_server):
    api_server.answers = [(200, {**NODE, "status": PLUGIN})]
    done = without_driver.run("--once", "--kubeconfig", api_server.kubeconfig, "--node", "n")
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing to patch" in done.stderr


def test_once_withdraws_what_nobody_has_and_keeps_what_nobody_can_count(agent, api_server):
    metadata, status = documents(agent.run("--once", "--dry-run").stdout)
    amounts = {part: {**status["status"][part]} for part in status["status"]}
    amounts["allocatable"]["nvidia.com/gpu"] = "8"
    node = {**NODE, **metadata, "status": amounts}
    options = ("--once", "--dry-run", "--node", "n", "--kubeconfig", api_server.kubeconfig)
    api_server.answers = [(200, node)]
    done = agent.run(*options)
    (held,) = documents(done.stdout)
    assert (done.returncode, list(held["metadata"])) == (0, ["annotations"])
    assert "pods may have VRAM here" in held["metadata"]["annotations"]["vramwarden.io/held"]
    assert "pods may have VRAM here" in done.stderr
    api_server.answers = [(200, node), (404, {"message": "no such list"})]
    done = agent.run(*options, "--namespace", "vramwarden")
    metadata, status = documents(done.stdout)
    assert set(metadata["metadata"]["labels"].values()) == {None}
    assert status["status"]["capacity"] == {VRAM: "0"}


def test_once_waits_for_gpus_that_are_in_use(agent):
    agent.script("driver 570.86.15\ngpu GPU-a total=85899345920 used=1073741824 name=H200\n")
    done = agent.run("--once", "--dry-run")
    assert (done.returncode, done.stdout) == (0, "")
    assert "sharing: drain the whole-GPU pods first" in done.stderr


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


def test_it_starts_without_an_api_server_retries_and_stops_on_sigterm(agent, tmp_path, api_server):
    api_server.answers = [(503, {"message": "starting"})]
    agent.options = ("--node", "n", "--kubeconfig", api_server.kubeconfig)
    with agent:
        agent.wait_for("the node cannot be watched; retrying")
        api_server.answers = [(200, NODE)]
        agent.wait_for("node patched")
        code, took_s = agent.stop()
    assert code == 0
    assert took_s < 5
    assert agent.events()[-1]["msg"] == "stopped"


def test_of_all_xids_only_those_of_a_broken_gpu_switch_one_off(agent, api_server, tmp_path):
    """The whole way, from the driver's library to the patch of the node."""
    api_server.answers = [(200, NODE)]
    agent.options += ("--node", "n", "--kubeconfig", api_server.kubeconfig)
    calls = tmp_path / "calls"
    calls.touch()
    agent.environment["NVML_STUB_LOG"] = str(calls)
    with agent:
        wait_until("the watch", lambda: "nvmlEventSetWait" in calls.read_text(), timeout=60)
        caused = "".join(f"GPU-a {xid}\n" for xid in sorted(OF_PROGRAMS))
        (tmp_path / "xids").write_text(f"{caused}? 79\nGPU-b 79\n")
        event = agent.wait_for("a GPU is not healthy; it gets no further pod")
        assert (event["gpu"], event["why"]) == ("GPU-b", "Xid 79: it has fallen off the bus")
        wait_until(
            "a patch", lambda: {"GPU-a": None, "GPU-b": 79} in xids_of(api_server), timeout=20
        )
    assert xids_of(api_server)[0] == {"GPU-a": None, "GPU-b": None}
    assert {found["GPU-a"] for found in xids_of(api_server)} == {None}


def xids_of(api_server):
    """Return, for each patch that says it, which GPU has which Xid."""
    parts = [
        (body or {}).get("metadata", {}).get("annotations", {}) for *_, body in api_server.asked
    ]
    listed = [
        json.loads(part["vramwarden.io/gpus"]) for part in parts if "vramwarden.io/gpus" in part
    ]
    return [{gpu["uuid"]: gpu.get("xid") for gpu in gpus} for gpus in listed]


BEFORE_DRIVER = """
from webhook.core.node import driver
driver.LOADED_AFTER_S = 2.0
from webhook.cli.main import main
main()
"""


def readiness(agent):
    return probe("ready", str(agent.run_folder))


def test_an_agent_that_was_there_before_the_driver_ends_once_the_kernel_has_one(
    agent, api_server, tmp_path
):
    """As on a node that an autoscaler made; the patience with the kernel is shortened to 2 s."""
    api_server.answers = [(200, NODE)]
    options = ("--node", "n", "--kubeconfig", api_server.kubeconfig, "--interval=1s")
    early = AgentProcess(tmp_path, None, *options)
    early.program = (sys.executable, "-c", BEFORE_DRIVER, "agent")
    with early:
        early.wait_for("no GPU can be read on this node; waiting, and leaving the node alone")
        wait_until("the reason", lambda: "no NVIDIA driver yet" in readiness(early), timeout=60)
        assert "libnvidia-ml.so.1 cannot be loaded" in readiness(early)
        (tmp_path / "kernel-driver").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module\n")
        wait_until("the cure", lambda: "runtimeClassName" in readiness(early), timeout=60)
        assert early.process.wait(60) == 75
    assert early.events()[-1]["msg"] == "a new container is needed"
    assert "agent.runtimeClassName" in early.events()[-1]["why"]
    assert {method for method, *_ in api_server.asked} == {"GET"}
    agent.options = options
    with agent:  # the new container, with the library
        agent.wait_for("node patched")
        assert readiness(agent) == ""


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
    if reason := strangers.why_not("NVIDIA_MOCK"):
        pytest.skip(f"needs {reason}")
    library = Path(str(strangers.find("NVIDIA_MOCK", strangers.LIBRARY)))
    (tmp_path / strangers.LIBRARY).symlink_to(library)
    played = {"MOCK_NVML_CONFIG": str(strangers.profile(machine))}
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
