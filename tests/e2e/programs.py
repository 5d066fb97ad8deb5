"""Pods with a program that allocates on command, with the stub or on a real GPU."""

from __future__ import annotations

from typing import Any

from tests.e2e.images import product_values
from tests.e2e.pods import MIB, container, pod
from tests.e2e.team import Team
from tests.support.paths import TESTS

Json = dict[str, Any]
PROGRAM = (TESTS / "gpu/program.py").read_text(encoding="utf-8")
LINES = "/tmp/lines"  # noqa: S108 - a file in a container


def python_image() -> str:
    """Return the name of an image that has Python: the enforcer's."""
    enforcer = product_values()["enforcer"]
    return f"{enforcer['repository']}:{enforcer['tag']}"


def gpu_pod(name: str, memory: str, *first: str, **spec: Any) -> Json:
    """Return a pod that runs the program, which starts with the lines `first`."""
    return python_pod(name, memory, ["python3", "-c", PROGRAM, LINES, *first], **spec)


def python_pod(name: str, memory: str, command: list[str], **spec: Any) -> Json:
    main = {**container(command), "image": python_image(), **spec.pop("main", {})}
    return pod(name, memory, [], containers=[main], **spec)


class GpuProgram:
    """The program in a running container of a pod."""

    def __init__(self, team: Team, name: str, first: int = 0) -> None:
        """`first` is the number of initial lines."""
        self.team, self.name = team, name
        self._answers = 1 + first  # the program prints `ok` when it starts

    def does(self, *lines: str) -> list[str]:
        """Append lines; return the response to each."""
        self.answers()
        script = f"printf '%s\\n' \"$@\" >> {LINES}"
        self.team.run(self.name, "sh", "-c", script, "sh", *lines)
        self._answers += len(lines)
        return self.answers()[-len(lines) :]

    def answers(self) -> list[str]:
        """Wait for the response to every line; return all responses."""

        def found() -> list[str]:
            said = self.team.log(self.name).splitlines()
            return said[: self._answers] if len(said) >= self._answers else []

        answers: list[str] = self.team.wait(f"the answers of {self.name}", found)
        return answers

    def step(self, mib: int) -> tuple[int, int]:
        """Allocate MiB; return CUDA's error code (0: success) and the GPU's size in MiB."""
        said, info = self.does(f"alloc {mib * MIB}", "info")
        return 0 if said == "ok" else int(said.split()[1]), int(info.split()[1]) // MIB


def started(team: Team, manifest: Json, first: int = 0) -> GpuProgram:
    """Create a pod with `gpu_pod` and wait until it is ready."""
    name = team.create(manifest)["metadata"]["name"]
    team.wait_ready(name)
    return GpuProgram(team, name, first)
