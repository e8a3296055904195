"""What may be taken over from somebody else's command or Compose file without a question. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Any, Final

_HARMLESS: Final = re.compile(
    r"CUDA_(?:VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING|MODULE_LOADING|DEVICE_MAX_CONNECTIONS)|NVIDIA_VISIBLE_DEVICES"
    r"|NVIDIA_DRIVER_CAPABILITIES|(?:OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS|PYTORCH_(?:CUDA_)?ALLOC_CONF|TZ|LANG|LC_ALL"
    r"|NCCL_(?:DEBUG|P2P_DISABLE|P2P_LEVEL|IB_DISABLE|IB_HCA|SHM_DISABLE|SOCKET_IFNAME|ALGO|PROTO|NVLS_ENABLE|CUMEM_ENABLE"
    r"|MIN_NCHANNELS|MAX_NCHANNELS|IGNORE_DISABLED_P2P)|(?:GLOO|TP)_SOCKET_IFNAME|HF_HUB_(?:OFFLINE|ENABLE_HF_TRANSFER|DISABLE_XET)"
    r"|HF_XET_HIGH_PERFORMANCE|TRANSFORMERS_OFFLINE|TOKENIZERS_PARALLELISM|TORCHINDUCTOR_(?:AUTOGRAD_CACHE|FX_GRAPH_CACHE|COMPILE_THREADS|MAX_AUTOTUNE)|TORCH_CUDA_ARCH_LIST|TORCH_COMPILE_DISABLE|TORCHDYNAMO_DISABLE|SAFETENSORS_FAST_GPU"
    r"|VLLM_(?:USE_V1|ATTENTION_BACKEND|LOGGING_LEVEL|LOG_STATS_INTERVAL|FLASH_ATTN_VERSION|TARGET_DEVICE"
    r"|WORKER_MULTIPROC_METHOD|NO_USAGE_STATS|DO_NOT_TRACK|ENGINE_ITERATION_TIMEOUT_S"
    r"|ENGINE_READY_TIMEOUT_S|RPC_TIMEOUT|SLEEP_WHEN_IDLE|MARLIN_USE_ATOMIC_ADD|ALLREDUCE_USE_SYMM_MEM"
    r"|ALLOW_LONG_MAX_MODEL_LEN|FUSED_MOE_CHUNK_SIZE|SKIP_P2P_CHECK|NVFP4_GEMM_BACKEND)"
)
"""Variables that are neither secrets nor ways to run code: devices, threads, links, log levels, kernels of vLLM."""
_KINDS: Final = re.compile(r"VLLM_(?:USE|ENABLE|DISABLE|CPU|FLASHINFER|MXFP4)_\w+")  # if vLLM reads it
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:%+ -]{0,64}")
"""A value without a path, an address or a line."""
_RUNS: Final = re.compile(
    r"LD_.*|DYLD_.*|PYTHON.*|BASH_ENV|ENV|SHELLOPTS|PATH|GCONV_PATH|VLLM_.*PLUGIN.*|VLLM_.*(?:INSECURE|PICKLE|DEV_MODE).*"
    r"|VLLM_(?:LOGGING_CONFIG_PATH|RUNTIME_LORA.*|ALLOW_RUNTIME.*|USE_MODELSCOPE|XLA_.*)|TRITON_.*|TORCH.*|CUDA_INJECTION.*"
    r"|NCCL_(?:NET|TUNER|PROFILER|ENV|CONF)\w*|CC|CXX|CUDA_HOME|NVCC.*|.*_PROXY|.*INDEX.*|(?:HF|HUGGINGFACE)\w*_ENDPOINT"
    r"|GIT_.*|PIP_.*|UV_.*|TRANSFORMERS_CACHE|HF_MODULES_CACHE|HOME|SHELL",
    re.IGNORECASE,
)
"""Variables that decide which code runs, or where it is fetched."""
_CODE: Final = re.compile(
    r"--.*(?:plugin|middleware|logits-processors|trust-remote|hf-overrides|transfer-config|insecure|ssl-|allowed-local"
    r"|allowed-media|additional-config|compilation-config|model-loader-extra|profiler).*|--.*-cls|--.*-dir"
    r"|--.*-path|--tokenizer|--model-impl|--root-path"
)
"""Flags of vLLM that name code, a file or a folder."""
_MODULE: Final = re.compile(r"[A-Za-z_]\w*(?:[.:][A-Za-z_]\w*)+")
"""The name of something in a Python module."""


CODE: Final = "it decides which code or file the server uses; read what it names, then set {0} yourself"
"""Why something that may run code is left out."""


def is_harmless(name: str, value: str, of_vllm: Container[str]) -> bool:
    """Return whether a variable is known, itself or as one of vLLM, to hold no secret and run nothing, and is plain."""
    known = _HARMLESS.fullmatch(name) or (name in of_vllm and _KINDS.fullmatch(name))
    return bool(known) and _PLAIN.fullmatch(value) is not None


def runs_code(name: str) -> bool:
    """Return whether a variable decides which code a server runs, or where it is fetched."""
    return _HARMLESS.fullmatch(name) is None and _RUNS.fullmatch(name) is not None


def names_code(flag: str, keys: Sequence[str], value: Any) -> bool:
    """Return whether a flag, or a key of its value, makes the server run code or read a file that another one named."""
    inside = [f"--{key.replace('_', '-')}" for key in keys]
    if any(map(_CODE.fullmatch, (flag, *inside))):
        return True
    if isinstance(value, dict):
        return any(names_code(flag, (*keys, str(key)), one) for key, one in value.items())
    if isinstance(value, list):
        return any(names_code(flag, keys, one) for one in value)
    return bool(keys) and isinstance(value, str) and is_module(value)


def is_module(value: str | None) -> bool:
    """Return whether a value names something in a Python module, which vLLM would import."""
    return value is not None and _MODULE.fullmatch(value) is not None


def has_credentials(value: str | None) -> bool:
    """Return whether a value is an address with a user or a password in it."""
    return value is not None and re.search(r"://[^/\s]*@", value) is not None
