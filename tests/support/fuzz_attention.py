"""Random batches through Triton's attention of a tree, in Triton's interpreter: how far is each from its definition?

It runs in the environment of `gemmaspec patch prove`, with the tree and patches/_shared on its path:

    fuzz_attention.py '{"seed": 1, "seconds": 60, "only": [3, 17], "like": {"causal": false}}'

`only` computes these cases; `like` sets fields of every batch, to search one class of them.
BF16 and FP8 are rounded by torch here, because Triton 3.7's interpreter multiplies BF16 as whole numbers, and loses the
carry where it rounds to FP8. It prints a list of case number, distance (a share of the largest value), rounding and batch as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import time
from typing import Any

import interpreted  # type: ignore[import-not-found]
import numpy  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]

EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65)
HEADS = (64, 80, 128, 256, 256, 256, 512)
ROWS_AND_KEYS = (16, 32, 64, 128)  # of a launch
ROUNDING = {torch.float32: 1.8e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float8_e4m3fn: 2**-3}
"""One unit of the last place of the weights on each side; see patches/triton-verify-split-kv/numbers.py."""
TYPES = {
    "": (torch.float16, torch.bfloat16),
    "tensor": (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fn),
    "int4": (torch.float32,),
}
"""Of queries, by how the cache is kept."""


def main() -> None:
    """Print what a job gives."""
    sys.stdout.write(f"\n{json.dumps(searched(json.loads(sys.argv[1])))}\n")


def searched(job: dict[str, Any]) -> list[tuple[int, float, float, str]]:
    """Compute the cases of a job, or as many as its seconds allow."""
    module = interpreted.attention()
    mend_interpreter()
    module.current_platform = interpreted.gpu(9)
    ends, found = time.monotonic() + job.get("seconds", 0), []
    for number in job.get("only") or range(10**6):
        if "only" not in job and time.monotonic() > ends:
            break
        found.append(tried(module, random.Random(f"{job['seed']} {number}"), number, job.get("like", {})))
    return found


def tried(module: Any, chance: random.Random, number: int, like: dict[str, Any]) -> tuple[int, float, float, str]:
    """Compute one case; launches of prompts are taken at random, where the tree has a table of them."""
    fixed = {name: tuple(value) if isinstance(value, list) else value for name, value in like.items()}
    if "dtype" in fixed:
        fixed["dtype"] = getattr(torch, fixed["dtype"])
    batch = dataclasses.replace(drawn(chance), **fixed)
    if hasattr(module, "PREFILL_LAUNCH"):
        keys = chance.choice(ROWS_AND_KEYS[batch.dtype.itemsize == 1 : 3])
        module.PREFILL_LAUNCH = {
            (9, batch.head, size): (chance.choice(ROWS_AND_KEYS), keys, 8, 2) for size in (1, 2, 4)
        }
    right, computed = interpreted.exact(batch), interpreted.attend(module, batch)
    off = ((computed - right).abs().max() / right.abs().max()).item()
    rounding = ROUNDING[batch.dtype] + abs(batch.scores) * batch.head * 2**-24
    return number, off if off == off else 1e9, rounding, str(batch)


def mend_interpreter() -> None:
    """Convert what the interpreter keeps as whole numbers, BF16 and FP8, as a GPU does: to the nearest, ties to even."""
    from triton.runtime import interpreter  # type: ignore[import-not-found]

    kinds = {"bf16": (torch.uint16, torch.bfloat16), "fp8e4nv": (torch.uint8, torch.float8_e4m3fn)}
    kinds |= {"fp16": (torch.float16,) * 2, "fp32": (torch.float32,) * 2}
    own = interpreter.InterpreterBuilder
    multiply, simply = own.create_dot, own.cast_impl

    def convert(values: Any, source: Any, target: Any, _rounding: object) -> Any:
        (kept, is_), (keep, becomes) = kinds[source.name], kinds[target.name]
        given = torch.from_numpy(numpy.ascontiguousarray(values)).view(kept).view(is_)
        return given.to(becomes).view(keep).numpy()

    def dot(self: Any, a: Any, b: Any, *more: Any) -> Any:
        wide = interpreter.tl.float32
        a, b = (self.create_fp_to_fp(one, wide, None) if one.dtype.scalar.name in kinds else one for one in (a, b))
        return multiply(self, a, b, *more)

    def cast(self: Any, value: Any, target: Any) -> Any:
        if target.scalar.name != "bf16" or value.dtype.scalar.name in kinds:
            return simply(self, value, target)
        return simply(self, simply(self, value, interpreter.tl.float32), target)

    interpreter._convert_float = convert
    own.create_dot, own.cast_impl = dot, cast


def drawn(chance: random.Random) -> Any:
    """Return a batch; every choice that the patched code reads is among them."""
    queries, size = chance.choice((1, 2, 4, 8, 10, 16, 16, 24)), chance.choice(HEADS)
    requests = chance.choice((1, 1, 1, 2))
    most = chance.choice((1, 5, 8, 16, 17, 40, 40, 40, 40, 40))
    new = tuple(chance.choice((most, most, chance.randint(1, most))) for _ in range(requests))
    cached = tuple(chance.choice((0, *EDGES)) for _ in range(requests))
    more: dict[str, Any] = {"causal": chance.choice((True, False, "each"))}
    if more["causal"] == "each":
        more["causal"] = tuple(chance.random() < 0.4 for _ in range(requests))
    if chance.random() < 0.75:
        more["window"] = chance.choice(EDGES[2:])
    if chance.random() < 0.25:
        more["images"] = tuple(image(chance, a + b) for a, b in zip(new, cached, strict=True))
        more["clamped"] = chance.random() < 0.7
    elif chance.random() < 0.1 and more.get("window"):
        more |= {"lookback": chance.choice((0, 1)), "window": chance.choice((16, 32, 48))}
    elif chance.random() < 0.1 and not more.get("window"):
        more["prefix"] = (chance.choice((0, 7, 33)), chance.choice((1, 16, 33)))
    more |= extras(chance)
    if more["scales"] == "int4":  # has a kernel of its own, which asserts a causal mask and knows no blocks
        size = chance.choice((64, 128, 256, 512))
        more |= {"causal": True, "clamped": False, "lookback": -1, "prefix": (0, 0), "output_scale": 0.0}
    return interpreted.Batch(new=new, cached=cached, head=size, heads=(queries, 1), **more)


def image(chance: random.Random, length: int) -> tuple[int, int]:
    """Return a range of a request's tokens; it may be none."""
    first = chance.randrange(length)
    return (0, 0) if chance.random() < 0.3 else (first, chance.randrange(first, length))


def extras(chance: random.Random) -> dict[str, Any]:
    """Return what changes scores, the cache, the output, or who is split."""
    more: dict[str, Any] = {
        "padding": chance.choice(((0, 0), (0, 0), (2, 3))),
        "threshold": chance.choice((128, 128, 3)),
    }
    if chance.random() < 0.15:
        more["softcap"] = 5.0
    if chance.random() < 0.15:
        more["sinks"] = True
    if chance.random() < 0.15:
        more["alibi"] = chance.choice(("linear", "sqrt"))
    if chance.random() < 0.1:
        more["output_scale"] = 0.01
    more["scales"] = chance.choice(("", "", "", "tensor", "tensor", "int8", "fp8", "int4"))
    if chance.random() < 0.5:
        more["dtype"] = chance.choice(TYPES.get(more["scales"], TYPES[""]))
    elif chance.random() < 0.2 and not more["scales"] and "softcap" not in more:
        more["scores"] = chance.choice((60.0, -60.0))
    return more


if __name__ == "__main__":
    main()
