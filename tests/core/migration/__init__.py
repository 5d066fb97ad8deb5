"""What `webhook.core.migration` promises."""
