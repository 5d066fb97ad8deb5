"""deploy/one-week.md: each day's policy, and its effect on a pod."""

from __future__ import annotations

import re

import pytest

from tests.support.page_commands import commands
from tests.support.paths import ROOT
from tests.support.pods import a_pod, a_request
from tests.support.run_command import runner
from webhook.adapters.policy.files import load_config_map
from webhook.cli.main import main
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.cluster import UNKNOWN_CLUSTER

PAGE = ROOT / "deploy" / "one-week.md"
TEXT = PAGE.read_text()
FIRST, RULE = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
(ABOVE,) = re.findall(r"^Write a rule for the team above `(\w+)`:$", TEXT, re.MULTILINE)
((ENFORCE, WARN, NAME),) = re.findall(
    r"write `(.+?)` in\s+place of `(.+?)` in the rule `(\w+)`", TEXT
)
(GONE,) = re.findall(r"^Remove the line `(.+?)`", TEXT, re.MULTILINE)
WARNING = FIRST.replace(f"  - name: {ABOVE}\n", f"{RULE}  - name: {ABOVE}\n")
ENFORCING = WARNING.replace(WARN, ENFORCE)
STOPPING = ENFORCING.replace(f"    {GONE}\n", "")
DAYS = (FIRST, WARNING, ENFORCING, STOPPING)
"""Policy file of each day, edited as on the page."""
REPORTS = {"name": "VRAM_ON_EXCESS", "value": "Report"}


def decided(text, memory, namespace):
    policy = load_config_map({"week.yaml": text}, "page", enforcer_image="x")
    return decide(
        a_request(a_pod(memory), namespace=namespace), policy, UNKNOWN_CLUSTER, Phase.MUTATE
    )


@pytest.mark.parametrize(
    ("day", "right", "wrong", "reports"),
    [
        (FIRST, Outcome.ALLOWED, Outcome.AUDITED, None),
        (WARNING, Outcome.MUTATED, Outcome.WARNED, True),
        (ENFORCING, Outcome.MUTATED, Outcome.DENIED, True),
        (STOPPING, Outcome.MUTATED, Outcome.DENIED, False),
    ],
    ids=["record", "warn", "enforce", "stop"],
)
def test_each_day_does_what_the_page_says(day, right, wrong, reports):
    assert len(set(DAYS)) == len(DAYS)
    assert f"- name: {NAME}\n" in RULE
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


def test_the_options_of_the_page_put_the_policy_in_place_of_the_shipped_one(helm, tmp_path):
    """This applies to the install, which must never enforce, and to each upgrade."""
    given = re.findall(r"--set-file '(policies\S+=)week\.yaml'", TEXT)
    assert given == [given[0]] * 2
    (tmp_path / "week.yaml").write_text(FIRST)
    chart = str(ROOT / "deploy" / "chart" / "vramwarden")
    text = helm.run(
        "template", "vramwarden", chart, "--namespace", "vramwarden-system",
        "--kube-version", "1.36.0", "--set-file", f"{given[0]}{tmp_path / 'week.yaml'}",
        "--set", "image.repository=x,enforcer.repository=x",
        "--show-only", "templates/policies.yaml",
    )  # fmt: skip
    assert "name: looking" in text
    assert "name: default\n" not in text.replace("default.yaml", "")
