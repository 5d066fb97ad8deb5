"""A pod as JSON, and what can be read from any pod: the ground that every other room stands on.

Fields with checked types, views, Kubernetes' quantities, bounds on its size, what a pod asks for,
findings about it, the patch between two states of it, and the AdmissionReview around it.
May import: `webhook.names`, and jsonpatch in `patch`.
"""
