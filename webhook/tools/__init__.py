"""Commands that people run: one package for each, which does not import the others.

In each, `command` has the options, `fetch` does I/O, `report` is pure, and `render` returns the
output. They may import `webhook.options`, `webhook.adapters`, `webhook.core` and `webhook.names`.
Programs that run in a cluster never import this package.
"""
