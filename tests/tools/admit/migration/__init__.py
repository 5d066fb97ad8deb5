"""What `webhook.tools.admit.judge.migration` promises."""
