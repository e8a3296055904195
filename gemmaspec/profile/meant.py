"""What people write for what exists: keys of vLLM's command line, Compose, Kubernetes and other tools. Pure.

The one table of foreign words: the profile's errors, `--set`, unknown options and unknown commands read it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from gemmaspec.profile.machines import MACHINES

NEAR: Final = 0.75
"""How alike two words must be (difflib's ratio) before one is guessed from the other's letters."""

_CLUSTER: Final = "it belongs to a cluster: gemmaspec render PROFILE --to kubernetes"
_REQUEST: Final = "each request sets it, and serve.generation_config says where defaults come from"
_COMMAND: Final = "a command becomes a profile: gemmaspec profile new NAME --from-command 'vllm serve …'"
_COMPOSE: Final = "a Compose file becomes a profile: gemmaspec profile new NAME --from-compose FILE"
_HEALTH: Final = "a check that asks for a real token is built in"
_GPUS: Final = "serve.tensor_parallel_size says how many GPUs share a model, and devices: [0, 1] which"

_OF_COMPOSE: Final = "it belongs to Compose: add a compose.override.yaml to what gemmaspec render PROFILE writes"
_LITELLM: Final = "it belongs to LiteLLM: gemmaspec connect litellm prints what that reads"
_SWAP: Final = "it belongs to llama-swap: gemmaspec export llama-swap prints its configuration"
_VARIABLE: Final = "a variable of the environment is written as env: {{{0}: …}}, a secret as pass_env: [{0}]"
_COMPOSE_KEYS: Final = """
    annotations attach blkio_config cap_add cap_drop cgroup cgroup_parent configs cpu_count cpu_percent cpu_period
    cpu_quota cpu_rt_period cpu_rt_runtime cpu_shares cpuset credential_spec develop device_cgroup_rules dns dns_opt
    dns_search domainname driver_opts extends external_links extra_hosts group_add init isolation label_file
    labels_file links logging mac_address mem_limit mem_reservation mem_swappiness memswap_limit network_mode
    oom_kill_disable oom_score_adj pid pids_limit platform post_start pre_stop privileged profiles provider pull_policy
    runtime_options scale security_opt stdin_open stop_signal storage_opt sysctls tmpfs tty ulimits use_api_socket
    userns_mode uts volumes_from working_dir
"""
"""The attributes of a service in the Compose specification that no key of a profile has."""
_CLUSTER_KEYS: Final = """
    apiversion kind spec containers nodeselector tolerations resources limits requests labels affinity serviceaccount
    serviceaccountname initcontainers securitycontext configmap ingress hpa autoscaling strategy pod pods service
    lifecycle pvc persistence storage sidecars
"""
"""Keys of Kubernetes and of charts in one word; one in camelCase is recognised by its form."""
_REQUEST_KEYS: Final = """
    temperature top_p top_k min_p typical_p max_tokens max_new_tokens num_predict n_predict system_prompt system stop
    repeat_penalty repeat_last_n presence_penalty frequency_penalty repetition_penalty mirostat mirostat_eta
    mirostat_tau tfs_z logit_bias
"""
_LITELLM_KEYS: Final = """
    litellm_params model_list model_info litellm_settings general_settings router_settings environment_variables
    fallbacks rpm tpm drop_params
"""
_SWAP_KEYS: Final = """
    proxy groups group swap exclusive macros hooks peers matrix start_port use_model_name cmd_stop
    concurrency_limit log_to_stdout metrics_max_in_memory send_loading_state unlisted filters global_ttl
    include_aliases_in_list
"""

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
    "vllm": "runtime.vllm", "vllm_version": "runtime.vllm", "python": "runtime.python",
    "api_key": "pass_env: [HF_TOKEN, VLLM_API_KEY], with the key in the shell's VLLM_API_KEY",
    "master_key": "pass_env: [HF_TOKEN, VLLM_API_KEY], with the key in the shell's VLLM_API_KEY",
    **dict.fromkeys(("hf_token", "token", "huggingface_token"), "pass_env: [HF_TOKEN], with the token in the shell"),
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
    **dict.fromkeys(("draft_model_path", "model_draft", "draft_model_id", "draft_path", "md"), "draft.model"),
    **dict.fromkeys(("base", "parent", "inherits", "inherit", "include"), "extends"),
    **dict.fromkeys(
        ("max_running_requests", "max_num_requests", "max_concurrent_requests", "num_slots", "n_parallel"),
        "serve.max_num_seqs",
    ),
    "spec_method": "speculative.method", "num_speculative_tokens": "speculative.num_speculative_tokens",
    "num_spec_tokens": "speculative.num_speculative_tokens", "spec_tokens": "speculative.num_speculative_tokens",
    "k": "speculative.num_speculative_tokens", "draft_max": "speculative.num_speculative_tokens",
    "draft_tokens": "speculative.num_speculative_tokens", "n_max": "speculative.num_speculative_tokens",
    "draft_n_max": "speculative.num_speculative_tokens", "method": "speculative.method",
    **dict.fromkeys(
        ("speculative_num_steps", "max_draft_len", "num_nextn_predict_layers", "draft_n", "draft_len", "draft_length"),
        "speculative.num_speculative_tokens",
    ),
    "models": "target.model; a profile serves one, and gemmaspec up B --instead-of A changes between two",
    "replica_count": "replicas", "min_replicas": "replicas", "max_replicas": "replicas", "model_url": "target.model",
    "repository": "image", "image_pull_policy": "image; a digest in it says exactly what is pulled",
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
    **dict.fromkeys(_COMPOSE_KEYS.split(), _OF_COMPOSE),
    **dict.fromkeys(_CLUSTER_KEYS.split(), _CLUSTER),
    **dict.fromkeys(_REQUEST_KEYS.split(), _REQUEST),
    **dict.fromkeys(_LITELLM_KEYS.split(), _LITELLM),
    **dict.fromkeys(_SWAP_KEYS.split(), _SWAP),
    **dict.fromkeys(("gpus", "gpu", "n_gpu", "num_gpu", "num_gpus", "gpu_count", "deploy", "runtimeclassname"), _GPUS),
    **dict.fromkeys(("request_gpu", "nvidia.com/gpu", "amd.com/gpu", "device_requests"), _GPUS),
    **dict.fromkeys(("services", "depends_on", "build"), _COMPOSE),
    **dict.fromkeys(("command", "cmd", "entrypoint", "recipe_version", "recipe", "sparkrun_version"), _COMMAND),
    **dict.fromkeys(("defaults", "pre_exec", "post_exec", "post_commands"), _COMMAND),
    "version": "a profile begins with schema: 1, and runtime.vllm names a release of vLLM",
    **dict.fromkeys(("enabled", "enable", "disabled", "disable"), "speculative: null, or --no-spec, drafts nothing"),
    "swap_space": "no release of vLLM that runs Gemma 4 has it; remove it",
    "mods": "a change of vLLM is a patch: gemmaspec patch list",
    **dict.fromkeys(("solo", "solo_only", "cluster_only"), "nodes says on how many machines a model runs"),
    **dict.fromkeys(
        ("healthcheck", "livenessprobe", "readinessprobe", "startupprobe", "health_check_timeout"), _HEALTH
    ),
    "check_endpoint": _HEALTH,
    **dict.fromkeys(
        ("n_gpu_layers", "gpu_layers", "ngl", "main_gpu", "low_vram", "mmap", "use_mmap", "mlock", "use_mlock"),
        "it is a setting of llama.cpp; vLLM keeps the whole model on the GPU",
    ),
    **dict.fromkeys(("adapter", "adapters", "lora", "loras"), "it is a flag: serve.extra_args: [--lora-modules, …]"),
    **dict.fromkeys(
        ("speculative_eagle_topk", "draft_min", "draft_p_min", "draft_p_split"),
        "vLLM drafts one chain, speculative.num_speculative_tokens long",
    ),
    "namespace": f"{_CLUSTER} --namespace NAME",
    **dict.fromkeys(
        ("ttl", "keep_alive", "unload"),
        "a server stays loaded until `gemmaspec down`; gemmaspec export llama-swap unloads idle ones",
    ),
}
"""Word → a sentence, where no single key says it."""

_COMMANDS: Final[Mapping[str, str]] = {
    "gemmaspec up NAME": "apply deploy launch load run serve start setup init resume unpause replace",
    "gemmaspec down NAME": "delete destroy kill pause remove rm stop suspend teardown unload",
    "gemmaspec status": "get health port ps running",
    "gemmaspec status NAME": "describe",
    "gemmaspec restart NAME": "reload update",
    "gemmaspec restart NAME --set KEY=VALUE": "annotate label set",
    "gemmaspec rollback NAME": "revert undo",
    "gemmaspec rollback --list NAME": "history",
    "gemmaspec logs NAME": "debug log tail",
    "gemmaspec logs -f NAME": "attach",
    "docker exec -it gemmaspec-NAME-vllm-1 bash": "shell ssh exec bash sh",
    "uv tool upgrade gemmaspec": "upgrade self-update",
    "uv tool uninstall gemmaspec": "uninstall",
    "gemmaspec profile list, or docker images": "image images",
    "gemmaspec top": "monitor stats",
    "gemmaspec watch": "events",
    "gemmaspec pull NAME": "build download fetch install prefetch sync",
    "gemmaspec profile list": "catalog find models profiles recipe recipes registry search",
    "gemmaspec profile show NAME": "cat edit show view",
    "gemmaspec profile lint NAME": "check lint validate",
    "gemmaspec profile new": "add create new",
    "gemmaspec profile new NAME --from PROFILE": "clone copy cp rename tag",
    "gemmaspec profile new NAME --from-command 'vllm serve …'": "vllm import",
    "gemmaspec render NAME": "convert template",
    "gemmaspec render NAME --to kubernetes": "helm k8s kubectl kubernetes kustomize manifest manifests",
    "gemmaspec up NAME --set replicas=2": "autoscale scale",
    "gemmaspec connect": "client expose endpoint port-forward proxy url",
    "gemmaspec doctor NAME": "collect-env diagnose",
    "gemmaspec doctor NAME --fleet": "cluster cluster-info hosts node nodes",
    "gemmaspec smoke NAME": "eval test",
    "gemmaspec bench NAME": "benchmark run-batch speed",
    "gemmaspec fit NAME": "estimate memory size",
    "gemmaspec up B --instead-of A": "swap switch",
    "gemmaspec patch list": "patches",
    "gemmaspec patch verify": "verify",
    "gemmaspec doctor": "config env info",
    "gemmaspec gc": "cache clean container prune rmi system volume volumes",
    "gemmaspec --help": "docs help man",
    "gemmaspec --version": "version",
    "gemmaspec --install-completion": "completion",
    "gemmaspec status, or gemmaspec profile list": "list ls",
    "gemmaspec restart NAME, or gemmaspec rollback NAME": "rollout",
    "gemmaspec connect, or the curl command that `up` prints": "chat complete",
    "gemmaspec render NAME, or gemmaspec profile new NAME --from-compose FILE": "compose docker docker-compose",
    "gemmaspec up NAME, with HF_TOKEN in the shell": "login signin whoami",
    "gemmaspec restart NAME --set speculative.num_speculative_tokens=N": "k",
}
COMMANDS: Final = {word: command for command, words in _COMMANDS.items() for word in words.split()}
"""Names of commands that people know from other tools → the command here."""
COMMANDS["deploy"] = "gemmaspec up NAME, or gemmaspec render NAME --to kubernetes"
WITHIN: Final[Mapping[str, str]] = {
    "list": "get index ls ps search", "show": "cat describe edit inspect view", "lint": "check test validate verify",
    "new": "add clone copy cp create init", "verify": "check lint test validate", "export": "diff write",
}  # fmt: skip
"""The command of a group → names that people try in its place."""

_OPTIONS: Final[Mapping[str, str]] = {
    "build": "gemmaspec pull fetches everything", "force_recreate": "gemmaspec restart NAME starts it again",
    "follow": "gemmaspec logs -f NAME follows a log", "watch": "gemmaspec top shows servers live",
    "name": "gemmaspec profile new NAME --from PROFILE gives a name", "v": "gemmaspec --version prints the version",
    "speculative_config": "--set speculative.method=…, --set draft.model=…",
    "concurrency": "--set serve.max_num_seqs=N",
    **dict.fromkeys(("o", "output", "format"), "--json prints JSON"),
    **dict.fromkeys(("f", "file", "profile", "recipe"), "a file stands in place of a name: gemmaspec up FILE"),
    **dict.fromkeys(("a", "all", "all_namespaces"), "gemmaspec status without a name shows every server"),
    **dict.fromkeys(("since", "until", "timestamps", "t"), "gemmaspec logs -n 100 NAME prints the last lines"),
    **dict.fromkeys(("volumes", "rmi", "remove_orphans"), "models and logs are kept; gemmaspec gc frees disk space"),
    "down v": "models and logs are kept; gemmaspec gc frees disk space",
    **dict.fromkeys(("e", "env"), "--set env.{0}"), **dict.fromkeys(("p", "publish"), "--set serve.port={0}"),
}  # fmt: skip
"""Options that people know from other tools, where no key is meant; after the name of a command: for that one."""
_MACHINES: Final = {"gb10": "dgx-spark", "spark": "dgx-spark", "5090": "rtx-5090", "pro6000": "rtx-pro-6000"}
"""Other names of machines and their GPUs."""
_PREFIXES: Final = ("ollama", "llamaarg", "dockercompose")


def key_meant(section: Iterable[str], key: str) -> str | None:
    """Return what an unknown key below a section means, as the end of a sentence; None for a word not in the table."""
    if tuple(section) == ("speculative",) and _word(key) == "model":
        return "the right name is draft.model"
    path = _find(_KEYS, key)
    if path and (*section, key) != tuple(path.split(".")):
        return f"the right name is {path}"
    return _OF_COMPOSE if key.startswith("x-") else _find(_SAID, key)


def form_meant(key: str) -> str | None:
    """Return what a key that no table has is by its form: a variable, a setting of another tool; None for no such."""
    if key.isupper() and "_" in key:
        return _VARIABLE.format(key)
    if key.endswith("_settings"):
        return _LITELLM
    return _CLUSTER if re.fullmatch(r"[a-z]+(?:[A-Z][a-z0-9]*)+|[\w.-]+\.\w+/[\w.-]+", key) else None


def option_meant(option: str, value: str | None, fields: Mapping[str, Iterable[str]], command: str = "") -> str | None:
    """Return what an unknown option means, as the end of a sentence; `fields` are keys of profiles by their section."""
    said = _find(_OPTIONS, f"{command} {option.lstrip('-')}") or _find(_OPTIONS, option)
    if said and "{0}" in said:
        port = (value or "").split(":")[-2:][0] or "NUMBER"
        return "write " + said.format((value or "NAME=VALUE") if "env" in said else port)
    if said:
        return f"write {said}" if said.startswith("--set") else said
    path = _find(_KEYS, option)
    for section, names in fields.items():
        if not path and (name := same(option, names)):
            path = f"{section}.{name}" if section else name
    if path and " " not in path and "," not in path:
        return f"write --set {path}={value or '…'}"
    return path or _find(_SAID, option)


def same(word: str, known: Iterable[str]) -> str | None:
    """Return the known word with the same letters, whatever their case and what is between them."""
    return next((one for one in known if _word(one) == _word(word)), None)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word with the same letters, or else one that is near."""
    names = {_word(one): one for one in known}
    near = difflib.get_close_matches(_word(word), list(names), n=1, cutoff=NEAR)
    return names[near[0]] if near else None


def _find(table: Mapping[str, str], key: str) -> str | None:
    """Return what a table has for a word, also after the prefix of another tool's variables."""
    names = {_word(one): meaning for one, meaning in table.items()}
    word = _word(key)
    found = (names.get(word.removeprefix(prefix)) for prefix in ("", *_PREFIXES))
    return next((one for one in found if one), None)


def _word(text: str) -> str:
    return re.sub(r"[-_\s]", "", text.lower())


_FROM_COMMAND: Final = "gemmaspec profile new NAME --from-command 'vllm serve …'"


def foreign_file(text: str) -> tuple[str, str] | None:
    """Return what a file is instead of a profile, and the command for it; None for one that may be a profile."""
    found = set(re.findall(r"^(\w+):", text, re.MULTILINE))
    if "services" in found:
        return "a Compose file", "gemmaspec profile new NAME --from-compose {file}"
    if {"apiVersion", "kind"} <= found:
        made = "a Kubernetes object; gemmaspec writes those from a profile (render PROFILE --to kubernetes)"
        return made, _FROM_COMMAND
    if "model_list" in found:
        return "a configuration of LiteLLM", "gemmaspec connect litellm"
    if "models" in found and re.search(r"^\s+cmd:", text, re.MULTILINE):
        return "a configuration of llama-swap, whose commands become profiles one by one", _FROM_COMMAND
    if "target" in found or "extends" in found:
        return None
    if "recipe_version" in found or {"container", "command"} <= found:
        return "a recipe of sparkrun, whose command becomes a profile", _FROM_COMMAND
    if "replicaCount" in found or {"image", "resources"} <= found:
        return "a file of values for a Helm chart; gemmaspec writes objects for a cluster from a profile", _FROM_COMMAND
    if re.search(r"^(?:sudo |[A-Z_]+=\S+ )*(?:vllm serve|docker run)\s", text, re.MULTILINE):
        return "a command, not a profile", 'gemmaspec profile new NAME --from-command "$(cat {file})"'
    if re.search(r"^FROM \S", text, re.MULTILINE):
        return "a Modelfile or a Dockerfile; a profile names a model of the Hub", "gemmaspec profile list"
    return None


def unknown_machine(text: str, also: Iterable[str] = ()) -> str:
    """Return the sentence about an unknown machine, with the one that another spelling or a GPU's name means.

    `also`: what else could have been given.
    """
    word = _word(text).removeprefix("nvidia").removeprefix("geforce")
    near = nearest(text, MACHINES)
    if near and word.startswith("rtxa"):
        near = None  # an RTX A6000 is older than an RTX PRO 6000
    if near and re.findall("[0-9]+", near) != re.findall("[0-9]+", text):
        near = None  # a 4090 differs from a 5090
    if meant := _MACHINES.get(word) or same(word, MACHINES) or near:
        return f"unknown machine {text!r}; did you mean {meant}?"
    if re.match(r"amd|mi[0-9]{2,3}|radeon|rx[0-9]|instinct", word):
        return f"unknown machine {text!r}; AMD GPUs are not supported, only NVIDIA GPUs and CPUs"
    known = f"the known ones are {', '.join((*MACHINES, *also))}"
    if re.fullmatch(r"(?:rtx|gtx|tesla|quadro|titan|[abhltv]|gb|rtxa)?[0-9]{1,4}[a-z]{0,6}", word):
        return (
            f"unknown machine {text!r}; for another NVIDIA GPU write nvidia, and give fit its --memory in GB; {known}"
        )
    return f"unknown machine {text!r}; {known}"
