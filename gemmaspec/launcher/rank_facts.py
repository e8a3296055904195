"""What a server on several machines runs, as facts that its ranks can compare. Standard library only, Python 3.10+.

A fact is short, has no secret, and is the same on machines that keep the same files in other places. launch.py loads
this file from its own folder when the command has --nnodes; ranks.py compares the facts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

OF_RANKS = frozenset({"--node-rank", "-r", "--headless", "--host", "--port"})  # arguments that ranks may differ in
SHORT = 200  # characters of an argument; of a longer one the digest is compared
FILE_LIMIT = 4 * 1024 * 1024  # bytes of a file that an argument names; of a larger one the path is compared
WEIGHTS = (".json", ".safetensors", ".model", ".jinja", ".bin", ".gguf")
COMMIT = re.compile("[0-9a-f]{40}")
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
NCCL_REPLAYS = (2, 30, 4)  # 2.28.9 hangs on two DGX Sparks where graphs are replayed; vllm-project/vllm#52504


def arguments_of(command: Sequence[str]) -> dict[str, str]:
    """Return a command by flag; words before the first flag are under `command`, long values are digests."""
    found: dict[str, list[str]] = {}
    flag = "command"
    for word in command:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            flag = name.replace("_", "-")
            found.setdefault(flag, []).extend([value] if value else [])
        else:
            found.setdefault(flag, []).append(word)
    return {name: _short(" ".join(words)) for name, words in found.items()}


def by_content(value: str) -> str:
    """Return a digest for the path of a file or a model's folder, which machines may keep elsewhere; else the text."""
    if not value.startswith("/"):
        return value
    path = Path(value)
    try:
        if path.is_dir():
            return "folder " + _folder_digest(path)
        if path.is_file() and path.stat().st_size <= FILE_LIMIT:
            return "file " + hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return value
    return value


def model_facts(model: str | None, revision: str | None) -> str:
    """Return what identifies a model on this machine: a commit, or a digest of a folder's files; "" if unknown.

    Weights count by name and size alone, because reading them takes minutes; small JSON files count by content.
    """
    if not model:
        return ""
    if Path(model).is_dir():
        return _folder_digest(Path(model))
    if revision and COMMIT.fullmatch(revision):
        return revision
    try:
        home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
        hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
        with (hub / f"models--{model.replace('/', '--')}" / "refs" / (revision or "main")).open("rb") as file:
            text = file.read(64).decode("ascii", "replace").strip()
    except (OSError, ValueError, RuntimeError):
        return ""
    return text if COMMIT.fullmatch(text) else ""


def nccl_hangs(version: str, *, eager: bool) -> str:
    """Return what to expect of an NCCL between machines; "" if it is new enough, unknown, or runs without graphs."""
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", version)
    if eager or numbers is None or tuple(map(int, numbers.groups())) >= NCCL_REPLAYS:
        return ""
    return (
        f"NCCL {version} between machines: a replayed CUDA graph can hang within a few requests "
        "(vllm-project/vllm#52504); take NCCL 2.30.4 or later, or set serve.enforce_eager: true"
    )


def _short(value: str) -> str:
    return value if len(value) <= SHORT else "sha256:" + hashlib.sha256(value.encode()).hexdigest()


def _folder_digest(folder: Path) -> str:
    """Return a digest of the names and sizes of a model's files, and of the content of small JSON files."""
    found = []
    try:
        for entry in sorted(folder.iterdir()):
            state = entry.stat()
            if entry.suffix not in WEIGHTS or not stat.S_ISREG(state.st_mode):
                continue
            small = entry.suffix == ".json" and state.st_size <= 1024 * 1024
            content = hashlib.sha256(entry.read_bytes()).hexdigest() if small else ""
            found.append([entry.name, state.st_size, content])
    except OSError:
        return ""
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
