"""`vramwarden advise`: the table, the report for programs, and what is said where there is none."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.core.kinds.test_histories import EMBED, GIB, LLAMA, VLLM, a_history, runs
from tests.support.commands import runner
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.histories import HistoriesApi
from webhook.cli.main import main
from webhook.core.kinds.nodes import GpuFigures, NodeFigures, write_gpu_node
from webhook.options import ReachedCluster
from webhook.tools.advise import command as advise

UPDATE = "UPDATE_GOLDEN"
DRAWN = Path(__file__).with_name("advised")
TINY = a_history(
    *runs(2, asked_bytes=4 * GIB, peak_bytes=int(1.1 * GIB)), kind="Job", workload="tiny"
)
SILENT = a_history(*runs(5, peak_bytes=None), workload="silent")
ALL = [TINY, VLLM, LLAMA, EMBED, SILENT, replace(LLAMA, namespace="team-b")]


class FakeKube:
    """Answers as an API server with one node; `gpus` may be an error."""

    gpus: object = 79

    def list_cached(self, _path, keep):
        if isinstance(self.gpus, KubeError):
            raise self.gpus
        gpu = GpuFigures(
            uuid="GPU-a",
            index=0,
            product="H100",
            total_bytes=80 * GIB,
            usable_bytes=self.gpus * GIB,
        )
        return [
            keep(
                write_gpu_node(
                    NodeFigures(
                        name="n1",
                        observed_s=0.0,
                        driver_version="580",
                        enforcement="sidecar",
                        gpus=(gpu,),
                    )
                )
            )
        ]


@pytest.fixture
def cluster(monkeypatch):
    """A cluster with these histories, and how often each namespace's were read."""
    kube, asked = FakeKube(), []
    found = {"is": ALL}

    def of(_self, namespace=""):
        asked.append(namespace)
        if isinstance(found["is"], KubeError):
            raise found["is"]
        return [one for one in found["is"] if namespace in ("", one.namespace)]

    monkeypatch.setattr(HistoriesApi, "of", of)
    monkeypatch.setattr(advise, "reach", lambda *_: ReachedCluster(kube, "team-a"))
    return kube, found, asked


def run(*arguments):
    return runner().invoke(main, ["advise", *arguments])


@pytest.mark.parametrize(
    ("name", "arguments"), [("one.txt", []), ("all.txt", ["-A"]), ("one.json", ["-o", "json"])]
)
def test_what_is_drawn(cluster, name, arguments):
    ended = run(*arguments)
    assert (ended.exit_code, ended.stderr) == (0, "")
    golden = DRAWN / name
    if os.environ.get(UPDATE):
        golden.write_text(ended.output, encoding="utf-8")
    assert ended.output == golden.read_text(encoding="utf-8"), (
        f"if this is meant: {UPDATE}=1 .venv/bin/pytest {Path(__file__).name}"
    )


def test_the_report_for_programs_says_what_the_table_says(cluster):
    report = json.loads(run("-o", "json").stdout)
    assert (report["apiVersion"], report["kind"]) == ("vramwarden.io/v1alpha1", "AdviceReport")
    advised = {one["name"]: one.get("adviceBytes") for one in report["workloads"]}
    less, more = 29 * GIB // 4, 12 * GIB
    assert advised == {"llama": less, "embed": more, "vllm": None, "tiny": None, "silent": None}


def test_what_no_gpu_of_the_cluster_has_is_not_advised(cluster):
    cluster[0].gpus = 11
    (row,) = [line for line in run().output.splitlines() if "embed" in line]
    assert row.endswith("-  stopped at its cap; the largest held 10.4Gi, and no GPU here has 12Gi")


def test_without_figures_of_nodes_advice_is_given_all_the_same(cluster):
    before = run().output
    cluster[0].gpus = KubeError("forbidden", code=403)
    assert run().output == before


@pytest.mark.parametrize(
    ("arguments", "where"), [([], "in namespace team-a"), (["-A"], "in this cluster")]
)
def test_where_there_is_no_history_it_says_so(cluster, arguments, where):
    cluster[1]["is"] = []
    ended = run(*arguments)
    assert ended.exit_code == 0
    assert ended.stdout == (
        f"No history {where} yet: what a pod held at most is kept once it ended, and advice begins "
        "with 5 pods of a workload.\n"
    )
    assert json.loads(run("-o", "json").stdout)["workloads"] == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KubeError("no", code=404), "this cluster keeps no histories: it does not know vramhis"),
        (KubeError("no", code=403), "you may not read vramhistories there: ask for the role view"),
        (KubeError("https://x does not answer"), "https://x does not answer"),
    ],
)
def test_a_cluster_that_cannot_be_asked_is_a_sentence_and_exit_code_3(cluster, error, said):
    cluster[1]["is"] = error
    ended = run()
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert ended.stderr.startswith(f"Error: {said}")


def test_wrong_usage_is_exit_code_2(cluster):
    assert run("-A", "-n", "team-a").exit_code == 2
    assert run("-o", "html").exit_code == 2
    assert cluster[2] == []
