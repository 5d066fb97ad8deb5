"""What `admit` writes: manifests, and reports for people and for programs."""
