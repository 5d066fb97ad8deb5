"""The objects GPUNode and VRAMHistory, and workloads. May import every other package of core."""
