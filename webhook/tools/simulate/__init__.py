"""The command `vramwarden simulate`; start at `command.py`."""
