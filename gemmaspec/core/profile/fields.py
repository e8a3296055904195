"""Types of a profile's values, with the checks that need only one field, and the keys of `speculative`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool

from gemmaspec.core.webhooks import webhook

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_IMAGE: Final = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]*")
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY|CREDENTIAL", re.IGNORECASE)
_SIZE: Final = re.compile(r"(?:[1-9][0-9]{0,14}|[0-9]{1,9}\.[0-9]{1,6})(b|k|m|g|kb|mb|gb)", re.IGNORECASE)
"""As Docker reads sizes, with decimals (RAMInBytes)."""
_HUB_PAGE: Final = re.compile(rf"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/({_HUB_ID.pattern})")
_RELEASE: Final = re.compile(r"[0-9]+(\.[0-9]+)+")
_CORES: Final = re.compile(r"RANGE(,RANGE)*(\|RANGE(,RANGE)*)*".replace("RANGE", r"[0-9]{1,4}(-[0-9]{1,4})?"))
_SPECIFIER: Final = re.compile(r"(>=|<=|==|!=|<|>)\s*[0-9]+(\.[0-9]+)*")
LOCAL_PREFIXES: Final = ("/", "~/", "./", "../", "state:")


def _printable(value: str) -> str:
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError("contains a control character")
    return value


def matching(pattern: re.Pattern[str], wanted: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{value!r} is not {wanted}")
        return value

    return AfterValidator(check)


def _whole_number(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[-+]?[0-9]+", value):
        if _expanded(value):
            hint = f"; write {_expanded(value)}"
        else:
            hint = ""
        raise ValueError(f"{value!r} is not a whole number{hint}")
    return value


def _expanded(value: str) -> int | None:
    """Return the number that is meant: 128k (of 1024, as for context lengths), 8000:8000, 32_768, 1e3."""
    text = value.strip()
    if match := re.fullmatch(r"([0-9]{1,9})\s*([kKmM])i?", text):
        return int(match[1]) * (1024 if match[2] in "kK" else 1024**2)
    if match := re.fullmatch(r"(?:[0-9.]+:)?([0-9]{1,5}):[0-9]{1,5}", text):
        return int(match[1])  # 8001:8000 publishes port 8001
    if re.fullmatch(r"[0-9]{1,3}(?:[_,][0-9]{3}){1,3}", text):
        return int(re.sub("[_,]", "", text))
    if re.fullmatch(r"[0-9]{1,3}[eE][0-9]", text):
        return int(float(text))
    return None


def _text_of_number(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def _bounded(value: str) -> str:
    parts = [part.strip() for part in value.split(",")]
    if not all(_SPECIFIER.fullmatch(part) for part in parts):
        raise ValueError(f"{value!r} is not a version range like >=5.5.0,<5.15")
    if not any(part.startswith(("<", "==")) for part in parts):
        raise ValueError(
            f"{value!r} has no upper bound, and a later release may break the server; add one, such as ,<2"
        )
    return ",".join(re.sub(r"\s+", "", part) for part in parts)


def _model_ref(value: str) -> str:
    if value.startswith(LOCAL_PREFIXES) or _HUB_ID.fullmatch(value):
        return value
    if page := _HUB_PAGE.match(value):
        raise ValueError(f"{value!r} is an address; write {page[1]}")
    raise ValueError(
        f"{value!r} is neither a Hugging Face id (owner/name) nor a folder (beginning with /, ~/, ./ or state:)"
    )


def hub_id(text: str) -> str | None:
    """Return the Hugging Face id that the address of a model's page names; None for any other text."""
    page = _HUB_PAGE.match(text)
    if page:
        return page[1]
    return None


def _name(value: str) -> str:
    if _NAME.fullmatch(value):
        return value
    lower = value.lower().replace("_", "-").replace(" ", "-")
    hint = f"; write {lower}" if _NAME.fullmatch(lower) else ""
    raise ValueError(f"{value!r} is not a name of lower-case letters, digits and hyphens{hint}")


def _size(value: str) -> str:
    if _SIZE.fullmatch(value):
        return value
    size = re.fullmatch(r"([1-9][0-9]{0,9})\s*([kmg])ib?", value, re.IGNORECASE)
    hint = f"; write {size[1]}{size[2].lower()}b" if size else ""
    raise ValueError(f"{value!r} is not a size like 32gb{hint}")


def _version(value: str) -> str:
    if _RELEASE.fullmatch(value):
        return value
    if value[:1] == "v" and _RELEASE.fullmatch(value[1:]):
        hint = f"; write {value[1:]}"
    else:
        hint = ""
    raise ValueError(f"{value!r} is not a release like 0.32.0{hint}")


def _speed(value: Any) -> Any:
    if isinstance(value, list) or value in ("auto", "off"):
        return value
    raise ValueError("must be auto, off, or a list of patches for speed, such as [a, b]")


def _env_name(value: str) -> str:
    if not _ENV_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of an environment variable")
    return value


def secret_name(name: str) -> bool:
    """Return whether the variable of this name holds a secret."""
    return _SECRET.search(name) is not None


def not_secret(value: str) -> str:
    if secret_name(value):
        raise ValueError(
            f"{value} looks like a secret, which does not belong in a profile: "
            "export it in the shell and list its name under pass_env"
        )
    return value


Text = Annotated[str, AfterValidator(_printable), Field(min_length=1, max_length=4096)]
Name = Annotated[str, AfterValidator(_name)]
Int = Annotated[int, BeforeValidator(_whole_number)]
Positive = Annotated[Int, Field(ge=1, le=2**31 - 1)]
Version = Annotated[
    str,
    BeforeValidator(_text_of_number),
    AfterValidator(_version),
]
Specifier = Annotated[str, BeforeValidator(_text_of_number), AfterValidator(_bounded)]
ModelRef = Annotated[Text, AfterValidator(_model_ref)]
Image = Annotated[Text, matching(_IMAGE, "an image name")]
Size = Annotated[str, AfterValidator(_size)]
User = Annotated[str, BeforeValidator(_text_of_number), matching(re.compile(r"[0-9]+(:[0-9]+)?"), "uid or uid:gid")]
Cores = Annotated[str, BeforeValidator(_text_of_number), matching(_CORES, "a list of CPU cores like 0-15")]
EnvName = Annotated[str, AfterValidator(_env_name)]
Webhook = Annotated[Text, AfterValidator(webhook)]
Word = Annotated[Text, BeforeValidator(_text_of_number)]
EnvValue = Annotated[str, BeforeValidator(_text_of_number), AfterValidator(_printable)]
Speed = Annotated[Literal["auto", "off"] | list[Name], BeforeValidator(_speed)]
File = Annotated[Text, matching(re.compile(r"(/|~/|\./|\.\./).*"), "a file (/…, ~/…, ./…)")]
Folder = Annotated[Text, matching(re.compile(r"(/|~/|\./|\.\./|state:).*"), "a folder (/…, ~/…, ./…)")]


class Section(BaseModel):
    """A part of a profile. Unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


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
