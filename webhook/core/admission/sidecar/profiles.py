"""Under which AppArmor and SELinux profiles the sidecar runs, so that its signals get through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from webhook.core.admission.sidecar.user import holders_of
from webhook.core.pod.fields import Json, mapping, text
from webhook.names import APP_ARMOR_ANNOTATION_PREFIX, ENFORCER_CONTAINER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.views import Container, Pod


@dataclass(frozen=True, slots=True)
class _Setting:
    """A field of security contexts; a container's own replaces all of its pod's."""

    name: str
    keys: tuple[str, ...]
    default: Json = field(default_factory=dict)
    """What runtimes take where nothing is set."""


_APP_ARMOR: Final = _Setting(
    "appArmorProfile", ("type", "localhostProfile"), {"type": "RuntimeDefault"}
)
_SELINUX: Final = _Setting("seLinuxOptions", ("user", "role", "type", "level"))


@dataclass(frozen=True, slots=True)
class Confinement:
    """What the containers with VRAM have of one setting."""

    name: str
    inherited: Json
    """What a container has that sets nothing itself."""
    first: Container
    wanted: Json
    """What the first of them has."""
    odd: Container | None
    """The first of the others that has something else."""
    note: str | None
    """The annotation by which the first of them has it, instead of the field."""

    @property
    def enforcers(self) -> Json:
        """Return what the sidecar has to have."""
        return self.wanted if self.odd is None else self.inherited


NOTE: Final = APP_ARMOR_ANNOTATION_PREFIX + ENFORCER_CONTAINER


def confinements(pod: Pod, demand: Demand) -> Iterator[Confinement]:
    """Yield how the containers with VRAM are confined, by each setting; nothing if none is set."""
    holders = holders_of(demand, pod)
    of_pod = mapping(pod.spec, "securityContext", "spec")
    contexts = [container.security_context() for container in holders]
    annotated = [pod.annotations.get(APP_ARMOR_ANNOTATION_PREFIX + one.name) for one in holders]
    if not (of_pod or any(contexts) or any(annotated) or NOTE in pod.annotations):
        return
    for setting in (_APP_ARMOR, _SELINUX):
        default = _read(of_pod, setting, "spec")
        inherited = setting.default if default is None else default
        each = [
            _read(context, setting, container.path)
            for container, context in zip(holders, contexts, strict=True)
        ]
        note = None
        if setting is _APP_ARMOR:
            note = annotated[0] if each[0] is None else None
            each = list(map(_or_annotated, each, annotated))
        wanted, *others = (inherited if own is None else own for own in each)
        odd = (one for one, own in zip(holders[1:], others, strict=True) if own != wanted)
        yield Confinement(setting.name, inherited, holders[0], wanted, next(odd, None), note)


def enforcer_profiles(pod: Pod, demand: Demand) -> dict[str, Json]:
    """Return the profiles of the sidecar's security context.

    The default profiles of runtimes let signals pass between processes of one AppArmor profile
    only, and SELinux keeps apart what has other labels; so the sidecar takes what the containers
    with VRAM have. Pod Security checks each container by itself: what it allows them, it allows us.

    | containers with VRAM | podRestart | sidecar |
    | --- | --- | --- |
    | agree | any | as they |
    | differ | RestartAllContainers | as the pod |
    | differ | None | EnforcementImpossible |
    """
    return {
        confined.name: confined.enforcers
        for confined in confinements(pod, demand)
        if confined.enforcers != confined.inherited and not confined.note
    }


def enforcer_note(pod: Pod, demand: Demand) -> str | None:
    """Return the AppArmor annotation of the sidecar; None where it may have none.

    API servers before 1.30 drop the field; newer ones make it of the annotation, and write an
    annotation for a field, after translation. So what came by annotation is passed on by
    annotation, which is right for both; any other stays only where it says what the sidecar has.
    """
    present = pod.annotations.get(NOTE)
    for confined in confinements(pod, demand):
        if confined.name == _APP_ARMOR.name:
            if confined.note and confined.enforcers != confined.inherited:
                return confined.note
            return present if _or_annotated(None, present) == confined.enforcers else None
    return None


def _read(context: Mapping[str, Any], setting: _Setting, path: str) -> Json | None:
    """Read the field from a security context, as the API server stores it."""
    if context.get(setting.name) is None:
        return None
    value = mapping(context, setting.name, path, "securityContext")
    path = f"{path}.securityContext.{setting.name}"
    return {key: found for key in setting.keys if (found := text(value, key, path))}


def _or_annotated(own: Json | None, profile: str | None) -> Json | None:
    """Read an annotation as the API server does, which makes it a field before it stores the pod.

    Source: k8s.io/kubernetes/pkg/registry/core/pod/strategy.go.
    """
    if own is not None or not profile:
        return own
    kind, _, name = profile.partition("/")
    if profile == "unconfined":
        return {"type": "Unconfined"}
    if profile == "runtime/default":
        return {"type": "RuntimeDefault"}
    return {"type": "Localhost", "localhostProfile": name} if kind == "localhost" and name else None
