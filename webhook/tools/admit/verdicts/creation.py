"""The pod as the API server would receive it, and the decision about its valid fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from webhook.adapters.yaml_documents import Path
from webhook.core.admission.decision import Decision
from webhook.core.admission.stray_keys import is_placeholder
from webhook.core.admission.workload_review import decide_both_phases
from webhook.core.pod.fields import Json, find_object, find_string
from webhook.core.pod.findings import quote
from webhook.core.pod.pod_templates import CONTAINER_FIELDS, as_object_list, parse_path
from webhook.core.pod.quantity import QuantityError, QuantityTooLargeError, parse_quantity
from webhook.core.pod.request import Request
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Policy
from webhook.names import PREFIX
from webhook.tools.manifests.reading import ExactFloat

_LARGEST_INTEGER: Final = 2**64 - 1
_AMOUNTS: Final = ("limits", "requests")
_HOLD_AMOUNTS: Final = frozenset(("resources", kind) for kind in _AMOUNTS)
_IN_BYTES: Final = frozenset({"memory", "ephemeral-storage"})
_MOST_REJECTED: Final = 32
"""Maximum number of malformed fields reported for one pod."""


def sent_pod(pod: Json) -> tuple[Json, str]:
    """Return the pod without a copied `spec.nodeName`, and a note if that was removed.

    A manifest copied from a cluster has a node. A new pod with it would bypass the scheduler.
    """
    is_copy = "status" in pod or bool(find_string(pod, "metadata", "uid"))
    spec = find_object(pod, "spec")
    if not is_copy or "nodeName" not in spec:
        return pod, ""
    kept = {key: value for key, value in spec.items() if key != "nodeName"}
    said = (
        "spec.nodeName: left out, since this is a copy of a pod of a cluster (it has a status or a "
        "uid)"
    )
    return {**pod, "spec": kept}, said


def decide_accepted(
    creation: Request, policy: Policy, cluster: Cluster
) -> tuple[Decision, Decision, tuple[str, ...]]:
    """Decide a creation without fields that Kubernetes rejects, and describe those fields.

    Return the decisions of both phases and a message per rejected field. The webhook never receives
    such a pod. Malformed vramwarden keys are kept, since a pod with one may request VRAM.
    """
    first, last = decide_both_phases(creation, policy, cluster)
    rejected = list(islice(_no_quantities(creation.obj), _MOST_REJECTED))
    while last.malformed and PREFIX not in last.malformed and len(rejected) < _MOST_REJECTED:
        rejected.append(last.malformed)
        field, _, why = last.malformed.partition(": ")
        blank: str | Json = f"unnamed-{len(rejected)}" if "a string" in why else {}
        creation = replace(creation, obj=_without(creation.obj, parse_path(field), blank))
        first, last = decide_both_phases(creation, policy, cluster)
    return first, last, tuple(rejected)


def _no_quantities(pod: Json) -> Iterator[str]:
    """Yield a message for each malformed amount of a resource of another product."""
    spec = find_object(pod, "spec")
    for field in CONTAINER_FIELDS:
        for index, container in enumerate(as_object_list(spec.get(field))):
            for kind in _AMOUNTS:
                for name, amount in find_object(container, "resources", kind).items():
                    wrong = "" if name.startswith(PREFIX) else _no_quantity(name, amount)
                    if wrong:
                        yield f"spec.{field}[{index}].resources.{kind}[{name}]: {wrong}"


def _no_quantity(name: str, amount: object) -> str:
    """Return the message for a malformed amount; empty if the amount is valid."""
    if type(amount) is not str or is_placeholder(amount):
        return ""
    try:
        parse_quantity(amount)
    except QuantityTooLargeError:
        return ""
    except QuantityError as error:
        guesses = error.guesses if name in _IN_BYTES else ()
        cure = f"{error.advice(guesses, '')}; " if guesses else ""
        return f"{cure}{quote(amount)} is not a Kubernetes quantity"
    return ""


def _without(value: Any, path: Path, blank: str | Json) -> Any:
    """Return a copy without the field at a path.

    Names and list items are blanked instead, so that indices in messages match the manifest. If the
    path does not exist, the copy is unchanged.
    """
    if not path or not isinstance(value, (dict, list)):
        return value
    key, *rest = path
    copied: Any = value.copy()
    if rest:
        inside = value.get(key) if isinstance(value, dict) else value[int(key)]
        copied[key] = _without(inside, tuple(rest), blank)
    elif key == "name" or isinstance(value, list):
        copied[key] = blank
    else:
        copied.pop(key, None)
    return copied


def as_sent(value: Any, above: tuple[str, str] = ("", "")) -> Any:
    """Return plain JSON. Amounts written as floats become strings with the same digits."""
    if isinstance(value, dict):
        return {
            key: item.text
            if isinstance(item, ExactFloat) and above in _HOLD_AMOUNTS
            else as_sent(item, (above[1], key))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [as_sent(item, above) for item in value]
    if isinstance(value, ExactFloat) or (type(value) is int and abs(value) > _LARGEST_INTEGER):
        return float(value)
    return value
