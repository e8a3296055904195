"""A program: model runner v2's rejection sampler in Triton's interpreter, with drafts from a list of ids.

Run it with the folders of Triton, of a vLLM's sources and of patches/_shared. It prints JSON: how many of N sampled
tokens each id is, and how likely the target makes each. Half of the target's likely ids are not in the list, a whole
block of the vocabulary among them.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

sys.path[:0] = sys.argv[1:]

import interpreted  # type: ignore[import-not-found]  # noqa: E402

interpreted.attention()

import torch  # type: ignore[import-not-found]  # noqa: E402
import triton.language as tl  # type: ignore[import-not-found]  # noqa: E402
from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils  # type: ignore[import-not-found]  # noqa: E402

N, WORDS, TEMPERATURE = 240, 8192 + 1024, 0.8
LISTED = torch.arange(12)
LIKELY = torch.tensor([*range(16), *range(8292, 8300)])
# Triton's interpreter has none of the GPU's own functions.
rejection_sampler_utils.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1.0 + x))


def scores(ids: torch.Tensor) -> torch.Tensor:
    """Return a row of logits that are minus infinity but for these ids."""
    row = torch.full((WORDS,), -float("inf"))
    row[ids] = 1.2 * torch.randn(len(ids))
    return row


torch.manual_seed(1)
target, draft = scores(LIKELY), scores(LISTED)
wanted = torch.softmax(target / TEMPERATURE, -1)
proposed = torch.zeros(2 * N, dtype=torch.int64)  # of each request the last token, and the one that was drafted
proposed[1::2] = torch.multinomial(torch.softmax(draft / TEMPERATURE, -1), N, replacement=True)
requests = torch.arange(N, dtype=torch.int32)
sampled, _ = rejection_sampler_utils.rejection_sample(
    (target / TEMPERATURE).expand(2 * N, WORDS).contiguous(),
    draft.expand(N, 1, WORDS).contiguous(),
    proposed,
    torch.arange(0, 2 * N + 1, 2, dtype=torch.int32),
    torch.arange(2 * N),
    requests,
    requests.repeat_interleave(2),
    torch.tensor([0, 1] * N, dtype=torch.int32),
    torch.full((N,), TEMPERATURE),
    torch.arange(N) * 7919 + 3,
    1,
)
counts = torch.bincount(sampled[:, 0], minlength=WORDS)
found = {
    "answers": N,
    "elsewhere": N - int(counts[LIKELY].sum()),
    "unlisted": int(counts[LIKELY[12:]].sum()),
    "counts": counts[LIKELY].tolist(),
    "wanted": wanted[LIKELY].tolist(),
}
json.dump(found, sys.stdout)
