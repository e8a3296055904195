"""A checkpoint on the Hugging Face Hub, read with range requests and without writing to the cache.

huggingface_hub handles the endpoint, the token, the proxies and which host may get the token.

The files of one checkpoint, local or remote, read piece by piece.

The Hugging Face cache: which commit of a model it has, and where.

Compare whole vocabularies if both are on this machine.
"""

from __future__ import annotations

import errno
import hashlib
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from gemmaspec.core.checkpoint.config import hub_ids, words
from gemmaspec.core.checkpoint.parts import Checkpoint
from gemmaspec.core.data import shipped
from gemmaspec.core.errors import CheckpointError, EnvironmentMissing, GemmaspecError
from gemmaspec.core.files import state_dir
from gemmaspec.core.reasons import reason
from gemmaspec.run.stack.paths import is_local, on_host

MOST_FILES: Final = 10_000
LARGEST_HASHED: Final = 256 * 2**20
"""Bytes."""


class CheckpointFiles(Protocol):
    """One checkpoint at one revision."""

    source: Literal["folder", "cache", "hub"]
    revision: str | None
    """Commit hash; None for a folder."""
    sizes: Mapping[str, int]
    """Name → bytes, of the files at the top level."""
    bytes_read: int

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes from start to stop, fewer only at the end of the file.

        Raise EnvironmentMissing if it is unreadable.
        """

    def sha256(self, name: str) -> str | None:
        """Return the sha256 of the whole file; None if it is expensive to get."""

    def base_models(self) -> tuple[str, ...]:
        """Return `base_model` of the model card."""


def whole(files: CheckpointFiles, name: str, *, most: int) -> bytes | None:
    """Return a small file; None if it is missing. Raise CheckpointError if it is larger than `most` bytes."""
    size = files.sizes.get(name)
    if size is None:
        return None
    if size > most:
        raise CheckpointError(f"{name}: {size} bytes, more than the limit of {most}")
    return files.read(name, 0, size)


class Folder:
    """A local folder, or a snapshot in the Hugging Face cache."""

    def __init__(self, path: Path, *, source: Literal["folder", "cache"] = "folder", revision: str | None) -> None:
        self.path = path
        self.source: Literal["folder", "cache", "hub"] = source
        self.revision: str | None = revision
        self.sizes: Mapping[str, int] = _sizes(path)
        self.bytes_read = 0

    @classmethod
    def local(cls, ref: str) -> Folder:
        """Return the folder of a profile's model, or in which a tiny one ships. Raises EnvironmentMissing without."""
        path = Path(on_host(ref, state=state_dir()))
        path = path if path.exists() else shipped(ref) or path
        if not path.is_dir():
            raise EnvironmentMissing(f"the folder {path} does not exist", hint=f"ls {path.parent}")
        return cls(path, revision=None)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of a file of the folder."""
        try:
            with (self.path / name).open("rb") as file:
                file.seek(start)
                piece = file.read(stop - start)
        except OSError as error:
            raise EnvironmentMissing(f"cannot read {self.path / name}: {error.strerror}") from None
        self.bytes_read += len(piece)
        return piece

    def sha256(self, name: str) -> str | None:
        """Return the sha256 of a file of the folder; None if it is larger than any tokenizer."""
        if not 0 < self.sizes.get(name, 0) <= LARGEST_HASHED:
            return None
        try:
            with (self.path / name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise EnvironmentMissing(f"cannot read {self.path / name}: {error.strerror}") from None

    def base_models(self) -> tuple[str, ...]:
        """Return `base_model` from the head of README.md."""
        from gemmaspec.core.checkpoint.config import base_models

        if "README.md" not in self.sizes:
            return ()
        return base_models(self.read("README.md", 0, 64 * 1024).decode("utf-8", errors="replace"))


def _sizes(path: Path) -> dict[str, int]:
    """Return the sizes of regular files only, because opening a pipe would block."""
    try:
        entries = [entry for _, entry in zip(range(MOST_FILES), path.iterdir(), strict=False)]
        return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    except OSError as error:
        raise EnvironmentMissing(f"cannot read the folder {path}: {error.strerror}") from None


_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def is_commit(revision: str | None) -> bool:
    """Return whether a revision is a commit hash, which never changes."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def cached_snapshot(model: str, revision: str | None, cache_dir: Path | None) -> Path | None:
    """Return the folder of a model's snapshot with a config.json; None if it is missing.

    `cache_dir` is the folder `hub` of a HF_HOME; None means the user's own.
    """
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE) if cache_dir is None else cache_dir
    if not (cache / f"models--{model.replace('/', '--')}").is_dir():  # the client itself takes 0.3 s to import
        return None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, "config.json", cache_dir=cache_dir, revision=revision)
    return Path(config).parent if isinstance(config, str) else None


ATTEMPTS: Final = 3
"""Number of attempts per piece if the connection breaks off."""
SECONDS: Final = 10.0
"""Timeout for the Hub in seconds."""

Kind = Literal["model", "data set"]

_DISK: Final = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS}


class Unreachable(EnvironmentMissing):
    """The Hub did not answer; the cache may suffice."""


class HubFiles:
    """One model at one commit on the Hub, or one data set."""

    source: Literal["folder", "cache", "hub"] = "hub"

    def __init__(self, model: str, info: Any, *, kind: Kind = "model") -> None:
        self.model, self._kind = model, kind
        self.revision: str | None = info.sha
        siblings = [sibling for sibling in (info.siblings or [])[:MOST_FILES] if "/" not in sibling.rfilename]
        self.sizes: Mapping[str, int] = {sibling.rfilename: sibling.size or 0 for sibling in siblings}
        self._large = {sibling.rfilename: sibling.lfs.sha256 for sibling in siblings if sibling.lfs}
        self._bases = hub_ids((info.card_data or {}).get("base_model"))
        self.licence = _words((info.card_data or {}).get("license"))
        """As the model card says; "" where it says nothing."""
        self._lock = threading.Lock()
        self.bytes_read = 0

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of a file, with retries if the connection breaks off."""
        stop = min(stop, self.sizes[name])
        with refusals(self.model, self.revision, kind=self._kind):
            piece = self._asked(name, start, stop)
        if len(piece) < stop - start:
            raise Unreachable(f"the connection to the Hub broke off in {name} of {self.model}", hint="try again")
        return piece

    def sha256(self, name: str) -> str | None:
        """Return the sha256 in the Hub's listing, for files in large-file storage."""
        return self._large.get(name)

    def base_models(self) -> tuple[str, ...]:
        """Return `base_model` from the model card, as the Hub parsed it."""
        return self._bases

    def _asked(self, name: str, start: int, stop: int) -> bytes:
        for attempt in range(ATTEMPTS):
            try:
                return self._range(name, start, stop)
            except Exception as error:
                if attempt == ATTEMPTS - 1 or hasattr(error, "response"):
                    raise
        raise AssertionError  # the last attempt returns or raises

    def _range(self, name: str, start: int, stop: int) -> bytes:
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined] # documented, and loaded on demand
            build_hf_headers,
            hf_raise_for_status,
            http_stream_backoff,
        )

        if start >= stop:
            return b""
        repo_type = "dataset" if self._kind == "data set" else None
        url = hf_hub_url(self.model, name, repo_type=repo_type, revision=self.revision, endpoint=constants.ENDPOINT)
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        piece = bytearray()
        with http_stream_backoff(
            "GET", url, headers=headers, timeout=SECONDS, max_retries=2, follow_redirects=True
        ) as response:
            hf_raise_for_status(response)
            if start and response.status_code != 206:
                raise Unreachable(f"{constants.ENDPOINT} does not support range requests for {name} of {self.model}")
            for chunk in response.iter_bytes():
                piece += chunk
                self._count(len(chunk))
                if len(piece) >= stop - start:
                    break
        return bytes(piece[: stop - start])

    def _count(self, number: int) -> None:
        with self._lock:
            self.bytes_read += number


def on_hub(model: str, revision: str | None) -> HubFiles:
    """Return the model's current state on the Hub. Raise EnvironmentMissing, or Unreachable without an answer."""
    from huggingface_hub import HfApi

    with refusals(model, revision):
        return HubFiles(model, HfApi().model_info(model, revision=revision, files_metadata=True, timeout=SECONDS))


def dataset_on_hub(name: str, revision: str) -> HubFiles:
    """Return a data set as it is on the Hub. Raise EnvironmentMissing, or Unreachable without an answer."""
    from huggingface_hub import HfApi

    with refusals(name, revision, kind="data set"):
        info = HfApi().dataset_info(name, revision=revision, files_metadata=True, timeout=SECONDS)
        return HubFiles(name, info, kind="data set")


def page(model: str, *, kind: Kind = "model") -> str:
    """Return the address of a model's or a data set's page."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{'datasets/' if kind == 'data set' else ''}{model}"


def _words(value: object) -> str:
    """Return a card's own short text, without what a terminal would interpret."""
    text = value if isinstance(value, str) else ""
    return "".join(char for char in text if char.isprintable())[:60]


@contextmanager
def refusals(model: str, revision: str | None, *, kind: Kind = "model") -> Iterator[None]:
    """Turn errors of the Hub's client into one sentence without the token and without a URL."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except GemmaspecError:
        raise
    except GatedRepoError:
        raise EnvironmentMissing(
            f"{model} is gated, and this token has no access yet",
            hint=f"accept the terms at {page(model, kind=kind)}, then: hf auth login, or export HF_TOKEN=…",
        ) from None
    except RevisionNotFoundError:
        raise EnvironmentMissing(f"{model} has no revision {revision}") from None
    except RepositoryNotFoundError:
        raise EnvironmentMissing(
            f"the {kind} {model} does not exist on the Hub, or it is private and this token may not read it",
            hint=f"check the spelling; for a private {kind}: export HF_TOKEN=…; for a folder: ./{model}",
        ) from None
    except Exception as error:  # the Hub's client has its own HTTP library, and changed it before
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise EnvironmentMissing(
                f"the Hub rejects this token for {model} ({status}): it is wrong, expired, or without read access",
                hint="hf auth login    # or export HF_TOKEN=…",
            ) from None
        if isinstance(error, OSError) and error.errno in _DISK:
            raise EnvironmentMissing(f"cannot write to the cache: {error.strerror}", hint="df -h") from None
        raise Unreachable(
            f"cannot query the Hub about {model}: {reason(error)}",
            hint=f"curl -I {page(model, kind=kind)}",
        ) from None


LIMIT: Final = 128 * 2**20
"""Bytes of tokenizer.json; a Gemma 4 has about 32 MB."""


def same_words(target: Checkpoint, draft: Checkpoint, *, cache_dir: Path | None = None) -> tuple[int, int] | None:
    """Return the number of tokens with the same id in both, and the target's total; None without local files.

    Both files are read completely. Raise CheckpointError if one is invalid.
    """
    mine, other = _raw(target, cache_dir), _raw(draft, cache_dir)
    if mine is None or other is None:
        return None
    numbers = words(mine, f"{target.ref}: tokenizer.json")
    others = words(other, f"{draft.ref}: tokenizer.json")
    return sum(others.get(token) == number for token, number in numbers.items()), len(numbers)


def _raw(checkpoint: Checkpoint, cache_dir: Path | None) -> bytes | None:
    if is_local(checkpoint.ref):
        return whole(Folder.local(checkpoint.ref), "tokenizer.json", most=LIMIT)
    folder = cached_snapshot(checkpoint.ref, checkpoint.revision, cache_dir)
    return whole(Folder(folder, revision=None), "tokenizer.json", most=LIMIT) if folder else None
