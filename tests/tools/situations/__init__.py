"""Recorded situations: what the four commands say of one cluster, side by side."""
