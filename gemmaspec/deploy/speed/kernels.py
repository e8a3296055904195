"""The stage of `tune` that measures launch parameters of Triton's attention on this machine's GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

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
from gemmaspec.patching.launches import VARIABLE
from gemmaspec.profile.load import Loaded
from gemmaspec.profile.machines import MACHINES
from gemmaspec.profile.model import Profile
from gemmaspec.tune.launches import Launches, layers, reading

_FP8: Final = ("fp8", "fp8_e4m3")
"""With these caches vLLM casts the queries to FP8 too, where the GPU computes with it."""
_START_S: Final = 300
"""For imports, and for a compilation that is under way when the time is over."""


_SHARE: Final = 0.2
_MOST_S: Final = 60.0
_TOKENS, _CONTEXT = 2048, 8192
"""Tokens of a prompt that are computed at once, and the prompt up to their end."""


def worth_measuring(profile: Profile, target_backend: str | None) -> bool:
    """Return whether a profile's server launches these kernels, and nobody set how."""
    triton = target_backend is None or "TRITON" in target_backend
    return bool(MACHINES[profile.machine].gpus) and triton and VARIABLE not in profile.env


def launches_of(
    loaded: Loaded, engine: EngineName | None, overrides: Sequence[str], note: Callable[[str], None], *, budget_s: float
) -> Launches | None:
    """Measure in the image or environment that would run the profile; its server must be stopped.

    Takes a fifth of the budget at most. Returns None where the profile launches other kernels. Raises
    EnvironmentMissing if there is no GPU, image or environment, or vLLM's kernel cannot be launched.
    """
    profile = loaded.profile
    model, serve = profile.target, profile.serve
    if not worth_measuring(profile, expected(profile)["target"]):
        return None
    target = open_checkpoint(model.model, revision=model.revision, cache_dir=hub_cache(profile), shapes=True)
    chosen, _ = choose_engine(engine, profile=profile)
    subject = DoctorSubject(loaded=loaded, engine=chosen, forced=engine, overrides=overrides)
    server = subject.server
    assert server is not None
    kinds = layers(target.text, tensor_parallel=serve.tensor_parallel_size or 1)
    seconds = min(_MOST_S, _SHARE * budget_s / len(kinds))
    fp8 = cache_dtype_of(serve.kv_cache_dtype, serve.dtype, target) in _FP8
    job = {"layers": kinds, "fp8": fp8, "new": _TOKENS, "context": _CONTEXT, "seconds": seconds}
    note(f"launch parameters of {len(kinds)} kinds of attention layers, at most {seconds:.0f} s each")
    limit = int(len(kinds) * seconds) + _START_S
    found = reading(said_on_gpu(subject, server, data.TUNE_KERNELS, json.dumps(job), limit_s=limit))
    if isinstance(found, str):
        raise EnvironmentMissing(f"nothing was measured: {found}", hint=f"gemmaspec doctor {profile.name}")
    return found
