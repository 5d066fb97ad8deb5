"""Who holds memory that nobody was promised: found and reported, never a reason to stop anybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from webhook.core.node.cgroups import comparable_uid
from webhook.core.words import amount
from webhook.sentry.figures import OLD_LIST_S
from webhook.sentry.judge import has

if TYPE_CHECKING:
    from webhook.core.placement.assignments import Assignment, Assignments
    from webhook.sentry.observer import Held, Look, SeenGpu

NEW_S: Final = 60.0
"""For so long a pod that is not on the list is not called unmanaged: its binding, and the list's
way to us, take a moment."""

REPORTED_BYTES: Final = 256 * 2**20
"""From here on it is an Event: less is a context, which pushes nobody out of memory."""


@dataclass(frozen=True, slots=True)
class Unmanaged:
    """Memory without a promise."""

    gpu: SeenGpu
    pod: str
    """The pod's UID; empty for processes of no pod."""
    held_bytes: int
    listed: bool = False
    """The pod has other GPUs of this node."""

    def sentence(self) -> str:
        """Say it, as an Event has it."""
        what = f"{amount(self.held_bytes)} on GPU {self.gpu.index} ({self.gpu.uuid}) are held by"
        if not self.pod:
            return f"{what} processes of no pod; they can push pods out of memory"
        if self.listed:
            return f"{what} pod uid {self.pod}, which was given other GPUs; it can push others out"
        return f"{what} pod uid {self.pod}, which was promised none; it can push others out"


class Audit:
    """Remembers the last list of each GPU, and since when pods were seen on them."""

    def __init__(self) -> None:
        self._lines: dict[str, Assignment] = {}
        self._held: dict[str, tuple[SeenGpu, tuple[Held, ...], float]] = {}
        """With when it was listed."""
        self._seen_s: dict[str, float] = {}

    def know(self, assignments: Assignments) -> None:
        """Take a list."""
        self._lines = {comparable_uid(uid): line for uid, line in assignments.items()}

    @property
    def holds(self) -> bool:
        """Whether anybody holds anything."""
        return any(held for _, held, _ in self._held.values())

    def see(self, look: Look, now_s: float) -> None:
        """Take note of a look; GPUs that could not be seen are unknown from then on.

        So are those whose list could not be read again for `OLD_LIST_S`.
        """
        seen = {gpu.uuid: gpu for gpu in look.gpus}
        lists = {uuid: (held, at_s) for uuid, (_, held, at_s) in self._held.items()}
        lists |= {uuid: (held, now_s) for uuid, held in look.lists.items()}
        self._held = {
            uuid: (seen[uuid], held, at_s)
            for uuid, (held, at_s) in lists.items()
            if uuid in seen and now_s - at_s < OLD_LIST_S
        }
        held_now = (one for _, held, _ in self._held.values() for one in held)
        pods = {one.owner.place.pod for one in held_now if one.owner}
        self._seen_s = {pod: self._seen_s.get(pod, now_s) for pod in pods}

    def unmanaged(self, now_s: float, fresh_s: float | None) -> tuple[Unmanaged, ...]:
        """Return who holds what without a promise; nothing where the list cannot be followed.

        `fresh_s` is since when it can; None where it cannot.

        | processes of | on a GPU | are unmanaged |
        | --- | --- | --- |
        | no pod, or ended before they were seen | any | at once |
        | a pod on the list | its line names | never |
        | a pod on the list | its line does not name | at once |
        | any other pod | any | `NEW_S` after it was first seen, under a list followed so long |

        What has no figure adds nothing.
        """
        if fresh_s is None:
            return ()
        found: list[Unmanaged] = []
        for gpu, held, _ in self._held.values():
            sums: dict[str, int] = {}
            for one in held:
                pod = one.owner.place.pod if one.owner else ""
                if one.used_bytes and self._is_unmanaged(pod, gpu.uuid, now_s, fresh_s):
                    sums[pod] = sums.get(pod, 0) + one.used_bytes
            found += (Unmanaged(gpu, pod, sums[pod], pod in self._lines) for pod in sorted(sums))
        return tuple(found)

    def _is_unmanaged(self, pod: str, gpu: str, now_s: float, fresh_s: float) -> bool:
        if not pod:
            return True
        if line := self._lines.get(pod):
            return not has(line, gpu)
        return now_s - max(self._seen_s.get(pod, now_s), fresh_s) >= NEW_S
