"""Startup of the node agent, and a single scan of GPUs and node without the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from webhook import __version__
from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.connection import connect
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.node_objects import node_slices, read_assignment_list
from webhook.adapters.node_nvml import NodeNvml
from webhook.agent.loop import Agent
from webhook.agent.scanner import scan
from webhook.agent.settings import AgentSettings
from webhook.core.kinds.nodes import read_time
from webhook.core.node.access import find_gpu_access_problems, set_device_names
from webhook.core.node.inventory import (
    Inventory,
    Scan,
    apply_scan,
    find_skip_reasons,
    read_inventory,
)
from webhook.core.node.node_fields import explain_closed, is_advertised
from webhook.core.node.patches import Patches, build_patches, describe_changes
from webhook.core.node.sharing import Shared, SharingInputs, apply_sharing, find_gpus_in_use, judge
from webhook.core.node.state import NodeState, build_desired_state
from webhook.core.placement.assignments import Assignments, promised_bytes
from webhook.core.pod.whole_gpus import find_dra_drivers
from webhook.node_programs.program import run_program


def agent(settings: AgentSettings) -> int:
    """Run the node agent until SIGTERM; return the exit code of `run_program`."""

    def work(kube: Kube, journal: Journal) -> NoReturn:
        journal.event("info", "started", node=settings.node, version=__version__, api=kube.url)
        Agent(settings, kube, NodeNvml(), journal).run()

    return run_program(settings.kubeconfig, work)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """Result of one scan of GPUs and node."""

    patches: Patches
    changes: tuple[str, ...]
    notes: tuple[str, ...]
    """Findings: unreadable parts, and settings that an admin should change."""
    node_error: str
    """Reason why the node could not be read; the patches then assume an empty node."""
    is_conclusive: bool
    """True if a driver responded, GPUs are or were advertised, or there is nothing to advertise."""
    node: dict[str, Any]
    """The node; empty if it could not be read."""
    shared_state: NodeState


def scan_once(settings: AgentSettings) -> ScanResult:
    """Read the node and scan its GPUs once, without changing anything."""
    node: dict[str, Any] = {}
    node_error = "" if settings.node else "no node is named; use --node or set NODE_NAME"
    if settings.node:
        try:
            node = connect(settings.kubeconfig).node(settings.node)
        except KubeError as error:
            node_error = str(error)
    assigned, unassigned = _assigned_once(settings)
    seen = scan(NodeNvml(), settings.kernel_driver) if settings.fixed_bytes is None else Scan()
    inventory = Inventory(fixed_bytes=settings.fixed_bytes)
    if settings.fixed_bytes is None:
        inventory = apply_scan(read_inventory(node), seen, 0.0, settings.grace_s)
        inventory = set_device_names(inventory, seen, settings.access)
    age_s, dra_drivers = _read_age_and_dra_drivers(settings, node, inventory)
    inputs = SharingInputs(
        dra_drivers=dra_drivers,
        age_s=age_s,
        is_advertised=is_advertised(node),
        draining_reason=explain_closed(node),
        has_pods=None if assigned is None or not settings.namespace else bool(assigned),
        in_use=find_gpus_in_use(seen) if settings.fixed_bytes is None else (),
        documentation_url=settings.documentation_url,
    )
    sharing = judge(node, inputs)
    shared_state = build_desired_state(inventory, assigned)
    promised = None if assigned is None or not settings.namespace else promised_bytes(assigned)
    state = apply_sharing(
        node,
        shared_state,
        sharing,
        promised_bytes=promised,
        dra_drivers=dra_drivers or (),
        unshared=inventory.unshared,
    )
    patches = build_patches(node, state)
    off = sharing.shared is Shared.NO
    problems = (
        find_gpu_access_problems(settings.access)
        if seen.gpus and inventory.gpus and not off
        else ()
    )
    return ScanResult(
        patches=patches,
        changes=tuple(describe_changes(node, patches)),
        notes=(
            *(f"skipped: GPU {uuid}: {why}" for uuid, why in find_skip_reasons(seen).items()),
            *(f"not healthy: GPU {gpu.uuid}: {gpu.fault}" for gpu in inventory.gpus if gpu.fault),
            *([f"NVML: {seen.failed}"] if seen.failed else []),
            *(f"{problem.what}: {problem.why}" for problem in problems),
            *([f"free memory: {unassigned}"] if unassigned else []),
            *([f"sharing: {sharing.sentence}"] if sharing.reason else []),
        ),
        node_error=node_error,
        is_conclusive=off
        or not seen.failed
        or settings.fixed_bytes is not None
        or inventory.advertised,
        node=node,
        shared_state=shared_state,
    )


def _assigned_once(settings: AgentSettings) -> tuple[Assignments | None, str]:
    """Return the node's assignments, or None and the reason why they are unknown."""
    if not settings.node or not settings.namespace or settings.fixed_bytes is not None:
        return {}, ""
    try:
        kube = connect(settings.kubeconfig)
        return read_assignment_list(kube, settings.namespace, settings.node).assignments, ""
    except KubeError as error:
        return None, str(error)


def _read_age_and_dra_drivers(
    settings: AgentSettings, node: dict[str, Any], inventory: Inventory
) -> tuple[float, tuple[str, ...] | None]:
    """Return the node's age in seconds, and the DRA drivers that offer its GPUs (None: unknown)."""
    if not node:
        return float("inf"), ()
    kube = connect(settings.kubeconfig)
    try:
        slices, _ = node_slices(kube, settings.node).read()
        uuids = {gpu.uuid for gpu in inventory.gpus}
        dra_drivers: tuple[str, ...] | None = find_dra_drivers(slices, uuids)
    except KubeError:
        dra_drivers = None
    created_s = read_time((node.get("metadata") or {}).get("creationTimestamp"))
    return float("inf") if created_s is None else kube.now_s() - created_s, dra_drivers


def patch_once(settings: AgentSettings, found: ScanResult) -> None:
    """Apply the patches of one scan; raises KubeError."""
    kube: Kube = connect(settings.kubeconfig)
    for patch, is_status in found.patches.in_order():
        kube.patch_node(settings.node, patch, status=is_status)
