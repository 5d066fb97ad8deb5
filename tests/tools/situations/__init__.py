"""Recorded situations: output of the four commands for the same cluster."""
