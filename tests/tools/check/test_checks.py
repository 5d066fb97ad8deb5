"""Text and JSON of `check`, and its verdict."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.clusters import a_cluster, a_gpu, held
from tests.support.golden_files import assert_recorded
from tests.support.installations import WEBHOOK
from tests.support.page_commands import table_of
from tests.tools.situations.checks import OFFERED, installed, labelled, patched
from tests.tools.situations.scenes import gpu_node, rag, refused, to_pods_that_ask
from webhook.tools.check.checks import FENCE, Check, CheckOutcome, find_verdict, run_checks
from webhook.tools.check.checks import WEBHOOK as OF_WEBHOOK
from webhook.tools.check.render import as_json, as_text
from webhook.tools.problems.problem import Code, Problem, Severity
from webhook.tools.problems.registration import find_expiry
from webhook.tools.render.output import printable
from webhook.tools.snapshot.installation import Installation
from webhook.tools.snapshot.objects import FactUnavailable, NotObservable

VERSION = "1.2.3"
RECORDED = Path(__file__).parent / "recorded" / "troubled.txt"
UNTRUSTED = (
    'Internal error occurred: failed calling webhook "mutate.vramwarden.io": failed to call '
    "webhook: tls: failed to verify certificate: x509: certificate signed by unknown authority"
)


def troubled():
    """Return an installation with many problems."""
    shared = gpu_node("n1", a_gpu(79, held("rag", 8, 6, 6)), device_names="none")
    whole = [gpu_node(f"n{n}", amounts=OFFERED, annotations={
        "vramwarden.io/sharing": "NotShared: a device plugin offers the GPUs whole "
        "(nvidia.com/gpu); take it off the node"
    }) for n in range(2, 7)]  # fmt: skip
    odd = gpu_node("n7", annotations={"vramwarden.io/sharing": "InUse: 3Gi are in use on GPU 0"})
    waits = rag(annotations={"vramwarden.io/gpu-waits": "no GPU of n1 has 8Gi \x1b[2Jfree"})
    found = installed(
        patched(WEBHOOK, {"status": {"readyReplicas": 1}}),
        labelled(WEBHOOK, **{"app.kubernetes.io/version": VERSION}),
        lambda api: api.denied.add(("get", "secrets")),
        answers=to_pods_that_ask(refused(500, UNTRUSTED)),
    )
    return replace(found, cluster=a_cluster([shared, *whole, odd], [waits])).stored()


@pytest.mark.process  # Helm renders the chart
def test_reports_are_as_recorded():
    facts = Installation(troubled().kube(), VERSION)
    found = run_checks(facts)
    text, plain = (
        as_text(found, is_before=False, ascii_only=flag, colour=False) for flag in (False, True)
    )
    assert "\x1b" not in text
    assert plain == IN_ASCII.sub(lambda mark: ASCII[mark[0]], text)
    assert_recorded(RECORDED, re.sub(r"digest \w{12}", "digest 0123456789ab", text))
    report = json.loads(as_json(found, facts))
    checks = {check.pop("id"): check for check in report.pop("checks")}
    assert report == {
        "apiVersion": "vramwarden.io/v1alpha1", "kind": "CheckReport", "mode": "installed",
        "command": VERSION, "server": {"url": "http://in-memory", "version": "v1.36.2"},
        "namespace": "vramwarden-system", "passed": False, "verdict": "failed",
        "summary": {"ok": 16, "warning": 3, "failed": 3, "notLookedAt": 3},
    }  # fmt: skip
    assert [*checks] == [outcome.check.id for outcome in found]
    n2, *others = checks["sharing"].pop("problems")
    assert (n2.pop("code"), n2.pop("severity")) == ("NotShared", "warning")
    assert n2.pop("subject") == {"kind": "Node", "name": "n2"}
    assert [problem["subject"]["name"] for problem in others] == [f"n{n}" for n in range(3, 8)]
    of_nodes = {"group": "nodes with GPUs", "claim": "their GPUs are shared", "detail": ""}
    assert checks.pop("sharing") == of_nodes | {"result": "warning"}
    problems = [n2, *(problem for check in checks.values() for problem in check["problems"])]
    details = [check["detail"] for check in checks.values()]
    said = [
        *details,
        *(printable(problem[key]) for problem in problems for key in ("message", "fix")),
    ]
    assert [line for line in said if line not in text] == []


ASCII = {"✓": "[ok]", "!": "[!]", "✗": "[x]", "-": "[-]", "?": "[?]", "    →": "    ->"}
IN_ASCII = re.compile(r"^([✓!✗?-](?= )|    →)", re.MULTILINE)


PROBLEMS = {
    "failed": Problem(Code.FENCE_OPEN, Severity.ERROR, "it is open", "close it"),
    "warning": Problem(Code.FENCE_OPEN, Severity.WARNING, "it is open", "close it"),
}


def outcome(what, group="Kubernetes"):
    check = Check("some-check", "all is well", lambda _: None)
    if what in PROBLEMS:
        return CheckOutcome(group, check, (PROBLEMS[what],))
    if what == "ok":
        return CheckOutcome(group, check, seen="it is closed")
    why = (
        FactUnavailable("needs the right to see") if what == "hidden" else NotObservable("not yet")
    )
    return CheckOutcome(group, check, unavailable=why)


SEEN = ("ok", "warning")
ROWS = {
    "failed": [[outcome("failed"), *map(outcome, others)]
               for others in ((), SEEN, ("hidden", "hidden", "hidden"))],
    "less than half": [list(map(outcome, ("ok", "hidden", "hidden"))), [outcome("hidden")]],
    "not all": [[*map(outcome, SEEN), outcome("hidden", group)] for group in (OF_WEBHOOK, FENCE)],
    "all": [
        list(map(outcome, others)) for others in (
            ("ok",), ("warning",), ("ok", "hidden"), ("ok", "unobservable", "unobservable"),
        )
    ] + [[outcome("ok"), outcome("unobservable", OF_WEBHOOK)]],
}  # fmt: skip


def test_each_row_about_the_verdict_holds():
    cells = table_of(find_verdict)
    for (failed, seen, essential, said), cases in zip(cells, ROWS.values(), strict=True):
        for case in cases:
            assert find_verdict(case).name.lower() == said, (failed, seen, essential, case)


def test_colours_are_for_terminals():
    found = [outcome(result) for result in ("ok", "warning", "failed", "hidden")]
    written = as_text(found, is_before=False, ascii_only=False, colour=True)
    assert {part[:3] for part in written.split("\x1b[")[1:]} == {"32m", "33m", "31m", "2m-", "0m "}


@pytest.mark.parametrize(
    ("whys", "said"),
    [
        (("needs the right to see", "other"), "ask a cluster admin to run this"),
        (("another version",), "it is said above why"),
    ],
)
def test_only_a_user_who_lacks_rights_is_told_to_ask_for_them(whys, said):
    found = [replace(outcome("hidden"), unavailable=FactUnavailable(why)) for why in whys]
    last = as_text(found, is_before=True, ascii_only=False, colour=False).splitlines()[-1]
    assert last.startswith(f"? nothing has failed, but {len(whys)} of {len(whys)} w")
    assert said in last


def test_the_last_line_is_the_verdict_before_an_installation():
    written = as_text([outcome("failed")], is_before=True, ascii_only=False, colour=False)
    last = written.splitlines()[-1]
    assert last.startswith("✗ vramwarden cannot be installed here as it is: 0 ok")


@pytest.mark.parametrize(
    ("days", "severity"), [(0.0, "error"), (0.1, "warning"), (7.0, "warning"), (7.1, "")]
)
def test_a_certificate_warns_from_a_week_on_and_fails_once_it_has_expired(days, severity):
    assert [problem.severity for problem in find_expiry("it", days, 7, "renew it")] == [
        severity
    ] * bool(severity)
