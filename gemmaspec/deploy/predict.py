"""`predict`: how fast a profile will be, from measured cells, from those of a similar machine, or from its roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemmaspec import data
from gemmaspec.bench.stored import read_text
from gemmaspec.deploy import measurements
from gemmaspec.deploy.attention import expected, words
from gemmaspec.errors import UsageError
from gemmaspec.machine import nvidia
from gemmaspec.patching.patch import Shelf
from gemmaspec.predict.predict import Asked, Predicted, predict
from gemmaspec.predict.roofline import Roofline
from gemmaspec.predict.rows import MAX_BYTES, NONE, Row, Setting, parse_rows
from gemmaspec.profile.command import compile_of
from gemmaspec.profile.load import Loaded, load_profile
from gemmaspec.profile.machines import ANY_GPU, HERE, MACHINES, machine_of
from gemmaspec.profile.model import Profile
from gemmaspec.profile.nodes import need_one_machine
from gemmaspec.stack.speed import speed_choice

Basis = Literal["measured", "own", "shipped", "roofline"]
"""A given file, the user's own measurements, shipped ones, or bytes over bandwidth."""


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """The request."""

    profile: str
    overrides: Sequence[str] = ()
    machine: str | None = None
    """Another machine than the profile's, or `here`."""
    measured: Path | None = None
    """A file of rows, or a folder with bench's result.json."""
    ks: tuple[int, ...] = ()
    concurrencies: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted rows and their basis."""

    profile: str
    basis: Basis
    why: str
    """Where the numbers come from, in one sentence."""
    notes: tuple[str, ...]
    rows: tuple[Predicted, ...]


def predict_profile(request: PredictRequest) -> Prediction:
    """Return the prediction.

    Raises UsageError for invalid rows and for several machines, EnvironmentMissing if only the roofline is left and the
    models cannot be read.
    """
    loaded = _on_its_machine(load_profile(request.profile, overrides=request.overrides), request)
    profile = loaded.profile
    need_one_machine(profile, "predict")
    found = _source(loaded, request.measured)
    if found is None:
        return _by_roofline(request, loaded)
    basis, why, rows = found
    asked = _asked(request, profile, rows, with_curves=basis != "shipped" or not any(row.by_lot for row in rows))
    return Prediction(
        profile=profile.name,
        basis=basis,
        why=why,
        notes=(
            *(f"attention: {chosen}" for chosen in [words(expected(profile))] if chosen),
            *_notes(rows, asked, profile),
            *_otherwise_patched(rows, profile),
            *(_otherwise_compiled(rows, profile) if basis == "shipped" else ()),
        ),
        rows=predict(rows, asked),
    )


def _on_its_machine(loaded: Loaded, request: PredictRequest) -> Loaded:
    """Return the profile for the requested machine; `nvidia` becomes the machine of the local GPU."""
    asked = request.machine
    if asked is not None and asked not in (*MACHINES, HERE):
        raise UsageError(f"--machine must be one of {', '.join((*MACHINES, HERE))}, not {asked!r}")
    machine = asked
    if asked == HERE or (asked is None and loaded.profile.machine == ANY_GPU):
        gpus = nvidia.gpus()
        machine = machine_of(gpus[0].name) if gpus else "cpu" if asked == HERE else None
        if machine is None and asked == HERE:
            raise UsageError(f"--machine here: gemmaspec does not know the GPU {gpus[0].name}")
    if machine is None or machine == loaded.profile.machine:
        return loaded
    return load_profile(request.profile, overrides=(*request.overrides, f"machine={machine}"))


def read_rows(path: Path) -> tuple[Row, ...]:
    """Return the rows of a measured file, or of a folder that bench wrote. Raises UsageError for anything else."""
    return parse_rows(read_text(path, limit=MAX_BYTES), file=str(path))


def _source(loaded: Loaded, named: Path | None) -> tuple[Basis, str, tuple[Row, ...]] | None:
    """Return the best available rows; None if only the roofline is left."""
    if named is not None:
        rows = read_rows(named)
        return "measured", f"{_cells(rows)} of {named}", rows
    if own := measurements.own_rows(loaded):
        return "own", f"{_cells(own)} that bench measured, saved in {measurements.own_file(loaded)}", own
    shipped = measurements.like(loaded.profile)
    if shipped is None:
        return None
    spec = loaded.profile.speculative
    rows = _as_compiled(shipped.rows, compile_of(loaded.profile), spec.method if spec else NONE)
    rows = measurements.of_plan(rows, loaded.profile) or tuple(row for row in rows if row.setting.patches == ()) or rows
    return "shipped", f"{_cells(rows)} of a similar machine: {shipped.source}", rows


def _cells(rows: Sequence[Row]) -> str:
    number = len({(row.method, row.k, row.concurrency, row.context, row.setting) for row in rows})
    return f"{number} measured cell{'s' if number != 1 else ''}"


def _as_compiled(rows: tuple[Row, ...], setting: str, method: str) -> tuple[Row, ...]:
    """Return the rows of servers that compile as this one does; all, where none of those drafts as it does."""
    same = tuple(row for row in rows if row.setting.compile == setting)
    return same if any(row.method == method for row in same) else rows


def _asked(request: PredictRequest, profile: Profile, rows: Sequence[Row], *, with_curves: bool) -> Asked:
    spec = profile.speculative
    own = {0, *(row.k for row in rows)} | ({spec.num_speculative_tokens or 0} if spec else set())
    return Asked(
        ks=request.ks or tuple(sorted(own)),
        concurrencies=request.concurrencies or tuple(sorted({row.concurrency for row in rows})) or (1, 4, 8),
        contexts=request.contexts,
        method=spec.method if spec else None,
        conditional=_published(profile),
        with_curves=with_curves,
        idle_alone=measurements.idle_alone(Shelf(data.patch_folders())),
    )


def _published(profile: Profile) -> float | None:
    """Return the acceptance per token that follows from the profile's published figures."""
    k = profile.speculative.num_speculative_tokens if profile.speculative else None
    lengths = [one.acceptance_length for one in profile.measured if one.acceptance_length is not None]
    if not k or not lengths:
        return None
    from gemmaspec.fit.roofline import acceptance_of

    return acceptance_of(sum(lengths) / len(lengths), k)


def _notes(rows: Sequence[Row], asked: Asked, profile: Profile) -> Iterator[str]:
    """Yield notes on how to read the numbers."""
    for setting in dict.fromkeys(row.setting for row in rows):
        own = [row for row in rows if row.setting == setting]
        if not any(row.k == 0 for row in own):
            yield f"{setting}: nothing was measured without speculation, so k 0 is a guess"
        if not any(row.k for row in own) and any(asked.ks):
            yield f"{setting}: nothing was measured with speculation, so the draft's cost is a guess"
    if any(asked.ks) and not (asked.with_curves and any(row.k for row in rows)):
        yield _assumed(asked.conditional)
    elif any(row.by_lot for row in rows):
        yield "the acceptance of these rows is synthetic, not this pair's"
    beyond = [context for context in asked.contexts if context not in {row.context for row in rows}]
    if beyond and len({row.context for row in rows}) == 1:
        yield f"only context {rows[0].context} was measured, so the growth of a step with context is a guess"
    spec = profile.speculative
    methods = {row.method for row in rows if row.k}
    if spec and methods and spec.method not in methods:
        yield f"the profile drafts with {spec.method}, but the measurements are of {', '.join(sorted(methods))}"


def _otherwise_patched(rows: Sequence[Row], profile: Profile) -> Iterator[str]:
    """Say where nothing was measured with the patches for speed that this profile takes."""
    taken = tuple(speed_choice(profile, Shelf(data.patch_folders())).taken)
    drafting = [row for row in rows if row.k] or rows
    if not measurements.of_plan(drafting, profile):
        here = f"takes the patches for speed {', '.join(taken)}" if taken else "takes no patches for speed"
        yield f"the profile {here}, and nothing was measured with those: gemmaspec bench {profile.name} --save-measured"


def _otherwise_compiled(rows: Sequence[Row], profile: Profile) -> Iterator[str]:
    """Say where a like machine's server was compiled as this one is not."""
    own, measured = compile_of(profile), {row.setting.compile for row in rows}
    if own not in measured:
        yield f"the profile's server compiles as {own}; no server that does was measured with its method"


def _assumed(known: float | None) -> str:
    if known is None:
        return "acceptance was not measured; assuming 0.70 ± 0.15 per token"
    return (
        f"acceptance was not measured by position; assuming {known:.2f} per token, from the profile's published figures"
    )


def _by_roofline(request: PredictRequest, loaded: Loaded) -> Prediction:
    from gemmaspec.deploy.fit import plan_of
    from gemmaspec.fit.roofline import step_bytes

    profile = loaded.profile
    plan = plan_of(loaded)
    if plan.device.bandwidth is None:
        raise UsageError(
            f"{profile.name} has no measurements, and the memory bandwidth of {plan.device.name} is unknown",
            hint=f"gemmaspec bench {request.profile} --save-measured",
        )

    def read(context: int, batch: int, tokens: int) -> tuple[int, int]:
        step = step_bytes(plan, context=context, concurrency=batch, tokens=tokens)
        return step.alone, step.draft + step.draft_cache

    spec = profile.speculative
    roofline = Roofline(
        bandwidth=plan.device.bandwidth * plan.flags.tensor_parallel,
        read=read,
        method=spec.method if spec else NONE,
        setting=Setting(compile=compile_of(profile), vllm=plan.flags.vllm),
    )
    own = {0} | ({spec.num_speculative_tokens or 0} if spec else set())
    asked = Asked(
        ks=request.ks or tuple(sorted(own)),
        concurrencies=request.concurrencies or (1, 4, 8),
        contexts=request.contexts or (1024,),
        conditional=_published(profile),
    )
    return Prediction(
        profile=profile.name,
        basis="roofline",
        why=f"the roofline, because there are no measurements: bytes over {plan.device.bandwidth / 1e9:,.0f} GB/s of "
        f"{plan.device.name}",
        notes=(_assumed(asked.conditional),) if any(asked.ks) else (),
        rows=roofline.predict(asked),
    )
