"""One outside thing per file, no decisions: policy files, reviews, settings, NVML, processes."""
