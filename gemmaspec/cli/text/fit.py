"""What `gemmaspec fit` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemmaspec.check.fit.advice import Advice
from gemmaspec.check.fit.demand import Demand
from gemmaspec.check.fit.document import Fit, layer_rows, longest_by_sequences, stage_rows
from gemmaspec.check.fit.kvgroups import Unplannable
from gemmaspec.check.fit.link import Link
from gemmaspec.check.fit.memory_plan import HELD, MemoryPlan, parts
from gemmaspec.check.fit.roofline import ServingRoofline
from gemmaspec.cli.text import page
from gemmaspec.cli.text.predict import counted, told
from gemmaspec.core.profile.model import Measured
from gemmaspec.run.kept.attention import words

_GIB = 2**30
_MIB = 2**20
_BAR = 60


def lines(fit: Fit) -> Iterator[str]:
    """Yield the whole estimate."""
    plan = fit.plan
    verdict = "fits" if fit.fits else "does NOT fit"
    if fit.refused:
        verdict = "would NOT start"
    title = f"{fit.profile} on {plan.device.name}, {size(plan.device.memory)}, vllm {plan.demand.vllm}: {verdict}"
    yield from page.lines(title, _summary_rows(fit), names=page.NAMES)
    yield from ("", "memory")
    yield from memory_lines(plan)
    yield from bar_lines(plan)
    yield from stage_lines(plan)
    yield from ("", "KV cache")
    yield from cache_lines(plan)
    if fit.advice:
        yield from ("", "changes that free memory, each on its own")
        for advice in fit.advice:
            yield from advice_lines(advice)
    yield from ("", "speed")
    yield from speed_lines(fit.roofline, fit.speed)
    yield from page.rows_below(("measured", _measured(cell, fit)) for cell in fit.measured)
    if fit.link:
        yield from ("", f"{fit.link.nodes} machines")
        yield from link_lines(fit.link, plan)


def _summary_rows(fit: Fit) -> Iterator[page.Row]:
    if fit.speed and fit.speed["rows"]:
        yield "speed", f"{_in_short(fit.speed['rows'])}: predicted, see below"
    yield "flags", flags_text(fit.plan.demand)
    yield "attention", words(fit.attention)
    for problem in (*fit.refused, *fit.problems):
        yield "PROBLEM", problem
    for note in fit.notes:
        yield "note", note


def _in_short(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the last row, which drafts if the profile does, without its interval, and the speed without a draft."""
    alone, fastest = rows[0], rows[-1]
    shown = _predicted(fastest).partition("), ")[0].rstrip(")")
    if fastest is alone:
        return f"{shown})"
    return f"{shown}); {alone['tokens_per_second']:,.0f} without a draft"


def link_lines(link: Link, plan: MemoryPlan) -> Iterator[str]:
    """Yield what each machine holds, and what a step sends between them."""
    gpus = f"{link.gpus_per_node} GPU{'s' if link.gpus_per_node > 1 else ''}"
    held, cache = plan.weights * link.gpus_per_node, max(0, plan.available) * link.gpus_per_node
    yield f"  each has {gpus}, {size(held)} of weights (1/{link.nodes} of every layer) and {size(cache)} of KV cache"
    yield "  each reads the whole checkpoints from its own disk"
    if link.sending and link.rate:
        rate = f", {link.sending * 1e3:.2f} ms at {link.rate * 8 / 1e9:g} Gbit/s"
    else:
        rate = ""
    yield f"  bound     a step sends {size(link.sent)} from each to the others, 2 sums in each layer{rate}: no less"
    yield f"  unknown   how long each of the {link.sums} sums of a step waits for the network: nobody has measured it"


def flags_text(demand: Demand) -> str:
    """Return the flags that the memory depends on; a star marks vLLM's own default."""
    named = {
        "max_model_len": demand.max_model_len,
        "max_num_seqs": demand.max_num_seqs,
        "max_num_batched_tokens": demand.max_num_batched_tokens,
        "block_size": demand.block_size,
    }
    values = []
    for name, value in named.items():
        star = "*" if name in demand.defaults else ""
        values.append(f"{name} {value:,}{star}")
    return ", ".join([*values, f"hybrid manager {'on' if demand.hybrid else 'off'}"])


def size(nbytes: float) -> str:
    """Return bytes in a readable unit."""
    if abs(nbytes) >= _GIB / 10:
        return f"{nbytes / _GIB:.2f} GiB"
    return f"{nbytes / _MIB:.1f} MiB"


def memory_lines(plan: MemoryPlan) -> Iterator[str]:
    """Yield what the memory is used for."""
    demand = plan.demand
    if demand.cpu_cache is None:
        yield _row("for vLLM", plan.requested, f"gpu_memory_utilization {demand.utilization:g} of the whole memory")
    if plan.gpu.free is not None:
        yield _row("free now", plan.gpu.free, "MemAvailable" if plan.device.unified or plan.device.cpu else "")
    gpus = demand.tensor_parallel
    share = f", on each of {gpus} GPUs" if gpus > 1 else ""
    if len(demand.stages) > 1:
        share += f", stage {plan.stage + 1} of {len(demand.stages)}"
    yield _row("target", plan.target.total, plan.models.target.ref + share)
    if plan.draft and plan.models.draft:
        yield _row("draft", plan.draft.total, plan.models.draft.ref + share)
    yield _row("loading peak", plan.loading, "the embeddings are briefly held twice" if plan.draft else "the weights")
    if plan.held is not None:
        yield _row("while loading", plan.held, f"estimate: the weights + up to {size(HELD)}, which torch releases")
    for overhead in plan.overheads:
        on_top = "" if overhead.reserved else "; vLLM does not reserve it, so it comes on top"
        yield _row(overhead.name, overhead.nbytes, f"estimate: {overhead.formula}{on_top}")
    if plan.beyond:
        most = f"all {demand.max_num_seqs:,} requests"
        yield _row(
            "not reserved",
            plan.beyond.nbytes,
            f"estimate: {most} drafting at once need so much more: {plan.beyond.formula}",
        )
    if demand.cpu_cache is not None:
        how = "VLLM_CPU_KVCACHE_SPACE"
    else:
        how = "the remaining memory"
    yield _row("KV cache", plan.available, how)


def stage_lines(plan: MemoryPlan) -> Iterator[str]:
    """Yield one line for each pipeline stage; none without stages."""
    for row in stage_rows(plan):
        first, last = row["layers"]
        blocks = "" if row["num_blocks"] is None else f", {row['num_blocks']:,} blocks"
        fullest = ": the fullest, which decides" if row["fullest"] else ""
        yield (
            f"  stage {row['stage']}  layers {first} to {last}, {size(row['weights'])} of weights, "
            f"{size(max(0, row['available_for_cache']))} left for the cache of {row['gpu']}{blocks}{fullest}"
        )


def bar_lines(plan: MemoryPlan) -> Iterator[str]:
    """Yield one bar of the memory and its key; each part has at least one letter."""
    pieces = parts(plan)
    whole = sum(nbytes for _, nbytes in pieces)
    bar, key = "", []
    for name, nbytes in pieces:
        letter = "." if name == "free" else name[0].upper()
        bar += letter * max(1, round(_BAR * nbytes / whole))
        key.append(f"{letter} {name}")
    yield f"  [{bar}]"
    yield f"  {', '.join(key)}"


def cache_lines(plan: MemoryPlan) -> Iterator[str]:
    """Yield what the cache holds."""
    try:
        cache = plan.cache
    except Unplannable:
        yield "  cannot be planned"
        return
    demand, available = plan.demand, plan.available
    for row in layer_rows(plan):
        yield layer_line(row, demand.cache_dtype if row["role"] == "target" else demand.draft_cache_dtype)
    if len(cache.groups) == 1:
        groups = "1 group"
    else:
        groups = f"{len(cache.groups)} groups"
    yield f"  {groups}, {cache.block_bytes:,} bytes per block, {cache.num_blocks(available):,} blocks"
    if available <= 0:
        return
    length = demand.max_model_len
    yield (
        f"  {cache.logged_tokens(available, length):,} tokens, maximum concurrency for {length:,} tokens per request: "
        f"{cache.concurrency(available, length):.2f}x"
    )
    yield f"  one request of {length:,} tokens takes {size(cache.request_bytes(length))}"
    best = ", ".join(f"{number} x {longest:,}" for number, longest in longest_by_sequences(plan))
    yield f"  largest sequences x max_model_len: {best or 'none'}"


def layer_line(row: Mapping[str, Any], dtype: str) -> str:
    """Return the line for the layers of one model that have one kind of attention."""
    kind = f"  {row['role']:<6} {row['kind']:<7}  {row['layers']:>3} layers"
    if not row["with_cache"]:
        return f"{kind}, none with a cache of its own"
    if row["window"]:
        held = f"window {row['window']}"
    else:
        held = "every token"
    if row["keeps_window_alone"] or not row["window"]:
        kept = held
    else:
        kept = f"{held}, kept whole"
    if row["layers"] > row["with_cache"]:
        sharing = f", {row['layers'] - row['with_cache']} share"
    else:
        sharing = ""
    return (
        f"{kind}{sharing}, {row['kv_heads']} x {row['head_dim']} {dtype}: "
        f"{row['token_bytes']:,} bytes per token, blocks of {row['block_size']} ({kept})"
    )


def advice_lines(advice: Advice) -> tuple[str, str]:
    """Return one change, and its effect."""
    outcome = f"then 1 x {advice.longest:,}"
    if advice.sequences > 1 and advice.longest_for_all:
        outcome += f" or {advice.sequences} x {advice.longest_for_all:,}"
    return f"  {advice.change}", f"    {advice.effect}; {outcome}{'' if advice.starts else '; not enough on its own'}"


def speed_lines(roofline: ServingRoofline | None, speed: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the bound, and what `predict` says with its basis."""
    if roofline is None:
        yield "  unknown: the memory bandwidth of this machine is not known"
        return
    step = roofline.step
    yield (
        f"  {roofline.bandwidth / 1e9:,.0f} GB/s; a step with {roofline.concurrency} x {roofline.context:,} tokens "
        f"reads {size(step.target)} of weights and {size(step.target_cache)} of cache"
    )
    yield from page.rows_below(_speed_rows(roofline, speed))


def _speed_rows(roofline: ServingRoofline, speed: Mapping[str, Any] | None) -> Iterator[page.Row]:
    bound, step = f"{roofline.alone:,.1f} tokens/s without speculation", roofline.step
    if roofline.passes:
        bound += f", {roofline.bound:,.1f} with every drafted token accepted"
    yield "bound", f"{bound}: no server can be faster"
    if roofline.passes:
        draft = size(step.draft + step.draft_cache)
        yield "draft", f"{draft} per pass, {roofline.passes} passes per step, cost ratio c = {step.cost:.3f}"
    if speed:
        yield "predicted", f"from {told(speed['why'])}"
        for note in speed["notes"]:
            yield "", note
        for row in speed["rows"]:
            yield "", _predicted(row)


def _predicted(row: Mapping[str, Any]) -> str:
    low, high = row["interval"]
    if row["k"]:
        drafted = f"{row['method']} k={row['k']}"
    else:
        drafted = "no speculation"
    if row["k"] and row["speedup"]:
        times = f", {row['speedup']:.2f} times"
    else:
        times = ""
    rate = f"{row['tokens_per_second']:,.1f} tokens/s {counted(prompt=bool(row['ttft_ms']))}"
    return f"{drafted}: {rate} ({low:,.1f} to {high:,.1f}){times}"


def _measured(cell: Measured, fit: Fit) -> str:
    """Return one published figure, and which share of the roofline it reaches without speculation."""
    if cell.counted:
        unit = f"tokens/s {cell.counted}"
    else:
        unit = "tokens/s"
    if cell.tokens_per_second:
        figure = f"{cell.tokens_per_second:g} {unit}"
    else:
        figure = None
    if cell.acceptance_length:
        length = f"acceptance length {cell.acceptance_length:g}"
    else:
        length = None
    speedup = f"{cell.speedup} times" if cell.speedup else None
    figures = ", ".join(text for text in (figure, speedup, length) if text)
    if cell.baseline:
        baseline = f", {cell.baseline:g} without"
    else:
        baseline = ""
    if fit.plan.models.draft:
        alone = cell.baseline
    else:
        alone = cell.tokens_per_second
    share, roof = "", fit.roofline
    one = fit.plan.demand.tensor_parallel == 1
    same = cell.machine == fit.plan.device.name and roof and cell.concurrency == roof.concurrency and one
    if alone and roof and same and not cell.target:
        share = f" ({alone / roof.alone:.0%} of the roofline)"
    other = " and ".join(text for text in (cell.target, cell.draft) if text)
    pair = f", with {other}" if other else ""
    return f"{figures}{baseline}{share}, {cell.concurrency} concurrent{pair}, {cell.machine}, {cell.source}"


def _row(name: str, nbytes: int, how: str) -> str:
    return f"  {name:<14}{size(nbytes):>12}  {how}".rstrip()
