"""Scenarios on the node of `node_scene.py`."""

import json
import sys
import time
from pathlib import Path

from tests.sentry.node_scene import TENANT, Pod, is_alive, play
from tests.support.workload_processes import wait_until

__all__ = ["play"]

ATTACKS = {
    "stop": ("stop", 0, 0),
    "stop-as-user": ("stop", 1000, 1000),
    "kill": ("kill", 0, 0),
    "starve": ("starve", 1000, 1000),
    "rename": ("rename", 0, 0),
    "fork": ("fork", 0, 0),
    "supervisor": ("supervisor", 1000, 0),
    "again": ("again", 0, 0),
    "ghost": ("ghost", 0, 0),
    "crowd": ("crowd", 0, 0),
    "nested": ("stop", 0, 0),
    "groups": ("groups", 0, 0),
    "leaderless": ("leaderless", 0, 0),
    "swapped": ("alone", 0, None, "enforcer"),
    "debugger": ("stop", 0, 0, "debug"),
    "orphan": ("orphan", 0, 0),
    "imports": ("imports", 0, 0),
    "contexts": ("contexts", 0, 0),
    "beside": ("beside", 0, 0),
    "within": ("within", 0, 0),
}
"""Action of the workload, its user, the sidecar's user (None: another image), and container."""

BY_SENTRY = ATTACKS | {
    "handler": ("handler", 0, None),
    "handler-as-user": ("handler", 1000, None),
    "polite": ("polite", 0, None),
    "namespace": ("namespace", 0, None),
    "chroot": ("chroot", 0, None),
    "leaderless-target": ("leaderless", 0, None),
}
"""Attacks on pods by Sentry, which have no sidecar."""

TARGETED = ("chroot", "leaderless-target")
"""Attackers whose process namespace a debugging container shares."""

NEIGHBOURS = ("handler", "polite", "stop")
"""Attackers with another container that holds little memory."""

GUARDED = {"honest": 101, "orphaned": 104, "crowded": 106}
"""Action and pod number of tenants that do not touch their sidecar, which should stop them."""

CAPPED = {"capped": 105, "forked": 107}
"""Honest pods that hold their cap, and one or two contexts that the driver does not count."""

ENDED_WHOLE = ("again", "crowd", "ghost", "supervisor")
"""Actions after which the whole pod ends: restarting processes, or memory without an owner."""

PYTHON = (sys.executable, "-I", "-S")
SOON = "scanner.LISTED_S = 0.5; judge.LATER_S = 0.5"
NODES = "import os; host_environment._NODE_PID_NAMESPACE = os.readlink('/proc/self/ns/pid')"
"""Makes the scene's PID namespace count as the node's: lists of older drivers count only there."""


def uid_of(number):
    return f"{number:08x}-aaaa-4bbb-8ccc-dddddddddddd"


def attacked(node, sent):
    """Run all attacks at once, with pods that their sidecars stop, and bystanders."""
    if node.limits:
        node.start_limiter(uid_of(201), sent["kubeconfig"])
    by = sent.get("by", "Sidecar")
    attacks = BY_SENTRY if by == "Sentry" else ATTACKS
    pods = {name: Pod(node, name, uid_of(n), by=by) for n, name in enumerate(attacks, 1)}
    bystander = Pod(node, "bystander", uid_of(100), by=by)
    guarded = {name: Pod(node, name, uid_of(n)) for name, n in GUARDED.items() if by == "Sidecar"}
    stranger = Pod(node, "stranger", uid_of(102), "besteffort")
    unheld = Pod(node, "unheld", uid_of(103))
    capped = {name: Pod(node, name, uid_of(n), by=by) for name, n in CAPPED.items()}
    everybody = [*pods.values(), *guarded.values(), bystander, stranger, unheld, *capped.values()]
    early = [*pods.values(), bystander, *capped.values()]
    late = {pod: pod.line() | {"late_s": 1.0} for pod in early}
    late[pods["supervisor"]]["late_s"] = 6.0
    late[pods["ghost"]]["late_s"] = 240.0  # lowered below, after the process has ended
    # A sidecar that must stop processes gets enough time.
    late |= {pod: pod.line() | {"late_s": 120.0} for pod in guarded.values()}
    late[unheld] = unheld.line() | {"act": False}
    promise(sent, *late.values())
    how = {"private": sent["private"], "constants": f"{SOON}; {NODES}"}
    node.start_sentry(uid_of(200), sent["kubeconfig"], **how)
    others = node.process("system.slice/x.service", [*PYTHON, str(TENANT), "modest"])
    promised = {pod.uid for pod in late}
    wait_until(lambda: not node.limits or node.limited() >= promised)
    for name, pod in capped.items():
        pod.enforced()
        pod.tenant(name)
    for name, (how, user, of_sidecar, *where) in attacks.items():
        if of_sidecar is not None:
            pods[name].enforced(of_sidecar)
        tenant = pods[name].tenant(how, user, *where)
        if by == "Sentry" and name in NEIGHBOURS:
            pods[name].tenant("modest", 0, "neighbour")
        if by == "Sentry" and name in TARGETED:
            pods[name].tenant("debugger", 0, "debugger", target=tenant)
    bystander.enforced()
    bystander.tenant("modest")
    stranger.tenant("modest")
    unheld.tenant("alone")
    for name, pod in guarded.items():
        pod.sidecar()
        pod.tenant(name)
    moved, left, longest_s = False, False, 0.0
    started_s = before_s = time.monotonic()
    while before_s - started_s < 240:
        node.follow(everybody, {others: 1024})
        node.note_whom_the_sentry_has_seen(everybody)
        if not moved and pods["nested"].held:
            moved = nest(pods["nested"], bystander)
        if not left and pods["ghost"].ghosts and not any(map(is_alive, pods["ghost"].ghosts)):
            left = True
            late[pods["ghost"]]["late_s"] = 1.0
            promise(sent, *late.values())
        over = all(pod.is_over(2.0) for pod in [*pods.values(), *guarded.values()])
        if over and not any(pods[name].tenants for name in ENDED_WHOLE):
            break
        time.sleep(0.05)
        now_s = time.monotonic()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    return {
        "longest_gap_s": longest_s,
        "pods": {pod.name: pod.report() for pod in everybody},
        "others": is_alive(others),
        "events": node.events(),
        "ready": node.ask("/readyz"),
        "live": node.ask("/livez"),
        "metrics": node.ask("/metrics"),
        "moved": moved,
    }


def promise(sent, *promises):
    """Put these assignments on the node's list."""
    lines = Path(sent["lines"])
    text = "".join(f"{json.dumps(found_promise)}\n" for found_promise in promises)
    lines.with_suffix(".new").write_text(text)
    lines.with_suffix(".new").replace(lines)


def nest(pod, other):
    """Move the process that holds memory into a child cgroup named like another pod's container."""
    (pid,) = pod.held
    child = pod.container("train") / f"kubepods/burstable/pod{other.uid}" / ("e" * 64)
    child.mkdir(parents=True)
    (child / "cgroup.procs").write_text(str(pid))
    return f"pod{other.uid}" in Path(f"/proc/{pid}/cgroup").read_text()


def watched(node, sent):
    """Keep a pod without a sidecar over its cap until the test has seen enough."""
    pod = Pod(node, "greedy", uid_of(1))
    promise(sent, pod.line() | {"late_s": 0.1})
    node.start_sentry(uid_of(200), sent["kubeconfig"], *sent["options"], constants=SOON)
    pod.tenant("modest")
    greedy = pod.tenant("alone")
    others = node.process("system.slice/x.service", [*PYTHON, str(TENANT), "modest"])
    while not (node.folder / "enough").exists():
        node.follow([pod], {others: 1024})
        time.sleep(0.05)
    return {
        "greedy": is_alive(greedy),
        "events": node.events(),
        "metrics": node.ask("/metrics"),
        "ready": node.ask("/readyz"),
        "live": node.ask("/livez"),
    }


def measured(node, sent):
    """Run the sentry with eight GPUs of four idle pods each, none of them over its cap."""
    pods = [uid_of(number) for number in range(1, 33)]
    gpus = [f"GPU-{number:08}-2222-3333-4444-555555555555" for number in range(8)]
    line = {"memory": 8 * 2**30, "since": 1, "cap": 8 * 2**30, "tolerance": 2**27}
    line |= {"late_s": 6.5, "by": "Sidecar", "grace_s": 5.0, "act": True}
    lines = [
        line | {"uid": uid, "pod": f"team/p{n}", "gpus": [gpus[n % 8]]}
        for n, uid in enumerate(pods)
    ]
    Path(sent["lines"]).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    script = ["driver 580.65.06\n"]
    script += [f"gpu {gpu} total={80 * 2**30} used={sent['used']}\n" for gpu in gpus]
    sleeps = [*PYTHON, "-c", "import time; time.sleep(3600)"]
    for number in range(32):
        gpu = number % 8
        cgroup = f"kubepods/burstable/pod{pods[number]}/{number:064x}"
        pid = node.process(cgroup, sleeps)
        script.append(f"process {gpu} compute {pid} {2**30}\n")
        script += [f"ran {gpu} {pid} 0 0\n"] if number < len(gpus) else []
    (node.driver.folder / "stub.txt").write_text("".join(script))
    node.start_sentry(uid_of(200), sent["kubeconfig"], *sent["options"])
    time.sleep(5)
    before, looks = cpu_ns(node.sentry), node.scans()
    time.sleep(sent["for_s"])
    used_ns = cpu_ns(node.sentry) - before
    status = Path(f"/proc/{node.sentry}/status").read_text()
    after = node.scans()
    count = after["count"] - looks["count"]
    return {
        "rss_kb": int(status.split("VmRSS:")[1].split()[0]),
        "cpu_percent": used_ns / sent["for_s"] / 1e7,
        "looks_per_s": count / sent["for_s"],
        "look_ms": (after["sum"] - looks["sum"]) / count * 1000,
        "cpu_per_look_ms": used_ns / count / 1e6,
    }


def cpu_ns(pid):
    return sum(int(path.read_text().split()[0])
               for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))  # fmt: skip
