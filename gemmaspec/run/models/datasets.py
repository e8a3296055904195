"""Sets of prompts on the Hugging Face Hub: fetched once at a commit, and read from this machine from then on.

Models without weights: all else that vLLM reads, for a server that is only timed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.checkpoint.published.shipped import DATA, PublishedCheckpoint, servable_config, shipped_for
from gemmaspec.core.checkpoint.sizes import SIZES
from gemmaspec.core.data import MODELS
from gemmaspec.core.errors import EnvironmentMissing, UsageError
from gemmaspec.core.files import make_folder, state_dir, unwritable, write_whole
from gemmaspec.run.models.hub import HubFiles, dataset_on_hub, is_commit

MOST_FILES: Final = 64
MOST_BYTES: Final = 64 * 2**20
"""Of all files together."""
_REF: Final = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})@([A-Za-z0-9][\w./-]{0,199})", re.ASCII)
_FILE: Final = re.compile(r"\w[\w.+-]{0,120}\.jsonl", re.ASCII)


@dataclass(frozen=True)
class DatasetRef:
    """A data set of the Hub at a commit, a tag or a branch."""

    name: str
    """OWNER/NAME."""
    revision: str


def dataset_ref(text: str) -> DatasetRef | None:
    """Return what OWNER/NAME@REVISION names; None for any other text."""
    match = _REF.fullmatch(text)
    return DatasetRef(*match.groups()) if match else None


def fetch_dataset(ref: DatasetRef, note: Callable[[str], None]) -> tuple[Path, str]:
    """Return the folder with a data set's JSONL files, and its commit. Fetches them unless this machine has them.

    A commit that is on this machine needs no network; for a branch or a tag the Hub is asked which commit it is.
    Raises EnvironmentMissing for a set that is missing, gated, too large, without JSONL files, or out of reach.
    """
    if is_commit(ref.revision) and (here := _place(ref.name, ref.revision)).is_dir():
        return here, ref.revision
    remote = dataset_on_hub(ref.name, ref.revision)
    commit = remote.revision
    if not is_commit(commit):
        raise EnvironmentMissing(f"the Hub returned no commit of the data set {ref.name}", hint="try again")
    folder = _place(ref.name, str(commit))
    if not folder.is_dir():
        sizes = _wanted(remote, ref)
        _store({name: _read(remote, name) for name in sizes}, folder)
        licence = f"; licence, as its card says: {remote.licence}" if remote.licence else ""
        note(f"fetched {ref.name}@{commit}: {len(sizes)} files, {sum(sizes.values()) / 1000:,.0f} kB{licence}")
    return folder, str(commit)


def _wanted(remote: HubFiles, ref: DatasetRef) -> Mapping[str, int]:
    """Return the sizes of the JSONL files at the top of a data set."""
    sizes = {name: size for name, size in remote.sizes.items() if _FILE.fullmatch(name)}
    if not sizes:
        raise EnvironmentMissing(
            f"the data set {ref.name} has no .jsonl file at its top, and bench reads no other kind",
            hint="convert it: --prompts takes a folder with one CATEGORY.jsonl per category",
        )
    if len(sizes) > MOST_FILES or sum(sizes.values()) > MOST_BYTES:
        raise EnvironmentMissing(
            f"the data set {ref.name} has {len(sizes)} .jsonl files of {sum(sizes.values()) / 2**20:,.0f} MiB in all; "
            f"the limit is {MOST_FILES} files and {MOST_BYTES // 2**20} MiB",
            hint="download the files you want, and give their folder to --prompts",
        )
    return sizes


def _read(remote: HubFiles, name: str) -> bytes:
    content = remote.read(name, 0, remote.sizes[name])
    told = remote.sha256(name)
    if told and hashlib.sha256(content).hexdigest() != told:
        damaged = f"{name} of {remote.model} arrived damaged: its sha256 is not the Hub's"
        raise EnvironmentMissing(damaged, hint="try again")
    return content


def _store(files: Mapping[str, bytes], folder: Path) -> None:
    """Write a set's files and only then give their folder its name, so that a folder is always whole."""
    part = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
        for name, content in files.items():
            (part / name).write_bytes(content)
        with contextlib.suppress(OSError):  # another bench has just fetched the same
            part.rename(folder)
        if not folder.is_dir():
            raise EnvironmentMissing(f"cannot write {folder}", hint="df -h")
    except OSError as error:
        raise unwritable(folder, error) from None
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def _place(name: str, commit: str) -> Path:
    return state_dir() / "prompts" / name.replace("/", "--") / commit


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
        raise UsageError(f"{model} has no config.json, so its shapes are not known")
    for file in sorted(folder.iterdir()):
        if file.suffix in _COPIED and not file.name.endswith(".index.json") and file.is_file():
            if file.stat().st_size > _MOST_BYTES:
                raise UsageError(f"{file} is larger than {_MOST_BYTES // 2**20} MiB, too large to be copied")
            yield file.name, file.read_text(encoding="utf-8")


def _shipped(model: str, note: Callable[[str], None]) -> PublishedCheckpoint:
    known = shipped_for(model)
    if known is None or SIZES[known.size].unified:
        raise UsageError(
            f"the shapes of {model} do not ship with gemmaspec, so it has no dummy weights",
            hint="measure it without its draft: --k 0; or with its own weights: without --dummy-weights",
        )
    note(known.says)
    return known


def _published(known: PublishedCheckpoint) -> Iterator[tuple[str, str]]:
    yield "config.json", _text(servable_config(known))
    yield from _beside()


@functools.cache
def _beside() -> tuple[tuple[str, str], ...]:
    """Return names and texts of the other files, the same for every model."""
    files: dict[str, dict[str, Any]] = json.loads((DATA / "beside.json").read_text(encoding="utf-8"))
    files["tokenizer.json"] |= _tokens()
    template = (_TINY / "chat_template.jinja").read_text(encoding="utf-8")
    return (*((name, _text(content)) for name, content in files.items()), ("chat_template.jinja", template))


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
