"""The test that runs each command of the pages, and the commands that no test runs.

Patterns are matched against the start of `PAGE: COMMAND`.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.page_commands import PAGES, all_commands
from tests.support.paths import ROOT

KUBELET = r"kubectl (-n \S+ )?(logs|exec|debug)\b"
SYSTEM = "namespace vramwarden-system"
APPLIED = r"deploy/(install|tutorial)\.md: "
SHOWN = rf"(?!{KUBELET})(helm|kubectl|mkdir|vramwarden)"
OTHERS = r"(?!(coming-over|install|laptop|tutorial|uninstall)\.md)[\w-]+"
ELSEWHERE = r"helm (test|upgrade \S+ vramwarden vramwarden-)|kubectl (-n argocd|delete \w+ating)"

RUN = {
    ".ci/run": [r"\S+: make (demo|lint|test)$"],
    "tests/chart/test_lifecycle.py": [
        r"deploy/outage\.md: kubectl delete",
    ],
    "tests/chart/test_validity.py": [
        r"deploy/install\.md: sed",
        r"deploy/uninstall\.md: sed",
    ],
    "tests/cluster/test_first_change.py": [r"webhook/first-change\.md: "],
    "tests/contracts/test_coming_over.py": [r"deploy/coming-over\.md: "],
    "tests/contracts/test_project.py": [r"deploy/install\.md: pip install"],
    "tests/contracts/test_other_programs.py": [
        r"tests/e2e/README\.md: (\(cd|export|for|git clone)",
    ],
    "tests/dev/test_pages.py": [
        rf"deploy/{OTHERS}\.md: (?!{ELSEWHERE}){SHOWN}",
        rf"(certs/README|policies/[\w-]+)\.md: {SHOWN}",
        rf"{APPLIED}(REGISTRY=|\.venv)",
        r"deploy/install\.md: (kubectl (get|run)|vramwarden|helm (template|upgrade vramwarden))",
    ],
    "tests/e2e/cluster.py": [r"\S+: helm test"],
    "tests/e2e/conftest.py": [
        rf"{APPLIED}(kubectl (create|label) {SYSTEM}|helm upgrade --install)",
    ],
    "tests/e2e/test_00_laptop.py": [
        r"deploy/laptop\.md: (helm|kubectl|\.venv)",
        r"deploy/uninstall\.md: (?!sed)",
        rf"deploy/tutorial\.md: (helm uninstall|kubectl delete (crd|{SYSTEM}))",
    ],
    "tests/e2e/test_03c_tutorial.py": [
        r"deploy/tutorial\.md: (kubectl (-n|get|apply|\w+ namespace team-a)|vramwarden|cat)",
    ],
    "tests/e2e/test_03d_pages.py": [
        rf"(?!deploy/tutorial)\S+: {KUBELET}",
        r"deploy/offline\.md: ctr",
    ],
    "tests/release/test_offline.py": [r"deploy/offline\.md: (sha256sum|skopeo|helm|pip install)"],
    "tests/scheduling/test_scheduler_profiles.py": [r"deploy/scheduler/README\.md: sed"],
}
"""Patterns keyed by the file that takes the commands from the pages; `.ci/run` contains them
literally."""

MADE = {
    "make bench$": ("tests/bench/test_run.py", "tests.bench"),
    "make dev$": ("tests/dev/test_run.py", "tests.dev.run"),
    "make docs$": ("tests/contracts/test_site.py", "mkdocs"),
    "make generate$": ("tests/contracts/test_generated.py", "generate"),
    "make image PREFIX=": ("tests/e2e/images.py", "deploy/images/build"),
    "make release": ("tests/release/test_release.py", "deploy.release"),
    "make test-changed$": ("tests/contracts/test_lanes.py", "tests.support.changed_tests"),
    "make test-fast$": ("tests/core/test_fast_lane.py", "tests.support.fast_lane"),
}
"""Make targets, each with the file that runs its recipe and words in both."""

NOT_RUN = {
    r"(CONTRIBUTING|tests/e2e/README)\.md: ([A-Z]\S+ )*make e2e": "it runs the tests named above",
    r"deploy/offline\.md: (PIP_INDEX_URL=|pip download)": "PyPI, or a mirror of it",
    r"deploy/gitops\.md: kubectl -n argocd": "Argo CD",
    r"deploy/offline\.md: for name": "images of two platforms",
    r"deploy/laptop\.md: (BUILDX\S+ make|kind)": "kind, and Docker",
    r"deploy/nodes\.md: gcloud": "an account of Google's cloud",
    r"deploy/nodes\.md: grep": "a GPU that shares its memory with the CPU",
    r"tests/bench/README\.md: (\(cd|make bench BENCH_HAMI)": "other projects' sources",
    r"tests/e2e/README\.md: apt-get": "a Debian to change",
    r"tests/gpu/README\.md: ": "a GPU",
}
"""Commands that the tests cannot run, and what they would need."""


def commands_of(file: Path | str) -> list[tuple[str, str]]:
    """Return page and command for each command that a file runs; the file gives its `__file__`."""
    place = str(Path(file).relative_to(ROOT))
    return [
        item for item in every_command() if any(re.match(p, ": ".join(item)) for p in RUN[place])
    ]


def every_command() -> list[tuple[str, str]]:
    """Return page and command for all commands of the pages."""
    return [
        (str(page.relative_to(ROOT)), command) for page in PAGES for command in all_commands(page)
    ]
