"""The command `check`: whether vramwarden works, or can be installed, in a cluster."""
