"""What people write for what exists: keys of vLLM's command line, Compose, Kubernetes and other tools. Pure.

The one table of foreign words: the profile's errors, `--set`, unknown options and unknown commands read it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

NEAR: Final = 0.75
"""How alike two words must be (difflib's ratio) before one is guessed from the other's letters."""

_CLUSTER: Final = "it belongs to a cluster: gemmaspec render PROFILE --to kubernetes"
_REQUEST: Final = "each request says it; serve.generation_config says where defaults come from"
_COMMAND: Final = "a command becomes a profile: gemmaspec profile new NAME --from-command 'vllm serve …'"
_COMPOSE: Final = "a Compose file becomes a profile: gemmaspec profile new NAME --from-compose FILE"
_HEALTH: Final = "a check that asks for a real token is built in"
_GPUS: Final = "serve.tensor_parallel_size says how many GPUs share a model, and devices: [0, 1] which"

_OF_COMPOSE: Final = "it belongs to Compose: add a compose.override.yaml to what gemmaspec render PROFILE writes"
_COMPOSE_KEYS: Final = (
    "cap_add", "cap_drop", "cgroup", "configs", "cpuset", "devices_cgroup", "dns", "domainname", "extends",
    "external_links", "extra_hosts", "group_add", "init", "isolation", "labels_file", "logging", "mem_limit",
    "mem_reservation", "mem_swappiness", "network_mode", "oom_kill_disable", "oom_score_adj", "pid", "pids_limit",
    "platform", "privileged", "profiles", "pull_policy", "runtime_options", "scale", "security_opt", "stdin_open",
    "stop_signal", "storage_opt", "sysctls", "tmpfs", "tty", "ulimits", "uts", "volumes_from", "working_dir",
)  # fmt: skip
_CLUSTER_KEYS: Final = (
    "apiversion", "kind", "spec", "containers", "nodeselector", "tolerations", "resources", "limits", "requests",
    "labels", "annotations", "affinity", "serviceaccount", "serviceaccountname", "imagepullsecrets",
    "imagepullpolicy", "initcontainers", "securitycontext", "configmap", "ingress", "hpa", "autoscaling",
    "minreplicas", "maxreplicas", "priorityclassname", "hostnetwork", "topologyspreadconstraints", "strategy",
    "pod", "pods",
)  # fmt: skip

_KEYS: Final[Mapping[str, str]] = {
    # vLLM's command line
    "model": "target.model", "model_id": "target.model", "model_path": "target.model", "base_model": "target.model",
    "host": "serve.bind", "listen": "serve.bind", "address": "serve.bind", "networks": "serve.bind",
    "port": "serve.port", "ports": "serve.port", "containerport": "serve.port", "hostport": "serve.port",
    "api_base": "serve.port", "base_url": "serve.port", "expose": "serve.port",
    "quantization": "target.quantization", "dtype": "serve.dtype", "revision": "target.revision",
    "max_model_length": "serve.max_model_len", "max_context": "serve.max_model_len", "ctx": "serve.max_model_len",
    "context": "serve.max_model_len", "context_length": "serve.max_model_len", "ctx_size": "serve.max_model_len",
    "n_ctx": "serve.max_model_len", "num_ctx": "serve.max_model_len", "max_seq_len": "serve.max_model_len",
    "context_window": "serve.max_model_len", "max_position_embeddings": "serve.max_model_len",
    "batch_size": "serve.max_num_seqs", "max_batch_size": "serve.max_num_seqs", "parallel": "serve.max_num_seqs",
    "max_concurrency": "serve.max_num_seqs", "num_parallel": "serve.max_num_seqs", "concurrency": "serve.max_num_seqs",
    "gpu_mem_util": "serve.gpu_memory_utilization", "gpu_memory": "serve.gpu_memory_utilization",
    "gpu_mem": "serve.gpu_memory_utilization", "mem_fraction_static": "serve.gpu_memory_utilization",
    "kv_cache": "serve.kv_cache_dtype", "kv_dtype": "serve.kv_cache_dtype", "cache_type_k": "serve.kv_cache_dtype",
    "tp": "serve.tensor_parallel_size", "tensor_parallel": "serve.tensor_parallel_size",
    "tp_size": "serve.tensor_parallel_size", "pp": "serve.pipeline_parallel_size",
    "pipeline_parallel": "serve.pipeline_parallel_size", "dp": "replicas", "data_parallel_size": "replicas",
    "served_model": "serve.served_model_name", "model_name": "serve.served_model_name",
    "alias": "serve.served_model_name", "aliases": "serve.served_model_name",
    "args": "serve.extra_args", "extra_flags": "serve.extra_args", "vllm_args": "serve.extra_args",
    "tool_call_parser": "chat.tool_call_parser", "enable_auto_tool_choice": "chat.tool_call_parser",
    "reasoning_parser": "chat.reasoning_parser", "chat_template": "chat.template",
    "enable_thinking": "chat.template_kwargs.enable_thinking", "template": "chat.template",
    "vllm": "runtime.vllm", "vllm_version": "runtime.vllm", "version": "runtime.vllm", "python": "runtime.python",
    "api_key": "pass_env: [HF_TOKEN, VLLM_API_KEY], with the key in the shell's VLLM_API_KEY",
    "from": "target.model", "num_shard": "serve.tensor_parallel_size", "max_input_length": "serve.max_model_len",
    "max_input_tokens": "serve.max_model_len", "max_total_tokens": "serve.max_model_len",
    "num_batch": "serve.max_num_batched_tokens", "n_batch": "serve.max_num_batched_tokens",
    "max_batch_prefill_tokens": "serve.max_num_batched_tokens", "flash_attn": "serve.attention_backend",
    "flash_attention": "serve.attention_backend", "threads": "cpus", "num_thread": "cpus", "n_threads": "cpus",
    # speculation
    "speculative_num_draft_tokens": "speculative.num_speculative_tokens",
    "n_draft": "speculative.num_speculative_tokens",
    "speculative_algorithm": "speculative.method", "speculative_draft_model_path": "draft.model",
    "speculative_config": "speculative, and the draft's model draft.model", "spec": "speculative",
    "speculation": "speculative", "speculative_model": "draft.model", "draft_model": "draft.model",
    "assistant_model": "draft.model", "assistant": "draft.model", "drafter": "draft.model", "spec_model": "draft.model",
    "spec_method": "speculative.method", "num_speculative_tokens": "speculative.num_speculative_tokens",
    "num_spec_tokens": "speculative.num_speculative_tokens", "spec_tokens": "speculative.num_speculative_tokens",
    "k": "speculative.num_speculative_tokens", "draft_max": "speculative.num_speculative_tokens",
    "draft_tokens": "speculative.num_speculative_tokens", "method": "speculative.method",
    # Compose and docker run
    "environment": "env", "envs": "env", "env_vars": "env", "env_file": "pass_env", "secrets": "pass_env",
    "container_name": "name", "hostname": "name", "metadata": "name", "description": "summary", "title": "summary",
    "volumes": "caches, or target.model: /FOLDER for a model in a folder", "volume": "caches", "mounts": "caches",
    "volumemounts": "caches", "hf_home": "caches.huggingface", "cache_dir": "caches.huggingface",
    "restart": "container.restarts", "restart_policy": "container.restarts", "shm_size": "container.shm_size",
    "ipc": "container.ipc", "user": "container.user", "read_only": "container.read_only",
    "stop_grace_period": "container.stop_grace_seconds", "stop_timeout": "container.stop_grace_seconds",
    "terminationgraceperiodseconds": "container.stop_grace_seconds", "max_nodes": "nodes", "min_nodes": "nodes",
    "nnodes": "nodes", "hosts": "nodes, with the machines in fleet.yaml", "patch": "patches", "gpu_ids": "devices",
    "cuda_visible_devices": "devices", "device_ids": "devices", "hardware": "machine", "device": "machine",
}  # fmt: skip
"""Word → the key that it means. Letters are compared in lower case, and hyphens as underscores."""

_SAID: Final[Mapping[str, str]] = {
    **dict.fromkeys(("gpus", "gpu", "n_gpu", "num_gpu", "num_gpus", "gpu_count", "deploy", "runtimeclassname"), _GPUS),
    **dict.fromkeys(("services", "depends_on", "build"), _COMPOSE),
    **dict.fromkeys(("command", "cmd", "entrypoint", "recipe_version", "recipe"), _COMMAND),
    **dict.fromkeys(("healthcheck", "livenessprobe", "readinessprobe", "startupprobe", "checkendpoint"), _HEALTH),
    **dict.fromkeys(_COMPOSE_KEYS, _OF_COMPOSE),
    **dict.fromkeys(_CLUSTER_KEYS, _CLUSTER),
    **dict.fromkeys(
        ("n_gpu_layers", "gpu_layers", "ngl", "main_gpu", "low_vram", "mmap", "use_mmap", "mlock", "use_mlock"),
        "it is a setting of llama.cpp; vLLM keeps the whole model on the GPU",
    ),
    "namespace": f"{_CLUSTER} --namespace NAME",
    **dict.fromkeys(
        ("temperature", "top_p", "top_k", "max_tokens", "system_prompt", "system", "stop", "repeat_penalty"),
        f"a request sets it: {_REQUEST}",
    ),
    **dict.fromkeys(
        ("ttl", "keep_alive", "unload"),
        "a server stays loaded until `gemmaspec down`; gemmaspec export llama-swap unloads idle ones",
    ),
    **dict.fromkeys(("litellm_params", "model_list"), "gemmaspec connect litellm prints what LiteLLM reads"),
}
"""Word → a sentence, where no single key says it."""

COMMANDS: Final[Mapping[str, str]] = {
    "apply": "gemmaspec up NAME", "arena": "gemmaspec share RESULT", "attach": "gemmaspec logs -f NAME",
    "benchmark": "gemmaspec bench NAME", "chat": "gemmaspec connect, or the curl command that `up` prints",
    "check": "gemmaspec profile lint NAME", "clean": "gemmaspec gc",
    "compose": "gemmaspec render NAME, or gemmaspec profile new NAME --from-compose FILE",
    "create": "gemmaspec profile new", "delete": "gemmaspec down NAME",
    "deploy": "gemmaspec up NAME, or gemmaspec render NAME --to kubernetes", "describe": "gemmaspec status NAME",
    "edit": "gemmaspec profile show NAME", "env": "gemmaspec config", "events": "gemmaspec watch",
    "exec": "gemmaspec logs NAME", "get": "gemmaspec status", "health": "gemmaspec status", "help": "gemmaspec --help",
    "images": "gemmaspec pull NAME", "info": "gemmaspec config", "init": "gemmaspec up",
    "install": "gemmaspec pull NAME",
    "kill": "gemmaspec down NAME", "launch": "gemmaspec up NAME", "lint": "gemmaspec profile lint NAME",
    "list": "gemmaspec status, or gemmaspec profile list", "load": "gemmaspec up NAME", "log": "gemmaspec logs NAME",
    "ls": "gemmaspec status, or gemmaspec profile list", "monitor": "gemmaspec top",
    "new": "gemmaspec profile new", "patches": "gemmaspec patch list", "port": "gemmaspec status NAME",
    "profiles": "gemmaspec profile list", "prune": "gemmaspec gc", "ps": "gemmaspec status",
    "recipes": "gemmaspec profile list", "rm": "gemmaspec down NAME",
    "rollout": "gemmaspec restart NAME, or gemmaspec rollback NAME", "run": "gemmaspec up NAME",
    "scale": "gemmaspec up NAME --set replicas=2", "serve": "gemmaspec up NAME", "setup": "gemmaspec up",
    "show": "gemmaspec profile show NAME", "start": "gemmaspec up NAME", "stats": "gemmaspec top",
    "stop": "gemmaspec down NAME", "swap": "gemmaspec switch FROM TO", "test": "gemmaspec smoke NAME",
    "undo": "gemmaspec rollback NAME", "unload": "gemmaspec down NAME", "update": "gemmaspec restart NAME",
    "verify": "gemmaspec patch verify", "version": "gemmaspec --version",
    "vllm": "gemmaspec profile new NAME --from-command 'vllm serve …'",
}  # fmt: skip
"""Names of commands that people know from other tools → the command here."""

_OPTIONS: Final[Mapping[str, str]] = {
    "build": "gemmaspec pull fetches everything", "force_recreate": "gemmaspec restart NAME",
    "follow": "gemmaspec logs -f NAME", "name": "gemmaspec profile new NAME --from PROFILE", "watch": "gemmaspec top",
    "speculative_config": "--set speculative.method=…, --set draft.model=…", "v": "gemmaspec --version",
    "concurrency": "--set serve.max_num_seqs=N",
}  # fmt: skip
"""Options that people know from other tools, where no key is meant."""


def key_meant(section: Iterable[str], key: str) -> str | None:
    """Return what an unknown key below a section means, as the end of a sentence; None for a word not in the table."""
    word = _word(key)
    if tuple(section) == ("speculative",) and word == "model":
        return "the right name is draft.model"
    if word in _KEYS and (*section, key) != tuple(_KEYS[word].split(".")):
        return f"the right name is {_KEYS[word]}"
    return _SAID.get(word)


def option_meant(option: str, value: str | None, fields: Iterable[str]) -> str | None:
    """Return what an unknown option means; `fields` are the flags of `vllm serve` that are keys of `serve`."""
    word = _word(option.lstrip("-"))
    if word in _OPTIONS:
        return _OPTIONS[word]
    key = _KEYS.get(word) or (f"serve.{word}" if word in set(fields) else None)
    if key and " " not in key and "," not in key:
        return f"--set {key}={value or '…'}"
    return key or _SAID.get(word)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word with the same letters, whatever their case, or else one that is near."""
    names = {_word(one): one for one in known}
    near = difflib.get_close_matches(_word(word), list(names), n=1, cutoff=NEAR)
    return names[near[0]] if near else None


def _word(text: str) -> str:
    return text.strip().lower().replace("-", "_")


def foreign_file(text: str) -> tuple[str, str] | None:
    """Return what a file is instead of a profile, and the command for it; None for one that may be a profile."""
    found = set(re.findall(r"^([A-Za-z]+):", text, re.MULTILINE))
    if "services" in found:
        return "a Compose file", "gemmaspec profile new NAME --from-compose {file}"
    if {"apiVersion", "kind"} <= found:
        return (
            "a Kubernetes object; gemmaspec writes those from a profile (render PROFILE --to kubernetes)",
            "gemmaspec profile new NAME --from-command 'vllm serve …'",
        )
    if re.search(r"^(?:sudo |[A-Z_]+=\S+ )*(?:vllm serve|docker run)\s", text, re.MULTILINE) and "target" not in found:
        return "a command, not a profile", 'gemmaspec profile new NAME --from-command "$(cat {file})"'
    return None
