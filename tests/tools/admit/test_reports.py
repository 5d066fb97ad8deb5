"""Output formats other than manifests, each with a golden file in `reports`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.support.golden_files import assert_recorded
from tests.support.pods import a_policy, a_rule
from tests.tools.admit.runs import POD, run_in_full
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.core.policy.model import Action
from webhook.tools.admit.output import ci_reports

FOLDER = Path(__file__).parent / "reports"
INPUT = (FOLDER / "input.yaml").read_text()
FILES = {
    "summary": "summary.txt",
    "github": "github.txt",
    "junit": "junit.xml",
    "report": "report.json",
}


@pytest.fixture(autouse=True)
def _of_one_release(monkeypatch):
    monkeypatch.setattr(ci_reports, "__version__", "0.0.0")


def written(output: str, text: str = INPUT, **options):
    policy = options.pop("policy", None) or replace(
        a_policy(whole_gpu_resources=WHOLE_GPU_RESOURCES), digest=a_policy().digest
    )
    return run_in_full(text, output=output, namespace="team-a", policy=policy, **options)


@pytest.mark.parametrize("output", FILES)
def test_every_form_comes_out_as_recorded(output):
    result = written(output)
    assert result.code == 1
    assert_recorded(FOLDER / FILES[output], result.out)


def test_the_folder_holds_nothing_else():
    assert {path.name for path in FOLDER.iterdir()} == {*FILES.values(), "input.yaml", "stderr.txt"}


@pytest.mark.parametrize("output", ["yaml", "junit", "report", "diff"])
def test_verdicts_go_to_standard_error_beside_forms_for_machines(output):
    assert_recorded(FOLDER / "stderr.txt", written(output, verbose=True).err)


@pytest.mark.parametrize("output", ["summary", "github"])
def test_forms_that_people_read_leave_the_count_alone_on_standard_error(output):
    tally = (FOLDER / "stderr.txt").read_text().splitlines(keepends=True)[-1]
    assert written(output).err == tally


def test_junit_is_well_formed_whatever_a_name_holds():
    hostile = POD.replace("name: train", 'name: "]]>\\x07\\e[2J<&\\"\\u0085\\uffff"').replace(
        "8Gi", "8GB"
    )
    root = ET.fromstring(written("junit", INPUT + "---\n" + hostile).out)  # noqa: S314 - our own
    assert root.attrib == {"name": "vramwarden admit", "tests": "6", "failures": "4", "errors": "0"}
    cases = root.findall("testsuite/testcase")
    assert len(cases) == 6
    failure = cases[-1].find("failure")
    assert failure.attrib["type"] == "InvalidQuantity"
    assert cases[-1].attrib["name"] == 'Pod team-a/]]>\\x07\\x1b[2J<&"\\x85\\uffff'


def test_no_name_begins_a_command_of_githubs_runner():
    text = POD.replace("name: train", 'name: "x\\n::error::y%0A\\r::stop"').replace("8Gi", "8GB")
    (line,) = written("github", text).out.splitlines()
    assert line.count("%0A::error::y%250A%0D::stop") == 1
    assert re.match(r"::error file=a\.yaml,line=6,title=InvalidQuantity::Pod team-a/x%0A", line)


def test_no_name_steers_the_terminal_of_a_log():
    text = POD.replace("name: train", 'name: "\\e[2J"').replace("8Gi", "8GB")
    assert all("\x1b" not in written(output, text).out for output in ("github", "summary"))


def test_what_is_recorded_alone_is_no_annotation_of_github():
    policy = a_policy(a_rule(action=Action.AUDIT))
    assert written("github", POD.replace("8Gi", "8GB"), policy=policy).out == ""
    policy = a_policy(a_rule(action=Action.WARN))
    assert written("github", POD.replace("8Gi", "8GB"), policy=policy).out.startswith("::warning ")


def test_the_report_says_what_became_of_each():
    made = json.loads(written("report").out)
    assert (made["kind"], made["apiVersion"]) == ("AdmitReport", "vramwarden.io/v1alpha1")
    assert made["allowed"] is False
    assert made["summary"] == {
        "translated": 2,
        "alreadyTranslated": 0,
        "denied": 1,
        "warned": 0,
        "leftAlone": 2,
        "notJudged": 0,
        "withoutTemplate": 2,
        "unreadable": 0,
    }
    assert [verdict["decision"] for verdict in made["verdicts"]] == [
        "mutated",
        "denied",
        "allowed",
        "mutated",
        "allowed",
    ]
    denied = made["verdicts"][1]
    assert (denied["reasons"], denied["line"]) == (["InvalidQuantity", "HostPID"], 29)
    assert [finding["line"] for finding in denied["findings"]] == [29, 31]


def test_what_cannot_be_read_is_an_error_in_every_form():
    texts = (POD, "a: [")
    line = "not valid YAML: did not find expected node content"
    github, junit, report = (run_in_full(*texts, output=form) for form in list(FILES)[1:])
    assert {item.code for item in (github, junit, report)} == {2}
    assert github.out == f"::error file=b.yaml,line=2,title=Unreadable::{line}\n"
    root = ET.fromstring(junit.out)  # noqa: S314 - our own
    assert (root.attrib["tests"], root.attrib["failures"], root.attrib["errors"]) == ("2", "0", "1")
    assert root.find("testsuite[2]/testcase/error").attrib["message"] == line
    made = json.loads(report.out)
    assert (made["allowed"], made["summary"]["unreadable"]) == (False, 1)
    assert made["unreadable"] == [{"file": "b.yaml", "line": 2, "sentence": line}]


def test_a_summary_takes_some_ten_lines_a_pod():
    assert len(written("summary", POD).out.splitlines()) <= 11


def test_what_the_platform_team_says_stands_behind_the_findings():
    policy = a_policy(a_rule(message="ask in #gpu-help"))
    text = POD.replace("8Gi", "8GB")
    said = "Your platform team says: ask in #gpu-help"
    assert written("summary", text, policy=policy).out.splitlines()[2:] == [f"  {said}"]
    *_, last = written("github", text, policy=policy).out.splitlines()
    assert last.startswith("::notice file=a.yaml,line=6,title=vramwarden::Pod team-a/train: Your")
    assert written("report", text, policy=policy).out.count(said) == 1


def test_the_summary_writes_memory_that_nodes_need_as_people_do():
    asks = 'gpu-memory: 8.5Gi\n    vramwarden.io/gpu-count: "2"'
    said = written("summary", POD.replace("gpu-memory: 8Gi", asks)).out
    assert "; GPUs of at least 8704Mi; " in said
    assert "\n  prefers     GPUs with at least 8704Mi free\n" in said
