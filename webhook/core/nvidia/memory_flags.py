"""Flags and variables of programs that size themselves by the whole GPU, each with its source.

Patterns are found in `Words.plain`: `gpu_memory_utilization` is the flag, the keyword and the
variable. Those in which a command is found begin and end at a word's boundary.

Triton Inference Server, llama.cpp and Text Embeddings Inference have no row: they take what their
models need, and nothing bounds them by a share. Triton's `--model-load-gpu-limit` counts what
others use on the GPU as well (src/backend_model_instance.cc); llama.cpp's `-ngl` and `-c` choose
the layers and the context, and `--fit` plans by what is free on the whole GPU (common/arg.cpp).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from webhook.core.bounds import LONGEST_REFERENCE
from webhook.core.pod.command_lines import GAP

if TYPE_CHECKING:
    from webhook.core.pod.command_lines import CommandLine
    from webhook.core.pod.views import Container

Of = Literal["all", "free", "spare"]
"""Meaning of a bound: a fraction of all memory of the GPU, a fraction of the memory that weights
leave free, or GiB to spare for others."""

_NEVER: Final = "(?!)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedProgram:
    """A program that takes a part of the whole GPU unless something bounds it."""

    name: str
    takes: str
    """Part of the GPU that it takes by itself."""
    bound: str
    """The flag or variable that bounds it."""
    bounds: str
    """Pattern found in words and variables if something bounds it."""
    runs: str = _NEVER
    """Pattern of the command that starts it."""
    image: str = _NEVER
    """Pattern of an image whose entry point starts it."""
    runs_in_image: str = _NEVER
    """Pattern of a command that starts it in such an image alone."""
    of: Of = "all"
    in_file: str = ""
    """File of the model's repository that has the bound, if no flag and no variable reaches it."""
    reads_env: bool = False
    """True if a variable bounds it, so that one of `envFrom` may."""


def _named(words: str) -> str:
    """Return the pattern of an image whose name, without path and tag, has one of the words."""
    return rf"(?:^|/)[^/:@]*(?<![a-z0-9])(?:{words})(?![a-z0-9])[^/]*+$"


_VLLM_BOUNDS: Final = r"gpu_memory_util|kv_cache_memory|__config(?!\w)"

PROGRAMS: Final = (
    # vllm_backend/README.md: model.json has the engine's arguments.
    SizedProgram(
        name="vLLM in Triton",
        takes="nine tenths of the GPU",
        bound="gpu_memory_utilization",
        bounds=rf"model\.json|vramwarden_gpu_memory|{_VLLM_BOUNDS}",
        image=r"(?:^|/)tritonserver:[^@/]*(?<![a-z])vllm(?![a-z])",
        runs_in_image="tritonserver",
        in_file="model.json",
    ),
    # tensorrtllm_backend/docs/model_config.md
    SizedProgram(
        name="TensorRT-LLM in Triton",
        takes="0.9 of what its weights leave free",
        bound="kv_cache_free_gpu_mem_fraction",
        bounds=r"config\.pbtxt|vramwarden_gpu_memory|free_gpu_mem|max_tokens_in_paged_kv_cache",
        image=r"(?:^|/)tritonserver:[^@/]*(?<![a-z])trtllm(?![a-z])",
        runs_in_image="tritonserver",
        in_file="config.pbtxt",
        of="free",
    ),
    # NVIDIA-AI-Blueprints/video-search-and-summarization sets both variables where models share a
    # GPU (deploy/docker/services/nim/*/hw-*-shared.env), and NIM_PASSTHROUGH_ARGS for vLLM's flags.
    # Other NIMs than those for language models do not read them.
    SizedProgram(
        name="NIM",
        takes="nine tenths of the GPU",
        bound="NIM_KVCACHE_PERCENT",
        bounds=f"nim_kvcache_percent|nim_gpu_mem_fraction|{_VLLM_BOUNDS}",
        runs=r"nim_serve|/opt/nim/start_server(?:\.sh)?",
        image=(
            "(?:^|/)nim/(?:[^/]*/)?(?![^/]*(?:embed|rerank|retriever|parse|ocr|asr|tts))[^/:@]*"
            "(?:llama|mistral|mixtral|qwen|deepseek|gemma|phi-|nemotron|gpt-oss|granite|starcoder"
            "|llm|instruct|chat|vlm|cosmos-reason|falcon|kimi|glm|minimax|codestral|devstral)[^/]*+$"
        ),
        reads_env=True,
    ),
    # vllm/config/cache.py; of the whole GPU: vllm/v1/worker/utils.py, request_memory. Only vLLM has
    # a flag --max-model-len (vllm/engine/arg_utils.py).
    SizedProgram(
        name="vLLM",
        takes="nine tenths of the GPU",
        bound="--gpu-memory-utilization",
        bounds=_VLLM_BOUNDS,
        runs=(
            rf"vllm{GAP}(?:serve|run_batch)|dynamo\.vllm|fastchat\.serve\.vllm_worker"
            rf"|vllm\.entrypoints\.(?:[\w.]*(?:api_server|run_batch)|cli\.main{GAP}serve)"
            "|__max_model_len"
        ),
        image=_named("vllm"),
    ),
    # docs/advanced_features/server_arguments.md. The fraction is of what is free at its start.
    SizedProgram(
        name="SGLang",
        takes="most of the GPU",
        bound="--mem-fraction-static",
        bounds=r"mem_fraction_static|max_total_tokens|__config(?!\w)",
        runs=rf"sglang\.launch_server|sglang{GAP}serve|dynamo\.sglang",
        image=_named("sglang"),
    ),
    # launcher/src/main.rs; the same name in capitals is its variable.
    SizedProgram(
        name="Text Generation Inference",
        takes="all of the GPU",
        bound="--cuda-memory-fraction",
        bounds="cuda_memory_fraction",
        runs=rf"text_generation_(?:launcher|server{GAP}serve)",
        image=_named("text-generation-inference|tgi"),
        reads_env=True,
    ),
    # tensorrt_llm/commands/serve.py; tensorrt_llm/llmapi/llm_args.py, KvCacheConfig.
    SizedProgram(
        name="TensorRT-LLM",
        takes="0.9 of what its weights leave free",
        bound="--kv_cache_free_gpu_memory_fraction",
        bounds=(
            "free_gpu_mem(?:ory)?_fraction|max_gpu_total_bytes|extra_llm_api_options"
            r"|__config(?!\w)"
        ),
        runs=rf"trtllm_serve(?!{GAP}(?:disaggregated|mm_embedding))",
        of="free",
    ),
    # lmdeploy/cli/utils.py, cache_max_entry_count.
    SizedProgram(
        name="LMDeploy",
        takes="0.8 of what its weights leave free",
        bound="--cache-max-entry-count",
        bounds="cache_max_entry_count",
        runs=rf"lmdeploy{GAP}serve{GAP}(?:api_server|gradio)",
        of="free",
    ),
    # comfy/cli_args.py; comfy/model_management.py plans by what is free on the GPU.
    SizedProgram(
        name="ComfyUI",
        takes="what is free on the whole GPU",
        bound="--reserve-vram",
        bounds=r"reserve_vram|per_process_memory_fraction|__cpu(?!\w)",
        runs=rf"comfyui/main\.py|comfy{GAP}launch",
        image=_named("comfy-?ui"),
        runs_in_image=r"main\.py",
        of="spare",
    ),
)

FRACTION: Final = re.compile(
    r"(?<![a-z0-9_])(?P<name>(?:[a-z0-9_]{0,40}_)?(?:"
    "gpu_memory_utilization"  # vLLM
    "|mem_fraction_static"  # SGLang
    "|cuda_memory_fraction"  # Text Generation Inference
    "|nim_kvcache_percent|nim_gpu_mem_fraction"
    "|client_mem_fraction"  # XLA: jaxlib/xla_client.py, with and without PYTHON
    "|per_process_gpu_memory_fraction"  # tensorflow_serving/model_servers/main.cc
    "|per_process_memory_fraction"  # PyTorch: c10/core/AllocatorConfig.h
    # dask_cuda/cli.py: a number up to 1 is a fraction of the GPU, a larger one are bytes
    "|rmm_pool_size|rmm_maximum_pool_size"
    "|(?P<free>free_gpu_mem(?:ory)?_fraction"  # TensorRT-LLM, also in Triton
    "|cache_max_entry_count)"  # LMDeploy
    r"""))(?P<gap>["']? ?[:=] ?|[\s\0]+)"""
    r"""(?P<value>\$\([^)\0]*\)|\$\{[^}\0]*\}|"[^"\0]*"|'[^'\0]*'|[^\s\0;&|,)}]+)"""
)
"""A flag, a keyword, a key or a variable with a fraction of the whole GPU, or (`free`) of the
memory that the weights leave free. Images have variables whose longer names end in one of these."""

PARALLEL: Final = re.compile(
    r"(?<!\w)(?P<name>(?P<known>(?:__|nim_)tensor_parallel_size)|__tp_size|__?tp|(?:__)?num_shard)"
    r"""(?:=|[\s\0]+)["']?(?P<count>[0-9]{1,4})(?![0-9])"""
)
"""Number of GPUs over which a server of models spreads one model: vllm/engine/arg_utils.py,
sglang's server_arguments.md, trtllm-serve, lmdeploy/cli/utils.py, TGI's launcher. By a `known` name
no other program means something else."""

SEVERAL_NODES: Final = re.compile(r"nnodes|node_rank|(?<![\w.])(?:ray(?![\w.])|ray_address|lws_)")
"""Found if a model is spread over GPUs of several pods, whose number no pod shows."""

OTHER_COMMAND: Final = re.compile(
    r"(?:[^\s\0]*/)?(?:cat|curl|echo|env|jupyter|nvidia_smi|python3?|sleep|tail|torchrun|true)\0"
)
"""The first of `args`, if it is a command and no argument of an image's entry point."""

_NOT_THE_SERVER: Final = re.compile(
    "(?<![a-z])(?:router|exporter|gateway|proxy|operator|controller|manager|client|ui|webui|frontend"
    "|metrics|monitor|dashboard|bench|benchmark|tests?|downloader|loader|simulator|sim|scheduler|epp"
    "|plugin|adapter|cpu|tpu|neuron|docs|lora-syncer)(?![a-z])"
)
"""Words of images that are named after a server and run something else."""
_RUNS: Final = re.compile(
    rf"(?<![\w.])(?:{'|'.join(f'({program.runs})' for program in PROGRAMS)})(?![\w.])"
)
_ONLY_NAMES_IT: Final = re.compile(
    r"(?<![\w.])(?:\[|cat|curl|echo|export|find|grep|ls|pgrep|pip|pip3|pkill|printf|ps|sed|wget)"
    rf"{GAP}[^;&|\n]*"
)
"""A command that names a program without running it, with its words."""


def program_of(container: Container, line: CommandLine) -> SizedProgram | None:
    """Return the program of the table that a container runs, or None."""
    raw, plain = container.raw, line.words.plain[: line.end]
    image = raw.get("image")
    if type(image) is str and len(image) <= LONGEST_REFERENCE:
        by_image = program_of_image(image)
        starts_other = line.line is not None or OTHER_COMMAND.match(plain)
        of_entry_point = not raw.get("command") and not starts_other
        if by_image and (of_entry_point or re.search(by_image.runs_in_image, plain)):
            return by_image
    return program_of_command(plain)


def program_of_command(plain: str) -> SizedProgram | None:
    """Return the program of the table that a command line runs, or None."""
    found = _RUNS.search(_ONLY_NAMES_IT.sub("", plain))
    return PROGRAMS[found.lastindex - 1] if found and found.lastindex else None


@lru_cache(maxsize=256)
def program_of_image(image: str) -> SizedProgram | None:
    """Return the program of the table that an image's entry point starts, or None."""
    # registry.example:5000/vllm/name:tag@sha256:digest
    image = image.lower()
    name = re.split("[:@]", image.rpartition("/")[2], maxsplit=1)[0]
    if _NOT_THE_SERVER.search(name):
        return None
    return next((program for program in PROGRAMS if re.search(program.image, image)), None)
