# ruff: noqa: INP001
"""Compile modules and all that they import, the standard library's too, and print the files.

Images of Python often ship the standard library without bytecode, and with a read-only root every
start would compile it anew: a second, and more where the node is busy. Unchecked, since a build may
change the sources' times, and since looking at them costs a call for each.
"""

import importlib
import py_compile
import sys

UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH


def main(names: list[str]) -> None:
    """Import and compile; also what is imported late, for a heartbeat or for a trace."""
    for name in [*names, "encodings.ascii", "traceback"]:
        importlib.import_module(name)
    for module in list(sys.modules.values()):
        source = getattr(module, "__file__", None) or ""
        if source.endswith(".py") and module.__name__ != "__main__":
            compiled = py_compile.compile(source, doraise=True, invalidation_mode=UNCHECKED)
            print(compiled)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
