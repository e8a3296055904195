"""Fixes of what keeps full CUDA graphs beside a draft where images need a mask."""

from __future__ import annotations

from tests.support.foreign_fixes import Fixes

SHORT = "        if metadata.max_query_len <= MAX_SHORT_QUERY_LEN:\n            return 0\n"
ELSE = "        return super().select(metadata)\n"
CONSTANT = "MAX_SHORT_QUERY_LEN = 16\n"
CAPTURED = "    capture_variant: ClassVar[int] = 0\n"
LIMIT = "            and speculative.num_speculative_tokens >= MAX_SHORT_QUERY_LEN\n"
FALLS_BACK = "            return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE\n        return support\n"
POLICY = "    routing_policy=ShortQueryRouting,\n"
V2 = "        if vllm_config.use_v2_model_runner:\n            return AttentionCGSupport.UNIFORM_BATCH\n"
BOTH = """\
            self.supports_draft_decode_metadata_update = all(
                builder.supports_draft_decode_metadata_update
                for builder in self._builders
            )
"""
UPDATES = "            builder = self._builders[metadata._attention_backend_variant]\n"
CLAMPED = "            mm_prefix_clamp_sliding_window=self.is_sliding,\n"
COMPOSITE = (
    Fixes(
        release="0.33.0",
        path="vllm/v1/attention/backends/triton_flash_attn.py",
        patched=True,
        right=[
            [(SHORT + ELSE, "        short = metadata.max_query_len < MAX_SHORT_QUERY_LEN + 1\n        return 0 if short else super().select(metadata)\n")],
            [(LIMIT, "            and 1 + speculative.num_speculative_tokens > MAX_SHORT_QUERY_LEN\n")],
        ],
        wrong=[
            [(SHORT, SHORT.replace("<=", "<"))],
            [(SHORT, SHORT.replace("return 0", "return 1"))],
            [(SHORT, "")],
            [(ELSE, "        return 1\n")],
            [(ELSE, "        return 0\n")],
            [(CONSTANT, CONSTANT.replace("16", "8"))],
            [(CONSTANT, CONSTANT.replace("16", "32"))],
            [(CAPTURED, CAPTURED.replace("= 0", "= 1"))],
            [(LIMIT, LIMIT.replace(">=", ">"))],
            [(LIMIT, LIMIT.replace(">=", "<"))],
            [(FALLS_BACK, FALLS_BACK.replace("        return support", "        return AttentionCGSupport.UNIFORM_BATCH"))],
            [(POLICY, "    routing_policy=MMPrefixAttentionRouting,\n")],
        ],
    ),
    Fixes(
        release="0.33.0",
        path="vllm/v1/attention/backends/composite.py",
        patched=True,
        right=[
            [(V2, "        if getattr(vllm_config, 'use_v2_model_runner', False) is True:\n            return AttentionCGSupport.UNIFORM_BATCH\n")],
            [(UPDATES, "            builder = self.causal_builder if metadata._attention_backend_variant else self.general_builder\n")],
            [(BOTH, "            self.supports_draft_decode_metadata_update = (\n                self.general_builder.supports_draft_decode_metadata_update and self.causal_builder.supports_draft_decode_metadata_update\n            )\n")],
        ],
        wrong=[
            [(V2, V2.replace("vllm_config.use_v2_model_runner", "True"))],
            [(V2, V2.replace("vllm_config.use", "not vllm_config.use"))],
            [(V2, V2.replace("UNIFORM_BATCH", "ALWAYS"))],
            [(V2, "        return AttentionCGSupport.UNIFORM_BATCH\n")],
            [(BOTH, BOTH.replace("all(", "any("))],
            [(BOTH, "            self.supports_draft_decode_metadata_update = True\n")],
            [(UPDATES, UPDATES.replace("[metadata", "[1 - metadata"))],
            [(UPDATES, "            builder = self.general_builder\n")],
        ],
    ),
    Fixes(
        release="0.33.0",
        path="vllm/model_executor/models/gemma4_mtp.py",
        patched=True,
        right=[[(CLAMPED, "            mm_prefix_clamp_sliding_window=sliding_window is not None,\n")]],
        wrong=[
            [(CLAMPED, "")],
            [(CLAMPED, CLAMPED.replace("self.is_sliding", "False"))],
            [(CLAMPED, CLAMPED.replace("self.is_sliding", "not self.is_sliding"))],
            [(CLAMPED + "            prefix", CLAMPED + "            prefix"), ("            per_layer_sliding_window=sliding_window,\n", "            per_layer_sliding_window=None,\n")],
        ],
    ),
)  # fmt: skip
