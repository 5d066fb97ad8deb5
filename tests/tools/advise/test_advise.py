"""`vramwarden advise`: table, JSON, and messages without advice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.core.kinds.test_histories import EMBED, GIB, LLAMA, MIB, RAG, VLLM, a_history, runs
from tests.support.api_server import ApiServer
from tests.support.clusters import a_cluster, a_gpu, a_node
from tests.support.golden_files import assert_recorded
from tests.support.run_command import reached, runner
from webhook.cli.main import main
from webhook.core.kinds.histories import write_history
from webhook.core.kinds.nodes import write_gpu_node
from webhook.tools.advise import command as advise

DRAWN = Path(__file__).with_name("advised")
TINY = a_history(
    *runs(2, requested_bytes=4 * GIB, peak_bytes=1126 * MIB), kind="Job", workload="tiny"
)
SILENT = a_history(*runs(5, peak_bytes=None), workload="silent")
ALL = [TINY, VLLM, RAG, LLAMA, EMBED, SILENT, replace(LLAMA, namespace="team-b")]


@pytest.fixture
def api(monkeypatch):
    """Serve these histories and the figures of one GPU."""
    api = a_cluster([a_node("n1", a_gpu(79))], [], *map(write_history, ALL)).stored_in(ApiServer())
    monkeypatch.setattr(advise, "connect_to_cluster", reached(api))
    return api


def run(*arguments):
    return runner().invoke(main, ["advise", *arguments])


@pytest.mark.parametrize(("name", "arguments"), [("one.txt", []), ("all.txt", ["-A"])])
def test_what_is_drawn(api, name, arguments):
    ended = run(*arguments)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert_recorded(DRAWN / name, ended.output)


def test_programs_read_the_same(api):
    report = json.loads(run("-o", "json").output)
    llama, rag, *others = report.pop("workloads")
    assert report == {"apiVersion": "vramwarden.io/v1alpha1", "kind": "AdviceReport"}
    assert llama == {
        "namespace": "team-a", "kind": "Deployment", "name": "llama", "runs": 20,
        "asksBytes": 16 * GIB, "peakBytes": 6246 * MIB, "medianBytes": 6041 * MIB, "stops": 0,
        "adviceBytes": 7424 * MIB, "verdict": "less",
        "why": "largest peak + 15 %; saves 8.75Gi a pod",
    }  # fmt: skip
    assert (rag["verdict"], rag.keys() ^ llama.keys()) == ("denied", {"adviceBytes"})
    assert [other["name"] for other in others] == ["embed", "vllm", "silent", "tiny"]
    assert not {"peakBytes", "medianBytes"} & others[2].keys()


def test_what_no_gpu_of_the_cluster_has_is_not_advised(api):
    api.add(write_gpu_node(a_node("n1", a_gpu(11)).figures))
    (row,) = [line for line in run().output.splitlines() if "embed" in line]
    assert row.endswith("-  stopped at its cap; the largest held 10.4Gi, and no GPU here has 12Gi")


def test_without_figures_of_nodes_advice_is_given_all_the_same(api):
    before = run().output
    api.denied.add(("list", "gpunodes"))
    assert run().output == before


@pytest.mark.parametrize(
    ("arguments", "where"), [([], "in namespace team-a"), (["-A"], "in this cluster")]
)
def test_where_there_is_no_history_it_says_so(api, arguments, where):
    for path in [path for path in api.objects if "/vramhistories/" in path]:
        api.remove(path)
    ended = run(*arguments)
    assert ended.exit_code == 0
    assert ended.stdout == (
        f"No history {where} yet: what a pod held at most is kept once it ended, and advice begins "
        "with 5 pods of a workload.\n"
    )
    assert json.loads(run("-o", "json").stdout)["workloads"] == []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (404, "this cluster does not serve VRAMHistory: "),
        (403, "needs the right to list vramhistories"),
        (0, "http://in-memory does not answer"),
    ],
    ids=["unknown", "denied", "silent"],
)
def test_a_cluster_that_cannot_be_asked_is_a_sentence_and_exit_code_3(api, code, said):
    api.fails("vramhistories", code)
    ended = run()
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert ended.stderr.startswith(f"Error: {said}")


def test_wrong_usage_is_exit_code_2(api):
    assert run("-A", "-n", "team-a").exit_code == 2
    assert run("-o", "html").exit_code == 2
    assert api.asked == []
