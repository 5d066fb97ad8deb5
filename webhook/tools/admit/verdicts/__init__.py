"""Decisions about manifests by the webhook's own code, and migration from other products."""
