"""The format of a profile: one pydantic model for each part of the YAML.

Every model forbids unknown keys. The types check single fields; rules.py checks combinations of fields.

`tuned`: what `gemmaspec tune` measured when it wrote a profile, and on what.

The router of a profile with replicas: what its YAML can say, and what follows from it. Pure.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, PrivateAttr, StrictBool

from gemmaspec.core.profile.fields import (
    LOOK_UPS,
    Cores,
    EnvName,
    EnvValue,
    File,
    Folder,
    Image,
    Int,
    ModelRef,
    Name,
    Positive,
    Section,
    Size,
    Specifier,
    Speculative,
    Speed,
    Text,
    User,
    Version,
    Webhook,
    Word,
    matching,
    not_secret,
)
from gemmaspec.core.profile.machines import as_named


class TunedLoad(Section):
    """What was best at one number of requests at once."""

    concurrency: Positive
    """Requests at once."""
    k: Annotated[Int, Field(ge=0)]
    """The best number of drafted tokens for them; 0: no speculation."""
    tokens_per_second: Annotated[float, Field(gt=0)]
    """Of all requests together, with that k."""
    times: Annotated[float, Field(gt=0)]
    """The same over no speculation."""


class Tuned(Section):
    """What `gemmaspec tune` measured. It writes this itself; `up` says whether it is still so."""

    date: Text
    """When the measuring began (UTC)."""
    gemmaspec: Text
    """The gemmaspec that measured."""
    complete: StrictBool
    """Whether everything that may have won was tried; false after an interruption, or when the budget ended."""
    why: Text
    """Why this was chosen."""
    k_by_load: list[TunedLoad]
    """The best k at each load; without speculative.k_by_requests a server runs with one of them."""
    gpu: Annotated[list[Text], Field(default_factory=list)]
    """The GPUs of the machine."""
    driver: Text | None = None
    """Its NVIDIA driver."""
    prompts: Text
    """The prompts that were sent: gemmaspec for those that ship, else their folder."""
    prompts_sha256: Text
    """Of those prompts."""
    ran: dict[Text, Text]
    """What ran, as a lock has it: engine, image, plan, models, versions."""
    settings: Text
    """sha256 of the profile's settings, as they were measured."""


Policy = Literal["conversation", "leastconn", "round_robin"]
Port = Annotated[Int, Field(ge=1, le=65535)]

MOST_REPLICAS: Final = 16
"""Replicas of one profile on one machine; HAProxy's configuration has a place for each."""


class Router(Section):
    """What stands before the replicas: clients ask the router, and it asks a replica."""

    policy: Policy = "conversation"
    """Which replica gets a request: conversation (the one that had the conversation's earlier requests, and so has its
    prompt cached), leastconn or round_robin. A conversation is
    known by its X-Session-ID, else by how it begins: the system prompt and the first message."""
    port: Port | None = None
    """Port that clients use; default: serve.port. The replicas listen on the ports after serve.port."""
    metrics_port: Port | None = None
    """Port of the router's own metrics, on 127.0.0.1; default: the port after the last replica's."""
    drain_seconds: Positive = 300
    """How long a replica that is taken out may finish its requests before it is stopped."""


class Runtime(Section):
    """What vLLM needs to run: the process engine builds or finds it, a container is only checked."""

    vllm: Version | None = None
    """Release that the process engine installs; a container brings its own."""
    python: Folder | None = None
    """An existing interpreter with vLLM for the process engine; nothing is installed into it."""
    packages: dict[Text, Specifier] = {}
    """Packages that the image lacks, each with an upper bound; installed once into the cache if missing."""


class Target(Section):
    """The model that verifies."""

    model: ModelRef
    """A Hugging Face id (owner/name), or a folder: /…, ~/…, ./… from the profile's own folder, state:…"""
    revision: Text | None = None
    """Branch, tag or commit hash on the Hub; default: the newest."""
    quantization: Text | None = None
    """What the checkpoint is quantized with (modelopt, compressed-tensors …); default: as its own config states."""


class Draft(Section):
    """The model that drafts."""

    model: ModelRef
    """A Hugging Face id (owner/name), or a folder: /…, ~/…, ./… from the profile's own folder, state:…"""
    revision: Text | None = None
    """Branch, tag or commit hash on the Hub; default: the newest."""
    quantization: Text | None = None
    """What the checkpoint is quantized with (modelopt, compressed-tensors …); default: as its own config states."""
    ids: File | None = None
    """A file with the ids that an assistant (MTP) may propose, as `bench --save-ids` writes it: its output head then
    has their rows alone, and a pass reads fewer bytes. Answers stay the target's own. Needs the patch mtp-draft-ids."""


class Serve(Section):
    """`vllm serve` flags, hyphens written as underscores, and where the server listens."""

    bind: Annotated[str, matching(re.compile(r"[0-9a-fA-F.:]+"), "an address like 127.0.0.1")] = "127.0.0.1"
    """Address of this machine to listen on; any address other than loopback needs VLLM_API_KEY in pass_env."""
    port: Annotated[Int, Field(ge=1, le=65535)] = 8000
    """Port of the OpenAI API."""
    served_model_name: Text | None = None
    """The model's name in requests; default: target.model."""
    dtype: Text | None = None
    """Type of the activations, and of weights that are not quantized: auto, bfloat16 …"""
    load_format: Text | None = None
    """How to read the weights: auto, safetensors, dummy (random weights) …"""
    max_model_len: Positive | None = None
    """Longest context in tokens, prompt and answer together; default: the checkpoint's."""
    max_num_seqs: Positive | None = None
    """Requests that run at once."""
    max_num_batched_tokens: Positive | None = None
    """Maximum tokens in one step, including prompts."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the memory that vLLM may use for weights and KV cache."""
    kv_cache_dtype: Text | None = None
    """Format of the KV cache: auto (as the weights say), fp8 …"""
    block_size: Positive | None = None
    """Tokens in one block of the KV cache."""
    tensor_parallel_size: Positive | None = None
    """Number of GPUs that share every layer."""
    pipeline_parallel_size: Positive | None = None
    """Number of groups of GPUs that the layers are distributed over."""
    attention_backend: Text | None = None
    """Attention kernels (TRITON_ATTN, FLASH_ATTN …); default: vLLM chooses."""
    linear_backend: Text | None = None
    """Kernels of quantized linear layers (marlin, cutlass …)."""
    moe_backend: Text | None = None
    """Mixture-of-experts kernels."""
    generation_config: Text | None = None
    """Where sampling defaults come from: auto (the checkpoint), vllm, or a folder."""
    seed: Int | None = None
    """Seed of the random numbers."""
    limit_mm_per_prompt: dict[Literal["image", "video", "audio"], Annotated[Int, Field(ge=0)]] | None = None
    """How many images, videos and audio clips a request may contain; if all are 0, the target is text-only."""
    enable_prefix_caching: StrictBool | None = None
    """Reuse the KV cache of prompts with a common beginning."""
    enable_chunked_prefill: StrictBool | None = None
    """Process long prompts in pieces, between the steps of other requests."""
    disable_hybrid_kv_cache_manager: StrictBool | None = None
    """Use one KV cache group for all layers. draft_model needs it up to vLLM 0.30; it costs memory."""
    async_scheduling: StrictBool | None = None
    """Schedule the next step while the last one runs; default: vLLM decides."""
    enforce_eager: StrictBool | None = None
    """Disable compilation and CUDA graphs: a quick start, but a slow server."""
    skip_mm_profiling: StrictBool | None = None
    """Do not run the image and audio encoders at start-up."""
    language_model_only: StrictBool | None = None
    """Do not load the image and audio encoders."""
    kv_sharing_fast_prefill: StrictBool | None = None
    """Skip prompt tokens in layers that share another layer's KV cache."""
    trust_remote_code: StrictBool | None = None
    """Run Python code from the checkpoint."""
    extra_args: list[Word] = []
    """Further arguments, one per list item, passed to vLLM unchanged."""


class Chat(Section):
    """How a conversation becomes a prompt and an answer becomes a message."""

    template: Text | None = None
    """`gemma4` for the shipped one that matches the vLLM release, a file of templates/, or a path; default: the
    checkpoint's own."""
    content_format: Literal["auto", "string", "openai"] | None = None
    """The format of a message's content in the template: one text, or OpenAI's list of parts."""
    template_kwargs: dict[Text, StrictBool | int | EnvValue] = {}
    """Default values for the template, such as enable_thinking: false; a request may set others."""
    reasoning_parser: Text | None = None
    """Parser that separates the thought from the answer; gemma4 for Gemma 4."""
    tool_call_parser: Text | None = None
    """Parser that extracts tool calls from the answer; gemma4 for Gemma 4. Also sets `--enable-auto-tool-choice`."""


class Container(Section):
    """Settings of the container; the process engine ignores them."""

    python: Text = "python3"
    """The Python interpreter with vLLM in the image."""
    ipc: Literal["host", "private"] = "private"
    """The IPC namespace, and so the shared memory, that the container uses."""
    shm_size: Size | None = None
    """Size of the container's own /dev/shm, such as 16gb; Docker's default is 64 MB."""
    user: User | None = None
    """uid or uid:gid of the server; default: the image's."""
    read_only: StrictBool = False
    """Make the container's root file system read-only."""
    restarts: Annotated[Int, Field(ge=0, le=10)] = 2
    """How often Docker may restart a server that ended with an error; bounded because a crash loop on unified memory
    takes the whole machine down. vLLM whose engine dies while it serves ends without one: see `watch.on_exit`."""
    stop_grace_seconds: Positive = 60
    """How long the server may take to stop before Docker kills it."""


class Caches(Section):
    """Folders that outlive the container; by default one named volume holds all caches."""

    huggingface: Folder | None = None
    """Downloaded models (HF_HOME)."""
    compile: Folder | None = None
    """vLLM's, Triton's, FlashInfer's and TorchInductor's caches, and packages of `runtime`."""


class Patches(Section):
    """Patch ids. A required patch that does not fit stops the start; an optional one and one for speed are left out."""

    required: list[Name] = []
    """Patches without which the server must not start."""
    optional: list[Name] = []
    """Patches that are applied if they fit."""
    speed: Speed = "auto"
    """Patches that make vLLM faster: `auto` takes those whose measured cells cover the release, GPU, method and
    attention backend; `off` takes none; a list takes those, wherever they fit."""
    measure: StrictBool = False
    """Before a start, measure on this GPU those that nothing was measured of yet, as `gemmaspec patch measure` does; a
    fault leaves out nothing more. Off, because it has run on one GPU only (an H200)."""
    drift: Literal["warn", "refuse"] = "warn"
    """What a start does if a patch fits, but to a function that no known release has."""


class Watch(Section):
    """What `gemmaspec watch` does when a running server goes wrong. It always reports; it acts only if told to."""

    on_dead_draft: Literal["report", "off", "restart"] = "report"
    """Drafted tokens are no longer accepted: `off` restarts without speculation, `restart` with it."""
    on_slower: Literal["report", "off"] = "report"
    """Speculation costs more than it gives, by step times that `bench --save-measured` has kept."""
    on_hang: Literal["report", "restart"] = "report"
    """Requests run, but no tokens arrive."""
    on_exit: Literal["report", "restart"] = "report"
    """The server has exited by itself."""
    most_restarts_per_hour: Annotated[Int, Field(ge=0, le=12)] = 2
    """After this many restarts within an hour, watch only reports."""
    window_seconds: Annotated[float, Field(ge=1, le=600)] = 30
    """The shortest time that drafts are judged over."""
    hang_seconds: Annotated[float, Field(ge=1, le=3600)] | None = None
    """After how long without a token a server hangs; default: 60, and 300 where the GPU's power is unknown."""
    memory_guard: StrictBool | None = None
    """End the server before the machine runs out of memory and freezes, while it starts and under `watch`; default:
    on where GPU and CPU share their memory, as on a DGX Spark."""
    container: StrictBool = False
    """Run a small watch as a second container of the stack, without root and without Docker's socket. It reports and
    cannot restart the server. The process engine ignores it."""
    hook: list[Word] = []
    """A command to run for each event, as a list of arguments; it reads the event as JSON from standard input."""
    webhook: Webhook | None = None
    """An address that each event is posted to as JSON: https, or http of this machine. One that is a secret itself
    goes into the environment variable GEMMASPEC_WEBHOOK instead."""


class Measured(Section):
    """A published figure, as its source states it."""

    tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    """Generated tokens per second, of all requests together when concurrency > 1."""
    baseline: Annotated[float, Field(gt=0)] | None = None
    """Generated tokens per second without speculation, or with the format named in the note."""
    speedup: Text | None = None
    """Speed-up over no speculation, such as 2.0-2.5, if the source states nothing else."""
    acceptance_length: Annotated[float, Field(ge=1)] | None = None
    """1 + accepted / drafts: tokens per step of the target."""
    counted: Literal["decoding", "with the prompt"] | None = None
    """Whether the wait for the prompt is in it; not given where the source does not say."""
    context: Positive | None = None
    """max_model_len of the measured server, in tokens."""
    concurrency: Positive = 1
    """Concurrent requests."""
    patches: list[Name] | None = None
    """The patches for speed that were in."""
    target: Text | None = None
    """The measured target, if it is not the profile's own."""
    draft: Text | None = None
    """The measured draft, if it is not the profile's own."""
    machine: Text
    """The measured machine."""
    date: Text
    """As precise as the source; 'not given' if it does not say."""
    source: Text
    """Where the figure was published."""
    note: Text | None = None
    """Further notes from the source."""


class Smoke(Section):
    """What `gemmaspec smoke` checks."""

    checks: list[Annotated[str, Field(pattern=r"^S[1-9][0-9]?$")]] | None = None
    """The checks that mean something for this target; default: all. `--only` runs others."""
    why: Text | None = None
    """Why the others do not, in a few words."""


class Profile(Section):
    """One system: target, draft, machine, how to serve, patches, what was measured."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    """Version of this format: 1."""
    name: Name
    """The name of the file, without .yaml."""
    summary: Text
    """One line for `gemmaspec profile list`."""
    machine: Annotated[Text, AfterValidator(as_named)]
    """The machine that the profile is meant for; `nvidia` is any machine with NVIDIA GPUs. With a number it is a host
    with so many of these GPUs: `2xrtx-5090`, or `2x5090`. How many a server uses, serve.tensor_parallel_size says."""
    nodes: Annotated[Int, Field(ge=1, le=64)] = 1
    """Machines that one server spans, the same number of GPUs on each. With more than one, serve.tensor_parallel_size
    is this number unless a parallel size is set, and a draft model uses as many GPUs as its target."""
    image: Image | None = None
    """The image that the docker engine runs; a tag such as v0.33.0 states the vLLM release."""
    runtime: Runtime = Field(default_factory=Runtime)
    """What vLLM needs to run."""
    target: Target
    """The model that verifies."""
    draft: Draft | None = None
    """The model that drafts."""
    speculative: Speculative | None = None
    """How target and draft speculate; becomes --speculative-config."""
    serve: Serve = Field(default_factory=Serve)
    """`vllm serve` flags, hyphens written as underscores."""
    replicas: Annotated[Int, Field(ge=1, le=MOST_REPLICAS)] = 1
    """Servers of this profile on one machine, behind one router; each has GPUs of its own."""
    router: Router | None = None
    """What stands before the replicas; only with replicas > 1."""
    devices: list[Annotated[Int, Field(ge=0, le=63)]] | None = None
    """The GPUs that the server may use, by the index of nvidia-smi; default: all. Replicas share them out in order."""
    cpus: list[Cores] | None = None
    """The cores that the server computes on, on a machine without GPUs: an entry for each replica, such as 0-15, with |
    between the ranks of one server. Default: vLLM chooses, and chooses the same ones for every replica."""
    chat: Chat = Field(default_factory=Chat)
    """How a conversation becomes a prompt and an answer becomes a message."""
    env: dict[Annotated[EnvName, AfterValidator(not_secret)], EnvValue] = {}
    """Environment variables of the server; no secrets."""
    pass_env: list[EnvName] = ["HF_TOKEN"]
    """Names of variables that are passed from the shell to the server; their values are never stored."""
    container: Container = Field(default_factory=Container)
    """Settings of the container."""
    caches: Caches = Field(default_factory=Caches)
    """Folders that outlive the container."""
    patches: Patches = Field(default_factory=Patches)
    """Patches of vLLM that the profile needs."""
    watch: Watch = Field(default_factory=Watch)
    """What `gemmaspec watch` does when the running server goes wrong."""
    smoke: Smoke = Field(default_factory=Smoke)
    """What `gemmaspec smoke` checks."""
    measured: list[Measured] = []
    """Published figures, each with its source."""
    tuned: Tuned | None = None
    """What `gemmaspec tune` measured when it wrote this file; a profile that extends this one does not inherit it."""

    # The profile whose plan a replica runs: all replicas have one plan, which holds a name. No file can set it.
    _plan_name: str | None = PrivateAttr(default=None)

    @property
    def plan_name(self) -> str:
        """The name in the plan: the profile's own, or for a replica that of its profile."""
        return self._plan_name or self.name

    @property
    def drafts_always(self) -> bool:
        """Whether its server drafts in every step, be the text or the load what it may."""
        spec = self.speculative
        if spec is None or spec.method in LOOK_UPS:
            return False
        return 0 not in (spec.k_by_requests or {}).values()

    def as_replica(self, **changed: object) -> Profile:
        """Return one replica of this profile: a profile of its own with the plan of this one."""
        made = self.model_copy(update=changed)
        made._plan_name = self.plan_name
        return made
