"""Enforcement of a cap as a pure function: observations in, actions and their messages out.

The sidecar loads this package, and each import costs memory in every pod. So only `core.formatting`
and light modules of the standard library may be imported: `tests/sidecar/test_alone.py` lists them.
"""
