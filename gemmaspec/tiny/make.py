"""Make tiny Gemma 4 models with which a real vLLM speculates on a CPU, without a download.

    <python of a runtime> make.py OUTDIR [NAME …] [--chat-template FILE]

writes OUTDIR/NAME for each name, by default tiny-target and tiny-draft:

    tiny-target   the shape of Gemma 4 31B: dense, keys used as values, one global KV head, sliding window 1024
    tiny-draft    the shape of Gemma 4 E2B: per-layer embeddings, shared KV layers, double wide MLP, window 512
    tiny-mtp      an assistant for tiny-target, which reads tiny-target's KV cache
    tiny-eagle3   an EAGLE-3 head for tiny-target

vLLM's bugs in such a pairing depend on window, KV sharing and head sizes, but not on width and depth. The heads are
trained on tiny-target, which is made first if OUTDIR lacks it.

Target and draft learn the conversation of talk.py, and to repeat SENTENCE for ever when they are told to count or
explain. The draft and the heads learn a wrong successor for a few of the words, so that some guesses are rejected.

This script runs in the runtime's own Python. It needs only torch, transformers (5.5 or newer; 5.8 for the heads) and
this folder of gemmaspec. Equal versions of both packages give equal bytes for target and draft.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import shutil
import signal
import sys
import tempfile
import types
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a file: only the modules of this folder can be imported
    _folder = types.ModuleType("gemmaspec")
    _folder.__path__ = [str(Path(__file__).resolve().parent.parent)]
    sys.modules.setdefault("gemmaspec", _folder)

import torch  # type: ignore[import-not-found]

from gemmaspec.tiny import assistant, eagle3, pair
from gemmaspec.tiny.words import CHAT_TEMPLATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAIR: dict[str, Callable[[Path, str, int], None]] = {"tiny-target": pair.make_target, "tiny-draft": pair.make_draft}
HEADS: dict[str, Callable[[Path, Path], None]] = {
    "tiny-mtp": assistant.make,
    "tiny-eagle3": eagle3.make,
}


_SIGNAL_OF_PARENTS_DEATH = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""
_AGAIN_S = 5.0


def make(out: Path, name: str, template: str, rounds: int) -> None:
    """Write one model into `out`, completely or not at all."""
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{name}.") as temporary:
        folder = Path(temporary) / name
        folder.mkdir()
        if name in PAIR:
            PAIR[name](folder, template, rounds)
        else:
            HEADS[name](folder, out / "tiny-target")
        for file in folder.iterdir():
            file.chmod(0o644)  # a server in a container may run as another user
        if (out / name).exists():
            shutil.move(out / name, Path(temporary) / "replaced")
        folder.rename(out / name)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="Make tiny Gemma 4 models.")
    parser.add_argument("out", type=Path, help="folder for the models")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join((*PAIR, *HEADS))}")
    parser.add_argument("--chat-template", type=Path, help="a Jinja file to use instead of the minimal template")
    parser.add_argument("--rounds", type=int, default=pair.ROUNDS, help="how long target and draft learn (%(default)s)")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.names if name not in (*PAIR, *HEADS)]:
        parser.error(f"unknown model: {', '.join(unknown)}")
    template = chosen.chat_template.read_text(encoding="utf-8") if chosen.chat_template else CHAT_TEMPLATE
    chosen.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # models this small are slower on several threads, and much slower on a busy machine
    names = list(dict.fromkeys(chosen.names)) or list(PAIR)
    if any(name in HEADS for name in names) and not (chosen.out / "tiny-target" / "config.json").is_file():
        names = ["tiny-target", *(name for name in names if name != "tiny-target")]
    both = set(PAIR) <= set(names)
    beside = _beside(chosen.out, "tiny-draft", template, chosen.rounds) if both else contextlib.nullcontext()
    with beside as done:
        for name in sorted(names, key=[*PAIR, *HEADS].index):
            if not (done and name == "tiny-draft"):
                make(chosen.out, name, template, chosen.rounds)
    return 0


@contextlib.contextmanager
def _beside(out: Path, name: str, template: str, rounds: int) -> Iterator[bool]:
    """Make a model in a second process, on a second core. It ends when this one does."""
    other = multiprocessing.get_context("fork").Process(target=_make_beside, args=(out, name, template, rounds))
    other.start()
    try:
        yield True
        other.join()
    finally:
        while other.is_alive():  # CPython drops an exception that comes in a callback of a weak reference
            other.terminate()
            other.join(_AGAIN_S)
    if other.exitcode:
        raise SystemExit(f"make.py: {name} could not be made (exit code {other.exitcode})")


def _make_beside(out: Path, name: str, template: str, rounds: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an exception, so that nothing half made is left
    ctypes.CDLL(None).prctl(_SIGNAL_OF_PARENTS_DEATH, signal.SIGTERM)
    make(out, name, template, rounds)


if __name__ == "__main__":
    sys.exit(main())
