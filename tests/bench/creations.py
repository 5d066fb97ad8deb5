"""What webhooks add to the creation of a pod through a real API server.

Each side has a namespace of its own, for which alone its configurations hold. So all of them stay
in force, and the sides take turns without anything being installed in between.
"""

from __future__ import annotations

import itertools
import json
import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench import peers, settings
from tests.bench.baseline import OURS, sides
from tests.bench.figures import cpu_s, percentile, times
from tests.bench.load import NUMBER, Target, ask, load
from tests.bench.servers import RECORDED, empty, on_core, temporary_folder, webhook
from tests.support.control_planes import MISSING, available
from tests.support.webhook_configurations import apply, webhook_configurations
from webhook import names

CLIENTS = (1, 8)
NONE = "no webhook"


@dataclass(frozen=True, slots=True)
class Scene:
    """The pod that is created in one namespace, whose webhooks are those of one side."""

    label: str
    target: Target


def bench_creations():
    if not available():
        print(f"creating pods: skipped: {MISSING}")
        return
    with temporary_folder() as folder, ExitStack() as stack:
        plane = peers.control_plane(stack)
        scenes = [scene(plane, NONE)]
        for side in sides():
            server = stack.enter_context(webhook(side, folder))
            both = ours(server, side.root)
            scenes.append(scene(plane, side.label, *both, acted=admitted))
            if side is OURS:
                alone = ours(server, side.root)[:1]
                scenes.append(scene(plane, "ours, mutate", *alone, acted=admitted))
        server = stack.enter_context(empty(folder))
        scenes.append(scene(plane, "empty", *ours(server, OURS.root)))
        for peer, server in peers.all_started(stack, folder, plane):
            label = peer.label if peer.validate_path else f"{peer.label}, mutate"
            configurations = peers.configurations(peer, server)
            scenes.append(scene(plane, label, *configurations, dress=peer.dress, acted=peer.acted))
        show([scene.label for scene in scenes], measured(scenes, plane))


def ours(server, root):
    """Return the mutating and the validating configuration as a commit has them."""
    url = f"https://127.0.0.1:{server.port}"
    return webhook_configurations(url, server.ca.read_bytes(), path=root / "deploy/local.yaml")


def admitted(pod):
    return names.ADMITTED_ANNOTATION in pod["metadata"]["annotations"]


def unchanged(pod):
    return True


def scene(plane, label, *configurations, dress=unchanged, acted=unchanged):
    """Make a namespace with its configurations; create one pod, and see that they act on it."""
    namespace = "-".join(label.lower().replace(",", "").split())
    metadata = {"name": namespace}
    plane.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    plane.ensure_service_account(namespace)
    for configuration in configurations:
        configuration["metadata"] = metadata
        for hook in configuration["webhooks"]:
            hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        apply(plane.api, configuration)
    pod = written_pod()
    dress(pod)
    made = Scene(label, target(plane, namespace, pod))
    status, body = ask(made.target)
    if status != 201 or not acted(json.loads(body)):
        raise RuntimeError(f"{label}: not as it should be: {status}: {body[:2000]!r}")
    return made


def written_pod():
    """Return the recorded pod as its user wrote it, without what an API server adds."""
    recorded = json.loads(RECORDED.read_bytes())["request"]["object"]
    annotations = recorded["metadata"]["annotations"]
    last_applied = "kubectl.kubernetes.io/last-applied-configuration"
    pod = json.loads(annotations[last_applied])
    pod["metadata"] |= {"annotations": annotations, "name": f"train-{NUMBER.decode()}"}
    del annotations[last_applied], pod["metadata"]["namespace"]
    return pod


def target(plane, namespace, pod):
    (user,) = json.loads(plane.kubeconfig.read_text())["users"]
    files = (Path(user["user"][f"client-{name}"]) for name in ("certificate", "key"))
    return Target(
        int(plane.url.rpartition(":")[2]),
        plane.state / "ca.crt",
        f"/api/v1/namespaces/{namespace}/pods",
        json.dumps(pod).encode(),
        client_certificate=tuple(files),
        headers="",
        numbers=itertools.count(),
    )


def measured(scenes, plane):
    """Return latencies in ms and ms of the API server's CPU per pod, of each round, in turns."""
    figures = {}
    api_server = plane._processes["kube-apiserver"].pid
    with on_core(-1):
        for _ in range(settings.ROUNDS):
            for clients in CLIENTS:
                for scene in scenes:
                    before_s = cpu_s(api_server)
                    run = load(scene.target, clients, requests=settings.PODS)
                    cpu_ms = (cpu_s(api_server) - before_s) / run.answers * 1e3
                    latencies_ms = [latency_s * 1e3 for latency_s in run.latencies_s]
                    figures.setdefault((scene.label, clients), []).append((latencies_ms, cpu_ms))
    return figures


def show(labels, figures):
    print(
        "creating the recorded annotated pod through a real API server, "
        f"{settings.ROUNDS} rounds of {settings.PODS} pods; servers on one core\n"
        "added: to no webhook in the same round, median of the rounds; p99 of all rounds\n"
        "together; CPU: the API server's, per pod; x: baseline / this, of what is added"
    )
    columns = ("p50 ms", "p99 ms", "CPU ms")
    heads = "".join(f"{name:>9}{'added':>8}{'x':>7}" for name in columns)
    print(f"  {'':<14}{'clients':>8}{heads}")
    for clients in CLIENTS:
        plain = summary(figures[NONE, clients])
        base = figures.get(("baseline", clients))
        for label in labels:
            own = summary(figures[label, clients])
            cells = ""
            for number, values in enumerate(own):
                cells += f"{statistics.median(values):9.2f}"
                cells += added(values, plain[number], base and summary(base)[number])
            print(f"  {label:<14}{clients:>8}{cells}")


def summary(rounds):
    """Return the medians of all rounds, one p99 of them together, and the CPU of all rounds."""
    medians = [statistics.median(latencies) for latencies, _ in rounds]
    together = [latency for latencies, _ in rounds for latency in latencies]
    # CPU comes in ticks of 10 ms, and a round has only a few.
    cpu = statistics.mean(cpu_ms for _, cpu_ms in rounds)
    return medians, [percentile(together, 0.99)], [cpu]


def added(own, plain, base):
    """Write what a side adds to no webhook, and how many times as much the baseline adds."""
    if own == plain:
        return f"{'-':>8}{'-':>7}"
    more = statistics.median(mine - none for mine, none in zip(own, plain, strict=True))
    if base is None:
        return f"{more:8.2f}{'-':>7}"
    of_base = statistics.median(mine - none for mine, none in zip(base, plain, strict=True))
    return f"{more:8.2f}{times(of_base / more if more > 0 else None):>7}"
