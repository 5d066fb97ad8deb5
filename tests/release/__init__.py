"""How a release is built."""
