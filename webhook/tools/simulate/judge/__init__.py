"""Judges pods and nodes without I/O. Each file names its sources by paths of their repositories."""
