"""The command `vramwarden admit`; start at `command.py`."""
