"""Histories: storing, reading back, and advice."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.page_commands import table_of
from tests.support.strategies import ANY_JSON
from webhook.core.kinds.histories import (
    MAX_AGE_S,
    MAX_CLOCK_SKEW_S,
    MAX_RUNS,
    MAX_WARNING_CHARS,
    Advice,
    History,
    Run,
    Verdict,
    advise,
    append,
    history_name,
    is_expired,
    median_peak_bytes,
    read_history,
    warn,
    write_history,
)
from webhook.core.kinds.workloads import Workload

MIB = 2**20
GIB = 2**30
DAY_S = 86_400.0
NOW_S = 1_800_000_000.0


def a_run(number=0, **more):
    values = {
        "pod": f"llama-{number}",
        "ended_s": NOW_S - 1_000 + number,
        "requested_bytes": 16 * GIB,
        "gpus": 1,
        "peak_bytes": 6 * GIB,
        "stops": 0,
        "seconds": 1_000.0,
    }
    return Run(**(values | more))


def a_history(*runs, kind="Deployment", workload="llama"):
    return History("team-a", kind, workload, runs)


def runs(count, **more):
    return [a_run(number, **more) for number in range(count)]


# Peaks are whole MiB, as histories are stored: 5.9Gi and 6.1Gi, 7.5Gi and 10.4Gi, 19.6Gi.
LLAMA = a_history(*runs(19, peak_bytes=6041 * MIB), a_run(19, peak_bytes=6246 * MIB))
EMBED = a_history(
    *runs(9, requested_bytes=8 * GIB, peak_bytes=7680 * MIB),
    *(
        a_run(number, requested_bytes=8 * GIB, peak_bytes=10_598 * MIB, stops=1)
        for number in (9, 10, 11)
    ),
    kind="Job",
    workload="embed",
)
VLLM = a_history(*runs(20, requested_bytes=20 * GIB, peak_bytes=20_070 * MIB), workload="vllm")

RAG = a_history(
    *runs(6, requested_bytes=8 * GIB, peak_bytes=4 * GIB, limited=True),
    a_run(6, requested_bytes=8 * GIB, peak_bytes=8000 * MIB, limited=True),
    workload="rag",
)
FILLS = "fills what it gets: look at --gpu-memory-utilization"
FULL = a_history(*(replace(run, limited=True) for run in VLLM.runs))

UNMEASURED = a_history(*runs(1, peak_bytes=None))


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        (Workload("Deployment", "llama"), "deployment-llama"),
        (Workload("CronJob", "a.b"), "cronjob-a.b"),
        (Workload("Job", "Embed"), "job-embed-6742a1d8e4f4"),
        (Workload("Job", "a_b"), "job-a-b-1"),
        (Workload("Pod", ""), "pod-1"),
        (Workload("Job", "x" * 253), "job-" + "x" * 36 + "-1"),
    ],
)
def test_objects_are_named_by_kind_and_workload_and_by_a_hash_where_that_is_no_name(workload, name):
    found = history_name(workload)
    if found != name:  # ends with a hash
        assert re.fullmatch(f"{re.escape(name.rpartition('-')[0])}-[0-9a-f]{{12}}", found)
    assert len(found) <= 253


def test_workloads_that_differ_in_case_alone_have_histories_of_their_own():
    names = {history_name(Workload("Job", name)) for name in ("embed", "Embed", "EMBED")}
    assert len(names) == 3


A_RUN = st.builds(
    Run,
    pod=st.text("abc-.123", min_size=1, max_size=10),
    ended_s=st.integers(int(NOW_S - 2 * MAX_AGE_S), int(NOW_S)).map(float),
    requested_bytes=st.integers(1, 2**30).map(lambda value: value * MIB),
    gpus=st.integers(1, 16),
    peak_bytes=st.none() | st.integers(0, 2**30).map(lambda value: value * MIB),
    stops=st.integers(0, 1_000),
    seconds=st.integers(0, 10**8).map(float),
    product=st.sampled_from(["", "H100"]),
    limited=st.booleans(),
)
HISTORIES = st.lists(A_RUN, max_size=MAX_RUNS).map(lambda found: a_history(*found))


@given(HISTORIES)
def test_what_is_written_is_read_back(history):
    assert read_history(write_history(history)) == history


def test_the_object_as_it_is_stored():
    history = a_history(*runs(5, product="H100", seconds=720.5))
    assert write_history(replace(history, runs=history.runs[-1:])) == {
        "apiVersion": "vramwarden.io/v1alpha1",
        "kind": "VRAMHistory",
        "metadata": {"name": "deployment-llama", "namespace": "team-a"},
        "status": {
            "workload": {"kind": "Deployment", "name": "llama"},
            "summary": {"runs": "1", "asks": "16Gi", "peak": "6Gi", "advice": "-"},
            "advice": "1 run; advice begins with 5",
            "runs": [
                {
                    "pod": "llama-4",
                    "endedAt": "2027-01-15T07:43:24Z",
                    "askedMi": 16384,
                    "gpus": 1,
                    "peakMi": 6144,
                    "stops": 0,
                    "seconds": 720,
                    "product": "H100",
                }
            ],
        },
    }
    assert write_history(history)["status"]["summary"]["advice"] == "7Gi"


@given(ANY_JSON, ANY_JSON, ANY_JSON)
def test_reading_never_fails(workload, one, other):
    status = {"workload": {"kind": "Job", "name": "x"}, "runs": [one, {"pod": "a", "endedAt": one}]}
    read_history({"metadata": {"namespace": "n"}, "status": status})
    read_history({"metadata": workload, "status": other})
    assert read_history({"metadata": {"namespace": "n"}, "status": {"workload": workload}}) is None


@pytest.mark.parametrize("text", ["a\x1b[2J", "a\nb", "", 7])
def test_names_that_would_act_on_a_terminal_are_not_read(text):
    stored = write_history(LLAMA)
    stored["status"]["runs"][0]["pod"] = text
    stored["status"]["runs"][1]["product"] = text
    found = read_history(stored)
    assert found is not None
    assert [run.pod for run in found.runs] == [run.pod for run in LLAMA.runs[1:]]
    assert found.runs[0].product == ""
    stored["status"]["workload"]["name"] = text
    assert read_history(stored) is None


def test_no_more_than_the_last_twenty_runs_are_read():
    stored = write_history(a_history(*runs(30)))
    found = read_history(stored)
    assert found is not None
    assert [run.pod for run in found.runs] == [f"llama-{number}" for number in range(10, 30)]


@given(HISTORIES, A_RUN)
def test_a_history_never_shrinks_except_by_age(history, run):
    after = append(history, run, NOW_S)
    young = [found_run for found_run in history.runs if NOW_S - found_run.ended_s <= MAX_AGE_S]
    assert len(after.runs) >= len(young)
    assert len(after.runs) <= MAX_RUNS
    assert append(after, run, NOW_S) is after


@given(st.lists(A_RUN, max_size=30, unique_by=lambda run: run.ended_s), st.randoms())
def test_in_whatever_order_runs_arrive_the_history_is_the_same(found, chance):
    shuffled = list(found)
    chance.shuffle(shuffled)
    histories = []
    for order in (found, shuffled):
        history = a_history()
        for run in order:
            history = append(history, run, NOW_S)
        histories.append(history)
    assert histories[0] == histories[1]


OLD, FORGED = (
    a_run(1, ended_s=NOW_S - MAX_AGE_S - 1),
    a_run(1, ended_s=NOW_S + MAX_CLOCK_SKEW_S + 1),
)
AHEAD, NEW, LATER = a_run(1, ended_s=NOW_S + MAX_CLOCK_SKEW_S), a_run(2), a_run(ended_s=NOW_S)
AGAIN = a_run(peak_bytes=2 * GIB, ended_s=a_run().ended_s + 0.4)


@pytest.mark.parametrize(
    ("before", "run", "after"),
    [
        pytest.param([a_run()], AGAIN, [a_run()], id="a pod is counted once"),
        pytest.param([a_run()], LATER, [a_run(), LATER], id="another of its name ended later"),
        pytest.param([], OLD, [], id="an old run is not added"),
        pytest.param([OLD], NEW, [NEW], id="old runs go when a new one comes"),
        pytest.param([], FORGED, [], id="a run that is still to come is forged"),
        pytest.param([FORGED], NEW, [NEW], id="a forged run keeps no history alive"),
        pytest.param([], AHEAD, [AHEAD], id="a clock may be a little ahead"),
    ],
)
def test_what_becomes_of_a_history_with_another_run(before, run, after):
    assert append(a_history(*before), run, NOW_S) == a_history(*after)


def test_a_history_is_over_thirty_days_after_its_last_run():
    history = a_history(a_run(1, ended_s=NOW_S - MAX_AGE_S), a_run(2, ended_s=NOW_S))
    assert not is_expired(history, NOW_S + MAX_AGE_S)
    assert is_expired(history, NOW_S + MAX_AGE_S + 1)
    assert is_expired(a_history(FORGED), NOW_S)


# The rows of `advise`'s table, each with an example and with cases that nearly match.
ROWS = {
    "never": [(LLAMA, 90 * GIB, 79 * GIB), (a_history(), 90 * GIB, 79 * GIB)],
    "few": [
        (a_history(*runs(4)), None, None),
        (a_history(*runs(5, seconds=719.0)), None, None),
        (a_history(*runs(20, peak_bytes=None)), None, None),
        (a_history(), 8 * GIB, None),
    ],
    "more": [
        (EMBED, None, None),
        (EMBED, 8 * GIB, 79 * GIB),
        (a_history(*runs(4), a_run(4, stops=1, peak_bytes=None)), None, None),
    ],
    "fills": [
        (VLLM, None, None),
        (VLLM, 60 * GIB, None),
        (a_history(*runs(5, peak_bytes=16 * GIB * 97 // 100 + 1)), 40 * GIB, None),
    ],
    "denied": [
        (RAG, None, None),
        (replace(VLLM, runs=RAG.runs[:1] + RAG.runs[-1:] * 4), 9 * GIB, None),
    ],
    "less": [
        (LLAMA, None, None),
        (a_history(*runs(5, seconds=720.0)), None, None),
        (a_history(*runs(6, requested_bytes=6 * GIB, peak_bytes=int(3.4 * GIB))), None, None),
    ],
    "fits": [
        (RAG, 10 * GIB, None),  # a later run requested more
        (RAG, 40 * GIB, None),  # a workload that fills its cap is not advised to request less
        (a_history(*runs(6, limited=True, peak_bytes=12 * GIB)), None, None),
        (EMBED, 12 * GIB, None),  # a later run requested more
        (a_history(*runs(5, peak_bytes=11 * GIB)), None, None),
        (a_history(*runs(5, requested_bytes=2 * GIB, peak_bytes=GIB // 8)), None, None),
        (a_history(a_run(0, stops=1), *(a_run(number) for number in range(1, 6))), None, None),
        (a_history(*runs(6, requested_bytes=6 * GIB, peak_bytes=int(3.5 * GIB))), None, None),
    ],
}


def test_every_row_of_the_table_has_an_example():
    assert [verdict for _, _, verdict, *_ in table_of(advise)] == list(ROWS)


@pytest.mark.parametrize(
    ("verdict", "history", "asked", "largest"),
    [(verdict, *example) for verdict, examples in ROWS.items() for example in examples],
)
def test_the_table_of_advice(verdict, history, asked, largest):
    found = advise(history, asked, largest)
    assert found.verdict is Verdict(verdict)
    assert (found.amount_bytes is not None) == (verdict in ("more", "less"))


@pytest.mark.parametrize(
    ("history", "amount", "why"),
    [
        (LLAMA, 7.25, "largest peak + 15 %; saves 8.75Gi a pod"),
        (EMBED, 12, "stopped at its cap; the largest held 10.4Gi"),
        (VLLM, None, FILLS),
        (FULL, None, f"{FILLS}, or its cap is too small"),
        (RAG, None, "filled its cap, beyond which the driver denies: it may be too small"),
        (a_history(*runs(2)), None, "2 runs; advice begins with 5"),
        (UNMEASURED, None, "1 run, 0 of them measured; advice begins with 5"),
    ],
)
def test_the_sentences_of_advice(history, amount, why):
    found = advise(history)
    assert (found.amount_bytes, found.why) == (amount and amount * GIB, why)


def test_what_no_gpu_has_is_not_advised():
    found = advise(EMBED, largest_bytes=11 * GIB)
    why = "stopped at its cap; the largest held 10.4Gi, and no GPU here has 12Gi"
    assert found == Advice(None, why, Verdict.MORE)
    assert warn(EMBED, 8 * GIB, 11 * GIB) == ""


def test_the_median_is_of_runs_that_were_measured():
    peaks = [1, 2, 3, 4, 5, None]
    history = a_history(*(a_run(n, peak_bytes=p and p * GIB) for n, p in enumerate(peaks)))
    assert median_peak_bytes(history) == 3 * GIB
    assert median_peak_bytes(a_history(*runs(4))) is None


LESS = "the last 20 pods of Deployment llama peaked at 6.1Gi; 7.25Gi would do (vramwarden advise)"
MORE = "3 of the last 12 pods of Job embed were stopped at {}; 12Gi would do"
NEVER = "ask for {} or less; 90Gi is more than the largest GPU here has: this pod will never start"
UNSOLD = "ask for 288Gi or less; {} is more than any GPU sold has: this pod will never start"


@pytest.mark.parametrize(
    ("history", "asked", "largest", "sentence"),
    [
        (LLAMA, 16, 79, f"asks for 16Gi; {LESS}"),
        (EMBED, 8, 79, f"asks for 8Gi; {MORE.format('that')}"),
        (EMBED, 9, 79, f"asks for 9Gi; {MORE.format('8Gi')}"),
        (LLAMA, 90, 79, NEVER.format("79Gi")),
        (None, 90, 79.18, NEVER.format("79.1Gi")),
        (VLLM, 60, 79, ""),
        (None, 8, 79, ""),
        (None, 8, None, ""),
        (None, 288, None, ""),
        (None, 289, None, UNSOLD.format("289Gi")),
        (LLAMA, 2048, None, UNSOLD.format("2048Gi")),
        (None, 289, 300, ""),
    ],
)
def test_the_sentences_of_warnings(history, asked, largest, sentence):
    largest_bytes = None if largest is None else int(largest * GIB)
    assert warn(history, asked * GIB, largest_bytes) == sentence


def test_of_runs_of_which_some_were_not_measured_no_more_is_claimed():
    some = a_history(*LLAMA.runs[:15], *(replace(run, peak_bytes=None) for run in LLAMA.runs[15:]))
    assert warn(some, 16 * GIB).startswith(
        "asks for 16Gi; 15 measured of the last 20 pods of Deployment llama peaked at 5.9Gi"
    )


def test_what_a_pod_of_two_gpus_saves_is_said_of_each():
    two = a_history(*(replace(run, gpus=2) for run in LLAMA.runs))
    assert advise(two).why == "largest peak + 15 %; saves 8.75Gi on each GPU of a pod"


@given(HISTORIES, st.integers(1, 2**43), st.none() | st.integers(1, 2**43))
def test_a_warning_is_short(history, asked_mib, largest_mib):
    long = replace(history, workload="w" * 253)
    asked, largest = asked_mib * MIB, largest_mib and largest_mib * MIB
    assert len(warn(long, asked, largest)) <= MAX_WARNING_CHARS
