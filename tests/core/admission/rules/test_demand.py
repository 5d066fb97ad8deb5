"""Bounds on a demand for VRAM: by rule, class and GPU count."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    GI,
    VRAM,
    a_full_pod,
    assert_admitted,
    assert_denied,
    decide_pod,
    decide_reasons,
    limits,
    merge_into_container,
    translate,
)
from tests.core.admission.faults import CLASS, COUNT, DEMAND_FAULTS, MEMORY
from tests.support.follow_advice import followed
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.admission.decision import Phase
from webhook.core.policy.model import EnforceBy, MemoryBounds

MEMORY_KEY = "vramwarden.io/gpu-memory"
FRACTION = "$(VRAMWARDEN_GPU_MEMORY_FRACTION)"
BOUND = f"--gpu-memory-utilization={FRACTION}"
PROGRAMS = {
    "vllm": {"image": "vllm/vllm-openai", "args": [BOUND]},
    "served": {"command": ["vllm", "serve", "m", "--gpu-memory-utilization=0.1"]},
    "own": {"env": [{"name": "PART", "value": FRACTION}]},
    "side": {"image": "vllm/vllm-openai", "args": [BOUND], "restartPolicy": "Always"},
    "webui": {
        "image": "ghcr.io/open-webui/open-webui:main",
        "args": ["--ollama-url=http://ollama"],
    },
    "ollama-ui": {"image": "team/ollama-ui:1"},
    "llama": {"image": "ghcr.io/ggml-org/llama.cpp:server-cuda", "args": ["-m", "/m.gguf"]},
    "ollama": {"image": "ollama/ollama:0.12"},
    "tei": {"image": "ghcr.io/huggingface/text-embeddings-inference:1.8"},
    "tei-cpu": {"image": "ghcr.io/huggingface/text-embeddings-inference:cpu-1.8"},
    "triton": {"image": "own", "command": ["tritonserver", "--model-repository=/m"]},
    "serving": {"image": "tensorflow/serving:2.18-gpu"},
    "torch": {"image": "nvcr.io/nvidia/pytorch:25.01-py3", "command": ["python", "train.py"]},
    "jax": {"image": "nvcr.io/nvidia/jax:25.01-py3"},
    "script": {"image": "own", "command": ["sh", "-c", "exec ollama serve"]},
    "exporter": {"image": "nginx/nginx-prometheus-exporter"},
    "check": {"command": ["sh", "-c", "curl http://localhost:8000 && pgrep vllm serve"]},
}


@pytest.mark.parametrize(
    ("default", "names", "line"),
    [
        ("", "trainer", ""),
        ("", "istio-proxy trainer", ""),
        ("trainer", "istio-proxy trainer loader", ""),
        ("", "trainer loader", "trainer=8Gi"),
        ("", "istio-proxy daprd", "istio-proxy=8Gi"),
        ("istio-proxy", "istio-proxy trainer", "trainer=8Gi"),
        ("istio-proxy", "istio-proxy daprd", ""),
        ("", "vllm exporter check", ""),
        ("", "served own", "served=8Gi"),
        ("", "nginx vllm", "vllm=8Gi"),
        ("", "nginx served", "served=8Gi"),
        ("", "nginx own", "own=8Gi"),
        ("", "nginx served own", "own=8Gi"),
        ("", "nginx side", "side=8Gi"),
        ("nginx", "vllm nginx", "vllm=8Gi"),
        ("vllm", "nginx vllm own", ""),
        ("istio-proxy", "nginx istio-proxy vllm", "vllm=8Gi"),
        ("", "check exporter", "check=8Gi"),
        *[
            ("", f"webui {name}", f"{name}=8Gi")
            for name in ("llama", "ollama", "tei", "triton", "serving", "torch", "jax", "script")
        ],
        ("", "ollama webui", ""),
        ("", "webui tei-cpu", "webui=8Gi"),
        ("", "nginx ollama-ui", "nginx=8Gi"),
        ("", "ollama tei", "ollama=8Gi"),
        ("", "vllm tei", ""),
        ("", "tei served", "served=8Gi"),
        ("", "own ollama", ""),
    ],
)
def test_an_amount_without_a_name_is_a_warning_if_it_may_be_for_another(default, names, line):
    named = {"kubectl.kubernetes.io/default-container": default} if default else {}
    made = [a_container(name, **PROGRAMS.get(name, {})) for name in names.split()]
    inits = [one for one in made if "restartPolicy" in one]
    apps = [one for one in made if one not in inits]
    pod = a_pod("8Gi", annotations=named, containers=apps, initContainers=inits)
    unnamed = [note for note in decide_pod(pod).notes if "without a name" in note]
    lines = [note.partition("write ")[2].partition(";")[0] for note in unnamed]
    assert lines == [line] * bool(line)
    for note in unnamed:
        (after,) = followed(pod, *note.split(": ", 1))
        assert not any("without a name" in one for one in decide_pod(after).notes)


@pytest.mark.parametrize(
    ("asked", "resources", "said"),
    [
        ({MEMORY_KEY: "nginx=8Gi"}, {}, "only containers with VRAM"),
        ({}, {"limits": {VRAM: "8Gi"}}, "only containers with VRAM"),
        ({MEMORY_KEY: "8Gi"}, {"limits": {VRAM: "8Gi"}}, "only containers with VRAM"),
        ({MEMORY_KEY: "8Gi"}, {}, "write vllm=8Gi"),
        ({"vramwarden/gpu-memory": "8Gi"}, {}, f"write {MEMORY_KEY}: vllm=8Gi"),
        ({"vramwarden/gpu-count": "2"}, {}, f"{MEMORY_KEY}: vllm=8Gi"),
    ],
)
def test_a_container_without_vram_that_names_our_variable_is_one_warning(asked, resources, said):
    nginx = a_container("nginx", resources=resources)
    pod = a_pod(annotations=asked, containers=[nginx, a_container("vllm", **PROGRAMS["vllm"])])
    (note,) = decide_pod(pod).notes
    assert said in note


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("reason", "memory", "annotations", "path"), DEMAND_FAULTS)
def test_a_demand_that_cannot_be_met_is_denied_at_its_annotation(
    reason, memory, annotations, path, phase
):
    pod = a_full_pod(memory, annotations=annotations)
    assert_denied(decide_pod(pod, phase=phase), reason, path)


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        ("40Gi", None),
        ("40961Mi", "TooLarge"),
        ("42949672961", "TooLarge"),
        ("64Mi", None),
        ("63Mi", "TooSmall"),
        ("66060289", None),
        ("main=20Gi,second=20Gi", None),
        ("main=20Gi,second=20481Mi", "TooLarge"),
        ("main=20Gi,init=40Gi", None),
        ("main=20Gi,init=41Gi", "TooLarge"),
        ("main=20Gi,side=21Gi", "TooLarge"),
        ("main=32Mi,second=32Mi", None),
        ("main=1Mi", "TooSmall"),
    ],
)
def test_the_bounds_of_a_rule_are_inclusive_and_for_all_containers(memory, reason):
    rule = a_rule(memory=MemoryBounds(min_bytes=2**26, max_bytes=40 * GI))
    pod = a_full_pod(memory)
    if reason is None:
        assert_admitted(pod, rule)
    else:
        decision = decide_pod(pod, rule)
        assert_denied(decision, reason, MEMORY)
        assert ("40Gi" if reason == "TooLarge" else "64Mi") in decision.message
        assert '"default"' in decision.message


def test_bounds_are_per_gpu_whatever_the_count():
    rule = a_rule(memory=MemoryBounds(max_bytes=40 * GI))
    assert_admitted(a_pod("40Gi", annotations={"vramwarden.io/gpu-count": "4"}), rule)


@pytest.mark.parametrize(("count", "wanted"), [("1", []), ("2", []), ("3", ["InvalidCount"])])
def test_the_count_has_a_bound_too(count, wanted):
    pod = a_pod("8Gi", annotations={"vramwarden.io/gpu-count": count})
    decision = decide_pod(pod, a_rule(max_gpu_count=2))
    assert list(decision.reasons) == wanted
    if wanted:
        assert_denied(decision, "InvalidCount", COUNT)
        assert "allows at most 2" in decision.message


def test_an_explicit_amount_is_held_to_the_bounds_at_its_own_path():
    pod = a_full_pod(None)
    holder = merge_into_container(pod, "second", limits(VRAM, "41Gi"))
    rule = a_rule(memory=MemoryBounds(max_bytes=40 * GI))
    assert_denied(decide_pod(pod, rule), "TooLarge", f"{holder}.resources.limits[{VRAM}]")


@pytest.mark.parametrize("allowed", [("*",), ("a*",), ("h*", "a100"), ("h*",), ()])
def test_a_class_must_be_allowed_by_the_rule(allowed):
    pod = a_pod("8Gi", annotations={"vramwarden.io/gpu-class": "a100"})
    if {"*", "a*", "a100"} & {*allowed}:
        assert_admitted(pod, a_rule(allowed_classes=allowed))
    else:
        decision = decide_pod(pod, a_rule(allowed_classes=allowed))
        assert_denied(decision, "UnknownClass", CLASS)
        assert "not allowed" in decision.message


def test_an_unknown_class_is_answered_with_the_known_ones():
    pod = a_pod("8Gi", annotations={"vramwarden.io/gpu-class": "h100"})
    assert "allows a100" in decide_pod(pod).message


def test_the_default_class_of_a_rule_applies_where_none_is_named():
    after = translate(a_pod("8Gi"), a_rule(default_class="a100", allowed_classes=()))
    assert after["spec"]["nodeSelector"]["nvidia.com/gpu.product"] == "A100"


def test_a_pod_that_selects_other_nodes_than_its_class_is_denied():
    pod = a_pod(
        "8Gi",
        annotations={"vramwarden.io/gpu-class": "a100"},
        nodeSelector={"nvidia.com/gpu.product": "T4", "vramwarden.io/gpu": "no"},
    )
    assert decide_reasons(pod) == [
        ("NodeSelectorConflict", "spec.nodeSelector[vramwarden.io/gpu]"),
        ("NodeSelectorConflict", "spec.nodeSelector[nvidia.com/gpu.product]"),
    ]


NODES = {
    ("device-names", "uuid"): {*EnforceBy},
    ("device-names", "none"): set(),
    ("enforcement", "sidecar"): {*EnforceBy},
    ("enforcement", "none"): {EnforceBy.SENTRY, EnforceBy.NONE},
    ("sentry", "true"): {*EnforceBy},
    ("sentry", "false"): {EnforceBy.SIDECAR, EnforceBy.NONE},
}
"""Label and value of a node, and the enforcement mode of pods that may select the node."""


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("by", EnforceBy)
@pytest.mark.parametrize(("label", "value"), NODES)
def test_a_pod_selects_nodes_where_a_pod_of_its_rule_can_run(label, value, by, phase):
    key, rule = f"vramwarden.io/{label}", a_rule(enforcement={"by": by})
    pod = a_pod("8Gi", nodeSelector={key: value})
    if by in NODES[label, value]:
        assert_admitted(pod, rule)
        return
    path = f"spec.nodeSelector[{key}]"
    assert_denied(decide_pod(pod, rule, phase), "NodeSelectorConflict", path)
