"""`vramwarden admit`; `command.py` is where to start."""
