"""What a profile may say: one pydantic model for each part of the YAML.

Every model forbids unknown keys. Types carry what one field alone can get wrong; what several fields
together get wrong is in rules.py.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool

from gemmaspec.profile.fields import (
    EnvName,
    EnvValue,
    Folder,
    Image,
    Int,
    ModelRef,
    Name,
    Positive,
    Section,
    Size,
    Specifier,
    Text,
    User,
    Version,
    Webhook,
    Word,
    matching,
    not_secret,
)
from gemmaspec.profile.speculation import Speculative


class Runtime(Section):
    """What must be there to run vLLM: the process engine builds or finds it, a container is checked."""

    vllm: Version | None = None
    """Release that the process engine installs; a container brings its own."""
    python: Folder | None = None
    """An existing interpreter with vLLM for the process engine; nothing is installed into it."""
    packages: dict[Text, Specifier] = {}
    """Packages beyond the image, each bounded; installed once into the cache when missing."""


class Target(Section):
    """The model that verifies."""

    model: ModelRef
    """A Hugging Face id (owner/name), or a folder: /…, ~/…, ./… from the profile's own folder, state:…"""
    revision: Text | None = None
    """Branch, tag or commit hash on the Hub; the newest when not given."""
    quantization: Text | None = None
    """What the checkpoint is quantized with (modelopt, compressed-tensors …); its own config says it when not given."""


class Draft(Section):
    """The model that drafts."""

    model: ModelRef
    """A Hugging Face id (owner/name), or a folder: /…, ~/…, ./… from the profile's own folder, state:…"""
    revision: Text | None = None
    """Branch, tag or commit hash on the Hub; the newest when not given."""
    quantization: Text | None = None
    """What the checkpoint is quantized with (modelopt, compressed-tensors …); its own config says it when not given."""


class Serve(Section):
    """`vllm serve` flags, hyphens written as underscores, and where the server listens."""

    bind: Annotated[str, matching(re.compile(r"[0-9a-fA-F.:]+"), "an address like 127.0.0.1")] = "127.0.0.1"
    """Address of this machine that the port is bound to; another than loopback needs VLLM_API_KEY in pass_env."""
    port: Annotated[Int, Field(ge=1, le=65535)] = 8000
    """Port of the OpenAI API."""
    served_model_name: Text | None = None
    """The model's name in requests; target.model when not given."""
    dtype: Text | None = None
    """Type of the activations, and of weights that are not quantized: auto, bfloat16 …"""
    load_format: Text | None = None
    """How weights are read: auto, safetensors, dummy (random weights) …"""
    max_model_len: Positive | None = None
    """Longest context in tokens, prompt and answer together; the checkpoint's when not given."""
    max_num_seqs: Positive | None = None
    """Requests that run at once."""
    max_num_batched_tokens: Positive | None = None
    """Tokens that one step may process, prompts included."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the memory that vLLM takes for weights and KV cache."""
    kv_cache_dtype: Text | None = None
    """Format of the KV cache: auto (as the weights say), fp8 …"""
    block_size: Positive | None = None
    """Tokens in one block of the KV cache."""
    tensor_parallel_size: Positive | None = None
    """GPUs that every layer is spread over."""
    pipeline_parallel_size: Positive | None = None
    """Groups of GPUs that the layers are dealt out to."""
    attention_backend: Text | None = None
    """Attention kernels (TRITON_ATTN, FLASH_ATTN …); chosen by vLLM when not given."""
    linear_backend: Text | None = None
    """Kernels of quantized linear layers (marlin, cutlass …)."""
    moe_backend: Text | None = None
    """Mixture-of-experts kernels."""
    generation_config: Text | None = None
    """Where sampling defaults come from: auto (the checkpoint), vllm, or a folder."""
    seed: Int | None = None
    """Seed of the random numbers."""
    limit_mm_per_prompt: dict[Literal["image", "video", "audio"], Annotated[Int, Field(ge=0)]] | None = None
    """How many images, videos and audio clips a request may hold; all 0 makes the target text-only."""
    enable_prefix_caching: StrictBool | None = None
    """Keep the KV cache of prompts that begin alike."""
    enable_chunked_prefill: StrictBool | None = None
    """Process long prompts in pieces, between the steps of other requests."""
    disable_hybrid_kv_cache_manager: StrictBool | None = None
    """One KV cache group for all layers; what draft_model needs up to vLLM 0.30, at the price of memory."""
    async_scheduling: StrictBool | None = None
    """Schedule the next step while the last one runs; vLLM decides when not given."""
    enforce_eager: StrictBool | None = None
    """Neither compile nor CUDA graphs: a quick start and a slow server."""
    skip_mm_profiling: StrictBool | None = None
    """Do not try the image and audio towers while starting."""
    language_model_only: StrictBool | None = None
    """Leave the image and audio towers out."""
    kv_sharing_fast_prefill: StrictBool | None = None
    """Skip prompt tokens in layers that share another layer's KV cache."""
    trust_remote_code: StrictBool | None = None
    """Run Python code that the checkpoint brings."""
    extra_args: list[Word] = []
    """Further arguments, one list item each, passed on as they are."""


class Chat(Section):
    """How a conversation becomes a prompt and an answer becomes a message."""

    template: Text | None = None
    """`gemma4` for the shipped one that goes with the vLLM release, a file of templates/, or a path; None leaves
    the checkpoint's own."""
    content_format: Literal["auto", "string", "openai"] | None = None
    """How the template wants a message's content: as one text or as OpenAI's list of parts."""
    template_kwargs: dict[Text, StrictBool | int | EnvValue] = {}
    """Values for the template when a request does not give them, such as enable_thinking: false."""
    reasoning_parser: Text | None = None
    """Takes the thought out of the answer; gemma4 for Gemma 4."""
    tool_call_parser: Text | None = None
    """Makes tool calls of the answer; gemma4 for Gemma 4. Also turns on `--enable-auto-tool-choice`."""


class Container(Section):
    """How the container is set up; the process engine does not read it."""

    python: Text = "python3"
    """The interpreter in the image that has vLLM."""
    ipc: Literal["host", "private"] = "private"
    """Whose shared memory the container uses."""
    shm_size: Size | None = None
    """Size of the container's own /dev/shm, such as 16gb; Docker gives 64 MB."""
    user: User | None = None
    """uid or uid:gid of the server; the image's own when not given."""
    read_only: StrictBool = False
    """A container whose root cannot be written."""
    restarts: Annotated[Int, Field(ge=0, le=10)] = 2
    """How often Docker may restart a server that died; bounded, since a crash loop on unified memory
    takes the whole machine down."""
    stop_grace_seconds: Positive = 60
    """How long a server may take to stop before it is killed."""


class Caches(Section):
    """Folders that outlive the container; where none is given, one named volume holds it all."""

    huggingface: Folder | None = None
    """Downloaded models (HF_HOME)."""
    compile: Folder | None = None
    """vLLM's, Triton's, FlashInfer's and TorchInductor's caches, and packages of `runtime`."""


class Patches(Section):
    """Patch ids; a required one that does not fit stops the start, an optional one is skipped."""

    required: list[Name] = []
    """Patches without which the server must not start."""
    optional: list[Name] = []
    """Patches that are used where they fit."""
    drift: Literal["warn", "refuse"] = "warn"
    """What a start does when a patch fits, and its function is not that of any known release."""


class Watch(Section):
    """What `gemmaspec watch` does when a running server goes wrong. It always reports; it acts only if told to."""

    on_dead_draft: Literal["report", "off", "restart"] = "report"
    """Drafted tokens are no longer accepted: `off` restarts without speculation, `restart` with it."""
    on_slower: Literal["report", "off"] = "report"
    """Speculation costs more than it gives, by step times that `bench --save-measured` has kept."""
    on_hang: Literal["report", "restart"] = "report"
    """Requests run, but no token comes."""
    on_exit: Literal["report", "restart"] = "report"
    """The server has exited by itself."""
    most_restarts_per_hour: Annotated[Int, Field(ge=0, le=12)] = 2
    """After so many restarts within an hour it only reports."""
    hook: list[Word] = []
    """A command to run for each event, argument by argument; it gets the event as JSON on standard input."""
    webhook: Webhook | None = None
    """An address that each event is posted to as JSON: https, or http of this machine. One that is a secret itself
    goes into the environment variable GEMMASPEC_WEBHOOK instead."""


class Measured(Section):
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
    """max_model_len of the measured server, in tokens."""
    concurrency: Positive = 1
    """Requests at once."""
    target: Text | None = None
    """The target it was measured with, where that is not the profile's own."""
    draft: Text | None = None
    """The draft it was measured with, where that is not the profile's own."""
    machine: Text
    """The machine it was measured on."""
    date: Text
    """As precise as the source is; 'not given' when it does not say."""
    source: Text
    """Where the figure was published."""
    note: Text | None = None
    """What else the source says about it."""


class Profile(Section):
    """One system: target, draft, machine, how to serve, patches, what was measured."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    """Version of this format: 1."""
    name: Name
    """As the file is called."""
    summary: Text
    """One line for `gemmaspec profile list`."""
    machine: Name
    """The machine that it is meant for; `nvidia` is any machine with NVIDIA GPUs."""
    image: Image | None = None
    """What the docker engine runs; a tag such as v0.33.0 says which vLLM that is."""
    runtime: Runtime = Field(default_factory=Runtime)
    """What must be there to run vLLM."""
    target: Target
    """The model that verifies."""
    draft: Draft | None = None
    """The model that drafts."""
    speculative: Speculative | None = None
    """How they speculate; becomes --speculative-config."""
    serve: Serve = Field(default_factory=Serve)
    """`vllm serve` flags, hyphens written as underscores."""
    chat: Chat = Field(default_factory=Chat)
    """How a conversation becomes a prompt and an answer becomes a message."""
    env: dict[Annotated[EnvName, AfterValidator(not_secret)], EnvValue] = {}
    """Environment variables of the server; no secrets."""
    pass_env: list[EnvName] = ["HF_TOKEN"]
    """Names whose values go from the shell to the server and are written nowhere."""
    container: Container = Field(default_factory=Container)
    """How the container is set up."""
    caches: Caches = Field(default_factory=Caches)
    """Folders that outlive the container."""
    patches: Patches = Field(default_factory=Patches)
    """Patches of vLLM that the profile needs."""
    watch: Watch = Field(default_factory=Watch)
    """What `gemmaspec watch` does when the running server goes wrong."""
    measured: list[Measured] = []
    """Published figures, each with its source."""
