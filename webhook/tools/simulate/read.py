"""Read nodes, pods and histories, of an API server or files, and a file of sizes.

What is wrong with a file of sizes is reported at once, with its lines.

Rights: list on `pods` and `nodes`, and on `vramhistories` where there are any.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.kube.client import KubeError, joined
from webhook.adapters.kube.histories import HistoriesApi
from webhook.adapters.kube.reading import ListReader, MalformedError
from webhook.adapters.yaml_documents import Problem, show, show_path
from webhook.core.pod.fields import text_of
from webhook.core.pod.quantity import QuantityError, parse_vram
from webhook.options import NoCluster, reach
from webhook.tools.shared.facts import Unreadable
from webhook.tools.shared.manifests.documents import LineIndex, read_documents
from webhook.tools.shared.manifests.files import name_of_input, read_text
from webhook.tools.shared.manifests.reading import ManifestError
from webhook.tools.shared.read import NOT_ENDED, once, pods_path
from webhook.tools.simulate.judge.cluster import TodayObjects
from webhook.tools.simulate.judge.offered import Size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from webhook.adapters.kube.client import Kube
    from webhook.adapters.yaml_documents import Path as FieldPath
    from webhook.tools.shared.manifests.documents import ManifestDocument

    Json = dict[str, Any]
    Wrong = list[tuple[FieldPath, str]]
    """What is wrong with a document, and where."""

_SIZE_FIELDS: Final = ("namespace", "workload", "memory")
_WHOLE: Final = "whole"
_NO_SIZES: Final = (
    "no size in it; write sizes: [{namespace: research-*, workload: train*, memory: 20Gi}], or CSV "
    "with the first line namespace,workload,memory"
)


# From an API server.


def read_cluster(kubeconfig: Path | None, context: str | None, namespace: str = "") -> TodayObjects:
    """Read with the user's own rights, of all namespaces for ""; raises NoCluster.

    That is where the cluster cannot be asked.
    """
    found = TodayObjects()
    try:
        kube = reach(kubeconfig, context, None).kube
        list_pods_and_nodes(kube, found, namespace)
    except KubeError as error:
        raise NoCluster(_not_listed(namespace) if error.forbidden else str(error)) from error
    try:
        for history in HistoriesApi(kube).of(namespace):
            found.add_history(history)
    except KubeError as error:
        if error.forbidden:
            found.notes.append(
                "no VRAMHistory says a size: you may not list them, if there are any"
            )
        elif not error.not_found:  # without vramwarden there are none
            found.notes.append(f"no VRAMHistory says a size: {error}")
    return found


def list_pods_and_nodes(kube: Kube, found: TodayObjects, namespace: str = "") -> None:
    """Add each pod that has not finished and each node, once; raises KubeError."""
    kube.list_all(pods_path(namespace), once(found.add_pod), fieldSelector=NOT_ENDED)
    kube.list_all(joined("nodes"), once(found.add_node))


def _not_listed(namespace: str) -> str:
    where = f"namespace {namespace}" if namespace else "all namespaces"
    return (
        f"you may not list pods of {where}, or nodes; ask an administrator for the output of "
        "`kubectl get nodes,pods -A -o json`, and pass it: vramwarden simulate --nodes FILE"
    )


# From files.


def read_files(names: Sequence[str], namespace: str = "") -> TodayObjects:
    """Read files of objects, of all namespaces for ""; raises Unreadable."""
    found = TodayObjects()
    for name in names:
        text = read_text(name)
        if text.lstrip().startswith("{") and _read_json(text, found):
            continue
        for document in _documents(name_of_input(name), text):
            found.add(document.value)
    if not (found.nodes or found.others):
        raise Unreadable("no node in it; pass the output of: kubectl get nodes,pods -A -o json")
    if namespace:
        found.pods = [(one, of) for one, of in found.pods if one.name.startswith(f"{namespace}/")]
    return found


def _read_json(text: str, found: TodayObjects) -> bool:
    """Read a stream of objects and lists, if it is one; of any other text nothing is kept."""
    part, at, end = TodayObjects(), 0, len(text.rstrip())
    try:
        while at < end:
            at = _read_list(text, at, part)
    except MalformedError:
        return False
    found.merge(part)
    return True


def _read_list(text: str, at: int, found: TodayObjects) -> int:
    # An API server's list says its kind before its items, and kubectl's items say their own.
    reader: ListReader[None] = ListReader(
        lambda item: found.add(item, text_of(reader.rest, "kind").removesuffix("List"))
    )
    at = reader.read(text, at)
    found.add(reader.rest)
    return at


def read_sizes(name: str) -> list[Size]:
    """Read CSV with a line of names, or YAML; raises Unreadable."""
    shown, text = name_of_input(name), read_text(name)
    first, _, _ = text.partition("\n")
    is_csv = {one.strip() for one in first.split(",")} <= set(_SIZE_FIELDS) and "memory" in first
    problems: list[Problem] = []
    sizes = list((_csv_sizes if is_csv else _yaml_sizes)(shown, text, problems))
    if problems or not sizes:
        wrong = problems or [Problem(shown, 0, "", _NO_SIZES)]
        raise Unreadable("\n".join(dict.fromkeys(map(str, wrong))))
    return sizes


def _csv_sizes(name: str, text: str, problems: list[Problem]) -> Iterator[Size]:
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    for row in rows:
        wrong: Wrong = []
        yield _size(
            {key.strip(): one.strip() for key, one in row.items() if key and one}, (), wrong
        )
        if None in row:
            wrong.append(
                ((), "has more cells than the first line; put a pattern with a comma in quotes")
            )
        problems += [Problem(name, rows.line_num, "", detail) for _, detail in wrong]


def _yaml_sizes(name: str, text: str, problems: list[Problem]) -> Iterator[Size]:
    for document in _documents(name, text):
        wrong: Wrong = []
        _check_fields(document.value, (), ("sizes",), wrong)
        entries = document.value.get("sizes", [])
        if not isinstance(entries, list):
            wrong.append((("sizes",), "must be a list"))
            entries = []
        for index, entry in enumerate(entries):
            path = ("sizes", index)
            if isinstance(entry, dict):
                _check_fields(entry, path, _SIZE_FIELDS, wrong)
                yield _size(entry, path, wrong)
            else:
                wrong.append((path, f"must be an object with {', '.join(_SIZE_FIELDS)}"))
        lines = LineIndex(document.text, document.first_line)
        found = [Problem(name, lines.of(path), show_path(path), detail) for path, detail in wrong]
        problems += sorted(found, key=lambda problem: problem.line)


def _check_fields(value: Json, path: FieldPath, known: Sequence[str], wrong: Wrong) -> None:
    """Note unknown fields, which are typing errors."""
    detail = f"unknown field; known fields: {', '.join(known)}"
    wrong += [((*path, key), detail) for key in value.keys() - known]


def _size(entry: Json, path: FieldPath, wrong: Wrong) -> Size:
    """Read one entry; what is wrong is noted, and something harmless stands for it."""
    memory, memory_bytes = entry.get("memory"), 0
    if memory is None:
        wrong.append((path, "has no memory; write the VRAM per GPU, e.g. memory: 8Gi"))
    elif memory != _WHOLE:
        try:
            memory_bytes = parse_vram(str(memory))
        except QuantityError as error:
            wrong.append(((*path, "memory"), f"{_shown(memory)} {error}"))
    patterns = {key: entry.get(key) for key in ("namespace", "workload")}
    for key, value in patterns.items():
        if value is not None and not isinstance(value, str):
            wrong.append(((*path, key), "must be text; put it in quotes"))
    return Size(patterns["namespace"] or "*", patterns["workload"] or "*", memory_bytes)


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return show(value)


def _documents(name: str, text: str) -> list[ManifestDocument]:
    """Return the documents that are not empty."""
    try:
        return [one for one in read_documents(text) if one.value]
    except ManifestError as error:
        raise Unreadable(str(Problem(name, error.line or 0, "", str(error)))) from error
