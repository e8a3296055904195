"""Which transformers releases run Gemma 4 with which vLLM releases."""

from __future__ import annotations

from typing import Final

from gemmaspec import launcher

TRANSFORMERS_BY_VLLM: Final = (
    (">=0.19.0,<0.28.0", ">=5.5.0,<5.15"),
    (">=0.28.0,<0.29.0", ">=5.5.3,<5.18"),
    (">=0.29.0,<0.32.0", ">=5.10.4,<5.18"),
    (">=0.32.0,<0.33.0", ">=5.16.1,<5.20"),
    (">=0.33.0,<0.34.0", ">=5.16.1,<5.21"),
)
"""(vLLM releases, transformers releases). Lower bounds: Gemma 4's model code, and each wheel's METADATA; 0.19.0's says
<5, which has no Gemma 4.

Upper bounds: from 5.15.0 on transformers keeps Gemma 4's head sizes by layer (per_layer_config). vLLM up to 0.27.1
reads them from the whole config and dies with AmbiguousGlobalPerLayerAttributeError: 0.27.1 with 5.15.1 and 5.17.0,
0.26.0 with 5.17, 0.20.0 with 5.23 were run. From 0.28.0 on gemma4_layer_config in
vllm/transformers_utils/configs/gemma4.py reads both forms: 0.28.0, 0.29.0 and 0.30.0 read the tiny pair's config from
5.14.1, 5.15.1 and 5.17.0 alike, and 0.30.0 serves the tiny target with 5.17.0. 0.31.0, with the same code, is the first
whose METADATA has an upper bound, which is used for earlier releases too."""

ASSISTANTS_FROM: Final = "5.8.0"
"""The first transformers with Gemma 4's MTP head (vLLM 0.21's tests/models/registry.py)."""


def transformers_for(vllm: str) -> str | None:
    """Return the transformers range for one released vLLM; None for a release that is not in the table."""
    return next((found for releases, found in TRANSFORMERS_BY_VLLM if launcher.range_contains(releases, vllm)), None)
