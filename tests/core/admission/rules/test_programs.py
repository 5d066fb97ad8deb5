"""Warnings about programs that would take more than their share. They change no outcome."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from tests.core.admission.decisions import GI, decide_pod, decide_update
from tests.core.admission.rules.program_rows import REFERENCE, ROWS, SGLANG, TGI, VLLM, VLLM_LINE
from tests.support.follow_advice import followed
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from webhook.adapters.review_json import encode_review
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.cluster import Cluster, SlicedNode
from webhook.core.policy.model import Accounting, Action, EnforceBy, MemoryBounds, Placement

LONGEST = 256


def server(image=VLLM, name="main", **fields):
    return a_container(name, **{"image": image, **fields})


def pod_of(*containers, memory="24Gi", count=None, **spec):
    notes = {} if count is None else {"vramwarden.io/gpu-count": str(count)}
    return a_pod(memory, containers=[*containers], annotations=notes, **spec)


def notes(*containers, memory="24Gi", rule=None, **spec):
    containers = containers or (server(),)
    return decide_pod(pod_of(*containers, memory=memory, **spec), rule or a_rule()).notes


def assert_followed(pod, rule=None):
    """Apply all advice, last first so that indices stay valid, and judge the pod again."""
    said = decide_pod(pod, rule or a_rule()).notes
    assert max(map(len, said), default=0) <= LONGEST
    for note in reversed(said):
        path, detail = note.split(": ", 1)
        ways = followed(pod, path, detail)
        assert ways, f"no line to write: {note}"
        pod = ways[0]
    again = decide_pod(pod, rule or a_rule())
    assert (again.outcome, again.notes) == (Outcome.MUTATED, ()), said
    return said


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_each_program_brings_its_warnings_and_none_once_their_lines_are_written(row):
    pod = pod_of(server(row.image, **row.fields))
    said = assert_followed(pod)
    assert len(said) == len(row.said), said
    assert [part for part, note in zip(row.said, said, strict=True) if part not in note] == []


NOT_REFERENCES = {name: row for name, row in ROWS.items() if not name.startswith("reference")}
RULES = {
    "without a fraction": a_rule(placement=Placement.NONE),
    "by Sentry": a_rule(enforcement={"by": EnforceBy.SENTRY}),
    "slots": a_rule(accounting=Accounting.CAP_ONLY, placement=Placement.NONE),
}


@pytest.mark.parametrize("memory", ["main=24Gi, other=8Gi", "main=90Gi, other=100Gi"])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_beside_another_container_with_vram_the_line_has_a_number(row, memory):
    pod = pod_of(server(row.image, **row.fields), a_container("other"), memory=memory)
    said = assert_followed(pod)
    assert not [note for note in said if f"write {REFERENCE}" in note or f"={REFERENCE}" in note]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("row", NOT_REFERENCES.values(), ids=NOT_REFERENCES)
def test_the_lines_hold_under_other_rules(row, rule):
    pod = pod_of(server(row.image, **row.fields))
    said = decide_pod(pod, rule).notes
    if rule.accounting is Accounting.VRAM:
        assert assert_followed(pod, rule) == said


def test_a_slice_is_a_whole_gpu_to_its_programs():
    rule = a_rule(accounting=Accounting.MIG, placement=Placement.NONE)
    cluster = Cluster(sliced_nodes=(SlicedNode({"1g.12gb": 12 * GI}),))
    for memory, words in (("8Gi", ["--gpu-memory-utilization=0.9"]), ("512Mi", [])):
        pod = pod_of(server(args=words), memory=memory)
        decision = decide(a_request(pod), a_policy(rule), cluster, Phase.MUTATE)
        assert (decision.outcome, decision.notes) == (Outcome.MUTATED, ())


def test_without_a_chosen_gpu_there_is_no_fraction_to_refer_to():
    (said,) = notes(server(args=["--model=m"]), rule=RULES["without a fraction"])
    assert ": add --gpu-memory-utilization=0.2890 on a GPU of 80Gi; " in said
    (said,) = notes(server(args=[VLLM_LINE]), rule=RULES["without a fraction"])
    assert f": write 0.2890 in place of {REFERENCE} on a GPU of 80Gi; " in said


def test_the_variable_of_the_gate_is_where_the_gate_is():
    container = server("x", args=["$(VRAMWARDEN_GPU_ASSIGNMENT)"])
    assert notes(container, rule=RULES["by Sentry"]) == ()
    assert len(notes(container)) == 1


def test_only_so_much_of_a_pod_is_read():
    names = [f"c{n}" for n in range(8)]
    memory = ",".join(f"{name}=1Gi" for name in names)
    wrong = f"{'x' * 15_000} --gpu-memory-utilization=0.9"
    many = [server(name=name, args=[wrong]) for name in names]
    assert len(notes(*many, memory=memory)) == 2
    silent = [server("x", name, args=["x" * 15_000]) for name in names[:-1]]
    last = server(name=names[-1])
    assert notes(*silent, last, memory=memory) == ()
    assert len(notes(*silent[:2], last, memory=f"c0=1Gi,c1=1Gi,{names[-1]}=1Gi")) == 1


def test_a_number_that_fits_no_gpu_is_warned_of_and_one_that_may_fit_is_not():
    def said(bound):
        first = server(name="a", args=[f"--gpu-memory-utilization={bound}"])
        return notes(first, a_container("b"), memory="a=8Gi, b=8Gi")

    assert said("0.9")[0].endswith(
        ": write --gpu-memory-utilization=0.0890 on a GPU of 80Gi; 0.9 is of the whole GPU, not of "
        "this container's 8Gi"
    )
    assert [said(bound) for bound in ("0.44", "0.1", "0")] == [()] * 3


def test_more_gpus_than_the_rule_allows_are_not_suggested():
    pod = pod_of(server(args=[VLLM_LINE, "--tensor-parallel-size", "4"]), count=2)
    (said,) = assert_followed(pod, a_rule(max_gpu_count=2))
    assert ': write "2"; ' in said
    assert notes(server(args=[VLLM_LINE, "-tp=2"]), count=2) == ()
    words = ["--tensor-parallel-size=2", "--pipeline-parallel-size=2"]
    (said,) = assert_followed(
        pod_of(server(args=[VLLM_LINE, *words]), count=2), a_rule(max_gpu_count=2)
    )
    assert ".args[2]: write --pipeline-parallel-size=1; --tensor-parallel-size with --pip" in said
    explicit = {"resources": {"limits": {"vramwarden.io/vram": "24Gi"}}}
    (said,) = assert_followed(pod_of(server(args=[VLLM_LINE, "-tp=2"], **explicit), memory=None))
    assert ": write -tp=1; " in said


def test_references_of_a_container_without_vram_are_removed():
    other = a_container("other", args=["--mib=$(VRAMWARDEN_GPU_MEMORY_MIB)"])
    (said,) = assert_followed(pod_of(a_container("main"), other, memory="main=24Gi"))
    assert said == (
        "spec.containers[1].args[0]: remove $(VRAMWARDEN_GPU_MEMORY_MIB); only containers with "
        "VRAM have such a variable"
    )
    assert notes(a_container("main"), server(SGLANG, "other"), memory="main=24Gi") == ()


def test_init_containers_are_judged_as_well():
    said = notes(a_container(), memory="init=8Gi", initContainers=[server(name="init")])
    assert said[0].startswith("spec.initContainers[0].args: add --gpu-memory-utilization=$(")


READS = {"args": [f"--share={REFERENCE}"]}
SMALL = "a CUDA context alone takes 518Mi (measured on an H100)"
HALF = "CUDA's context and libraries take up to 866Mi (measured on an H100)"


@pytest.mark.parametrize(
    ("memory", "fields", "line", "why"),
    [
        ("599Mi", {}, "write 600Mi or more; ", SMALL),
        ("100Mi", {"args": ["--mib=$(VRAMWARDEN_GPU_MEMORY_MIB)"]}, "write 600Mi or more; ", SMALL),
        ("100Mi", READS, "write 1800Mi or more; ", HALF),
        ("1799Mi", READS, "write 1800Mi or more; ", HALF),
        ("1Gi", {"env": [{"name": "A", "value": REFERENCE}]}, "write 1800Mi or more; ", HALF),
        ("600Mi", {}, "", ""),
        ("1799Mi", {}, "", ""),
        ("1800Mi", READS, "", ""),
    ],
)
def test_a_share_without_room_for_a_context_is_warned_of(memory, fields, line, why):
    said = assert_followed(pod_of(a_container(**fields), memory=memory))
    assert len(said) == bool(line)
    for note in said:
        assert note.startswith(f"metadata.annotations[vramwarden.io/gpu-memory]: {line}")
        assert note.endswith(why)


def test_the_amount_to_write_is_of_the_field_that_has_it():
    two = a_container("main"), a_container("other")
    (said,) = assert_followed(pod_of(*two, memory="main=100Mi, other=200Mi"))
    assert ": write main=100Mi, other=600Mi or more; " in said
    explicit = {"resources": {"limits": {"vramwarden.io/vram": "200Mi"}}}
    (said,) = assert_followed(pod_of(a_container(**explicit), memory=None, count=2))
    assert said.startswith("spec.containers[0].resources.limits[vramwarden.io/vram]: write 1200Mi")
    (said,) = notes(a_container(), memory="64Mi", rule=a_rule(memory=MemoryBounds(max_bytes=2**29)))
    assert ": 64Mi is too little; " in said


@pytest.mark.parametrize("action", [Action.ENFORCE, Action.WARN])
def test_a_pod_in_which_something_is_wrong_brings_none(action):
    rule = a_rule(action=action, memory=MemoryBounds(max_bytes=2 * GI))
    assert notes(rule=rule) == ()
    assert notes(memory="8GB", rule=rule) == ()
    assert len(notes(memory="2Gi", rule=rule)) == 1


def test_the_decision_is_as_without_the_warning():
    pod = pod_of(server())
    other = copy.deepcopy(pod)
    other["spec"]["containers"][0]["image"] = "example"
    warned, silent = decide_pod(pod), decide_pod(other)
    assert (len(warned.notes), silent.notes) == (1, ())
    assert replace(warned, notes=()) == silent
    assert decide_pod(warned.obj, phase=Phase.VALIDATE).notes == ()
    assert decide_update(a_pod(), pod).notes == ()


def test_the_same_is_said_of_a_pod_that_was_translated_before():
    for row in ROWS.values():
        pod = pod_of(server(row.image, **row.fields))
        first = decide_pod(pod)
        again = [note.split(": ", 1)[1] for note in decide_pod(first.obj).notes]
        assert again == [note.split(": ", 1)[1] for note in first.notes]


@pytest.mark.parametrize(
    "fields",
    [
        {"args": [""] * 257},
        {"command": [""] * 257},
        {"args": ["x" * (16 * 1024 + 1)]},
        {"args": ["x" * 8192], "command": ["x" * 8193]},
        {"env": [{"name": "A", "value": "x" * (16 * 1024 + 1)}]},
        {"env": [{"name": f"A{n}"} for n in range(257)]},
        {"args": "--model"},
        {"args": {}, "command": 5},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_what_is_too_much_to_read_or_no_list_may_bound_it(fields):
    assert notes(server(**fields)) == ()


@pytest.mark.parametrize("image", ["", None, 7])
def test_an_image_without_a_name_is_no_program(image):
    assert notes(server(image)) == ()


def test_many_servers_are_a_few_short_warnings():
    many = [server(TGI, name=f"c{n}") for n in range(255)]
    pod = a_pod(",".join(f"c{n}=1Gi" for n in range(255)), containers=many)
    shown = encode_review("u-1", decide_pod(pod), "")["response"]["warnings"]
    assert len(shown) == 10
    assert max(map(len, shown)) <= LONGEST
    last = [*many[:-1], server(TGI, name="c254")]
    (only,) = notes(*last, memory="c254=4Gi")
    assert REFERENCE in only
    assert len(only) <= LONGEST


def test_long_words_of_a_tenant_are_shortened():
    def noted(count):
        long = f"VRAMWARDEN_{'X' * count}"
        words = [
            f"$({long})",
            f"--gpu-memory-utilization=${{{long}}}",
            f"--rmm-pool-size=$U{'X' * count}",
        ]
        return notes(server(args=words))

    assert len(noted(40)) == 3
    assert max(map(len, noted(40))) <= LONGEST
    assert noted(4000) == ()
