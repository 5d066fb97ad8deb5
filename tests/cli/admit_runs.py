"""Run `admit` on a text and hand back all it wrote."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.pods import a_policy
from webhook.adapters.manifests.reading import read_yaml
from webhook.cli.admit.command import admit
from webhook.cli.admit.output import Output

if TYPE_CHECKING:
    from webhook.core.policy.values import Policy


class Run(NamedTuple):
    """An exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """What kubectl would read on standard output."""
        return read_yaml(self.out)[0]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def run(
    *texts: str,
    policy: Policy | None = None,
    output: str = "yaml",
    namespace: str = "default",
    terminal: bool = False,
    colour: bool = True,
) -> Run:
    """Run `admit` on texts named a.yaml, b.yaml, ..."""
    out, err = (Terminal() if terminal else io.StringIO() for _ in range(2))
    named = [(f"{letter}.yaml", text) for letter, text in zip("abcdefgh", texts, strict=False)]
    chosen = policy or a_policy()
    code = admit(named, chosen, namespace, Output(output), out, err, colour=colour)
    return Run(code, out.getvalue(), err.getvalue())


POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: train
  annotations:
    vramwarden.io/gpu-memory: 8Gi
spec:
  containers:
  - name: main
    image: example
"""
