"""`vramwarden simulate`; `command.py` is where to start."""
