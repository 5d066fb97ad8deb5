"""The command `check`: whether vramwarden can be installed in a cluster, or works there."""
