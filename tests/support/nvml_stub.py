"""Compilation of the NVML stub for real processes."""

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stub.c")
NAME = "libnvidia-ml.so.1"
CUDA = "libcuda.so.1"
"""Name of the same library for programs that allocate memory."""
FLAGS = [
    "-shared", "-fPIC", "-pthread", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror",
    f"-Wl,-soname,{NAME}",
]  # fmt: skip


def compiler():
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    return None


def build(folder, *without):
    """Compile the stub into a folder for LD_LIBRARY_PATH, and return the folder.

    `without` lists features that the head of the source names: `V3`, `V2`, `MEMORY_V2`, `MPS`,
    `HEALTH`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left_out = [f"-DWITHOUT_{name}" for name in without]
    command = [compiler(), *FLAGS, *left_out, str(SOURCE), "-o", str(folder / NAME)]
    subprocess.run(command, check=True)
    (folder / CUDA).unlink(missing_ok=True)
    (folder / CUDA).symlink_to(NAME)
    return folder
