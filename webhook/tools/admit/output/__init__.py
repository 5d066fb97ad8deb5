"""Output of `admit`: manifests, and reports for people and for programs."""
