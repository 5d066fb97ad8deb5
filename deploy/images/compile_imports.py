# ruff: noqa: INP001
"""Compile modules and all their imports, including the standard library, and print the files.

Python images often ship the standard library without bytecode. With a read-only root file system
every start would compile it again, which takes a second or more. The bytecode is not validated
against its source: a build may change the times of files, and each check costs a system call.

The bytes that Python writes depend on the strings that the process has interned. So a process that
has imported nothing compiles the files in a fixed order, which makes builds reproducible.
"""

import importlib
import importlib.util
import subprocess
import sys

COMPILE = ("compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", "-i", "-")


def main(names: list[str]) -> None:
    """Import and compile the modules, and two modules that are otherwise imported late."""
    for name in [*names, "encodings.ascii", "traceback"]:
        importlib.import_module(name)
    found = {
        getattr(module, "__file__", None) or ""
        for module in sys.modules.values()
        if module.__name__ != "__main__"
    }
    sources = sorted(source for source in found if source.endswith(".py"))
    # The environment contains only a fixed hash seed. Random hashes could change the order of sets.
    subprocess.run(  # noqa: S603 - this Python
        [sys.executable, "-s", "-P", "-m", *COMPILE],
        input="".join(f"{source}\n" for source in sources),
        env={"PYTHONHASHSEED": "0"},
        text=True,
        check=True,
    )
    for source in sources:
        print(importlib.util.cache_from_source(source))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
