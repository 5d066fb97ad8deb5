"""Containers whose programs size themselves by the whole GPU, with the expected warnings.

`said` has a part of each expected warning, in order. It is empty for a container without a provable
problem.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NAME = "VRAMWARDEN_GPU_MEMORY_FRACTION"
REFERENCE = "$(VRAMWARDEN_GPU_MEMORY_FRACTION)"
VLLM = "vllm/vllm-openai:v0.11.0"
SGLANG = "lmsysorg/sglang:latest"
TGI = "ghcr.io/huggingface/text-generation-inference:3.3"
NIM = "nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8.4"
TRITON = "nvcr.io/nvidia/tritonserver:25.09-{}py3"
COMFY = "yanwk/comfyui-boot:cu126-slim"
OWN = "registry.mycorp.example/ml/our-llm:7"

VLLM_LINE = f"--gpu-memory-utilization={REFERENCE}"
SGLANG_LINE = f"--mem-fraction-static={REFERENCE}"
TGI_LINE = f"--cuda-memory-fraction={REFERENCE}"
FREE = "=0.1635 on a GPU of 80Gi with weights of half the amount; "
ONE_FREE = '"0.1635"' + FREE.removeprefix("=0.1635")
WHOLE = "is of the whole GPU, not of this container's 24Gi"
ALONE = "takes"
NOBODY = "no program gets the words after the line of sh -c"
AS_IT_IS = "a program gets it as it is, since only $(NAME) is replaced there"
NO_SUCH = "the container has no such variable"


class Row(NamedTuple):
    image: str
    fields: dict[str, Any]
    said: tuple[str, ...] = ()


def env(**values: str) -> dict[str, Any]:
    return {"env": [{"name": name, "value": value} for name, value in values.items()]}


def runs(*command: str, image: str = OWN) -> Row:
    return Row(image, {"command": list(command)})


def line(text: str, image: str = OWN) -> Row:
    """Return a row with a shell script and without warnings."""
    return Row(image, {"command": ["/bin/sh", "-c"], "args": [text]})


def args(image: str, *words: str) -> Row:
    return Row(image, {"args": list(words)})


def wrong(row: Row, *said: str) -> Row:
    return row._replace(said=said)


ARGS, COMMAND = "spec.containers[0].args", "spec.containers[0].command"
ADD_VLLM = f"add {VLLM_LINE}; vLLM {ALONE} nine tenths of the GPU, not this container's 24Gi"
ADD_SGLANG, ADD_TGI = f"add {SGLANG_LINE}; SGLang {ALONE}", f"add {TGI_LINE}; Text Generation "
IN_LINE = f"{ARGS}[0]: add {VLLM_LINE} after vllm serve m; vLLM {ALONE}"
API_SERVER = ("python3", "-m", "vllm.entrypoints.openai.api_server")

IMAGES = {
    # vLLM
    **{
        image: wrong(args(image), f"{ARGS}: {ADD_VLLM}")
        for image in (
            VLLM,
            "vllm",
            "VLLM:1",
            "localhost:5000/team/vllm@sha256:" + "0" * 64,
            "nvcr.io/nvidia/vllm:25.09-py3",
            "registry.example/rhaiis/vllm-cuda-rhel9:3",
            "registry.example/my_vllm.fork",
        )
    },
    SGLANG: wrong(args(SGLANG), ADD_SGLANG),
    "sglang-runtime": wrong(args("sglang-runtime"), ADD_SGLANG),
    TGI: wrong(args(TGI), ADD_TGI),
    "dlc/huggingface-pytorch-tgi-inference:2": wrong(
        args("dlc/huggingface-pytorch-tgi-inference:2"), ADD_TGI
    ),
    **{
        image: wrong(args(image), f"spec.containers[0].env: add NIM_KVCACHE_PERCENT={REFERENCE}; ")
        for image in (NIM, "harbor.example/mirror/nim/mistralai/mixtral-8x7b-instruct-v01:1")
    },
    "vLLM in Triton": wrong(
        args(TRITON.format("vllm-python-")),
        f"{ARGS}: write {REFERENCE} as gpu_memory_utilization into model.json before the start; ",
    ),
    "TensorRT-LLM in Triton": wrong(
        args(TRITON.format("trtllm-python-"), "tritonserver", "--model-repository=/m"),
        "write 0.1635 as kv_cache_free_gpu_mem_fraction into config.pbtxt before the start on a",
    ),
    # Images with a command and no entry point. Arguments would replace the command.
    COMFY: wrong(
        args(COMFY),
        "spec.containers[0].env: add CLI_ARGS=--reserve-vram=56 on a GPU of 80Gi; ComfyUI takes",
    ),
    "ai-dock": wrong(
        args("ghcr.io/ai-dock/comfyui:latest"),
        "spec.containers[0].env: add COMFYUI_ARGS=--reserve-vram=56 on a GPU of 80Gi; ComfyUI ",
    ),
    "another ComfyUI": wrong(
        args("team/comfyui:1"),
        "spec.containers[0].command: add --reserve-vram=56 to the command that starts ComfyUI on a",
    ),
    # Programs with a similar name, or without need for a limit.
    **{
        image: args(image)
        for image in (
            "vllm-router:1",
            "ghcr.io/vllm-project/production-stack/router:latest",
            "lmcache/lmstack-router:latest",
            "team/vllm-exporter:1",
            "ghcr.io/llm-d/vllm-simulator:v0.5",
            "team/vllm-cpu:1",
            "lmsysorg/sglang-router:1",
            "team/tgi-exporter:1",
            "team/comfyui-frontend:1",
            "nvcr.io/nim/nvidia/llama-3.2-nv-embedqa-1b-v2:1",
            "nvcr.io/nim/nvidia/parakeet-ctc-1.1b-asr:1",
            "nvcr.io/nvidia/cloud-native/k8s-nim-operator:v3",
            "vllm.example/team/train:1",
            "vllm:5000/train",
            "vllm/train",
            "train:vllm",
            "train@sha256:vllm",
            "vllms",
            "novllm",
            "x" * 2000 + "/vllm",
            "ghcr.io/huggingface/text-embeddings-inference:89-1.8",
            "ghcr.io/ggml-org/llama.cpp:server-cuda",
            "ollama/ollama:0.12",
            TRITON.format(""),
            TRITON.format("pyt-python-"),
        )
    },
    "llama.cpp": args("ghcr.io/ggml-org/llama.cpp:server-cuda", "-m", "/m.gguf", "-ngl", "99"),
    "Triton": args(TRITON.format(""), "tritonserver", "--model-repository=/models"),
}

COMMANDS = {
    "vllm serve": wrong(runs("vllm", "serve", "m"), f"{ARGS}: {ADD_VLLM}"),
    "full path": wrong(runs("/opt/venv/bin/vllm", "serve", "m"), ADD_VLLM),
    "python -m": wrong(runs(*API_SERVER, "--model", "m"), ADD_VLLM),
    "python -u -m": wrong(runs("python", "-u", *API_SERVER[1:]), ADD_VLLM),
    "uv run": wrong(runs("uv", "run", "--frozen", "vllm", "serve", "m"), ADD_VLLM),
    "torchrun": wrong(runs("torchrun", "--nproc-per-node=1", *API_SERVER[1:]), ADD_VLLM),
    "in args": wrong(args(OWN, "vllm", "serve", "m"), ADD_VLLM),
    "its arguments": wrong(args(OWN, "--model=m", "--max-model-len=8192"), ADD_VLLM),
    "run-batch": wrong(runs("vllm", "run-batch", "-i", "a"), ADD_VLLM),
    "dynamo": wrong(runs("python3", "-m", "dynamo.vllm"), ADD_VLLM),
    "sh -c": wrong(line("vllm serve m"), IN_LINE),
    "exec": wrong(line("set -e\nexec vllm serve m \\\n  --port 80"), IN_LINE),
    "after another": wrong(line("huggingface-cli download m && vllm serve m"), IN_LINE),
    "with a variable": wrong(line("HF_HOME=/x VLLM_USE_V1=1 vllm serve m"), IN_LINE),
    "in a condition": wrong(line("[ -d /m ] || exit 1; if true; then vllm serve m"), IN_LINE),
    "bash -lc": wrong(
        runs("bash", "-lc", "source /venv/bin/activate; vllm serve m"),
        f"{COMMAND}[2]: add {VLLM_LINE} after vllm serve m; ",
    ),
    "bash -euo pipefail -c": wrong(
        runs("bash", "-euo", "pipefail", "-c", "vllm serve m"), f"{COMMAND}[4]: add {VLLM_LINE}"
    ),
    "tini": wrong(runs("/tini", "-g", "--", "sh", "-c", "vllm serve m"), f"{COMMAND}[5]: add"),
    "words for the line": wrong(
        Row(OWN, {"command": ["sh", "-c", 'exec vllm serve "$@"', "--"], "args": ["m"]}),
        f'{COMMAND}[2]: add {VLLM_LINE} after vllm serve "$@"; ',
    ),
    "SGLang": wrong(runs("python3", "-m", "sglang.launch_server", "--model-path", "m"), ADD_SGLANG),
    "TGI": wrong(runs("text-generation-launcher", "--model-id", "m"), ADD_TGI),
    "TensorRT-LLM": wrong(
        runs("trtllm-serve", "m"), f"add --kv_cache_free_gpu_memory_fraction{FREE}TensorRT-LLM "
    ),
    "LMDeploy": wrong(
        runs("lmdeploy", "serve", "api_server", "m"), f"add --cache-max-entry-count{FREE}LMDeploy "
    ),
    "ComfyUI": wrong(runs("python", "/app/ComfyUI/main.py"), "add --reserve-vram=56 on a GPU of"),
    "ComfyUI in its image": wrong(
        runs("python", "main.py", image=COMFY), "add --reserve-vram=56 on a GPU of"
    ),
    "NIM": wrong(runs("nim-serve"), f"env: add NIM_KVCACHE_PERCENT={REFERENCE}; NIM "),
    "KServe": wrong(
        args("kserve/huggingfaceserver:v0.15-gpu", "--model_id=m"), f"{ARGS}: {ADD_VLLM}"
    ),
    "KServe's module": wrong(runs("python", "-m", "huggingfaceserver", "--model_id=m"), ADD_VLLM),
    "KServe without vLLM": args("kserve/huggingfaceserver:v0.15-gpu", "--backend=huggingface"),
    "KServe's encoder": args("kserve/huggingfaceserver:v0.15-gpu", "--task", "fill_mask"),
    "KServe's encoder by its inputs": args(
        "kserve/huggingfaceserver:v0.15-gpu", "--tensor_input_names=input_ids"
    ),
    "ComfyUI behind a script": wrong(
        Row(COMFY, {"command": ["/entrypoint.sh"], "args": ["--listen"]}), f"{ARGS}: add --reserve-"
    ),
    "ComfyUI in a line": wrong(
        line("cd /app && python main.py | tee log", COMFY),
        f"{ARGS}[0]: add --reserve-vram=56 after ",
    ),
    # Positions in a shell script.
    "a model that is quoted": wrong(
        line('vllm serve "$MODEL" --port 80 | tee log'),
        f'{ARGS}[0]: add {VLLM_LINE} after vllm serve "$MODEL"; ',
    ),
    "a model with a space": wrong(
        line('vllm serve "a b" --port 80'), f"{ARGS}[0]: add {VLLM_LINE} after vllm serve; "
    ),
    "a model by a reference": wrong(
        line("vllm serve $(MODEL) && true"),
        f"{ARGS}[0]: add {VLLM_LINE} after vllm serve $(MODEL); ",
    ),
    "a subshell": wrong(line("(vllm serve m)"), IN_LINE),
    "SGLang in a line": wrong(
        line("python3 -m sglang.launch_server --model-path m"),
        f"{ARGS}[0]: add {SGLANG_LINE} after sglang.launch_server; ",
    ),
    "behind a script in a line": wrong(
        line("./start.sh --max-model-len 8192"), f"{ARGS}[0]: add {VLLM_LINE} to the shell's line; "
    ),
    "after the line": wrong(
        runs("sh", "-c", 'exec "$@"', "--", "vllm", "serve", "m"),
        f"{COMMAND}[2]: add {VLLM_LINE} to the shell's line; ",
    ),
    # Other programs, also in a server's image.
    "sleep": runs("sleep", "infinity", image=VLLM),
    "sleep in args": args(VLLM, "sleep", "infinity"),
    "a shell in args": args(VLLM, "bash", "-c", "sleep infinity"),
    "a program of one's own": runs("python3", "train.py", image=VLLM),
    "Triton's shell": args(TRITON.format("vllm-python-"), "sleep", "infinity"),
    "router": runs("vllm-router", "--port", "80"),
    "SGLang's router": runs("python3", "-m", "sglang_router.launch_router"),
    "Dynamo's frontend": runs("python3", "-m", "dynamo.frontend", image="ai/vllm-runtime"),
    "disaggregated": runs("trtllm-serve", "disaggregated", "-c", "x.yaml"),
    "LMDeploy's proxy": runs("lmdeploy", "serve", "proxy"),
    "a client": runs("vllm", "bench", "serve", "--host", "x"),
    "a version": line("vllm --version && sleep infinity"),
    "only installed": line("pip install vllm==0.11 && python train.py"),
    "only printed": line("echo vllm serve m --gpu-memory"),
    "only sought": line("while ! pgrep -f 'vllm serve'; do sleep 1; done; python watch.py"),
    "only a comment": line("# vllm serve m\npython train.py"),
    "llama-server": runs("llama-server", "-m", "/m.gguf", "-ngl", "99", "-c", "8192"),
}

UNREAD = env(VLLM_GPU_MEMORY_UTILIZATION=REFERENCE)
ADD_SGLANG_IN_LINE = f"{ARGS}[0]: add {SGLANG_LINE} after sglang serve; SGLang takes"
BOUNDS = {
    "vLLM": args(VLLM, VLLM_LINE),
    "vLLM, two words": args(VLLM, "--gpu-memory-utilization", REFERENCE),
    "vLLM, underscores": args(VLLM, f"--gpu_memory_utilization={REFERENCE}"),
    "vLLM, its cache": args(VLLM, "--kv-cache-memory-bytes", "1Gi"),
    "vLLM, a file": args(VLLM, "--config", "/etc/vllm.yaml"),
    "vLLM, command": runs("vllm", "serve", "m", VLLM_LINE),
    "vLLM, a line": line(f"exec vllm serve m {VLLM_LINE}"),
    "vLLM, a line's $NAME": line(
        "vllm serve m --gpu-memory-utilization $VRAMWARDEN_GPU_MEMORY_FRACTION"
    ),
    "vLLM, a line's ${NAME}": line(
        'vllm serve m --gpu-memory-utilization "${VRAMWARDEN_GPU_MEMORY_FRACTION}"'
    ),
    "vLLM, a word for the line": Row(
        OWN, {"command": ["sh", "-c", 'exec vllm serve m "$@"', "--", VLLM_LINE]}
    ),
    "a script with words for the line": Row(
        OWN, {"command": ["sh", "-c", './start.sh "$@"', "--"], "args": [VLLM_LINE]}
    ),
    "vLLM, a variable": Row(
        VLLM, {"args": ["--gpu-memory-utilization=$(UTIL)"], **env(UTIL=REFERENCE)}
    ),
    "vLLM, words in a variable": Row(VLLM, env(EXTRA_ARGS=VLLM_LINE)),
    "vLLM, words in a variable beside its flags": Row(
        VLLM, {"args": ["--max-model-len=8192"], **env(EXTRA_ARGS=VLLM_LINE)}
    ),
    "RunPod's vLLM, a variable": Row(
        "runpod/worker-v1-vllm:v2", env(GPU_MEMORY_UTILIZATION=REFERENCE)
    ),
    "vLLM, a variable from elsewhere": Row(
        VLLM,
        {
            "args": ["--gpu-memory-utilization=$(UTIL)"],
            "envFrom": [{"configMapRef": {"name": "m"}}],
        },
    ),
    "SGLang": args(SGLANG, SGLANG_LINE),
    "SGLang, its tokens": args(SGLANG, "--max-total-tokens", "4096"),
    "TGI": args(TGI, TGI_LINE),
    "TGI, a variable": Row(TGI, env(CUDA_MEMORY_FRACTION=REFERENCE)),
    "TGI, variables from elsewhere": Row(TGI, {"envFrom": [{"configMapRef": {"name": "x"}}]}),
    "NIM": Row(NIM, env(NIM_KVCACHE_PERCENT=REFERENCE)),
    "NIM, vLLM's flag": Row(NIM, env(NIM_PASSTHROUGH_ARGS=VLLM_LINE)),
    "vLLM in Triton": line(
        f"sed -i s/BOUND/{REFERENCE}/ /m/*/1/model.json && exec tritonserver --model-repository=/m",
        TRITON.format("vllm-python-"),
    ),
    "TensorRT-LLM": runs("trtllm-serve", "m", "--kv_cache_free_gpu_memory_fraction", "0.05"),
    "TensorRT-LLM, a file": runs("trtllm-serve", "m", "--extra_llm_api_options", "/x.yaml"),
    "LMDeploy": runs("lmdeploy", "serve", "api_server", "m", "--cache-max-entry-count", "0.1"),
    "LMDeploy, blocks": runs("lmdeploy", "serve", "api_server", "--cache-max-entry-count", "900"),
    "ComfyUI": args(COMFY, "--reserve-vram", "56"),
    "ComfyUI, a variable": Row(COMFY, env(CLI_ARGS="--reserve-vram 56")),
    "XLA": Row(OWN, env(XLA_PYTHON_CLIENT_MEM_FRACTION=REFERENCE)),
    "PyTorch": Row(OWN, env(PYTORCH_ALLOC_CONF=f"per_process_memory_fraction:{REFERENCE}")),
    "RMM": runs("dask", "cuda", "worker", "--rmm-pool-size", REFERENCE),
    "RMM in bytes": runs("dask-cuda-worker", "x:8786", "--rmm-pool-size", "12GB"),
    "other fractions": runs("python", "train.py", "--dropout=0.5", "--memory-fraction=0.9"),
    "RunPod's vLLM": args("runpod/worker-v1-vllm:v2"),
    "vLLM, a variable for its flag": Row(
        VLLM, {"args": ["--gpu-memory-utilization=$(VLLM_GPU_MEMORY_UTILIZATION)"], **UNREAD}
    ),
    "vLLM, a variable beside its flag": Row(
        VLLM, {"args": [VLLM_LINE], **env(VLLM_GPU_MEMORY_UTILIZATION="0.9")}
    ),
    "vLLM, a redirection": line(f"vllm serve m >/tmp/log 2>&1 {VLLM_LINE} &>/dev/null"),
    "vLLM, a separator in quotes": line(f"vllm serve m --name 'a;b' --other \"|&\" {VLLM_LINE}"),
    "vLLM, a separator in a substitution": line(
        f"vllm serve $(ls /m | tail -1) {VLLM_LINE} | tee log"
    ),
    "vLLM, before a pipe": line(f"vllm serve m {VLLM_LINE} | tee log; sleep 5"),
    "vLLM, a line's own variable": line(f"A='{VLLM_LINE}'; vllm serve m $A | tee log"),
    "vLLM, words in a line's variable": Row(
        OWN, {"command": ["sh", "-c", "vllm serve m ${EXTRA_ARGS}"], **env(EXTRA_ARGS=VLLM_LINE)}
    ),
    "TGI, an exported variable": line(
        f"export CUDA_MEMORY_FRACTION={REFERENCE}; text-generation-launcher | tee log"
    ),
    "ComfyUI, PyTorch's variable": Row(
        COMFY,
        {
            "command": ["python", "main.py"],
            **env(PYTORCH_ALLOC_CONF=f"per_process_memory_fraction:{REFERENCE}"),
        },
    ),
    "RMM, an amount": runs("dask-cuda-worker", "--rmm-pool-size=$(VRAMWARDEN_GPU_MEMORY_MIB)MiB"),
    "JAX": Row(OWN, env(XLA_PYTHON_CLIENT_PREALLOCATE="false")),
    "JAX, a part": Row(
        OWN, env(XLA_PYTHON_CLIENT_PREALLOCATE="true", XLA_CLIENT_MEM_FRACTION=REFERENCE)
    ),
    # A variable that contains the start of a command, to which another command may append.
    **{
        f"vLLM, kept in {text[:9]!r}": line(text.format(VLLM_LINE))
        for text in (
            "CMD='vllm serve m'; CMD=\"$CMD {}\"; exec $CMD",
            'export A=1\nCMD="exec vllm serve m"\necho "$CMD"; eval "$CMD {}"',
            "args=(vllm serve m)\nargs+=({})\n${{args[@]}}",
            "run+=(\n  vllm serve m\n  --port 80\n); run+=({}); ${{run[@]}}",
            'serve() {{ export A=${{A:-1}}; vllm serve m "$@"; }}; serve {}',
            'function serve {{\n  vllm serve m "$@"\n}}\nserve {}',
            "read -ra CMD <<< 'vllm serve m'; ${{CMD[@]}} {}",
            'set -- vllm serve m; set -- "$@" {}; exec "$@"',
        )
    },
    **{
        f"vLLM, kept unbounded in {text[:9]!r}": wrong(line(text), IN_LINE)
        for text in (
            "CMD='vllm serve m'; exec $CMD",
            "args=(vllm serve m)\n${args[@]}",
            "set -- vllm serve m; exec",
        )
    },
    "vLLM, kept with a number": wrong(
        line('CMD="vllm serve m"; eval "$CMD --gpu-memory-utilization 0.9"'),
        f"{ARGS}[0]: write {VLLM_LINE}; 0.9 is",
    ),
    # Other images' scripts may read variables.
    "vLLM, a script's variable": Row(
        "substratusai/vllm:v0.6", env(GPU_MEMORY_UTILIZATION=REFERENCE)
    ),
    "SGLang, a script's variable": Row(
        "team/sglang:1", {"args": ["--tp=1"], **env(MEM_FRACTION_STATIC=REFERENCE)}
    ),
    "vLLM, a script with flags": Row(
        OWN, {"args": ["--max-model-len=8192"], **env(GPU_MEMORY_UTILIZATION=REFERENCE)}
    ),
    "vLLM, a script's variables from elsewhere": Row(
        "team/vllm:1", {"envFrom": [{"configMapRef": {"name": "m"}}]}
    ),
    "vLLM, a number for a script": wrong(
        Row("substratusai/vllm:v0.6", env(GPU_MEMORY_UTILIZATION="0.9")),
        f"env[0].value: write {REFERENCE}; 0.9 {WHOLE}",
    ),
    "vLLM, another image's command": wrong(
        Row(
            "team/vllm:1",
            {"command": ["vllm", "serve", "m"], **env(GPU_MEMORY_UTILIZATION=REFERENCE)},
        ),
        "vLLM does not read GPU_MEMORY_UTILIZATION, and takes",
    ),
    # Other servers, and near misses of a limit.
    **{
        f"vLLM, behind {separator!r}": wrong(line(f"vllm serve m{separator}x {VLLM_LINE}"), IN_LINE)
        for separator in (" | tee ", "; ", " && ", " || ", " & ", "\n", " 2>&1 | ")
    },
    "SGLang, behind another": wrong(
        line(f"sglang serve --model-path m | tee log {SGLANG_LINE}"), ADD_SGLANG_IN_LINE
    ),
    "TGI, behind another": wrong(
        line(f"text-generation-launcher; sleep 5 {TGI_LINE}"),
        f"{ARGS}[0]: add {TGI_LINE} after text-generation-launcher; ",
    ),
    "vLLM, its own variable": wrong(
        Row(VLLM, UNREAD),
        f"{ARGS}: add {VLLM_LINE}; vLLM does not read VLLM_GPU_MEMORY_UTILIZATION, and takes ",
    ),
    "vLLM, a number in it": wrong(
        Row(VLLM, env(VLLM_GPU_MEMORY_UTILIZATION="0.3")), "vLLM does not read VLLM_GPU_MEMORY_UTIL"
    ),
    "vLLM, another's variable": wrong(
        Row(VLLM, env(GPU_MEMORY_UTILIZATION=REFERENCE)), "vLLM does not read GPU_MEMORY_UTIL"
    ),
    "SGLang, a variable": wrong(
        Row(SGLANG, env(SGLANG_MEM_FRACTION_STATIC=REFERENCE)),
        f"{ARGS}: add {SGLANG_LINE}; SGLang does not read SGLANG_MEM_FRACTION_STATIC, and takes ",
    ),
    "vLLM, a variable without a reader": wrong(
        Row(OWN, {"command": ["vllm", "serve", "m"], **env(EXTRA_ARGS=VLLM_LINE)}), ADD_VLLM
    ),
    **{
        f"vLLM, misspelt {flag}": wrong(
            args(VLLM, "--model=m", *f"{flag}{value}".split()),
            f"{ARGS}[1]: write --gpu-memory-utilization{right} in place of {flag}{wrong_value}; v",
        )
        for flag in ("--gpu-memory-utilisation", "--gpu_memory_utilzation", "--gpu-mem-utilization")
        for value, right, wrong_value in (
            ("=0.5", f"={REFERENCE}", "=0.5"),
            (f" {REFERENCE}", "", ""),
        )
    },
    "vLLM, misspelt in a line": wrong(
        line(f"vllm serve m --gpu-memory-utilisation {REFERENCE}"),
        f"{ARGS}[0]: write --gpu-memory-utilization in place of --gpu-memory-utilisation; vLLM",
    ),
    "ComfyUI, misspelt": wrong(
        args(COMFY, "--reserved-vram=8"),
        f"{ARGS}[0]: write --reserve-vram=56 in place of --reserved-vram=8 on a GPU of 80Gi; Comfy",
    ),
    "ComfyUI, a variable without a reader": wrong(
        Row(COMFY, {"command": ["python", "main.py"], **env(CLI_ARGS="--reserve-vram 56")}),
        f"{ARGS}: add --reserve-vram=56 on ",
    ),
    "ComfyUI, its flags beside a variable": wrong(
        Row(COMFY, {"args": ["--listen"], **env(CLI_ARGS="--fast")}), f"{ARGS}: add --reserve-vram="
    ),
    "ComfyUI, other words in its variable": wrong(
        Row(COMFY, env(A="b", CLI_ARGS="--fast")),
        "spec.containers[0].env[1].value: add --reserve-vram=56 on a GPU of 80Gi; ComfyUI takes",
    ),
    "vLLM, another's": wrong(args(VLLM, SGLANG_LINE), ADD_VLLM),
    "vLLM, half a flag": wrong(args(VLLM, "--gpu-memory"), ADD_VLLM),
    "vLLM, a format": wrong(args(VLLM, "--config-format", "auto"), ADD_VLLM),
    "vLLM, a comment": wrong(line(f"# {VLLM_LINE}\nvllm serve m"), IN_LINE),
    "vLLM, after the line": wrong(
        Row(VLLM, {"command": ["sh", "-c"], "args": ["vllm serve m", VLLM_LINE]}),
        f"{ARGS}[0]: add {VLLM_LINE} after vllm serve m; {NOBODY}, and vLLM",
    ),
    "after a script": wrong(
        Row(OWN, {"command": ["sh", "-c"], "args": ["/start.sh", f"{VLLM_LINE}"]}),
        f"{ARGS}[0]: add {VLLM_LINE} to the shell's line; {NOBODY}",
    ),
}

WRITE_VLLM = f"write {VLLM_LINE}; "
LITERALS = {
    "vLLM": wrong(
        args(VLLM, "--gpu-memory-utilization=0.9"), f"{ARGS}[0]: {WRITE_VLLM}0.9 {WHOLE}"
    ),
    "vLLM, two words": wrong(
        args(VLLM, "--model", "m", "--gpu-memory-utilization", "0.3"),
        f"{ARGS}[3]: write {REFERENCE}; 0.3 {WHOLE}",
    ),
    "vLLM, a variable that it lacks": wrong(
        args(VLLM, "--gpu-memory-utilization", "$(UTIL)"),
        f"{ARGS}[1]: write {REFERENCE}; the container has no variable UTIL",
    ),
    "vLLM, a private image": wrong(args(OWN, "--gpu-memory-utilization=.95"), f".95 {WHOLE}"),
    "vLLM, a line": wrong(
        line("vllm serve m --port 80 --gpu-memory-utilization 0.9 --tp 1"),
        f"{ARGS}[0]: {WRITE_VLLM}0.9 {WHOLE}",
    ),
    "vLLM, after a NUL": wrong(
        args(VLLM, "--model=a\0b", "--gpu-memory-utilization=0.9"), f"{ARGS}[1]: {WRITE_VLLM}0.9 "
    ),
    "vLLM, quoted": wrong(line("vllm serve m --gpu-memory-utilization='0.9'"), f"0.9 {WHOLE}"),
    "vLLM, a variable": wrong(
        Row(VLLM, {"args": ["--gpu-memory-utilization=$(UTIL)"], **env(UTIL="0.9")}),
        f"spec.containers[0].env[0].value: write {REFERENCE}; 0.9 {WHOLE}",
    ),
    "vLLM, a line's variable": wrong(
        line("vllm serve m --gpu-memory-utilization=$UTIL")._replace(
            fields={
                "command": ["sh", "-c", "vllm serve m --gpu-memory-utilization=$UTIL"],
                **env(UTIL="0.9"),
            }
        ),
        f"spec.containers[0].env[0].value: write {REFERENCE}; 0.9 {WHOLE}",
    ),
    "vLLM, words in a variable": wrong(
        Row(OWN, env(VLLM_ARGS="--port 80 --gpu-memory-utilization 0.9")),
        f"spec.containers[0].env[0].value: {WRITE_VLLM}0.9 {WHOLE}",
    ),
    "vLLM, RunPod's variable": wrong(
        Row(OWN, env(GPU_MEMORY_UTILIZATION="0.95")), f"env[0].value: write {REFERENCE}; 0.95"
    ),
    "vLLM, after a variable with a NUL": wrong(
        Row(OWN, env(A="a\0b", GPU_MEMORY_UTILIZATION="0.95")), f"env[1].value: write {REFERENCE}; "
    ),
    "vLLM, code": wrong(
        runs("python", "-c", "LLM(model='m', gpu_memory_utilization=0.9)"),
        f"{COMMAND}[2]: write gpu_memory_utilization={REFERENCE}; 0.9 {WHOLE}",
    ),
    "vLLM, JSON": wrong(
        line("echo '{\"gpu_memory_utilization\": 0.9}' > /m/1/model.json; exec tritonserver"),
        f'write "gpu_memory_utilization": {REFERENCE}; 0.9 {WHOLE}',
    ),
    "SGLang": wrong(
        args(SGLANG, "--mem-fraction-static", "0.88"), f"{ARGS}[1]: write {REFERENCE}; 0.88 "
    ),
    "TGI": wrong(args(TGI, "--cuda-memory-fraction=0.5"), f"write {TGI_LINE}; 0.5 {WHOLE}"),
    "vLLM, a default": wrong(
        line("vllm serve m --gpu-memory-utilization=${UTIL:-0.9} --port 80"),
        f"{ARGS}[0]: {WRITE_VLLM}0.9 {WHOLE}",
    ),
    **{
        f"vLLM, one word with {value[:9]}": wrong(
            args(VLLM, "--model=m", f"--gpu-memory-utilization {value}"),
            f"{ARGS}[1]: {WRITE_VLLM}a program gets both as one word",
        )
        for value in ("0.3", REFERENCE)
    },
    **{
        f"the amount, {words}": wrong(
            args(VLLM, *words.format("$(VRAMWARDEN_GPU_MEMORY_MIB)").split()),
            f"{REFERENCE}; VRAMWARDEN_GPU_MEMORY_MIB is an amount",
        )
        for words in ("--gpu-memory-utilization {}", "--gpu-memory-utilization={}")
    },
    **{
        f"JAX, {value}": wrong(
            Row(OWN, env(XLA_PYTHON_CLIENT_PREALLOCATE=value)),
            'spec.containers[0].env[0].value: write "false"; JAX takes three quarters of the GPU',
        )
        for value in ("true", "True", "1")
    },
    "JAX in a line": wrong(
        line("XLA_PYTHON_CLIENT_PREALLOCATE=true python train.py"),
        f"{ARGS}[0]: write XLA_PYTHON_CLIENT_PREALLOCATE=false; JAX takes",
    ),
    "XLA in a line": wrong(
        line("export XLA_PYTHON_CLIENT_MEM_FRACTION=.75; python train.py"),
        f"write XLA_PYTHON_CLIENT_MEM_FRACTION={REFERENCE}; .75 {WHOLE}",
    ),
    "TGI, a variable": wrong(
        Row(TGI, env(CUDA_MEMORY_FRACTION="0.5")), f"env[0].value: write {REFERENCE}; 0.5 {WHOLE}"
    ),
    "NIM": wrong(Row(NIM, env(NIM_KVCACHE_PERCENT="0.4")), f"write {REFERENCE}; 0.4 {WHOLE}"),
    "XLA, the old name": wrong(
        Row(OWN, env(XLA_PYTHON_CLIENT_MEM_FRACTION=".9")), f"write {REFERENCE}; .9 {WHOLE}"
    ),
    "XLA": wrong(Row(OWN, env(XLA_CLIENT_MEM_FRACTION="1.0")), f"write {REFERENCE}; 1.0 {WHOLE}"),
    "PyTorch": wrong(
        Row(OWN, env(PYTORCH_ALLOC_CONF="per_process_memory_fraction:0.9")),
        f"write per_process_memory_fraction:{REFERENCE}; 0.9 {WHOLE}",
    ),
    "RMM": wrong(
        runs("dask", "cuda", "worker", "--rmm-pool-size=0.9", "--rmm-maximum-pool-size=0.95"),
        f"{COMMAND}[3]: write --rmm-pool-size={REFERENCE}; 0.9 {WHOLE}",
        f"{COMMAND}[4]: write --rmm-maximum-pool-size={REFERENCE}; 0.95 {WHOLE}",
    ),
    "TensorFlow Serving": wrong(
        args("tensorflow/serving:2-gpu", "--per_process_gpu_memory_fraction=0.7"),
        f"write --per_process_gpu_memory_fraction={REFERENCE}; 0.7 {WHOLE}",
    ),
    "TensorRT-LLM": wrong(
        runs("trtllm-serve", "m", "--kv_cache_free_gpu_memory_fraction", "0.9"),
        f"{COMMAND}[3]: write {ONE_FREE}0.9 is of what the weights leave free",
    ),
    "TensorRT-LLM in Triton": wrong(
        line("fill_template.py -i x kv_cache_free_gpu_mem_fraction:0.9 && exec tritonserver"),
        f"write kv_cache_free_gpu_mem_fraction:{FREE[1:]}0.9 is of what the weights leave free",
    ),
    **{
        f"the fraction, {name}": wrong(
            Row(OWN, fields), f"{right}; the fraction exceeds this container's 24Gi by the weights"
        )
        for name, right, fields in (
            (
                "TensorRT-LLM",
                f"{COMMAND}[3]: write {ONE_FREE.removesuffix('; ')}",
                {"command": ["trtllm-serve", "m", "--free_gpu_memory_fraction", REFERENCE]},
            ),
            (
                "LMDeploy",
                f"{ARGS}[0]: write --cache-max-entry-count{FREE.removesuffix('; ')}",
                line(f"lmdeploy serve api_server --cache-max-entry-count ${NAME}").fields,
            ),
        )
    },
    "LMDeploy": wrong(
        runs("lmdeploy", "serve", "api_server", "m", "--cache-max-entry-count", "0.8"),
        f"{COMMAND}[5]: write {ONE_FREE}0.8 is of what the weights leave free",
    ),
}

INSTEAD = f"write {REFERENCE} in place of "
REFERENCES = {
    "$NAME": wrong(
        args(VLLM, f"--gpu-memory-utilization=${NAME}"), f"{ARGS}[0]: {INSTEAD}${NAME}; {AS_IT_IS}"
    ),
    "${NAME}": wrong(
        args(VLLM, "--gpu-memory-utilization", f"${{{NAME}}}"), f"{ARGS}[1]: {INSTEAD}${{{NAME}}}; "
    ),
    "$$(NAME)": wrong(args(VLLM, f"--gpu-memory-utilization=$${REFERENCE[1:]}"), f"{INSTEAD}$$("),
    "quoted for a shell": wrong(
        line(f"vllm serve m --gpu-memory-utilization '${NAME}'"),
        f"write {VLLM_LINE}; nothing replaces ${NAME} there",
    ),
    "another's $NAME": wrong(
        args(VLLM, "--gpu-memory-utilization=$UTIL"), f"write {VLLM_LINE}; nothing replaces $UTIL"
    ),
    "in a variable": wrong(
        Row(OWN, env(SHARE=f"${NAME}")), f"spec.containers[0].env[0].value: {INSTEAD}${NAME}; "
    ),
    "a typing error": wrong(
        args(OWN, "--share=$(VRAMWARDEN_GPU_FRACTION)"),
        f"{ARGS}[0]: {INSTEAD}$(VRAMWARDEN_GPU_FRACTION); {NO_SUCH}",
    ),
    "a typing error in a line": wrong(
        line("exec ./run --share ${VRAMWARDEN_MEMORY_FRACTION}"),
        f"{INSTEAD}${{VRAMWARDEN_MEMORY_FRACTION}}; {NO_SUCH}",
    ),
    "the amount": wrong(
        args(OWN, "--mib=$(VRAMWARDEN_GPU_MEMORY)"),
        "write $(VRAMWARDEN_GPU_MEMORY_MIB) in place of $(VRAMWARDEN_GPU_MEMORY); ",
    ),
    "right ones": args(OWN, f"--share={REFERENCE}", "--mib=$(VRAMWARDEN_GPU_MEMORY_MIB)"),
    "its own": Row(OWN, {"args": ["$(VRAMWARDEN_MINE)"], **env(VRAMWARDEN_MINE="1")}),
    "from elsewhere": Row(
        OWN, {"args": ["$(VRAMWARDEN_MINE)"], "envFrom": [{"secretRef": {"name": "s"}}]}
    ),
    "a line's own": line("VRAMWARDEN_MINE=1; echo $VRAMWARDEN_MINE"),
    "a default": line("exec ./run --share ${VRAMWARDEN_GPU_MEMORY_FRACTION:-0.5}"),
    "words for the line": Row(
        OWN, {"command": ["sh", "-c", "./run $1", "sh"], "args": [REFERENCE]}
    ),
}

COUNT = 'metadata.annotations[vramwarden.io/gpu-count]: write vramwarden.io/gpu-count: "{}"; '
PARALLEL = {
    flag: wrong(args(VLLM, VLLM_LINE, *flag.split()), COUNT.format(2))
    for flag in (
        "--tensor-parallel-size=2",
        "--tensor-parallel-size 2",
        "--tensor_parallel_size 2",
        "-tp 2",
        "-tp=2",
    )
} | {
    "SGLang": wrong(args(SGLANG, SGLANG_LINE, "--tp", "4"), COUNT.format(4)),
    "SGLang, size": wrong(args(SGLANG, SGLANG_LINE, "--tp-size=4"), COUNT.format(4)),
    "TGI": wrong(args(TGI, TGI_LINE, "--num-shard", "2"), COUNT.format(2)),
    "TensorRT-LLM": wrong(
        runs("trtllm-serve", "m", "--tp_size", "2", "--free_gpu_memory_fraction=0.1"),
        COUNT.format(2),
    ),
    "LMDeploy": wrong(
        runs("lmdeploy", "serve", "api_server", "--tp", "2", "--cache-max-entry-count=0.1"),
        COUNT.format(2),
    ),
    "a line": wrong(line(f"vllm serve m {VLLM_LINE} --tensor-parallel-size 2"), COUNT.format(2)),
    "NIM": wrong(
        Row(NIM, env(NIM_KVCACHE_PERCENT=REFERENCE, NIM_TENSOR_PARALLEL_SIZE="2")),
        COUNT.format(2),
    ),
    "words in a variable": wrong(
        Row(SGLANG, {"args": [SGLANG_LINE], **env(EXTRA_ARGS="--tp 2")}),
        COUNT.format(2),
    ),
    "a private image": wrong(args(OWN, "--tensor-parallel-size=2"), COUNT.format(2)),
    **{
        words: wrong(args(image, bound, *words.split()), COUNT.format(count))
        for image, bound, count, words in (
            (VLLM, VLLM_LINE, 2, "--pipeline-parallel-size=2"),
            (VLLM, VLLM_LINE, 2, "--data_parallel_size 2"),
            (VLLM, VLLM_LINE, 4, "-tp 1 -pp 2 -dp 2"),
            (VLLM, VLLM_LINE, 8, "--tensor-parallel-size 4 --pipeline-parallel-size 2"),
            (SGLANG, SGLANG_LINE, 4, "--tp 2 --dp 2"),
            (SGLANG, SGLANG_LINE, 4, "--tp-size=2 --pp-size=2 --nnodes=1 --node-rank=0"),
            (SGLANG, SGLANG_LINE, 2, "--tp 2 --dp 2 --enable-dp-attention"),
        )
    },
    **{
        words: wrong(runs(*words.split()), COUNT.format(2))
        for words in (
            "torchrun --nproc_per_node=2 t.py",
            "torchrun --nproc-per-node 2 --nnodes=3 t.py",
            "python -m torch.distributed.launch --nproc_per_node 2 t.py",
            "deepspeed --num_gpus=2 t.py",
            "deepspeed --num-gpus 2 t.py",
            "ray start --num-gpus=2",
            "accelerate launch --num_processes 2 t.py",
            "accelerate launch --num-processes=2 --num_machines=1 t.py",
        )
    },
    "torchrun, a variable": wrong(
        Row(OWN, {"command": ["torchrun", "t.py"], **env(PET_NPROC_PER_NODE="2")}), COUNT.format(2)
    ),
    **{
        words: runs(*words.split())
        for words in (
            "torchrun --nproc-per-node=gpu t.py",
            "python t.py --num_gpus 2 --num_processes 2 --deepspeed x",
            "accelerate launch --num_processes=4 --num_machines 2 t.py",
            "python t.py --pp 2 --dp 2",
        )
    },
    "vLLM, a variable": Row(
        VLLM, {"args": [VLLM_LINE], **env(VLLM_TENSOR_PARALLEL_SIZE="2", TENSOR_PARALLEL_SIZE="2")}
    ),
    "of several nodes by data": args(
        VLLM, VLLM_LINE, "--data-parallel-size=4", "--data-parallel-size-local=1"
    ),
    "LMDeploy within": wrong(
        runs("lmdeploy", "serve", "api_server", "--tp=2", "--dp=2", "--cache-max-entry-count=0.1"),
        COUNT.format(2),
    ),
    "of several nodes by data, short": args(VLLM, VLLM_LINE, "-dp", "4", "-dpl", "1"),
    "one": args(VLLM, VLLM_LINE, "--tensor-parallel-size=1"),
    "by a variable": args(VLLM, VLLM_LINE, "--tensor-parallel-size=$(TP)"),
    "another program's": runs("./train", "--tp", "8"),
    "of several nodes": args(SGLANG, SGLANG_LINE, "--tp=16", "--nnodes=2", "--node-rank=0"),
    "by Ray": args(VLLM, VLLM_LINE, "-tp=8", "--distributed-executor-backend", "ray"),
}

GROUPS = {
    "image": IMAGES,
    "command": COMMANDS,
    "bound": BOUNDS,
    "literal": LITERALS,
    "reference": REFERENCES,
    "parallel": PARALLEL,
}
ROWS = {
    f"{group}: {name[:40]}": row for group, rows in GROUPS.items() for name, row in rows.items()
}
