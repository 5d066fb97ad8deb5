"""What platform teams decide, as values: rules, classes, bounds, how a cap is held.

`fence` is what of it the API server holds by itself, and how replicas know what one of them wrote.
Files are read by `webhook.adapters.policy`; examples are run where decisions are made, in
`core.admission`. May import: `core.pod` and `webhook.names`.
"""
