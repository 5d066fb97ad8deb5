"""vramwarden: share NVIDIA GPUs by memory. The layers are described in CONTRIBUTING.md."""

__version__ = "0.1.0"
