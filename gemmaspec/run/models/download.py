"""Fetch the files of a model that vLLM reads into the Hugging Face cache, and resume interrupted downloads.

huggingface_hub resumes a transfer only while its process lives; from 2.0 on it removes partial files of a failed one.
This module therefore fetches the large files, which the Hub lists with their sha256, into the cache's own place for
partial files, so that a later run can resume. huggingface_hub then finds them there and links them into the snapshot.

Which files of a checkpoint vLLM reads.

A fast digest of a model's folder, which does not cover the weights themselves.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import unwritable
from gemmaspec.run.models import access
from gemmaspec.run.models.hub import MOST_FILES, SECONDS, Unreachable, page

WEIGHTS: Final = ".safetensors"
_SUFFIXES: Final = (WEIGHTS, ".json", ".jinja", ".model", ".txt", ".py")
"""Weights; configurations, index and tokenizer; chat templates; SentencePiece; merges; code for trust_remote_code."""
_LONGEST: Final = 255
"""Bytes of a file's name."""
_DUPLICATES: Final = ("consolidated",)
"""Prefixes of names of copies of the same weights for other programs."""


def is_needed(path: str) -> bool:
    """Return whether vLLM may read this file of a checkpoint, by its path.

    Folders (onnx/, original/, gguf) and .bin, .pth and .gguf files contain other forms of the same weights. vLLM
    prefers safetensors of the top folder (model_executor/model_loader/weight_utils.py, every release). Names that are
    unsafe for a file system or a terminal are rejected too.
    """
    return _is_plain(path) and path.endswith(_SUFFIXES) and not path.startswith(_DUPLICATES)


def _is_plain(name: str) -> bool:
    """Return whether the name is printable and names a file of the top folder on any system."""
    return not set(name) & {"/", "\\"} and name.isprintable() and len(name.encode()) <= _LONGEST


def is_weights(path: str) -> bool:
    """Return whether a file contains tensors."""
    return path.endswith(WEIGHTS)


LARGEST_HEADER: Final = 100 * 1024 * 1024
"""Bytes; the safetensors library refuses longer headers."""
LARGEST_TEXT: Final = 512 * 1024 * 1024
"""Bytes; Gemma 4's tokenizer.json has 32 million."""


def folder_digest(folder: Path) -> str:
    """Return sha256:… over the files that vLLM reads, by name: small files whole, safetensors by size and header.

    The header contains every tensor's name, type, shape and offsets. The digest does not detect weights that were
    trained further in the same shapes. Raise EnvironmentMissing for an unreadable folder or file.
    """
    whole = hashlib.sha256()
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and is_needed(path.name))
        for name in names:
            with (folder / name).open("rb") as file:
                part = _header_digest(file, folder / name) if is_weights(name) else _content_digest(file, folder / name)
            whole.update(f"{name}\0{part}\n".encode())
    except OSError as error:
        raise EnvironmentMissing(f"cannot read {error.filename or folder}: {error.strerror}") from None
    return f"sha256:{whole.hexdigest()}"


def _content_digest(file: IO[bytes], path: Path) -> str:
    if path.stat().st_size > LARGEST_TEXT:
        raise EnvironmentMissing(f"{path} is too large for such a file of a model: more than {LARGEST_TEXT} bytes")
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type] # a real file


def _header_digest(file: IO[bytes], path: Path) -> str:
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else LARGEST_HEADER + 1
    if length > LARGEST_HEADER:
        raise EnvironmentMissing(f"{path} is not a safetensors file, or is truncated")
    digest = hashlib.sha256(start + file.read(length)).hexdigest()
    return f"{digest} {path.stat().st_size}"


_SHA256: Final = re.compile(r"[0-9a-f]{64}")

OnBytes = Callable[[int], None]
"""Called with the number of new bytes; an exception in it ends the transfer."""


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file of a model, as the Hub lists it."""

    path: str
    size: int
    sha256: str | None
    """The digest of a file in the Hub's large-file storage; None for a small file."""


@dataclass(frozen=True, kw_only=True)
class CommitFiles:
    """The files of one commit that vLLM reads."""

    role: str
    model: str
    asked: str | None
    """The requested revision; None for the default branch."""
    commit: str
    files: tuple[RemoteFile, ...]


def list_files(model: str, revision: str | None, *, role: str) -> CommitFiles:
    """Ask the Hub for a model's files.

    Raise EnvironmentMissing if the model is gated, private, missing or lacks safetensors, or the Hub does not answer.
    """
    from huggingface_hub import HfApi

    commit = access.check_access(model, revision, role=role)
    with access.asked(model, revision, role=role):
        siblings = HfApi().model_info(model, revision=commit, files_metadata=True, timeout=SECONDS).siblings or []
        files = tuple(
            RemoteFile(path=sibling.rfilename, size=int(sibling.size or 0), sha256=_sha256(sibling))
            for sibling in siblings[:MOST_FILES]
            if is_needed(sibling.rfilename)
        )
    if not any(is_weights(file.path) for file in files):
        raise EnvironmentMissing(
            f"{role}.model: {model} has no .safetensors files", hint=f"see {page(model)}/tree/{commit}"
        )
    return CommitFiles(role=role, model=model, asked=revision, commit=commit, files=files)


def _sha256(sibling: Any) -> str | None:
    """Return the sha256 in the Hub's listing. Anything else is rejected, because it becomes a file's name."""
    if not sibling.lfs:
        return None
    if not _SHA256.fullmatch(str(sibling.lfs.sha256)):
        raise Unreachable(f"the Hub lists no sha256 for {sibling.rfilename}")
    return str(sibling.lfs.sha256)


class Cache:
    """The Hugging Face cache in one folder; default: this user's own."""

    def __init__(self, folder: Path | None) -> None:
        from huggingface_hub import constants

        self.folder = folder or Path(constants.HF_HUB_CACHE).expanduser()

    def has(self, listing: CommitFiles, file: RemoteFile) -> bool:
        """Return whether the file is in the commit's snapshot with the right size; a copied cache may be damaged."""
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(listing.model, file.path, cache_dir=self.folder, revision=listing.commit)
        return isinstance(cached, str) and _size(Path(cached)) == file.size

    def missing(self, listing: CommitFiles) -> Sequence[RemoteFile]:
        """Return the files that still have to be fetched."""
        return [file for file in listing.files if not self.has(listing, file)]

    def rest(self, listing: CommitFiles, file: RemoteFile) -> int:
        """Return how many bytes of a missing file still have to be fetched."""
        if file.sha256 is None:
            return file.size
        blob = self._blob(listing, file.sha256)
        return 0 if _size(blob) == file.size else max(0, file.size - _size(_unfinished(blob)))

    def fetch(self, listing: CommitFiles, file: RemoteFile, on_bytes: OnBytes) -> None:
        """Fetch a missing file, or its missing part.

        Raise EnvironmentMissing if the connection breaks off, the content is wrong or the disk is full. The received
        part stays for the next run.
        """
        from huggingface_hub import hf_hub_download

        try:
            with access.asked(listing.model, listing.commit, role=listing.role):
                if file.sha256:
                    self._fetch_blob(listing, file, file.sha256, on_bytes)
                hf_hub_download(
                    listing.model,
                    file.path,
                    revision=listing.commit,
                    cache_dir=self.folder,
                    force_download=file.sha256 is None,  # an existing small file has the wrong size
                )
        except Unreachable:
            raise EnvironmentMissing(
                f"{listing.role}.model: download of {file.path} of {listing.model} broke off; its beginning is kept",
                hint="run the same command again to resume",
            ) from None
        if not file.sha256:
            on_bytes(file.size)

    def name_commit(self, listing: CommitFiles) -> None:
        """Record the requested revision in the cache too. Raise EnvironmentMissing if it changed on the Hub."""
        from huggingface_hub import hf_hub_download

        if listing.asked == listing.commit:
            return
        with access.asked(listing.model, listing.asked, role=listing.role):
            config = hf_hub_download(listing.model, "config.json", revision=listing.asked, cache_dir=self.folder)
        if Path(config).parent.name != listing.commit:
            raise EnvironmentMissing(
                f"{listing.role}.model: {listing.model} changed on the Hub during the download",
                hint="run the same command again",
            )

    def _fetch_blob(self, listing: CommitFiles, file: RemoteFile, sha256: str, on_bytes: OnBytes) -> None:
        import filelock

        blob = self._blob(listing, sha256)
        lock = self.folder / ".locks" / blob.parent.parent.name / f"{sha256}.lock"
        try:
            blob.parent.mkdir(parents=True, exist_ok=True)
            lock.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(lock):  # the same lock as huggingface_hub's
                if _size(blob) != file.size:
                    _transfer(listing, file, _unfinished(blob), on_bytes)
                    _check(listing, file, _unfinished(blob))
                    _unfinished(blob).replace(blob)
        except OSError as error:
            if error.errno is None:  # raised by the Hub's client for a wrong number of bytes
                raise
            raise unwritable(blob, error) from None

    def _blob(self, listing: CommitFiles, sha256: str) -> Path:
        return self.folder / f"models--{listing.model.replace('/', '--')}" / "blobs" / sha256


def _transfer(listing: CommitFiles, file: RemoteFile, target: Path, on_bytes: OnBytes) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(listing.model, file.path, revision=listing.commit)
    with _Told(target, file, on_bytes) as opened:
        done = opened.seek(0, io.SEEK_END)
        if done > file.size:
            done = opened.truncate(0)
            opened.seek(0)
        http_get(url, opened, resume_size=done, headers=build_hf_headers(), expected_size=file.size)


def _check(listing: CommitFiles, file: RemoteFile, target: Path) -> None:
    with target.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != file.sha256:
        target.unlink()
        raise EnvironmentMissing(
            f"{listing.role}.model: the sha256 of {file.path} of {listing.model} differs from the Hub's listing; "
            "the file was removed",
            hint="run the same command again",
        )


class _Told(io.FileIO):
    """A file that reports how much is written to it and rejects more than its listed size."""

    def __init__(self, path: Path, listed: RemoteFile, on_bytes: OnBytes) -> None:
        super().__init__(path, "r+" if path.exists() else "w+")
        self._listed = listed
        self._on_bytes = on_bytes

    def write(self, data: object) -> int:
        self._on_bytes(len(data))  # type: ignore[arg-type]
        view = memoryview(data)  # type: ignore[arg-type]
        if self.tell() + len(view) > self._listed.size:
            raise EnvironmentMissing(
                f"the Hub sends more than the listed {self._listed.size} bytes of {self._listed.path}"
            )
        written = 0
        while written < len(view):  # an unbuffered file may write only a part
            written += super().write(view[written:])
        return written


def _unfinished(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.incomplete")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
