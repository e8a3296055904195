"""Forty-five texts in the shapes that people publish, written anew: each becomes its profile, or names the way that works."""

from __future__ import annotations

from typing import Any

import pytest

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.takeover import TakenOver
from gemmaspec.core.profile.takeover_compose import from_compose
from gemmaspec.core.profile.takeover_text import from_command

SPEC = '{"method": "mtp", "model": "x/y-assistant", "num_speculative_tokens": 3}'
ADOPT = "--from-running"
DRAFTS = {"draft": {"model": "x/y-assistant"}, "speculative": {"method": "mtp", "num_speculative_tokens": 3}}

Case = tuple[str, dict[str, Any], tuple[str, ...]]
"""A text; what the profile has of it; and what is said besides."""

COMMANDS: dict[str, Case] = {
    "the plain recipe": (
        f"vllm serve a/b --max-model-len 32K --speculative-config '{SPEC}'",
        {"target": {"model": "a/b"}, "serve": {"max_model_len": 32768}, **DRAFTS},
        (),
    ),
    "FP8 on load for a cluster": (
        f"vllm serve a/b --quantization fp8 --max-model-len 262144 --speculative-config '{SPEC}' --host 0.0.0.0",
        {"target": {"model": "a/b", "quantization": "fp8"}, "serve": {"max_model_len": 262144, "bind": "0.0.0.0"}},
        ("export VLLM_API_KEY",),
    ),
    "a recipe without a method": (
        'vllm serve a/b --speculative-config \'{"model": "x/y-assistant", "num_speculative_tokens": 4}\'',
        {"draft": {"model": "x/y-assistant"}},
        (),
    ),
    "dotted keys": (
        "vllm serve a/b --speculative-config.method mtp --speculative-config.model x/y-assistant -sc.num_speculative_tokens 3",
        DRAFTS,
        (),
    ),
    "the module": (
        "python -m vllm.entrypoints.openai.api_server --model a/b --port 8001",
        {"serve": {"port": 8001}},
        (),
    ),
    "two GPUs by a variable": (
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve a/b -tp 2 -pp 1 --enable-expert-parallel",
        {"env": {"CUDA_VISIBLE_DEVICES": "0,1"}},
        (),
    ),
    "docker with two GPUs": (
        "sudo docker run --rm --gpus '\"device=0,1\"' -p 8001:8000 -v /data/m:/m vllm/vllm-openai:v0.31.0 --model /m/x -tp 2",
        {"devices": [0, 1], "target": {"model": "/data/m/x"}, "image": "vllm/vllm-openai:v0.31.0"},
        (),
    ),
    "an entrypoint that is a shell": (
        'docker run --entrypoint /bin/bash i:v0.31.0 -c "pip install -q transformers==5.15.0; exec vllm serve a/b"',
        {"target": {"model": "a/b"}, "runtime": {"packages": {"transformers": "==5.15.0"}}},
        (),
    ),
    "a wrapper that pins a package": (
        "bash -c 'pip install transformers==5.15.0 ; exec vllm serve \"$@\"' -- a/b --max-num-seqs 4",
        {"target": {"model": "a/b"}, "serve": {"max_num_seqs": 4}},
        (),
    ),
    "a container that one goes into": (
        "docker exec -it server vllm serve a/b --port 8001",
        {"serve": {"port": 8001}},
        ("--from-running CONTAINER",),
    ),
    "a release of uv": ("uv run --with vllm==0.31.0 vllm serve a/b", {"target": {"model": "a/b"}}, ()),
    "conda and exports": (
        "conda activate serving\nexport NCCL_DEBUG=INFO && export HF_TOKEN=hf_abcdefghijklmnop && vllm serve a/b",
        {"env": {"NCCL_DEBUG": "INFO"}, "pass_env": ["HF_TOKEN"]},
        ("conda activate",),
    ),
    "a job of Slurm": (
        "#!/bin/bash\n#SBATCH --gres=gpu:1\nmodule load cuda\nMODEL=a/b\nsrun --container-image=vllm/vllm-openai:v0.31.0 \\\n"
        " vllm serve $MODEL --port 8001\n",
        {"image": "vllm/vllm-openai:v0.31.0", "target": {"model": "a/b"}},
        ("module load",),
    ),
    "a background server and a loop that waits": (
        "vllm serve a/b --port 8001 > log 2>&1 &\nuntil curl -s localhost:8001/health; do sleep 1; done\necho ready",
        {"target": {"model": "a/b"}},
        ("it comes after the server", "gemmaspec logs"),
    ),
    "a unit": (
        '[Unit]\nAfter=network.target\n[Service]\nUser=ai\nEnvironment="NCCL_DEBUG=INFO"\n'
        "ExecStart=/opt/env/bin/vllm serve a/b \\\n    --port 8001\nRestart=always\n",
        {"env": {"NCCL_DEBUG": "INFO"}, "serve": {"port": 8001}},
        (),
    ),
    "a quadlet": (
        "[Container]\nImage=docker.io/vllm/vllm-openai:v0.31.0\nAddDevice=nvidia.com/gpu=all\nPublishPort=8001:8000\n"
        "Volume=%h/.cache/huggingface:/root/.cache/huggingface:z\nSecret=hf,type=env,target=HF_TOKEN\n"
        "Exec=--model a/b --max-model-len 8192\n[Service]\nRestart=always\n",
        {"target": {"model": "a/b"}, "caches": {"huggingface": "~/.cache/huggingface"}},
        ("list the names under pass_env",),
    ),
    "a Dockerfile's last line": ('CMD ["vllm", "serve", "a/b", "--port", "8001"]', {"serve": {"port": 8001}}, ()),
    "a script with a case": (
        'case "${1:-small}" in\nbig) MODEL=c/d; TP=2 ;;\nsmall) MODEL=a/b; TP=1 ;;\nesac\nvllm serve "$MODEL" -tp "$TP"',
        {},
        ("`case`", ADOPT),
    ),
    "a script with arrays": (
        'ARGS=(--model a/b --port 8001)\nif [[ -n "$SPEC" ]]; then ARGS+=(--speculative-config "$SPEC"); fi\n'
        'python -m vllm.entrypoints.openai.api_server "${ARGS[@]}"',
        {},
        ("an array", ADOPT),
    ),
    "a script of functions": ("serve() {\n  vllm serve a/b\n}\nserve", {}, ("a function", ADOPT)),
    "a guard before the server": (
        'set -euo pipefail\nif [ -z "${HF_TOKEN:-}" ]; then echo "set it"; exit 1; fi\nvllm serve a/b',
        {},
        ("`if`", ADOPT),
    ),
    "a script that passes its words on": ('#!/bin/sh\nexec vllm serve "$@"\n', {}, (ADOPT,)),
    "a model that only the shell knows": ("vllm serve ${MODEL} --port 8001", {}, ("write its value", ADOPT)),
    "a fix of vLLM by sed": (
        "docker run --entrypoint bash i:v0.31.0 -c \"sed -i 's/a/b/' /usr/local/lib/python3.12/dist-packages/vllm/v1/x.py &&"
        ' vllm serve a/b"',
        {"target": {"model": "a/b"}},
        ("changes vLLM's own files", "gemmaspec patch import"),
    ),
    "a file of vLLM that is copied": (
        "cp /fix/gemma4_mtp.py /opt/env/lib/python3.12/site-packages/vllm/model_executor/models/ && vllm serve a/b",
        {"target": {"model": "a/b"}},
        ("gemmaspec patch import",),
    ),
    "packages of the system": (
        "bash -lc 'apt-get update && apt-get install -y git && pip install git+https://u:s3cret@h/x && vllm serve a/b'",
        {"target": {"model": "a/b"}},
        ("it installs system packages", "runtime: {packages"),
    ),
    "a mounted file of vLLM": (
        "docker run -v ./gemma4_mtp.py:/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4_mtp.py"
        " vllm/vllm-openai:gemma4-0505-arm64-cu130 a/b",
        {"image": "vllm/vllm-openai:gemma4-0505-arm64-cu130"},
        ("a changed file of vLLM is a patch",),
    ),
    "two machines": (
        "vllm serve a/b -tp 2 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1",
        {"nodes": 2, "serve": {"tensor_parallel_size": 2}},
        ("fleet.yaml",),
    ),
    "a file of vLLM's own": (
        "vllm serve --config serve.yaml --port 8002",
        {"target": {"model": "a/b"}, "serve": {"max_model_len": 8192, "port": 8002}},
        ("read from serve.yaml",),
    ),
    "another machine by ssh": (
        'ssh spark "vllm serve a/b --port 8001"',
        {"serve": {"port": 8001}},
        ("ssh spark: gemmaspec serves where it is typed",),
    ),
    "AMD": (
        "docker run --device /dev/kfd --device /dev/dri -e VLLM_ROCM_USE_AITER=1 rocm/vllm:v1 vllm serve a/b",
        {"target": {"model": "a/b"}},
        ("VLLM_ROCM_USE_AITER: it is for an accelerator of AMD", "/dev/kfd: it is for"),
    ),
    "Intel": (
        "ZE_AFFINITY_MASK=0 vllm serve a/b",
        {"target": {"model": "a/b"}},
        ("ZE_AFFINITY_MASK: it is for an accelerator of AMD, Intel",),
    ),
    "caches of the compiler": (
        "TORCHINDUCTOR_AUTOGRAD_CACHE=1 TORCHINDUCTOR_FX_GRAPH_CACHE=1 vllm serve a/b",
        {"env": {"TORCHINDUCTOR_AUTOGRAD_CACHE": "1", "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}},
        (),
    ),
    "a long dash of a web page": (
        "vllm serve a/b \u2014max-model-len 8192",
        {"serve": {"max_model_len": 8192}},
        ("a dash of a text",),
    ),
    "PowerShell": (
        "docker run --gpus all i:v0.31.0 `\r\n  --model a/b `\r\n  --port 8001\r\n",
        {"serve": {"port": 8001}},
        (),
    ),
    "another server": ("llama-server -m gemma.gguf -ngl 99", {}, ("a command of llama-server", "vllm serve")),
}

COMPOSE: dict[str, Case] = {
    "a wrapper in the entrypoint": (
        """
services:
  vllm:
    image: vllm/vllm-openai:v0.27.1
    entrypoint: ["/bin/bash", "-c", "pip install -q 'transformers>=5.10,<5.20' && exec vllm serve \\"$$@\\"", "--"]
    command: [a/b, --port, "8000", --speculative-config, '{"method": "mtp", "model": "x/y-assistant", "num_speculative_tokens": 3}']
    ports: ["8001:8000"]
""",
        {"target": {"model": "a/b"}, "runtime": {"packages": {"transformers": ">=5.10,<5.20"}}, **DRAFTS},
        (),
    ),
    "a start script and the driver's library": (
        """
services:
  vllm:
    image: vllm/vllm-openai:v0.25.1-x86_64-cu129-ubuntu2404
    entrypoint: /entrypoint/serve.sh
    command: --model a/b --max-model-len 8192
    volumes: ["./entrypoint:/entrypoint", "/usr/lib/x86_64-linux-gnu/libcuda.so.1:/usr/lib/x86_64-linux-gnu/libcuda.so.1"]
""",
        {"target": {"model": "a/b"}, "serve": {"max_model_len": 8192}},
        ("a start script, whose further steps are not here", "a library of the driver"),
    ),
    "files changed at the start": (
        """
services:
  vllm:
    image: vllm/vllm-openai:v0.31.0
    entrypoint: [bash, -c]
    command:
      - |
        apt-get update && apt-get install -y patch
        sed -i 's/x/y/' /usr/local/lib/python3.12/dist-packages/vllm/v1/spec_decode/llm_base_proposer.py
        vllm serve a/b --port 8000
""",
        {"target": {"model": "a/b"}},
        ("changes vLLM's own files", "it installs system packages"),
    ),
    "a command that bash -c does not get": (
        """
services:
  vllm: {image: "vllm/vllm-openai:v0.31.0", entrypoint: bash -c, command: pip install pandas && vllm serve a/b}
""",
        {},
        ("takes one word as its text", "a list of one text"),
    ),
    "a web page beside the server": (
        """
services:
  webui: {image: ghcr.io/open-webui/open-webui, depends_on: [vllm]}
  vllm:
    image: vllm/vllm-openai:v0.31.0
    ipc: host
    environment: [HF_TOKEN, NCCL_DEBUG=INFO]
    command: --model a/b --kv-cache-dtype fp8
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}
""",
        {"target": {"model": "a/b"}, "env": {"NCCL_DEBUG": "INFO"}, "container": {"ipc": "host"}},
        ("services.webui",),
    ),
    "two servers": (
        "services: {big: {image: vllm/vllm-openai, command: a/b}, small: {image: vllm/vllm-openai, command: c/d}}",
        {},
        ("2 services run vLLM: big, small", "--service big"),
    ),
}

CLUSTER: dict[str, Case] = {
    "a Deployment": (
        """
apiVersion: apps/v1
kind: Deployment
metadata: {name: gemma}
spec:
  template:
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.31.0
          command: [/bin/sh, -c]
          args: ["vllm serve a/b --max-model-len 8192 --speculative-config '{\\"method\\": \\"mtp\\", \\"model\\": \\"x/y-assistant\\", \\"num_speculative_tokens\\": 3}'"]
          env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}]
          resources: {limits: {nvidia.com/gpu: "1"}}
""",
        {"target": {"model": "a/b"}, "serve": {"max_model_len": 8192}, "pass_env": ["HF_TOKEN"], **DRAFTS},
        (),
    ),
    "KServe": (
        """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: gemma}
spec:
  predictor:
    containers:
      - name: kserve-container
        image: vllm/vllm-openai:v0.31.0
        args: [--model, a/b, --port, "8080"]
""",
        {"target": {"model": "a/b"}, "serve": {"port": 8080}},
        (),
    ),
    "the production stack": (
        """
servingEngineSpec:
  modelSpec:
    - name: gemma
      repository: vllm/vllm-openai
      tag: v0.31.0
      modelURL: a/b
      requestGPU: 1
      vllmConfig: {maxModelLen: 8192, extraArgs: ["--kv-cache-dtype", "fp8"]}
""",
        {"target": {"model": "a/b"}, "image": "vllm/vllm-openai:v0.31.0"},
        (),
    ),
}  # fmt: skip


def taken(text: str) -> TakenOver:
    """What a command line or a file says, with one file of vLLM's own in its folder."""
    if text.lstrip().startswith("services:"):
        return from_compose(text.encode(), file="compose.yaml")
    return from_command(text.strip(), {"serve.yaml": b"model: a/b\nmax-model-len: 8192\nport: 8001\n"}.get)


def test_there_are_as_many_as_were_read() -> None:
    assert (len(COMMANDS), len(COMPOSE), len(CLUSTER)) == (36, 6, 3)


@pytest.mark.parametrize("name", [*COMMANDS, *COMPOSE, *CLUSTER])
def test_what_people_publish_becomes_a_profile_or_names_the_way_that_works(name: str) -> None:
    text, content, said = (COMMANDS | COMPOSE | CLUSTER)[name]
    try:
        made = taken(text)
    except UsageError as error:
        assert not content, error.message
        assert error.hint
        told = f"{error.message}\n{error.hint}"
    else:
        assert content
        for key, value in content.items():
            have = made.content.get(key)
            assert have == value or (
                isinstance(value, dict) and isinstance(have, dict) and have.items() >= value.items()
            )
        told = "\n".join((*made.left, *made.decided))
        told_and_written = f"{told}{made.content}"
        assert "s3cret" not in told_and_written
        assert "hf_abcdefghijklmnop" not in told_and_written
    for part in said:
        assert part in told
