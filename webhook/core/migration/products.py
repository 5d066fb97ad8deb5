"""The products whose manifests are rewritten, by the name that users type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.migration import gpushare, hami, kai, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.core.migration.values import Product

PRODUCTS: Final[Mapping[str, Product]] = {
    "hami": hami.PRODUCT,
    "kai": kai.PRODUCT,
    "gpushare": gpushare.PRODUCT,
    "whole": whole.PRODUCT,
}
