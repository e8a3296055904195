"""What a profile asks of the model runner; lint and fit share this answer."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from gemmaspec.profile.command import Command
from gemmaspec.profile.model import Profile

_FEATURES: Final = {
    "--kv-sharing-fast-prefill": "KV sharing fast prefill",
    "--ec-transfer-config": "EC transfer",
    "--enable-prompt-embeds": "prompt embeds",
    "--enable-return-routed-experts": "routed experts capture",
    "--enable-dbo": "dual batch overlap",
    "--enable-elastic-ep": "elastic expert parallelism",
    "--logits-processors": "custom logits processors",
}
"""Flag → the words of _get_v2_model_runner_unsupported_features (vllm/config/vllm.py, from 0.22.0)."""


def asked_of_runner(profile: Profile, command: Command, unsupported: AbstractSet[str]) -> frozenset[str]:
    """Return the keys and features that are on and may make vLLM fall back from model runner v2 to v1.

    `unsupported`: what the release's v2 lacks, in vLLM's words; a feature counts only where it is among them.
    """
    spec = profile.speculative
    keys = {
        "parallel_drafting": spec and spec.parallel_drafting,
        "use_heterogeneous_vocab": spec and spec.use_heterogeneous_vocab,
        "--runner pooling": command.value("--runner") == "pooling",
    }
    asked = {words for flag, words in _FEATURES.items() if command.switched(flag)}
    return frozenset(name for name, on in keys.items() if on) | (asked & unsupported)
