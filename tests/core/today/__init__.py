"""What `webhook.core.today` promises."""
