"""`vramwarden agent`: the node agent."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import click
import yaml

from webhook.agent.program import ScanResult
from webhook.agent.settings import INTERVAL_S, AgentSettings
from webhook.cli.program_options import (
    DOCUMENTATION_OPTION,
    KERNEL_DRIVER_OPTION,
    KUBECONFIG_OPTION,
    NODE_OPTION,
    duration_parser,
)
from webhook.core.documentation import Page
from webhook.core.node.access import Access, GpuAccess
from webhook.core.node.autoscaling import (
    INSTANCE_TYPE_LABEL,
    UNKNOWN_TYPE,
    group_tags,
    node_overlay,
    node_pool_patch,
)
from webhook.core.node.inventory import GRACE_S
from webhook.core.node.state import NodeState
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV, DeviceNames
from webhook.core.pod.quantity import MIB, QuantityError, parse_quantity
from webhook.options import Failure

_TAGS: Final = """\
# For cluster-autoscaler on AWS: tags of the Auto Scaling group whose nodes are like {node}.
# Source: kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/README.md
"""
_OVERLAY: Final = """\
# For Karpenter, with its feature gate NodeOverlay: kubectl apply -f this document.
# Source: karpenter.sh/docs/concepts/nodeoverlays
"""
_POOL: Final = """\
# For Karpenter: kubectl patch nodepool NAME --type merge --patch-file this document. It replaces
# the startup taints that the NodePool has.
# Source: karpenter.sh/docs/concepts/nodepools
"""
_POOL_WITHOUT_TAINT: Final = """\
# For Karpenter: kubectl patch nodepool NAME --type merge --patch-file this document.
# Source: karpenter.sh/docs/concepts/nodepools
"""
_TAINT: Final = """\
# Neither cluster-autoscaler nor AWS puts the taint on a node: let the kubelet do so, by
# --register-with-taints={key}=true:NoSchedule
"""
_NO_TYPE: Final = f"# {UNKNOWN_TYPE}: the node has no label {INSTANCE_TYPE_LABEL}; write yours.\n"


def _parse_amount(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> int | None:
    """Parse `48Gi` to bytes, rounded down to MiB so that the node never promises too much."""
    if text is None:
        return None
    try:
        mebibytes = int(parse_quantity(text) // MIB)
    except QuantityError as error:
        raise click.BadParameter(f"{text!r} {error}") from error
    if mebibytes < 1:
        raise click.BadParameter(f"{text!r} is less than 1Mi; write a size, e.g. 48Gi")
    return mebibytes * MIB


def _parse_taint_key(_context: click.Context, _option: click.Parameter, key: str) -> str:
    """Check the key of a taint, which has the syntax of a label key.

    Source: k8s.io/apimachinery, IsQualifiedName.
    """
    is_valid = re.fullmatch(
        r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", key
    )
    if key and not is_valid:
        example = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"
        raise click.BadParameter(f"{key!r} is no key of a taint; write it alone, e.g. {example}")
    return key


@click.command("agent")
@NODE_OPTION
@click.option(
    "--namespace",
    default="",
    envvar="POD_NAMESPACE",
    show_envvar=True,
    help="Namespace of the webhook's GPU assignments.  [default: all GPUs count as free]",
)
@click.option(
    "--interval",
    "interval_s",
    metavar="DURATION",
    callback=duration_parser(1.0, 3600.0),
    default=f"{INTERVAL_S:g}s",
    show_default=True,
    help="Pause between scans of the GPUs; changes of the node are handled at once.",
)
@click.option(
    "--lost-after",
    "grace_s",
    metavar="DURATION",
    callback=duration_parser(0.0, 86400.0),
    default=f"{GRACE_S:g}s",
    show_default=True,
    help="How long a GPU may be lost before it is no longer advertised.",
)
@click.option(
    "--vram",
    "fixed_bytes",
    metavar="QUANTITY",
    callback=_parse_amount,
    help="Advertise this amount without asking a driver, e.g. 48Gi; nothing is enforced.",
)
@click.option(
    "--gpu-access",
    type=click.Choice([access.value for access in GpuAccess]),
    default=GpuAccess.ENVIRONMENT.value,
    show_default=True,
    help="How this container gets the GPUs; only Environment shows what pods would get.",
)
@click.option(
    "--device-names",
    type=click.Choice(["", *(scheme.value for scheme in DeviceNames)]),
    default="",
    help="GPU names that the node's container runtime resolves.  [default: detected]",
)
@click.option(
    "--runtime-class",
    metavar="NAME",
    default="",
    help="RuntimeClass of this pod; empty for none.",
)
@click.option(
    "--fence-void",
    is_flag=True,
    help="The chart's fence.void is in effect: images cannot give themselves GPUs.",
)
@click.option(
    "--expect-sentry",
    "expects_sentry",
    is_flag=True,
    help="The chart has a sentry that stops pods: a node without one gets a condition.",
)
@KERNEL_DRIVER_OPTION
@click.option(
    "--startup-taint",
    metavar="KEY",
    callback=_parse_taint_key,
    default="",
    help="Remove the taint with this key as soon as the node advertises its VRAM.  [default: none]",
)
@DOCUMENTATION_OPTION
@click.option("--once", is_flag=True, help="Scan once, patch what differs, and exit.")
@click.option("--dry-run", is_flag=True, help="Print the patches without applying them.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["patches", "tags"]),
    default="patches",
    show_default=True,
    help="With --once --dry-run: the patches, or what autoscalers need for such a node.",
)
@KUBECONFIG_OPTION
@click.option(
    "--run-folder",
    type=click.Path(file_okay=False),
    default="",
    help="Folder for the heartbeat that probes read.  [default: no heartbeat]",
)
def agent_command(
    *,
    node: str,
    gpu_access: str,
    device_names: str,
    runtime_class: str,
    fence_void: bool,
    once: bool,
    dry_run: bool,
    output: str,
    **others: Any,
) -> None:
    """Advertise this node's VRAM: capacity, labels and the list of GPUs, and keep them current.

    Runs on each GPU node until SIGTERM; one JSON line per event on standard output. With --once
    --dry-run it prints the patches as YAML, even if the node cannot be read.

    Exit codes: 0 done or stopped, 1 failed, 75 a new container is needed for a new driver.
    """
    if not node and not (once and dry_run):
        raise click.UsageError("no node is named; use --node or set NODE_NAME")
    if output == "tags" and not (once and dry_run):
        raise click.UsageError("-o tags prints and changes nothing; add --once --dry-run")
    access = Access(
        GpuAccess(gpu_access),
        os.environ.get(VISIBLE_DEVICES_ENV, ""),
        DeviceNames(device_names) if device_names else None,
        runtime_class,
        voided=fence_void,
    )
    settings = AgentSettings(node=node, access=access, dry_run=dry_run, **others)
    # Imported here because pynvml and kubernetes would slow down every other command.
    from webhook.agent.program import agent  # noqa: PLC0415

    if once:
        _run_once(settings, tags=output == "tags")
    else:
        sys.exit(agent(settings))


def _run_once(settings: AgentSettings, *, tags: bool) -> None:
    """Scan and patch once; write notes to standard error, and the rest to standard output."""
    from webhook.adapters.kube.errors import KubeError  # noqa: PLC0415 - as above
    from webhook.agent.program import patch_once, scan_once  # noqa: PLC0415

    found = scan_once(settings)
    for note in found.notes:
        click.echo(note, err=True)
    if found.node_error and not settings.dry_run:
        raise Failure(found.node_error)
    if found.node_error:
        click.echo(f"node: {found.node_error}", err=True)
    if found.node_error and not tags:
        click.echo("these are the patches for a node that carries nothing of ours yet", err=True)
    if not found.is_conclusive:
        raise Failure(
            "no GPU can be read or is advertised; to try it without one: "
            f"{Page.LAPTOP.url(settings.documentation_url)}"
        )
    if tags and not found.shared_state.vram_bytes:
        raise Failure("no GPU to share is known of this node, so there is nothing to print")
    if tags:
        click.echo(_tags_as_yaml(found.node, found.shared_state, settings.startup_taint), nl=False)
    elif not found.patches:
        click.echo("nothing to patch", err=True)
    elif settings.dry_run:
        click.echo(_patches_as_yaml(settings.node or "NODE", found), nl=False)
    else:
        try:
            patch_once(settings, found)
        except KubeError as error:
            raise Failure(str(error)) from error
        for change in found.changes:
            click.echo(change)


def _patches_as_yaml(node: str, found: ScanResult) -> str:
    """Return both patches as YAML documents, each for `kubectl patch --patch-file`."""
    documents = [
        f"# node {node}{what}\n{yaml.safe_dump(patch, sort_keys=True, width=10**6)}"
        for what, patch in (
            ("", found.patches.metadata),
            (", --subresource status", found.patches.status),
        )
        if patch is not None
    ]
    return "---\n".join(documents)


def _tags_as_yaml(node: Mapping[str, Any], state: NodeState, startup_taint: str) -> str:
    """Return YAML for autoscalers: tags of an AWS group, a NodeOverlay, and a NodePool patch."""
    name = (node.get("metadata") or {}).get("name") or "this one"
    taint = _TAINT.format(key=startup_taint) if startup_taint else ""
    overlay = node_overlay(node, state)
    (requirement,) = overlay["spec"]["requirements"]
    no_type = _NO_TYPE if requirement["values"] == [UNKNOWN_TYPE] else ""
    parts = (
        (_TAGS.format(node=name) + taint, group_tags(node, state, startup_taint)),
        (_OVERLAY + no_type, overlay),
        (
            _POOL if startup_taint else _POOL_WITHOUT_TAINT,
            node_pool_patch(node, state, startup_taint),
        ),
    )
    return "---\n".join(
        comment + yaml.safe_dump(content, sort_keys=False, width=10**6)
        for comment, content in parts
    )
