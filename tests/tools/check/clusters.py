"""Installations, and what `check` finds in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook import __version__
from webhook.tools.check.table import run
from webhook.tools.snapshot.installation import Installation

if TYPE_CHECKING:
    from tests.support.api_server import ApiServer
    from webhook.tools.check.table import CheckOutcome


def outcomes(api: ApiServer, **options: object) -> dict[str, CheckOutcome]:
    """Return the outcome of each check, by id."""
    return {one.check.id: one for one in run(Installation(api.kube(), __version__, **options))}


def not_ok(found: dict[str, CheckOutcome]) -> dict[str, str]:
    """Return the results that are not ok, by id."""
    return {name: str(one.result) for name, one in found.items() if one.result != "ok"}
