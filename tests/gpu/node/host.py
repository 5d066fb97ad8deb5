"""Runs the node of `make e2e` on a host with a GPU and without a network; needs Python alone.

    python3 tests/gpu/node/host.py probe    # says what the kernel, the driver and Python allow
    python3 tests/gpu/node/host.py prepare  # probes, unpacks .bundle, assembles the images
    python3 tests/gpu/node/host.py run      # prepares, then runs the stories; more goes to pytest

NODE_FOLDER is where all is unpacked (by default a folder of the temporary folder). Where the driver
shows no GPU the stories run over the stub of tests/support/nvml_stub.c, which needs a C compiler.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BUNDLE = ROOT / ".bundle"
NODE = Path(os.environ.get("NODE_FOLDER") or f"{tempfile.gettempdir()}/vramwarden-node")
STORIES = "tests/e2e/test_12b_one_card.py"
NVML = "libnvidia-ml.so.1"
NEEDED = ("unshare", "nsenter", "mount", "ldconfig", "ldd", "bash")
OVERLAY = """
mount -t tmpfs tmpfs /mnt && cd /mnt && mkdir lower upper work merged &&
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
"""
VETH = "ip link add one type veth peer two && ip link show two"


def tried(*command: str) -> str:
    """Run a command; return "yes", or why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no: {error}"
    return "yes" if not done.returncode else f"no: {' '.join(done.stderr.split())[:200]}"


def library() -> Path | None:
    """Return the path of the driver's library, None where it does not load."""
    try:
        ctypes.CDLL(NVML)
    except OSError:
        return None
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in lines if "/libnvidia-ml.so." in line)


def driver() -> str:
    """Describe the driver's library and the device nodes."""
    found = library()
    if found is None:
        return f"no {NVML}"
    nodes = sorted(str(one) for one in Path("/dev").glob("nvidia*"))
    owner = found.stat()
    return f"{found} of {owner.st_uid}:{owner.st_gid}; {' '.join(nodes) or 'no /dev/nvidia*'}"


def cgroups() -> str:
    """Describe the hierarchies of cgroups and their controllers."""
    found = []
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        controllers = Path(root, "cgroup.controllers")
        if controllers.exists():
            writable = "" if os.access(root, os.W_OK) else ", read-only"
            found.append(f"v2 at {root}: {controllers.read_text().strip() or 'none'}{writable}")
    v1 = [one.name for one in Path("/sys/fs/cgroup").glob("*/cgroup.procs") if "," not in one.name]
    return "; ".join(found) or f"v1: {len(v1)} hierarchies" if v1 or found else "no cgroups"


def kernel() -> str:
    """Describe the kernel; `no: ...` where NVML's figures are not of its processes."""
    banner = Path("/proc/version").read_text()
    release = platform.release()
    return f"no: {release} is gVisor" if "gvisor" in banner.lower() else release


def probe() -> dict[str, str]:
    """Return what is found, by what was asked; answers that begin with `no` are faults or notes."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    disk = shutil.disk_usage(NODE.parent).free >> 30
    missing = [name for name in NEEDED if not shutil.which(name)]
    namespaces = ("unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc")
    return {
        "machine": f"{os.cpu_count()} cores, {memory} GiB of memory, {disk} GiB of disk",
        "Python": platform.python_version(),
        "kernel": kernel(),
        "root": "yes" if not os.geteuid() else "no: run this as root",
        "programs": f"no: {' '.join(missing)}" if missing else "yes",
        "namespaces": tried(*namespaces, "true"),
        "cgroups": cgroups(),
        "overlayfs": tried("unshare", "--mount", "sh", "-c", OVERLAY),
        "veth": tried("unshare", "--net", "sh", "-c", VETH),
        "driver": driver(),
    }


FATAL = ("Python", "kernel", "root", "programs", "namespaces", "veth")


def check(found: dict[str, str]) -> None:
    """Print the probe's answers; exit where no node can run."""
    print(*(f"{what}: {answer}" for what, answer in found.items()), sep="\n", flush=True)
    if faults := [what for what in FATAL if found[what].startswith("no")]:
        raise SystemExit(f"no node can run here: {', '.join(faults)}")


def unpack() -> None:
    """Unpack the archives of the bundle that are there and were not yet unpacked."""
    NODE.mkdir(parents=True, exist_ok=True)
    NODE.chmod(0o755)
    for archive in BUNDLE.glob("*.tar.xz"):
        done = NODE / f".{archive.name}-{archive.stat().st_size}"
        if not done.exists():
            with tarfile.open(archive) as tar:
                tar.extractall(NODE, filter="tar")
            done.touch()


def prepare() -> dict[str, str]:
    """Have all but the cluster; return the variables for the stories."""
    unpack()
    os.environ["PATH"] = f"{NODE / 'bin'}:{os.environ['PATH']}"
    found = probe()
    check(found)
    wanted = (NODE / "python").read_text().strip()
    if not platform.python_version().startswith(f"{wanted}."):
        raise SystemExit(f"the bundle is for Python {wanted}: make bundle HOST_PYTHON=...")
    packages = [str(NODE / name) for name in ("site", "site-tests")]
    variables = {
        **os.environ,
        "PYTHONPATH": ":".join([str(ROOT), *packages, os.environ.get("PYTHONPATH", "")]).strip(":"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "KUBEBUILDER_ASSETS": str(NODE / "bin"),
        "NVIDIA_TOOLKIT": str(NODE / "bin"),
        "E2E_IMAGES": str(NODE / "images"),
        "E2E_RUNTIME": "nvidia",
        "E2E_SNAPSHOTTER": "overlayfs" if found["overlayfs"] == "yes" else "native",
        "E2E_DRIVER": "host" if "/dev/nvidia0" in found["driver"] else "stub",
        "PREFIX": "localhost/",
    }
    if not (NODE / "images/enforcer.tar").exists():
        began_s = time.monotonic()
        assemble = (sys.executable, "-m", "tests.gpu.node.images", NODE / "images", NODE / "site")
        subprocess.run(assemble, env=variables, cwd=ROOT, check=True)
        print(f"images assembled: {time.monotonic() - began_s:.1f} s", flush=True)
    return variables


def main(action: str = "run", *arguments: str) -> None:
    """Probe, prepare or run."""
    if action == "probe":
        check(probe())
        return
    variables = prepare()
    if action == "run":
        if not (NODE / "bin/etcd").exists():
            raise SystemExit(f"control-plane.tar.xz is missing in {BUNDLE}")
        os.chdir(ROOT)
        named = [one for one in arguments if Path(one.partition("::")[0]).exists()]
        tests = ("-m", "pytest", "-rsP", "-p", "no:cacheprovider", *arguments)
        tests += () if named else (STORIES,)
        os.execve(sys.executable, (sys.executable, *tests), variables)  # noqa: S606 - it is the end


if __name__ == "__main__":
    main(*sys.argv[1:])
