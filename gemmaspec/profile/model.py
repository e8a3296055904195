"""What a profile may say: one pydantic model for each part of the YAML.

Every model forbids unknown keys. Types carry what one field alone can get wrong; what several fields
together get wrong is in rules.py.
"""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool

METHODS: Final = ("draft_model", "eagle", "eagle3", "mtp", "ngram", "suffix", "dflash", "dspark")
"""`method` of the speculative config; the subset of vLLM's literals (vllm/config/speculative.py,
0.19.0-0.33.0) that can draft for Gemma 4 without another project's code."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_IMAGE: Final = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]*")
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY|CREDENTIAL", re.IGNORECASE)
_SIZE: Final = re.compile(r"[1-9][0-9]*(b|k|m|g|kb|mb|gb)", re.IGNORECASE)
_SPECIFIER: Final = re.compile(r"(>=|<=|==|!=|<|>)\s*[0-9]+(\.[0-9]+)*")
LOCAL_PREFIXES: Final = ("/", "~/", "./", "../", "state:")


def _printable(value: str) -> str:
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError("holds a control character")
    return value


def _matching(pattern: re.Pattern[str], wanted: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{value!r} is not {wanted}")
        return value

    return AfterValidator(check)


def _whole_number(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[-+]?[0-9]+", value):
        hint = f"; write {_expanded(value)}" if _expanded(value) else ""
        raise ValueError(f"{value!r} is not a whole number{hint}")
    return value


def _expanded(value: str) -> int | None:
    """What a person means by 128k: the power of two, as context lengths are."""
    match = re.fullmatch(r"([0-9]+)\s*([kKmM])i?", value.strip())
    return int(match[1]) * (1024 if match[2] in "kK" else 1024**2) if match else None


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _bounded(value: str) -> str:
    parts = [part.strip() for part in value.split(",")]
    if not all(_SPECIFIER.fullmatch(part) for part in parts):
        raise ValueError(f"{value!r} is not a version range like >=5.5.0,<5.15")
    if not any(part.startswith(("<", "==")) for part in parts):
        raise ValueError(f"{value!r} has no upper bound; a later release may break the server: add ,<…")
    return ",".join(re.sub(r"\s+", "", part) for part in parts)


def _model_ref(value: str) -> str:
    if value.startswith(LOCAL_PREFIXES) or _HUB_ID.fullmatch(value):
        return value
    raise ValueError(
        f"{value!r} is neither a Hugging Face id (owner/name) nor a folder (it would begin with /, ~/, ./ or state:)"
    )


def _env_name(value: str) -> str:
    if not _ENV_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of an environment variable")
    return value


def _not_secret(value: str) -> str:
    if _SECRET.search(value):
        raise ValueError(
            f"{value} looks like a secret, and a profile is no place for one: "
            "export it in the shell and list its name under pass_env"
        )
    return value


Text = Annotated[str, AfterValidator(_printable), Field(min_length=1, max_length=4096)]
Name = Annotated[str, _matching(_NAME, "a name of small letters, digits and hyphens")]
Int = Annotated[int, BeforeValidator(_whole_number)]
Positive = Annotated[Int, Field(ge=1)]
Version = Annotated[
    str,
    BeforeValidator(_text_of_number),
    _matching(re.compile(r"[0-9]+(\.[0-9]+)+"), "a release like 0.32.0"),
]
Specifier = Annotated[str, BeforeValidator(_text_of_number), AfterValidator(_bounded)]
ModelRef = Annotated[Text, AfterValidator(_model_ref)]
Image = Annotated[Text, _matching(_IMAGE, "an image name")]
Size = Annotated[str, _matching(_SIZE, "a size like 32gb")]
User = Annotated[str, BeforeValidator(_text_of_number), _matching(re.compile(r"[0-9]+(:[0-9]+)?"), "uid or uid:gid")]
EnvName = Annotated[str, AfterValidator(_env_name)]
EnvValue = Annotated[str, BeforeValidator(_text_of_number), AfterValidator(_printable)]
Folder = Annotated[Text, _matching(re.compile(r"(/|~/|\./|\.\./|state:).*"), "a folder (/…, ~/…, ./…)")]


class Part(BaseModel):
    """A part of a profile: unknown keys are errors, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Runtime(Part):
    """What must be there to run vLLM: the process engine builds or finds it, a container is checked."""

    vllm: Version | None = None
    """Release that the process engine installs; a container brings its own."""
    python: Folder | None = None
    """An existing interpreter with vLLM for the process engine; nothing is installed into it."""
    packages: dict[Text, Specifier] = {}
    """Packages beyond the image, each bounded; installed once into the cache when missing."""


class Target(Part):
    """The model that verifies."""

    model: ModelRef
    revision: Text | None = None
    quantization: Text | None = None


class Draft(Part):
    """The model that drafts."""

    model: ModelRef
    revision: Text | None = None
    quantization: Text | None = None


class Speculative(Part):
    """How target and draft speculate; field names are keys of vLLM's SpeculativeConfig."""

    method: Literal["draft_model", "eagle", "eagle3", "mtp", "ngram", "suffix", "dflash", "dspark"]
    num_speculative_tokens: Positive | None = None
    draft_tensor_parallel_size: Positive | None = None
    max_model_len: Positive | None = None
    attention_backend: Text | None = None
    kv_cache_dtype: Text | None = None
    moe_backend: Text | None = None
    enforce_eager: StrictBool | None = None
    disable_padded_drafter_batch: StrictBool | None = None
    use_heterogeneous_vocab: StrictBool | None = None
    draft_sample_method: Literal["greedy", "gumbel", "probabilistic"] | None = None
    rejection_sample_method: Literal["strict", "probabilistic", "standard", "synthetic", "block", "fly"] | None = None
    synthetic_acceptance_rates: list[Annotated[float, Field(ge=0, le=1)]] | None = None
    synthetic_acceptance_length: Annotated[float, Field(ge=1)] | None = None
    prompt_lookup_max: Positive | None = None
    prompt_lookup_min: Positive | None = None
    suffix_decoding_max_tree_depth: Positive | None = None
    suffix_decoding_max_cached_requests: Annotated[Int, Field(ge=0)] | None = None
    suffix_decoding_max_spec_factor: Annotated[float, Field(ge=0)] | None = None
    suffix_decoding_min_token_prob: Annotated[float, Field(ge=0, le=1)] | None = None


class Serve(Part):
    """`vllm serve` flags, hyphens written as underscores, and where the server listens."""

    bind: Annotated[str, _matching(re.compile(r"[0-9a-fA-F.:]+"), "an address like 127.0.0.1")] = "127.0.0.1"
    port: Annotated[Int, Field(ge=1, le=65535)] = 8000
    served_model_name: Text | None = None
    dtype: Text | None = None
    load_format: Text | None = None
    max_model_len: Positive | None = None
    max_num_seqs: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    kv_cache_dtype: Text | None = None
    block_size: Positive | None = None
    tensor_parallel_size: Positive | None = None
    pipeline_parallel_size: Positive | None = None
    attention_backend: Text | None = None
    linear_backend: Text | None = None
    moe_backend: Text | None = None
    generation_config: Text | None = None
    seed: Int | None = None
    limit_mm_per_prompt: dict[Literal["image", "video", "audio"], Annotated[Int, Field(ge=0)]] | None = None
    enable_prefix_caching: StrictBool | None = None
    enable_chunked_prefill: StrictBool | None = None
    disable_hybrid_kv_cache_manager: StrictBool | None = None
    async_scheduling: StrictBool | None = None
    enforce_eager: StrictBool | None = None
    skip_mm_profiling: StrictBool | None = None
    language_model_only: StrictBool | None = None
    kv_sharing_fast_prefill: StrictBool | None = None
    trust_remote_code: StrictBool | None = None
    extra_args: list[Text] = []
    """Further arguments, one list item each, passed on as they are."""


class Chat(Part):
    """How a conversation becomes a prompt and an answer becomes a message."""

    template: Text | None = None
    """`gemma4` for the shipped one that goes with the vLLM release, a file of templates/, or a path; None leaves
    the checkpoint's own."""
    content_format: Literal["auto", "string", "openai"] | None = None
    template_kwargs: dict[Text, StrictBool | int | EnvValue] = {}
    reasoning_parser: Text | None = None
    tool_call_parser: Text | None = None
    """Also turns on `--enable-auto-tool-choice`."""


class Container(Part):
    """How the container is set up; the process engine does not read it."""

    python: Text = "python3"
    """The interpreter in the image that has vLLM."""
    ipc: Literal["host", "private"] = "private"
    shm_size: Size | None = None
    user: User | None = None
    read_only: StrictBool = False
    restarts: Annotated[Int, Field(ge=0, le=10)] = 2
    """How often Docker may restart a server that died; bounded, since a crash loop on unified memory
    takes the whole machine down."""
    stop_grace_seconds: Positive = 60


class Caches(Part):
    """Folders that outlive the container; where none is given, one named volume holds it all."""

    huggingface: Folder | None = None
    """Downloaded models (HF_HOME)."""
    compile: Folder | None = None
    """vLLM's, Triton's, FlashInfer's and TorchInductor's caches, and packages of `runtime`."""


class Patches(Part):
    """Patch ids; a required one that does not fit stops the start, an optional one is skipped."""

    required: list[Name] = []
    optional: list[Name] = []


class Measured(Part):
    """A published figure, as its source states it."""

    tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    """Generated tokens per second, of all requests together when concurrency > 1."""
    baseline: Annotated[float, Field(gt=0)] | None = None
    """The same without speculation, or with the format that the note names."""
    speedup: Text | None = None
    """Times the speed without speculation, where the source gives nothing else, as in 2.0-2.5."""
    acceptance_length: Annotated[float, Field(ge=1)] | None = None
    """1 + accepted / drafts: tokens per step of the target."""
    context: Positive | None = None
    concurrency: Positive = 1
    machine: Text
    date: Text
    """As precise as the source is; 'not given' when it does not say."""
    source: Text
    note: Text | None = None


class Profile(Part):
    """One system: target, draft, machine, how to serve, patches, what was measured."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    name: Name
    summary: Text
    machine: Name
    image: Image | None = None
    runtime: Runtime = Field(default_factory=Runtime)
    target: Target
    draft: Draft | None = None
    speculative: Speculative | None = None
    serve: Serve = Field(default_factory=Serve)
    chat: Chat = Field(default_factory=Chat)
    env: dict[Annotated[EnvName, AfterValidator(_not_secret)], EnvValue] = {}
    pass_env: list[EnvName] = ["HF_TOKEN"]
    """Names whose values go from the shell to the server and are written nowhere."""
    container: Container = Field(default_factory=Container)
    caches: Caches = Field(default_factory=Caches)
    patches: Patches = Field(default_factory=Patches)
    measured: list[Measured] = []
