"""Manifests: text, documents, the pods in them; read exactly, and changed with their looks kept."""
