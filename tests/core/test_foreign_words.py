"""What people write for what exists: each input here was written down before the table of meanings was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.profile.foreign_words import unknown_machine

KEYS = (
    # vLLM's command line
    ("serve: {max_model_length: 8192}", "serve.max_model_len"),
    ("serve: {gpu_mem_util: 0.9}", "serve.gpu_memory_utilization"),
    ("serve: {tp: 2}", "serve.tensor_parallel_size"),
    ("serve: {context_length: 8192}", "serve.max_model_len"),
    ("serve: {kv_cache: fp8}", "serve.kv_cache_dtype"),
    ("serve: {batch_size: 8}", "serve.max_num_seqs"),
    ("serve: {max_concurrency: 8}", "serve.max_num_seqs"),
    ("serve: {api_key: abc}", "VLLM_API_KEY"),
    ("serve: {chat_template: a.jinja}", "chat.template"),
    ("speculative: {num_spec_tokens: 4}", "speculative.num_speculative_tokens"),
    ("speculative: {k: 4}", "speculative.num_speculative_tokens"),
    ("speculative: {draft_model: a/b}", "draft.model"),
    ("num_speculative_tokens: 4", "speculative.num_speculative_tokens"),
    ("draft_model: a/b", "draft.model"),
    ("assistant_model: a/b", "draft.model"),
    ("temperature: 0.7", "request"),
    ("vllm: 0.33.0", "runtime.vllm"),
    ("tensor_parallel: 2", "serve.tensor_parallel_size"),
    ("speculative: {draft_model_path: a/b}", "draft.model"),
    ("speculative: {quantization: fp8}", "draft.quantization"),
    ("speculative: {revision: main}", "draft.revision"),
    ("model_draft: a/b", "draft.model"),
    ("serve: {max_running_requests: 16}", "serve.max_num_seqs"),
    ("serve: {swap_space: 16}", "remove it"),
    ("speculative: {enabled: false}", "--no-spec"),
    ("base: spark-31b", "extends"),
    ("version: '3.8'", "schema: 1"),
    # Compose
    ("environment: {A: '1'}", "env"),
    ("env_file: .env", "pass_env"),
    ("command: [vllm, serve]", "profile new NAME --from-command"),
    ("container_name: vllm", "name"),
    ("shm_size: 16g", "container.shm_size"),
    ("healthcheck: {test: curl}", "is built in"),
    ("deploy: {resources: {}}", "devices"),
    ("networks: [a]", "serve.bind"),
    ("user: '1000'", "container.user"),
    ("stop_grace_period: 10s", "container.stop_grace_seconds"),
    ("depends_on: [a]", "profile new NAME --from-compose"),
    # Kubernetes
    ("nodeSelector: {a: b}", "render PROFILE --to kubernetes"),
    ("namespace: llm", "--namespace"),
    ("containers: []", "render PROFILE --to kubernetes"),
    ("livenessProbe: {}", "is built in"),
    ("containerPort: 8000", "serve.port"),
    # Ollama, LiteLLM, llama-swap, sparkrun
    ("num_ctx: 8192", "serve.max_model_len"),
    ("c: 4096", "serve.max_model_len"),
    ("serve: {limit_mm_per_prompt: {image: {count: 2, width: 512}}}", "serve.extra_args: [--limit-mm-per-prompt,"),
    ("serve: {limit_mm_per_prompt: '{\"image\": 2}'}", "without the quotes around it, it is a map"),
    ("num_gpu: 1", "serve.tensor_parallel_size"),
    ("model_name: gemma", "serve.served_model_name"),
    ("api_base: http://a", "serve.port"),
    ("ttl: 300", "connect llama-swap"),
    ("cmd: vllm serve a/b", "profile new NAME --from-command"),
    ("system_prompt: hello", "request"),
    ("max_nodes: 2", "nodes"),
    # one of each class: a vocabulary, a form, the same letters in another case
    ("userns_mode: host", "compose.override.yaml"),
    ("x-common: {a: 1}", "compose.override.yaml"),
    ("storageClassName: fast", "render PROFILE --to kubernetes"),
    ("nvidia.com/gpu: 1", "serve.tensor_parallel_size"),
    ("maxModelLen: 8192", "did you mean serve.max_model_len"),
    ("serve: {MaxNumSeqs: 4}", "did you mean 'max_num_seqs'?"),
    ("serve: {max-model-len: 8192}", "did you mean 'max_model_len'?"),
    ("downloadDir: /a", "serve.extra_args: [--download-dir, …]"),
    ("replicaCount: 2", "the right name is replicas"),
    ("OLLAMA_NUM_PARALLEL: 4", "serve.max_num_seqs"),
    ("HF_HUB_OFFLINE: '1'", "env: {HF_HUB_OFFLINE: …}"),
    ("hf_token: hf_a", "pass_env: [HF_TOKEN]"),
    ("num_predict: 256", "request"),
    ("router_settings: {}", "connect litellm"),
    ("startPort: 5800", "connect llama-swap"),
    ("solo_only: true", "nodes"),
    ("max_draft_len: 3", "speculative.num_speculative_tokens"),
    ("env: [{name: A, value: b}]", "{A: …}"),
    # values
    ("speculative: {method: EAGLE3}", "did you mean eagle3?"),
    ("target: {quantization: NVFP4}", "modelopt"),
    ("container: {shm_size: 16Gi}", "16gb"),
    ("serve: {port: '8000:8000'}", "write 8000"),
    ("target: {model: 'https://huggingface.co/google/gemma-4-31B-it'}", "write google/gemma-4-31B-it"),
    ("env: [A=1]", "A: '1'"),
    ("patches: draft-text-only", "required: [draft-text-only]"),
)
REVIEWED = (
    ('--speculative-config \'{"method": "mtp"}\'', "a profile writes speculative:"),
    ("model: a/b", "target.model"),
    ("gpus: all", "serve.tensor_parallel_size"),
    ("ports: ['8000:8000']", "serve.port"),
    ("volumes: [a]", "caches"),
    ("resources: {}", "render PROFILE --to kubernetes"),
    ("restart: unless-stopped", "container.restarts"),
    ("serve: {extra_args: '--a --b 8'}", "[--a, --b, '8']"),
    ("serve: {extra_args: ['--a --b 8']}", "one word per item: [--a, --b, '8']"),
    ("services: {}", "--from-compose"),
    ("kind: Pod\napiVersion: v1", "a Kubernetes object"),
    ("serve: {max_num_seqs: 32_768}", "write 32768"),
    ("runtime: {vllm: v0.32.0}", "write 0.32.0"),
    ("speculative: {num_speculative_tokens: auto}", "gemmaspec tune"),
    ("nodes: [a, b]", "fleet.yaml"),
    ("draft: a/b", "{model: a/b}"),
    ("target: {dtype: bfloat16}", "serve.dtype"),
    ("speculative: {method: MTP}", "did you mean mtp?"),
    ("machine: h1000", "unknown machine 'h1000'"),
)
"""Inputs that were answered badly, or one word short, before the table was."""
LINES = (
    ("lint mine --set model=a/b", "target.model"),
    ("lint mine --set k=4", "speculative.num_speculative_tokens"),
    ("up google/gemma-4-31B-it-assistant", "is a model, not a profile; profiles with it: nvidia-31b-mtp"),
    ("fit some/model", "is a model, not a profile; no profile names it"),
    ("up some/model", "gemmaspec profile new mine --from-command 'vllm serve some/model'"),
    ("profile new some/model", "gemmaspec profile new mine --from-command 'vllm serve some/model'"),
    ("connect tiny-cpu", "gemmaspec connect openai tiny-cpu"),
    ("up _spark-31b", "a base that profiles extend, not a profile to run; profiles with it: spark-31b"),
    ("up tiny-cpu.yaml", "there is a profile tiny-cpu"),
    ("up mine --port 8001", "--set serve.port=8001"),
    ("deploy", "render NAME --to kubernetes"),
    ("help", "gemmaspec --help"),
    ("status --watch", "gemmaspec top"),
    ("inspect https://huggingface.co/google/gemma-4-31B-it/tree/main", "gemmaspec inspect google/gemma-4-31B-it"),
    ("lint mine --set MAX_MODEL_LEN=8192", "serve.max_model_len"),
    ("lint mine --set Serve.port=8001", "did you mean 'serve'?"),
    ("chat", "gemmaspec connect"),
    ("apply", "gemmaspec up"),
    ("delete", "gemmaspec down"),
    ("describe", "gemmaspec status"),
    ("scale", "replicas"),
    ("benchmark", "gemmaspec bench"),
    ("up mine --max-model-len 8192", "--set serve.max_model_len=8192"),
    ("up mine --gpus all", "devices"),
    ("up mine -ngl 99", "option -ngl; it is a setting of llama.cpp"),
    ("up mine -c 4096", "write --set serve.max_model_len=4096, which is llama.cpp's -c"),
    ("profile new mine2 --from-command vllm serve a/b", "one word, in quotes: --from-command 'vllm serve"),
    ("profile new mine2 --from-command vllm serve a/b -tp 2", "one word, in quotes: --from-command 'vllm serve"),
    ("up gemma4:31b", "gemmaspec profile list"),
    ("download a/b", "gemmaspec pull"),
    ("port-forward mine", "gemmaspec connect"),
    ("profile ls", "gemmaspec profile list"),
    ("patch check", "gemmaspec patch verify"),
    ("up -f mine.yaml", "gemmaspec up FILE"),
    ("up mine --env A=b", "write --set env.A=b"),
    ("up mine -p 127.0.0.1:9000:8000", "write --set serve.port=9000"),
    ("up mine --replica-count 2", "write --set replicas=2"),
    ("status -o json", "--json prints JSON"),
    ("down mine -v", "gemmaspec gc"),
    ("render mine --to helm", "gemmaspec render PROFILE --to kubernetes"),
    ("up MINE", "did you mean mine?"),
    ("up Tiny-CPU --dry-run", "did you mean tiny-cpu?"),
)


FILES = (
    ("FROM gemma3:27b\nPARAMETER num_ctx 8192\n", "a Modelfile", "profile list"),
    ("model_list:\n  - model_name: a\n", "a configuration of LiteLLM", "connect litellm"),
    ("models:\n  a:\n    cmd: vllm serve a/b\n", "a configuration of llama-swap", "--from-command"),
    ("recipe_version: '1'\ncommand: vllm serve a/b\n", "a recipe of sparkrun", "--from-command"),
    ("replicaCount: 1\nimage: {tag: a}\n", "values for a Helm chart", "--from-command"),
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(tmp_path))
    (tmp_path / "mine.yaml").write_text("extends: tiny-cpu\nname: mine\n")
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize(("written", "meant"), [*KEYS, *REVIEWED], ids=[one for one, _ in (*KEYS, *REVIEWED)])
def test_a_key_of_another_tool_is_answered_by_what_it_means(
    written: str, meant: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text(f"extends: tiny-cpu\nname: mine\n{written}\n")
    assert run(["profile", "lint", str(own)]) == 2
    printed = capsys.readouterr()
    assert meant in " ".join((printed.out + printed.err).split()).replace(str(own), "")


@pytest.mark.parametrize(("line", "meant"), LINES, ids=[one for one, _ in LINES])
def test_a_command_line_of_another_tool_is_answered_by_what_it_means(
    line: str, meant: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = re.sub("^lint ", "profile lint ", line).split()
    assert run(words) == 2
    printed = capsys.readouterr()
    assert meant in " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("cap_add", "compose.override.yaml"),
        ("serviceAccount", "render PROFILE --to kubernetes"),
        ("max_logprobs", "a flag of vllm serve: serve.extra_args: [--max-logprobs, …]"),
        ("FROM", "the right name is target.model"),
        ("n_gpu_layers", "a setting of llama.cpp"),
        ("num_shard", "serve.tensor_parallel_size"),
        ("gpu_memory_utilisation", "did you mean serve.gpu_memory_utilization?"),
        ("sumary", "did you mean 'summary'?"),
        ("blorp", "gemmaspec profile schema"),
    ],
)
def test_whole_vocabularies_of_other_tools_are_known(
    key: str, meant: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text(f"extends: tiny-cpu\nname: mine\n{key}: 1\n")
    assert run(["profile", "lint", str(own)]) == 2
    assert meant in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("text", "what", "command"), FILES, ids=[what for _, what, _ in FILES])
def test_a_file_of_another_tool_is_named(
    text: str, what: str, command: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text(text)
    assert run(["up", str(own), "--dry-run"]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert what in printed
    assert command in printed


def test_what_is_meant_names_keys_that_exist() -> None:
    from gemmaspec.core.profile.foreign_words import _KEYS
    from gemmaspec.core.profile.invalid import keys_at

    for word, text in _KEYS.items():
        path = re.match(r"[a-z_.]+", text)
        assert path, word
        parts = path[0].rstrip(".").split(".")
        assert parts[-1] in {*keys_at(parts[:-1]), "enable_thinking", "extends"}, word


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ("rtx-4080", "write nvidia, and give fit its --memory"),
        ("L20", "write nvidia"),
        ("RTX A5000", "write nvidia"),
        ("mi300x", "AMD GPUs are not supported"),
        ("2xdgx-spark", "nodes: 2 is for a server on two of them"),
        ("9xh100", "a h100 has at most 8 GPUs"),
        ("rtx-509o", "the known ones are"),
    ],
)
def test_another_gpu_is_not_guessed_from_its_letters(machine: str, said: str) -> None:
    assert said in unknown_machine(machine)


@pytest.mark.parametrize("value", ["none", "off", "false"])
@pytest.mark.parametrize("key", ["draft", "speculative"])
def test_no_speculation_is_null(key: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"extends: spark-31b\nname: mine\nsummary: x\n{key}: {value}\n")
    assert run(["profile", "show", str(file)]) == 2
    assert "write speculative: null" in capsys.readouterr().err


def test_a_folder_and_an_empty_file_are_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "n.yaml").mkdir()
    (tmp_path / "m.yaml").write_text("")
    assert run(["profile", "show", str(tmp_path / "n.yaml")]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert run(["profile", "show", str(tmp_path / "m.yaml")]) == 2
    assert "the file is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exec", "docker exec"),
        ("images", "profile list"),
        ("upgrade", "uv tool upgrade"),
        ("uninstall", "uv tool uninstall"),
    ],
)
def test_what_docker_or_uv_does_is_named(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "x"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("serve: {gpu_memory_utilization: '0,85'}", "write it with a point"),
        ("serve: {max_model_len: -1}", "[--max-model-len=-1] takes what fits"),
        ("serve: {port: '8.000'}", "write it without points"),
        ("speculative: {method: nextn}", "vLLM's name for it is mtp"),
        ("devices: [/dev/nvidia0]", "devices: [0]"),
        ("patches: all", "profile lint names those"),
    ],
)
def test_a_wrong_value_that_people_write_is_told_with_what_it_means(
    text: str, said: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text(f"schema: 1\nname: own\nsummary: s\nmachine: nvidia\ntarget: {{model: a/b}}\n{text}\n")
    assert run(["profile", "lint", str(own)]) == 2
    printed = capsys.readouterr()
    assert said in " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize(("words", "said"), [("--k 0-4", "write 0,1,2,3,4"), ("--context 8k", "write 8192")])
def test_a_range_and_a_number_in_thousands_are_told_as_lists(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "tiny-cpu", *words.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"# a server\n[server]\nmodel = 'a'\n", "TOML or INI; a profile is YAML"),
        (b"HF_TOKEN=hf_x\nPORT=8000\n", "a file of variables"),
        (b"\n# mine\nexport PORT=8000\n", "a file of variables"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a picture, a PDF or an archive"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "a picture, a PDF or an archive"),
        (b"GGUF\3\0\0\0", "a model for llama.cpp"),
    ],
)
@pytest.mark.parametrize("words", [["profile", "lint"], ["profile", "new", "new", "--from-compose"]], ids=" ".join)
def test_a_file_that_is_no_yaml_is_called_what_it_is(
    content: bytes, what: str, words: list[str], own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own.with_name("other")
    file.write_bytes(content)
    assert run([*words, str(file)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"is {what}" in said.replace(str(file), "other")
    assert "try: gemmaspec profile" in said
    assert not own.with_name("new.yaml").exists()
