"""Read the files of `vramwarden simulate`; all that is wrong is reported at once, with its lines.

Files may be large, so they are read as `admit` reads manifests, and lines are searched only where
something is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.yaml_documents import Problem, show_path
from webhook.names import NODE_GPUS_ANNOTATION
from webhook.tools.shared.manifests.documents import read_documents
from webhook.tools.shared.manifests.lines import Lines
from webhook.tools.shared.manifests.reading import ManifestError
from webhook.tools.simulate.objects import first_created_s, node_objects, pod_objects
from webhook.tools.simulate.short import Found, short_nodes, short_pods, short_sizes, unknown_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.tools.simulate.replay.cluster import SimulatedNode, SimulatedPod
    from webhook.tools.simulate.short import Size

_SHORT: Final = ("nodes", "pods")
_SIZES: Final = ("sizes",)
NO_SIZES: Final = (
    "no size in it; write sizes: [{namespace: research-*, workload: train*, memory: 20Gi}], or CSV "
    "with the first line namespace,workload,memory"
)
_NO_NODES: Final = "no node with GPUs in it; pass the output of: kubectl get nodes -o json"
_NO_PODS: Final = "no pod in it; pass manifests, or the output of: kubectl get pods -A -o json"
_AGENT_WRITES: Final = (
    f"the annotation {NODE_GPUS_ANNOTATION}, which the node agent writes; install the agent, pass "
    "--today, which needs none, or write the nodes in the short form (vramwarden simulate --help)"
)


class UnreadableError(ValueError):
    """Something that was given cannot be read."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def read_nodes(name: str, text: str) -> tuple[list[SimulatedNode], dict[str, int]]:
    """Return the nodes of a text, and how much of it was left out, by why.

    Raises UnreadableError.
    """
    found, problems = Found(), []
    for value, document, first_line in _documents(name, text):
        if _is_short(value):
            unknown_fields(value, (), _SHORT, found)
            short_nodes(value.get("nodes", []), ("nodes",), found)
        else:
            node_objects(value, found)
        problems += _located(name, document, first_line, found)
    seen: set[str] = set()
    for node in found.nodes:
        if node.name in seen:
            problems.append(Problem(name, 0, "", f"node {node.name} stands twice; keep one"))
        seen.add(node.name)
    if not found.nodes and not problems:
        problems.append(Problem(name, 0, "", _no_nodes(found.nodes_without_gpus)))
    if problems:
        raise UnreadableError(problems)
    return found.nodes, dict(found.left_out)


def read_pods(name: str, text: str) -> tuple[list[SimulatedPod], dict[str, int]]:
    """Return the pods of a text, and how much of it was left out, by why.

    Raises UnreadableError.
    """
    found, problems = Found(), []
    documents = _documents(name, text)
    created = (first_created_s(value) for value, _, _ in documents if not _is_short(value))
    first_s = min((one for one in created if one is not None), default=0.0)
    for value, document, first_line in documents:
        if _is_short(value):
            unknown_fields(value, (), _SHORT, found)
            short_pods(value.get("pods", []), ("pods",), found)
        else:
            pod_objects(value, found, first_s)
        problems += _located(name, document, first_line, found)
    if not found.pods and not problems:
        problems.append(Problem(name, 0, "", _no_pods(found.left_out)))
    if problems:
        raise UnreadableError(problems)
    return found.pods, dict(found.left_out)


def read_sizes(name: str, text: str) -> list[Size]:
    """Return the sizes of a text; raises UnreadableError."""
    found, problems = Found(), []
    for value, document, first_line in _documents(name, text):
        unknown_fields(value, (), _SIZES, found)
        short_sizes(value.get("sizes", []), ("sizes",), found)
        problems += _located(name, document, first_line, found)
    if not found.sizes and not problems:
        problems.append(Problem(name, 0, "", NO_SIZES))
    if problems:
        raise UnreadableError(problems)
    return found.sizes


def _no_nodes(without_gpus: int) -> str:
    """Say why no node is left, and a cure other than to pass what was passed."""
    if not without_gpus:
        return _NO_NODES
    if without_gpus == 1:
        return f"its only node has no GPUs in {_AGENT_WRITES}"
    return f"none of its {without_gpus:,} nodes has GPUs in {_AGENT_WRITES}"


def _no_pods(left_out: Mapping[str, int]) -> str:
    """Say why no pod is left."""
    if not left_out:
        return _NO_PODS
    counted = "; ".join(f"{why}: {number:,}" for why, number in left_out.items())
    return f"no pod is left to replay; left out: {counted}"


def _is_short(value: Any) -> bool:
    return "kind" not in value and not value.keys().isdisjoint(_SHORT)


def _documents(name: str, text: str) -> list[tuple[Any, str, int]]:
    """Return the documents that are not empty, each with its text and its first line."""
    try:
        documents = read_documents(text)
    except ManifestError as error:
        raise UnreadableError([Problem(name, error.line or 0, "", str(error))]) from error
    found, line = [], 1
    for document in documents:
        if document.value:
            found.append((document.value, document.text, line))
        line += document.text.count("\n")
    return found


def _located(name: str, document: str, first_line: int, found: Found) -> list[Problem]:
    """Take what was found wrong in a document and say in which lines it stands."""
    wrong, found.wrong = found.wrong, []
    if not wrong:
        return []
    lines = Lines(document, first_line)
    problems = [Problem(name, lines.of(path), show_path(path), detail) for path, detail in wrong]
    return sorted(problems, key=lambda problem: problem.line)
