"""What people are shown: figures of nodes, histories of workloads, and what follows from both.

Values in, values out; who reads or writes them in the API server is elsewhere.

May import: every other room of `webhook.core`, and `webhook.names`.
"""
