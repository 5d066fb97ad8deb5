"""Process settings: what differs between a laptop and a cluster, not what a policy says."""

from __future__ import annotations

import os
from pathlib import Path

from webhook import __version__
from webhook.names import ENFORCER_IMAGE_REPOSITORY

ENFORCER_IMAGE_VARIABLE = "VRAMWARDEN_ENFORCER_IMAGE"


def default_enforcer_image() -> str:
    """Return the image that rules use where they name none: this release's, or the platform's."""
    return os.environ.get(ENFORCER_IMAGE_VARIABLE) or f"{ENFORCER_IMAGE_REPOSITORY}:{__version__}"


def default_certificate_folder() -> Path:
    """Return where `serve` keeps its own certificates (XDG Base Directory Specification)."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "vramwarden" / "certs"
