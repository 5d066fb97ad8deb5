"""Fake /proc folders: runtimes, labels and hostile bytes that test machines do not have."""

import os

ID = "0123456789abcdef" * 4
OTHER_ID = "fedcba9876543210" * 4


def stat_line(pid, *, started=4711, name="python", state="S", parent=1, threads=1, end=17):
    fields = [state, parent, *[0] * 15, threads, 0, started, *[0] * 15, end, *[0] * 14]
    return f"{pid} ({name}) {' '.join(str(field) for field in fields)}\n"


def status_lines(pid, *, uids="0\t0\t0\t0", capabilities="0000000000000020"):
    return f"Name:\tpython\nTgid:\t{pid}\nUid:\t{uids}\nCapEff:\t{capabilities}\n"


def put(proc, pid, **files):
    """Write the files of a process. Files that are not given have ordinary content."""
    ordinary = {
        "stat": stat_line(pid), "status": status_lines(pid), "cmdline": "python\0train.py\0",
        "comm": "python\n", "cgroup": "0::/\n",
    }  # fmt: skip
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (ordinary | files).items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(proc)


def put_self(proc, *, namespace="pid:[4026532198]", **files):
    """Write the files of the calling process, and `self`."""
    put(proc, os.getpid(), **files)
    (proc / "self").symlink_to(str(os.getpid()))
    (proc / "self" / "ns").mkdir()
    (proc / "self" / "ns" / "pid").symlink_to(namespace)
    return str(proc)
