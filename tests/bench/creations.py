"""Latency that webhooks add to the creation of a pod by a real API server.

Each side has its own namespace, to which its configurations are limited. All configurations stay
installed, and the sides alternate without any change between them.
"""

from __future__ import annotations

import itertools
import json
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from tests.bench import peers, settings
from tests.bench.baseline import OURS, sides
from tests.bench.figures import against, cpu_s, percentile
from tests.bench.load import NUMBER, Target, ask, load
from tests.bench.servers import RECORDED, empty, on_core, temporary_folder, webhook
from tests.support.control_planes import MISSING, available
from tests.support.paths import ROOT
from tests.support.webhook_configurations import apply, webhook_configurations
from webhook import names

CLIENTS = (1, 8)
NONE = "no webhook"
NOTHING = (None, None, None)
BY_SENTRY = ROOT / "policies/examples/older-drivers.yaml"
ROUNDS = settings.ROUNDS * 2  # each round takes a fifth of a second


@dataclass(frozen=True, slots=True)
class Scene:
    """The pod created in one namespace with the webhooks of one side."""

    label: str
    target: Target
    pid: int | None
    """PID of the webhook's process; None without a webhook."""
    stored: dict[str, Any]
    """Pod as stored by the API server."""

    def dressed(self, pod):
        """Return the pod as stored, so that no webhook needs to change it."""
        pod["spec"] = self.stored["spec"]
        for field in ("labels", "annotations"):
            pod["metadata"][field] = self.stored["metadata"][field]


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
            scenes.append(scene(plane, side.label, *both, server=server, acted=admitted))
            if side is OURS:
                # Costs outside the webhook: a larger pod is decoded, validated and stored.
                translated = scenes[-1].dressed
                scenes.insert(1, scene(plane, "same pod, none", dress=translated, acted=admitted))
                alone = ours(server, side.root)[:1]
                scenes.append(scene(plane, "ours, mutate", *alone, server=server, acted=admitted))
        by_sentry = replace(OURS, label="by Sentry")
        server = stack.enter_context(webhook(by_sentry, folder, f"--policy={BY_SENTRY}"))
        both = ours(server, OURS.root)
        scenes.append(scene(plane, by_sentry.label, *both, server=server, acted=admitted))
        server = stack.enter_context(empty(folder))
        scenes.append(scene(plane, "empty", *ours(server, OURS.root), server=server))
        for peer, server in peers.all_started(stack, folder, plane):
            label = peer.label if peer.validate_path else f"{peer.label}, mutate"
            configurations = peers.configurations(peer, server)
            scenes.append(
                scene(
                    plane,
                    label,
                    *configurations,
                    server=server,
                    dress=peer.dress,
                    acted=peer.acted,
                )
            )
        show([scene.label for scene in scenes], measured(scenes, plane))


def ours(server, root):
    """Return a commit's mutating and validating configurations."""
    url = f"https://127.0.0.1:{server.port}"
    return webhook_configurations(url, server.ca.read_bytes(), path=root / "deploy/local.yaml")


def admitted(pod):
    return names.ADMITTED_ANNOTATION in pod["metadata"]["annotations"]


def as_it_is(pod):
    return pod


def scene(plane, label, *configurations, server=None, dress=as_it_is, acted=as_it_is):
    """Create a namespace with its configurations and one pod; check that they change the pod."""
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
    creation = target(plane, namespace, pod)
    status, body = ask(creation)
    if status != 201 or not acted(json.loads(body)):
        raise RuntimeError(f"{label}: not as it should be: {status}: {body[:2000]!r}")
    return Scene(label, creation, server and server.pid, json.loads(body))


def written_pod():
    """Return the recorded pod as its user wrote it, without the API server's fields."""
    recorded = json.loads(RECORDED.read_bytes())["request"]["object"]
    annotations = recorded["metadata"]["annotations"]
    last_applied = "kubectl.kubernetes.io/last-applied-configuration"
    pod = json.loads(annotations[last_applied])
    pod["metadata"] |= {"annotations": annotations, "name": f"train-{NUMBER.decode()}"}
    del annotations[last_applied], pod["metadata"]["namespace"]
    return pod


def target(plane, namespace, body, path="", **more):
    return Target(
        int(plane.url.rpartition(":")[2]),
        plane.state / "ca.crt",
        f"/api/v1/namespaces/{namespace}/pods{path}",
        json.dumps(body).encode(),
        **{"client_certificate": plane._admin, **more},
        headers="",
        numbers=itertools.count(),
    )


def measured(scenes, plane):
    """Return latencies per round, and CPU time of API server and webhook per pod, all in ms."""
    figures = {}
    api_server = plane._processes["kube-apiserver"].pid
    with on_core(-1):
        for _ in range(ROUNDS):
            for clients in CLIENTS:
                for scene in scenes:
                    pids = [pid for pid in (api_server, scene.pid) if pid]
                    before_s = [cpu_s(pid) for pid in pids]
                    run = load(scene.target, clients, requests=settings.PODS)
                    taken_s = [cpu_s(pid) - then for pid, then in zip(pids, before_s, strict=True)]
                    figures.setdefault((scene.label, clients), []).append(
                        (
                            [latency_s * 1e3 for latency_s in run.latencies_s],
                            [each_s / run.answers * 1e3 for each_s in taken_s],
                        )
                    )
    return figures


def show(labels, figures):
    print(
        "creating the recorded annotated pod through a real API server, "
        f"{ROUNDS} rounds of {settings.PODS} pods; servers on one core\n"
        "added: to no webhook in the same round, median of the rounds; p99 of all rounds\n"
        "together; CPU per pod; x: baseline / this, of what is added; same pod, none: no webhook\n"
        "either, but the pod is created as ours has translated it"
    )
    heads = "".join(f"{head:>9}{'added':>8}{'x':>7}" for head in ("p50 ms", "p99 ms", "API ms"))
    print(f"  {'':<14}{'clients':>8}{heads}{'webhook ms':>12}{'x':>7}")
    for clients in CLIENTS:
        plain = Summary(figures[NONE, clients])
        base = Summary(figures["baseline", clients]) if "baseline" in labels else None
        for label in labels:
            own = Summary(figures[label, clients])
            cells = ""
            for values, none, theirs in zip(
                own.rows, plain.rows, base.rows if base else NOTHING, strict=True
            ):
                cells += f"{statistics.median(values):9.2f}" + added(values, none, theirs)
            print(f"  {label:<14}{clients:>8}{cells}{own.webhook(base)}")


class Summary:
    def __init__(self, rounds):
        latencies, cpu = zip(*rounds, strict=True)
        api_ms, *webhook_ms = (statistics.mean(column) for column in zip(*cpu, strict=True))
        together = [latency for some in latencies for latency in some]
        # CPU time is counted in ticks of 10 ms, and a round has only a few.
        self.rows = (
            [statistics.median(some) for some in latencies],
            [percentile(together, 0.99)],
            [api_ms],
        )
        self._webhook_ms = webhook_ms[0] if webhook_ms else None

    def webhook(self, base):
        """Return the CPU time of the webhook, and its ratio to the baseline's."""
        if self._webhook_ms is None:
            return f"{'-':>12}{'-':>7}"
        of_base = against(base and [base._webhook_ms], [self._webhook_ms])
        return f"{self._webhook_ms:12.2f}{of_base}"


def added(own, plain, base):
    """Return the latency added compared with no webhook, and its ratio to the baseline's."""
    if own == plain:
        return f"{'-':>8}{'-':>7}"
    more = more_than(plain, own)
    of_base = against(base and [more_than(plain, base)], [more])
    return f"{more:8.2f}{of_base}"


def more_than(plain, values):
    return statistics.median(value - none for value, none in zip(values, plain, strict=True))
