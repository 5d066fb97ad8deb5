"""Enforcement of a cap as a pure function: observations in, actions and their messages out.

The sidecar loads it, where each import costs memory in every pod: `tests/sidecar/test_alone.py`
lists the allowed modules. May import: `core.formatting` and light modules of the standard library.
"""
