"""Servers of models that nothing bounds: warnings, and nothing else changes."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from tests.core.admission.decisions import decided, updated, variable
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.admission.decide import Outcome, Phase
from webhook.core.pod.review import encode_review
from webhook.core.policy.values import Action, Bounds, Placement

VLLM = "vllm/vllm-openai:v0.11.0"
SGLANG = "lmsysorg/sglang:latest"
TGI = "ghcr.io/huggingface/text-generation-inference:3.3"
REFERENCE = "$(VRAMWARDEN_GPU_MEMORY_FRACTION)"


def server(image=VLLM, name="main", **fields):
    return a_container(name, **{"image": image, **fields})


def notes(*containers, memory="8Gi", rule=None, **spec):
    pod = a_pod(memory, containers=[*containers] or [server()], **spec)
    return decided(pod, rule or a_rule()).notes


@pytest.mark.parametrize(
    ("image", "name", "flag"),
    [
        (VLLM, "vLLM", "--gpu-memory-utilization"),
        (SGLANG, "SGLang", "--mem-fraction-static"),
        (TGI, "Text Generation Inference", "--cuda-memory-fraction"),
    ],
)
def test_a_server_without_a_bound_earns_a_warning_with_flag_and_value(image, name, flag):
    decision = decided(a_pod("8Gi", containers=[server(image, args=["--model", "m"])]))
    assert decision.outcome is Outcome.MUTATED
    assert decision.findings == ()
    (note,) = decision.notes
    assert note == (
        f"spec.containers[0].args: {name} takes most of a GPU, beyond this container's share, and "
        f"would be stopped; add {flag}={REFERENCE}"
    )


@pytest.mark.parametrize(
    "image",
    [
        "vllm",
        "VLLM:1",
        "localhost:5000/team/vllm@sha256:" + "0" * 64,
        "nvcr.io/nvidia/vllm:25.09-py3",
        "registry.example/rhaiis/vllm-cuda-rhel9:3",
        "registry.example/my_vllm.fork",
        "sglang-runtime",
        "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-tgi-inference:2",
    ],
)
def test_a_server_is_known_by_a_word_in_the_last_part_of_its_image(image):
    assert len(notes(server(image))) == 1


@pytest.mark.parametrize(
    "image",
    [
        "vllm.example/team/train:1",
        "vllm:5000/train",
        "vllm/train",
        "train:vllm",
        "train@sha256:vllm",
        "vllms",
        "novllm",
        "nvcr.io/nvidia/tritonserver:25.09-vllm-python-py3",
        "",
        "x" * 2000 + "/vllm",
        None,
        7,
    ],
)
def test_other_images_earn_none(image):
    assert notes(server(image)) == ()


BOUNDS = [
    (VLLM, ["--gpu-memory-utilization", "0.1"]),
    (VLLM, [f"--gpu-memory-utilization={REFERENCE}"]),
    (VLLM, ["--gpu_memory_utilization=0.1"]),
    (VLLM, ["--kv-cache-memory-bytes", "1Gi"]),
    (VLLM, ["--config", "/etc/vllm.yaml"]),
    (VLLM, ["--config=/etc/vllm.yaml"]),
    (SGLANG, ["--mem-fraction-static", "0.1"]),
    (SGLANG, ["--max-total-tokens", "4096"]),
    (SGLANG, ["--config", "x"]),
    (TGI, ["--cuda-memory-fraction", "0.1"]),
]


@pytest.mark.parametrize("field", ["args", "command"])
@pytest.mark.parametrize(("image", "texts"), BOUNDS, ids=str)
def test_a_server_that_is_bounded_earns_none(image, texts, field):
    assert notes(server(image, **{field: ["serve", "m", *texts]})) == ()
    shell = ["sh", "-c", " ".join(["exec serve", *texts])]
    assert notes(server(image, **{field: shell})) == ()


@pytest.mark.parametrize(("image", "texts"), BOUNDS[:1] + BOUNDS[6:7] + BOUNDS[9:], ids=str)
def test_what_bounds_one_server_bounds_no_other(image, texts):
    for other in {VLLM, SGLANG, TGI} - {image}:
        assert len(notes(server(other, args=texts))) == 1


EXTRA = variable("EXTRA", "--gpu-memory-utilization 0.1")
FRACTION = variable("CUDA_MEMORY_FRACTION", "0.1")
UNKNOWN = {"envFrom": [{"configMapRef": {"name": "settings"}}]}


@pytest.mark.parametrize(
    ("image", "fields", "warned"),
    [
        *((VLLM, {"args": args}, True) for args in (["--gpu-memory"], [], None)),
        (VLLM, {"args": ["--config-format", "auto"]}, True),
        (VLLM, {"args": [5, None, {"--gpu-memory-utilization": 1}]}, True),
        (TGI, FRACTION, False),
        (VLLM, FRACTION, True),
        (VLLM, EXTRA, False),
        (VLLM, variable("GPU_MEMORY_UTILIZATION", "0.1"), False),
        (TGI, UNKNOWN, False),
        (VLLM, UNKNOWN, True),
    ],
    ids=str,
)
def test_a_variable_may_bound_it_and_what_is_nearly_a_bound_does_not(image, fields, warned):
    assert len(notes(server(image, **fields))) == warned


def test_only_containers_with_vram_are_warned_of():
    pod = [server(name="main"), server(SGLANG, name="second")]
    assert len(notes(*pod, memory="main=8Gi")) == 1
    assert notes(*pod, memory="second=8Gi")[0].startswith("spec.containers[1].args: SGLang ")
    assert notes(*pod, memory=None) == ()
    init = [server(name="init")]
    assert notes(a_container(), memory="init=8Gi", initContainers=init)[0].startswith(
        "spec.initContainers[0].args: vLLM "
    )


def test_without_a_fraction_to_refer_to_the_warning_says_so_by_an_example():
    wanted = "; add --gpu-memory-utilization=0.1 for a tenth of the GPU"
    assert notes(rule=a_rule(placement=Placement.NONE))[0].endswith(wanted)
    both = notes(server(name="a"), server(name="b"), memory="a=8Gi,b=8Gi")
    assert [note[-len(wanted) :] for note in both] == [wanted, wanted]


@pytest.mark.parametrize("action", [Action.ENFORCE, Action.WARN])
def test_a_pod_in_which_something_is_wrong_earns_none(action):
    rule = a_rule(action=action, memory=Bounds(max_bytes=2**30))
    assert notes(rule=rule) == ()
    assert notes(memory="8GB", rule=rule) == ()
    assert len(notes(memory="1Gi", rule=rule)) == 1


def test_the_decision_is_as_without_the_warning():
    pod = a_pod("8Gi", containers=[server()])
    other = copy.deepcopy(pod)
    other["spec"]["containers"][0]["image"] = "example"
    warned, silent = decided(pod), decided(other)
    assert (len(warned.notes), silent.notes) == (1, ())
    assert replace(warned, notes=()) == silent
    assert decided(warned.obj, phase=Phase.VALIDATE).notes == ()
    assert updated(a_pod(), pod).notes == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"args": [""] * 257},
        {"command": [""] * 257},
        {"args": ["x" * (16 * 1024 + 1)]},
        {"args": ["x" * 8192], "command": ["x" * 8193]},
        {"env": [{"name": "A", "value": "x" * (16 * 1024)}]},
        {"env": [{"name": f"A{n}"} for n in range(257)]},
        {"args": "--model"},
        {"args": {}, "command": 5},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_what_is_too_much_to_read_or_no_list_may_bound_it(fields):
    assert notes(server(**fields)) == ()


def test_many_servers_are_a_few_short_warnings():
    many = [server(TGI, name=f"c{n}") for n in range(255)]
    pod = a_pod(",".join(f"c{n}=1Gi" for n in range(255)), containers=many)
    decision = decided(pod)
    shown = encode_review("u-1", decision, "")["response"]["warnings"]
    assert len(shown) == 10
    assert max(map(len, shown)) <= 256
    last = [*many[:-1], server(TGI, name="c254")]
    (only,) = notes(*last, memory="c254=1Gi")
    assert only.endswith(REFERENCE)
    assert len(only) <= 256
