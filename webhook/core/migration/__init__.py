"""How clusters share GPUs before they come over: what pods ask for and nodes offer without us."""
