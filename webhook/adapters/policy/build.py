"""From the parsed documents of all files to one policy, with what only shows across them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from webhook.adapters.policy.bounds import contradictions
from webhook.adapters.policy.parts import ResourcesPart
from webhook.adapters.yaml_documents import Document, Path, Problem, show, show_path
from webhook.core.pod.quantity import parse_quantity
from webhook.core.policy.match import Match, Subject, with_name
from webhook.core.policy.patterns import matches_any
from webhook.core.policy.values import (
    WHOLE_GPU_RESOURCES,
    Action,
    Amounts,
    Bounds,
    Enforcement,
    Example,
    GPUClass,
    Policy,
    Rule,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from webhook.adapters.policy.models import (
        ClassPart,
        EnforcementPart,
        ExamplePart,
        ExceptPart,
        MatchPart,
        PolicyFile,
        RulePart,
    )
    from webhook.adapters.policy.parts import EnvPart, MemoryPart, TolerationPart


@dataclass(frozen=True, slots=True)
class PolicyDocument:
    """A document that has the right shape, and where it came from."""

    file: str
    document: Document
    content: PolicyFile

    def where(self, *path: str | int) -> str:
        """Return file and line of a path; of an object, which has no lines, the path itself."""
        line = self.document.line(path)
        return f"{self.file}:{line}" if line else f"{self.file}: {show_path(path)}"

    def problem(self, path: Path, detail: str) -> Problem:
        """Return a problem at a path."""
        return Problem(self.file, self.document.line(path), show_path(path), detail)


@dataclass(slots=True)
class _Found:
    """What the files hold together, and where each name was defined first."""

    rules: dict[str, Rule] = field(default_factory=dict)
    classes: dict[str, GPUClass] = field(default_factory=dict)
    places: dict[tuple[str, str], str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def is_new(self, source: PolicyDocument, kind: str, name: str, path: Path) -> bool:
        """Note where a name is defined; a second definition is a problem that names the first."""
        first = self.places.get((kind, name))
        if first is None:
            self.places[kind, name] = source.where(*path)
            return True
        detail = f"{kind} {show(name)} is defined twice; it stands in {first} already"
        self.problems.append(source.problem(path, detail))
        return False


def build_policy(
    sources: list[PolicyDocument], other_classes: Iterable[str], *, digest: str, enforcer_image: str
) -> tuple[Policy, list[Problem]]:
    """Put sources together, in their order.

    `other_classes` are names of classes in files that cannot be used: rules may name them, so that
    one mistake does not cause a second message.
    """
    found = _Found()
    for source in sources:
        spec = source.content.spec
        for name, part in spec.classes.items():
            if found.is_new(source, "class", name, ("spec", "classes", name)):
                found.classes[name] = _class(name, part)
        for index, rule in enumerate(spec.rules):
            if found.is_new(source, "rule", rule.name, ("spec", "rules", index, "name")):
                where = source.where("spec", "rules", index)
                found.rules[rule.name] = _rule(rule, enforcer_image, where)
    known = {*found.classes, *other_classes}
    for source in sources:
        for index, rule in enumerate(source.content.spec.rules):
            path: Path = ("spec", "rules", index)
            found.problems.extend(_check_classes(source, path, rule, known))
            found.problems.extend(_check_bounds(source, path, rule, found))
            found.problems.extend(_check_selectors(source, path, rule, found))
    policy = Policy(
        rules=tuple(found.rules.values()),
        classes=found.classes,
        whole_gpu_resources=_whole_gpu_resources(sources),
        examples=tuple(_examples(sources)),
        digest=digest,
    )
    return policy, found.problems


def _check_classes(
    source: PolicyDocument, path: Path, rule: RulePart, known: set[str]
) -> Iterator[Problem]:
    """Yield the classes that a rule names and nobody defines, or that it does not allow itself."""
    have = f"the policy has {', '.join(sorted(known)) or 'no classes'}"
    for index, name in enumerate(rule.classes.allowed):
        if "*" not in name and name not in known:
            place = (*path, "classes", "allowed", index)
            yield source.problem(place, f"class {show(name)} is not defined; {have}")
    for name in rule.classes.memory:
        place = (*path, "classes", "memory", name)
        if name not in known:
            yield source.problem(place, f"class {show(name)} is not defined; {have}")
        elif not matches_any(name, tuple(rule.classes.allowed)):
            yield source.problem(
                place, f"class {show(name)} is not in classes.allowed; add it there"
            )
    default = rule.classes.default
    place = (*path, "classes", "default")
    if default is not None and default not in known:
        yield source.problem(place, f"class {show(default)} is not defined; {have}")
    elif default is not None and not matches_any(default, tuple(rule.classes.allowed)):
        detail = f"class {show(default)} is not in classes.allowed; add it there"
        yield source.problem(place, detail)


def _check_bounds(
    source: PolicyDocument, path: Path, rule: RulePart, found: _Found
) -> Iterator[Problem]:
    """Yield bounds of a rule and its classes that no pod can meet together."""
    places = {name: place for (kind, name), place in found.places.items() if kind == "class"}

    def where(*below: str) -> str:
        return source.where(*path, *below)

    problems = contradictions(
        found.rules[rule.name], found.classes, where=where, class_places=places
    )
    for place, detail in problems:
        yield source.problem((*path, *place), detail)


def _check_selectors(
    source: PolicyDocument, path: Path, rule: RulePart, found: _Found
) -> Iterator[Problem]:
    """Yield labels for which a rule and a class that it allows want different values."""
    if rule.action is Action.IGNORE:
        return
    for name, gpu_class in found.classes.items():
        if not matches_any(name, tuple(rule.classes.allowed)):
            continue
        for key, value in gpu_class.node_selector.items():
            wanted = rule.node_selector.get(key, value)
            if wanted != value:
                detail = (
                    f"wants {show(wanted)} but class {show(name)} in "
                    f"{found.places['class', name]} wants {show(value)}, so no node fits; "
                    "make them agree, or leave the class out of classes.allowed"
                )
                yield source.problem((*path, "nodeSelector", key), detail)


def _whole_gpu_resources(sources: list[PolicyDocument]) -> tuple[str, ...]:
    """Return the union of what the files name; the default where none names any."""
    named = [
        source.content.spec.whole_gpu_resources
        for source in sources
        if "whole_gpu_resources" in source.content.spec.model_fields_set
    ]
    if not named:
        return WHOLE_GPU_RESOURCES
    return tuple(dict.fromkeys(resource for resources in named for resource in resources))


def _class(name: str, part: ClassPart) -> GPUClass:
    return GPUClass(
        name,
        part.node_selector,
        _tolerations(part.tolerations),
        _bounds(part.memory),
        part.accounting,
    )


def _rule(part: RulePart, enforcer_image: str, where: str) -> Rule:
    return Rule(
        name=part.name,
        match=_match(part.match),
        action=part.action,
        memory=_bounds(part.memory),
        max_gpu_count=part.gpu_count.max,
        allowed_classes=tuple(part.classes.allowed),
        default_class=part.classes.default,
        class_memory={name: _bounds(bounds) for name, bounds in part.classes.memory.items()},
        node_selector=part.node_selector,
        tolerations=_tolerations(part.tolerations),
        runtime_class_name=part.runtime_class_name,
        env=tuple(_variable(entry) for entry in part.env),
        programs=tuple(program.value for program in part.programs),
        visible_devices=part.visible_devices,
        isolation=part.isolation,
        host_paths=part.host_paths,
        capabilities=frozenset(part.capabilities),
        device_annotations=tuple(part.device_annotations),
        resource_claims=part.resource_claims,
        translate_whole_gpu_bytes=part.translate_whole_gpu,
        accounting=part.accounting,
        time_sliced_resource=part.time_sliced_resource.value,
        advice=part.advice,
        placement=part.placement,
        enforcement=_enforcement(part.enforcement, enforcer_image),
        message=part.message,
        where=where,
    )


def _match(part: MatchPart) -> Match:
    return replace(_criteria(part), exception=_criteria(part.exception) if part.exception else None)


def _criteria(part: MatchPart | ExceptPart) -> Match:
    return Match(
        namespaces=tuple(part.namespaces),
        pod_labels=part.pod_labels,
        namespace_labels=part.namespace_labels,
        service_accounts=tuple(part.service_accounts),
        users=tuple(part.users),
        groups=tuple(part.groups),
    )


def _bounds(part: MemoryPart) -> Bounds:
    return Bounds(part.min, part.max)


def _enforcement(part: EnforcementPart, enforcer_image: str) -> Enforcement:
    return Enforcement(
        by=part.by,
        style=part.style,
        run_as=part.run_as,
        image=part.image or enforcer_image,
        poll_interval=part.poll_interval,
        grace=part.grace,
        tolerance=part.tolerance,
        blind_after=part.blind_after,
        when_blind=part.when_blind,
        on_excess=part.on_excess,
        pod_restart=part.pod_restart,
        image_pull_secrets=tuple(part.image_pull_secrets),
        resources=_amounts(part.resources or ResourcesPart()),
    )


def _amounts(part: ResourcesPart) -> Amounts:
    requests, limits = part.requests, part.limits
    return Amounts(requests.cpu, limits.cpu, requests.memory, limits.memory)


def _tolerations(parts: list[TolerationPart]) -> tuple[dict[str, Any], ...]:
    """Write tolerations as the API server stores them: what is empty is absent.

    Otherwise a stored toleration would not equal the wanted one, and be added again.
    """
    return tuple(
        {
            key: value
            for key, value in part.model_dump(by_alias=True, exclude_unset=True).items()
            if value not in {None, ""}
        }
        for part in parts
    )


def _variable(part: EnvPart) -> dict[str, Any]:
    """Write a variable as the API server stores it: no empty value, a field with its version."""
    variable: dict[str, Any] = {"name": part.name}
    if part.value:
        variable["value"] = part.value
    if part.value_from:
        ((kind, reference),) = part.value_from.items()
        versioned = {"apiVersion": "v1", **reference} if kind == "fieldRef" else reference
        variable["valueFrom"] = {kind: versioned}
    return variable


def _examples(sources: list[PolicyDocument]) -> Iterator[Example]:
    for source in sources:
        for index, part in enumerate(source.content.spec.examples):
            yield _example(part, source.where("spec", "examples", index))


def _example(part: ExamplePart, where: str) -> Example:
    pod, expect = part.pod, part.expect
    metadata: dict[str, Any] = {"name": pod.name, "namespace": pod.namespace}
    metadata |= {"labels": pod.labels, "annotations": pod.annotations}
    spec = pod.spec
    if spec is None:
        spec = {"containers": [{"name": "main", "image": "example"}]}
    return Example(
        name=part.name,
        where=where,
        subject=Subject(
            pod.namespace,
            pod.labels,
            with_name(pod.namespace, pod.namespace_labels),
            user=pod.user,
            groups=tuple(pod.groups),
        ),
        pod={"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
        allowed=expect.allowed,
        reasons=None if expect.reasons is None else tuple(map(str, expect.reasons)),
        rule=expect.rule,
        vram=None if expect.vram is None else Fraction(parse_quantity(expect.vram)),
        node_selector=expect.node_selector,
        runtime_class_name=expect.runtime_class_name,
        runtime_classes=frozenset(part.runtime_classes),
        mig_profiles=part.mig_profiles,
        annotations=expect.annotations,
        tolerations=None if expect.tolerations is None else _tolerations(expect.tolerations),
        env=expect.env,
        resources=None
        if expect.resources is None
        else {name: parse_quantity(amount) for name, amount in expect.resources.items()},
        translated=expect.pod,
    )
