"""What a rank of a server on several machines runs, for its report. Standard library only, Python 3.10+.

A fact is short, has no secret, and is the same on machines that keep the same files in other places. launch.py loads
this file from its own folder when the command has --nnodes; the host compares the reports (fleet/hosts.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

WEIGHTS = (".json", ".safetensors", ".model", ".jinja", ".bin", ".gguf")
COMMIT = re.compile("[0-9a-f]{40}")
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
NCCL_REPLAYS = (2, 30, 4)  # 2.28.9 hangs on two DGX Sparks where graphs are replayed; vllm-project/vllm#52504


def facts(
    command: Sequence[str], path: Sequence[str], version_of: Callable[[str, Sequence[str]], str | None]
) -> dict[str, str]:
    """Return what must be the same on every rank besides plan and files; "" for what this machine does not know."""
    flags = dict(zip(command, [*command[1:], ""], strict=True))
    spec = json.loads(flags.get("--speculative-config", "{}"))
    nccl = next(filter(None, (version_of(name, path) for name in NCCL_PACKAGES)), "")
    return {
        "transformers": version_of("transformers", path) or "",
        "nccl": nccl,
        "target": model_facts(command[2] if len(command) > 2 else "", flags.get("--revision")),
        "draft": model_facts(spec.get("model"), spec.get("revision")),
    }


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
    if COMMIT.fullmatch(text):
        return text
    return ""


def nccl_hangs(version: str, *, eager: bool) -> str:
    """Return what to expect of an NCCL between machines; "" if it is new enough, unknown, or runs without graphs."""
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", version)
    if eager or numbers is None or tuple(map(int, numbers.groups())) >= NCCL_REPLAYS:
        return ""
    return (
        f"NCCL {version} between machines: a replayed CUDA graph can hang within a few requests "
        "(vllm-project/vllm#52504); take NCCL 2.30.4 or later, or set serve.enforce_eager: true"
    )


def _folder_digest(folder: Path) -> str:
    """Return a digest of the names and sizes of a model's files, and of the content of small JSON files."""
    found = []
    try:
        for entry in sorted(folder.iterdir()):
            state = entry.stat()
            if entry.suffix not in WEIGHTS or not stat.S_ISREG(state.st_mode):
                continue
            small = entry.suffix == ".json" and state.st_size <= 1024 * 1024
            if small:
                content = hashlib.sha256(entry.read_bytes()).hexdigest()
            else:
                content = ""
            found.append([entry.name, state.st_size, content])
    except OSError:
        return ""
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
