"""The webhook's server: HTTP, TLS, metrics; review bytes in, review bytes out.

`reviews`     one review from bytes to bytes, counted and logged; knows no HTTP server
`router`      which requests to the TLS port may come in, who answers each, how much waits at once
`http`        HTTP/1.1 on one connection: requests out of bytes, answers into bytes
`operations`  the plain port: a Flask application with probes and metrics; liveness and readiness
`connections` how many connections there may be, and how long each may take
`bind_path`   the path of /bind, which nobody can guess
`registration`  writes it, and the owner, into the webhook configurations
`certificates`  the serving certificate, replaced on the next handshake; its two keepers
`metrics`     what is counted
`log`         one JSON line per event
`worker`      gunicorn's worker class, with a drain that loses no review
`policies`    reload of the policy, and the notification of parts that depend on it
`fence`       writes the rules in force to the ConfigMap that the fence reads
`cluster_cache`  what decisions follow from beside the policy: slices, labels, the RuntimeClass
`mirror`      takes what watches report of objects, and wakes what keeps one as it should be
`placement/`  which GPU a pod gets when it is bound
`service`     composition root: settings in, gunicorn running

Reviews do not pass through Flask: webhook/decisions/03-http-server.md has the figures.
"""
