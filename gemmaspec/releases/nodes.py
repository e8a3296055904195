"""What vLLM's releases allow a server on several machines, from their code and from people who ran it."""

from __future__ import annotations

from typing import Final

FP8_CACHE_FAILS: Final = "<0.20"
"""Releases in which FP8 KV caches were seen to fail on two machines: "KV cache specs for the same layer are different
across workers" (the recipe for two DGX Sparks of vLLM's own collection, 0.19.1). Later ones were not tried by anybody
whose report is known here."""

DENSE_WITHOUT_EXTERNAL_DP: Final = ">=0.21"
"""Releases that refuse external data parallelism for a model without experts (ParallelConfig in
vllm/config/parallel.py, 0.21.0-0.33.0): "Non-MoE models do not support external data parallel mode"."""
