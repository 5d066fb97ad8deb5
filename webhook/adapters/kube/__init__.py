"""Access to the Kubernetes API, and the API objects that each program reads and writes.

`connection`, `transport` and `client` send requests; `follow` lists and watches. Only `connection`
and `transport` import `kubernetes`, and only the latter `urllib3`.
"""
