"""One outside thing per file, and no decisions: policy files, YAML, reviews as JSON, settings."""
