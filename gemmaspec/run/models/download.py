"""Fetch the files of a model that vLLM reads into the Hugging Face cache, and resume interrupted downloads.

huggingface_hub resumes a transfer only while its process lives; from 2.0 on it removes partial files of a failed one.
This module therefore fetches the large files, which the Hub lists with their sha256, into the cache's own place for
partial files, so that a later run can resume. huggingface_hub then finds them there and links them into the snapshot.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import unwritable
from gemmaspec.run.models import access
from gemmaspec.run.models.folder import MOST_FILES
from gemmaspec.run.models.hub import SECONDS, Unreachable, asked_again, page
from gemmaspec.run.models.needed import is_needed, is_weights

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
        found = asked_again(lambda: HfApi().model_info(model, revision=commit, files_metadata=True, timeout=SECONDS))
        siblings = found.siblings or []
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
        if _size(blob) == file.size:
            return 0
        return max(0, file.size - _size(_unfinished(blob)))

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
