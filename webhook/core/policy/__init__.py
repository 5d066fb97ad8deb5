"""Policies as values: rules, GPU classes, matches; the cluster's facts; the fence's parameters."""
