"""Which transformers runs Gemma 4 under which vLLM."""

from __future__ import annotations

from typing import Final

from gemmaspec.launcher import launch

TRANSFORMERS_BY_VLLM: Final = (
    (">=0.19.0,<0.29.0", ">=5.5.0,<5.15"),
    (">=0.29.0,<0.31.0", ">=5.10.4,<5.15"),
    (">=0.31.0,<0.32.0", ">=5.10.4,<5.18"),
    (">=0.32.0,<0.33.0", ">=5.16.1,<5.20"),
    (">=0.33.0,<0.34.0", ">=5.16.1,<5.21"),
)
"""(vLLM releases, transformers releases). Lower bounds: Gemma 4's model code, and each wheel's METADATA.
Upper bounds: from 5.16 on the config keeps head sizes by layer, and vLLM up to 0.30 dies on it with
AmbiguousGlobalPerLayerAttributeError (5.17 under 0.26.0 and 5.23 under 0.20.0 were run; 5.15 was not tried);
from 0.31.0 the wheel's METADATA has its own bound. vLLM 0.19.0's METADATA says <5, which has no Gemma 4."""


def transformers_for(vllm: str) -> str | None:
    """The transformers range for one released vLLM; None for a release the table does not know."""
    return next((found for releases, found in TRANSFORMERS_BY_VLLM if launch.contains(releases, vllm)), None)
