"""`profile new --from-command` and `--from-compose`: what is taken over, what is named, and what is refused."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemmaspec.cli.app import run
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.takeover import TakenOver
from gemmaspec.core.profile.takeover_compose import from_compose
from gemmaspec.core.profile.takeover_text import from_command
from gemmaspec.core.releases.facts import newest
from gemmaspec.run.engine.configured import configured
from gemmaspec.run.stack.paths import container_paths
from gemmaspec.run.stack.serve import serve_command
from tests.support.fake_nvidia_smi import FakeNvidiaSmi, card

SPEC = '{"method": "mtp", "model": "google/gemma-4-31B-it-assistant", "num_speculative_tokens": 4}'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvidia_smi: FakeNvidiaSmi) -> Path:
    """The user's own profiles, on a machine without a GPU."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    own = tmp_path / "config" / "gemmaspec" / "profiles"
    own.mkdir(parents=True)
    return own


@pytest.mark.parametrize(
    ("command", "content"),
    [
        ("vllm serve a/b", {"target": {"model": "a/b"}}),
        ("python3 -m vllm.entrypoints.openai.api_server --model=a/b", {"target": {"model": "a/b"}}),
        ("vllm serve a/b --gpu-memory-utilization=0.90", {"serve": {"gpu_memory_utilization": 0.9}}),
        ("vllm serve a/b --lora-modules a=/a b=/b --gwm 16 --dtype=half", {
            "serve": {"extra_args": ["--lora-modules", "a=/a", "b=/b", "--gwm", "16"], "dtype": "half"},
        }),
        ("vllm serve a/b -sc.method mtp --speculative-config.num_speculative_tokens 3 --spec-model=x/y-assistant", {
            "draft": {"model": "x/y-assistant"}, "speculative": {"method": "mtp", "num_speculative_tokens": 3},
        }),
        ("vllm serve a/b --limit-mm-per-prompt.image 0 --structured-outputs-config.x 1", {
            "serve": {"limit_mm_per_prompt": {"image": 0}, "extra_args": ["--structured-outputs-config.x", "1"]},
        }),
        ("vllm serve a/b --limit-mm-per-prompt '{\"image\": {\"count\": 2, \"width\": 512}}'", {
            "serve": {"extra_args": ["--limit-mm-per-prompt", '{"image": {"count": 2, "width": 512}}']},
        }),
        ("vllm serve a/b --speculative-config '{\"model\": \"[ngram]\", \"num_speculative_tokens\": 3}'", {
            "speculative": {"method": "ngram", "num_speculative_tokens": 3},
        }),
        ("export NCCL_DEBUG=INFO TZ='x y' && export LANG=C; NCCL_ALGO=Ring vllm serve a/b", {
            "env": {"NCCL_DEBUG": "INFO", "TZ": "x y", "LANG": "C", "NCCL_ALGO": "Ring"},
        }),
        ("M=a/b\nvllm serve $M --port ${PORT:-8001}", {"target": {"model": "a/b"}, "serve": {"port": 8001}}),
        ("./launch-cluster.sh -t me/x:v0.31.0 -e TZ=UTC exec vllm serve a/b", {"image": "me/x:v0.31.0", "env": {"TZ": "UTC"}}),
        ("srun --container-image=nvcr.io#nvidia/vllm:26.01 --container-mounts=/d:/m vllm serve /m/x", {
            "image": "nvcr.io/nvidia/vllm:26.01", "target": {"model": "/d/x"},
        }),
        ("apptainer exec --nv docker://vllm/vllm-openai:v0.32.0 vllm serve a/b", {"image": "vllm/vllm-openai:v0.32.0"}),
        ("docker run -v /root/models/31B:/model --mount type=bind,src=/d,dst=/drafts i --model /model "
         "--spec-model /drafts/x", {"target": {"model": "/root/models/31B"}, "draft": {"model": "/d/x"}}),
        ("docker run -v $PWD/hf:/root/.cache/huggingface -itp8001:8000 i a/b", {
            "caches": {"huggingface": "./hf"}, "serve": {"port": 8001},
        }),
        ("docker run --shm-size 10.24gb --entrypoint bash i -c 'vllm serve a/b'", {
            "container": {"shm_size": "10.24gb"}, "target": {"model": "a/b"},
        }),
        ("bash -lc \"pip install 'transformers>=5.8,<5.20' && vllm serve a/b\"", {
            "runtime": {"packages": {"transformers": ">=5.8,<5.20"}}, "target": {"model": "a/b"},
        }),
        ("docker run i a/b --chat-template /vllm-workspace/examples/tool_chat_template_gemma4.jinja", {
            "chat": {"template": "gemma4"},
        }),
        ("vllm serve a/b --api-key $(cat key) --port 8001", {"serve": {"port": 8001}}),
        ("uv run --with 'transformers<5.20,>=5.8' --with vllm==0.32.0 vllm serve a/b", {
            "runtime": {"packages": {"transformers": "<5.20,>=5.8"}},
        }),
        ("vllm serve a/b --limit-mm-per-prompt x=1 --limit-mm-per-prompt.image 0", {
            "serve": {"limit_mm_per_prompt": "x=1", "extra_args": ["--limit-mm-per-prompt.image", "0"]},
        }),
        ("vllm serve a/b --limit-mm-per-prompt '{\"video\": 1}' --limit-mm-per-prompt.image 0", {
            "serve": {"limit_mm_per_prompt": {"video": 1, "image": 0}},
        }),
        ("docker run vllm/vllm-openai:v0.32.0 vllm serve a/b --port 8001", {"target": {"model": "a/b"}, "serve": {"port": 8001}}),
        ("vllm serve vllm serve a/b", {"target": {"model": "a/b"}}),
        ("vllm serve a/b --max-model-len auto", {"serve": {"extra_args": ["--max-model-len", "auto"]}}),
        ("vllm serve a/b --max-model-len 32k", {"serve": {"max_model_len": 32000}}),
        ("vllm serve a/b --max_model_len=32K", {"serve": {"max_model_len": 32768}}),
        ("vllm serve a/b -tp 2 --no-enable-prefix-caching", {"serve": {"tensor_parallel_size": 2, "enable_prefix_caching": False}}),
        ("vllm serve a/b --max-logprobs 5 -O2", {"serve": {"extra_args": ["--max-logprobs", "5", "-O2"]}}),
        ("vllm serve a/b --tool-call-parser gemma4 --enable-auto-tool-choice", {"chat": {"tool_call_parser": "gemma4"}}),
        (f"vllm serve a/b --speculative-config '{SPEC}'", {
            "draft": {"model": "google/gemma-4-31B-it-assistant"},
            "speculative": {"method": "mtp", "num_speculative_tokens": 4},
        }),
        ("VLLM_LOGGING_LEVEL=DEBUG vllm serve a/b", {"env": {"VLLM_LOGGING_LEVEL": "DEBUG"}}),
        ("docker run --gpus '\"device=0,1\"' -p 8001:8000 vllm/vllm-openai:v0.32.0 --model a/b", {
            "image": "vllm/vllm-openai:v0.32.0", "devices": [0, 1], "serve": {"port": 8001},
        }),
        ("docker run -v ~/.cache/huggingface:/root/.cache/huggingface --ipc=host --shm-size 16Gi i a/b", {
            "caches": {"huggingface": "~/.cache/huggingface"}, "container": {"ipc": "host", "shm_size": "16gb"},
        }),
        ("vllm serve a/b --port 8001 \\\n  # --enforce-eager \\\n  `# its \"why\"` \\\n  -tp 2 # don't", {
            "serve": {"port": 8001, "tensor_parallel_size": 2},
        }),
        ("O='--port 8001 -tp 2'\nvllm serve a/b $O $(nproc) ${X:+--x}", {"serve": {"port": 8001, "tensor_parallel_size": 2}}),
        ("vllm serve a/b --port ${1:-8001} --max-num-seqs $2 --gpu-memory-utilization .9", {
            "serve": {"port": 8001, "gpu_memory_utilization": 0.9},
        }),
        ("[Service]\nEnvironment=TZ=UTC\nExecStart=/usr/bin/vllm serve a/b", {"env": {"TZ": "UTC"}, "target": {"model": "a/b"}}),
        ('CMD ["vllm", "serve", "a/b", "--port", "8001"]', {"target": {"model": "a/b"}, "serve": {"port": 8001}}),
        ("docker run -v ~/hf:/root/.cache/huggingface i /root/.cache/huggingface/31B", {
            "target": {"model": "~/hf/31B"}, "caches": {"huggingface": "~/hf"},
        }),
        ("docker run i `\n  --model a/b `\n  --port 8001\n", {"target": {"model": "a/b"}, "serve": {"port": 8001}}),
        ("ssh host 'TZ=UTC vllm serve a/b --port 8001'", {"env": {"TZ": "UTC"}, "serve": {"port": 8001}}),
        ("vllm serve a/b --port 8001 \\", {"serve": {"port": 8001}}),
        ("python,-m,vllm.entrypoints.api_server,--model=a/b,--port=8001", {"target": {"model": "a/b"}, "serve": {"port": 8001}}),
        ("gcloud run deploy x --image=x/y:v1 --args=--model=a/b,--port=8001", {"image": "x/y:v1", "serve": {"port": 8001}}),
        ("M=a/b\nC=\"vllm serve $M --port 8001\"\n$C &\nuntil curl -s localhost:8001/health; do sleep 1; done", {
            "target": {"model": "a/b"}, "serve": {"port": 8001},
        }),
        ("bash -c 'pip install transformers==5.15.0; exec vllm serve \"$@\"' -- a/b --port 8001", {
            "target": {"model": "a/b"}, "serve": {"port": 8001}, "runtime": {"packages": {"transformers": "==5.15.0"}},
        }),
        ("bash -c 'vllm serve \"$0\" --port $1 --max-num-seqs ${2:-4} ${3}' a/b 8001", {
            "target": {"model": "a/b"}, "serve": {"port": 8001, "max_num_seqs": 4},
        }),
        ("bash -c 'set -- a/b -tp 2; exec vllm serve \"$@\"' -- c/d", {
            "target": {"model": "a/b"}, "serve": {"tensor_parallel_size": 2},
        }),
        ("[ -d hf ] && echo there\nN=4; unset N; vllm serve a/b --max-num-seqs ${N:-2}", {"serve": {"max_num_seqs": 2}}),
        ("sh -c 'M=$1; shift; exec vllm serve $M \"$@\"' run a/b -tp 2", {
            "target": {"model": "a/b"}, "serve": {"tensor_parallel_size": 2},
        }),
        ("docker run --entrypoint bash i -c 'exec vllm serve \"$@\"' -- a/b --port 8001", {
            "target": {"model": "a/b"}, "serve": {"port": 8001},
        }),
        ("docker run --entrypoint /start/serve.sh i a/b --port 8001", {"target": {"model": "a/b"}, "serve": {"port": 8001}}),
        ("[Unit]\nDescription=x\n[Container]\nImage=docker.io/vllm/vllm-openai:v0.32.0\nExec=--model a/b \\\n  --port 8000\n"
         "PublishPort=127.0.0.1:8001:8000\nVolume=%h/hf:/root/.cache/huggingface:Z\nEnvironment=TZ=UTC \"LANG=C\"\n"
         "AddDevice=nvidia.com/gpu=1\nShmSize=16g\n[Install]\nWantedBy=default.target", {
            "image": "docker.io/vllm/vllm-openai:v0.32.0", "target": {"model": "a/b"}, "devices": [1],
            "serve": {"port": 8001, "bind": "127.0.0.1"}, "env": {"TZ": "UTC", "LANG": "C"},
            "caches": {"huggingface": "~/hf"}, "container": {"shm_size": "16gb"},
        }),
        ("V='-v /h:/root/.cache/huggingface'\nssh h \"docker run $V i \\\n vllm serve a/b\"", {
            "caches": {"huggingface": "/h"}, "target": {"model": "a/b"},
        }),
        ("kubectl run g --image=x/y:v1 -- --model a/b", {"image": "x/y:v1", "target": {"model": "a/b"}}),
        ("vllm serve --config x.yaml a/b", {"target": {"model": "a/b"}}),
        ("vllm serve a/b --speculative-model x/y --num-speculative-tokens 5", {
            "draft": {"model": "x/y"}, "speculative": {"num_speculative_tokens": 5},
        }),
        ("vllm serve RedHatAI/gemma-4-31B-it-speculator.dflash", {
            "target": {"model": "google/gemma-4-31B-it"}, "draft": {"model": "RedHatAI/gemma-4-31B-it-speculator.dflash"},
            "speculative": {"method": "dflash", "num_speculative_tokens": 4},
        }),
        ("vllm serve a/b --enable_chunked_prefill=True --compilation-config.cudagraph_mode FULL", {
            "serve": {"enable_chunked_prefill": True, "extra_args": ["--compilation-config.cudagraph_mode", "FULL"]},
        }),
    ],
)  # fmt: skip
def test_what_a_command_says_becomes_keys(command: str, content: dict[str, Any]) -> None:
    made = from_command(command).content
    assert {key: made.get(key) for key in content} == content


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("docker run --pids-limit -1 i a/b", "docker run --pids-limit: has no key"),
        (
            "P=$((8000 + (ID % 10)))\nvllm serve a/b --port $P",
            "serve.port: what arithmetic prints: the command does not set",
        ),
        ("srun --container-image=/i/vllm-v0.32.0.sqsh vllm serve a/b", "image /i/vllm-v0.32.0.sqsh: a file"),
        ("singularity run --nv /i/vllm_0.32.0.sif vllm serve a/b", "image /i/vllm_0.32.0.sif: a file"),
        ("vllm serve a/b --max-model-len -1", "vLLM takes what fits"),
        (
            "vllm serve a/b -ngl 99",
            "-ngl 99: it is a setting of llama.cpp; vLLM keeps the whole model on the GPU, so leave it",
        ),
        ("vllm serve a/b -c 4096", "-c 4096: write --set serve.max_model_len=4096, which is llama.cpp's -c"),
        ("vllm serve a/b --swap-space 16", "--swap-space 16: no release of vLLM that runs Gemma 4 has it; remove it"),
        ("docker run -v hf:/root/.cache/huggingface i a/b", "caches.huggingface: /FOLDER"),
        ("docker run -v ./x.py:/usr/lib/python3/dist-packages/vllm/x.py i a/b", "gemmaspec patch import"),
        ("docker run i --model /inside", "a path of the container"),
        ("srun -N2 --gres=gpu:1 vllm serve a/b", "srun -N2 --gres: gemmaspec up"),
        ("pip install transformers && vllm serve a/b", "pip install transformers: runtime: {packages"),
        ("vllm serve a/b --port $PORT", "serve.port: $PORT: the command does not set it"),
        ("vllm serve a/b > log 2>&1 &", "redirections"),
        ("huggingface-cli login && vllm serve a/b", "huggingface-cli login: gemmaspec up"),
        ("vllm serve a/b -- word", "word: no flag of vLLM takes this word"),
        ("vllm serve a/b --host 0.0.0.0", "asks for a key"),
        ("vllm serve a/b --nnodes 2 --node-rank 1", "fleet.yaml"),
        ("vllm serve a/b --config x.yaml", "--config x.yaml: there is no such file here; write its lines under serve:"),
        ("docker run --restart always i a/b", "container.restarts"),
        ("docker run -v /data:/data i a/b", "target.model: /FOLDER"),
        ("docker run --cap-add SYS_ADMIN i a/b", "has no key in a profile"),
        ("vllm serve a/b -tp $(nvidia-smi -L | wc -l)", "serve.tensor_parallel_size: what nvidia_smi prints"),
        ("vllm serve a/b --seed $A --x $B c", "serve.extra_args: $B"),
        ("vllm serve a/b\nvllm serve c/d --task embed", "a second server"),
        ("HF_HUB_CACHE=/x/cache vllm serve a/b", "caches.huggingface names the folder that holds hub/"),
        ("vllm serve a/b\n  --port 8001", "--port 8001: the line before it lacks a backslash"),
        ("cd x; mkdir y; vllm serve a/b", "cd x, mkdir y: gemmaspec up"),
        ('vllm serve a/b --compilation-config \'{"backend": "x.y"}\'', "it decides which code"),
        ("docker exec n vllm serve a/b", "the image and the mounts of that container are not in this command"),
        (
            "sed -i s/a/b/ /usr/lib/python3/dist-packages/vllm/x.py && vllm serve a/b",
            "x.py: it changes vLLM's own files",
        ),
        ("bash -c 'cp /fix/g.py /opt/site-packages/vllm/models/g.py; vllm serve a/b'", "gemmaspec patch import"),
        ("sed -i s/a/b/ $FILE; vllm serve a/b", "sed -i …: it changes a file at each start"),
        (
            "sudo apt-get update && apt-get install -y git && vllm serve a/b",
            "apt-get install …: it installs system packages",
        ),
        ('vllm serve a/b "$@"', "$@: the words that the script is given"),
        ("docker run --entrypoint /e/serve.sh i a/b", "/e/serve.sh: a start script, whose further steps are not here"),
        (
            "[Service]\nExecStartPre=/bin/docker pull x\nExecStart=vllm serve a/b",
            "ExecStartPre=/bin/docker …: gemmaspec up",
        ),
        ("python -m dynamo.vllm --model a/b", "without Dynamo"),
    ],
)
def test_what_has_no_key_is_named_with_what_there_is_instead(command: str, named: str) -> None:
    made = from_command(command)
    assert any(named in one for one in (*made.left, *made.decided))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('case "${1:-small}" in\n small) M=a/b;;\n large) M=c/d;;\nesac\nvllm serve $M', "`case`"),
        ('if [ -n "$BIG" ]; then vllm serve c/d; else vllm serve a/b; fi', "`if`"),
        ('M=a/b\n[ "$BIG" ] && M=c/d\nvllm serve $M', "`[`"),
        ("M=a/b; [[ -n $BIG ]] && export M=c/d; vllm serve $M", "`[[`"),
        ("for port in 1 2; do vllm serve a/b --port $port; done", "`for`"),
        ("start() {\n vllm serve a/b\n}\nstart", "a function"),
        ('A=(--model a/b)\nvllm serve "${A[@]}"', "an array"),
        ('A=(--model a/b\n --port 1)\nA+=(-tp 2)\nvllm serve "${A[@]}"', "an array"),
        ('vllm serve a/b "${A[@]}"', "an array"),
        ("cat > x.yaml <<'E'\nmodel: x/y\nE\nvllm serve --config x.yaml", "a text of its own"),
        ("python3 - <<E\nvllm serve x/y\nE\nvllm serve a/b", "a text of its own"),
        ("docker run --entrypoint bash i -c 'if true; then vllm serve a/b; fi'", "`if`"),
    ],
)
def test_a_script_that_only_a_shell_can_follow_is_refused_with_the_way_that_works(script: str, said: str) -> None:
    with pytest.raises(UsageError, match="does not say what it serves") as caught:
        from_command(script)
    assert said in caught.value.message
    assert "--from-running" in str(caught.value.hint)


@pytest.mark.parametrize(
    "script", ['exec vllm serve "$@"', "docker run --entrypoint /entry/serve.sh i", "vllm serve $MODEL"]
)
def test_a_text_without_its_model_names_the_way_that_works(script: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_command(script)
    assert "--from-running" in str(caught.value.hint)


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve a/b --api-key s3cret",
        "docker run -e HF_TOKEN=s3cret i a/b",
        "MY_TOKEN=s3cret vllm serve a/b",
        "export HF_TOKEN=s3cret\nvllm serve a/b",
        "hf login --token s3cret && HF_TOKEN=s3cret vllm serve a/b",
    ],
)
def test_the_value_of_a_secret_is_never_taken_over(command: str) -> None:
    made = from_command(command)
    assert "s3cret" not in f"{made.content}{made.left}"
    assert {"VLLM_API_KEY", "HF_TOKEN", "MY_TOKEN"} & set(made.content["pass_env"])


SECRETS = (
    *(
        "DB_PASS",
        "MYSQL_PWD",
        "GH_PAT",
        "WEBHOOK_URL",
        "SLACK_HOOK",
        "AUTH_HEADER",
        "BASIC_AUTH_CRED",
        "PRIVATE_KEY_PEM",
    ),
    *("DATABASE_URL", "MY_PASS", "AWS_SESSION", "VLLM_SOMETHING_NEW", "A", "PGURL", "SENTRY_DSN"),
    *("VLLM_FLASHINFER_KEY", "VLLM_MXFP4_PASS", "VLLM_USE_OF_DB", "VLLM_CPU_LOGIN"),
)


@pytest.mark.parametrize("name", SECRETS)
def test_a_variable_that_is_not_known_to_be_harmless_comes_over_by_name_only(name: str) -> None:
    for made in (
        from_command(f"{name}=s3cret vllm serve a/b"),
        from_command(f"docker run -e {name}=s3cret i a/b"),
        composed({"environment": {name: "s3cret"}}),
        composed({"environment": [f"{name}=s3cret"]}),
        composed({"environment": {name: "${X:-s3cret}"}}),
    ):
        assert "s3cret" not in f"{made.content}{made.left}"
        assert name in made.content["pass_env"]
        assert "env" not in made.content


@pytest.mark.parametrize("value", ["https://user:pw@host/x", "/home/me/.secret", "a" * 65, "line\nline", "sk=proj/abc"])
def test_a_harmless_name_with_another_value_comes_over_by_name_only(value: str) -> None:
    made = composed({"environment": {"NCCL_SOCKET_IFNAME": value}})
    assert value not in f"{made.content}{made.left}"


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "PYTHONSTARTUP", "VLLM_PLUGINS", "VLLM_USE_MODELSCOPE", "BASH_ENV", "HTTPS_PROXY", "HF_ENDPOINT"],
)
def test_a_variable_that_runs_code_is_named_and_left(name: str) -> None:
    made = composed({"environment": {name: "evil"}})
    assert "env" not in made.content
    assert name not in made.content.get("pass_env", ())
    assert any(one.startswith(f"{name}: it decides which code") for one in made.left)


@pytest.mark.parametrize(
    "flag",
    [
        *("--trust-remote-code", "--middleware os.system", "--middleware=os.system", "--tool-parser-plugin /x.py"),
        *("--logits-processors a.b:C", "--worker-cls a.B", "--scheduler-cls a.B", "--hf-overrides {}"),
        *("--some-new-flag=evil.Executor", "--kv-transfer-config {}", "--allowed-local-media-path /"),
        """--structured-outputs-config '{"reasoning_parser_plugin": "/x.py"}'""",
        *("--structured-outputs-config.reasoning_parser_plugin /x.py", "--new-config.deep.worker_cls=A"),
        *("""--some-config '{"a": [{"b": "evil.Class"}]}'""", "--attention-config.backend evil.Class"),
    ],
)
def test_a_flag_that_runs_code_is_named_and_left(flag: str) -> None:
    made = from_command(f"vllm serve a/b --max-num-seqs 4 {flag}")
    assert made.content["serve"] == {"max_num_seqs": 4}
    assert any(one.startswith(flag.partition(" ")[0].partition("=")[0]) for one in made.left)


def test_flags_without_code_still_come_over() -> None:
    made = from_command(
        "vllm serve a/b --max-logprobs 5 --served-model-name x --otlp-traces-endpoint http://u:s3cret@h"
    )
    assert made.content["serve"] == {"extra_args": ["--max-logprobs", "5"], "served_model_name": "x"}
    known = composed({"environment": {"VLLM_USE_V1": "1", "VLLM_ATTENTION_BACKEND": "TRITON_ATTN"}})
    assert known.content["env"] == {"VLLM_USE_V1": "1", "VLLM_ATTENTION_BACKEND": "TRITON_ATTN"}
    assert "s3cret" not in f"{made.content}{made.left}"


def test_text_of_the_source_cannot_make_a_profile_that_nobody_can_read(folder: Path) -> None:
    service = {"image": "i/vllm", "command": ["a/b"], "labels\x1b]0;x\x07": "y", "volumes": ["/a\x1b[2J:/b\u2028c"]}
    (folder / "compose.yml").write_text(yaml.safe_dump({"services": {"vllm": service}}))
    if run(["profile", "new", "mine", "--from-compose", str(folder / "compose.yml")]) == 0:
        load_profile(str(folder / "mine.yaml"))
    else:
        assert not (folder / "mine.yaml").exists()


def composed(service: dict[str, Any]) -> TakenOver:
    whole = {"services": {"vllm": {"image": "vllm/vllm-openai:v0.32.0", "command": ["--model", "a/b"], **service}}}
    return from_compose(yaml.safe_dump(whole).encode(), file="compose.yaml")


@pytest.mark.parametrize(
    ("command", "server", "model"),
    [
        ("sglang serve --model-path google/gemma-4-26B-A4B-it --tp 2", "sglang", "google/gemma-4-26B-A4B-it'"),
        ("python3 -m sglang.launch_server --model-path zai-org/GLM-5-FP8", "sglang", "google/gemma-4-31B-it "),
        ("llama-server -hf ggml-org/gemma-4-31B-it-GGUF:Q4_K_M -ngl 99", "llama-server", "google/gemma-4-31B-it "),
        (
            "docker run ghcr.io/huggingface/text-generation-inference:3.0 --model-id a/b",
            "text-generation-inference",
            "google/gemma-4-31B-it ",
        ),
        ("trtllm-serve google/gemma-4-12B-it --tp_size 8", "trtllm", "google/gemma-4-12B-it'"),
    ],
)
def test_a_command_of_another_server_is_called_what_it_is(command: str, server: str, model: str) -> None:
    with pytest.raises(UsageError, match=f"a command of {server}, and gemmaspec serves with vLLM") as caught:
        from_command(command)
    assert f"--from-command 'vllm serve {model}" in str(caught.value.hint)


def test_a_list_of_arguments_is_read() -> None:
    made = from_command(
        """- command:
          - python3
          - -m
          - vllm.entrypoints.openai.api_server
          - --model=google/gemma-4-31B-it
          - "--max-model-len=8192"
          - --speculative-config={"method":"ngram","num_speculative_tokens":5}"""
    )
    assert made.content["target"] == {"model": "google/gemma-4-31B-it"}
    assert made.content["serve"]["max_model_len"] == 8192
    assert made.content["speculative"] == {"method": "ngram", "num_speculative_tokens": 5}


def test_automatic_tool_calls_without_a_parser_are_named() -> None:
    assert any(
        line.startswith("--enable-auto-tool-choice")
        for line in from_command("vllm serve a/b --enable-auto-tool-choice").left
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("ollama run gemma", "a command of ollama"),
        ("vllm serve", "there is no model"),
        ("vllm bench latency", "gemmaspec bench PROFILE"),
        ("", "not a command"),
        ("'", "check its quotes"),
        ("docker run -it", "names no image"),
        ('FROM x/y:v1\nCMD ["a/b"]', "a Modelfile or a Dockerfile"),
        ("vllm serve a/b --speculative-config {method:mtp}", "in single quotes"),
    ],
)
def test_another_command_is_refused(command: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_command(command)
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_what_another_compose_file_holds_is_named() -> None:
    whole = {"include": ["a.yaml"], "services": {"vllm": {"image": "i/vllm", "command": ["a/b"], "extends": {}}}}
    left = from_compose(yaml.safe_dump(whole).encode(), file="compose.yaml").left
    assert [one.partition(":")[0] for one in left if "docker compose config > FILE" in one] == [
        "services.vllm.extends", "include",
    ]  # fmt: skip


def test_the_written_profile_serves_the_same_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = "--max-model-len 32768 --kv-cache-dtype fp8 --max-logprobs 5"
    assert run(["profile", "new", "mine", "--from-command", f"vllm serve google/gemma-4-31B-it {given}"]) == 0
    assert str(folder / "mine.yaml") in capsys.readouterr().out
    profile = load_profile(str(folder / "mine.yaml")).profile
    words = " ".join(serve_command(profile, container_paths(profile)))
    assert "serve google/gemma-4-31B-it " in words
    for part in ("--max-model-len 32768", "--kv-cache-dtype fp8", "--max-logprobs 5"):
        assert part in words


def test_a_compose_file_becomes_a_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = {
        "image": "vllm/vllm-openai:${TAG:-v0.32.0}",
        "command": ["--model", "a/b", "--speculative-config", SPEC],
        "environment": {"HF_TOKEN": "${HF_TOKEN}", "NCCL_DEBUG": "INFO"},
        "ports": ["127.0.0.1:8001:8000"],
        "healthcheck": {"test": "curl"},
        "deploy": {"resources": {"reservations": {"devices": [{"device_ids": ["3"]}]}}},
    }
    (folder / "compose.yml").write_text(yaml.safe_dump({"services": {"vllm": service, "db": {"image": "postgres"}}}))
    assert run(["profile", "new", "mine", "--from-compose", str(folder / "compose.yml")]) == 0
    profile = load_profile(str(folder / "mine.yaml")).profile
    assert (profile.image, profile.serve.port, profile.devices) == ("vllm/vllm-openai:v0.32.0", 8001, [3])
    assert (profile.env, profile.draft and profile.draft.model) == (
        {"NCCL_DEBUG": "INFO"},
        "google/gemma-4-31B-it-assistant",
    )
    told = capsys.readouterr().err
    assert "not taken over: services.vllm.healthcheck: a check that asks for a real token is built in" in told
    assert "not taken over: services.db: a profile is one server" in told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1",
        "services: {db: {image: postgres}}",
        "services: {a: {image: vllm}, b: {image: vllm}}",
        "[",
        "services: 1",
    ],
)
def test_a_file_without_one_server_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        from_compose(text.encode(), file="compose.yaml")


def test_a_value_that_a_profile_refuses_is_an_error_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "new", "mine", "--from-command", "vllm serve a/b --max-num-seqs many"]) == 2
    said = capsys.readouterr().err
    assert "serve.max_num_seqs: 'many' is not a whole number" in said
    assert "mine.yaml" not in said
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    ["uv run --with vllm==0.31.0 vllm serve a/b", "uvx vllm@0.31.0 serve a/b", "pip install vllm==0.31.0 && vllm serve a/b"],
)  # fmt: skip
def test_the_release_that_a_command_installs_is_kept(folder: Path, command: str) -> None:
    assert run(["profile", "new", "mine", "--from-command", command]) == 0
    profile = load_profile(str(folder / "mine.yaml")).profile
    assert (profile.image, profile.runtime.vllm) == ("vllm/vllm-openai:v0.31.0", "0.31.0")


def test_a_recipe_without_a_method_drafts_as_vllm_would(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = '{"model": "google/gemma-4-31B-it-assistant", "num_speculative_tokens": 4}'
    given = f"vllm serve google/gemma-4-31B-it --speculative-config '{spec}'"
    assert run(["profile", "new", "mine", "--from-command", given]) == 0
    loaded = load_profile(str(folder / "mine.yaml")).profile
    assert loaded.speculative
    assert loaded.speculative.method == "mtp"
    said = capsys.readouterr().err
    assert "image: vllm/vllm-openai:v" in said
    assert "machine: nvidia: the command does not say which GPU" in said


def test_the_draft_of_a_target_is_offered_and_added(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "vllm serve RedHatAI/gemma-4-31B-it-NVFP4"
    assert run(["profile", "new", "mine", "--from-command", command]) == 0
    assert "this target has a draft: google/gemma-4-31B-it-assistant; --with-draft adds it" in capsys.readouterr().err
    assert run(["profile", "new", "both", "--from-command", command, "--with-draft"]) == 0
    draft = load_profile(str(folder / "both.yaml")).profile.draft
    assert draft
    assert draft.model == "google/gemma-4-31B-it-assistant"
    assert run(["profile", "new", "no", "--from-command", "vllm serve Qwen/Qwen3-32B", "--with-draft"]) == 2


class Terminal(io.StringIO):
    """What somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "machine", "said"),
    [
        ("H100\n", "h100", "as you named it"),
        ("2x5090\n", "2xrtx-5090", "as you named it"),
        ("h10\nh100\n", "h100", "unknown machine 'h10'"),
        ("\n", "nvidia", "once the file names it"),
    ],
)
def test_on_a_terminal_the_machine_is_asked_for(
    typed: str,
    machine: str,
    said: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(folder))
    assert run(["profile", "new", "mine", "--from-command", "vllm serve google/gemma-4-31B-it"]) == 0
    assert load_profile(str(folder / "mine.yaml")).profile.machine == machine
    assert said in capsys.readouterr().err


def test_without_a_terminal_nothing_is_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "new", "mine", "--from-command", "vllm serve google/gemma-4-31B-it"]) == 0
    said = capsys.readouterr().err
    assert "Which GPU" not in said
    assert "lint checks its limits" in said


def test_what_runs_today_and_with_the_draft_is_predicted_for_a_known_gpu(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, nvidia_smi: FakeNvidiaSmi
) -> None:
    nvidia_smi.lists(card("NVIDIA H200", gib=140, capability="9.0"))
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(folder))
    assert run(["profile", "new", "mine", "--from-command", "vllm serve google/gemma-4-31B-it"]) == 0
    said = capsys.readouterr().err
    assert "today, expected: " in said
    assert "with it, expected: " in said


def test_a_template_of_the_image_stays_in_the_image(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = "/vllm-workspace/examples/template_chatml.jinja"
    command = f"docker run vllm/vllm-openai:v0.32.0 google/gemma-4-31B-it --chat-template {inside}"
    assert run(["profile", "new", "mine", "--from-command", command]) == 0
    profile = load_profile(str(folder / "mine.yaml")).profile
    assert container_paths(profile).template == inside
    run(["profile", "lint", str(folder / "mine.yaml")])
    assert "GS904" not in capsys.readouterr().out


def test_a_service_is_chosen_by_what_it_runs(folder: Path) -> None:
    text = """
x-gpu: &gpu {ipc: host, environment: {TZ: "1"}}
services:
  webui: {image: ghcr.io/open-webui/open-webui, environment: {OPENAI_API_BASE_URL: "http://vllm:8000/v1"}}
  vllm: {<<: *gpu, image: "vllm/vllm-openai:v0.32.0", command: bash -c "pip install pandas==2.2 && vllm serve a/b",
         volumes: [{type: bind, source: /d, target: /root/.cache/huggingface}]}
"""
    made = from_compose(text.encode(), file="compose.yaml").content
    assert made["target"] == {"model": "a/b"}
    assert made["container"] == {"ipc": "host"}
    assert made["env"] == {"TZ": "1"}
    assert made["caches"] == {"huggingface": "/d"}
    assert made["runtime"] == {"packages": {"pandas": "==2.2"}}
    two = "services: {a: {image: vllm/vllm-openai, command: a/b}, b: {image: vllm/vllm-openai, command: c/d}}"
    with pytest.raises(UsageError, match="2 services run vLLM: a, b"):
        from_compose(two.encode(), file="compose.yaml")
    assert from_compose(two.encode(), file="compose.yaml", service="b").content["target"] == {"model": "c/d"}
    with pytest.raises(UsageError, match="no service c; it has a, b"):
        from_compose(two.encode(), file="compose.yaml", service="c")


def test_what_compose_itself_fills_in_is_filled_in() -> None:
    text = b"""
services:
  v:
    image: ${I:-vllm/vllm-openai:v0.32.0}
    environment: {HF_TOKEN: "${HF_TOKEN:?set it}"}
    ports: [{target: 8000, published: "${P:-9000}"}]
    volumes: ["${D}:/models"]
    entrypoint: [bash, -c]
    command: ["exec vllm serve a/b --max-model-len $${L:-65536} -tp $T"]
"""
    made = from_compose(text, file="compose.yaml")
    assert made.content["image"] == "vllm/vllm-openai:v0.32.0"
    assert made.content["serve"] == {"port": 9000, "max_model_len": 65536}
    assert made.content["pass_env"] == ["HF_TOKEN"]
    assert "volume ${D}:/models: nothing sets it: write the folder under caches, or in target.model" in made.left
    assert any("serve.tensor_parallel_size: $T" in one for one in made.left)


def test_a_wrapper_in_the_entrypoint_gets_the_words_of_the_command() -> None:
    made = composed(
        {
            "entrypoint": ["bash", "-c", 'pip install transformers==5.15.0 && exec vllm serve "$$@"', "--"],
            "command": ["a/b", "--max-num-seqs", "4"],
        }
    )
    assert made.content["target"] == {"model": "a/b"}
    assert made.content["serve"] == {"max_num_seqs": 4}
    assert made.content["runtime"] == {"packages": {"transformers": "==5.15.0"}}


def test_a_file_of_vllms_own_is_read_beside_in_vllms_order() -> None:
    file = b"""
model: a/b
max-model-len: 4096
max_num_seqs: 4
enable-prefix-caching: false
enforce-eager: true
speculative-config: {method: mtp, model: x/y-assistant, num_speculative_tokens: 3}
api-key: s3cret
"""
    made = from_command("vllm serve --config conf/x.yaml --max-num-seqs 8", {"conf/x.yaml": file}.get)
    assert made.content["target"] == {"model": "a/b"}
    assert made.content["serve"] == {
        "max_model_len": 4096, "max_num_seqs": 8, "enable_prefix_caching": False, "enforce_eager": True,
    }  # fmt: skip
    assert made.content["draft"] == {"model": "x/y-assistant"}
    assert "s3cret" not in f"{made.content}{made.left}{made.decided}"
    assert from_command("vllm serve c/d --config=x.yaml", {"x.yaml": file}.get).content["target"] == {"model": "c/d"}
    mounted = from_command("docker run -v /etc/v.yaml:/v.yaml i --config /v.yaml", {"/etc/v.yaml": file}.get)
    assert mounted.content["target"] == {"model": "a/b"}
    assert not any(line.startswith("volume") for line in mounted.left)


@pytest.mark.parametrize("content", [None, b"- a list", b"\xff", b"{"])
def test_a_file_of_vllms_own_that_cannot_be_read_is_an_error_where_the_model_stands_in_it(
    content: bytes | None,
) -> None:
    with pytest.raises(UsageError, match=r"x\.yaml"):
        from_command("vllm serve --config x.yaml", lambda _: content)


def test_what_compose_fills_in_is_filled_in_and_secrets_are_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".env").write_text(
        "MODEL=a/b\nexport LEN='8192' # more\nVLLM_API_KEY=s3cret\nHOOK=https://u:s3cret@h/x\n"
    )
    monkeypatch.setenv("LEN", "4096")
    (folder / "compose.yaml").write_text(
        "services: {v: {image: vllm/vllm-openai:v0.32.0, command: '${MODEL} --max-model-len ${LEN}"
        " --max-num-seqs ${SEQS:-4} --api-key ${VLLM_API_KEY} --x ${HOOK}'}}"
    )
    assert run(["profile", "new", "mine", "--from-compose", str(folder / "compose.yaml")]) == 0
    profile = load_profile(str(folder / "mine.yaml")).profile
    assert (profile.target.model, profile.serve.max_model_len, profile.serve.max_num_seqs) == ("a/b", 4096, 4)
    assert "s3cret" not in (folder / "mine.yaml").read_text()


@pytest.mark.skipif(shutil.which("docker") is None, reason="Docker's CLI is not on this machine")
def test_docker_compose_itself_merges_extends_and_includes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only Docker's own program runs here: it asks no daemon."""
    (folder / "base.yaml").write_text(
        "services: {base: {image: vllm/vllm-openai:v0.32.0, shm_size: 16gb, environment: {TZ: UTC}}}"
    )
    (folder / "more.yaml").write_text("services: {db: {image: postgres}}")
    (folder / "compose.yaml").write_text(
        "include: [more.yaml]\n"
        "services: {v: {extends: {file: base.yaml, service: base}, profiles: [gpu], command: [a/b, --port, '${PORT:-8001}'],"
        " volumes: ['${D}:/models'], environment: {HF_TOKEN: '${HF_TOKEN:?set it}'}}}"
    )
    assert run(["profile", "new", "mine", "--from-compose", str(folder / "compose.yaml")]) == 0
    profile = load_profile(str(folder / "mine.yaml")).profile
    assert (profile.image, profile.serve.port) == ("vllm/vllm-openai:v0.32.0", 8001)
    assert (profile.env, profile.container.shm_size) == ({"TZ": "UTC"}, "16gb")
    said = capsys.readouterr().err
    assert "services.db" in said
    assert "volume ${D}:/models: nothing sets it" in said
    for own in ("networks", "profiles", "extends", "include"):
        assert own not in said


@pytest.mark.skipif(shutil.which("docker") is None, reason="Docker's CLI is not on this machine")
def test_a_file_that_docker_compose_refuses_is_read_without_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "compose.yaml").write_text(
        "services: {v: {image: vllm/vllm-openai:v0.32.0, command: a/b, no_such_key: 1}}"
    )
    assert run(["profile", "new", "mine", "--from-compose", str(folder / "compose.yaml")]) == 0
    assert "what `docker compose config` would add" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("docker") is None, reason="Docker's CLI is not on this machine")
def test_what_docker_compose_quotes_of_a_broken_env_file_is_written_nowhere(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / ".env").write_text("A=1\nhf_s3cret!x y\n")
    (folder / "compose.yaml").write_text("services: {v: {image: vllm/vllm-openai:v0.32.0, command: a/b}}")
    assert run(["profile", "new", "mine", "--from-compose", str(folder / "compose.yaml")]) == 0
    said = capsys.readouterr().err
    assert "what `docker compose config` would add" in said
    assert "s3cret" not in said + (folder / "mine.yaml").read_text()


@pytest.mark.skipif(shutil.which("docker") is None, reason="Docker's CLI is not on this machine")
def test_a_compose_file_that_includes_one_of_the_network_fetches_nothing(folder: Path) -> None:
    whole = "include: [{path: 'https://localhost:1/x/y.git'}]\nservices: {v: {image: vllm/vllm-openai:v0.32.0, command: a/b}}"
    (folder / "compose.yaml").write_text(whole)
    merged, why = configured(folder / "compose.yaml")
    assert merged is None
    assert "remote resource is disabled" in why
    assert run(["profile", "new", "mine", "--from-compose", str(folder / "compose.yaml")]) == 0


def test_a_server_for_cpus_is_one(folder: Path) -> None:
    assert run(["profile", "new", "mine", "--from-command", "VLLM_CPU_KVCACHE_SPACE=4 vllm serve a/b"]) == 0
    profile = load_profile(str(folder / "mine.yaml")).profile
    assert profile.machine == "cpu"
    assert profile.image == f"gemmaspec/vllm-cpu:{newest()}", "vLLM's own image is for GPUs"
    assert profile.runtime.vllm == newest(), "what runs where that image was not built"


def test_a_server_that_does_not_compile_goes_on_not_to(folder: Path) -> None:
    assert run(["profile", "new", "mine", "--from-command", "TORCH_COMPILE_DISABLE=1 vllm serve a/b"]) == 0
    assert load_profile(str(folder / "mine.yaml")).profile.env == {"TORCH_COMPILE_DISABLE": "1"}


def test_a_server_for_cpus_is_not_judged_on_a_gpu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "new", "mine", "--from-command", "VLLM_CPU_KVCACHE_SPACE=4 vllm serve a/b"]) == 0
    assert "--machine h100" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "ipc", "size"),
    [
        ("vllm serve a/b", "private", "16gb"),
        ("VLLM_CPU_KVCACHE_SPACE=4 vllm serve a/b", "private", "1gb"),
        ("docker run --gpus all vllm/vllm-openai:v0.32.0 --model a/b", "private", "16gb"),
        ("docker run --shm-size 2g vllm/vllm-openai:v0.32.0 --model a/b", "private", "2gb"),
        ("docker run --ipc=host vllm/vllm-openai:v0.32.0 --model a/b", "host", None),
    ],
)
def test_a_container_has_room_for_what_vllms_processes_share(
    command: str, ipc: str, size: str | None, folder: Path
) -> None:
    assert run(["profile", "new", "mine", "--from-command", command]) == 0
    container = load_profile(str(folder / "mine.yaml")).profile.container
    assert (container.ipc, container.shm_size) == (ipc, size)


def test_without_a_known_draft_the_next_step_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "new", "mine", "--from-command", "vllm serve some/finetune", "--with-draft"]
    assert run(words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "leave it out, and set draft.model in the profile" in said
    assert "try: gemmaspec inspect some/finetune --draft DRAFT" in said
    assert not (folder / "mine.yaml").exists()


def test_a_flag_and_its_value_in_one_word_are_taken_apart() -> None:
    text = b"services: {v: {image: vllm/vllm-openai, command: [a/b, '--attention-backend flashinfer']}}"
    made = from_compose(text, file="compose.yaml")
    assert made.content["serve"] == {"attention_backend": "flashinfer"}
    assert any("which vLLM refuses" in one for one in made.decided)


def test_merged_maps_of_maps_cost_no_memory() -> None:
    levels = "".join(f"x{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 20)}], k{n}: 1}}\n" for n in range(1, 40))
    with pytest.raises(UsageError, match="no services"):
        from_compose(f"x0: &a0 {{k: 1}}\n{levels}".encode(), file="compose.yaml")


def test_one_source_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "new", "mine"]) == 2
    assert "gemmaspec profile new mine --from spark-31b-mtp" in capsys.readouterr().err


def test_the_guide_shows_what_its_command_becomes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    page = (Path(__file__).parent.parent.parent / "docs/guides/from-vllm-serve.md").read_text(encoding="utf-8")
    command, becomes = page.split("```")[1], page.split("```yaml")[1].split("```")[0]
    assert run(["profile", "new", "mine", "--from-command", command.strip()]) == 0
    written = (folder / "mine.yaml").read_text()
    assert yaml.safe_load(written) == yaml.safe_load(becomes)
    assert "machine: nvidia  # name yours: " in written
    assert "machine: nvidia  # name yours: " in becomes
    printed = capsys.readouterr().err
    assert "gemmaspec fit mine --machine h100" in printed
