"""The `vllm serve` command line and the speculative-config JSON, from typed fields only.
The files of the watch in a container: the modules that it runs, and its settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core import data, draft_ids
from gemmaspec.core.launcher import range_contains
from gemmaspec.core.profile.command import Command, extra_of, text_of, vllm_of
from gemmaspec.core.profile.model import Profile, Serve
from gemmaspec.run.stack.paths import Paths, is_local

_UNLOGGED: Final = "--disable-access-log-for-endpoints"
_UNLOGGED_IN: Final = ">=0.19.0"
"""vLLM 0.19.0 has the flag, and it changes nothing else (get_uvicorn_log_config in vllm/entrypoints, to 0.33.0)."""
_ORIGINS: Final = "--allowed-origins"
_ANY_ORIGIN: Final = ">=0.19.0,<0.32.0"
"""Releases that let a page of any site read answers unless told otherwise (allowed_origins in vllm/entrypoints)."""
_NOT_FLAGS: Final = {"bind", "port", "served_model_name", "extra_args"}


@dataclass(frozen=True, kw_only=True)
class Served:
    """How vLLM serves a profile at some paths, which a stack's files, its container, its ranks and its record share."""

    paths: Paths
    model: str
    """The name that requests use."""
    speculative: Mapping[str, Any] | None
    """vLLM's SpeculativeConfig; None if the target runs without speculation."""
    command: tuple[str, ...]
    """`vllm serve …` without `--speculative-config`, which the launcher adds from its file."""
    extra: Command
    """What `serve.extra_args` give."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which patched code finds files of the stack."""
        ids = self.paths.draft_ids
        return {draft_ids.VARIABLE: ids} if ids else {}


def served_at(profile: Profile, paths: Paths) -> Served:
    """Return how a profile is served where vLLM sees these paths."""
    return Served(
        paths=paths,
        model=served_model(profile, paths),
        speculative=speculative_config(profile, paths),
        command=serve_command(profile, paths),
        extra=extra_of(profile),
    )


def serve_command(profile: Profile, paths: Paths) -> tuple[str, ...]:
    """Return `vllm serve …` without `--speculative-config`, which the launcher adds from its file."""
    start = ("vllm", "serve", paths.target, "--host", paths.host, "--port", str(profile.serve.port))
    return (
        *start,
        *_model_flags(profile),
        *_serve_flags(profile.serve),
        *_chat_flags(profile, paths),
        *_guarding_flags(profile),
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
            yield from (f"--{flag}", text_of(value))


def _chat_flags(profile: Profile, paths: Paths) -> Iterator[str]:
    chat = profile.chat
    if paths.template:
        yield from ("--chat-template", paths.template)
    if chat.content_format:
        yield from ("--chat-template-content-format", chat.content_format)
    if chat.template_kwargs:
        yield from ("--default-chat-template-kwargs", text_of(chat.template_kwargs))
    if chat.reasoning_parser:
        yield from ("--reasoning-parser", chat.reasoning_parser)
    if chat.tool_call_parser:
        yield from ("--enable-auto-tool-choice", "--tool-call-parser", chat.tool_call_parser)


def _guarding_flags(profile: Profile) -> Iterator[str]:
    """Yield what a release needs and the profile does not give.

    It keeps requests that ask every second, such as those of `watch`, out of the access log, and pages of other sites,
    opened in a browser on this machine, from reading answers.
    """
    vllm, given = vllm_of(profile), extra_of(profile).given
    if vllm is None:
        return
    if range_contains(_UNLOGGED_IN, vllm) and not given(_UNLOGGED, "--disable-uvicorn-access-log", "--log-config-file"):
        yield from (_UNLOGGED, "/health,/metrics")
    if range_contains(_ANY_ORIGIN, vllm) and not given(_ORIGINS):
        yield from (_ORIGINS, "[]")


FOLDER: Final = "watch"
"""Of the stack's folder; mounted at /watch."""
IN_CONTAINER: Final = "/watch"
SERVICE: Final = "watch"
SHARED: Final = "/run/gemmaspec-watch"
"""What the watch writes, in memory: what it knows."""
VERDICT: Final = f"{SHARED}/watch.json"
WEBHOOK: Final = "GEMMASPEC_WEBHOOK"
USER: Final = 65534
"""uid and gid of the watch: nobody, whoever the server is."""
SETTINGS: Final = f"{FOLDER}/settings.json"
MODULES: Final = {f"{FOLDER}/{name}": file for name, file in data.SIDECAR.items()}
WATCH_FILES: Final = (SETTINGS, *MODULES)


def watch_files(profile: Profile, model: str) -> Mapping[str, str]:
    """Return the files of the watch of a profile's server, by name; `model` is what requests call it."""
    settings = {
        "schema": 1,
        "stack": profile.name,
        "address": f"http://vllm:{profile.serve.port}",
        "model": model,
        "drafts_always": profile.drafts_always,
        # Only what runs beside the server on its host can run a hook, or end a server whose memory runs out.
        "watch": profile.watch.model_dump(exclude={"container", "hook", "memory_guard"}),
    }
    modules = {name: file.read_text(encoding="utf-8") for name, file in MODULES.items()}
    return {**modules, SETTINGS: json.dumps(settings, indent=2, ensure_ascii=False) + "\n"}
