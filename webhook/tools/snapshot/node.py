"""A node of the cluster, as tools read it, and which of its taints a pod tolerates."""

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
from webhook.tools.snapshot.objects import ClusterObject, LazyFact

AGENT_LABELS: Final = ("feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present")
"""Labels that bring the agent to a node where they are `true` (`agent.affinity` of the chart)."""
AGENT_KEYS: Final = ("nvidia.com/gpu.count", NODE_SHARE_LABEL)
"""Labels that bring it with any value; GPU feature discovery alone sets none to `true`."""
REPELLING: Final = ("NoSchedule", "NoExecute")
"""Effects of taints that keep pods away."""
SAID: Final = "said, not measured (agent.vram)"
"""Words for amounts of nodes with `ClusterNode.said`."""
_GPU_LABELS: Final = (
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
)
"""Further signs of a GPU, which do not bring the agent."""
_PCI_LABEL: Final = re.compile(r"feature\.node\.kubernetes\.io/pci-[0-9a-f]{4}_10de.*\.present")
"""Label of node feature discovery for NVIDIA's devices: class and vendor."""


class ClusterNode(ClusterObject):
    """A node that the user may read."""

    @LazyFact
    def dra_drivers(self) -> tuple[str, ...]:
        """DRA drivers that give its GPUs away; empty unless ResourceSlices were read."""
        return ()

    @LazyFact
    def taints(self) -> tuple[tuple[str, str, str], ...]:
        """Key, value and effect of each."""
        return tuple(
            (find_string(one, "key"), find_string(one, "value"), find_string(one, "effect"))
            for one in as_objects(self.part("spec").get("taints"))
        )

    @LazyFact
    def unschedulable(self) -> bool:
        """True if it is cordoned."""
        return self.part("spec").get("unschedulable") is True

    @LazyFact
    def handlers(self) -> frozenset[str] | None:
        """Handlers of its container runtime; None if the kubelet does not report them."""
        found = self.part("status").get("runtimeHandlers")
        names = frozenset(str(one.get("name")) for one in as_objects(found))
        return names if isinstance(found, list) else None

    @LazyFact
    def brings_agent(self) -> bool:
        """True if a label of it brings the agent there by the chart's default."""
        labels = self.labels
        is_true = any(labels.get(key) == "true" for key in (*AGENT_LABELS, NODE_GPU_LABEL))
        return is_true or any(key in labels for key in AGENT_KEYS)

    @LazyFact
    def share(self) -> str | None:
        """Value of the label `vramwarden.io/share`."""
        return self.labels.get(NODE_SHARE_LABEL)

    @LazyFact
    def closed(self) -> str:
        """Reason why no further pod gets a GPU of it; empty if one may."""
        return explain_closed(self.raw)

    @LazyFact
    def sharing(self) -> SharingVerdict | None:
        """Verdict of its agent; None if it wrote none."""
        return read_verdict(self.raw)

    @LazyFact
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs that it advertises."""
        return read_inventory(self.raw).gpus

    @LazyFact
    def advertised(self) -> bool:
        """True if its agent advertises GPUs."""
        return is_advertised(self.raw)

    @LazyFact
    def vram_bytes(self) -> int:
        """Allocatable VRAM."""
        written = self.part("status", "allocatable").get(VRAM_RESOURCE)
        try:
            return max(0, int(parse_quantity(str(written))))
        except QuantityError:
            return 0

    @LazyFact
    def said(self) -> bool:
        """True if its amount is configured (`agent.vram`), not measured.

        A fixed amount has no list of GPUs; see `core.node.state.desired`.
        """
        has_list = NODE_GPUS_ANNOTATION in self.annotations
        return NODE_GPU_LABEL in self.labels and self.vram_bytes > 0 and not has_list

    @LazyFact
    def enforcement(self) -> str:
        """Value of its label: `sidecar` or `none`."""
        return self.labels.get(NODE_ENFORCEMENT_LABEL, "")

    @LazyFact
    def has_sentry(self) -> bool:
        """True if its label states that a sentry holds caps there."""
        return self.labels.get(NODE_SENTRY_LABEL) == "true"

    @LazyFact
    def device_names(self) -> str:
        """Value of its label: the scheme of names of GPUs that its runtime resolves."""
        return self.labels.get(NODE_DEVICE_NAMES_LABEL, "")

    @LazyFact
    def driver(self) -> str:
        """Value of its label: the version of NVIDIA's driver."""
        return self.labels.get(NODE_DRIVER_LABEL, "")

    @property
    def shows_gpus(self) -> bool:
        """True if anything shows that it has a GPU."""
        labels = self.labels
        hints = any(key in labels for key in _GPU_LABELS) or any(map(_PCI_LABEL.fullmatch, labels))
        ours = self.brings_agent or self.vram_bytes or self.advertised
        allocators = {*find_allocator_resources(self.raw), *self.dra_drivers} - {AMD_DRA_DRIVER}
        return bool(hints or ours or allocators or HAMI_ANNOTATION in self.annotations)


CORDONED = ("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""Taint of a cordoned node."""


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: tuple[str, str, str]) -> bool:
    """Return True if a taint (key, value, effect) is tolerated, compared as by the scheduler.

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

    Gt and Lt are such operators: they compare numbers behind a feature gate that is off by default.
    The API server stores a toleration without a key only with Exists.

    Source: k8s.io/component-helpers, scheduling/corev1/helpers.go, and ToleratesTaint in
    k8s.io/api, core/v1/toleration.go.
    """
    key, value, effect = taint
    return any(
        one.get("effect") in (None, "", effect)
        and (
            one.get("key") in (None, "", key)
            if one.get("operator") == "Exists"
            else one.get("operator") in (None, "", "Equal")
            and (one.get("key"), one.get("value") or "") == (key, value)
        )
        for one in tolerations
    )
