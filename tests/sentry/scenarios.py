"""What happens on the node of `node_scene.py`; runs there, where `Pod` and the like are known."""
# ruff: noqa: F821 - the scene gives this file its names

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
}
"""What the workload does, as which user, and the sidecar's."""


def uid_of(number):
    return f"{number:08x}-aaaa-4bbb-8ccc-dddddddddddd"


def attacked(node, sent):
    """Let every tenant attack at once, beside an honest one and bystanders."""
    pods = {name: Pod(node, name, uid_of(n)) for n, name in enumerate(ATTACKS, 1)}
    bystander = Pod(node, "bystander", uid_of(100))
    honest = Pod(node, "honest", uid_of(101))
    stranger = Pod(node, "stranger", uid_of(102), "besteffort")
    everybody = [*pods.values(), bystander, honest, stranger]
    promise(sent, *pods.values(), bystander, honest)
    node.start_sentry(uid_of(200), sent["kubeconfig"], private=sent["private"])
    others = node.process("system.slice/x.service", [python, "-I", "-S", tenant_script, "modest"])
    for name, (how, user, of_sidecar) in ATTACKS.items():
        pods[name].sidecar(of_sidecar)
        pods[name].tenant(how, user)
    bystander.sidecar()
    bystander.tenant("modest")
    stranger.tenant("modest")
    honest.sidecar()
    time.sleep(3)
    greedy = honest.tenant("honest")
    moved = False
    started_s = time.monotonic()
    while time.monotonic() - started_s < 60:
        node.follow(everybody, {others: 1024})
        if not moved and pods["nested"].held:
            moved = nest(pods["nested"], bystander)
        if all(pod.is_over(2.0) for pod in [*pods.values(), honest]):
            break
        time.sleep(0.05)
    return {
        "pods": {pod.name: pod.report() for pod in everybody},
        "others": is_alive(others),
        "greedy": is_alive(greedy),
        "events": node.events(),
        "ready": node.ask("/readyz"),
        "live": node.ask("/livez"),
        "metrics": node.ask("/metrics"),
        "moved": moved,
    }


def promise(sent, *pods, **more):
    """Put these pods on the node's list."""
    lines = Path(sent["lines"])
    text = "".join(f"{json.dumps(pod.line() | more)}\n" for pod in pods)
    lines.with_suffix(".new").write_text(text)
    lines.with_suffix(".new").replace(lines)


def nest(pod, other):
    """Move who holds memory into a child cgroup that is named like another pod's container."""
    (pid,) = pod.held
    child = pod.container("train") / f"kubepods/burstable/pod{other.uid}" / ("e" * 64)
    child.mkdir(parents=True)
    (child / "cgroup.procs").write_text(str(pid))
    return f"pod{other.uid}" in Path(f"/proc/{pid}/cgroup").read_text()


def watched(node, sent):
    """Let one pod be over its cap with nobody to guard it, for longer than the sentry waits."""
    pod = Pod(node, "greedy", uid_of(1))
    promise(sent, pod, **sent["line"])
    node.start_sentry(uid_of(200), sent["kubeconfig"], *sent["options"])
    pod.tenant("modest")
    greedy = pod.tenant("alone")
    others = node.process("system.slice/x.service", [python, "-I", "-S", tenant_script, "modest"])
    started_s = time.monotonic()
    while time.monotonic() - started_s < sent["for_s"]:
        node.follow([pod], {others: 1024})
        time.sleep(0.05)
    return {
        "greedy": is_alive(greedy),
        "events": node.events(),
        "metrics": node.ask("/metrics"),
        "ready": node.ask("/readyz"),
        "live": node.ask("/livez"),
    }
