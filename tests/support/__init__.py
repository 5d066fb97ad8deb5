"""Helpers for the tests of several packages, imported by their full path.

A helper that only one package's tests need is in their folder.
"""
