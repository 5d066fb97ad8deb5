"""Test helpers that several packages use, imported by their full path.

Helpers for the tests of a single package are in the folder of these tests.
"""
