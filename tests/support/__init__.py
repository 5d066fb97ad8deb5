"""What tests of several rooms share, imported by its full path.

A helper that one room needs lies beside that room's tests.
"""
