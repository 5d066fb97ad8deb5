"""The products whose manifests are rewritten, by the name that users type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.tools.admit.judge.migration import gpushare, hami, kai, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.tools.admit.judge.migration.values import Product

PRODUCTS: Final[Mapping[str, Product]] = {
    "hami": hami.PRODUCT,
    "kai": kai.PRODUCT,
    "gpushare": gpushare.PRODUCT,
    "whole": whole.PRODUCT,
}
