"""What `webhook.tools.simulate.judge` promises."""
