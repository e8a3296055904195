"""`speculative`: the keys of vLLM's speculative config that a profile may set."""

from typing import Annotated, Final, Literal

from pydantic import Field, StrictBool

from gemmaspec.profile.fields import Int, Positive, Section, Text

LOOK_UPS: Final = frozenset({"ngram", "suffix"})
"""Methods without a draft model: they look drafts up in the text, and one that repeats nothing has none."""


class Speculative(Section):
    """How target and draft speculate; field names, but for `k_by_requests`, are keys of vLLM's SpeculativeConfig."""

    method: Literal["draft_model", "eagle", "eagle3", "mtp", "ngram", "suffix", "dflash", "dspark"]
    """draft_model: an E2B or E4B. eagle3, mtp, dflash, dspark: heads trained for the target. ngram, suffix: no draft.

    The subset of vLLM's literals (vllm/config/speculative.py, every release) that can draft for Gemma 4 without
    another project's code.
    """
    num_speculative_tokens: Positive | None = None
    """Tokens drafted before each step of the target; more of them pay off on slower memory."""
    k_by_requests: dict[Positive, Annotated[Int, Field(ge=0)]] | None = None
    """Tokens to draft by the number of running requests: {1: 6, 4: 3, 8: 2} drafts 6 for up to 3 requests, 3 for 4 to 7
    and 2 from 8 on. It begins at 1, and its largest value is num_speculative_tokens. Rendered as vLLM's
    num_speculative_tokens_per_batch_size; lint says where that works."""
    draft_tensor_parallel_size: Positive | None = None
    """GPUs that the draft is spread over: 1, or as many as the target's."""
    max_model_len: Positive | None = None
    """Longest context, in tokens, up to which the draft drafts."""
    attention_backend: Text | None = None
    """Attention kernels of the draft (TRITON_ATTN, FLASH_ATTN …)."""
    kv_cache_dtype: Text | None = None
    """Format of the draft's KV cache; the target's when not given."""
    moe_backend: Text | None = None
    """Mixture-of-experts kernels of the draft."""
    enforce_eager: StrictBool | None = None
    """Disable CUDA graphs for the draft; this costs most of what speculation gains."""
    disable_padded_drafter_batch: StrictBool | None = None
    """Draft for sequences of different lengths without padding them."""
    parallel_drafting: StrictBool | None = None
    """Draft all tokens in one pass, for a draft that was trained for it."""
    use_local_argmax_reduction: StrictBool | None = None
    """Reduce the draft's logits on each GPU before they are gathered; greedy drafting only."""
    use_heterogeneous_vocab: StrictBool | None = None
    """Allow a draft with another vocabulary than the target; it drafts only tokens that both have."""
    draft_sample_method: Literal["greedy", "gumbel", "probabilistic"] | None = None
    """How the draft picks its tokens."""
    rejection_sample_method: Literal["strict", "probabilistic", "standard", "synthetic", "block", "fly"] | None = None
    """How drafted tokens are accepted. synthetic (to measure costs) and fly do not preserve the target's answers."""
    synthetic_acceptance_rates: list[Annotated[float, Field(ge=0, le=1)]] | None = None
    """With synthetic: the probability that all tokens up to each position are accepted."""
    synthetic_acceptance_length: Annotated[float, Field(ge=1)] | None = None
    """With synthetic: 1 + accepted / drafts, as the server should report it."""
    fly_window_size: Positive | None = None
    """With fly: how many following acceptances are checked."""
    fly_entropy_threshold: Annotated[float, Field(ge=0)] | None = None
    """With fly: the target's entropy above which a token may be accepted loosely."""
    fly_entropy_top_k: Positive | None = None
    """With fly: how many of the target's probabilities the entropy covers."""
    dspark_draft_topk: Positive | None = None
    """With dspark: candidates of each drafted token."""
    enable_adaptive_verification: StrictBool | None = None
    """With dspark: verify fewer tokens when the draft is unsure."""
    xpress_topc: Annotated[Int, Field(ge=0)] | None = None
    """With dflash and an XPress head: candidates that each pass scores; 0 scores the whole vocabulary."""
    draft_lm_head_quantization: Literal["fp8", "nvfp4"] | None = None
    """Quantize the draft's copy of the output head that it shares with the target."""
    disable_eagle_block_drop: StrictBool | None = None
    """Keep the last prefix-cache block of eagle, eagle3 and mtp; for measurements."""
    disable_lookahead_block_hashes: StrictBool | None = None
    """Hash prefix-cache blocks without the tokens that the draft reads ahead."""
    prompt_lookup_max: Positive | None = None
    """With ngram: the longest run of tokens to look up."""
    prompt_lookup_min: Positive | None = None
    """With ngram: the shortest run of tokens to look up."""
    suffix_decoding_max_tree_depth: Positive | None = None
    """With suffix: depth of the suffix trees."""
    suffix_decoding_max_cached_requests: Annotated[Int, Field(ge=0)] | None = None
    """With suffix: number of earlier requests to keep; 0 keeps none."""
    suffix_decoding_max_spec_factor: Annotated[float, Field(ge=0)] | None = None
    """With suffix: number of drafted tokens, as a multiple of the matched length."""
    suffix_decoding_min_token_prob: Annotated[float, Field(ge=0, le=1)] | None = None
    """With suffix: minimum probability of a drafted token."""

    def k_at(self, requests: int) -> int:
        """Return how many tokens are drafted with so many running requests; 0 where that is not fixed."""
        rows = sorted((self.k_by_requests or {}).items(), reverse=True)
        return next((k for start, k in rows if start <= requests), self.num_speculative_tokens or 0)

    @property
    def k_table(self) -> list[list[int]]:
        """The same as vLLM takes it: first and last number of requests, and k; the last row holds for all above it.

        Source: vllm/v1/spec_decode/dynamic/utils.py, from 0.24.0.
        """
        rows = sorted((self.k_by_requests or {}).items())
        ends = [start - 1 for start, _ in rows[1:]] + [start for start, _ in rows[-1:]]
        return [[start, end, k] for (start, k), end in zip(rows, ends, strict=True)]
