"""Sets of prompts on the Hugging Face Hub: fetched once at a commit, and read from this machine from then on."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import state_dir, unwritable
from gemmaspec.run.models.hub import HubFiles, dataset_on_hub
from gemmaspec.run.models.hub_cache import is_commit

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
    if match:
        return DatasetRef(*match.groups())
    return None


def fetch_dataset(named: str, note: Callable[[str], None]) -> tuple[Path, str] | None:
    """Return the folder with a data set's JSONL files, and its name with the commit. None for a text that names none.

    Fetches them unless this machine has them. A commit that is on this machine needs no network; for a branch or a tag
    the Hub is asked which commit it is. Raises EnvironmentMissing for a set that is missing, gated, too large, without
    JSONL files, or out of reach.
    """
    ref = dataset_ref(named)
    if ref is None:
        return None
    if is_commit(ref.revision) and (here := _place(ref.name, ref.revision)).is_dir():
        return here, named
    remote = dataset_on_hub(ref.name, ref.revision)
    commit = remote.revision
    if not is_commit(commit):
        raise EnvironmentMissing(f"the Hub returned no commit of the data set {ref.name}", hint="try again")
    folder = _place(ref.name, str(commit))
    if not folder.is_dir():
        sizes = _wanted(remote, ref)
        _store({name: _read(remote, name) for name in sizes}, folder)
        if remote.licence:
            licence = f"; licence, as its card says: {remote.licence}"
        else:
            licence = ""
        note(f"fetched {ref.name}@{commit}: {len(sizes)} files, {sum(sizes.values()) / 1000:,.0f} kB{licence}")
    return folder, f"{ref.name}@{commit}"


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
