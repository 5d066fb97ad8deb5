"""The command `vramwarden clean`."""
