"""`vramwarden certs`; `command.py` is where to start."""
