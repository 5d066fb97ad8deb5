"""Building one policy from the documents of all files, with checks across documents.

`parts.Part.build` converts a part to values of `core.policy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from webhook.adapters.policy.models import ExamplePart, PolicyFile, RulePart
from webhook.adapters.policy.parts import ResourcesPart
from webhook.adapters.yaml_documents import Document, DocumentProblem, Path, show, show_path
from webhook.core.pod.quantity import format_bytes
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.core.policy.match import add_name_label, matches_any
from webhook.core.policy.model import (
    Accounting,
    Action,
    DriverLimit,
    EnforceBy,
    Enforcement,
    Example,
    GPUClass,
    Policy,
    Rule,
)
from webhook.names import NODE_DRIVER_LIMIT_LABEL


@dataclass(frozen=True, slots=True)
class PolicyDocument:
    """A validated document, with its file and line numbers."""

    file: str
    document: Document
    content: PolicyFile

    def where(self, *path: str | int) -> str:
        """Return the location of a path: file and line."""
        return f"{self.file}:{self.document.line(path)}"

    def problem(self, path: Path, detail: str) -> DocumentProblem:
        """Return a problem at a path."""
        return DocumentProblem(self.file, self.document.line(path), show_path(path), detail)


@dataclass(frozen=True, slots=True)
class DefinedTwice(DocumentProblem):
    """A rule or class whose name is already in use, in the same file or another one."""


@dataclass(slots=True)
class _Definitions:
    """Rules and classes of all files, and the location of each name's first definition."""

    rules: dict[str, Rule] = field(default_factory=dict)
    classes: dict[str, GPUClass] = field(default_factory=dict)
    places: dict[tuple[str, str], str] = field(default_factory=dict)
    problems: list[DocumentProblem] = field(default_factory=list)

    def is_new(self, source: PolicyDocument, kind: str, name: str, path: Path) -> bool:
        """Record the definition of a name; if it exists already, add a problem and return False."""
        first = self.places.get((kind, name))
        if first is None:
            self.places[kind, name] = source.where(*path)
            return True
        detail = f"{kind} {show(name)} is defined twice; it stands in {first} already"
        place = (source.file, source.document.line(path), show_path(path))
        self.problems.append(DefinedTwice(*place, detail))
        return False


def build_policy(
    sources: list[PolicyDocument], other_classes: Iterable[str], *, digest: str, enforcer_image: str
) -> tuple[Policy, list[DocumentProblem]]:
    """Return the policy that the documents define, in their order, and all problems.

    `other_classes` are the names of classes in invalid documents. Rules may name them, so that one
    mistake does not cause a second message.
    """
    found = _Definitions()
    for source in sources:
        spec = source.content.spec
        for name, part in spec.classes.items():
            if found.is_new(source, "class", name, ("spec", "classes", name)):
                found.classes[name] = GPUClass(**part.build_fields(name=name))
        for index, rule in enumerate(spec.rules):
            if found.is_new(source, "rule", rule.name, ("spec", "rules", index, "name")):
                where = source.where("spec", "rules", index)
                found.rules[rule.name] = _rule(rule, enforcer_image, where)
    class_names = {*found.classes, *other_classes}
    for source in sources:
        for index, rule in enumerate(source.content.spec.rules):
            path: Path = ("spec", "rules", index)
            found.problems.extend(_check_classes(source, path, rule, class_names))
            found.problems.extend(_check_translation(source, path, found.rules[rule.name]))
            found.problems.extend(_check_nodes(source, path, rule, found))
    policy = Policy(
        rules=tuple(found.rules.values()),
        classes=found.classes,
        whole_gpu_resources=_whole_gpu_resources(sources),
        examples=tuple(
            _example(part, source.where("spec", "examples", index))
            for source in sources
            for index, part in enumerate(source.content.spec.examples)
        ),
        digest=digest,
    )
    return policy, found.problems


def _check_classes(
    source: PolicyDocument, path: Path, rule: RulePart, class_names: set[str]
) -> Iterator[DocumentProblem]:
    """Yield a problem for each undefined class of a rule, and for a default that is not allowed."""
    have = f"the policy has {', '.join(sorted(class_names)) or 'no classes'}"
    for index, name in enumerate(rule.classes.allowed_classes):
        if "*" not in name and name not in class_names:
            place = (*path, "classes", "allowed", index)
            yield source.problem(place, f"class {show(name)} is not defined; {have}")
    default, at = rule.classes.default_class, (*path, "classes", "default")
    if default is None:
        return
    if default not in class_names:
        yield source.problem(at, f"class {show(default)} is not defined; {have}")
    elif not matches_any(default, tuple(rule.classes.allowed_classes)):
        detail = f"class {show(default)} is not in classes.allowed; add it there"
        yield source.problem(at, detail)


def _check_translation(source: PolicyDocument, path: Path, rule: Rule) -> Iterator[DocumentProblem]:
    """Yield a problem if the rule's limits deny the amount of `translateWholeGPU`."""
    amount, memory = rule.translate_whole_gpu_bytes, rule.memory
    if amount is None:
        return
    where = f"memory in {source.where(*path, 'memory')}"
    if memory.max_bytes is not None and amount > memory.max_bytes:
        clash = f"is more than {where} allows, {format_bytes(memory.max_bytes)}"
    elif memory.min_bytes is not None and amount < memory.min_bytes:
        clash = f"is less than {where} wants, {format_bytes(memory.min_bytes)}"
    else:
        return
    detail = f"{format_bytes(amount)} {clash}; make them agree, or no pod is translated"
    yield source.problem((*path, "translateWholeGPU"), detail)


def _check_nodes(
    source: PolicyDocument, path: Path, part: RulePart, found: _Definitions
) -> Iterator[DocumentProblem]:
    """Yield conflicts within a rule, and with the classes it allows; none if its action is Ignore.

    | conflict | condition |
    | --- | --- |
    | node labels of the rule and a class have different values | |
    | a node label of the rule excludes nodes whose driver limits memory | driverLimit Require |
    | no GPU is chosen for pods of a class | driverLimit Require |
    | a class's accounting is CapOnly | by Sentry |
    """
    rule = found.rules[part.name]
    if rule.action is Action.IGNORE:
        return
    limits: Path = (*path, "enforcement", "driverLimit")
    wanted = rule.node_selector_for(None)
    label = wanted.get(NODE_DRIVER_LIMIT_LABEL)
    if label != rule.node_selector.get(NODE_DRIVER_LIMIT_LABEL, label):
        key = f"nodeSelector[{NODE_DRIVER_LIMIT_LABEL}]"
        yield source.problem(limits, f"Require selects {show(label)}; remove {key} of the rule")
    for name, gpu_class in found.classes.items():
        if not matches_any(name, rule.allowed_classes):
            continue
        where = f"class {show(name)} in {found.places['class', name]}"
        leave = "leave the class out of classes.allowed"
        for key, value in gpu_class.node_selector.items():
            if wanted.get(key, value) != value:
                detail = (
                    f"wants {show(wanted[key])} but {where} wants {show(value)}, so no node fits; "
                    f"make them agree, or {leave}"
                )
                at = (*path, "nodeSelector", key) if key in rule.node_selector else limits
                yield source.problem(at, detail)
        of_class = rule.for_class(gpu_class)
        if rule.driver_limit is DriverLimit.REQUIRE and not of_class.chooses_gpus:
            detail = f"Require needs accounting VRAM, also of {where}; write Auto, or {leave}"
            yield source.problem(limits, detail)
        by_sentry = of_class.enforcement.by is EnforceBy.SENTRY
        if by_sentry and of_class.accounting is Accounting.CAP_ONLY:
            detail = f"Sentry needs accounting VRAM, also of {where}; write Sidecar, or {leave}"
            yield source.problem((*path, "enforcement", "by"), detail)


def _whole_gpu_resources(sources: list[PolicyDocument]) -> tuple[str, ...]:
    """Return the union of the files' lists, or the default if no file has a list."""
    named = [
        source.content.spec.whole_gpu_resources
        for source in sources
        if "whole_gpu_resources" in source.content.spec.model_fields_set
    ]
    if not named:
        return WHOLE_GPU_RESOURCES
    return tuple(dict.fromkeys(resource for resources in named for resource in resources))


def _rule(part: RulePart, enforcer_image: str, where: str) -> Rule:
    enforcement = part.enforcement.build_fields(
        image=part.enforcement.image or enforcer_image,
        resources=(part.enforcement.resources or ResourcesPart()).build(),
    )
    return Rule(
        **part.build_fields(
            capabilities=frozenset(part.capabilities),
            enforcement=Enforcement(**enforcement),
            where=where,
        )
    )


def _example(part: ExamplePart, where: str) -> Example:
    pod, expect = part.pod, part.expect
    metadata: dict[str, Any] = {"name": pod.name, "namespace": pod.namespace}
    metadata |= {"labels": pod.labels, "annotations": pod.annotations}
    spec = pod.spec
    if spec is None:
        spec = {"containers": [{"name": "main", "image": "example"}]}
    return Example(
        **expect.build_fields(
            name=part.name,
            where=where,
            namespace=pod.namespace,
            namespace_labels=add_name_label(pod.namespace, pod.namespace_labels),
            pod={"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
            runtime_classes=frozenset(part.runtime_classes),
            mig_profiles=part.mig_profiles,
        )
    )
