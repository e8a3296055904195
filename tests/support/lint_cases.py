"""For every rule of gemmaspec/check/lint, a profile that it finds something in, and one that differs in the least and is fine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gemmaspec.core.checkpoint.model import Checkpoint, Layer, Quantization, TextModel

BASE = """\
schema: 1
name: mine
summary: a test
machine: h200
image: vllm/vllm-openai:v0.33.0
target: {model: google/gemma-4-31B-it}
draft: {model: google/gemma-4-E2B-it}
speculative: {method: draft_model, num_speculative_tokens: 2}
serve: {max_model_len: 4096}
chat: {template: gemma4, reasoning_parser: gemma4, tool_call_parser: gemma4}
"""

Kind = Literal["big", "small"]


def checkpoint(
    kind: Kind = "big", *, vocabulary: int = 262144, context: int = 131072, text_only: bool = False, **config: object
) -> Checkpoint:
    """Three layers in the shape of a 31B, or of an E2B with a layer that shares."""
    big = kind == "big"
    sliding = Layer(kind="sliding", heads=32, kv_heads=16, head_dim=256, window=1024 if big else 512)
    full = Layer(kind="full", heads=32, kv_heads=4, head_dim=512)
    last = full if big else replace(full, shares_with=1)
    text = TextModel(
        layers=(sliding, full, last),
        hidden_size=5376,
        intermediate_size=21504,
        vocab_size=vocabulary,
        max_position_embeddings=context,
    )
    return Checkpoint(
        ref="owner/name",
        revision=None,
        architecture="Gemma4ForCausalLM" if text_only else "Gemma4ForConditionalGeneration",
        model_type="gemma4_text" if text_only else "gemma4",
        dtype="bfloat16",
        text=text,
        modalities=frozenset({"text"} if text_only else {"text", "image"}),
        quantization=None,
        config=config,
    )


def _integers(*groups: str, left: tuple[str, ...] = ()) -> Quantization:
    return Quantization(method="compressed-tensors", algorithm=groups[0], of_groups=groups, excluded=left)


BIG, SMALL = checkpoint(), checkpoint("small")
WORDS_ONLY = checkpoint(text_only=True)
LOOKS_BOTH_WAYS = checkpoint(text_config={"use_bidirectional_attention": "vision"})
MIXTURE = replace(BIG, text=replace(BIG.text, experts=128, experts_per_token=8))
AWQ = replace(BIG, quantization=Quantization(method="modelopt", algorithm="NVFP4_AWQ"))
BITSANDBYTES = replace(BIG, quantization=Quantization(method="bitsandbytes"))
FP8_CACHE = replace(BIG, quantization=Quantization(method="modelopt", algorithm="NVFP4", kv_cache="FP8"))


MOBILE = replace(BIG, quantization=_integers("W2A16 embeddings", "W4A8O8"))
TWO_BITS = replace(BIG, quantization=_integers("W2A16"))
EXACT = replace(
    SMALL, quantization=_integers("W4A16", left=("model.vision_tower.encoder.layers.0.mlp.up_proj.linear",))
)
BY_EXPRESSION = replace(SMALL, quantization=_integers("W4A16", left=("re:.*vision_tower.*",)))
UNIFIED = replace(BIG, model_type="gemma4_unified", config={"vision_config": {"patch_size": 16}})
SOFT = replace(UNIFIED, config={"vision_config": {"num_soft_tokens": 280}})


@dataclass(frozen=True)
class Case:
    """BASE with some values set, under one release; None for the profile's own."""

    release: str | None
    sets: tuple[str, ...] = ()
    target: Checkpoint | None = None
    draft: Checkpoint | None = None
    here: Mapping[str, str] = field(default_factory=dict)
    own: str = ""
    """Lines of a profile that extends BASE; BASE itself when empty."""


def case(
    release: str | None,
    *sets: str,
    target: Checkpoint | None = None,
    draft: Checkpoint | None = None,
    here: Mapping[str, str] | None = None,
    own: str = "",
) -> Case:
    return Case(release, sets, target, draft, here or {}, own)


OFF = "serve.disable_hybrid_kv_cache_manager=true"
BOTH = "patches.required=[kv-spec-uniform-valueerror, kv-sharing-uniform-specs]"
MTP = ("speculative.method=mtp", "draft.model=google/gemma-4-31B-it-assistant")
OF_IDS = "patches.required=[mtp-draft-ids]"
SPARK_MIXTURE = ("machine=dgx-spark", "target.model=google/gemma-4-26B-A4B-it")
DFLASH2 = ("speculative.method=dflash", "draft.model=owner/gemma-4-31B-it-speculator.dflash2")
DFLASH = ("speculative.method=dflash", "draft.model=owner/gemma-4-31B-DFlash")
EAGLE3 = ("speculative.method=eagle3", "draft.model=owner/gemma-4-31B-speculator.eagle3")
NGRAM = ("draft=", "speculative={method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}")
SUFFIX = ("draft=", "speculative.num_speculative_tokens=", "speculative.method=suffix")
"""Without a number vLLM drafts up to suffix_decoding_max_tree_depth tokens, 24 by default."""
SYNTHETIC = "speculative.rejection_sample_method=synthetic"
TABLE = ("speculative.num_speculative_tokens=3", "speculative.k_by_requests={1: 3, 4: 2}")
TRITON = "serve.attention_backend=TRITON_ATTN"
BATCH = "serve.max_num_batched_tokens=2048"
TEXT_ONLY = "serve.language_model_only=true"


def extra(*words: str) -> str:
    return f"serve.extra_args=[{', '.join(words)}]"


MIN_P = extra("--override-generation-config", "'{\"min_p\": 0.05}'")
CASES: dict[str, tuple[Case, Case]] = {
    "GS101 flag": (case("0.21.0", "serve.linear_backend=marlin"), case("0.22.0", "serve.linear_backend=marlin")),
    "GS102 flag_value": (case("0.22.0", "serve.linear_backend=b12x"), case("0.28.0", "serve.linear_backend=b12x")),
    "GS101 speculative_key": (
        case("0.20.2", "speculative.attention_backend=TRITON_ATTN"),
        case("0.21.0", "speculative.attention_backend=TRITON_ATTN"),
    ),
    "GS102 speculative_value": (
        case("0.24.0", "speculative.rejection_sample_method=block"),
        case("0.25.0", "speculative.rejection_sample_method=block"),
    ),
    "GS105 variable": (
        case("0.24.0", "env.VLLM_NVFP4_GEMM_BACKEND=marlin"),
        case("0.23.0", "env.VLLM_NVFP4_GEMM_BACKEND=marlin"),
    ),
    "GS102 variable_value": (
        case("0.33.0", "env.VLLM_FLOAT32_MATMUL_PRECISION=best"),
        case("0.33.0", "env.VLLM_FLOAT32_MATMUL_PRECISION=HIGH"),
    ),
    "GS102 parser": (case("0.33.0", "chat.reasoning_parser=gemma5"), case("0.33.0", "chat.reasoning_parser=qwen3")),
    "GS102 attention_backend": (
        case("0.33.0", "serve.attention_backend=TRITON"),
        case("0.33.0", "serve.attention_backend=triton_attn"),
    ),
    "GS102 unknown_quantization": (
        case("0.33.0", "draft.quantization=nvfp5"),
        case("0.33.0", "draft.quantization=modelopt"),
    ),
    "GS102 cache_dtype": (
        case("0.33.0", "serve.kv_cache_dtype=fp9"),
        case("0.33.0", "serve.kv_cache_dtype=fp8"),
    ),
    "GS111 given_twice": (
        case("0.33.0", extra("--max-model-len", "8192")),
        case("0.33.0", extra("--max-logprobs", "5")),
    ),
    "GS112 partner": (
        case("0.33.0", extra("--enable-auto-tool-choice"), "chat.tool_call_parser="),
        case("0.33.0", extra("--enable-auto-tool-choice")),
    ),
    "GS102 small_values": (
        case("0.33.0", "env.VLLM_LOGGING_LEVEL=LOUD"),
        case("0.33.0", "env.VLLM_LOGGING_LEVEL=debug"),
    ),
    "GS102 value_of_a_flag": (
        case("0.33.0", extra("--gpu-memory-utilization", "'90'")),
        case("0.33.0", extra("--gpu-memory-utilization", "'0.9'")),
    ),
    "GS102 number_of_a_variable": (
        case("0.33.0", "env.VLLM_CPU_KVCACHE_SPACE=4GB"),
        case("0.33.0", "env.VLLM_CPU_KVCACHE_SPACE=4"),
    ),
    "GS101 words_of_a_flag": (
        case("0.33.0", extra("--enable-prefix-caching=false")),
        case("0.33.0", extra("--no-enable-prefix-caching")),
    ),
    "GS102 needed_key": (
        case("0.33.0", extra("--structured-outputs-config.disable_any_whitespace=true")),
        case(
            "0.33.0",
            extra("--structured-outputs-config", """'{"disable_any_whitespace": true, "backend": "xgrammar"}'"""),
        ),
    ),
    "GS201 detected_method": (
        case("0.33.0", "draft.model=owner/gemma-4-E2B-eagle3-free"),
        case("0.33.0", *EAGLE3),
    ),
    "GS202 made_for_another_method": (
        case("0.20.2", "draft.model=google/gemma-4-31B-it-assistant"),
        case("0.33.0", *MTP),
    ),
    "GS203 method_for_gemma": (case("0.20.2", *MTP), case("0.21.0", *MTP)),
    "GS204 head_missing": (case("0.33.0", *MTP, "draft="), case("0.33.0", *MTP)),
    "GS205 draft_parallelism": (
        case("0.30.0", "serve.tensor_parallel_size=2", "speculative.draft_tensor_parallel_size=1"),
        case("0.31.0", "serve.tensor_parallel_size=2", "speculative.draft_tensor_parallel_size=1"),
    ),
    "GS206 async_scheduling": (
        case("0.32.0", *NGRAM, "serve.async_scheduling=true"),
        case("0.33.0", *NGRAM, "serve.async_scheduling=true"),
    ),
    "GS207 unpadded_batch": (
        case("0.33.0", *MTP, "speculative.disable_padded_drafter_batch=true"),
        case("0.33.0", *MTP, "speculative.disable_padded_drafter_batch=true", "serve.async_scheduling=false"),
    ),
    "GS208 synthetic": (
        case("0.33.0", SYNTHETIC, "speculative.synthetic_acceptance_rates=[0.5, 0.7]"),
        case("0.33.0", SYNTHETIC, "speculative.synthetic_acceptance_rates=[0.7, 0.5]"),
    ),
    "GS209 lossy": (
        case("0.33.0", SYNTHETIC, "speculative.synthetic_acceptance_length=2"),
        case("0.33.0", "speculative.rejection_sample_method=block"),
    ),
    "GS210 fly": (
        case("0.33.0", "speculative.rejection_sample_method=fly", "speculative.fly_window_size=2"),
        case("0.33.0", "speculative.rejection_sample_method=fly", "speculative.fly_window_size=1"),
    ),
    "GS211 different_vocabularies": (
        case("0.33.0", "speculative.use_heterogeneous_vocab=true", "speculative.draft_sample_method=probabilistic"),
        case("0.33.0", "speculative.use_heterogeneous_vocab=true", "speculative.draft_sample_method=greedy"),
    ),
    "GS212 vocabulary": (
        case("0.33.0", target=BIG, draft=checkpoint("small", vocabulary=256000)),
        case("0.33.0", target=BIG, draft=SMALL),
    ),
    "GS213 trained_steps": (
        case("0.33.0", *MTP, "speculative.num_speculative_tokens=3", draft=checkpoint(n_predict=2)),
        case("0.33.0", *MTP, "speculative.num_speculative_tokens=4", draft=checkpoint(n_predict=2)),
    ),
    "GS213 block_size": (
        case("0.27.1", "speculative.method=dspark", draft=checkpoint(dspark_block_size=7)),
        case("0.28.0", "speculative.method=dspark", draft=checkpoint(dspark_block_size=7)),
    ),
    "GS215 adaptive_verification": (
        case("0.29.0", "speculative.enable_adaptive_verification=true"),
        case("0.30.0", "speculative.enable_adaptive_verification=true"),
    ),
    "GS216 context": (
        case("0.33.0", "serve.max_model_len=262144", target=BIG),
        case("0.33.0", "serve.max_model_len=262144", "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN='1'", target=BIG),
    ),
    "GS216 shortened_context": (
        case("0.33.0", "speculative.max_model_len=2048"),
        case("0.32.0", "speculative.max_model_len=2048"),
    ),
    "GS218 pipeline": (
        case("0.33.0", *MTP, "serve.pipeline_parallel_size=2"),
        case("0.33.0", *NGRAM, "serve.pipeline_parallel_size=2"),
    ),
    "GS218 partition": (
        case("0.33.0", *NGRAM, "serve.pipeline_parallel_size=2", "env.VLLM_PP_LAYER_PARTITION='1,1'", target=BIG),
        case("0.33.0", *NGRAM, "serve.pipeline_parallel_size=2", target=BIG),
    ),
    "GS219 expert_parallelism": (
        case("0.30.0", extra("-ep"), target=MIXTURE),
        case("0.31.0", extra("-ep"), target=MIXTURE),
    ),
    "GS220 forced_runner": (
        case("0.30.0", "env.VLLM_USE_V2_MODEL_RUNNER='1'"),
        case("0.31.0", "env.VLLM_USE_V2_MODEL_RUNNER='1'"),
    ),
    "GS221 heads": (
        case("0.33.0", "serve.tensor_parallel_size=3", target=BIG, draft=SMALL),
        case("0.33.0", "serve.tensor_parallel_size=4", target=BIG, draft=SMALL),
    ),
    "GS227 api_servers_of_a_headless_rank": (
        case("0.33.0", extra("--headless", "--api-server-count", "2")),
        case("0.33.0", extra("--headless", "--api-server-count", "0")),
    ),
    "GS228 pinned_gid": (
        case("0.33.0", "nodes=2", "env.NCCL_IB_GID_INDEX='3'"),
        case("0.33.0", "env.NCCL_IB_GID_INDEX='3'"),
    ),
    "GS229 external_data_parallelism": (
        case("0.21.0", extra("--data-parallel-rank", "0")),
        case("0.20.2", extra("--data-parallel-rank", "0")),
    ),
    "GS301 several_groups": (case("0.30.0"), case("0.31.0")),
    "GS302 many_groups": (case("0.33.0", *EAGLE3), case("0.33.0", *EAGLE3, OFF)),
    "GS303 fp8_with_mtp": (
        case("0.30.0", *MTP, "serve.kv_cache_dtype=fp8", target=FP8_CACHE),
        case("0.31.0", *MTP, "serve.kv_cache_dtype=fp8", target=FP8_CACHE),
    ),
    "GS304 window_of_one_layer": (
        case("0.27.1", OFF),
        case("0.27.1", OFF, "speculative.attention_backend=TRITON_ATTN"),
    ),
    "GS305 backend_not_inherited": (case("0.26.0", TRITON), case("0.26.0", TRITON, "machine=dgx-spark")),
    "GS305 key_without_effect": (
        case("0.33.0", "speculative.attention_backend=TRITON_ATTN"),
        case("0.30.0", "speculative.attention_backend=TRITON_ATTN"),
    ),
    "GS307 wide_heads": (
        case("0.33.0", "serve.attention_backend=FLASH_ATTN", "machine=dgx-spark"),
        case("0.33.0", "serve.attention_backend=FLASH_ATTN"),
    ),
    "GS307 refused_by_vllm": (
        case("0.33.0", "serve.kv_cache_dtype=nvfp4", "machine=dgx-spark", target=WORDS_ONLY),
        case("0.33.0", "serve.kv_cache_dtype=fp8", "machine=dgx-spark", target=WORDS_ONLY),
    ),
    "GS308 fast_prefill": (
        case("0.33.0", *MTP, "serve.kv_sharing_fast_prefill=true"),
        case("0.33.0", *MTP, "serve.kv_sharing_fast_prefill=false"),
    ),
    "GS309 batch_below_one_item": (
        case("0.20.0", BATCH, target=LOOKS_BOTH_WAYS, draft=SMALL),
        case("0.19.1", BATCH, target=LOOKS_BOTH_WAYS, draft=SMALL),
    ),
    "GS317 fp8_cache_on_several_machines": (
        case("0.19.1", "nodes=2", "serve.kv_cache_dtype=fp8"),
        case("0.20.0", "nodes=2", "serve.kv_cache_dtype=fp8"),
    ),
    "GS401 missing": (case("0.33.0", OFF), case("0.33.0", OFF, BOTH)),
    "GS402 only_optional": (
        case("0.33.0", OFF, "patches.optional=[kv-spec-uniform-valueerror]"),
        case("0.33.0", OFF, BOTH),
    ),
    "GS403 needless": (
        case("0.31.0", "patches.required=[draft-text-only]"),
        case("0.30.0", "patches.required=[draft-text-only]"),
    ),
    "GS404 unknown": (
        case("0.33.0", "patches.optional=[draft-text-onli]"),
        case("0.33.0", "patches.optional=[draft-text-only]"),
    ),
    "GS307 cache_without_a_backend": (case("0.33.0", "serve.block_size=24"), case("0.33.0", "serve.block_size=32")),
    "GS404 wrong_list": (
        case("0.33.0", "patches.required=[faster]"),
        case("0.33.0", "patches.speed=[faster]"),
    ),
    "GS406 speed_unmeasured": (
        case("0.33.0", *MTP, TRITON, "patches.speed=[faster]"),
        case("0.32.0", *MTP, TRITON, "patches.speed=[faster]"),
    ),
    "GS406 speed_of_a_build": (case("0.33.1.dev45"), case("0.33.0")),
    "GS408 own_launches": (
        case("0.33.0", "env.GEMMASPEC_LAUNCHES='32,64'"),
        case("0.33.0", "env.GEMMASPEC_LAUNCHES='prompt:12,512,1=32,64,8,2'", "patches.speed=[triton-launch-params]"),
    ),
    "GS231 without_gpus": (
        case("0.33.0", "speculative.method=dspark", "machine=cpu"),
        case("0.33.0", "speculative.method=dspark", "machine=h200"),
    ),
    "GS202 head_wanted": (case("0.33.0", "speculative.method=mtp", draft=SMALL), case("0.33.0", draft=SMALL)),
    "GS223 other_quantization": (
        case("0.33.0", "target.quantization=modelopt", target=BIG),
        case("0.33.0", "target.quantization=modelopt", target=AWQ),
    ),
    "GS232 too_few_bits": (case("0.22.1", target=MOBILE), case("0.26.0", target=MOBILE)),
    "GS233 exact_names_of_a_draft": (case("0.33.0", draft=EXACT), case("0.33.0", draft=BY_EXPRESSION)),
    "GS234 soft_tokens": (case("0.33.0", target=UNIFIED), case("0.33.0", target=SOFT)),
    "GS235 listed_ids": (
        case("0.33.0", "draft.ids=/ids.json", OF_IDS),
        case("0.33.0", *MTP, "draft.ids=/ids.json", OF_IDS),
    ),
    "GS810 head_of_another_training": (
        case("0.33.0", *MTP, "target.model=google/gemma-4-31B-it-qat-w4a16-ct"),
        case("0.33.0", *MTP, "target.model=google/gemma-4-31B-it"),
    ),
    "GS811 target_trained_further": (
        case("0.33.0", *MTP, "target.model=owner/gemma-4-31B-it-abliterated"),
        case("0.33.0", *MTP, "target.model=owner/gemma-4-31B-it-NVFP4"),
    ),
    "GS230 checkpoint_too_old": (case("0.33.0", target=BITSANDBYTES), case("0.26.0", target=BITSANDBYTES)),
    "GS219 experts_of_a_dense_model": (
        case("0.33.0", extra("--enable-expert-parallel"), target=BIG),
        case("0.33.0", extra("--enable-expert-parallel"), target=MIXTURE),
    ),
    "GS222 split_experts": (
        case("0.33.0", "target.model=nvidia/Gemma-4-26B-A4B-NVFP4", "serve.tensor_parallel_size=2"),
        case(
            "0.33.0",
            "target.model=nvidia/Gemma-4-26B-A4B-NVFP4",
            "serve.tensor_parallel_size=2",
            extra("--enable-expert-parallel"),
        ),
    ),
    "GS225 too_few_gpus": (
        case("0.33.0", "serve.tensor_parallel_size=2", "machine=dgx-spark"),
        case("0.33.0", "serve.tensor_parallel_size=2", extra("--nnodes=2"), "machine=dgx-spark"),
    ),
    "GS309 batch_below_sequences": (
        case("0.33.0", "serve.max_num_batched_tokens=128", "serve.max_num_seqs=256", TEXT_ONLY),
        case("0.33.0", "serve.max_num_batched_tokens=256", "serve.max_num_seqs=256", TEXT_ONLY),
    ),
    "GS309 batch_below_context": (
        case("0.33.0", "serve.max_num_batched_tokens=2500", "serve.enable_chunked_prefill=false"),
        case("0.33.0", "serve.max_num_batched_tokens=4096", "serve.enable_chunked_prefill=false"),
    ),
    "GS312 fp8_with_mtp_on_hopper": (
        case("0.26.0", *MTP, "serve.kv_cache_dtype=fp8"),
        case("0.32.0", *MTP, "serve.kv_cache_dtype=fp8"),
    ),
    "GS307 dflash_attention": (
        case("0.22.1", *DFLASH, "speculative.attention_backend=TRITON_ATTN"),
        case("0.24.0", *DFLASH, "speculative.attention_backend=TRITON_ATTN"),
    ),
    "GS312 mtp_on_blackwell": (case("0.33.0", *MTP, "machine=b200"), case("0.33.0", *MTP, "machine=b200", TRITON)),
    "GS309 batch_below_drafts": (
        case("0.26.0", *DFLASH, "machine=dgx-spark", "speculative.num_speculative_tokens=15"),
        case("0.28.0", *DFLASH, "machine=dgx-spark", "speculative.num_speculative_tokens=15"),
    ),
    "GS216 no_window": (
        case("0.33.0", extra("--disable-sliding-window")),
        case("0.33.0", extra("--disable-sliding-window"), "serve.max_model_len=1024"),
    ),
    "GS505 many_tokens": (
        case("0.33.0", *SPARK_MIXTURE, "speculative.num_speculative_tokens=4", "serve.max_num_seqs=8"),
        case("0.33.0", *SPARK_MIXTURE, "speculative.num_speculative_tokens=4", "serve.max_num_seqs=1"),
    ),
    "GS506 long_prompts": (
        case("0.32.0", *MTP, TRITON, "serve.max_model_len=32768", "patches.speed=off"),
        case("0.33.0", *MTP, TRITON, "serve.max_model_len=32768"),
    ),
    "GS605 streamed_tool_calls": (case("0.23.0"), case("0.24.0")),
    "GS820 table_does_not_hold": (
        case("0.31.0", *MTP, *TABLE),
        case("0.32.0", *MTP, *TABLE),
    ),
    "GS820 table_against_others": (
        case("0.32.0", *MTP, *TABLE, "serve.extra_args=['--data-parallel-size=2']"),
        case("0.32.0", *MTP, *TABLE),
    ),
    "GS822 table_not_compared": (
        case("0.32.0", "speculative.method=eagle3", *TABLE),
        case("0.32.0", *MTP, *TABLE),
    ),
    "GS501 drafts_without_graphs": (
        case("0.33.0", "serve.enforce_eager=true"),
        case("0.33.0", "serve.enforce_eager=true", "machine=cpu"),
    ),
    "GS504 unified_memory": (
        case("0.33.0", "serve.gpu_memory_utilization=0.95", "machine=dgx-spark"),
        case("0.33.0", "serve.gpu_memory_utilization=0.95"),
    ),
    "GS601 thoughts_leak": (
        case("0.33.0", "chat.template_kwargs.enable_thinking=true", "chat.reasoning_parser="),
        case("0.33.0", "chat.template_kwargs.enable_thinking=true"),
    ),
    "GS601 thoughts_on_request": (
        case("0.33.0", "chat.reasoning_parser="),
        case("0.33.0", "chat.reasoning_parser=", "chat.template_kwargs.enable_thinking=false"),
    ),
    "GS603 foreign_parser": (case("0.33.0", "chat.tool_call_parser=pythonic"), case("0.33.0")),
    "GS604 tools_without_template": (case("0.33.0", "chat.template="), case("0.33.0")),
    "GS606 no_tool_parser": (case("0.33.0", "chat.tool_call_parser="), case("0.33.0")),
    "GS701 assumed": (case(None, "image=vllm/vllm-openai:cu130-nightly"), case(None)),
    "GS702 moving_tag": (case("0.33.0", "image=vllm/vllm-openai"), case("0.33.0", "image=vllm/vllm-openai:v0.33.0")),
    "GS702 snapshot": (
        case(None, *MTP, "image=vllm/vllm-openai:gemma4-0505-arm64-cu130"),
        case("0.33.0", *MTP, "image=vllm/vllm-openai:v0.33.0-cu130"),
    ),
    "GS703 too_old": (case("0.18.1"), case("0.19.0")),
    "GS704 two_vllms": (case(None, "runtime.vllm=0.32.0"), case(None, "runtime.vllm=0.33.0")),
    "GS705 transformers_apart": (
        case("0.27.1", "runtime.packages.transformers='>=5.17,<5.19'"),
        case("0.32.0", "runtime.packages.transformers='>=5.17,<5.19'"),
    ),
    "GS705 transformers_wider": (
        case("0.26.0", "runtime.packages.transformers='>=5.5.0,<5.16'"),
        case("0.26.0", "runtime.packages.transformers='>=5.5.0,<5.15'"),
    ),
    "GS705 transformers_for_mtp": (
        case("0.26.0", *MTP, "runtime.packages.transformers='>=5.5,<5.8'"),
        case("0.26.0", *MTP, "runtime.packages.transformers='>=5.5,<5.9'"),
    ),
    "GS709 package_of_suffix": (
        case("0.33.0", *SUFFIX),
        case("0.33.0", *SUFFIX, "runtime.packages={arctic_inference: '>=0.1.1,<0.2'}"),
    ),
    "GS710 architecture": (
        case("0.22.1", "target.model=google/gemma-4-12B-it"),
        case("0.23.0", "target.model=google/gemma-4-12B-it"),
    ),
    "GS708 not_in_table": (case("0.32.1"), case("0.32.0")),
    "GS801 instruct_head_on_base": (case("0.32.0", *MTP, "target.model=google/gemma-4-31B"), case("0.32.0", *MTP)),
    "GS802 head_of_another_size": (
        case("0.32.0", *MTP, "draft.model=google/gemma-4-26B-A4B-it-assistant"),
        case("0.32.0", *MTP, "target.model=RedHatAI/gemma-4-31B-it-NVFP4"),
    ),
    "GS803 sampling_refused": (case("0.32.0", *MTP, MIN_P), case("0.32.0", "draft=", "speculative=", MIN_P)),
    "GS804 json_under_concurrency": (case("0.24.0", *MTP), case("0.26.0", *MTP)),
    "GS807 unknown_format": (case("0.29.0", *DFLASH2), case("0.30.0", *DFLASH2)),
    "GS809 unknown_size": (
        case("0.32.0", *MTP, "target.model=google/gemma-4-62B-it"),
        case("0.32.0", *MTP, "target.model=google/gemma-4-12B-it"),
    ),
    "GS901 emptied": (case("0.33.0", own="serve:\n  # max_model_len: 1024\n"), case("0.33.0", own="serve: null\n")),
    "GS902 model_folder": (
        case("0.33.0", "target.model=/models/gemma-4-31B", here={"target": "missing"}),
        case("0.33.0", "target.model=/models/gemma-4-31B", here={"target": "folder"}),
    ),
    "GS902 model_file": (
        case("0.33.0", "target.model=/models/gemma-4-31B", here={"target": "file"}),
        case("0.33.0", "target.model=/models/gemma-4-31B", here={"target": "folder"}),
    ),
    "GS904 template_file": (
        case("0.33.0", "chat.template=gemma5", here={"template": "missing"}),
        case("0.33.0", "chat.template=gemma4"),
    ),
}
