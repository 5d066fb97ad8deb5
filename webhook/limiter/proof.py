"""Whether this node's driver holds a cgroup to an amount: tried on our own pod's.

Asking proves nothing: a driver that is too old, one whose mode is off and one that merely has no
limit there say the same. So a small amount is set and read, and then none again; our pod holds no
GPU memory, so nothing can come of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from webhook.adapters.node_nvml import NodeNvml
from webhook.adapters.nvml import NvmlError
from webhook.core.enforcement.limits import NO_LIMIT, Limit
from webhook.core.nvidia.drivers import LIMITS_FROM, Fault, Proof, ScannedGpu, can_limit_cgroups
from webhook.limiter.cgroups import NodeCgroups

MISC: Final = "misc"
DMEM: Final = "dmem"
PROOF_BYTES: Final = 64 * 2**20

_TAKES_DMEM: Final = (
    "{}: the driver limits by the kernel's controller dmem here, which takes limiter.dmem=true; or"
    " load it with RmMemacctMode=1, for misc"
)
_EXCLUSIVE: Final = 3  # NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
_VGPU: Final = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU


def prove(
    nvml: NodeNvml, version: str, gpus: Iterable[ScannedGpu], cgroups: NodeCgroups, *, dmem: bool
) -> Proof:
    """Try it on each GPU; raises NvmlError where the driver as a whole fails.

    | driver, cgroups, GPUs | holds |
    | --- | --- |
    | before r615 | not tried |
    | cgroup v1, or pods have no cgroups | not tried |
    | no GPU, or all of them in MIG mode or without memory of their own | not tried |
    | one that is a vGPU, or of one process alone, as under MPS | not tried |
    | the driver does not take it, or says another amount, on one of them | no |
    | it takes it and says it on all of them | yes |

    A vGPU's memory is the host's to limit. NVIDIA's plugin puts GPUs under MPS into compute mode
    Exclusive_Process: the driver would charge MPS's server for all that its clients hold, and
    without MPS nobody shares such a GPU.
    """
    if not can_limit_cgroups(version):
        return _not(f"not tried: driver {version} has no limits, r{LIMITS_FROM} or newer has")
    if why := cgroups.find_own():
        return _not(f"not tried: {why}")
    whole = [gpu for gpu in gpus if not gpu.mig and gpu.usable_bytes]
    if not whole:
        return _not("not tried: no GPU here has memory of its own and is not in MIG mode")
    found: set[str] = set()
    for gpu in whole:
        try:
            proof = _prove_on(nvml, gpu.uuid, cgroups, dmem=dmem)
        except NvmlError as error:
            if error.fault in (Fault.DRIVER_DOWN, Fault.DRIVER_CHANGED):
                raise
            return _not(why_denied(error))
        except OSError as error:
            return _not(f"our own cgroup cannot be used: {error}")
        if not proof.holds:
            return proof
        found.add(proof.back_end)
    if len(found) > 1:
        return _not("the driver limits one GPU by misc and another by dmem")
    return Proof(holds=True, back_end=found.pop())


def why_denied(error: NvmlError) -> str:
    """Say why a limit was not set, and what to do where it is a right that is missing."""
    if error.fault is Fault.NO_PERMISSION:
        return (
            f"{error.gpu}: the driver denies it to us (code {error.code}): it takes CAP_SYS_ADMIN"
            " of the node, which user namespaces (hostUsers: false) and whatever narrows the pod's"
            " capabilities take away"
        )
    return str(error)


def _prove_on(nvml: NodeNvml, uuid: str, cgroups: NodeCgroups, *, dmem: bool) -> Proof:
    """Set on our own pod, and read it there and on our container.

    Which back end it is, nothing tells, for the mode that the driver was loaded with decides. On
    misc a container reads its pod's limit; on dmem it has a file of its own.
    """
    compute, virtual = nvml.modes(uuid)
    if virtual == _VGPU:
        return _not(f"not tried: {uuid} is a vGPU, whose memory its host limits")
    if compute == _EXCLUSIVE:
        return _not(f"not tried: {uuid} is of one process alone (Exclusive_Process), as under MPS")
    pod, leaf = cgroups.for_driver(cgroups.own_pod), cgroups.for_driver(cgroups.own_leaf)
    taken = nvml.set_limit(uuid, pod, 0, PROOF_BYTES)
    if not taken and dmem and cgroups.offers_dmem():
        cgroups.enable_dmem(cgroups.own_pod)
        taken = nvml.set_limit(uuid, pod, 0, PROOF_BYTES)
    if not taken and not dmem and cgroups.offers_dmem():
        return _not(f"not tried: {_TAKES_DMEM.format(uuid)}")
    if not taken:
        return _not(f"{uuid}: the driver takes no limit (by its mode RmMemacctMode, or the kernel)")
    says, inherited = (nvml.limit(uuid, path) for path in (pod, leaf))
    back_end = MISC if _is_proof(inherited) else DMEM
    if back_end == DMEM and dmem:
        nvml.set_limit(uuid, leaf, 0, PROOF_BYTES)
        inherited = nvml.limit(uuid, leaf)
        nvml.set_limit(uuid, leaf, 0, NO_LIMIT)
    nvml.set_limit(uuid, pod, 0, NO_LIMIT)
    if not _is_proof(says):
        return _not(f"{uuid}: the driver took a limit of {PROOF_BYTES} bytes and says {says}")
    if back_end == DMEM and not dmem:
        return _not(_TAKES_DMEM.format(uuid))
    if not _is_proof(inherited):
        return _not(f"{uuid}: the driver holds no container apart: it says {inherited}")
    return Proof(holds=True, back_end=back_end)


def _is_proof(limit: Limit | None) -> bool:
    return limit is not None and limit.hard_bytes == PROOF_BYTES


def _not(why: str) -> Proof:
    return Proof(holds=False, why=why)
