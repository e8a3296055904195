"""Measure on this machine's GPU which patches for speed pay for a profile, and keep what was found.

The script runs in the image or environment that would run the profile, on vLLM as it is released and as each patch
makes it. What it needs is copied into a folder of its own; it writes nothing, and says its result once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemmaspec.check.use_cases.predict import PredictRequest, step_of
from gemmaspec.core import data
from gemmaspec.core.checkpoint.fields import printable
from gemmaspec.core.checkpoint.matrices import nvfp4_matrices, weights_per_token
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.files import state_dir, write_whole
from gemmaspec.core.patching import spot
from gemmaspec.core.patching.choice import speed_patches
from gemmaspec.core.patching.evidence import READERS
from gemmaspec.core.patching.patch import Patch, Shelf
from gemmaspec.core.patching.plan import chain
from gemmaspec.core.patching.spot import Kept, Key, Measurement, Step, Verdict, digest_of, shape_of, verdict
from gemmaspec.core.profile.command import vllm_of
from gemmaspec.core.profile.device import device_of
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.rules import need_one_machine
from gemmaspec.core.releases.facts import releases
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.resolve import Resolved, resolved_of
from gemmaspec.run.engine.choose import choose_engine
from gemmaspec.run.engine.server import EngineName
from gemmaspec.run.kept.asked_profile import load_for
from gemmaspec.run.kept.models import hub_cache
from gemmaspec.run.machine import nvidia
from gemmaspec.run.models.open import open_checkpoint
from gemmaspec.run.stack.speed import idle_because
from gemmaspec.serve.decide import UpRequest
from gemmaspec.serve.doctor_subject import DoctorSubject, said_on_gpu
from gemmaspec.serve.observe import load_request

SCRIPT: Final = "measuring.py"
SECONDS: Final = 240
"""For one patch: two imports of vLLM, and a build and some launches of each kernel."""
_BY_HUMMING: Final = 2
"""Times as long where matrices are multiplied by Humming, which builds for 85 s on an H100, for each tree."""
_START_S: Final = 120
"""For the start of the script, and its end."""
_CONTEXTS: Final = (1024, 8192)
_MOST_BATCH: Final = 2048
"""Tokens of the largest batch that is timed, and of a server whose own is not known."""
_REQUESTS: Final = 8
"""The most requests at once that are measured."""
_ANSWER: Final = 256
"""Tokens that the longest prompt leaves for an answer."""


@dataclass(frozen=True, kw_only=True)
class MeasureRequest:
    """The request."""

    profile: str
    overrides: Sequence[str] = ()
    engine: EngineName | None = None
    patches: Sequence[str] = ()
    """The patches to measure; by default all that could pay."""
    seconds: int = SECONDS
    """For each patch, at most."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What would be measured, and where."""

    loaded: Loaded
    vllm: str
    patches: tuple[Patch, ...]
    left_out: Mapping[str, str]
    """Why each other patch for speed is not measured."""
    job: Mapping[str, Any]
    """The shapes, as cases.py takes them."""
    seconds: int = SECONDS
    """For each patch, at most; for one whose kernels take long to build, more."""

    @property
    def most_s(self) -> int:
        """Seconds that it takes at most."""
        return sum(map(self.seconds_of, self.patches)) + _START_S

    def seconds_of(self, patch: Patch) -> int:
        """Return how long a patch may take."""
        if patch.id == READERS["matrix"]:
            return self.seconds * _BY_HUMMING
        return self.seconds


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was measured of one patch, and what follows."""

    kept: Kept
    verdict: Verdict

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to measure again."""
        return self.verdict.taken is not None or self.kept.measurement.state == "idle"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was measured."""

    planned: Planned
    place: str
    found: tuple[Found, ...] = ()
    files: tuple[Path, ...] = field(default=())


@dataclass(frozen=True, kw_only=True)
class GpuOfHere:
    """This machine's first GPU."""

    name: str
    driver: str
    capability: str


class _Answer(BaseModel):
    """The script's last line."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_: Annotated[int, Field(alias="schema", ge=1, le=1)]
    results: list[Measurement] = Field(max_length=64)
    vllm: Annotated[str, Field(min_length=1, max_length=100)] = "unknown"
    place: Annotated[str, Field(max_length=300)] = ""
    problem: Annotated[str, Field(max_length=400)] = ""


def plan(request: MeasureRequest) -> Planned:
    """Return what would be measured for a profile. Asks no GPU.

    Raises EnvironmentMissing for a profile without a GPU, UsageError for a release that is not known, or a patch that
    is not one for speed.
    """
    loaded = load_for("patch measure", request.profile, overrides=request.overrides)
    profile = loaded.profile
    need_one_machine(profile, "patch measure")
    vllm = vllm_of(profile)
    if not MACHINES[profile.machine].gpus:
        why = f"{profile.name} is for a machine without a GPU, and patches for speed are for GPUs alone"
        raise EnvironmentMissing(why, hint="gemmaspec profile list")
    if vllm not in releases():
        why = f"the release that {profile.name} runs is not known, so nothing says which patches fit"
        raise UsageError(why, hint=f"gemmaspec patch measure {loaded.typed} --set runtime.vllm=0.33.0")
    model = profile.target
    target = open_checkpoint(model.model, revision=model.revision, cache_dir=hub_cache(profile), shapes=True)
    resolved, shelf = resolved_of(profile, target=target), Shelf(data.patch_folders())
    left_out = _left_out(resolved, shelf, request.patches)
    patches = tuple(patch for patch in speed_patches(shelf) if patch.id not in left_out)
    return Planned(
        loaded=loaded,
        vllm=vllm,
        patches=patches,
        left_out=left_out,
        job=job_of(resolved, target),
        seconds=request.seconds,
    )


def _left_out(resolved: Resolved, shelf: Shelf, asked: Sequence[str]) -> dict[str, str]:
    """Return the patches for speed that are not measured, each with the reason. Raise UsageError for an unknown one."""
    speed = {patch.id: patch for patch in speed_patches(shelf)}
    if unknown := [name for name in asked if name not in speed]:
        why = f"{unknown[0]} is not a patch for speed; those are {', '.join(speed)}"
        raise UsageError(why, hint="gemmaspec patch list")
    left_out = {}
    for name, patch in speed.items():
        if asked and name not in asked:
            left_out[name] = "not asked for"
        elif why := _why_not(resolved, patch):
            left_out[name] = why
    return left_out


def _why_not(resolved: Resolved, patch: Patch) -> str:
    """Return why a patch is not measured for a server; "" if it is."""
    profile, text = resolved.profile, patch.text
    target, method, backend = profile.target.model.lower(), resolved.method or "none", known(resolved.backend)
    if not (patch.folder / spot.CASES_FILE).is_file():
        return f"it has no {spot.CASES_FILE}"
    if not patch.claims(resolved.vllm):
        return f"not for vLLM {resolved.vllm}"
    if text.targets and not any(fnmatch.fnmatch(target, pattern) for pattern in text.targets):
        return f"for other targets ({', '.join(text.targets)})"
    if method not in text.required_by.methods:
        return f"not for the method {method}"
    if backend and not any(backend in claim.backends for claim in text.pays):
        return f"not for the attention backend {backend}"
    return idle_because(profile, text)


def job_of(resolved: Resolved, target: Checkpoint) -> dict[str, Any]:
    """Return the shapes that a server's kernels get, as cases.py takes them."""
    profile, spec = resolved.profile, resolved.profile.speculative
    ranks = profile.serve.tensor_parallel_size or 1
    by_humming = profile.serve.linear_backend in (None, "auto", "humming")
    shapes = nvfp4_matrices(target, tensor_parallel=ranks) if by_humming else {}
    matrices = [[*shape, count] for shape, count in shapes.items()]
    layers = _kinds_of_layers(target, ranks)
    most_heads = max(layer["kv_heads"] for layer in layers)
    widest_head = max(layer["head"] for layer in layers)
    backend = known(resolved.backend)
    if backend is None or "TRITON" in backend:
        parts = ["attention", "norms"]
    else:
        parts = ["norms"]
    k = (spec.num_speculative_tokens or 0) if spec else 0
    batch = min(known(resolved.batch) or _MOST_BATCH, _MOST_BATCH)
    return {
        "device": "cuda",
        "parts": parts,
        "layers": layers,
        "model": [most_heads, widest_head],
        "fp8": str(known(resolved.cache)).startswith("fp8"),
        "k": k,
        "loads": loads_of(resolved),
        "sequences": known(resolved.sequences) or _REQUESTS,
        "batch": batch,
        "hidden": target.text.hidden_size,
        "matrices": matrices,
        "weights": weights_per_token(target.text) // ranks,
        "norms": 2 * len(target.text.layers),
    }


def _kinds_of_layers(target: Checkpoint, ranks: int) -> list[dict[str, int]]:
    """Return each kind of attention layer as one of so many GPUs has it, and how many layers are of it."""
    kinds: dict[tuple[int, int, int, int], int] = {}
    for layer in target.text.layers:
        kind = (layer.heads // ranks, max(1, layer.kv_heads // ranks), layer.head_dim, layer.window or 0)
        kinds[kind] = kinds.get(kind, 0) + 1
    layers = []
    for (heads, kv_heads, head, window), count in sorted(kinds.items()):
        layers.append({"heads": heads, "kv_heads": kv_heads, "head": head, "window": window, "count": count})
    return layers


def loads_of(resolved: Resolved) -> list[list[int]]:
    """Return requests at once, and tokens of each: up to the server's own longest for one, to 8,192 for several."""
    longest = (known(resolved.length) or max(_CONTEXTS) + _ANSWER) - _ANSWER
    several = min(known(resolved.sequences) or 1, _REQUESTS)
    contexts = [context for context in _CONTEXTS if context < longest]
    loads = [[1, context] for context in (*contexts, longest) if context > 0]
    return loads + [[several, context] for context in contexts if several > 1]


def measure(request: MeasureRequest, note: Callable[[str], None]) -> Outcome:
    """Measure and keep what was found.

    Raises EnvironmentMissing without a GPU, image or environment, for a server that uses the GPU, and for a script that
    says nothing.
    """
    planned = plan(request)
    if not planned.patches:
        return Outcome(planned=planned, place="")
    profile = planned.loaded.profile
    gpu = _gpu_for(profile)
    device = replace(device_of(MACHINES[profile.machine]), capability=gpu.capability)
    shape = shape_of(resolved_of(profile, vllm=planned.vllm, device=device))
    engine, _ = choose_engine(request.engine, profile=profile)
    subject = DoctorSubject(
        loaded=planned.loaded, engine=engine, forced=request.engine, overrides=tuple(request.overrides)
    )
    server = subject.server
    assert server is not None
    steps, shelf = steps_of(planned, request), Shelf(data.patch_folders())
    note(f"measures {_count(planned.patches)} on {gpu.name}, at most {planned.most_s // 60} min")
    before = _store()
    with tempfile.TemporaryDirectory(prefix="gemmaspec-spot-") as folder:
        bundle(Path(folder), planned, shelf)
        try:
            lines = said_on_gpu(subject, server, Path(folder) / SCRIPT, limit_s=planned.most_s + _START_S, whole=True)
        finally:
            _remove_foreign(before)
    answer = read(lines, [patch.id for patch in planned.patches])
    if answer.vllm.partition("+")[0] != planned.vllm:
        why = f"there is vLLM {answer.vllm} where {profile.name} would run, and {planned.vllm} was to be measured"
        raise EnvironmentMissing(why, hint=f"gemmaspec pull {profile.name}")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = []
    for patch, measurement in zip(planned.patches, answer.results, strict=False):
        key = Key(
            patch=patch.id,
            digest=digest_of(patch, shelf, planned.vllm),
            vllm=planned.vllm,
            capability=gpu.capability,
            place=answer.place,
            shape=shape,
        )
        kept = Kept(key=key, at=now, measurement=measurement, steps=steps)
        found.append(Found(kept=kept, verdict=verdict(measurement, steps)))
    files = tuple(keep(one.kept) for one in found)
    return Outcome(planned=planned, place=answer.place, found=tuple(found), files=files)


Measuring = Callable[[MeasureRequest, Callable[[str], None]], object]
"""How a request is measured: `measure`, or what a test gives."""


def measure_first(request: MeasureRequest, note: Callable[[str], None], *, measuring: Measuring = measure) -> None:
    """Measure before a start or a tuning what was not measured here yet; every fault leaves all as it was, and is said.

    Nothing on a machine without a GPU, or for a profile that chooses its patches itself.
    """
    try:
        profile = load_profile(request.profile, overrides=request.overrides).profile
        gpus = nvidia.gpus()
        if not gpus or not MACHINES[profile.machine].gpus or profile.patches.speed != "auto":
            return
        missing = _not_kept(plan(request), gpus[0])
        if missing:
            measuring(replace(request, patches=missing), note)
    except GemmaspecError as error:
        note(f"patches for speed are not measured: {error.message.splitlines()[0]}")


def measure_if_asked(
    request: UpRequest,
    note: Callable[[str], None],
    loaded: Loaded | None = None,
    *,
    measuring: Measuring = measure,
) -> None:
    """Measure before a start, where the profile asks for it. Raises what loading the profile raises.

    `loaded` is the requested profile, where it was read before.
    """
    asks = load_request(request, loaded).profile.patches.measure
    if asks and not (request.locked or request.no_spec):
        asked = MeasureRequest(profile=request.profile, overrides=request.overrides, engine=request.engine)
        measure_first(asked, note, measuring=measuring)


def _not_kept(planned: Planned, gpu: nvidia.Gpu) -> tuple[str, ...]:
    """Return the patches of which nothing is kept for this GPU, its driver, this vLLM and this server."""
    profile, shelf = planned.loaded.profile, Shelf(data.patch_folders())
    device = replace(device_of(MACHINES[profile.machine]), capability=gpu.capability)
    shape = shape_of(resolved_of(profile, vllm=planned.vllm, device=device))
    missing = []
    for patch in planned.patches:
        wanted = (planned.vllm, digest_of(patch, shelf, planned.vllm), shape)
        keys = [one.key for one in spot.kept_of(patch.id) if one.key.place.startswith(f"{gpu.name}, {gpu.driver}, ")]
        if not any((key.vllm, key.digest, key.shape) == wanted for key in keys):
            missing.append(patch.id)
    return tuple(missing)


def _gpu_for(profile: Profile) -> GpuOfHere:
    """Return this machine's GPU. Raise EnvironmentMissing without one, UsageError for one that is not the profile's."""
    gpus = nvidia.gpus()
    if not gpus or gpus[0].capability is None:
        raise EnvironmentMissing("nvidia-smi shows no GPU here, or not its compute capability", hint="nvidia-smi")
    gpu, wanted = gpus[0], MACHINES[profile.machine].compute_capability
    if wanted not in (None, gpu.capability):
        why = f"{profile.name} is for GPUs of compute capability {wanted}, and this one has {gpu.capability}"
        raise UsageError(why, hint=f"gemmaspec patch measure {profile.name} --set machine=nvidia")
    return GpuOfHere(name=gpu.name, driver=gpu.driver, capability=gpus[0].capability)


def _count(patches: Sequence[Patch]) -> str:
    return f"{len(patches)} patch{'es' if len(patches) > 1 else ''}"


def steps_of(planned: Planned, request: MeasureRequest) -> tuple[Step, ...]:
    """Return about how long a whole step takes at each load, where anything says it."""
    steps = []
    for requests, context in planned.job["loads"]:
        with contextlib.suppress(GemmaspecError):
            asked = PredictRequest(
                profile=request.profile,
                overrides=request.overrides,
                ks=(planned.job["k"],),
                concurrencies=(requests,),
                contexts=(context,),
            )
            seconds = step_of(asked)
            if seconds is not None:
                steps.append(Step(load=(requests, context), ms=seconds * 1000))
    return tuple(steps)


def bundle(folder: Path, planned: Planned, shelf: Shelf, *, paths: Sequence[str] = ()) -> None:
    """Fill a folder with what the script needs.

    `paths`: more of Python's path, where a process finds what its environment lacks.
    """
    for file in (*data.PROBES.glob("*.py"), data.LAUNCHER):
        shutil.copyfile(file, folder / file.name)
    for patch in speed_patches(shelf):
        place = folder / "patches" / patch.id
        place.mkdir(parents=True)
        for name in (spot.CASES_FILE, "numbers.py"):
            if (patch.folder / name).is_file():
                shutil.copyfile(patch.folder / name, place / name)
    entries = []
    for patch in planned.patches:
        needed = [dataclasses.asdict(one) for one in chain(patch, shelf)]
        seconds = planned.seconds_of(patch)
        entries.append({"id": patch.id, "seconds": seconds, "base": needed[:-1], "own": needed[-1:]})
    job = {"patches": entries, "job": planned.job, "paths": list(paths)}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")


def read(lines: Sequence[str], patches: Sequence[str]) -> _Answer:
    """Return the script's answer, which is the last line. Raises EnvironmentMissing for anything else."""
    last = lines[-1] if lines else ""
    try:
        answer = _Answer.model_validate_json(last)
    except ValidationError:
        answer = None
    if answer is None:
        said = printable(last)[:200] or "nothing"
        raise EnvironmentMissing(f"nothing was measured: the script said {said}")
    if answer.problem or not answer.place:
        why = printable(answer.problem) or "it does not say on what"
        raise EnvironmentMissing(f"nothing was measured: {why}")
    if [result.patch for result in answer.results] != list(patches):
        raise EnvironmentMissing("nothing was measured: the script answered about other patches")
    return answer


def keep(kept: Kept) -> Path:
    """Write what was measured into the store, in place of what was there under its key, and return the file."""
    file = state_dir() / spot.FOLDER / kept.key.name
    write_whole(file, spot.text_of(kept), mode=0o600)
    return file


def _store() -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in (state_dir() / spot.FOLDER).glob("*") if file.is_file()}


def _remove_foreign(before: Mapping[Path, bytes]) -> None:
    """Put the store back to what it was before code of a patch ran, which may have written into it."""
    for file, content in _store().items():
        if before.get(file) != content:
            file.unlink()
    for file, content in before.items():
        if not file.is_file():
            write_whole(file, content.decode("utf-8", "replace"), mode=0o600)


def line_of(found: Verdict) -> str:
    """Return what follows from a measurement, in one short line."""
    words = {True: "taken", False: "not taken", None: "as before"}
    return f"{words[found.taken]}: {found.because}"
