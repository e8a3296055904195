"""Open a local or remote checkpoint, and describe it without reading weights."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Final

from gemmaspec.core.checkpoint.config import describe
from gemmaspec.core.checkpoint.fields import Fields, load_object
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.published.shipped import shipped_checkpoint
from gemmaspec.core.checkpoint.quantization import declared
from gemmaspec.core.checkpoint.tokens import FIRST_PIECE, added_tokens, named_tokens
from gemmaspec.core.errors import CheckpointError, EnvironmentMissing
from gemmaspec.core.files import UnreadableFile, read_regular
from gemmaspec.run.models.files import CheckpointFiles, whole
from gemmaspec.run.models.folder import Folder
from gemmaspec.run.models.hub import Unreachable, on_hub
from gemmaspec.run.models.hub_cache import cached_snapshot, is_commit
from gemmaspec.run.models.weight_files import other_weights, weight_files
from gemmaspec.run.models.weights import read_tensors
from gemmaspec.run.stack.paths import is_local

CONFIG_LIMIT: Final = 4 * 2**20
TOKENIZER_CONFIG_LIMIT: Final = 1_300_000
"""Bytes. Older exports list 6,000 unused tokens in tokenizer_config.json, 1.1 MB; a larger one is not read."""
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model")
_TEMPLATES: Final = ("chat_template.jinja", "chat_template.json")


def open_checkpoint(
    ref: str, *, revision: str | None = None, cache_dir: Path | None = None, offline: bool = False, shapes: bool = True
) -> Checkpoint:
    """Describe a checkpoint: a local folder, or a Hugging Face id.

    An id is read from the cache if its snapshot is complete and up to date, or if the Hub is disabled or does not
    answer; else from the Hub with range requests. `cache_dir` is the folder `hub` of a HF_HOME. If neither is
    available,
    a published checkpoint is described by the shapes that ship with gemmaspec, unless `shapes` is false; its `source`
    is then "shipped". Raise EnvironmentMissing if it is missing, CheckpointError if it is invalid.
    """
    try:
        files = _files(ref, revision, cache_dir, offline=offline)
    except EnvironmentMissing as error:
        if not is_local(ref) and Path(ref).is_dir():
            raise EnvironmentMissing(error.message, hint=f"for the folder of this name, write ./{ref}") from None
        known = shipped_checkpoint(ref) if shapes and isinstance(error, (Unasked, Unreachable)) else None
        if known is None:
            raise
        return known
    try:
        return _read(ref, files)
    except CheckpointError as error:
        raise CheckpointError(f"{ref}: {error.message}", hint=error.hint) from None


def longest_context(ref: str, *, revision: str | None = None, cache_dir: Path | None = None) -> int | None:
    """Return the tokens that a model was made for; None where nothing on this machine says so. Uses no network.

    Reads config.json in a folder or the cache, else the shapes that ship with gemmaspec.
    """
    try:
        files = Folder.local(ref) if is_local(ref) else _cached(ref, revision, cache_dir)
        if files:
            raw = whole(files, "config.json", most=CONFIG_LIMIT)
        else:
            raw = None
        if raw is not None:
            return describe(Fields(load_object(raw, "config.json"), "config.json")).text.max_position_embeddings
    except (CheckpointError, EnvironmentMissing):
        return None
    known = shipped_checkpoint(ref)
    if known:
        return known.text.max_position_embeddings
    return None


class Unasked(EnvironmentMissing):
    """The cache does not have the checkpoint, and the Hub is disabled."""


def _files(ref: str, revision: str | None, cache_dir: Path | None, *, offline: bool) -> CheckpointFiles:
    if is_local(ref):
        return Folder.local(ref)
    if offline or _switched_off():
        return _offline(ref, revision, cache_dir)
    return _online(ref, revision, cache_dir)


def _switched_off() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _cached(ref: str, revision: str | None, cache_dir: Path | None) -> Folder | None:
    path = cached_snapshot(ref, revision, cache_dir)
    if path:
        return Folder(path, source="cache", revision=path.name)
    return None


def _offline(ref: str, revision: str | None, cache_dir: Path | None) -> Folder:
    snapshot = _cached(ref, revision, cache_dir)
    if snapshot is None:
        at = f" at {revision}" if revision else ""
        raise Unasked(f"{ref}{at} is not in the cache, and the Hub is disabled")
    return snapshot


def _online(ref: str, revision: str | None, cache_dir: Path | None) -> CheckpointFiles:
    """Return the files; a commit that is complete in the cache needs no query, because it cannot change."""
    if is_commit(revision) and (snapshot := _whole(ref, revision, cache_dir)):
        return snapshot
    try:
        files = on_hub(ref, revision)
    except Unreachable:
        if snapshot := _cached(ref, revision, cache_dir):
            return snapshot
        raise
    return _whole(ref, files.revision, cache_dir) or files


def _whole(ref: str, commit: str | None, cache_dir: Path | None) -> Folder | None:
    """Return the cached snapshot of a commit if all its weights exist."""
    snapshot = _cached(ref, commit, cache_dir)
    if snapshot is None:
        return None
    if weight_files(snapshot).whole:
        return snapshot
    return None


def _read(ref: str, files: CheckpointFiles) -> Checkpoint:
    raw = whole(files, "config.json", most=CONFIG_LIMIT)
    if raw is None:
        raise _no_config(ref, files)
    config = Fields(load_object(raw, "config.json"), "config.json")
    described = describe(config)
    weights = weight_files(files)
    tokens = _head_tokens(files)
    template = any(name in files.sizes for name in _TEMPLATES)
    if tokens and template:
        tokenizer = None
    else:
        tokenizer = _tokenizer_config(files)
    if not tokens and tokenizer:
        tokens = named_tokens(tokenizer, described.token_ids)
    has_tokenizer = any(name in files.sizes for name in _TOKENIZERS)
    checkpoint = Checkpoint(
        ref=ref,
        revision=files.revision,
        architecture=described.architecture,
        model_type=described.model_type,
        dtype=described.dtype,
        text=described.text,
        modalities=described.modalities,
        quantization=declared(config, _separate(files)),
        tensors=read_tensors(files, weights.read),
        special_tokens=tokens,
        tokenizer_digest=files.sha256("tokenizer.json"),
        has_chat_template=template or _template_inside(files, tokenizer),
        base_models=files.base_models(),
        speculator=described.speculator,
        missing_files=weights.missing,
        unindexed_files=weights.unindexed,
        other_weights=other_weights(files),
        has_tokenizer=has_tokenizer,
        tokenizer_damaged=_damaged(files),
        source=files.source,
        config=config.content,
    )
    return dataclasses.replace(checkpoint, bytes_read=files.bytes_read)


def _no_config(ref: str, files: CheckpointFiles) -> EnvironmentMissing:
    gguf = sorted(name for name in other_weights(files) if name.endswith(".gguf"))
    if gguf:
        says = f"{ref} has GGUF files ({gguf[0]}{' …' if len(gguf) > 1 else ''}) but no config.json"
        return EnvironmentMissing(f"{says}; gemmaspec reads only safetensors")
    if "adapter_config.json" in files.sizes:
        return EnvironmentMissing(
            f"{ref} is a LoRA adapter, not a model", hint="name the model that its adapter_config.json names as base"
        )
    try:
        read_regular(Path(ref) / "config.json", follow=True)
    except UnreadableFile as error:  # a pipe or a device is no file of a model, and is there
        return EnvironmentMissing(f"{ref} is not a model: {error.message}", hint=error.hint)
    return EnvironmentMissing(f"{ref} is not a model: config.json is missing")


def _separate(files: CheckpointFiles) -> Fields | None:
    name = "hf_quant_config.json"
    raw = whole(files, name, most=CONFIG_LIMIT)
    if raw:
        return Fields(load_object(raw, name), name)
    return None


def _tokenizer_config(files: CheckpointFiles) -> Fields | None:
    """Return tokenizer_config.json; None if it is missing or too large."""
    name = "tokenizer_config.json"
    if not 0 < files.sizes.get(name, 0) <= TOKENIZER_CONFIG_LIMIT:
        return None
    raw = whole(files, name, most=TOKENIZER_CONFIG_LIMIT)
    if raw:
        return Fields(load_object(raw, name), name)
    return None


def _head_tokens(files: CheckpointFiles) -> dict[str, int]:
    """Return the control tokens from the beginning of tokenizer.json."""
    size = files.sizes.get("tokenizer.json", 0)
    if size:
        return added_tokens(files.read("tokenizer.json", 0, min(size, FIRST_PIECE)))
    return {}


def _damaged(files: CheckpointFiles) -> bool:
    """Return whether tokenizer.json is not a JSON object. A small one is parsed; of others both ends are read."""
    size = files.sizes.get("tokenizer.json")
    if size is None:
        return False
    if size <= FIRST_PIECE:
        try:
            return not isinstance(json.loads(files.read("tokenizer.json", 0, size)), dict)
        except (ValueError, RecursionError):
            return True
    head, tail = files.read("tokenizer.json", 0, 64), files.read("tokenizer.json", size - 64, size)
    return not (head.lstrip().startswith(b"{") and tail.rstrip().endswith(b"}"))


def _template_inside(files: CheckpointFiles, tokenizer: Fields | None) -> bool | None:
    """Return whether there is a chat template; None without a tokenizer, because then the checkpoint does not say."""
    if tokenizer is None:
        if "tokenizer.json" in files.sizes:
            return False
        return None
    return "chat_template" in tokenizer
