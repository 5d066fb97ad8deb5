"""Documentation pages that messages refer to.

The chart's helper `vramwarden.page` returns the same form.
"""

from __future__ import annotations

from enum import Enum


class Page(Enum):
    """Path of a page without `.md`, in some cases with a section's anchor."""

    CERTIFICATE_RIGHTS = "certs/README#without-the-chart"
    HARDENED_TOOLKITS = "deploy/nodes#hardened-container-toolkits"
    INSTALL = "deploy/install#install"
    LAPTOP = "deploy/laptop"
    PLUGIN_AFFINITY = "deploy/take-the-plugin-off"
    PULL_SECRETS = "deploy/offline#pull-secrets"
    RUNTIME_CLASS = "deploy/nodes#runtimeclass"

    def url(self, pattern: str) -> str:
        """Return the page's URL; without `pattern`, its path in the documentation.

        `pattern` is the chart's value `documentationURL`, a URL that contains `{page}`.
        """
        page, sharp, anchor = self.value.partition("#")
        if pattern:
            return pattern.replace("{page}", page) + sharp + anchor
        return f"{page}.md{sharp}{anchor} in the documentation"
