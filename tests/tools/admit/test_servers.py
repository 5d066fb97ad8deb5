"""A server of models that nothing bounds is a line of `admit`, as it is a warning in a cluster."""

from __future__ import annotations

from tests.tools.admit.runs import POD, run

SERVER = POD.replace("image: example", "image: vllm/vllm-openai")
LINE = (
    "Pod default/train: warning: spec.containers[0].args: vLLM takes most of a GPU, beyond this "
    "container's share, and would be stopped; add "
    "--gpu-memory-utilization=$(VRAMWARDEN_GPU_MEMORY_FRACTION)"
)


def test_a_server_without_a_bound_is_a_line_and_no_denial():
    result = run(SERVER)
    assert result.code == 0
    assert result.err.splitlines()[1:] == [LINE]


def test_the_value_that_the_line_names_ends_it():
    value = LINE.rpartition(" ")[2]
    assert "warning" not in run(SERVER + f"    args: [{value}]\n").err
