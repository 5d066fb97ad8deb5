"""One card as a user sees it, from the annotation until the pod's memory is free again.

The stories use the stub or, with E2E_DRIVER=host, this machine's GPU; tests/gpu/README.md describes
that. Each story adds its measurements to the table at the end.
"""

from __future__ import annotations

import importlib.util
import json
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.asking import ask, diagnose
from tests.e2e.node import NVIDIA_BY_DEFAULT
from tests.e2e.nvidia_driver import ON_HOST
from tests.e2e.pods import GIB, MIB, processes_of, statuses
from tests.e2e.programs import LINES, GpuProgram, gpu_pod, python_pod, started
from tests.e2e.test_08_outage import GATE, at_gate, gpu_of, remove_gate, scale
from tests.e2e.test_09_placement import gpus_of_node
from tests.gpu.test_4_frameworks import PYTORCH
from tests.support.control_planes import ApiError, wait_until
from tests.support.measurement_table import answer
from webhook.core.pod.quantity import format_bytes

POLICY = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: one-card}
spec:
  rules:
  - name: one-card-by-sentry
    match: {namespaceLabels: {one-card: sentry}}
    enforcement: {by: Sentry}
  - name: one-card-pytorch
    match: {namespaceLabels: {one-card: pytorch}}
    programs: [pytorch]
"""
SMALL, LARGE, CAP = f"alloc {GIB // 2}", f"alloc {4 * GIB}", "2Gi"
SCAN_S = 1.5
"""Time longer than the sentry's interval between two scans, in seconds."""
SLACK = 64 * MIB
"""Memory that the driver may keep after a program has ended, in bytes."""
QUIET_S = 12.0
"""Maximum time to stop an excess, in seconds."""
HOLDS = "\nprint('full', flush=True)\nimport time; time.sleep(600)\n"


@pytest.fixture(scope="module")
def card(gpu_node, release, values, agent, system):
    """Install the rules for these stories on a node whose GPUs are shared."""
    version = agent.labels()["vramwarden.io/driver-version"]
    if version != gpu_node.driver.cards()[0].driver:  # an earlier story used another driver
        agent.replace()
        system.wait("VRAM advertised", agent.advertised)
    began = time.monotonic()
    release.install(values | {"policies": {"files": {"07-one-card.yaml": POLICY}}})
    print(f"helm upgrade --wait, with rules: {time.monotonic() - began:.1f} s")
    yield gpu_node
    release.install(values)


@pytest.fixture(scope="module")
def tenant(card, make_team):
    """Yield a team whose pods have a sidecar. Delete the pods at the end."""
    found = make_team()
    yield found
    for pod in found.pods():
        found.delete_pod(pod["metadata"]["name"])


@pytest.fixture(scope="module")
def by_sentry(card, make_team):
    """Return a team whose caps the sentry enforces, when the replicas know the rule."""
    found = make_team(**{"one-card": "sentry"})
    wait_for_rule(found, lambda spec: "initContainers" not in spec)
    return found


def wait_for_rule(team, applies):
    """Wait until a new pod's spec shows that the team's rule is in effect."""

    def is_in_force():
        try:
            return applies(team.create(gpu_pod("asks", CAP), dry_run=True)["spec"])
        except ApiError:  # the fence may have the previous rules and deny the pod
            return False

    team.wait("the rule", is_in_force)


def annotations_of(found):
    return found["metadata"].get("annotations", {})


def said_at(team, name, number):
    """Return the Unix time at which a container wrote a line."""
    line = team.log(name, timestamps=True).splitlines()[number]
    return datetime.fromisoformat(line.split()[0]).timestamp()


def processes(team, name):
    """Return the PIDs of a pod's program on this machine."""
    return processes_of(team.pod(name)["metadata"]["uid"], b"cuInit")


def grow(team, name):
    """Make a pod's program exceed its cap; return the seconds until its process ended."""
    assert processes(team, name)
    team.run(name, "sh", "-c", f"echo {LARGE} >> {LINES}")
    began_s = time.monotonic()
    wait_until("its process ended", lambda: not processes(team, name), timeout=40)
    return time.monotonic() - began_s


def remove(team, name):
    """Delete a pod and wait until its program has ended."""
    uid = team.pod(name)["metadata"]["uid"]
    team.delete_pod(name, grace=1)
    wait_until("its process ended", lambda: not processes_of(uid, b"cuInit"), timeout=40)


def used_bytes(sentry, metric, **labels):
    """Return the sum of the sentry's values of a metric with these labels."""
    address = sentry.pod()["status"]["podIP"]
    samples = sentry.metrics_at(address)[metric]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def device_used(sentry):
    return used_bytes(sentry, "vramwarden_gpu_memory_used_bytes")


def settled(sentry):
    """Return the bytes in use on all GPUs when two consecutive figures are equal."""
    found = [device_used(sentry)]

    def same():
        time.sleep(SCAN_S)
        found.append(device_used(sentry))
        return found[-1] == found[-2]

    wait_until("what ended before to be gone", same, timeout=20)
    return found[-1]


def shown_by_top(team, name):
    """Return the bytes that `top` shows for a pod, or 0 if it shows none yet."""
    said = ask(team.cluster.kubeconfig, "top", "pods", "-n", team.namespace, "-o", "json")
    found = [pod for pod in json.loads(said)["pods"] if pod["name"] == name]
    return found[0].get("usedBytes") or 0 if found else 0


def test_the_agent_shows_what_nvidia_smi_shows(card, agent):
    gpus, cards = gpus_of_node(card), card.driver.cards()
    assert set(gpus) == {found_card.uuid for found_card in cards}
    labels = agent.labels()
    assert labels["vramwarden.io/gpu-count"] == str(len(cards))
    assert labels["vramwarden.io/driver-version"] == cards[0].driver
    for found_card in cards:
        usable = gpus[found_card.uuid]["memory"]
        assert gpus[found_card.uuid]["total"] >> 20 == found_card.total_mib
        assert 0.95 < usable / gpus[found_card.uuid]["total"] <= 1
        answer(
            f"{found_card.product}, driver {found_card.driver}: total, usable",
            f"{found_card.total_mib}Mi, {usable >> 20}Mi",
        )
    answer(
        "labels: names of devices, enforcement",
        f"{labels['vramwarden.io/device-names']}, {labels['vramwarden.io/enforcement']}",
    )
    assert agent.advertised() == format_bytes(sum(gpu["memory"] for gpu in gpus.values()))


def test_from_the_annotation_to_the_first_allocation(card, tenant):
    began_s = time.time()
    tenant.create(gpu_pod("first", "8Gi", SMALL))
    steps = {"the API server's answer": time.time()}
    checks = {
        "bound": lambda found: found["spec"].get("nodeName"),
        "its GPU is known": lambda found: annotations_of(found).get("vramwarden.io/gpu"),
        "the sidecar guards": lambda found: statuses(found)["vram-enforcer"]["started"],
        "the program's container runs": lambda found: statuses(found)["main"]["started"],
    }

    def all_seen():
        found = tenant.pod("first")
        for what, check in checks.items():
            try:
                if what not in steps and check(found):
                    steps[what] = time.time()
            except KeyError:  # the pod has no such status yet
                return False
        return len(steps) > len(checks)

    tenant.wait("the program's container", all_seen)
    program = GpuProgram(tenant, "first", 1)
    assert program.answers() == ["ok", "ok"]
    steps["a context"], steps["512Mi allocated"] = (said_at(tenant, "first", n) for n in (0, 1))
    seconds = [f"{what} {at_s - began_s:.2f} s" for what, at_s in steps.items()]
    answer("from creation to", ", ".join(seconds))


def test_it_sees_one_card_and_its_variables(card, tenant):
    found = tenant.wait_ready("first")
    uuid, names = (
        annotations_of(found)[f"vramwarden.io/{key}"] for key in ("gpu", "visible-devices")
    )
    (pid,) = processes(tenant, "first")
    written = Path(f"/proc/{pid}/environ").read_text().split("\0")
    variables = dict(item.partition("=")[::2] for item in written)
    nodes = tenant.run("first", "ls", "/dev").split()
    cards = [node for node in nodes if node.startswith("nvidia") and node[6:].isdigit()]
    assert variables["VRAMWARDEN_GPU_MEMORY_MIB"] == "8192"
    total = gpus_of_node(card)[uuid]["total"]
    fraction = float(variables["VRAMWARDEN_GPU_MEMORY_FRACTION"])
    assert 0 <= (8192 - 900) * MIB / total - fraction < 0.0001
    # With the stub, the stand-in for NVIDIA's runtime adds no device nodes.
    assert len(cards) == (1 if NVIDIA_BY_DEFAULT or ON_HOST else 0)
    answer("its device nodes", " ".join(node for node in nodes if node.startswith("nvidia")) or "-")
    seen = variables["NVIDIA_VISIBLE_DEVICES"]
    answer("NVIDIA_VISIBLE_DEVICES: asked for, seen", f"{names}, {seen}".replace(uuid, "UUID"))
    answer("VRAMWARDEN_GPU_MEMORY_FRACTION at 8Gi", fraction)
    tenant.delete_pod("first")


@pytest.fixture(scope="module")
def neighbor(tenant):
    """Return a program that stays within its cap in all later stories."""
    program = started(tenant, gpu_pod("neighbor", CAP, f"alloc {GIB}"), 1)
    assert program.answers() == ["ok", "ok"]
    return program


def untouched(neighbor, sentry):
    """Assert that a program still has its memory and can write to it."""
    assert neighbor.does(f"write {GIB}") == ["ok"]
    of_pod = {"namespace": neighbor.team.namespace, "pod": neighbor.name}

    def holds():
        return used_bytes(sentry, "vramwarden_pod_memory_used_bytes", **of_pod) >= GIB

    wait_until("the sentry's figure of it", holds, timeout=30)  # the sentry has no figures at first
    found = statuses(neighbor.team.pod(neighbor.name))
    assert {item["restartCount"] for item in found.values()} == {0}
    assert "over the VRAM cap" not in neighbor.team.log(neighbor.name, "vram-enforcer")


def test_the_sidecar_stops_what_exceeds_its_cap(tenant, neighbor, sentry):
    started(tenant, gpu_pod("over", CAP, SMALL, restartPolicy="Never"), 1)
    took_s = grow(tenant, "over")
    ended = tenant.wait_ended("over")
    answer("by Sidecar: excess to the program's end", f"{took_s:.2f} s, code {ended['exitCode']}")
    assert ended["exitCode"] == 143
    assert "over the VRAM cap" in tenant.log("over", "vram-enforcer")
    untouched(neighbor, sentry)
    tenant.delete_pod("over")


def test_the_sentry_stops_what_exceeds_its_cap(by_sentry, neighbor, sentry):
    before = settled(sentry)
    started(by_sentry, gpu_pod("over", CAP, SMALL, restartPolicy="Never"), 1)
    took_s = grow(by_sentry, "over")
    ended = by_sentry.wait_ended("over")
    assert ended["exitCode"] == 137
    answer("by Sentry: excess to the program's end", f"{took_s:.2f} s")
    wait_until("its memory given back", lambda: device_used(sentry) <= before + SLACK, timeout=30)
    untouched(neighbor, sentry)
    by_sentry.delete_pod("over")


def test_the_sentry_stops_a_pod_whose_sidecar_was_stopped(card, tenant, neighbor, sentry):
    started(tenant, gpu_pod("alone", CAP, SMALL, restartPolicy="Never"), 1)
    sidecar = statuses(tenant.pod("alone"))["vram-enforcer"]["containerID"]
    pid, _ = card.process_of(sidecar)
    card.run("kill", "-STOP", str(pid))
    took_s = grow(tenant, "alone")
    ended = tenant.wait_ended("alone")
    assert ended["exitCode"] == 137
    answer("its sidecar stopped by SIGSTOP: excess to the program's end", f"{took_s:.2f} s")
    untouched(neighbor, sentry)
    tenant.delete_pod("alone")


@pytest.mark.parametrize("memory", ["4Gi", "8Gi"])
def test_a_framework_with_the_fraction_stays_within_its_cap(memory, sentry, make_team):
    """The program is PyTorch if installed, else one that takes all of the fraction."""
    team = make_team(**{"one-card": "pytorch"})
    wait_for_rule(team, lambda spec: "PYTORCH_ALLOC_CONF" in str(spec["containers"]))
    torch = importlib.util.find_spec("torch")
    if torch is None:
        made = gpu_pod("framework", memory, "fill", restartPolicy="Never")
    else:
        packages = str(Path(torch.origin).parents[1])
        variables = {"PYTHONPATH": packages, "HOME": "/tmp", "USER": "user"}  # noqa: S108 - a folder in a container
        main = {
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "volumeMounts": [{"name": "torch", "mountPath": packages, "readOnly": True}],
        }
        volumes = [{"name": "torch", "hostPath": {"path": packages}}]
        command = ["python3", "-c", PYTORCH + HOLDS]
        made = python_pod(
            "framework", memory, command, main=main, volumes=volumes, restartPolicy="Never"
        )
    team.create(made)
    last = ["ok", "ok"] if torch is None else ["full"]

    def has_all():
        state = statuses(team.pod("framework")).get("main", {}).get("state", {})
        said = team.log("framework") if "waiting" not in state and state else ""
        assert "terminated" not in state, said
        return said.splitlines()[-len(last) :] == last

    team.wait("it has all that it gets", has_all)
    time.sleep(QUIET_S)
    of_pod = {"namespace": team.namespace, "pod": "framework"}
    used = used_bytes(sentry, "vramwarden_pod_memory_peak_bytes", **of_pod)
    named = "PyTorch" if torch else "our program"
    answer(f"{named} with a cap of {memory}: holds when it has all", f"{used / MIB:.0f}Mi")
    assert {status["restartCount"] for status in statuses(team.pod("framework")).values()} == {0}
    assert 0 < used <= int(memory[0]) * GIB
    remove(team, "framework")


def test_top_explain_and_check_agree(card, tenant, neighbor):
    other = started(tenant, gpu_pod("other", "3Gi", f"alloc {2 * GIB}"), 1)
    assert other.answers()[-1] == "ok"
    began_s = time.monotonic()
    tenant.wait(
        "figures of both", lambda: min(shown_by_top(tenant, n) for n in ("neighbor", "other"))
    )
    diagnose(card.kubeconfig, "other", tenant.namespace)
    answer(
        "figures of a new pod, and all commands agree after", f"{time.monotonic() - began_s:.0f} s"
    )
    print(ask(card.kubeconfig, "top"))
    for name, held in (("neighbor", GIB), ("other", 2 * GIB)):
        used = shown_by_top(tenant, name)
        answer(f"{held / MIB:.0f}Mi allocated: top shows", f"{used / MIB:.0f}Mi")
        assert held <= used < held + 900 * MIB
    remove(tenant, "other")


def test_a_pod_bound_without_a_replica_gets_its_gpu_later(card, tenant, system):
    tenant.create(gpu_pod("late", CAP, SMALL, schedulingGates=GATE))
    scale(system, 0)
    try:
        remove_gate(tenant, "late")
        tenant.wait("it waits at the gate", lambda: at_gate(tenant, "late", "vram-enforcer"))
        assert gpu_of(tenant, "late") == ""
    finally:
        scale(system, 2)
    began_s = time.monotonic()
    tenant.wait_ready("late")
    answer(
        "bound without a replica: runs after the replicas", f"{time.monotonic() - began_s:.1f} s"
    )
    assert GpuProgram(tenant, "late", 1).answers() == ["ok", "ok"]
    remove(tenant, "late")


def test_memory_of_a_deleted_pod_becomes_free(card, tenant, neighbor, sentry):
    fillers = []
    for number, gpu in enumerate(sorted(gpus_of_node(card).values(), key=lambda gpu: -gpu["free"])):
        size_mib = (gpu["free"] - GIB) >> 20
        fillers.append(started(tenant, gpu_pod(f"filler-{number}", f"{size_mib}Mi", LARGE), 1))
    assert all(filler.answers()[-1] == "ok" for filler in fillers)

    def used_by(filler):
        return used_bytes(sentry, "vramwarden_pod_memory_used_bytes", pod=filler)

    def all_seen():
        return all(used_by(f"filler-{item}") >= 4 * GIB for item in range(len(fillers)))

    wait_until("the figures of the fillers", all_seen, timeout=30)
    held = device_used(sentry)
    tenant.create(gpu_pod("next", "4Gi"))
    waits = ("FailedScheduling", "Insufficient", "didn't match")

    def denied():
        return [event for event in tenant.events("next") if any(word in event for word in waits)]

    print(*tenant.wait("it waits", denied), sep="\n")
    began_s = time.monotonic()
    tenant.delete_pod("filler-0", grace=1)
    # The next pod's context may exist already.
    wait_until("the memory free", lambda: device_used(sentry) <= held - 3 * GIB, timeout=30)
    answer("deleted: the driver's figure is lower after", f"{time.monotonic() - began_s:.1f} s")
    tenant.wait_ready("next")
    answer("deleted: the pod that waited for it runs after", f"{time.monotonic() - began_s:.1f} s")
    untouched(neighbor, sentry)
