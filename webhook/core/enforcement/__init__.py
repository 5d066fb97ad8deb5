"""The judgement that holds a cap: observations in, actions and their words out.

It runs in the sidecar, where every megabyte counts: nothing here imports what costs memory, and
`tests/sidecar/test_alone.py` says what that is. May import: `core.formatting` and the standard
library's light parts.
"""
