"""Made-up Gemma 4 shapes and flag sets, and how the KV cache of each is planned: here, and by vLLM itself."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemmaspec.check.fit.kvgroups import KvCache, Unplannable, groups_of
from gemmaspec.check.fit.kvspec import Owned, kv_rules, layer_caches
from gemmaspec.core.checkpoint.model import Layer, TextModel

ORACLE = Path(__file__).with_name("kv_oracle.py")


def text_model(layers: Sequence[Layer], *, context: int = 131072) -> TextModel:
    """A decoder of which only the layers matter."""
    return TextModel(
        layers=tuple(layers),
        hidden_size=128,
        intermediate_size=256,
        vocab_size=1024,
        max_position_embeddings=context,
    )


def gemma(
    *,
    count: int,
    every: int,
    window: int,
    kv_heads: tuple[int, int],
    head_dim: tuple[int, int] = (256, 512),
    shared: int = 0,
) -> TextModel:
    """`count` layers of which every `every`-th is full; kv_heads and head_dim as (sliding, full)."""
    kinds = ["full" if index % every == every - 1 else "sliding" for index in range(count)]
    layers = []
    for index, kind in enumerate(kinds):
        full = kind == "full"
        earlier = [other for other in range(count - shared) if kinds[other] == kind]
        layers.append(
            Layer(
                kind="full" if full else "sliding",
                heads=8,
                kv_heads=kv_heads[full],
                head_dim=head_dim[full],
                window=None if full else window,
                shares_with=earlier[-1] if index >= count - shared else None,
            )
        )
    return text_model(layers)


def published(name: str) -> TextModel:
    """The layers of a published model, as its config.json has them."""
    shapes: dict[str, dict[str, Any]] = {
        "31B": {"count": 60, "every": 6, "window": 1024, "kv_heads": (16, 4)},
        "26B-A4B": {"count": 30, "every": 6, "window": 1024, "kv_heads": (8, 2)},
        "E2B": {"count": 35, "every": 5, "window": 512, "kv_heads": (1, 1), "shared": 20},
        "E4B": {"count": 42, "every": 6, "window": 512, "kv_heads": (2, 2), "shared": 18},
    }
    return gemma(**shapes[name])


def cases(number: int, seed: int) -> list[dict[str, Any]]:
    """Random pairs and flag sets, the same for the same seed."""
    source = random.Random(seed)
    return [_case(source) for _ in range(number)]


def _case(source: random.Random) -> dict[str, Any]:
    every = source.choice((2, 3, 5, 6))
    shared = source.choice((0, 0, 3, 5))
    target = gemma(
        count=every * source.randint(1, 6) + source.choice((0, 0, 1)) + shared * every,
        every=every,
        window=source.choice((512, 1024, 300)),
        kv_heads=source.choice(((16, 4), (2, 1), (1, 1), (8, 2), (3, 2))),
        head_dim=source.choice(((256, 512), (128, 256), (256, 256))),
        shared=shared,
    )
    return {
        "target": target,
        "draft": source.choice((None, published("E2B"), published("E4B"), target)),
        "device": source.choice(("cpu", "gpu")),
        "hybrid": source.random() < 0.6,
        "joins_windows": source.random() < 0.5,
        "block_size": source.choice((16, 32, 48, 64, 128)),
        "max_model_len": source.choice((100, 1024, 4096, 131072)),
        "max_num_batched_tokens": source.choice((512, 2048, 8192)),
        "batches": source.choice((1, 2)),
        "dtype": source.choice(("auto", "fp8")),
        "available": source.randint(1, 2**36),
    }


def owned(case: dict[str, Any], vllm: str) -> list[Owned]:
    """The caches of both models, planned here."""
    rules = kv_rules(vllm, cpu=case["device"] == "cpu")
    found: list[Owned] = []
    for role in ("target", "draft"):
        if model := case[role]:
            found += layer_caches(model, role=role, rules=rules, block_size=case["block_size"], dtype=case["dtype"])
    return found


def ours(case: dict[str, Any], vllm: str) -> dict[str, Any]:
    """The answer of gemmaspec.check.fit, in the oracle's words."""
    rules = kv_rules(vllm, cpu=case["device"] == "cpu")
    in_flight = case["max_num_batched_tokens"] * (case["batches"] if rules.batches_in_flight else 1)
    try:
        groups = groups_of(owned(case, vllm), rules, hybrid=case["hybrid"], joins_windows=case["joins_windows"])
    except Unplannable as error:
        return {"error": str(error)}
    cache = KvCache(groups=tuple(groups), rules=rules, in_flight=in_flight)
    available, tokens = case["available"], case["max_model_len"]
    if not cache.starts_with(available, tokens):
        return {"error": "too little memory"}
    return {
        "num_blocks": cache.num_blocks(available),
        "concurrency": cache.concurrency(available, tokens),
        "tokens": cache.logged_tokens(available, tokens),
        "groups": sorted([len(group.layers), group.block_size] for group in groups),
        "needed": cache.request_bytes(tokens),
    }


def theirs(python: Path, wanted: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of an installed vLLM, from one process."""
    command = [str(python), str(ORACLE)]
    done = subprocess.run(command, input=_jobs(wanted), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


PROBE = """
import json, runpy
oracle = runpy.run_path({oracle!r})
def probe():
    return True, json.dumps([oracle["answer"](job) for job in json.loads({jobs!r})])
"""


def asking(folder: Path, wanted: Sequence[dict[str, Any]]) -> Path:
    """Write a probe that sees the answers of the tree that it runs on, as JSON."""
    file = folder / "probe.py"
    file.write_text(PROBE.format(oracle=str(ORACLE), jobs=_jobs(wanted)))
    return file


def _jobs(wanted: Sequence[dict[str, Any]]) -> str:
    return json.dumps([{**case, "target": None, "draft": None, "layers": _layers(case)} for case in wanted])


def _layers(case: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{role}.{index}",
            "window": layer.window,
            "kv_heads": layer.kv_heads,
            "head_dim": layer.head_dim,
            "dtype": case["dtype"],
        }
        for role in ("target", "draft")
        if case[role]
        for index, layer in enumerate(case[role].layers)
        if layer.shares_with is None
    ]
