"""The `vllm serve` command line and the speculative-config JSON, from typed fields only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from gemmaspec.launcher import range_contains
from gemmaspec.profile.command import extra_of
from gemmaspec.profile.model import Profile, Serve
from gemmaspec.profile.runs import vllm_of
from gemmaspec.stack.paths import Paths, is_local

_UNLOGGED: Final = "--disable-access-log-for-endpoints"
_UNLOGGED_IN: Final = ">=0.19.0"
"""vLLM 0.19.0 has the flag, and it changes nothing else (get_uvicorn_log_config in vllm/entrypoints, to 0.33.0)."""
_ORIGINS: Final = "--allowed-origins"
_ANY_ORIGIN: Final = ">=0.19.0,<0.32.0"
"""Releases that let a page of any site read answers unless told otherwise (allowed_origins in vllm/entrypoints)."""
_NOT_FLAGS: Final = {"bind", "port", "served_model_name", "extra_args"}


def serve_command(profile: Profile, paths: Paths) -> tuple[str, ...]:
    """Return `vllm serve …` without `--speculative-config`, which the launcher adds from its file."""
    return (
        *("vllm", "serve", paths.target, "--host", paths.host, "--port", str(profile.serve.port)),
        *_model_flags(profile),
        *_serve_flags(profile.serve),
        *_chat_flags(profile, paths),
        *_log_flags(profile),
        *_origin_flags(profile),
        *profile.serve.extra_args,
    )


def speculative_config(profile: Profile, paths: Paths) -> dict[str, Any] | None:
    """Return vLLM's SpeculativeConfig as data; None if the target runs without speculation."""
    spec = profile.speculative
    if not spec:
        return None
    config: dict[str, Any] = {"method": spec.method}
    if profile.draft:
        config["model"] = paths.draft
        config |= {"revision": profile.draft.revision, "quantization": profile.draft.quantization}
    config |= spec.model_dump(exclude={"method", "k_by_requests"})
    if spec.k_by_requests:
        config["num_speculative_tokens_per_batch_size"] = spec.k_table
    return {key: value for key, value in config.items() if value is not None}


def served_model(profile: Profile, paths: Paths) -> str:
    """Return the name that requests use."""
    return profile.serve.served_model_name or paths.target


def _model_flags(profile: Profile) -> Iterator[str]:
    # Always name a model that is not a path: offline, vLLM replaces its id with a path and serves it by that name.
    if profile.serve.served_model_name or not is_local(profile.target.model):
        yield from ("--served-model-name", profile.serve.served_model_name or profile.target.model)
    if profile.target.revision:
        yield from ("--revision", profile.target.revision)
    if profile.target.quantization:
        yield from ("--quantization", profile.target.quantization)


def _serve_flags(serve: Serve) -> Iterator[str]:
    for name, value in serve.model_dump(exclude=_NOT_FLAGS).items():
        flag = name.replace("_", "-")
        if value is True:
            yield f"--{flag}"
        elif value is False:
            yield f"--no-{flag}"
        elif value is not None:
            yield from (f"--{flag}", _argument(value))


def _chat_flags(profile: Profile, paths: Paths) -> Iterator[str]:
    chat = profile.chat
    if paths.template:
        yield from ("--chat-template", paths.template)
    if chat.content_format:
        yield from ("--chat-template-content-format", chat.content_format)
    if chat.template_kwargs:
        yield from ("--default-chat-template-kwargs", _argument(chat.template_kwargs))
    if chat.reasoning_parser:
        yield from ("--reasoning-parser", chat.reasoning_parser)
    if chat.tool_call_parser:
        yield from ("--enable-auto-tool-choice", "--tool-call-parser", chat.tool_call_parser)


def _log_flags(profile: Profile) -> Iterator[str]:
    """Yield what keeps requests that ask every second, such as those of `watch`, out of the access log."""
    vllm = vllm_of(profile)
    if not vllm or not range_contains(_UNLOGGED_IN, vllm):
        return
    if not extra_of(profile).given(_UNLOGGED, "--disable-uvicorn-access-log", "--log-config-file"):
        yield from (_UNLOGGED, "/health,/metrics")


def _origin_flags(profile: Profile) -> Iterator[str]:
    """Yield what keeps pages of other sites, opened in a browser on this machine, from reading answers."""
    vllm = vllm_of(profile)
    if vllm and range_contains(_ANY_ORIGIN, vllm) and not extra_of(profile).given(_ORIGINS):
        yield from (_ORIGINS, "[]")


def _argument(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
