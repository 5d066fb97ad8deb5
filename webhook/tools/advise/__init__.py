"""The command `vramwarden advise`."""
