"""Runs the node of `make e2e` on a host that has a GPU and no network; needs only Python.

    python3 tests/gpu/node/host.py probe  # unpacks .bundle and reports what can run here
    python3 tests/gpu/node/host.py run    # also runs the stories; more arguments go to pytest

NODE_FOLDER names the folder for the unpacked bundle; the default is in the temporary folder. On a
host without a GPU the stories use the stub of tests/support/nvml_stub.c, which needs a C compiler.
"""

from __future__ import annotations

import contextlib
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
sys.path.insert(0, str(ROOT))
BUNDLE = ROOT / ".bundle"
NODE = Path(os.environ.get("NODE_FOLDER") or f"{tempfile.gettempdir()}/vramwarden-node")
STORIES = "tests/e2e/test_12b_one_card.py"
NVML = "libnvidia-ml.so.1"
NEEDED = ("unshare", "nsenter", "mount", "ldconfig", "ldd", "bash")
OVERLAY = """
cd "$0" && mkdir lower upper work merged &&
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
"""
VETH = "ip link add one type veth peer two && ip link show two"


def tried(*command: str) -> str:
    """Run a command; return "yes", or "no: " and the reason for the failure."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no: {error}"
    return "yes" if not done.returncode else f"no: {' '.join(done.stderr.split())[:200]}"


def libraries() -> Path | None:
    """Return the folder of the driver's libraries, or None if they do not load."""
    for name in (NVML, f"/usr/local/nvidia/lib64/{NVML}", f"/usr/local/nvidia/lib/{NVML}"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            lines = Path("/proc/self/maps").read_text().splitlines()
            (loaded, *_) = (line.split()[-1] for line in lines if "/libnvidia-ml.so." in line)
            return Path(loaded).parent
    return None


def device_nodes() -> list[str]:
    """Return the device nodes of NVIDIA's driver."""
    return sorted(str(path) for path in Path("/dev").glob("nvidia*"))


def has_gpu() -> bool:
    """Return True if this machine has a GPU's device node."""
    return any(node.removeprefix("/dev/nvidia").isdigit() for node in device_nodes())


def driver() -> dict[str, str]:
    """Return the probe's results about the driver, keyed by subject."""
    folder = libraries()
    if folder is None:
        return {
            "driver": f"{'no: ' * has_gpu()}{NVML} does not load, with LD_LIBRARY_PATH or without"
        }
    owner = folder.stat()
    # This runs before nvidia-ctk, since drivers may create device nodes only for their first
    # program.
    loads = "import ctypes; code = ctypes.CDLL('libcuda.so.1').cuInit(0); assert not code, code"
    found = ["env", f"LD_LIBRARY_PATH={folder}"]
    writes = ("cdi", "generate", "--mode=nvml", f"--library-search-path={folder}")
    with tempfile.TemporaryDirectory() as written:
        specification = f"--output={written}/nvidia.yaml"
        return {
            "driver": f"{folder} of {owner.st_uid}:{owner.st_gid}",
            "cuInit": tried(*found, sys.executable, "-c", loads),
            "CDI": tried(*found, "nvidia-ctk", "--quiet", *writes, specification),
            "device nodes": " ".join(device_nodes()),
        }


def cgroups() -> str:
    """Describe the cgroup hierarchies and their controllers."""
    found = []
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        controllers = Path(root, "cgroup.controllers")
        if controllers.exists():
            writable = "" if os.access(root, os.W_OK) else ", read-only"
            found.append(f"v2 at {root}: {controllers.read_text().strip() or 'none'}{writable}")
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    v1 = [line.split(":")[1] for line in lines if not line.startswith("0::")]
    return "; ".join([*found, *[f"v1: {' '.join(v1)}"] * bool(v1)]) or "none"


def kernel() -> str:
    """Describe the kernel. Kernels such as gVisor, whose PIDs differ from NVML's, are a problem."""
    # Imported here, because sys.path is set after the imports above.
    from webhook.adapters.host_environment import check_kernel  # noqa: PLC0415

    found = check_kernel()
    return found.reason if found.holds else f"no: {found.reason}"


def overlayfs() -> str:
    """Try to mount an overlay in the temporary folder, as containerd does."""
    with tempfile.TemporaryDirectory() as folder:
        return tried("unshare", "--mount", "sh", "-c", OVERLAY, folder)


def probe() -> dict[str, str]:
    """Return the probe's results by subject. A result that begins with `no` is a problem."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    disk = shutil.disk_usage(tempfile.gettempdir()).free >> 30
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
        "overlayfs": overlayfs(),
        "veth": tried("unshare", "--net", "sh", "-c", VETH),
        **driver(),
    }


FATAL = ("kernel", "root", "programs", "namespaces", "veth", "driver")


def check(found: dict[str, str]) -> None:
    """Print the probe's results; exit if no node can run."""
    print(*(f"{what}: {answer}" for what, answer in found.items()), sep="\n", flush=True)
    if faults := [what for what in FATAL if found[what].startswith("no:")]:
        raise SystemExit(f"no node can run here: {', '.join(faults)}")


def unpack() -> None:
    """Unpack each archive of the bundle unless it is unpacked already."""
    for archive in BUNDLE.glob("*.tar.xz"):
        done = NODE / f".{archive.name}-{archive.stat().st_size}"
        if not done.exists():
            with tarfile.open(archive) as tar:
                tar.extractall(NODE, filter="tar")
            done.touch()


def variables(found: dict[str, str]) -> dict[str, str]:
    """Return the environment variables for the stories; existing variables take precedence."""
    paths = [
        ROOT,
        NODE / "site",
        NODE / "site-tests",
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    works = found.get("CDI", "yes") == "yes"  # the probe omits this result without a driver
    chosen = {
        "E2E_RUNTIME": "nvidia" if works else "stand-in",
        "E2E_SNAPSHOTTER": "overlayfs" if found["overlayfs"] == "yes" else "native",
        "E2E_DRIVER": "host" if has_gpu() else "stub",
        "E2E_PATIENCE": "90",
    }
    chosen |= {name: os.environ[name] for name in chosen if os.environ.get(name)}
    print(*(f"{name}={value}" for name, value in chosen.items()), flush=True)
    return {
        **os.environ,
        **chosen,
        "PYTHONPATH": ":".join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the host's Python may have other plugins
        "KUBEBUILDER_ASSETS": str(NODE / "bin"),
        "NVIDIA_TOOLKIT": str(NODE / "bin"),
        "E2E_IMAGES": str(NODE / "images"),
        "PREFIX": "localhost/",
    }


def run(environment: dict[str, str], *arguments: str) -> None:
    """Assemble the images, then replace this process by the stories."""
    for archive, part in (("node", "python"), ("control-plane", "bin/etcd")):
        if not (NODE / part).exists():
            raise SystemExit(f"{archive}.tar.xz is missing in {BUNDLE}")
    wanted = (NODE / "python").read_text().strip()
    if not platform.python_version().startswith(f"{wanted}."):
        raise SystemExit(f"the bundle is for Python {wanted}: make bundle HOST_PYTHON=...")
    os.chdir(ROOT)
    began_s = time.monotonic()
    assemble = (sys.executable, "-m", "tests.gpu.node.images", NODE / "images", NODE / "site")
    subprocess.run(assemble, env=environment, check=True)
    print(f"images assembled: {time.monotonic() - began_s:.1f} s", flush=True)
    tests = ("-m", "pytest", "-rsP", "-p", "xdist.plugin", "-p", "no:cacheprovider", *arguments)
    if not any(Path(argument.partition("::")[0]).exists() for argument in arguments):
        tests += (STORIES,)
    os.execve(sys.executable, (sys.executable, *tests), environment)  # noqa: S606 - a list, no shell


def main(action: str = "run", *arguments: str) -> None:
    unpack()
    os.environ["PATH"] = f"{NODE / 'bin'}:{os.environ['PATH']}:/usr/local/nvidia/bin"
    found = probe()
    check(found)
    if action == "run":
        run(variables(found), *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
