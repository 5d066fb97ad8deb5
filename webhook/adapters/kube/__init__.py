"""The one door to the Kubernetes API: requests, paged lists, and `follow`.

Nothing else imports the module `kubernetes`. May import: `webhook.core` and `webhook.names`.
"""
