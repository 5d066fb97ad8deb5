"""The review of a pod: from a request and a policy to a decision.

`decide` reads the demand, runs the rules of `rules/table.py`, translates a copy and derives the
patch. The webhook, the command `admit` and policy examples all call `decide`. Nodes, bindings and
enforcement are in other packages.
"""
