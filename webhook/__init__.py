"""vramwarden: share NVIDIA GPUs by memory. README.md in this folder describes the packages."""

__version__ = "0.3.0"
