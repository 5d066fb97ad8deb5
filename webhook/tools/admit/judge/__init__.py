"""What becomes of manifests: decided as the webhook decides, or rewritten from other products."""
