"""Commands that users run. Each has its own package and imports no other command's package.

In each, `command` has the options, `fetch` does I/O, `report` is pure, and `render` returns the
output. They may import `webhook.options`, `webhook.adapters`, `webhook.core` and `webhook.names`.
Programs that run in a cluster never import this package.
"""
