"""Stand-in for NVIDIA's container runtime, or for runc beneath the real one.

Containerd or NVIDIA's runtime starts it instead of runc, as `nvidia_runtime.py FOLDER ROLE RUNC
ARGUMENTS...`. It changes the bundle of a container that is created, then becomes runc.

| role | a container gets |
| --- | --- |
| `stand-in` | the driver's library if it requests GPUs, as from the hook of mode `legacy` |
| `beneath` | nothing, since NVIDIA's runtime adds library and device nodes |
| `host-stand-in` | this machine's driver and all GPUs if it requests one |
| `host-beneath` | nothing, since NVIDIA's runtime adds this machine's driver |

In each role, vramwarden programs with `hostPID` treat the node's PID namespace as the initial one.
nvidia_driver.py creates the driver in FOLDER/driver. Without that folder, the stand-in adds
nothing. FOLDER/scenes/SANDBOX has what the library simulates for a pod; the pod's containers
see it as /scene. To use VRAM, a process writes `0 BYTES` to /scene/pids/<its PID>.
NVIDIA's mock simulates FOLDER/driver/mock.json instead, with only the GPUs of the pod.
FOLDER/kernel, seen as /kernel, replaces /proc/driver/nvidia, which is not writable.
A container with hostPID sees all scenes as /scenes, with the PIDs on the node.
FOLDER/version has the version of the driver. If FOLDER/limits exists, the driver limits cgroups
as FOLDER/limits/mode states. Programs also load the library as libcuda.so.1 to allocate memory.
"""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
LIBRARIES = f"usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
DRIVER = "570.86.15"
R615 = "615.71.09"
CUDA = "libcuda.so.1"
DRIVER_ANNOTATION = "stub.nvml/driver"  # of a pod: the driver's version, if not the node's
# NVIDIA's container toolkit accepts only this form of GPU UUID.
UUIDS = tuple(f"GPU-{number}0000000-0000-4000-8000-000000000000" for number in range(2))
GPU_BYTES = 80 * 2**30
PRODUCT = "NVIDIA H200"
OUTERMOST = """
import os
from webhook.adapters import host_environment
host_environment._NODE_PID_NAMESPACE = os.readlink("/proc/self/ns/pid")
from webhook.cli.main import main
main()
"""
CGROUPS = Path("/sys/fs/cgroup")
UNIFIED = CGROUPS / "unified"
"""Mount point of cgroup v2 on machines with both versions; pods have cgroups in both."""
TREE = UNIFIED if UNIFIED.is_dir() else CGROUPS


def main(folder: Path, role: str, runc: str, arguments: list[str]) -> None:
    """Change the bundle of a container that is created, then become runc."""
    if "create" in arguments and "--bundle" in arguments:
        path = Path(arguments[arguments.index("--bundle") + 1], "config.json")
        config = json.loads(path.read_bytes())
        if equip(folder, role, config):
            path.write_text(json.dumps(config), encoding="utf-8")
    os.execv(runc, [runc, *arguments])  # noqa: S606 - it becomes runc


def equip(folder: Path, role: str, config: dict) -> bool:
    """Add what belongs to a container's GPUs; return True if its configuration changed."""
    paths = [
        namespace.get("path")
        for namespace in config["linux"]["namespaces"]
        if namespace["type"] == "pid"
    ]
    of_node = not paths or (paths[0] and Path(paths[0]).samefile("/proc/self/ns/pid"))
    if role.startswith("host"):
        is_ours = bool(of_node) and believe_in_the_node(config["process"])
        return (role == "host-stand-in" and show_host(folder, config)) or is_ours
    environment = config["process"].setdefault("env", [])
    if role == "beneath":
        names = [Path(mount["destination"]).name for mount in config["mounts"]]
        if not any(name.startswith("libnvidia-ml.so.") for name in names):
            return False
        gpus = [f"{gpu} node=/dev/nvidia{number}" for number, gpu in enumerate(lines(UUIDS))]
    else:
        asked = asked_for(environment)
        if not asked:
            return False
        gpus = lines(uuid for uuid in UUIDS if asked == "all" or uuid in asked.split(","))
        library = folder / "driver" / LIBRARIES / LIBRARY
        if library.exists():
            config["mounts"].append(mount(library.resolve(), f"/{LIBRARIES}/{LIBRARY}", "ro"))
    show_cuda(config["mounts"])
    annotations = config.get("annotations", {})
    scenes = folder / "scenes"
    scene = scenes / annotations["io.kubernetes.cri.sandbox-id"]
    if of_node:
        gpus.append("pods /scenes")
        believe_in_the_node(config["process"])
        config["mounts"].append(mount(scenes, "/scenes", "ro"))
    pod = re.search("pod[-0-9a-f]{36}", config["linux"]["cgroupsPath"])
    if (limits := folder / "limits").exists():
        gpus.append(f"limits {(limits / 'mode').read_text()} cgroups=/cgroups in=/limits")
        show_limits(config, limits)
    version = annotations.get(DRIVER_ANNOTATION) or (folder / "version").read_text()
    set_up(scene, play(version, gpus), pod.group())
    config["mounts"] += [mount(scene, "/scene", "rw"), mount(folder / "kernel", "/kernel", "ro")]
    environment.append("NVML_STUB_FILE=/scene/stub.txt")
    mock = folder / "driver" / "mock.json"
    if mock.exists():
        environment.append("MOCK_NVML_CONFIG=/scene/mock.json")
        (scene / "mock.json").write_text(play_mock(mock.read_text(), " ".join(gpus)))
    return True


def asked_for(environment: list[str]) -> str:
    """Return the GPUs that a container requests, or "" for none."""
    variables = dict(entry.partition("=")[::2] for entry in environment)
    asked = variables.get("NVIDIA_VISIBLE_DEVICES", "")
    return "" if asked in {"void", "none"} else asked


def show_host(folder: Path, config: dict) -> bool:
    """Add this machine's driver and GPUs to a container that requests any; return True then."""
    environment = config["process"].setdefault("env", [])
    if not asked_for(environment):
        return False
    libraries = Path((folder / "libraries").read_text())
    for name in ("libcuda.so*", "libnvidia-*.so*"):
        for file in libraries.glob(name):
            config["mounts"].append(mount(file.resolve(), f"/driver/{file.name}", "ro"))
    environment.append("LD_LIBRARY_PATH=/driver")
    for node in filter(Path.is_char_device, Path("/dev").glob("nvidia*")):
        config["mounts"].append(mount(node, str(node), "rw"))
        allowed = {"allow": True, "type": "c", "major": os.major(node.stat().st_rdev)}
        config["linux"]["resources"].setdefault("devices", []).append({**allowed, "access": "rwm"})
    return True


def believe_in_the_node(process: dict) -> bool:
    """Make a vramwarden program treat the node's PID namespace as the machine's initial one.

    The node's PID namespace is nested, and older drivers report nothing outside the initial one.
    Return True if the process is a vramwarden program.
    """
    if is_ours := Path(process["args"][0]).name == "vramwarden":
        process["args"][:1] = ["python3", "-c", OUTERMOST]
    return is_ours


def show_cuda(mounts: list[dict]) -> None:
    """Also mount the library as libcuda.so.1."""
    mounts += [
        {**found_mount, "destination": str(Path(found_mount["destination"]).with_name(CUDA))}
        for found_mount in mounts
        if Path(found_mount["destination"]).name.startswith("libnvidia-ml.so.")
    ]


def show_limits(config: dict, limits: Path) -> None:
    """Mount what the driver needs to know about cgroups into a container."""
    mounts = config["mounts"]
    for found_mount in mounts if TREE is UNIFIED else ():
        if found_mount["destination"] == str(CGROUPS) or found_mount.get("source") == str(CGROUPS):
            writable = "rw" in found_mount.get("options", ())
            found_mount.update(mount(TREE, found_mount["destination"], "rw" if writable else "ro"))
    mounts += [mount(limits, "/limits", "rw"), mount(TREE, "/cgroups", "ro")]


def lines(uuids) -> list[str]:
    """Describe GPUs for the library's file."""
    name = PRODUCT.replace(" ", "_")
    return [f"gpu {uuid} total={GPU_BYTES} reserved=0 mig=0 name={name}" for uuid in uuids]


def play(driver: str, gpus: list[str]) -> str:
    """Return the content of the library's file."""
    return "\n".join([f"driver {driver}", *gpus, "live figures", ""])


def play_mock(machine: str, gpus: str) -> str:
    """Return the file for NVIDIA's mock: its machine, with only these GPUs."""
    played = json.loads(machine)
    seen = [device for device in played["devices"] if device["uuid"] in gpus]
    played["devices"] = [{**item, "index": number} for number, item in enumerate(seen)]
    return json.dumps(played)


def set_up(scene: Path, text: str, pod: str) -> None:
    """Write the library's file for a pod once."""
    if scene.exists():
        return
    pids = scene / "pids"
    pids.mkdir(parents=True)
    limits = scene / "limits"  # for allocations, even if no limit is in effect
    limits.mkdir()
    for folder in (scene, pids, limits):
        folder.chmod(0o777)  # containers write as any user
    (scene / "pod").write_text(pod, encoding="ascii")
    (scene / "stub.txt").write_text(text, encoding="ascii")


def mount(source: Path, destination: str, mode: str) -> dict[str, object]:
    options = ["rbind", mode]
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": options,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], sys.argv[4:])
