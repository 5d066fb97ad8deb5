"""Run `admit` on manifests and return its output."""

from __future__ import annotations

import io
import re
from typing import Any, NamedTuple

from tests.support.pods import a_policy
from webhook.core.policy.model import Policy
from webhook.tools.admit.command import admit
from webhook.tools.admit.migration.foreign_pod import Origin
from webhook.tools.admit.output.write import Output
from webhook.tools.manifests.reading import read_yaml

_PLACE = re.compile(r"(?m)^((?:\x1b\[[0-9]+m)?)[a-h]\.yaml:[0-9]+: ")


class Run(NamedTuple):
    """Exit code and output streams of a run."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """Value that kubectl would read from standard output."""
        return read_yaml(self.out)[0]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def run(*texts: str, **options: Any) -> Run:
    """Run `admit`. Remove the location before each verdict and the final count."""
    code, out, err = run_in_full(*texts, **options)
    if code != 2:
        err = _PLACE.sub(r"\1", "".join(err.splitlines(keepends=True)[:-1]))
    return Run(code, out, err)


def run_in_full(
    *texts: str,
    policy: Policy | None = None,
    output: str = "yaml",
    namespace: str = "default",
    terminal: bool = False,
    verbose: bool = False,
    origin: Origin | None = None,
) -> Run:
    """Run `admit` on files named a.yaml, b.yaml, ..."""
    out, err = (Terminal() if terminal else io.StringIO() for _ in range(2))
    named = [(f"{letter}.yaml", text) for letter, text in zip("abcdefgh", texts, strict=False)]
    chosen = policy or a_policy()
    form = Output(output)
    more = {"verbose": verbose, "origin": origin}
    code = admit(named, chosen, namespace, form, out, err, **more)
    return Run(code, out.getvalue(), err.getvalue())


ADMIT_POLICY = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: test}
spec:
  rules:
  - name: everyone
    match: {namespaces: ["team-*"]}
"""
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
