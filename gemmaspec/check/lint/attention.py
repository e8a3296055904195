"""GS3xx: attention backends, and what each one reads on which GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Path, Role, Subject, rule, set_at
from gemmaspec.core.releases.backends import refusal_of, support_of
from gemmaspec.core.resolved.answer import known

_WIDE: Final = 512
"""Head size of Gemma 4's full attention layers; that of the sliding ones is 256."""

_WIDE_ON: Final = 9
"""Major compute capability on which FlashAttention 4 has kernels for such heads: get_flash_attn_version in
vllm/v1/attention/backends/fa_utils.py falls back to FlashAttention 2 for them on later ones."""

_BLOCK: Final = 16

_ADA: Final = 8.9

_FLASH_READS_FP8: Final = (9, 10)
"""Major compute capabilities on which FlashAttention reads an FP8 cache, with its versions 3 and 4 alone:
flash_attn_supports_kv_cache_dtype() in vllm/v1/attention/backends/fa_utils.py (0.33.0; Hopper alone before)."""

_HALVES: Final = ("float16", "bfloat16")

_NARROW: Final = ("nvfp4", "turboquant", "octave", "ultraquant")
"""Formats whose backends have no mask for images, and Triton does not take them."""

_ELSEWHERE: Final = ("CPU_", "AMX_", "ROCM_", "XPU_")
"""How the names of backends begin that no GPU of NVIDIA's runs."""

_UNUSED_UNDER_V2: Final = (
    ("attention_backend", ("draft_model",), ">=0.31"),
    ("attention_backend", ("eagle", "eagle3"), ">=0.25,<0.31"),
    ("kv_cache_dtype", ("draft_model",), ">=0.31,<0.32"),
)
"""Speculative keys that model runner v2 does not pass to the draft: load_draft_model() in
vllm/v1/worker/gpu/spec_decode/draft_model/ (0.31) and standalone_ar/ (0.32, 0.33), load_eagle_model() in eagle/utils.py
(no apply_draft_overrides() before 0.31)."""


@rule("GS304", "warning")
def window_of_one_layer(subject: Subject) -> Iterator[Issue]:
    """FlashAttention of 0.25 to 0.27 gives all layers of a draft model one layer's sliding window."""
    if subject.resolved.method != "draft_model" or not subject.runs(">=0.25,<0.28") or not subject.machine.gpus:
        return
    backend = attention_backend(subject, "draft")
    if backend in ("FLASH_ATTN", None):
        doubt = "" if backend else ", where vLLM chooses it"
        message = (
            f"FlashAttention of vLLM {subject.vllm} gives all of the draft's layers the window of one of them{doubt}"
        )
        fix = "set speculative.attention_backend: TRITON_ATTN, or use vLLM 0.28 or later"
        yield Issue(path=("speculative",), message=message + ", so few tokens are accepted", fix=fix)


@rule("GS305", "warning")
def backend_not_inherited(subject: Subject) -> Iterator[Issue]:
    """From 0.21 on, the draft of model runner v1 does not inherit the target's attention backend."""
    spec, wanted = subject.profile.speculative, subject.command.value("--attention-backend")
    if not spec or not wanted or spec.attention_backend or not subject.machine.gpus:
        return
    if (
        subject.resolved.runner == "v2"
        or subject.runs("<0.21")
        or subject.resolved.method not in ("draft_model", "eagle", "eagle3")
    ):
        return
    chosen = attention_backend(subject, "draft")
    if chosen != wanted.upper():
        if chosen:
            what = f"takes {chosen}"
        else:
            what = "chooses one itself"
        message = f"the draft does not inherit serve.attention_backend, {wanted}: under vLLM {subject.vllm} it {what}"
        fix = f"set speculative.attention_backend: {wanted}"
        yield Issue(path=("speculative",), message=message, fix=fix)


@rule("GS305", "warning")
def key_without_effect(subject: Subject) -> Iterator[Issue]:
    """Speculative keys that vLLM accepts, but model runner v2 does not pass to the draft."""
    spec = subject.profile.speculative
    if not spec or subject.resolved.runner == "v1":
        return
    for key, methods, versions in _UNUSED_UNDER_V2:
        if subject.resolved.method in methods and getattr(spec, key) is not None and subject.runs(versions):
            message = f"model runner v2 of vLLM {subject.vllm} gives the draft the target's {key}, not this one"
            yield Issue(path=("speculative", key), message=message, fix=f"set serve.{key} for both, or remove it")


@rule("GS307", "error", of_gemma=True)
def wide_heads(subject: Subject) -> Iterator[Issue]:
    """A backend without head size 512 (supports_head_size of each, and fa_utils.is_fa_version_supported)."""
    if not subject.machine.gpus:
        return
    for role in _attending(subject):
        asked = _asked(subject, role)
        if not asked or (role == "draft" and subject.resolved.method != "draft_model"):
            continue
        where = _cannot(subject, asked.upper())
        if where or role == "draft":
            refused = None
        else:
            refused = _refused(subject, asked.upper())
        if where or refused:
            message = refused or f"{asked} does not support Gemma 4's head size of {_WIDE} {where}"
            fix = "use TRITON_ATTN" + ("" if _capability(subject) in (10, 11) else ", or let vLLM choose")
            yield Issue(path=_backend_path(subject, role), message=message, fix=fix)


@rule("GS312", "warning")
def fp8_with_mtp_on_hopper(subject: Subject) -> Iterator[Issue]:
    """FP8 KV cache with an MTP head on Hopper: the head uses FlashInfer and dies (vLLM issues 48495 and 48848)."""
    hopper = (subject.machine.compute_capability or "").startswith("9.")
    if (
        subject.resolved.method != "mtp"
        or not hopper
        or not known(subject.resolved.caches_fp8)
        or subject.runs("<0.24")
    ):
        return
    target, head = attention_backend(subject, "target"), attention_backend(subject, "draft")
    if head != "FLASHINFER" or target == head:
        return
    given = subject.command.argument("--kv-cache-dtype")
    message = (
        f"on Hopper an MTP head with an FP8 KV cache uses FlashInfer, its target {target}, and such servers have died "
        "while the engine started (vLLM #48495)"
    )
    path = set_at(given, ("serve", "kv_cache_dtype"))
    fix = "set serve.attention_backend: TRITON_ATTN, which the head inherits, or use vLLM 0.31 or later"
    yield Issue(path=path, message=message, fix=fix)


@rule("GS312", "warning")
def mtp_on_blackwell(subject: Subject) -> Iterator[Issue]:
    """An MTP head on compute capability 10.x: it takes FlashInfer, which has no kernel for heads of 512 (#48082)."""
    capability = subject.machine.compute_capability or ""
    if subject.resolved.method != "mtp" or not capability.startswith("10.") or subject.runs("<0.24"):
        return
    given = subject.command.value("--attention-backend")
    if given is None and attention_backend(subject, "draft") == "FLASHINFER":
        message = f"on compute capability {capability} the head takes FlashInfer, without a kernel for heads of 512: "
        message += "such servers were seen to die while they capture graphs (vLLM #48082)"
        yield Issue(path=("speculative", "method"), message=message, fix="write serve.attention_backend: TRITON_ATTN")


@rule("GS307", "error")
def cache_without_a_backend(subject: Subject) -> Iterator[Issue]:
    """A KV cache that no attention backend takes: asked of the layers of 0.26.0 and 0.33.0, which have four formats."""
    yield from _fp8_before_ada(subject)
    yield from _fp8_under_a_flash_draft(subject)
    if not subject.machine.gpus or subject.runs("<0.26"):
        return
    dtype, block = subject.command.argument("--kv-cache-dtype"), subject.command.argument("--block-size")
    tokens = subject.command.number("--block-size")
    if dtype and dtype.value and dtype.value.startswith(_NARROW) and known(subject.resolved.masks):
        message = f"no attention backend of vLLM {subject.vllm} takes a KV cache of {dtype.value} with masked images"
        yield Issue(path=dtype.path, message=message, fix="use fp8, or auto")
    if block and tokens and tokens % _BLOCK:
        message = f"is {tokens}, and every attention backend wants a multiple of {_BLOCK}: block_size not supported"
        yield Issue(path=block.path, message=message, fix=f"use {_BLOCK}, or leave it out")
    model = subject.command.value("--dtype") or "auto"
    if model == "auto":
        model = subject.resolved.target.dtype if subject.resolved.target else ""
    if subject.runs(">=0.33") and dtype and dtype.value in _HALVES and model in _HALVES and dtype.value != model:
        message = f'kv_cache_dtype="{dtype.value}" is incompatible with dtype="{model}"'
        yield Issue(path=dtype.path, message=message, fix=f"use auto or {model}")


def _fp8_before_ada(subject: Subject) -> Iterator[Issue]:
    """Yield an FP8 cache on a GPU that Triton does not read it on (vllm/v1/attention/backends/triton_attn.py)."""
    capability, asked = subject.machine.compute_capability, _asked(subject, "target")
    if not capability or float(capability) >= _ADA or not known(subject.resolved.caches_fp8) or subject.runs("<0.24"):
        return
    if asked is None or asked.upper() in ("AUTO", "TRITON_ATTN"):
        message = f"FP8 KV cache is not supported by the Triton attention backend on compute capability {capability}"
        given = subject.command.argument("--kv-cache-dtype")
        path = set_at(given, ("serve", "kv_cache_dtype"))
        yield Issue(path=path, message=message, fix="set serve.kv_cache_dtype: bfloat16, or int8_per_token_head")


def _fp8_under_a_flash_draft(subject: Subject) -> Iterator[Issue]:
    """Yield an FP8 cache under a head that attends with FlashAttention, on a GPU where that cannot read it.

    The head's layers take the target's format (load_dflash_model() in vllm/v1/worker/gpu/spec_decode/dflash/utils.py),
    unless it has a `speculative.kv_cache_dtype` of its own.
    """
    spec, capability = subject.profile.speculative, subject.machine.compute_capability
    if spec is None or capability is None or subject.resolved.method not in ("dflash", "dspark"):
        return
    if (spec.attention_backend or "").upper() != "FLASH_ATTN" or _capability(subject) in _FLASH_READS_FP8:
        return
    own = spec.kv_cache_dtype
    if own is None and not known(subject.resolved.caches_fp8):
        return
    if own is not None and not own.startswith("fp8"):
        return
    message = f"FlashAttention reads no FP8 KV cache on compute capability {capability}, and the draft attends with it"
    given = subject.command.argument("--kv-cache-dtype")
    inherited = set_at(given, ("serve", "kv_cache_dtype"))
    if own is None:
        path = inherited
    else:
        path = ("speculative", "kv_cache_dtype")
    yield Issue(path=path, message=message, fix="set serve.kv_cache_dtype: auto")


@rule("GS307", "error")
def refused_by_vllm(subject: Subject) -> Iterator[Issue]:
    """What vLLM's own selector, or the backend that the profile sets, has against Gemma 4's layers on this GPU."""
    capability, masks = subject.machine.compute_capability, subject.resolved.masks
    if not capability or any(True for _ in (*wide_heads.check(subject), *cache_without_a_backend.check(subject))):
        return
    asked = (_asked(subject, "target") or _of_attention_config(subject) or "").upper().replace("AUTO", "")
    given = subject.command.argument("--kv-cache-dtype")
    cache = known(subject.resolved.cache) or (given.value if given else None) or "auto"
    both = (True, False) if known(masks) is None else (bool(known(masks)),)
    reasons = [refusal_of(subject.vllm, capability, asked, masks=one, cache=str(cache)) for one in both]
    if all(reasons):
        what = asked or f"every attention backend on compute capability {capability}"
        message = f"vLLM {subject.vllm} refuses {what} with a KV cache of {cache}: {reasons[0]}"
        if asked:
            own = subject.command.argument("--attention-backend") or subject.command.argument("--attention-config")
            if own:
                path = own.path
            else:
                path = ("serve", "attention_backend")
            yield Issue(path=path, message=message, fix="use TRITON_ATTN, or let vLLM choose")
        else:
            path = set_at(given, ("serve", "kv_cache_dtype"))
            yield Issue(path=path, message=message, fix="set serve.kv_cache_dtype: auto")
    elif asked.startswith(_ELSEWHERE):
        message = f"{asked} is for another kind of processor than an NVIDIA GPU"
        yield Issue(path=_backend_path(subject, "target"), message=message, fix="use TRITON_ATTN, or let vLLM choose")
    elif asked == "FLEX_ATTENTION" and (subject.resolved.method == "mtp" or subject.shares_kv("target")):
        message = "FlexAttention does not support layers that share the KV cache of others, as this model's do"
        yield Issue(path=_backend_path(subject, "target"), message=message, fix="use TRITON_ATTN")


def _of_attention_config(subject: Subject) -> str | None:
    """Return the backend in --attention-config, which is JSON; None where it is not one."""
    given = subject.command.value("--attention-config")
    if not given:
        return None
    try:
        parsed = json.loads(given)
    except ValueError:
        return None  # another rule says that it is no JSON
    if isinstance(parsed, dict):
        backend = parsed.get("backend")
    else:
        backend = None
    if isinstance(backend, str):
        return backend
    return None


def attention_backend(subject: Subject, role: Role) -> str | None:
    """Return the backend: the requested one, else the one that vLLM chooses; None if only the machine decides."""
    backend = subject.resolved.backend if role == "target" else subject.resolved.draft_backend
    return known(backend)


def _attending(subject: Subject) -> tuple[Role, ...]:
    """Yield the roles whose backends matter: the draft's only if it is a separate model under model runner v1."""
    separate = subject.profile.draft and subject.resolved.runner == "v1" and subject.runs(">=0.21")
    if separate:
        return ("target", "draft")
    return ("target",)


def _asked(subject: Subject, role: Role) -> str | None:
    if role == "target":
        return subject.command.value("--attention-backend")
    spec = subject.profile.speculative
    if spec:
        return spec.attention_backend
    return None


def _backend_path(subject: Subject, role: Role) -> Path:
    given = subject.command.argument("--attention-backend")
    if role == "target" and given:
        return given.path
    return ("speculative", "attention_backend")


def _cannot(subject: Subject, backend: str) -> str | None:
    """Return where a backend has no kernels for wide heads; None if it has them."""
    capability = subject.machine.compute_capability
    if backend == "FLASH_ATTN" and subject.runs("<0.20"):
        return f"in vLLM {subject.vllm}"
    if backend == "FLASH_ATTN" and capability and _capability(subject) != _WIDE_ON:
        return f"on compute capability {capability}: that is FlashAttention 4, which has them on 9.x alone"
    if backend == "FLASHINFER" and subject.runs("<0.22"):
        return f"in vLLM {subject.vllm}"
    vllm = subject.resolved.facts.vllm
    known = [support_of(vllm, capability or "", backend, fp8=fp8, head=None) for fp8 in (False, True)]
    if backend.startswith("TRITON_FLASH") and capability and not any(known):
        return f"on compute capability {capability}: it is for {'9.x' if backend.endswith('ATTN') else '10.x'} alone"
    return None


def _refused(subject: Subject, backend: str) -> str | None:
    """Return why vLLM refuses a backend whose heads are wide enough, as released selectors answered."""
    hopper = backend == "FLASH_ATTN" and _capability(subject) == _WIDE_ON
    masks = known(subject.resolved.masks)
    if masks and (backend == "FLASHINFER" or (hopper and subject.runs("<0.24"))):
        return f"{backend} of vLLM {subject.vllm} has no masks for images"
    if subject.runs(">=0.31"):
        masked = " with masks for images"
    else:
        masked = ""
    if hopper and known(subject.resolved.caches_fp8) and subject.runs(">=0.24") and (masks or not masked):
        return f"{backend} of vLLM {subject.vllm} reads no FP8 KV cache{masked}"
    return None


def _capability(subject: Subject) -> int:
    return int((subject.machine.compute_capability or "0").split(".")[0])
