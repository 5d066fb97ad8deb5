"""What both wings know of GPUNode, VRAMHistory and workloads; may import any other room of core."""
