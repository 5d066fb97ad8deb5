"""Manifests: read within bounds, and edited in place with their comments kept.

May import: `core.pod` and `adapters.yaml_documents`.
"""
