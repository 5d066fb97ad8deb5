"""A node as commands read it, and the rules for tolerating taints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from webhook.core.node.inventory import read_inventory
from webhook.core.node.node_fields import (
    SharingVerdict,
    explain_closed,
    is_advertised,
    read_verdict,
)
from webhook.core.node.other_allocators import HAMI_ANNOTATION, find_allocator_resources
from webhook.core.pod.fields import as_objects, find_string
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.quantity import QuantityError, parse_quantity
from webhook.core.pod.whole_gpus import AMD_DRA_DRIVER
from webhook.names import (
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LABEL,
    NODE_ENFORCEMENT_LABEL,
    NODE_GPU_LABEL,
    NODE_GPUS_ANNOTATION,
    NODE_SENTRY_LABEL,
    NODE_SHARE_LABEL,
    VRAM_RESOURCE,
)
from webhook.tools.snapshot.objects import CachedProperty, ClusterObject

AGENT_LABELS: Final = ("feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present")
"""Labels that place the agent on a node if they are `true` (chart value `agent.affinity`)."""
AGENT_KEYS: Final = ("nvidia.com/gpu.count", NODE_SHARE_LABEL)
"""Labels that place the agent on a node with any value; GPU feature discovery sets no `true`."""
REPELLING_EFFECTS: Final = ("NoSchedule", "NoExecute")
"""Taint effects that keep the scheduler from using a node."""
CONFIGURED: Final = "said, not measured (agent.vram)"
"""Description of amounts that are configured, not measured; see `ClusterNode.is_configured`."""
_GPU_LABELS: Final = (
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
)
"""Labels of GPU nodes that do not place the agent on the node."""
_PCI_LABEL: Final = re.compile(r"feature\.node\.kubernetes\.io/pci-[0-9a-f]{4}_10de.*\.present")
"""Regular expression for node feature discovery's labels of NVIDIA devices (class and vendor)."""


class ClusterNode(ClusterObject):
    """A node that the user may read."""

    @CachedProperty
    def dra_drivers(self) -> tuple[str, ...]:
        """DRA drivers that offer the node's GPUs; empty unless ResourceSlices were read."""
        return ()

    @CachedProperty
    def taints(self) -> tuple[tuple[str, str, str], ...]:
        """Key, value and effect of each taint."""
        return tuple(
            (find_string(taint, "key"), find_string(taint, "value"), find_string(taint, "effect"))
            for taint in as_objects(self.part("spec").get("taints"))
        )

    @CachedProperty
    def unschedulable(self) -> bool:
        """True if the node is cordoned."""
        return self.part("spec").get("unschedulable") is True

    @CachedProperty
    def runtime_handlers(self) -> frozenset[str] | None:
        """Handlers of the container runtime; None if the kubelet does not report them."""
        found = self.part("status").get("runtimeHandlers")
        names = frozenset(str(handler.get("name")) for handler in as_objects(found))
        return names if isinstance(found, list) else None

    @CachedProperty
    def selects_agent(self) -> bool:
        """True if a label of the node places the agent on the node, by the chart's default."""
        labels = self.labels
        is_true = any(labels.get(key) == "true" for key in (*AGENT_LABELS, NODE_GPU_LABEL))
        return is_true or any(key in labels for key in AGENT_KEYS)

    @CachedProperty
    def share_label(self) -> str | None:
        """Value of the label `vramwarden.io/share`."""
        return self.labels.get(NODE_SHARE_LABEL)

    @CachedProperty
    def closed_reason(self) -> str:
        """Reason why no more pods get GPU memory on the node; empty if more may."""
        return explain_closed(self.raw)

    @CachedProperty
    def sharing(self) -> SharingVerdict | None:
        """Verdict of the node's agent; None if the agent wrote none."""
        return read_verdict(self.raw)

    @CachedProperty
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs that the agent advertises."""
        return read_inventory(self.raw).gpus

    @CachedProperty
    def advertised(self) -> bool:
        """True if the agent advertises GPUs."""
        return is_advertised(self.raw)

    @CachedProperty
    def vram_bytes(self) -> int:
        """Allocatable VRAM, in bytes."""
        written = self.part("status", "allocatable").get(VRAM_RESOURCE)
        try:
            return max(0, int(parse_quantity(str(written))))
        except QuantityError:
            return 0

    @CachedProperty
    def is_configured(self) -> bool:
        """True if the node's amount is configured (`agent.vram`), not measured.

        Such a node has no list of GPUs; see `core.node.state.desired`.
        """
        has_list = NODE_GPUS_ANNOTATION in self.annotations
        return NODE_GPU_LABEL in self.labels and self.vram_bytes > 0 and not has_list

    @CachedProperty
    def enforcement(self) -> str:
        """Value of the enforcement label: `sidecar` or `none`."""
        return self.labels.get(NODE_ENFORCEMENT_LABEL, "")

    @CachedProperty
    def has_sentry(self) -> bool:
        """True if a label states that a sentry enforces caps on the node."""
        return self.labels.get(NODE_SENTRY_LABEL) == "true"

    @CachedProperty
    def device_names(self) -> str:
        """Scheme of GPU names that the container runtime resolves, according to a label."""
        return self.labels.get(NODE_DEVICE_NAMES_LABEL, "")

    @CachedProperty
    def driver(self) -> str:
        """Version of NVIDIA's driver, according to a label."""
        return self.labels.get(NODE_DRIVER_LABEL, "")

    @property
    def has_gpu_signs(self) -> bool:
        """True if a label, annotation or resource indicates a GPU."""
        labels = self.labels
        hints = any(key in labels for key in _GPU_LABELS) or any(map(_PCI_LABEL.fullmatch, labels))
        ours = self.selects_agent or self.vram_bytes or self.advertised
        allocators = {*find_allocator_resources(self.raw), *self.dra_drivers} - {AMD_DRA_DRIVER}
        return bool(hints or ours or allocators or HAMI_ANNOTATION in self.annotations)


CORDON_TAINT = ("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""Taint of a cordoned node."""


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: tuple[str, str, str]) -> bool:
    """Return True if a taint (key, value, effect) is tolerated, by the scheduler's rules.

    | toleration | taint | tolerated |
    | --- | --- | --- |
    | no key, Exists | any | yes |
    | no key, any other operator | any | no |
    | another key | any | no |
    | its key, Exists | any value | yes |
    | its key, Equal or nothing | its value | yes |
    | its key, Equal or nothing | another value | no |
    | its key, any other operator | any value | no |
    | an effect | another effect | no |

    Gt and Lt count as other operators: they are behind a feature gate that is off by default. The
    API server stores a toleration without a key only with Exists.

    Source: k8s.io/component-helpers, scheduling/corev1/helpers.go, and ToleratesTaint in
    k8s.io/api, core/v1/toleration.go.
    """
    key, value, effect = taint
    return any(
        toleration.get("effect") in (None, "", effect)
        and (
            toleration.get("key") in (None, "", key)
            if toleration.get("operator") == "Exists"
            else toleration.get("operator") in (None, "", "Equal")
            and (toleration.get("key"), toleration.get("value") or "") == (key, value)
        )
        for toleration in tolerations
    )
