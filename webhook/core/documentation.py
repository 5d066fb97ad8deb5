"""Pages of the documentation that messages name.

The chart's helper `vramwarden.page` writes the same form.
"""

from __future__ import annotations

from enum import Enum


class Page(Enum):
    """Pages without `.md`, some with the anchor of a section."""

    CERTIFICATE_RIGHTS = "certs/README#without-the-chart"
    HARDENED_TOOLKITS = "deploy/nodes#hardened-container-toolkits"
    INSTALL = "deploy/install#install"
    LAPTOP = "deploy/laptop"
    PLUGIN_AFFINITY = "deploy/take-the-plugin-off"
    PULL_SECRETS = "deploy/offline#pull-secrets"
    RUNTIME_CLASS = "deploy/nodes#runtimeclass"

    def at(self, pattern: str) -> str:
        """Return the page's URL, or its place in the documentation if there is no pattern.

        `pattern`: the chart's value `documentationURL`, a URL with `{page}`.
        """
        page, sharp, anchor = self.value.partition("#")
        if pattern:
            return pattern.replace("{page}", page) + sharp + anchor
        return f"{page}.md{sharp}{anchor} in the documentation"
