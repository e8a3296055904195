"""Models without weights: all else that vLLM reads, for a server that is only timed."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.checkpoint.published.shipped import DATA, PublishedCheckpoint, servable_config, shipped_for
from gemmaspec.core.checkpoint.sizes import SIZES
from gemmaspec.core.data import MODELS
from gemmaspec.core.errors import UsageError
from gemmaspec.core.files import make_folder, write_whole

_MEDIA: Final = {
    255_999: "<|image>", 256_000: "<|audio>", 258_880: "<|image|>", 258_881: "<|audio|>",
    258_882: "<image|>", 258_883: "<audio|>", 258_884: "<|video|>",
}  # fmt: skip
"""Ids of the published models (transformers models/gemma4/configuration_gemma4.py); the tiny models have their own."""
_WORDS: Final = 262_144
_TINY: Final = MODELS / "tiny-target"
_LEAST_MEDIA: Final = 1000
_COPIED: Final = frozenset({".json", ".jinja", ".model", ".txt"})
_MOST_BYTES: Final = 64 * 2**20
_PROCESSOR: Final = "processor_config.json"
_UNIFIED_PROCESSOR: Final = "processor_config.unified.json"
_PROCESSORS: Final = (_PROCESSOR, _UNIFIED_PROCESSOR)
"""As vLLM reads it, and the one of models/gemma4_unified, which has the same name in a folder."""


def dummy_model(model: str, folder: Path | None, *, into: Path, note: Callable[[str], None]) -> Path:
    """Return a folder below `into` with all that a model has but its weights, made anew.

    `folder` is where the model is, if it is a folder; others have the shapes that ship with gemmaspec. Raises
    UsageError for a model whose shapes do not ship, and for a folder without config.json.
    """
    name = re.sub(r"[^\w.-]", "-", model.rstrip("/").rpartition("/")[2]).lstrip(".") or "model"
    made = into / name
    if made.is_dir():
        shutil.rmtree(made)
    make_folder(made)
    for file, text in _copied(model, folder) if folder else _published(_shipped(model, note)):
        write_whole(made / file, text)
    return made


def _copied(model: str, folder: Path) -> Iterator[tuple[str, str]]:
    if not (folder / "config.json").is_file():
        raise UsageError(f"{model} has no config.json, so its shapes are not known", hint=f"ls {folder}")
    for file in sorted(folder.iterdir()):
        if file.suffix in _COPIED and not file.name.endswith(".index.json") and file.is_file():
            if file.stat().st_size > _MOST_BYTES:
                raise UsageError(f"{file} is larger than {_MOST_BYTES // 2**20} MiB, too large to be copied")
            yield file.name, file.read_text(encoding="utf-8")


def _shipped(model: str, note: Callable[[str], None]) -> PublishedCheckpoint:
    known = shipped_for(model)
    if known is None:
        raise UsageError(
            f"the shapes of {model} do not ship with gemmaspec, so it has no dummy weights",
            hint="measure it without its draft: --k 0; or with its own weights: without --dummy-weights",
        )
    note(known.says)
    return known


def _published(known: PublishedCheckpoint) -> Iterator[tuple[str, str]]:
    yield "config.json", _text(servable_config(known))
    yield _PROCESSOR, _text(processor_of(unified=SIZES[known.size].unified))
    yield from _beside()


def processor_of(*, unified: bool) -> dict[str, Any]:
    """Return the processor_config.json of the models with encoders, or of the one without (`unified`)."""
    name = _UNIFIED_PROCESSOR if unified else _PROCESSOR
    found: dict[str, Any] = _shipped_beside()[name]
    return found


@functools.cache
def _beside() -> tuple[tuple[str, str], ...]:
    """Return names and texts of the files that are the same for every model."""
    files = {name: content for name, content in _shipped_beside().items() if name not in _PROCESSORS}
    files["tokenizer.json"] = files["tokenizer.json"] | _tokens()
    template = (_TINY / "chat_template.jinja").read_text(encoding="utf-8")
    return (*((name, _text(content)) for name, content in files.items()), ("chat_template.jinja", template))


def _shipped_beside() -> dict[str, dict[str, Any]]:
    """Return what ships for dummy models: transformers 5.19.0 wrote the unified processor by its defaults."""
    files: dict[str, dict[str, Any]] = json.loads((DATA / "beside.json").read_text(encoding="utf-8"))
    return files


def _tokens() -> dict[str, Any]:
    """Return the tokens of the tiny models' tokenizer, and a readable one for each further id."""
    tiny: dict[str, Any] = json.loads((_TINY / "tokenizer.json").read_text(encoding="utf-8"))
    added = [token for token in tiny["added_tokens"] if token["id"] < _LEAST_MEDIA]
    added += [{**added[0], "id": id_, "content": word} for id_, word in _MEDIA.items()]
    media = {token["id"] for token in tiny["added_tokens"] if token["id"] >= _LEAST_MEDIA}
    words = {id_: word for word, id_ in tiny["model"]["vocab"].items() if id_ not in media} | _MEDIA
    vocabulary = {words.get(id_, f"<unused{id_}>"): id_ for id_ in range(_WORDS)}
    return {"added_tokens": added, "model": {**tiny["model"], "vocab": vocabulary}}


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False) + "\n"
