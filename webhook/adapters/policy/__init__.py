"""Policy files: reading them, validating them, and building values of `core.policy`."""
