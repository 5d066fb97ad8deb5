"""One outside thing per file, and no decisions: policy files, reviews, settings, NVML, processes."""
