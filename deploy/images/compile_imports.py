# ruff: noqa: INP001
"""Compile modules and all that they import, the standard library's too, and print the files.

Images of Python often ship the standard library without bytecode, and with a read-only root every
start would compile it anew: a second, and more where the node is busy. Unchecked, since a build may
change the sources' times, and since reading those costs a call for each.

How Python writes bytecode depends on which texts the process holds already. So one that has
imported nothing compiles all, in one order: the same sources give the same bytes in every build.
"""

import importlib
import importlib.util
import subprocess
import sys

COMPILE = ("compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", "-i", "-")


def main(names: list[str]) -> None:
    """Import and compile; also what is imported late, for a heartbeat or for a trace."""
    for name in [*names, "encodings.ascii", "traceback"]:
        importlib.import_module(name)
    found = {
        getattr(module, "__file__", None) or ""
        for module in sys.modules.values()
        if module.__name__ != "__main__"
    }
    sources = sorted(source for source in found if source.endswith(".py"))
    # Isolated, but for a variable: hashes that differ could change an order.
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
