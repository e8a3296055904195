"""Teach the tiny Gemma 4 models that ship in models/, with which a real vLLM speculates on a CPU.

    <python with torch and transformers> -m tools.tiny.make OUT NAME [--seconds N]

writes OUT/NAME:

    tokenizer     the words and the chat template of all, made first
    tiny-target   the shape of Gemma 4 31B: dense, keys used as values, one global KV head, sliding window 1024
    tiny-draft    the shape of Gemma 4 E2B: per-layer embeddings, shared KV layers, double wide MLP, window 512
    tiny-mtp      an assistant for tiny-target, which reads tiny-target's KV cache
    tiny-eagle3   an EAGLE-3 head for tiny-target

vLLM's bugs in such a pairing depend on window, KV sharing and head sizes, but not on width and depth. The heads are
trained on OUT/tiny-target.

Target and draft learn the conversation of talk.py, and to repeat SENTENCE for ever when they are told to count or
explain. The draft and the heads learn a wrong successor for a few of the words, so that some guesses are rejected.

On a GPU, four minutes are enough for each of the pair, and one for a head; two can be taught at the same time. On a CPU
it takes hours. It needs torch, transformers 5.19 or newer and, for the tokenizer, what this checkout's docs say.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]

from tools.tiny import assistant, eagle3, pair, words

PAIR: dict[str, Callable[[Path, Any, float], None]] = {"tiny-target": pair.make_target, "tiny-draft": pair.make_draft}
HEADS: dict[str, Callable[[Path, Path, float], None]] = {"tiny-mtp": assistant.make, "tiny-eagle3": eagle3.make}


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="Teach a tiny Gemma 4 model.")
    parser.add_argument("out", type=Path, help="folder of the models")
    parser.add_argument("name", choices=["tokenizer", *PAIR, *HEADS])
    parser.add_argument("--seconds", type=float, default=240, help="how long it learns (%(default)s)")
    chosen = parser.parse_args()
    folder = chosen.out / chosen.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if chosen.name == "tokenizer":
        words.make_tokenizer((words.ROOT / "templates" / "gemma4.jinja").read_text(encoding="utf-8")).save_pretrained(
            folder
        )
        return 0
    if torch.cuda.is_available():
        torch.set_default_device("cuda")
    else:
        torch.set_num_threads(1)  # models this small are slower on several threads, and much slower on a busy machine
    if chosen.name in HEADS:
        HEADS[chosen.name](folder, chosen.out / "tiny-target", chosen.seconds)
    else:
        from transformers import AutoTokenizer  # type: ignore[import-not-found]

        PAIR[chosen.name](folder, AutoTokenizer.from_pretrained(chosen.out / "tokenizer"), chosen.seconds)
    for file in folder.iterdir():
        file.chmod(0o644)  # a server in a container may run as another user
    return 0


if __name__ == "__main__":
    sys.exit(main())
