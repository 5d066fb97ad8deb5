"""Certificates, keys and the sets that they form: read, issue, check and describe them.

Works on values alone; time is an argument. May import: cryptography; it knows
neither when a set should change nor where one lies.
"""
