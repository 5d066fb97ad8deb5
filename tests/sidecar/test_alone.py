"""The program as in its image: an interpreter, `pynvml`, and a few files of the project."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

import webhook
from tests.sidecar.parts import CAP
from webhook.names import ENFORCER_PROBE
from webhook.sidecar.heartbeat import Heartbeat

PROBE = "webhook/sidecar/probe.sh"
STARTED = "webhook/sidecar/__main__.py"
OF_HELP = {"webhook/__init__.py", "webhook/sidecar/__init__.py", "webhook/sidecar/heartbeat.py"}
FILES = {
    *OF_HELP, STARTED, PROBE, "webhook/adapters/__init__.py", "webhook/adapters/journal.py",
    "webhook/adapters/host_environment.py", "webhook/adapters/nvml.py",
    "webhook/adapters/processes.py", "webhook/core/frozen.py", "webhook/names.py",
    "webhook/core/__init__.py",
    "webhook/core/enforcement/__init__.py", "webhook/core/enforcement/parameters.py",
    "webhook/core/enforcement/driver_limit.py", "webhook/core/enforcement/messages.py",
    "webhook/core/enforcement/model.py", "webhook/core/enforcement/pacing.py",
    "webhook/core/enforcement/step.py",
    "webhook/core/enforcement/termination_message.py", "webhook/core/nvidia/__init__.py",
    "webhook/core/nvidia/drivers.py", "webhook/core/pod/__init__.py",
    "webhook/core/pod/duration.py", "webhook/core/formatting.py", "webhook/sidecar/shutdown.py",
    "webhook/sidecar/events.py", "webhook/sidecar/guard.py", "webhook/sidecar/journal.py",
    "webhook/sidecar/driver_limit.py", "webhook/sidecar/observer.py", "webhook/sidecar/program.py",
    "webhook/sidecar/self_test.py", "webhook/sidecar/settings.py",
}  # fmt: skip
"""All files of this project that an image needs."""
LARGE = {"dataclasses", "inspect", "logging", "pathlib", "shutil", "subprocess", "tempfile"}
"""Modules of the standard library that took half of the start time, or would take as much."""
ROOT = Path(webhook.__file__).parents[1]
LISTING_IMPORTS = ("-I", "-X", "importtime", "-m", "webhook.sidecar")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the interpreter of a virtual environment with only these files and pynvml."""
    folder = tmp_path_factory.mktemp("alone")
    command = [sys.executable, "-m", "venv", "--without-pip", folder]
    subprocess.run(command, check=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.copy(pynvml.__file__, packages)
    for file in FILES:
        (packages / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, packages / file)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def by_any_module(alone, tmp_path_factory):
    """Return the modules that any start of the interpreter loads."""
    folder = tmp_path_factory.mktemp("nothing")
    (folder / "nothing.py").touch()
    ended = subprocess.run(
        [alone, "-X", "importtime", "-m", "nothing"],
        env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return imported(ended.stderr)


def imported(importtime):
    """Parse the output of `-X importtime`: lines of times and a name."""
    lines = (line.split("|") for line in importtime.splitlines())
    return {line[2].strip() for line in lines if len(line) == 3} - {"imported package"}


def tops(names):
    return {name.partition(".")[0] for name in names}


def files(names):
    """Return the files of the project's modules, except the started one."""
    ours = [name.replace(".", "/") for name in names if name.partition(".")[0] == "webhook"]
    return {
        next(item for item in (f"{name}/__init__.py", f"{name}.py") if (ROOT / item).exists())
        for name in ours
    }


def started(alone, *arguments, library, **environment):
    ended = subprocess.run(
        [alone, *LISTING_IMPORTS, *arguments],
        env={"LD_LIBRARY_PATH": str(library)} | environment,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return ended.returncode, ended.stdout, imported(ended.stderr)


def test_without_a_library_it_says_so_and_ends_with_seventy(alone, tmp_path):
    code, said, names = started(alone, library=tmp_path, **CAP)
    verdict = json.loads(said)
    assert (code, verdict["msg"], verdict["ability"]) == (70, "self-test", "blind")
    assert "libnvidia-ml.so.1 cannot be loaded" in verdict["checks"]["library"]["reason"].lower()
    assert "pynvml" in names


def test_a_whole_guard_needs_these_files_and_no_other_packages(alone, by_any_module, pod):
    def incident(p, python, by):
        p.python = python
        p.guard(by=by)
        hog = p.process("plain")
        p.holds(hog, 1200)
        p.wait_for("memory came back")
        probed = p.probe("liveness")
        p.enforcer.send_signal(signal.SIGTERM)
        found = [p.end(), hog.wait(), *probed], p.messages
        errors = p.outputs[2].read_text()
        p.outputs[2].write_text("")
        return *found, errors

    codes, events, importtime = pod.run(incident, str(alone), LISTING_IMPORTS)
    assert codes == [0, -signal.SIGTERM, 0, "guarding"]
    assert events == ["self-test", "stopping a process", "memory came back", "stopped"]
    names = imported(importtime)
    others = tops(names - by_any_module) - sys.stdlib_module_names
    assert others - {"org"} == {"pynvml", "webhook"}  # `copy` imports Jython's org.python.core
    assert files(names) == FILES - {STARTED, PROBE}
    assert not names & LARGE


def test_what_pynvml_is_loaded_without_is_there_for_others(alone):
    code = "import webhook.adapters.nvml, ctypes.util; print(callable(ctypes.util.find_library))"
    ended = subprocess.run(
        [alone, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout == "True\n"


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@pytest.mark.parametrize("kind", ["startup", "liveness"])
def test_a_probe_starts_no_program(kind, tmp_path):
    """Except for a waiting probe, which runs mkfifo and sleep. A probe costs as much as a shell."""
    Heartbeat(str(tmp_path)).beat()
    command = ["strace", "-f", "-e", "trace=process", "-o", tmp_path / "trace"]
    probe = ["sh", ROOT / PROBE, kind, "25", tmp_path]
    ended = subprocess.run([*command, *probe], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "guarding\n")
    calls = re.findall(r"^[0-9]+ +(\w+)\(", (tmp_path / "trace").read_text(), re.MULTILINE)
    assert calls.count("execve") == 1
    assert not {"fork", "vfork", "clone", "clone3"} & set(calls)


def test_help_and_wrong_usage_load_next_to_nothing(alone, tmp_path):
    for arguments in (["--help"], ["--nonsense"]):
        _, _, names = started(alone, *arguments, library=tmp_path)
        assert files(names) == OF_HELP


def test_no_file_of_the_program_is_left_over():
    files = (path for path in ROOT.glob("webhook/sidecar/*") if path.is_file())
    there = {str(path.relative_to(ROOT)) for path in files}
    assert there == {file for file in FILES if file.startswith("webhook/sidecar/")}


def test_the_image_copies_these_files_and_no_others():
    recipe = (ROOT / "deploy/images/enforcer.Containerfile").read_text(encoding="utf-8")
    copied = " ".join(re.findall(r"^COPY (webhook.*) \S+$", recipe, re.MULTILINE)).split()
    folders = [f"{item}/*.py" if (ROOT / item).is_dir() else item for item in copied]
    found = {str(path.relative_to(ROOT)) for folder in folders for path in ROOT.glob(folder)}
    assert found == FILES


def test_the_pods_probes_are_where_the_image_has_them():
    recipe = (ROOT / "deploy/images/enforcer.Containerfile").read_text(encoding="utf-8")
    assert f"install -m 755 {PROBE} {ENFORCER_PROBE} " in recipe
    assert f"! {ENFORCER_PROBE} startup 1 " in recipe


def test_the_image_compiles_all_that_the_program_imports(alone):
    """Late imports are listed there. An import without bytecode takes ten times as long."""
    recipe = (ROOT / "deploy/images/enforcer.Containerfile").read_text(encoding="utf-8")
    (listed,) = re.findall(r"compile_imports.py (webhook.*) >", recipe)
    code = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    code += "print(*sys.modules)"
    ended = subprocess.run(
        [alone, "-I", "-c", code, *listed.split()],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    loaded = {name for name in ended.stdout.split() if name.partition(".")[0] == "webhook"}
    assert files(loaded) == FILES - {PROBE}
