"""Flags and variables of programs that size themselves by the whole GPU, each with its source.

Patterns are matched against `Words.plain`, in which `gpu_memory_utilization` is the flag, the
keyword and the environment variable. Patterns of commands begin and end at word boundaries.

Triton Inference Server, llama.cpp and Text Embeddings Inference have no row: they use what their
models need, and no setting limits them to a fraction. Triton's `--model-load-gpu-limit` also counts
the memory of other processes (src/backend_model_instance.cc). llama.cpp's `-ngl` and `-c` choose
layers and context, and `--fit` plans with the free memory of the whole GPU (common/arg.cpp).
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import Final, Literal, NamedTuple

from webhook.core.bounds import MAX_REFERENCE_LENGTH
from webhook.core.pod.command_lines import SEPARATOR_PATTERN, CommandLine
from webhook.core.pod.views import Container

BoundKind = Literal["all", "free", "spare", "jax"]
"""Meaning of a bound: a fraction of all memory of the GPU ("all"), a fraction of the memory that
weights leave free ("free"), GiB left to other programs ("spare"), or whether JAX allocates
its memory when it starts ("jax")."""

_NEVER: Final = "(?!)"


class SizedProgram(NamedTuple):
    """A program that allocates a part of the whole GPU unless a setting bounds it."""

    name: str
    bound: str
    """Flag or environment variable that bounds the program."""
    bounds: str
    """Pattern that matches a command line or variables in which a setting bounds the program."""
    takes: str = "nine tenths of the GPU"
    """Part of the GPU that the program allocates by default."""
    runs: str = _NEVER
    """Pattern of the command that starts the program."""
    image: str = _NEVER
    """Pattern of an image whose entry point starts the program."""
    runs_in_image: str = _NEVER
    """Pattern of a command that starts the program only in such an image."""
    of: BoundKind = "all"
    in_file: str = ""
    """File of the model's repository that sets the bound, if no flag or variable can."""
    variables: str = ""
    """Pattern of environment variables that the program reads itself, so `envFrom` may bound it."""
    flags_variables: tuple[tuple[str, str], ...] = ()
    """Environment variables with additional flags, each with the pattern of images that read it.
    Setting `args` would replace the command of such an image."""

    def ignores(self, variable: str) -> bool:
        """Return True if a variable is named like the bound, but the program does not read it."""
        name, bound = variable.lower(), self.bound.strip("-").replace("-", "_")
        return name.endswith(bound) and not re.fullmatch(self.variables, name)


def _named(words: str) -> str:
    """Return a pattern of images whose name, without path and tag, contains one of the words."""
    return rf"(?:^|/)[^/:@]*(?<![a-z0-9])(?:{words})(?![a-z0-9])[^/]*+$"


_VLLM_BOUNDS: Final = r"__gpu_memory_utilization(?!\w)|__kv_cache_memory|__config(?!\w)"

PROGRAMS: Final = (
    # vllm_backend/README.md: model.json has the engine's arguments.
    SizedProgram(
        name="vLLM in Triton",
        bound="gpu_memory_utilization",
        bounds=r"model\.json|vramwarden_gpu_memory|gpu_memory_utilization|kv_cache_memory",
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
    # NVIDIA-AI-Blueprints/video-search-and-summarization sets both variables when models share a
    # GPU (deploy/docker/services/nim/*/hw-*-shared.env), and NIM_PASSTHROUGH_ARGS for vLLM's flags.
    # Only NIMs for language models read them.
    SizedProgram(
        name="NIM",
        bound="NIM_KVCACHE_PERCENT",
        bounds=f"nim_kvcache_percent|nim_gpu_mem_fraction|{_VLLM_BOUNDS}",
        runs=r"nim_serve|/opt/nim/start_server(?:\.sh)?",
        image=(
            "(?:^|/)nim/(?:[^/]*/)?(?![^/]*(?:embed|rerank|retriever|parse|ocr|asr|tts))[^/:@]*"
            "(?:llama|mistral|mixtral|qwen|deepseek|gemma|phi-|nemotron|gpt-oss|granite|starcoder"
            "|llm|instruct|chat|vlm|cosmos-reason|falcon|kimi|glm|minimax|codestral|devstral)[^/]*+$"
        ),
        variables=r"nim_\w+",
    ),
    # vllm/config/cache.py; of the whole GPU: vllm/v1/worker/utils.py, request_memory. Only vLLM has
    # a flag --max-model-len (vllm/engine/arg_utils.py). No variable bounds it (vllm/envs.py).
    # KServe's server runs vLLM for models that generate text (huggingfaceserver/__main__.py).
    SizedProgram(
        name="vLLM",
        bound="--gpu-memory-utilization",
        bounds=(
            rf"{_VLLM_BOUNDS}|__backend[=\s\0]+(?:huggingface|triton)|__tensor_input_names"
            r"|__task[=\s\0]+(?:fill_mask|token_class|sequence_class|text_embed)"
        ),
        runs=(
            rf"vllm{SEPARATOR_PATTERN}(?:serve|run_batch)|dynamo\.vllm|fastchat\.serve\.vllm_worker"
            rf"|vllm\.entrypoints\.(?:[\w.]*(?:api_server|run_batch)|cli\.main{SEPARATOR_PATTERN}serve)"
            "|__max_model_len|huggingfaceserver"
        ),
        image=_named("vllm|huggingfaceserver"),
    ),
    # docs/advanced_features/server_arguments.md. It is a fraction of the memory free at the start.
    SizedProgram(
        name="SGLang",
        takes="most of the GPU",
        bound="--mem-fraction-static",
        bounds=r"__mem_fraction_static|__max_total_tokens|__config(?!\w)",
        runs=rf"sglang\.launch_server|sglang{SEPARATOR_PATTERN}serve|dynamo\.sglang",
        image=_named("sglang"),
    ),
    # launcher/src/main.rs; the same name in capitals is its variable.
    SizedProgram(
        name="Text Generation Inference",
        takes="all of the GPU",
        bound="--cuda-memory-fraction",
        bounds="cuda_memory_fraction",
        runs=rf"text_generation_(?:launcher|server{SEPARATOR_PATTERN}serve)",
        image=_named("text-generation-inference|tgi"),
        variables="cuda_memory_fraction",
    ),
    # tensorrt_llm/commands/serve.py; tensorrt_llm/llmapi/llm_args.py, KvCacheConfig.
    SizedProgram(
        name="TensorRT-LLM",
        takes="0.9 of what its weights leave free",
        bound="--kv_cache_free_gpu_memory_fraction",
        bounds=(
            r"__(?:kv_cache_)?free_gpu_mem(?:ory)?_fraction|max_gpu_total_bytes|__config(?!\w)"
            "|extra_llm_api_options"
        ),
        runs=rf"trtllm_serve(?!{SEPARATOR_PATTERN}(?:disaggregated|mm_embedding))",
        of="free",
    ),
    # lmdeploy/cli/utils.py, cache_max_entry_count.
    SizedProgram(
        name="LMDeploy",
        takes="0.8 of what its weights leave free",
        bound="--cache-max-entry-count",
        bounds="__cache_max_entry_count",
        runs=rf"lmdeploy{SEPARATOR_PATTERN}serve{SEPARATOR_PATTERN}(?:api_server|gradio)",
        of="free",
    ),
    # comfy/cli_args.py; comfy/model_management.py plans with the memory that is free on the GPU.
    SizedProgram(
        name="ComfyUI",
        takes="what is free on the whole GPU",
        bound="--reserve-vram",
        bounds=r"__reserve_vram|per_process_memory_fraction|__cpu(?!\w)",
        runs=rf"comfyui/main\.py|comfy{SEPARATOR_PATTERN}launch",
        image=_named("comfy-?ui"),
        runs_in_image=r"main\.py|entrypoint\.sh\0(?=__)",
        of="spare",
        variables=r"pytorch_(?:cuda_)?alloc_conf",
        # runner-scripts/entrypoint.sh of YanWenKun/ComfyUI-Docker; README.md of ai-dock/comfyui
        flags_variables=(
            ("CLI_ARGS", r"comfyui-boot|\bcli_args\b"),
            ("COMFYUI_ARGS", r"ai-dock/comfyui|\bcomfyui_args\b"),
        ),
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
    # dask_cuda/cli.py: a number up to 1 is a fraction of the GPU, a larger one is in bytes
    "|rmm_pool_size|rmm_maximum_pool_size"
    "|(?P<free>free_gpu_mem(?:ory)?_fraction"  # TensorRT-LLM, also in Triton
    "|cache_max_entry_count)"  # LMDeploy
    "|(?P<jax>xla_python_client_preallocate)"  # jaxlib/xla_client.py
    r"""))(?P<gap>["']? ?[:=] ?|[\s\0]+)"""
    r"""(?P<value>\$\([^)\0]*\)(?![a-z])|\$\{[^}\0]*\}|"[^"\0]*"|'[^'\0]*'|[^\s\0;&|,)}]+)"""
)
"""Regular expression that matches a flag, keyword, key or variable with a fraction of the whole
GPU, or (`free`) of the memory that the weights leave free. `jax` has a switch instead of a
fraction. Some images have variables with longer names that end in one of these."""

_GPU_FLAGS: Final[dict[str, tuple[str, str | None]]] = {
    # vllm/engine/arg_utils.py, sglang's server_arguments.md, trtllm-serve, lmdeploy/cli/utils.py,
    # TGI's launcher
    **{f"{factor}_parallel_size": (factor, "") for factor in ("tensor", "pipeline", "data")},
    **dict.fromkeys(("tp_size", "tp", "num_shard"), ("tensor", None)),
    **dict.fromkeys(("pp_size", "pp"), ("pipeline", None)),
    **dict.fromkeys(("dp_size", "dp"), ("data", None)),
    # torch/distributed/run.py; deepspeed/launcher/runner.py; `ray start`
    "nproc_per_node": ("processes", ""),
    "num_gpus": (
        "processes",
        rf"(?<!\w)(?:deepspeed{SEPARATOR_PATTERN}|ray{SEPARATOR_PATTERN}start)",
    ),
    # accelerate/commands/launch.py: the number for all machines
    "num_processes": ("tensor", rf"accelerate{SEPARATOR_PATTERN}launch"),
}
"""Factors of the number of GPUs, keyed by the name of a flag or variable. The second value is
the pattern of commands that read the flag; None for the programs of the table. Each pod runs
all its `processes`."""
_GPU_FLAG: Final = re.compile(
    rf"(?<!\w)(?P<name>(?:__?|nim_|pet_|(?=num_shard))(?P<flag>{'|'.join(_GPU_FLAGS)}))"
    r"""(?:=|[\s\0]+)["']?(?P<count>[0-9]{1,4})(?![0-9])"""
)

_SEVERAL_NODES: Final = re.compile(
    r"""(?:nnodes|num_machines)(?:=|[\s\0]+)["']?(?!1(?![\d:]))|(?<!\w)__?dp[lar](?!\w)"""
    r"|data_parallel_(?!size[=\s\0])|(?<![\w.])(?:ray(?![\w.])|ray_address|lws_)"
)
"""Matches if a model is spread over GPUs of several pods, whose number is not in the pod."""

OTHER_COMMAND: Final = re.compile(
    r"(?:[^\s\0]*/)?(?:cat|curl|echo|env|jupyter|nvidia_smi|python3?|sleep|tail|torchrun|true)\0"
)
"""Matches a first word of `args` that is a command, not an argument of the image's entry point."""

_NOT_THE_SERVER: Final = re.compile(
    "(?<![a-z])(?:router|exporter|gateway|proxy|operator|controller|manager|client|ui|webui|frontend"
    "|metrics|monitor|dashboard|bench|benchmark|tests?|downloader|loader|simulator|sim|scheduler|epp"
    "|plugin|adapter|cpu|tpu|neuron|docs|lora-syncer|worker(?=-))(?![a-z])"
)
"""Matches words in names of images that are named after a server but run something else."""
_OTHERS: Final = re.compile(
    r"\A(?!.*:cpu).*(?<![a-z0-9])(?:cupy|jax|julia|llama[._-]?cpp|ollama|onnxruntime|pytorch|rapidsai"
    "|tei|tensorflow|text-embeddings-inference|tritonserver)(?![a-z0-9])"
    rf"|(?<![\w.])(?:llama_server|ollama{SEPARATOR_PATTERN}serve|text_embeddings_router|tritonserver"
    rf"|tensorflow_model_server|dask(?:_cuda_|{SEPARATOR_PATTERN}cuda{SEPARATOR_PATTERN})worker)(?![\w.])"
)
"""Matches programs that need no bound: in the image name, or in the commands on the next line."""
_IS_SERVER: Final = re.compile("(?:vllm-openai|huggingfaceserver|lmsysorg/|nvidia/vllm|rhaiis/)")
"""Matches images whose entry point is the server itself, not a script."""
_RUNS: Final = re.compile(
    rf"(?<![\w.])(?:{'|'.join(f'({program.runs})' for program in PROGRAMS)})(?![\w.])"
)
_ONLY_NAMES_IT: Final = re.compile(
    r"(?<![\w.])(?:\[|cat|curl|echo|export|find|grep|ls|pgrep|pip|pip3|pkill|printf|ps|sed|wget)"
    rf"{SEPARATOR_PATTERN}[^;&|\n]*"
)
"""Matches a command, with its arguments, that names a program without running it."""
_MODEL: Final = (
    r"""[^\s\0"';&|()]{0,40}"""
    r"""(?: (?!_)(["']?)(?:\$\(\w+\)|[^\s\0"';&|<>()]){1,40}\1(?=[\s\0"';&|)]))?"""
)
"""Pattern of the rest of the word that starts a program, and of the next word if it is not a
flag."""


def find_program(container: Container, line: CommandLine) -> SizedProgram | None:
    """Return the program of the table that a container runs, or None.

    If the image's script starts the program, the script may read variables named like the bound.
    """
    plain, image = line.words.plain[: line.end], _image_name(container)
    starts_other = container.raw.get("command") or line.line or OTHER_COMMAND.match(plain)
    program = _program_of_image(image)
    if program and starts_other and not re.search(program.runs_in_image, plain):
        program = None
    if program is None and (found := _RUNS.search(_commands(plain))):
        program = PROGRAMS[(found.lastindex or 0) - 1]
    if program is None or find_start(program, line) or _IS_SERVER.search(image):
        return program
    name = program.bound.strip("-").replace("-", "_")
    variables = rf"{program.variables or _NEVER}|\w*{name}"
    return program._replace(bounds=f"{program.bounds}|{name}=", variables=variables)


def uses_gpu(container: Container, line: CommandLine) -> bool:
    """Return True if a container seems to run a documented program without a row in the table."""
    commands = _commands(line.words.plain[: line.end])
    return _OTHERS.search(f"{_image_name(container)}\n{commands}") is not None


def find_start(program: SizedProgram, line: CommandLine) -> re.Match[str] | None:
    """Return the words that start a program, with its model; None if an entry point starts it."""
    starts = rf"(?<![\w.])(?!__)(?:{program.runs}|{program.runs_in_image})(?![\w.])"
    return re.search(starts + _MODEL, _commands(line.words.plain[: line.end]))


@lru_cache(maxsize=16)
def _commands(plain: str) -> str:
    """Return a command line in which commands that only name a program are blank."""
    return _ONLY_NAMES_IT.sub(lambda found: " " * len(found[0]), plain)


def find_gpu_flags(plain: str, *, known: bool) -> list[re.Match[str]]:
    """Return the flags whose product is the number of GPUs of a pod's processes, or of its model.

    `known` is True for a program of the table.
    """
    flags: dict[str, re.Match[str]] = {}
    for flag, found in {match["flag"]: match for match in _GPU_FLAG.finditer(plain)}.items():
        factor, runs = _GPU_FLAGS[flag]
        if known if runs is None else re.search(runs, plain):
            flags[factor] = found
    if re.search("__enable_dp_attention|lmdeploy", plain):
        flags.pop("data", None)  # data parallelism divides the GPUs of "tensor"
    processes = [flags.pop("processes")] if "processes" in flags else []
    model = [] if _SEVERAL_NODES.search(plain) else list(flags.values())
    return max(processes, model, key=lambda found: prod(int(match["count"]) for match in found))


@lru_cache(maxsize=256)
def _program_of_image(image: str) -> SizedProgram | None:
    return next((program for program in PROGRAMS if re.search(program.image, image)), None)


def _image_name(container: Container) -> str:
    """Return a container's image in lower case; empty if the name does not belong to a server."""
    image = container.raw.get("image")
    if type(image) is not str or len(image) > MAX_REFERENCE_LENGTH:
        return ""
    # registry.example:5000/vllm/name:tag@sha256:digest
    name = re.split("[:@]", image.lower().rpartition("/")[2], maxsplit=1)[0]
    return "" if _NOT_THE_SERVER.search(name) else image.lower()
