"""How fast a profile will be: from measured cells, from those of a similar machine, or from its roofline.

`predict` and `fit` ask here, so that they say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from gemmaspec.check.fit.roofline import acceptance_of, roofline, step_bytes, weights_format
from gemmaspec.check.lint.machine import SEVERAL_ON_SPARK
from gemmaspec.check.predict.comparable import Comparable
from gemmaspec.check.predict.efficiency import Roofline, law_of
from gemmaspec.check.predict.predict import QUANTILE, Cells, Predicted, alone_of, baseline_of, predict, predicted_json
from gemmaspec.check.predict.several import between, on_one_gpu, on_several
from gemmaspec.check.predict.several import known as known_links
from gemmaspec.check.use_cases.server_facts import ServerFacts, facts_of, shipped_for
from gemmaspec.check.use_cases.verifying import waiting_of
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.errors import UsageError
from gemmaspec.core.patching.evidence import family_of
from gemmaspec.core.profile import limits
from gemmaspec.core.profile.foreign_words import unknown_machine
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.machines import HERE, MACHINES, machine_with, meant
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.replica import gpus_each
from gemmaspec.core.profile.rules import need_one_machine
from gemmaspec.core.rows import NONE, Row, Setting, read_rows
from gemmaspec.run.kept import measurements
from gemmaspec.run.kept.attention import ahead_of
from gemmaspec.run.machine import nvidia

Basis = Literal["measured", "own", "shipped", "roofline", "bound"]
"""A given file, the user's own measurements, shipped ones, bytes over bandwidth, or no figure but the bound."""
USUAL: tuple[int, ...] = (1, 4, 8)
SURE = 0.1 / QUANTILE
"""Relative standard deviation of a step up to which shipped cells give a figure: 9 of 10 are then within 10 %."""
_OF_MOBILE: Final = (
    "each token of a step costs time here in addition to its bytes, so a draft that gains with one request can lose "
    "with several: computed from what was published of an E2B in this form on one RTX 3090"
)


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """The request."""

    profile: str
    overrides: Sequence[str] = ()
    no_spec: bool = False
    machine: str | None = None
    """Another machine than the profile's, or `here`."""
    measured: Path | None = None
    """A file of rows, or a folder with bench's result.json."""
    other_machine: bool = False
    """Whether cells of another machine or target are taken."""
    ks: tuple[int, ...] = ()
    concurrencies: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    answer_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted rows and their basis."""

    profile: str
    basis: Basis
    why: str
    """Where the numbers come from, in one sentence."""
    notes: tuple[str, ...]
    rows: tuple[Predicted, ...]
    doubts: tuple[str, ...] = ()
    """Of the notes, why the cells may not be this server's."""
    warnings: tuple[str, ...] = ()
    """CUDA graphs that the server lacks, and what brings them back."""
    machine: str = ""
    """The machine that --machine names; empty for `fit`, which names it itself."""
    own_k: Mapping[int, int] = field(default_factory=dict)
    """Requests at once → the k with which the profile drafts for so many; empty without a draft."""

    def as_json(self) -> dict[str, Any]:
        """Return it as `predict --json` and `fit --json` have it."""
        rows = [predicted_json(row, baseline=baseline_of(row, self.rows)) for row in self.rows]
        notes = {"notes": list(self.notes), "doubts": list(self.doubts)}
        return {"basis": self.basis, "why": self.why, **notes, "rows": rows}


def predict_profile(request: PredictRequest) -> Prediction:
    """Return the prediction.

    Raises UsageError for invalid rows, rows of another machine, loads that the profile does not take and for several
    machines, EnvironmentMissing if only the roofline is left and the models cannot be read.
    """
    facts = _facts(request)
    told = predicted(facts, request)
    if facts.vllm:
        warnings = ahead_of(facts.resolved).lost
    else:
        warnings = ()
    spec = facts.profile.speculative
    loads = sorted({row.concurrency for row in told.rows})
    if spec:
        own_k = {load: spec.k_at(load) for load in loads}
    else:
        own_k = {}
    return replace(told, machine=facts.profile.machine, own_k=own_k, warnings=warnings)


def step_of(request: PredictRequest) -> float | None:
    """Return how long a step of one load takes, in seconds; None where nothing says it. Raises as `predict_profile`.

    As `predict` says. Where it says nothing because no cell is near enough, it is the longest that the bytes allow in
    nine cases of ten: not exact enough to print, and enough for what a part of the step is at least worth.
    """
    facts = _facts(request)
    rows = predicted(facts, request).rows
    if rows:
        return rows[0].step.seconds
    if gpus_each(facts.profile) > 1 or "full" not in facts.kind.drafting:
        return None
    step = _by_roofline(facts, request).rows[0].step
    return step.seconds * (1 + QUANTILE * step.deviation)


def _facts(request: PredictRequest) -> ServerFacts:
    """Return the facts of the profile on the requested machine. Raises UsageError for several machines."""
    loaded = on_its_machine(request)
    need_one_machine(loaded.profile, "predict")
    return facts_of(loaded)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The cells that are comparable with a server, and where they are from."""

    basis: Basis
    why: str
    rows: tuple[Row, ...]
    comparable: Comparable | None = None
    """What is known of shipped cells; None for others, which count as they are."""


def predicted(facts: ServerFacts, request: PredictRequest) -> Prediction:
    """Return the prediction of a profile whose facts are known. Raises as above."""
    profile = facts.profile
    _need_limits(profile, request)
    source = _source(facts.loaded, request)
    if source is None and gpus_each(profile) > 1:
        return _on_several(facts, request)
    if source is None:
        shipped = shipped_for(facts)
        drafts = profile.speculative and MACHINES[profile.machine].gpus
        if shipped is None and drafts and "full" not in facts.kind.drafting:
            return _bound(facts, request, ["it drafts without full CUDA graphs, and no server that does was measured"])
        if shipped is None:
            return _by_roofline(facts, request)
        rows = shipped.comparable.rows
        why = f"{_cells(rows)} of such a server: {'; '.join(shipped.sources)}"
        source = Source(basis="shipped", why=why, rows=rows, comparable=shipped.comparable)
    rows, comparable = source.rows, source.comparable
    asked = _asked(request, facts, rows, with_curves=comparable is None or not any(row.by_lot for row in rows))
    if comparable:
        asked = replace(asked, ks=tuple(k for k in asked.ks if bool(k) not in comparable.missing))
    cells = predict(rows, asked) if rows and asked.ks else ()
    if comparable:
        unsaid = _unsaid(cells, comparable, drafts=bool(profile.speculative))
    else:
        unsaid = []
    sure = _sure(cells, comparable) if comparable else cells
    if not sure:
        return _bound(facts, request, unsaid or ["no cell near enough was measured"])
    doubts = [*unsaid, *_notes(rows, asked, profile), *_of_ids(facts)]
    if not comparable:
        doubts += _otherwise(rows, facts)
    factors = comparable.factors if comparable else ()
    return Prediction(
        profile=profile.name,
        basis=source.basis,
        why=source.why,
        notes=(*_attention(facts), *factors, *doubts),
        doubts=tuple(doubts),
        rows=tuple(sure),
    )


def _on_several(facts: ServerFacts, request: PredictRequest) -> Prediction:
    """Return what a server makes on several GPUs of one machine, from what one of them makes; else the bound.

    With more GPUs nothing was measured between them, and no data sheet says how long a sum takes.
    """
    profile, gpus = facts.profile, gpus_each(facts.profile)
    family = family_of(facts.plan.device.capability)
    stages = facts.resolved.stages
    if stages > 1:
        why = f"no server in stages was measured; one request passes the {stages} stages one after another, so they are"
        never = [f"it does not start: {because}"] if (because := facts.resolved.not_in_stages) else []
        told = [*never, f"{why} no faster for it than one GPU with all layers", *_instead(facts)]
        return _bound(facts, request, told)
    link = between(family, gpus)
    if link is None:
        known = " and ".join(f"{row.gpus} GPUs of the family {row.family} with {row.link}" for row in known_links())
        why = f"no measurement covers the link between {gpus} GPUs of this kind: what is known is of {known}"
        return _bound(facts, request, [why, *_instead(facts)])
    alone = _of_one(facts, request)
    one, several = on_one_gpu(facts.plan), facts.plan
    wanted = [row for row in alone.rows if row.concurrency in (request.concurrencies or (row.concurrency,))]
    rows = tuple(on_several(row, one, several, link) for row in wanted)
    if not rows:
        return _bound(facts, request, [note for note in alone.notes if note.startswith("no ")])
    doubts = (f"how {gpus} GPUs share a step (computed from one GPU and the measured link)", *alone.doubts)
    why = f"{alone.why}; on {gpus} GPUs by bytes and all-reduces at {link.us_per_sum:g} µs each ({link.link})"
    if any(not row.k for row in rows):
        plain = ["no server without a draft was measured on several GPUs"]
    else:
        plain = []
    notes = (f"the all-reduces: {link.source}", *plain, *alone.notes, *_instead(facts, rows, alone.rows))
    return Prediction(profile=profile.name, basis=alone.basis, why=why, notes=notes, doubts=doubts, rows=rows)


def _of_one(facts: ServerFacts, request: PredictRequest) -> Prediction:
    """Return the prediction of the same server on one GPU, whether or not it fits there."""
    overrides = (*request.overrides, "serve.tensor_parallel_size=1")
    loads = request.concurrencies
    shares = [load // gpus_each(facts.profile) for load in loads]  # what each of as many servers would get
    loads = tuple(sorted({*loads, *filter(None, shares)}))
    asked = replace(request, overrides=overrides, machine=facts.profile.machine, concurrencies=loads)
    return predicted(facts_of(on_its_machine(asked)), asked)


def _instead(facts: ServerFacts, rows: Sequence[Predicted] = (), alone: Sequence[Predicted] = ()) -> Iterator[str]:
    """Yield what as many servers of one GPU each would make of several requests, where the models fit on one."""
    gpus, profile = gpus_each(facts.profile), facts.profile
    if on_one_gpu(facts.plan).problems():
        return
    if not rows:
        one_stage = " --set serve.pipeline_parallel_size=null" if facts.resolved.stages > 1 else ""
        one_gpu = f"--set serve.tensor_parallel_size=1{one_stage}"
        yield f"it fits on one GPU: {one_gpu} --set replicas={gpus} starts {gpus} servers"
        return
    by_load = {_load(row): row for row in alone}
    for row in rows:
        share = by_load.get((row.k, row.concurrency // gpus, row.context))
        if share and row.concurrency % gpus == 0 and gpus * share.tokens_per_second > row.tokens_per_second:
            yield (
                f"of {row.concurrency} requests of {row.context:,} tokens (k {row.k}) {gpus} servers of one GPU each "
                f"would make {gpus * share.tokens_per_second:,.0f} tokens/s: "
                f"gemmaspec up {profile.name} --set serve.tensor_parallel_size=1 --set replicas={gpus}"
            )


def _sure(cells: Sequence[Predicted], comparable: Comparable) -> list[Predicted]:
    """Return the cells that were measured, or are so near to measured ones that their figure is exact enough."""
    return [row for row in cells if row.step.deviation <= SURE or _load(row) in comparable.own]


def _unsaid(cells: Sequence[Predicted], comparable: Comparable, *, drafts: bool) -> list[str]:
    """Return for which cells there is no figure, and why."""
    unsaid = [
        f"no figure {'with a draft' if drafting else 'without speculation'}: {why}"
        for drafting, why in comparable.missing.items()
        if drafts or not drafting
    ]
    sure = {_load(row) for row in _sure(cells, comparable)}
    if sure:
        silent = sorted({(row.k, row.concurrency, row.context) for row in cells} - sure)
    else:
        silent = []
    return unsaid + [
        f"no figure for k {k}, {c:,} tokens, {b} at once: too far from what was measured" for k, b, c in silent
    ]


def _load(row: Predicted) -> tuple[int, int, int]:
    return row.k, row.concurrency, row.context


def _attention(facts: ServerFacts) -> Iterator[str]:
    attention = ahead_of(facts.resolved)
    if attention.words:
        yield f"attention: {attention.words}"
    if facts.vllm:
        yield from attention.lost


def _of_ids(facts: ServerFacts) -> Iterator[str]:
    """Yield what is not known of a draft whose head has the rows of a list of ids."""
    if facts.profile.draft and facts.profile.draft.ids:
        yield "draft.ids: what the list costs in acceptance was not measured, and no cell is of such a head"


def _bound(facts: ServerFacts, request: PredictRequest, why: Sequence[str]) -> Prediction:
    """Return no figure but what no server exceeds, and why."""
    profile, plan = facts.profile, facts.plan
    asked = _asked(request, facts)
    bounds = []
    for context in asked.contexts:
        for load in asked.concurrencies:
            bound = roofline(plan, context=context, concurrency=load)
            if bound is None:  # the bandwidth of this machine is not known
                continue
            speeds = f"at most {bound.bound:,.1f} tokens/s, {bound.alone:,.1f} without speculation"
            bounds.append(f"{speeds}, at {load} x {context:,} tokens")
    measure = f"gemmaspec bench {profile.name} --dummy-weights --save-measured measures it"
    return Prediction(
        profile=profile.name,
        basis="bound",
        why="no measured cell is comparable with this server, so there is only the bound",
        notes=(*_attention(facts), *why, *bounds, measure),
        doubts=tuple(why),
        rows=(),
    )


def _need_limits(profile: Profile, request: PredictRequest) -> None:
    why = "the others would wait, and no model of that wait was measured"
    limits.concurrencies(profile, request.concurrencies, usual=(), why=why)
    limits.need_room(profile, request.contexts, request.answer_tokens or 1)


def on_its_machine(request: PredictRequest) -> Loaded:
    """Return the profile for the requested machine; `nvidia` becomes the machine of the local GPU."""
    loaded = load_profile(request.profile, overrides=request.overrides, no_spec=request.no_spec)
    wanted = meant(request.machine, loaded.profile.machine)
    machine: str | None = wanted
    if wanted == HERE:
        machine = _machine_here(must_be_known=bool(request.machine))
    elif wanted not in MACHINES:
        raise UsageError(
            f"--machine: {unknown_machine(wanted, [HERE])}", hint="--machine h100    # or another of these"
        )
    if machine is None or machine == loaded.profile.machine:
        return loaded
    overrides = (*request.overrides, f"machine={machine}")
    return load_profile(request.profile, overrides=overrides, no_spec=request.no_spec)


def _machine_here(*, must_be_known: bool) -> str | None:
    """Return the machine with the GPUs that are here; None for one that is not known by its GPU's name.

    With `must_be_known`, one without a GPU is a CPU, and UsageError is raised for a GPU that is not known.
    """
    gpus = nvidia.gpus()
    if not gpus and must_be_known:
        return "cpu"
    machine = machine_with([gpu.name for gpu in gpus])
    if machine is None and must_be_known:
        raise UsageError(f"--machine here: gemmaspec does not know the GPU {gpus[0].name}")
    return machine


def _source(loaded: Loaded, request: PredictRequest) -> Source | None:
    """Return the best available rows; None if only shipped cells are left. Raises UsageError for other files."""
    profile, named = loaded.profile, request.measured
    if named is not None:
        rows = read_rows(named)
        strange = measurements.foreign(rows, profile)
        if strange and not request.other_machine:
            raise UsageError(
                f"{named}: its cells are of {strange}; they say nothing of {profile.name} on {profile.machine}",
                hint="--accept-other-machine    # to take them all the same",
            )
        if strange:
            other = f", which are of {strange} (--accept-other-machine)"
        else:
            other = ""
        return Source(basis="measured", why=f"{_cells(rows)} of {named}{other}", rows=rows)
    own_rows = measurements.own_rows(loaded)
    if own_rows and not measurements.foreign(own_rows, profile):
        why = f"{_cells(own_rows)} that bench measured, saved in {measurements.own_file(loaded)}"
        return Source(basis="own", why=why, rows=own_rows)
    return None


def _cells(rows: Sequence[Row]) -> str:
    number = len({(row.method, row.k, row.concurrency, row.context, row.setting) for row in rows})
    return f"{number} measured cell{'s' if number != 1 else ''}"


def _asked(request: PredictRequest, facts: ServerFacts, rows: Sequence[Row] = (), *, with_curves: bool = True) -> Cells:
    """Return the cells that a request names, else those of the rows; without rows, the usual ones."""
    profile = facts.profile
    spec = profile.speculative
    ks = {*(row.k for row in rows), *_own_ks(profile)}
    usual = sorted({row.concurrency for row in rows}) or USUAL
    lengths = _fitting(profile, {row.context for row in rows} or {1024})
    return Cells(
        ks=request.ks or tuple(sorted(ks)),
        concurrencies=limits.concurrencies(profile, request.concurrencies, usual=usual, why=""),
        contexts=request.contexts or tuple(sorted(lengths)),
        method=spec.method if spec else None,
        conditional=_published(profile),
        with_curves=with_curves,
        answer_tokens=request.answer_tokens,
        compile=facts.resolved.compile,
        sequences=profile.serve.max_num_seqs,
        idle_alone=facts.taken.idle | facts.taken.for_draft,
    )


def _own_ks(profile: Profile) -> set[int]:
    """Return 0 and every k that the profile drafts with."""
    spec = profile.speculative
    if spec:
        return {0, spec.num_speculative_tokens or 0, *(spec.k_by_requests or {}).values()}
    return {0}


def _fitting(profile: Profile, contexts: set[int]) -> set[int]:
    longest = profile.serve.max_model_len
    return {context for context in contexts if not longest or context < longest} or contexts


def _published(profile: Profile) -> float | None:
    """Return the acceptance per token that follows from the profile's published figures."""
    if profile.speculative:
        k = profile.speculative.num_speculative_tokens
    else:
        k = None
    lengths = [cell.acceptance_length for cell in profile.measured if cell.acceptance_length is not None]
    if not k or not lengths:
        return None
    return acceptance_of(sum(lengths) / len(lengths), k)


def _notes(rows: Sequence[Row], asked: Cells, profile: Profile) -> Iterator[str]:
    if not any(row.machine or row.gpu for row in rows):
        yield "the cells do not say on which machine they were measured"
    alone = {row.setting.apart for row in rows if not row.k}
    lent = {alone_of(row.setting, asked).apart for row in rows if row.k}
    for setting in {row.setting.apart: row.setting for row in rows}.values():
        drafts = any(row.k for row in rows if row.setting.apart == setting.apart)
        if not alone & {setting.apart, alone_of(setting, asked).apart}:
            yield f"{setting}: nothing was measured without speculation, so k 0 is a guess"
        if not drafts and setting.apart not in lent and any(asked.ks):
            yield f"{setting}: nothing was measured with speculation, so the draft's cost is a guess"
    if any(asked.ks) and not (asked.with_curves and any(row.k for row in rows)):
        yield _assumed(asked.conditional)
    elif any(row.by_lot for row in rows):
        yield "the acceptance of these rows is synthetic, not this pair's"
    measured = {row.context for row in rows}
    if beyond := [context for context in asked.contexts if context > 2 * max(measured)]:
        yield f"nothing longer than {max(measured):,} tokens was measured, so what {beyond[-1]:,} cost is extrapolated"
    if not any(row.ttft_ms for row in rows):
        yield "these cells do not say how long prompts took, so other lengths of answers cannot be computed"
    spec = profile.speculative
    methods = {row.method for row in rows if row.k}
    if spec and methods and spec.method not in methods:
        yield f"the profile drafts with {spec.method}, but the measurements are of {', '.join(sorted(methods))}"


def _otherwise(rows: Sequence[Row], facts: ServerFacts) -> Iterator[str]:
    """Yield in what the profile's server differs from those that were measured."""
    name, taken, compiles, chosen = facts.profile.name, facts.taken, facts.resolved.compile, facts.backend
    drafting = [row for row in rows if row.k] or rows
    if not measurements.of_plan(drafting, taken):
        here = f"takes {', '.join(taken.patches) or 'no patches for speed'}"
        yield f"the profile {here}, and nothing was measured with those: gemmaspec bench {name} --save-measured"
    backends = {row.attention_backend for row in rows} - {None}
    if chosen and backends and chosen not in backends:
        yield (
            f"the profile's server runs attention in {chosen}, and these cells ran in {', '.join(map(str, backends))}: "
            "with long prompts the two can differ by more than the interval"
        )
    graphs = {row.setting.graphs for row in rows}
    mine = Setting(compile=compiles).graphs
    if mine not in graphs and "eager" in (mine, *graphs):
        yield f"the profile's server compiles as {compiles}; no server that does was measured"
    elif mine not in graphs:
        yield f"the cells are of {', '.join(sorted(graphs))} servers, and this one is {mine}: steps times a factor"
    kind = facts.kind
    served = {"kv_cache_dtype": kind.kv_cache, "images": kind.images, "linear_kernel": kind.linear_kernel}
    for key, wanted in served.items():
        others = {getattr(row, key) for row in rows} - {None}
        if wanted is not None and others and wanted not in others:
            said = f"these cells have {key}: {', '.join(map(str, others))}, and the profile's server {wanted}"
            yield said.replace("True", "on").replace("False", "off")
    releases = {row.vllm for row in rows} - {None}
    if releases and facts.vllm and facts.vllm not in releases:
        yield f"the cells are of vLLM {', '.join(sorted(map(str, releases)))}, and the profile's is {facts.vllm}"


def _assumed(known: float | None) -> str:
    if known is None:
        return "acceptance was not measured; assuming 0.70 ± 0.15 per token"
    return (
        f"acceptance was not measured by position; assuming {known:.2f} per token, from the profile's published figures"
    )


def _scales_outputs(target: Checkpoint) -> bool:
    """Return whether the layers of a checkpoint scale their outputs, as those of Google's mobile form."""
    if target.quantization:
        groups = target.quantization.of_groups
    else:
        groups = ()
    return any(group.endswith("A8O8") for group in groups)


def _by_roofline(facts: ServerFacts, request: PredictRequest) -> Prediction:
    profile, plan = facts.profile, facts.plan
    device, models = plan.device, plan.models
    if device.bandwidth is None:
        raise UsageError(
            f"{profile.name} has no measurements, and the memory bandwidth of {device.name} is unknown",
            hint=f"gemmaspec bench {request.profile} --save-measured",
        )

    def read(context: int, batch: int, tokens: int) -> tuple[int, int]:
        step = step_bytes(plan, context=context, concurrency=batch, tokens=tokens)
        return step.alone, step.draft + step.draft_cache

    spec = profile.speculative
    weights = weights_format(models.target, models.target_fp8), weights_format(models.draft, models.draft_fp8)
    draft_part = 1.0
    if models.draft:
        draft_part = len(models.draft.text.layers) / len(models.target.text.layers)
    speed = Roofline(
        bandwidth=device.bandwidth,
        read=read,
        method=spec.method if spec else NONE,
        setting=Setting(compile=facts.resolved.compile, vllm=plan.demand.vllm, backend=facts.backend),
        family=family_of(device.capability),
        weights=weights,
        draft_part=draft_part,
        scales_outputs=_scales_outputs(models.target),
        waiting=waiting_of(facts),
    )
    asked = _asked(request, facts)
    if any(asked.ks):
        assumed = [_assumed(asked.conditional)]
    else:
        assumed = []
    lost = ahead_of(plan.demand.resolved).lost
    experts = "how many experts the drafted tokens share is not known; the range goes from all of them to none"
    if assumed and models.target.text.experts:
        assumed.append(experts)
        if device.name == "dgx-spark" and max(asked.concurrencies) > 1:
            assumed.append(SEVERAL_ON_SPARK)
    law = law_of(speed.family, speed.weights[0])
    bandwidth = f"the {device.bandwidth / 1e9:,.0f} GB/s of {device.name}"
    why = (
        f"the roofline, because there are no measurements: {law.overhead_s * 1000:.1f} ms and bytes over "
        f"{law.share:.2f} of {bandwidth}, as reached by {law.said}"
    )
    alone = "decoding alone: the roofline does not cover the time that prompts take"
    notes = [alone, *lost, *assumed, *_of_ids(facts)]
    if speed.scales_outputs:
        notes.append(_OF_MOBILE)
    return Prediction(profile=profile.name, basis="roofline", why=why, notes=tuple(notes), rows=speed.predict(asked))
