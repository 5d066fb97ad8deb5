"""Flags and variables of programs that size themselves by the whole GPU, each with its source.

Triton Inference Server, llama.cpp and Text Embeddings Inference have no row: they take what their
models need, and nothing bounds them by a share. Triton's `--model-load-gpu-limit` counts what
others use on the GPU as well (src/backend_model_instance.cc); llama.cpp's `-ngl` and `-c` choose
the layers and the context, and `--fit` plans by what is free on the whole GPU (common/arg.cpp).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Final

from webhook.core.pod.command_lines import GAP


class FractionOf(Enum):
    """The memory of which a program takes a fraction."""

    CARD = auto()
    """All memory of the GPU, so `VRAMWARDEN_GPU_MEMORY_FRACTION` is right."""
    FREE = auto()
    """The memory that the weights leave free. The right number depends on their size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedProgram:
    """A program that takes a part of the whole GPU unless something bounds it."""

    name: str
    takes: str
    """Part of the GPU that it takes by itself."""
    bound: str
    """The flag or variable that bounds it."""
    bounded: re.Pattern[str]
    """Found in words, names and values of variables if something bounds it."""
    runs: str = ""
    """Pattern of the command that starts it."""
    image: str = ""
    """Pattern found in the name of an image whose entry point starts it."""
    fraction_of: FractionOf = FractionOf.CARD
    in_file: str = ""
    """File of the model's repository that has the bound, if no flag and no variable reaches it."""
    reads_env: bool = False
    """True if a variable bounds it, so that one of `envFrom` may."""

    @property
    def bound_is_variable(self) -> bool:
        """True if the bound is an environment variable."""
        return not self.bound.startswith("-")


_VLLM_BOUNDS: Final = "gpu[-_]memory[-_]util|kv[-_]cache[-_]memory|--config(?![-_])|GPU_MEMORY_UTIL"
_SGLANG_BOUNDS: Final = (
    "mem[-_]fraction[-_]static|max[-_]total[-_]tokens|--config(?![-_])|MEM_FRACTION_STATIC"
)

RESERVE_FLAG: Final = "--reserve-vram"
"""ComfyUI's flag: GiB that it leaves free, so it is the GPU's memory less the share."""

PROGRAMS: Final = (
    # vllm_backend/README.md: model.json has the engine's arguments.
    SizedProgram(
        name="vLLM in Triton",
        takes="nine tenths of the GPU",
        bound="gpu_memory_utilization",
        bounded=re.compile(rf"model\.json|VRAMWARDEN_GPU_MEMORY|{_VLLM_BOUNDS}"),
        image=r"^tritonserver:[^@]*(?<![a-z])vllm(?![a-z])",
        in_file="model.json",
    ),
    # tensorrtllm_backend/docs/model_config.md
    SizedProgram(
        name="TensorRT-LLM in Triton",
        takes="0.9 of what its weights leave free",
        bound="kv_cache_free_gpu_mem_fraction",
        bounded=re.compile(
            r"config\.pbtxt|VRAMWARDEN_GPU_MEMORY|free_gpu_mem|max_tokens_in_paged_kv_cache"
        ),
        image=r"^tritonserver:[^@]*(?<![a-z])trtllm(?![a-z])",
        in_file="config.pbtxt",
        fraction_of=FractionOf.FREE,
    ),
    # NVIDIA-AI-Blueprints/video-search-and-summarization sets both variables where models share a
    # GPU (deploy/docker/services/nim/*/hw-*-shared.env), and NIM_PASSTHROUGH_ARGS for vLLM's flags.
    SizedProgram(
        name="NIM",
        takes="nine tenths of the GPU",
        bound="NIM_KVCACHE_PERCENT",
        bounded=re.compile(f"NIM_KVCACHE_PERCENT|NIM_GPU_MEM_FRACTION|{_VLLM_BOUNDS}"),
        runs=r"(?<![\w.-])nim-serve(?![\w.-])|/opt/nim/start[-_]server",
        reads_env=True,
    ),
    # vllm/config/cache.py; of the whole GPU: vllm/v1/worker/utils.py, request_memory.
    SizedProgram(
        name="vLLM",
        takes="nine tenths of the GPU",
        bound="--gpu-memory-utilization",
        bounded=re.compile(_VLLM_BOUNDS),
        runs=(
            rf"(?<![\w.-])vllm{GAP}(?:serve|run-batch|bench{GAP}(?:throughput|latency))(?![\w-])"
            r"|(?<![\w.])vllm\.entrypoints\.[\w.]*(?:api_server|run_batch)(?![\w.])"
            rf"|(?<![\w.])vllm\.entrypoints\.cli\.main{GAP}serve(?![\w-])"
            r"|(?<!\w)--max[-_]model[-_]len(?![\w-])"  # vllm/engine/arg_utils.py, of no other
            r"|(?<![\w.])dynamo\.vllm(?![\w.])|(?<![\w.])fastchat\.serve\.vllm_worker(?![\w.])"
        ),
        image="(?<![a-z0-9])vllm(?![a-z0-9])",
    ),
    # docs/advanced_features/server_arguments.md. The fraction is of what is free at its start.
    SizedProgram(
        name="SGLang",
        takes="most of the GPU",
        bound="--mem-fraction-static",
        bounded=re.compile(_SGLANG_BOUNDS),
        runs=(
            rf"(?<![\w.])sglang\.launch_server(?![\w.])|(?<![\w.-])sglang{GAP}serve(?![\w-])"
            r"|(?<![\w.])dynamo\.sglang(?![\w.])"
        ),
        image="(?<![a-z0-9])sglang(?![a-z0-9])",
    ),
    # launcher/src/main.rs; the same name in capitals is its variable.
    SizedProgram(
        name="Text Generation Inference",
        takes="all of the GPU",
        bound="--cuda-memory-fraction",
        bounded=re.compile("cuda[-_]memory[-_]fraction|CUDA_MEMORY_FRACTION"),
        runs=rf"(?<![\w.-])text-generation-(?:launcher|server{GAP}serve)(?![\w-])",
        image="(?<![a-z0-9])(?:text-generation-inference|tgi)(?![a-z0-9])",
        reads_env=True,
    ),
    # tensorrt_llm/commands/serve.py; tensorrt_llm/llmapi/llm_args.py, KvCacheConfig.
    SizedProgram(
        name="TensorRT-LLM",
        takes="0.9 of what its weights leave free",
        bound="--kv_cache_free_gpu_memory_fraction",
        bounded=re.compile(
            "free_gpu_mem(?:ory)?_fraction|max_gpu_total_bytes|extra_llm_api_options"
            "|--config(?![-_])"
        ),
        runs=rf"(?<![\w.-])trtllm-serve(?!{GAP}(?:disaggregated|mm_embedding))(?![\w-])",
        fraction_of=FractionOf.FREE,
    ),
    # lmdeploy/cli/utils.py, cache_max_entry_count.
    SizedProgram(
        name="LMDeploy",
        takes="0.8 of what its weights leave free",
        bound="--cache-max-entry-count",
        bounded=re.compile("cache[-_]max[-_]entry[-_]count"),
        runs=rf"(?<![\w.-])lmdeploy{GAP}serve{GAP}(?:api_server|gradio)(?![\w-])",
        fraction_of=FractionOf.FREE,
    ),
    # comfy/cli_args.py; comfy/model_management.py plans by what is free on the GPU.
    SizedProgram(
        name="ComfyUI",
        takes="what is free on the whole GPU",
        bound=RESERVE_FLAG,
        bounded=re.compile(r"reserve[-_]vram|per_process_memory_fraction|--cpu(?![\w-])"),
        runs=rf"(?<![\w-])[Cc]omfy[Uu][Ii]/main\.py(?![\w.])|(?<![\w.-])comfy{GAP}launch(?![\w-])",
        image="(?<![a-z0-9])comfy-?ui(?![a-z0-9])",
    ),
)

_FLAGS: Final = {
    "gpu_memory_utilization": FractionOf.CARD,  # vLLM
    "mem_fraction_static": FractionOf.CARD,  # SGLang
    "cuda_memory_fraction": FractionOf.CARD,  # Text Generation Inference
    # tensorflow_serving/model_servers/main.cc
    "per_process_gpu_memory_fraction": FractionOf.CARD,
    "per_process_memory_fraction": FractionOf.CARD,  # PyTorch: c10/core/AllocatorConfig.h
    # dask_cuda/cli.py: a number up to 1 is a fraction of the GPU, a larger one are bytes
    "rmm_pool_size": FractionOf.CARD,
    "rmm_maximum_pool_size": FractionOf.CARD,
    "kv_cache_free_gpu_memory_fraction": FractionOf.FREE,  # TensorRT-LLM
    # TensorRT-LLM in Triton: tensorrtllm_backend, docs/model_config.md
    "kv_cache_free_gpu_mem_fraction": FractionOf.FREE,
    "free_gpu_memory_fraction": FractionOf.FREE,  # the same in KvCacheConfig
    "cache_max_entry_count": FractionOf.FREE,  # LMDeploy
}

_VARIABLE: Final = (
    r"(?:[A-Z0-9_]*_)?(?:GPU_MEMORY_UTILIZATION|MEM_FRACTION_STATIC|CUDA_MEMORY_FRACTION)"
    r"|NIM_KVCACHE_PERCENT|NIM_GPU_MEM_FRACTION|XLA_(?:PYTHON_)?CLIENT_MEM_FRACTION"
)
FRACTION_VARIABLE: Final = re.compile(_VARIABLE)
"""A variable whose value is a fraction of the whole GPU.

XLA's are in jaxlib/xla_client.py. Images of the programs above turn the others into flags.
"""

FRACTION_FLAG: Final = re.compile(
    r"(?<![A-Za-z0-9_])(?P<dashes>--)?(?P<name>"
    + "|".join(name.replace("_", "[-_]") for name in sorted(_FLAGS, key=len, reverse=True))
    + rf"|{_VARIABLE}"
    + r""")(?P<gap>["']?\s*[:=]\s*|[\s\0]+)"""
    r"""(?P<value>\$\([^)\0]*\)|\$\{[^}\0]*\}|"[^"\0]*"|'[^'\0]*'|[^\s\0;&|,)}]+)"""
)
"""A flag, a keyword, a key or an assignment of a fraction, with its value."""

_COUNT: Final = r"""(?:=|[\s\0]+)["']?(?P<count>[0-9]{1,4})(?![0-9])"""
LONG_PARALLEL_FLAG: Final = re.compile(rf"(?<![\w-])(?P<flag>--tensor[-_]parallel[-_]size){_COUNT}")
"""The flag by which no other program means something else."""
PARALLEL_FLAG: Final = re.compile(
    rf"(?<![\w-])(?P<flag>--tensor[-_]parallel[-_]size|--tp[-_]size|--?tp|--num[-_]shard){_COUNT}"
)
"""Number of GPUs over which a server of models spreads one model: vllm/engine/arg_utils.py,
sglang's server_arguments.md, trtllm-serve, lmdeploy/cli/utils.py, TGI's launcher."""

PARALLEL_VARIABLES: Final = frozenset({"NIM_TENSOR_PARALLEL_SIZE", "NUM_SHARD"})

SEVERAL_NODES: Final = re.compile(
    r"nnodes|node[-_]rank|(?<![\w.])ray(?![\w.])|RAY_ADDRESS|LWS_", re.IGNORECASE
)
"""Found if a model is spread over GPUs of several pods, whose number no pod shows."""

OF_INTEREST: Final = re.compile(
    "vllm|sglang|trtllm|lmdeploy|text-generation|omfy|nim|rmm|VRAMWARDEN_"
    "|fraction|FRACTION|util|UTIL|PERCENT|entry|tensor[-_]par|model[-_]len",
)
"""Found in every text for which this table has more to say."""

_NOT_THE_SERVER: Final = re.compile(
    "(?<![a-z])(?:router|exporter|gateway|proxy|operator|controller|manager|client|ui|webui|frontend"
    "|metrics|monitor|dashboard|bench|benchmark|tests?|downloader|loader|simulator|sim|scheduler|epp"
    "|plugin|adapter|cpu|tpu|neuron|docs|lora-syncer)(?![a-z])"
)
"""Words of images that are named after a server and run something else."""
_LANGUAGE_MODEL: Final = re.compile(
    "llama|mistral|mixtral|qwen|deepseek|gemma|phi-|nemotron|gpt-oss|granite|starcoder|llm|instruct"
    "|chat|vlm|cosmos-reason|falcon|kimi|glm|minimax|codestral|devstral"
)
_NOT_A_LANGUAGE_MODEL: Final = re.compile("embed|rerank|retriever|parse|ocr|asr|tts")
_BY_NAME: Final = {program.name: program for program in PROGRAMS}
_BY_IMAGE: Final = [(re.compile(program.image), program) for program in PROGRAMS if program.image]
_RUNS: Final = re.compile(
    "|".join(f"(?P<p{number}>{one.runs})" for number, one in enumerate(PROGRAMS) if one.runs)
)
_SPEAKS_OF_IT: Final = frozenset(
    {
        *("echo", "printf", "pip", "pip3", "pgrep", "pkill", "killall", "kill", "grep", "cat"),
        *("curl", "wget", "ls", "which", "export", "test", "[", "[[", "apt", "apt-get", "git"),
        *("cd", "sleep", "ps", "find", "sed", "tail", "nvidia-smi"),
    }
)
"""Commands that name a program without running it."""
_BEFORE_COMMAND: Final = re.compile(
    r"""[\s\0"']*(?:(?:if|while|until|then|do|else|elif|!|time|\{|[A-Za-z_]\w*=[^\s\0]*)[\s\0]+)*"""
)
_COMMAND_ENDS: Final = ";&|(\n`"
MOST_SOUGHT: Final = 8
"""Maximum number of commands in one container that are judged for running a program."""
_OTHER_COMMANDS: Final = _SPEAKS_OF_IT | {"python", "python3", "jupyter", "true", "torchrun"}


def program_of_command(text: str) -> SizedProgram | None:
    """Return the program of the table that a command line runs, or None."""
    for count, found in enumerate(_RUNS.finditer(text)):
        if count == MOST_SOUGHT:
            break
        start = 1 + max(text.rfind(end, 0, found.start()) for end in _COMMAND_ENDS)
        before = _BEFORE_COMMAND.match(text, start, found.start())
        command = text[before.end() if before else start : found.start()]
        first = re.split(GAP, command, maxsplit=1)[0].rpartition("/")[2]
        if first not in _SPEAKS_OF_IT and found.lastgroup:
            return PROGRAMS[int(found.lastgroup[1:])]
    return None


@lru_cache(maxsize=256)
def program_of_image(image: str) -> SizedProgram | None:
    """Return the program of the table that an image's entry point starts, or None."""
    # registry.example:5000/vllm/name:tag@sha256:digest
    path, _, last = image.lower().rpartition("/")
    name = last.partition(":")[0].partition("@")[0]
    if _NOT_THE_SERVER.search(name):
        return None
    if "nim" in path.split("/"):
        is_model = _LANGUAGE_MODEL.search(name) and not _NOT_A_LANGUAGE_MODEL.search(name)
        return _BY_NAME["NIM"] if is_model else None
    for pattern, program in _BY_IMAGE:
        if pattern.search(last if program.in_file else name):
            return program
    return None


def names_other_command(word: str) -> bool:
    """Return True if the first word of `args` is a command and no argument of an entry point."""
    return word.rpartition("/")[2] in _OTHER_COMMANDS


def fraction_of(flag: str) -> FractionOf:
    """Return the memory of which a flag takes a fraction; `flag` is as `FRACTION_FLAG` found it."""
    return _FLAGS.get(flag.replace("-", "_"), FractionOf.CARD)
