"""Manifests that people write: read within bounds, edited in place, comments kept.

May import: `core.pod` and `adapters.yaml_documents`.
"""
