"""Recorded situations: output of four commands for the same cluster."""
