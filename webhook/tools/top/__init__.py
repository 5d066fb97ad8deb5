"""The command `top`: who was promised and who uses how much GPU memory."""
