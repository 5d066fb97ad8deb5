"""vramwarden: share NVIDIA GPUs by memory. README.md beside this file has the rooms."""

__version__ = "0.3.0"
