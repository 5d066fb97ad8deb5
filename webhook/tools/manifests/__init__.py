"""Manifests: parsed within limits, and edited in place without losing comments.

May import: `core.pod` and `adapters.yaml_documents`.
"""
