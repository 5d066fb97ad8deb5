"""deploy/one-week.md, tried: each day's policy, and what it makes of a pod."""

from __future__ import annotations

import re

import pytest

from tests.support.commands import runner
from tests.support.documents import commands
from tests.support.paths import ROOT
from tests.support.pods import a_pod, a_request
from webhook.adapters.policy.files import load_config_map
from webhook.cli.main import main
from webhook.core.admission.decide import Outcome, Phase, decide
from webhook.core.policy.cluster import UNKNOWN

PAGE = ROOT / "deploy" / "one-week.md"
DAYS = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
STOPPING = DAYS[-1].replace("    enforcement: {onExcess: Report}\n", "")
REPORTS = {"name": "VRAM_ON_EXCESS", "value": "Report"}


def decided(text, memory, namespace):
    policy = load_config_map({"week.yaml": text}, "page", enforcer_image="x")
    return decide(a_request(a_pod(memory), namespace=namespace), policy, UNKNOWN, Phase.MUTATE)


@pytest.mark.parametrize(
    ("day", "right", "wrong", "reports"),
    [
        (DAYS[0], Outcome.ALLOWED, Outcome.AUDITED, None),
        (DAYS[1], Outcome.MUTATED, Outcome.WARNED, True),
        (DAYS[2], Outcome.MUTATED, Outcome.DENIED, True),
        (STOPPING, Outcome.MUTATED, Outcome.DENIED, False),
    ],
    ids=["record", "warn", "enforce", "stop"],
)
def test_each_day_does_what_the_page_says(day, right, wrong, reports):
    assert len(DAYS) == 3
    assert DAYS[-1] != STOPPING
    fine, faulty = (decided(day, memory, "team-a") for memory in ("8Gi", "8GB"))
    assert (fine.outcome, faulty.outcome) == (right, wrong)
    if reports is None:
        assert fine.patch == ()
    else:
        (enforcer,) = fine.obj["spec"]["initContainers"]
        assert (REPORTS in enforcer["env"]) is reports
    assert decided(day, "8GB", "team-b").outcome is Outcome.AUDITED
    assert decided(day, "8Gi", "team-b").patch == ()
    assert decided(day, "8GB", "gpu-operator").outcome is Outcome.SKIPPED


def test_the_policy_check_of_the_page_passes(tmp_path):
    (check, *_) = commands(PAGE, "policy check")
    path = tmp_path / "week.yaml"
    for day in DAYS:
        path.write_text(day)
        arguments = check.replace("week.yaml", str(path)).split()[1:]
        done = runner().invoke(main, arguments)
        assert done.exit_code == 0, done.stderr


def test_the_upgrade_of_the_page_puts_the_policy_in_place_of_the_shipped_one(helm, tmp_path):
    _, *lines = commands(PAGE, "policy check")
    assert "--set-file 'policies.files.default\\.yaml=week.yaml'" in lines[-1]
    (tmp_path / "week.yaml").write_text(DAYS[0])
    flag = f"policies.files.default\\.yaml={tmp_path / 'week.yaml'}"
    chart = str(ROOT / "deploy" / "chart" / "vramwarden")
    text = helm.run(
        "template", "vramwarden", chart, "--namespace", "vramwarden-system",
        "--kube-version", "1.36.0", "--set-file", flag,
        "--set", "image.repository=x,enforcer.repository=x",
        "--show-only", "templates/policies.yaml",
    )  # fmt: skip
    assert "name: looking" in text
    assert "name: default\n" not in text.replace("default.yaml", "")
