"""Where k of a running server can be changed: what was shown, each row with its source. Written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gemmaspec.launcher import range_contains
from gemmaspec.releases.model_runner import RunnerName


@dataclass(frozen=True, kw_only=True)
class LiveK:
    """One release, model runner and method with which a changed k was shown to be obeyed."""

    versions: str
    runner: RunnerName
    method: str
    gpu: bool
    """Whether on a GPU, with CUDA graphs; else on a CPU."""
    source: str


SHOWN: Final = (
    LiveK(
        versions="==0.32.0",
        runner="v1",
        method="draft_model",
        gpu=False,
        source="tiny-cpu on a CPU: tests/test_live_k_real.py",
    ),
)
"""Why no more. mtp under model runner v1 of 0.32.0 gave wrong text when k changed to 0 and back under concurrent
requests: 4 of 28 answers; none of 24 where k changed and was never 0, none of 40 with a fixed k
(docs/guides/live-k.md). Under v2 on an H200 steps and counters were right, and with dummy weights nobody
compared the text: so mtp is refused there too.

Up to 0.23 SpeculativeConfig has no num_speculative_tokens_per_batch_size. 0.24 to 0.31 draft the
started k under model runner v2, whatever is asked for (no use of num_spec_tokens_to_schedule in v1/worker/gpu/). Model
runner v1 on a GPU turns full graphs into piecewise ones (VllmConfig._maybe_override_dynamic_sd_cudagraph_mode): 0.26.0
took two to five times as long for a step on an H200. draft_model, dflash and dspark under v2 of 0.32.0 draft the
started k and cut it: standalone_ar/speculator.py and dflash/speculator.py take num_speculative_tokens and do not use
it. eagle3 and ngram, and all of 0.33.0, were not run."""


def live_k_shown(vllm: str, *, runner: RunnerName, method: str | None, gpu: bool) -> bool:
    """Return whether k of a running server was shown to change under this vLLM, model runner and method."""
    return any(
        range_contains(row.versions, vllm) and (row.runner, row.method, row.gpu) == (runner, method, gpu)
        for row in SHOWN
    )
