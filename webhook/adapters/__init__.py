"""Access to external systems, one per module: the API server, policy files, NVML, /proc, logs."""
