"""`tune-kernels`: launch parameters of Triton's attention, measured on this machine's GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec import data
from gemmaspec.deploy.kept.attention import expected
from gemmaspec.deploy.kept.models import hub_cache
from gemmaspec.deploy.views.doctor_subject import DoctorSubject
from gemmaspec.deploy.views.on_gpu import said_on_gpu
from gemmaspec.engine.choose import choose_engine
from gemmaspec.engine.server import EngineName
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.fit.flags import cache_dtype_of
from gemmaspec.models.open import open_checkpoint
from gemmaspec.profile.load import load_profile
from gemmaspec.tune.launches import Launches, layers, reading

_FP8: Final = ("fp8", "fp8_e4m3")
"""With these caches vLLM casts the queries to FP8 too, where the GPU computes with it."""
_START_S: Final = 300
"""For imports, and for a compilation that is under way when the time is over."""


@dataclass(frozen=True, kw_only=True)
class KernelsRequest:
    """The request."""

    profile: str
    overrides: Sequence[str] = ()
    engine: EngineName | None = None
    new: int = 2048
    """Tokens of a prompt that are computed at once."""
    context: int = 8192
    """The prompt up to their end."""
    seconds: float = 60
    """For each kind of layer."""


@dataclass(frozen=True, kw_only=True)
class TunedKernels:
    """What was found for a profile."""

    profile: str
    launches: Launches
    backend: str | None
    """The attention backend that the profile's target gets; None if that is not known."""

    @property
    def runs(self) -> bool:
        """Whether the profile's server launches these kernels, as far as known."""
        return self.backend is None or "TRITON" in self.backend

    def as_json(self) -> dict[str, Any]:
        """Return the result for --json."""
        found = self.launches.model_dump()
        return {"profile": self.profile, "backend": self.backend, **found, "variable": self.launches.variable}


def tune_kernels(request: KernelsRequest, progress: Callable[[str], None]) -> TunedKernels:
    """Measure in the image or environment that would run the profile. Its server must be stopped.

    Raises EnvironmentMissing if there is no GPU, image or environment, or vLLM's kernel cannot be launched.
    """
    loaded = load_profile(request.profile, overrides=request.overrides)
    chosen, _ = choose_engine(request.engine, profile=loaded.profile)
    subject = DoctorSubject(loaded=loaded, engine=chosen, forced=request.engine, overrides=request.overrides)
    server = subject.server
    assert server is not None
    model, serve = loaded.profile.target, loaded.profile.serve
    cache = hub_cache(loaded.profile)
    target = open_checkpoint(model.model, revision=model.revision, cache_dir=cache, shapes=True)
    kinds = layers(target.text, tensor_parallel=serve.tensor_parallel_size or 1)
    job = {
        "layers": kinds,
        "fp8": cache_dtype_of(serve.kv_cache_dtype, serve.dtype, target) in _FP8,
        "new": request.new,
        "context": request.context,
        "seconds": request.seconds,
    }
    progress(f"{len(kinds)} kinds of attention layers, at most {request.seconds:.0f} s each")
    limit = int(len(kinds) * request.seconds) + _START_S
    found = reading(said_on_gpu(subject, server, data.TUNE_KERNELS, json.dumps(job), limit_s=limit))
    if isinstance(found, str):
        raise EnvironmentMissing(f"nothing was measured: {found}", hint=f"gemmaspec doctor {loaded.profile.name}")
    return TunedKernels(profile=loaded.profile.name, launches=found, backend=expected(loaded.profile, target)["target"])
