"""What a run of `bench` measures: stored in its result, so that it can be resumed with the same settings."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, TypeAdapter, ValidationError

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.engines import EngineName
from gemmaspec.core.profile.fields import Speculative
from gemmaspec.core.profile.find import is_path
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.rows import RESULT

OWN: Final = "gemmaspec"
"""The name of the prompts that ship."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What bench and tune are asked for alike. An empty tuple leaves the choice to the profile."""

    COMMAND: ClassVar[str]
    FREE: ClassVar[frozenset[str]] = frozenset({"out", "replace", "resume", "timeout_s", "request_timeout_s"})
    """What two parts of one run need not have in common: it is in no file."""

    profile: str
    overrides: tuple[str, ...] = ()
    engine: EngineName | None = None
    ks: tuple[int, ...] = ()
    categories: tuple[str, ...] = ()
    each: Annotated[int, Field(ge=0)] = 2
    """Prompts per category, of tune in its last round; 0 for all."""
    rounds: Annotated[int, Field(ge=1, le=20)] = 2
    max_tokens: Annotated[int, Field(ge=8, le=1_000_000)] = 128
    ignore_eos: bool = False
    temperature: float | None = 0.0
    """None for the server's default."""
    repeats: Annotated[int, Field(ge=0, le=10)] = 1
    """How often to repeat a cell whose reference step changed."""
    any_text: bool = False
    prompts: str = OWN
    """A folder, OWNER/NAME@REVISION of the Hub, or OWN."""
    prompts_sha256: str = ""
    """Once they are read."""
    replace: bool = False
    """Whether a server that runs is stopped first."""
    resume: bool = False
    timeout_s: float = 1800.0
    request_timeout_s: float = 600.0
    """Seconds to wait for the next bytes of an answer."""

    def settings(self) -> dict[str, Any]:
        """Return everything that two parts of one run must have in common, as a file holds it."""
        settings = {}
        for name, value in dataclasses.asdict(self).items():
            if name not in self.FREE:
                settings[name] = list(value) if isinstance(value, tuple) else value
        return settings

    def differs(self, stored: Mapping[str, Any]) -> str | None:
        """Return the first setting that differs from those of a file; None if there is none."""
        for name, value in self.settings().items():
            if value != stored.get(name):
                return name
        return None


@dataclass(frozen=True, kw_only=True)
class BenchRequest(Asked):
    """What to measure."""

    COMMAND = "bench"
    FREE = Asked.FREE | {"save_measured", "save_ids", "given", "acceptance"}

    profile: str = ""
    """"" with `resume`: the profile that was measured."""
    out: Path
    running: bool = False
    """Whether to measure a server that already runs, and start none."""
    url: str | None = None
    patches: tuple[str, ...] = ()
    """Sets of patches for speed, each an arm: see bench_patches."""
    concurrencies: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    dummy_weights: bool = False
    """Whether weights and acceptance of the profile are replaced, and nothing else of it."""
    acceptance: bool = False
    """Whether only acceptance is asked for: a few prompts with the draft, one round, and no server without it."""
    save_measured: bool = False
    """Whether the rows are kept for predict, in the user's own file."""
    save_ids: Path | None = None
    """Where the list of the ids goes that prompts and answers have (`draft.ids`)."""
    given: frozenset[str] = frozenset()
    """With `resume`: the settings that the caller states; the others are those of the run in `out`."""


_OPTIONS: Final = {
    "overrides": "--set", "ks": "--k", "concurrencies": "--concurrency", "contexts": "--context",
    "categories": "--category", "any_text": "--accept-any-text",
}  # fmt: skip
"""The options whose names are not those of their settings."""


def in_words(name: str, value: Any) -> str:
    """Return a setting as one would type it: `with --k 0,4`, `without --ignore-eos`."""
    if name == "profile":
        return f"for {value}"
    if name == "prompts_sha256":
        return "with other prompts: their files have changed"
    option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
    if name == "temperature" and value is None:
        return "with --sample"
    if name == "overrides" and value:
        return "with " + " ".join(f"--set {override}" for override in value)
    if value in (None, []) or value is False:
        return f"without {option}"
    if value is True:
        return f"with {option}"
    return f"with {option} {','.join(map(str, value)) if isinstance(value, list) else value}"


_MEASURING_SERVE: Final = (
    *("dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"),
    *("kv_cache_dtype", "block_size", "tensor_parallel_size", "pipeline_parallel_size", "seed"),
    *("attention_backend", "linear_backend", "moe_backend", "limit_mm_per_prompt", "enforce_eager"),
    *("enable_prefix_caching", "enable_chunked_prefill", "disable_hybrid_kv_cache_manager"),
    *("async_scheduling", "skip_mm_profiling", "language_model_only", "kv_sharing_fast_prefill"),
)
_MEASURING: Final = frozenset(
    {
        "patches.speed",
        *(f"speculative.{name}" for name in Speculative.model_fields),
        *(f"serve.{name}" for name in _MEASURING_SERVE),
    }
)
"""Keys that only decide how fast a server is and what it drafts: none names code, a file, an address or a model."""


def _beyond_measuring(settings: BenchRequest) -> dict[str, str]:
    """Return the settings of somebody else's result that could do more than measure, each as its option is typed.

    By the setting's name: a profile's path, other prompts than those that ship, an address, and overrides of keys
    that are not among _MEASURING.
    """
    words: dict[str, str] = {}
    if is_path(settings.profile):
        words["profile"] = shlex.quote(settings.profile)
    if any(override.partition("=")[0] not in _MEASURING for override in settings.overrides):
        words["overrides"] = " ".join(f"--set {shlex.quote(override)}" for override in settings.overrides)
    if settings.prompts != OWN and not settings.dummy_weights:
        words["prompts"] = shlex.join(("--prompts", settings.prompts))
    if settings.url is not None:
        words["url"] = shlex.join(("--url", settings.url))
    return words


def taken_up(request: BenchRequest, stored: Mapping[str, Any], *, own: bool) -> BenchRequest:
    """Return a request that resumes a run: with the settings of its result, except for those that the caller states.

    Settings that are not this user's `own` may set only what measures. Raises UsageError where they are not what bench
    writes, and for those from elsewhere that would do more, with the command that states it.
    """
    earlier = _with_stored(request, stored, file=str(request.out / RESULT))
    if not own:
        _refuse_foreign(request, earlier)
    stated = {name: getattr(request, name) for name in earlier.settings().keys() & request.given}
    return replace(earlier, **{**stated, "profile": request.profile or earlier.profile})


def _with_stored(request: BenchRequest, stored: Mapping[str, Any], *, file: str) -> BenchRequest:
    """Return a request with the settings of a result. Raises UsageError where they are not what bench writes."""
    names = request.settings().keys()
    try:
        written = {name: stored[name] for name in names}
        same = TypeAdapter(BenchRequest).validate_python({"out": request.out, **written})
    except (KeyError, ValidationError) as error:
        if isinstance(error, ValidationError):
            key = error.errors()[0]["loc"][0]
        else:
            key = error.args[0]
        raise UsageError(f"{file}: settings.{key} is missing or not what bench writes") from None
    return replace(request, **{name: getattr(same, name) for name in names})


def _refuse_foreign(request: BenchRequest, earlier: BenchRequest) -> None:
    """Raise UsageError if a result from elsewhere would do more than measure, and the caller has not stated that."""
    beyond = _beyond_measuring(earlier)
    given = {*request.given, *(["profile"] if request.profile else [])}
    if unstated := [text for name, text in beyond.items() if name not in given]:
        profile = request.profile or beyond.get("profile") or earlier.profile
        options = " ".join(text for name, text in beyond.items() if name != "profile")
        raise UsageError(
            f"{request.out / RESULT} was not written by your gemmaspec, and it asks for more than a measurement: "
            f"{', '.join(unstated)}; only what you type yourself is done",
            hint=f"gemmaspec bench {profile} --resume {shlex.quote(str(request.out))} {options}".rstrip()
            + "    # if you trust all of it",
        )


def acceptance_only(request: BenchRequest, profile: Profile) -> BenchRequest:
    """Return the request with what a quick look at acceptance needs, but for what the caller states.

    Raises UsageError for a profile that does not draft, and with weights or a k that accept nothing of their own.
    """
    spec = profile.speculative
    if not spec:
        raise UsageError(f"{profile.name} does not draft, so there is no acceptance to measure")
    if request.dummy_weights:
        raise UsageError("--acceptance measures what a draft is worth, and --dummy-weights accept by lot")
    if 0 in request.ks:
        raise UsageError("--acceptance measures with the draft alone; leave 0 out of --k")
    chosen: dict[str, Any] = {
        "ks": (spec.num_speculative_tokens or 0,),
        "concurrencies": (1,),
        "each": 1,
        "rounds": 1,
        "repeats": 0,
    }
    return replace(request, **{name: value for name, value in chosen.items() if name not in request.given})
