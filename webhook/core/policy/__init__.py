"""Policies (rules, GPU classes, matches), facts about the cluster, and the fence's parameters."""
