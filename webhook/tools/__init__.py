"""What people run beside the product: one folder for each command, none of which knows another.

In each: `command` takes the options, `read` does I/O, `judge` is pure, `show` writes. May import:
`webhook.options`, `webhook.adapters`, `webhook.core` and `webhook.names`; what runs in a cluster
never imports this.
"""
