"""`vramwarden simulate` with files, run as a user runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import ApiServer
from tests.support.foreign_clusters import a_node, a_pod, gfd_node, listed, mixed_cluster, whole
from tests.support.recordings import assert_recorded
from tests.support.strategies import ANY_JSON
from webhook.cli.main import main
from webhook.core.kinds.histories import History, Run, write_history
from webhook.options import ReachedCluster
from webhook.tools.simulate import read
from webhook.tools.simulate.command import simulate_command
from webhook.tools.simulate.judge.cluster import TodayObjects
from webhook.tools.simulate.judge.comparison import compare
from webhook.tools.simulate.judge.offered import GivenMemory

GIB = 2**30
MIXED = listed(*mixed_cluster())


@pytest.fixture
def today(simulate):
    """Compare the objects of one text; return what JSON says."""

    def run(text, *arguments, **files):
        done = simulate("--nodes", "f", "-o", "json", *arguments, f=text, **files)
        assert (done.exit_code, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return run


def test_a_cluster_of_everybody_is_compared(today):
    """The figures are counted by hand: `mixed_cluster`.

    Shares: 18 of 8Gi, 3 halves of 49,140 MiB and one of 10Gi; a card of 81,920 MiB holds nine of
    8Gi. Two GPUs of one pod stay whole.
    """
    found = today(MIXED, "--size", "8Gi")
    assert found["wholeGPUsToday"] == 18
    assert (found["gpusHeldNow"], found["gpusAskedForByWaitingPods"]) == (17, 1)
    assert (found["gpusAsShares"], found["gpusOfPodsThatStayWhole"]) == (6, 2)
    assert found["gpusAsSharesAtLeast"] == 5
    assert (found["nodes"], found["gpus"], found["pods"]) == (5, 26, 23)
    assert {row["name"]: row["gpusHeldNow"] for row in found["products"]} == {
        "A40": 2,
        "NVIDIA-A10": 2,
        "NVIDIA-A100-SXM4-80GB": 11,
        "NVIDIA-L40": 2,
    }
    assert found["asks"] == [
        {"name": "whole GPUs", "pods": 11, "podsAsShares": 10},
        {"name": "replicas (time-slicing, MPS)", "pods": 5, "podsAsShares": 5},
        {"name": "HAMi", "pods": 3, "podsAsShares": 3},
        {"name": "KAI", "pods": 4, "podsAsShares": 4},
    ]
    assert found["sizes"] == {"ITSELF": 7, "OPTION": 15, "WHOLE": 1}
    assert found["stayWhole"] == [{"name": "team Pod/two", "pods": 1, "gpus": 2}]
    assert found["leftOut"] == {
        "pods of namespaces of the system with GPUs": 1,
        "pods on MIG slices, which stay as they are": 1,
    }
    assert found["freeNodes"] == ["big-1", "sliced-0", "hami-0", "kai-0"]
    assert len(found["assumed"]) == 4


def test_the_text_comes_out_as_recorded(simulate):
    done = simulate("--nodes", "f", "--size", "8Gi", f=MIXED)
    assert_recorded(Path(__file__).parent / "golden" / "mixed.txt", done.stdout)


def test_without_a_size_pods_with_whole_gpus_stay_as_they_are(today):
    found = today(listed(gfd_node("n"), whole("a", "n"), whole("b", "n", 2)))
    assert (found["wholeGPUsToday"], found["gpusAsShares"]) == (3, 3)
    assert found["freeNodes"] == []


def test_pods_that_would_not_fit_are_in_the_first_line_and_explained(simulate):
    text = listed(gfd_node("n", 1), whole("a", "n"))
    done = simulate("--nodes", "f", "--size", "100Gi", f=text)
    assert done.stdout.startswith("whole GPUs today 1, as shares 0; 1 pod would not fit\n")
    assert "  larger than any GPU  " in done.stdout
    assert "    first: team/a\n" in done.stdout
    assert "No node that has pods now would be free." not in done.stdout


@pytest.mark.parametrize(
    "write",
    [
        lambda nodes, pods: listed(*nodes, *pods),
        lambda nodes, pods: listed(*nodes) + "\n" + listed(*pods),
        lambda nodes, pods: "\n".join(map(json.dumps, [*nodes, *pods])),
        lambda nodes, pods: yaml.safe_dump({"kind": "List", "items": [*nodes, *pods]}),
        lambda nodes, pods: yaml.safe_dump_all([*nodes, *pods]),
        lambda nodes, pods: json.dumps(
            {"kind": "List", "items": [{"kind": "NodeList", "items": nodes}, *pods]}
        ),
    ],
)
def test_every_form_of_a_file_is_read(today, write):
    text = write([gfd_node("n", 2)], [whole("a", "n"), whole("b", "n")])
    assert today(text, "--size", "8Gi")["wholeGPUsToday"] == 2


def test_nodes_and_pods_may_be_in_two_files_as_an_api_server_lists_them(today):
    def of(kind, *items):
        for item in items:
            del item["kind"]
        return json.dumps({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": items})

    nodes, pods = of("NodeList", gfd_node("n", 2)), of("PodList", whole("a", "n"))
    assert today(nodes, "--pods", "g", g=pods)["gpusHeldNow"] == 1


def test_what_is_our_own_counts_as_it_is(today):
    gpu = {"uuid": "GPU-1", "memory": 1000 * 2**20, "product": "T4", "index": 0, "healthy": False}
    node = a_node("n", None, {"vramwarden.io/gpus": json.dumps([gpu])})
    pod = a_pod("a", "n", annotations={"vramwarden.io/gpu-memory": "300Mi"})
    found = today(listed(node, pod))
    assert (found["memoryBytes"], found["gpusAsShares"]) == (1000 * 2**20, 1)
    assert found["asks"] == [{"name": "vramwarden", "pods": 1, "podsAsShares": 1}]
    assert len(found["assumed"]) == 1  # nothing is an estimate


def test_pods_that_are_not_counted_are_said(today):
    done = whole("done", "n")
    done["status"] = {"phase": "Succeeded"}
    claims = a_pod("claims", "n")
    claims["spec"]["resourceClaims"] = [{"name": "gpu"}]
    bad = [whole(name, "n", gpus="some") for name in ("bad", "worse")]
    found = today(listed(gfd_node("n"), done, claims, *bad, whole("a", "n")))
    assert found["wholeGPUsToday"] == 1
    (unreadable,) = (one for one in found["leftOut"] if one.startswith("pods whose GPUs cannot"))
    assert "(first: team/bad: nvidia.com/gpu: some is not" in unreadable
    assert found["leftOut"] == {
        "pods that finished": 1,
        "pods with resource claims (DRA), whose GPUs nobody counts here": 1,
        unreadable: 2,
    }


def test_node_selectors_count(today):
    pods = [whole("a", "n"), whole("b", "n")]
    for pod, zone in zip(pods, ("x", "y"), strict=True):
        pod["spec"]["nodeSelector"] = {"zone": zone}
    found = today(listed(gfd_node("n", zone="x"), *pods), "--size", "8Gi")
    assert found["wouldNotFit"] == [
        {"why": "no node has the labels they select", "pods": 1, "first": "team/b"}
    ]


def test_who_was_created_first_gets_a_gpu_first(today):
    pods = [whole("a-late", "n"), whole("b-early", "n")]
    for pod, day in zip(pods, (2, 1), strict=True):
        pod["metadata"]["creationTimestamp"] = f"2026-01-0{day}T00:00:00Z"
    sizes = "workload,memory\na-late,60Gi\nb-early,30Gi\n"
    found = today(listed(gfd_node("n", 1), *pods), "--sizes", "s", s=sizes)
    assert [one["first"] for one in found["wouldNotFit"]] == ["team/a-late"]


def test_of_many_workloads_that_stay_whole_ten_are_named_and_the_rest_is_counted(simulate):
    pods = [whole(f"p{number:02}", "n") for number in range(13)]
    done = simulate("--nodes", "f", f=listed(gfd_node("n", 16), *pods))
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("  team ")] == [
        f"Pod/p{number:02}" for number in range(10)
    ]
    assert "  and 3 workloads more\n" in done.stdout


@pytest.fixture
def api(monkeypatch):
    """Serve an empty cluster to the command."""
    server = ApiServer()
    monkeypatch.setattr(read, "reach", lambda *_: ReachedCluster(server.kube(), "default"))
    return server


def test_a_cluster_says_what_a_file_of_its_objects_says(simulate, api):
    objects = api.add(*mixed_cluster()).objects
    file = listed(*(objects[path] for path in sorted(objects)))
    given = simulate("--nodes", "f", "--size", "8Gi", f=file).stdout
    assert given.startswith("whole GPUs today 18, as shares 6\n")
    assert simulate("--size", "8Gi").stdout == given


@pytest.mark.parametrize(
    ("code", "notes"),
    [
        (403, ["no VRAMHistory says a size: you may not list them, if there are any"]),
        (404, []),  # without vramwarden there are none
        (500, ["no VRAMHistory says a size: http://in-memory answers 500: the script says 500"]),
    ],
)
def test_why_no_history_says_a_size_is_noted(api, code, notes):
    api.fails("/vramhistories", code)
    assert read.read_cluster(None, None).notes == notes


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (403, "you may not list pods of all namespaces, or nodes; ask an"),
        (500, "Error: http://in-memory answers 500: the script says 500\n"),
    ],
)
@pytest.mark.parametrize("kind", ["nodes", "pods"])
def test_a_cluster_that_cannot_be_asked_is_exit_code_3(simulate, api, kind, code, said):
    api.fails(f"/{kind}", code)
    done = simulate()
    assert (done.exit_code, done.stdout) == (3, "")
    assert said in done.stderr


NODES = [a_node(f"old-{index}", **{"nvidia.com/gpu": 2}) for index in range(7)]


def test_nodes_whose_memory_nobody_says_are_named_with_what_to_give(simulate):
    done = simulate("--nodes", "f", f=listed(*NODES, whole("a", "old-0")))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: nothing was compared:\n"
        "nobody says how much memory the GPUs of old-0, old-1, old-2, old-3, old-4 and 2 more "
        "have; pass --gpu-memory 80Gi, or by node --gpu-memory 'old-0=8x80Gi', or install GPU "
        "feature discovery\n"
    )


@pytest.mark.parametrize(
    ("given", "totals"),
    [
        (["24Gi"], [24] * 14),
        (["old-0=80Gi", "24Gi"], [80] * 2 + [24] * 12),
        (["24Gi", "old-0=80Gi"], [24] * 14),  # the first that applies
        (["old-0=3x80Gi", "old-*=24Gi"], [80] * 3 + [24] * 12),
        (["1x16Gi"], [16] * 7),
    ],
)
def test_the_memory_of_nodes_may_be_given(today, given, totals):
    options = [part for one in given for part in ("--gpu-memory", one)]
    found = today(listed(*NODES, whole("a", "old-0")), *options)

    def usable(total):
        mib = total * 1024
        return mib - max(512, -(-mib * 15 // 1000))

    assert found["gpus"] == len(totals)
    assert found["memoryBytes"] == sum(map(usable, totals)) * 2**20
    assert "7 by --gpu-memory" in found["assumed"][0]


def test_what_is_given_by_name_counts_before_what_a_node_says(today):
    text = listed(gfd_node("n"), whole("a", "n"))
    assert today(text, "--gpu-memory", "16Gi")["memoryBytes"] > 8 * 70 * GIB
    assert today(text, "--gpu-memory", "n=16Gi")["memoryBytes"] < 8 * 16 * GIB


def test_replicas_of_an_unknown_number_of_gpus_need_the_number(simulate):
    text = listed(a_node("n", **{"nvidia.com/gpu.shared": 8}))
    done = simulate("--nodes", "f", "--gpu-memory", "24Gi", f=text)
    assert done.exit_code == 2
    assert "nobody says how much memory the GPUs of n have" in done.stderr
    assert simulate("--nodes", "f", "--gpu-memory", "2x24Gi", f=text).exit_code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            listed(whole("a")),
            "no node in it; pass the output of: kubectl get nodes,pods -A -o json",
        ),
        (listed(a_node("a"), a_node("b")), "none of 2 nodes says that it has GPUs: neither"),
        (
            listed(gfd_node("n", 7, "9728", "A100-MIG-1g.10gb")),
            "all GPUs of these nodes are divided by MIG, and vramwarden shares whole ones",
        ),
        ("a: [", "f:2: not valid YAML"),
    ],
)
def test_what_has_no_gpus_is_no_cluster(simulate, text, said):
    done = simulate("--nodes", "f", f=text)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([], "there are no nodes"),
        ([a_node("a")], "none of 1 nodes says that it has GPUs: neither vramwarden's agent, nor"),
    ],
    ids=["no nodes", "no GPUs"],
)
def test_a_cluster_without_gpus_is_nothing_wrong(simulate, api, nodes, why):
    api.add(*nodes, whole("a"))
    done = simulate()
    assert (done.exit_code, done.stdout.count("\n"), done.stderr) == (0, 1, "")
    assert done.stdout.startswith(f"No GPU is there to share: {why}")
    found = json.loads(simulate("-o", "json").stdout)
    assert (found["gpus"], found["assumed"][-1].startswith(why)) == (0, True)


def test_an_amount_behind_as_is_read_as_it_was(simulate):
    done = simulate("--nodes", "f", "--as", "8Gi", f=MIXED)
    assert done.stderr == "--as 8Gi is read as --size 8Gi; --as is a user\n"
    assert done.stdout == simulate("--nodes", "f", "--size", "8Gi", f=MIXED).stdout


def test_the_pods_of_one_namespace_are_compared_alone(simulate, api):
    objects = [gfd_node("n"), whole("a", "n", namespace="x"), whole("b", "n", namespace="y")]
    given = ["--nodes", "f", "-n", "x", "-o", "json"]
    found = simulate(*given, f=listed(*objects))
    api.add(*objects)
    assert json.loads(found.stdout)["wholeGPUsToday"] == 1
    assert simulate("-n", "x", "-o", "json").stdout == found.stdout


def deployed(name, namespace, workload):
    pod = whole(name, "n", namespace=namespace)
    owner = {"kind": "ReplicaSet", "name": f"{workload}-5d9c7", "controller": True}
    pod["metadata"] |= {"ownerReferences": [owner], "labels": {"pod-template-hash": "5d9c7"}}
    return pod


SIZED = listed(
    gfd_node("n"),
    deployed("a", "research-1", "llm-a"),
    deployed("b", "research-2", "llm-b"),
    deployed("c", "prod", "llm-a"),
    deployed("d", "prod", "chat"),
)
BY_YAML = """\
sizes:
- {namespace: "research-*", workload: "Deployment/llm*", memory: 20Gi}
- {namespace: prod, workload: chat, memory: whole}
- {memory: 8Gi}
"""
BY_CSV = """\
namespace, workload, memory
research-*, Deployment/llm*, 20Gi
prod, chat, whole
,,8Gi
"""


@pytest.mark.parametrize("sizes", [BY_YAML, BY_CSV])
def test_sizes_by_namespace_and_workload(today, sizes):
    found = today(SIZED, "--sizes", "s", s=sizes)
    assert found["sizes"] == {"FILE": 3, "WHOLE": 1}
    assert found["stayWhole"] == [{"name": "prod Deployment/chat", "pods": 1, "gpus": 1}]
    assert (found["gpusAsShares"], found["gpusOfPodsThatStayWhole"]) == (2, 1)


def test_a_pod_that_nothing_creates_goes_by_its_name(today):
    text = listed(gfd_node("n"), whole("lone", "n"))
    assert today(text, "--sizes", "s", s="memory,workload\n8Gi,lone\n")["sizes"] == {"FILE": 1}


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ("sizes: []", "s: no size in it; write sizes: [{namespace: research-*"),
        ("sizes: [{workload: a}]", "s:1: sizes[0]: has no memory; write the VRAM per GPU"),
        ("sizes:\n- {name: a, memory: 8Gi}", "s:2: sizes[0].name: unknown field; known fields:"),
        ("sizes: [{workload: 7, memory: 8Gi}]", "s:1: sizes[0].workload: must be text; put it in"),
        ("sizes: [{workload: n, memory: 8Gi}]", "s:1: sizes[0].workload: must be text"),  # false
        ("sizes: [{memory: 8192}]", '[0].memory: "8192" is 8192 bytes; for MiB write 8192Mi'),
        ("sizes: [{memory: [8Gi]}]", "[0].memory: a list is not a Kubernetes quantity; write"),
        ("sizes: [{memory: 8GB}, 7]", "s:1: sizes[1]: must be an object with namespace, workload"),
        ("sizes: 7", "s:1: sizes: must be a list"),
        ("size: []", "s:1: size: unknown field; known fields: sizes"),
        ("memory\n8Gi\n8GB\n", 's:3: "8GB" is not a Kubernetes quantity; use 8G or 8Gi'),
        ("workload,memory\na,8Gi,b\n", "s:2: has more cells than the first line"),
        ("workload,memory\na\n", "s:2: has no memory; write the VRAM per GPU"),
        ("workload,memory\n", "s: no size in it; write sizes: "),
    ],
)
def test_sizes_that_cannot_be_read_are_said_with_their_lines(simulate, sizes, said):
    done = simulate("--nodes", "f", "--sizes", "s", f=SIZED, s=sizes)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_histories_in_a_file_say_sizes(today):
    run = {"asked_bytes": 20 * GIB, "gpus": 1, "peak_bytes": 4 * GIB, "stops": 0}
    runs = [Run(pod=f"a-{n}", ended_s=1e9 + n, seconds=3600.0, **run) for n in range(5)]
    known = write_history(History("prod", "Deployment", "chat", tuple(runs)))
    few = write_history(History("prod", "Deployment", "llm-a", tuple(runs[:2])))
    held = replace(runs[0], pod="b", asked_bytes=4 * GIB, limited=True)  # who knows what it needs
    denied = write_history(History("research-2", "Deployment", "llm-b", (*runs[:4], held)))
    text = json.loads(SIZED)
    text["items"] += [known, few, denied]
    found = today(json.dumps(text))
    assert found["sizes"] == {"HISTORY": 1, "WHOLE": 3}


def test_a_wrong_row_is_said_once(simulate):
    done = simulate("--nodes", "f", "--sizes", "s", f=SIZED, s="memory\n8GB\n8Gi\n")
    assert [line for line in done.stderr.splitlines() if "8GB" in line] == [
        's:2: "8GB" is not a Kubernetes quantity; use 8G or 8Gi'
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nodes", "nowhere"), "nowhere: cannot be read"),
        (("--nodes", "."), ".: cannot be read"),
        (("--nodes", "-", "--sizes", "-"), "only one of the files can be standard input"),
        (("--nodes", "f", "--size", "8GB"), "--size: '8GB' is not a Kubernetes quantity"),
        (("--nodes", "f", "--gpu-memory", "a=b=80Gi"), "is not [NODES=][COUNTx]SIZE; write e.g."),
        (("--nodes", "f", "--gpu-memory", "80GB"), "'80GB' is not a Kubernetes quantity"),
        (("--nodes", "f", "-o", "html"), "is not one of 'text', 'json'"),
        (("--generate", "10,1"), "No such option"),
        (("--nodes", "latin"), "latin:2: byte 0xff is not UTF-8; save it as UTF-8"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_a_word_of_what_to_do(simulate, arguments, said):
    done = simulate(*arguments, f=MIXED, latin=b"a: 1\nb: \xff\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_standard_input_is_a_file_too_and_what_was_written_before_still_works(simulate):
    done = simulate("--nodes", "f", f=MIXED)
    assert (done.exit_code, done.stderr) == (0, "")
    assert simulate("--nodes", "-", stdin=MIXED).stdout == done.stdout
    assert simulate("--today", "--nodes", "f").stdout == done.stdout


def test_the_command_is_one_of_vramwarden_s():
    assert main.get_command(None, "simulate") is simulate_command


PARTS = ["kind", "metadata", "spec", "status", "items"]
WITHIN = [
    *("name", "namespace", "labels", "annotations", "creationTimestamp", "containers", "phase"),
    *("nodeSelector", "nodeName", "resourceClaims", "ownerReferences", "capacity", "runs"),
]
OBJECTS = st.sampled_from([gfd_node("n"), whole("p", "n"), {"kind": "VRAMHistory"}])


@given(
    OBJECTS, st.sampled_from(PARTS), ANY_JSON | st.dictionaries(st.sampled_from(WITHIN), ANY_JSON)
)
def test_whatever_an_object_holds_it_is_read_or_left_out(whose, part, value):
    one = {**whose, part: value}
    found = TodayObjects()
    for raw in (one, {"kind": "List", "items": [one, value]}, gfd_node("other")):
        found.add(raw)
    nodes, _ = found.sized_nodes([GivenMemory("*", 1, GIB)])
    compare(nodes, found.sized_pods([], GIB))
