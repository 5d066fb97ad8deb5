"""Which taints of a node a pod tolerates: the scheduler's rule, for all who foresee it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CORDONED = ("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""What a node out of scheduling counts as."""


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: tuple[str, str, str]) -> bool:
    """Say whether a taint (key, value, effect) is tolerated, as the scheduler compares them.

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
    The API server stores no toleration without a key but with Exists.

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
