"""Decisions about manifests, made as the webhook makes them, and migration from other products."""
