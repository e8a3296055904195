"""The six lines of `gemmaspec fit`, from its `--json` document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gemmaspec.cli.text import page
from gemmaspec.cli.text.predict import counted
from gemmaspec.core.profile.machines import machine_kind, machine_of

_GIB: Final = 2**30

_LAST_RESORT: Final = ("--no-spec", "--set serve.tensor_parallel_size")
"""How a change begins that gives up the draft or takes another GPU."""

_OWN: Final = ("measurements/", "patches/")
"""How the source of a figure begins that this project measured; others were published."""

_NO_SPEED: Final = "no speed: "
"""How the note begins that says why there is no figure."""

Document = Mapping[str, Any]


def lines(document: Document) -> Iterator[str]:
    """Yield whether it fits, its speed, how much it holds at once, the memory, what to change and what is not known."""
    machine = document["machine"]
    number = _servers_gpus(document)
    one = machine_kind(machine["name"])
    if number > 1:
        gpus = f"{number} x {one} ({_gib(machine['memory'])} each)"
    else:
        gpus = f"{one} ({_gib(machine['memory'])})"
    where = f"on {gpus} with vLLM {document['vllm']}"
    rows = [
        *(("PROBLEM", problem) for problem in document["problems"]),
        *(("warning", warning) for warning in document["warnings"]),
        ("speed", _speed(document)),
        ("requests", _requests(document)),
        ("memory", _memory(document)),
        *(("", stage) for stage in _stages(document)),
        ("change", _change(document)),
        ("unknown", _unknown(document)),
    ]
    yield from page.lines(f"{document['profile']} {verdict(document)} {where}", rows)


def _servers_gpus(document: Document) -> int:
    """Return how many GPUs the server takes, on all its machines; 1 where a machine has fewer."""
    flags, machine = document["flags"], document["machine"]
    number = flags["tensor_parallel"] * max(1, len(document["memory"]["stages"]))
    here = number // flags["nodes"]
    if machine["cpu"] or (machine["gpus"] is not None and here > machine["gpus"]):
        return 1
    return int(number)


def verdict(document: Document) -> str:
    """Return in two or three words whether the server would start."""
    if document["ok"]:
        return "fits"
    if document["refused"]:
        return "would NOT start"
    return "does NOT fit"


def _speed(document: Document) -> str:
    speed, roofline = document["speed"], document["roofline"]
    if speed and speed["rows"]:
        return _predicted(speed["rows"], document)
    unsaid = next((note for note in document["notes"] if note.startswith(_NO_SPEED)), None)
    if unsaid:
        return f"not known: {unsaid.removeprefix(_NO_SPEED)}"
    if roofline is None:
        return "not known, because the memory bandwidth of this machine is not"
    return f"at most {roofline['bound']:,.1f} tokens/s by the memory's bandwidth; no figure is known"


def _predicted(rows: Sequence[Mapping[str, Any]], document: Document) -> str:
    alone, drafted = rows[0], rows[-1]
    low, high = drafted["interval"]
    rate = f"{drafted['tokens_per_second']:,.1f} tokens/s {counted(prompt=bool(drafted['ttft_ms']))}"
    parts = [f"{rate} (90 %: {low:,.1f} to {high:,.1f}) for one request after {drafted['context']:,} tokens"]
    if drafted["k"] and not alone["k"]:
        parts.append(f"{alone['tokens_per_second']:,.1f} without a draft")
    elif document["flags"]["method"] and not drafted["k"]:
        parts.append("without its draft")
    if measured := _measured(document):
        parts.append(measured)
    return "; ".join(parts)


def _measured(document: Document) -> str | None:
    """Return the first figure that was measured or published of this very server with one request; None without."""
    machine = document["machine"]["name"]
    kinds = {machine, machine_of(machine)}
    for figure in document["measured"]:
        same = figure["machine"] in kinds and not {"target", "draft"} & figure.keys()
        if same and figure["concurrency"] == 1 and "tokens_per_second" in figure:
            if "baseline" in figure:
                alone = f", {figure['baseline']:g} without"
            else:
                alone = ""
            if figure.get("counted"):
                kind = f" {figure['counted']}"
            else:
                kind = ""
            whose = "measured" if figure["source"].startswith(_OWN) else "published"
            return f"{whose}: {figure['tokens_per_second']:g}{kind}{alone}"
    return None


def _requests(document: Document) -> str | None:
    cache = document["kv_cache"]
    if cache is None or document["memory"]["available_for_cache"] <= 0:
        return None
    flags = document["flags"]
    most, length = flags["max_num_seqs"], flags["max_model_len"]
    if cache["max_concurrency"] >= most:
        fit = "all fit"
    else:
        fit = f"{cache['max_concurrency']:,.1f} fit"
    by_number = cache["longest_by_sequences"]
    longest = {}
    for number in sorted({1, 2, 4, 8, most}):
        if number <= most and str(number) in by_number:
            longest[by_number[str(number)]] = number
    shown = ", ".join(f"{number} x {tokens:,}" for tokens, number in longest.items())
    return f"{most:,} x {length:,} tokens are asked for, {fit}; at most {shown}"


def _memory(document: Document) -> str:
    memory = document["memory"]
    cache = max(0, memory["available_for_cache"])
    if document["flags"]["cpu_cache"] is not None:
        if memory["free"] is not None:
            free = f", of {_gib(memory['free'])} free"
        else:
            free = ""
        return f"weights {_gib(memory['weights'])}, KV cache {_gib(cache)}{free}"
    rest = sum(estimate["nbytes"] for estimate in memory["estimates"])
    parts = {"weights": memory["weights"], "KV cache": cache, "activations, graphs and the like": rest}
    named = ", ".join(f"{name} {nbytes / _GIB:.2f}" for name, nbytes in parts.items())
    each = " on each" if _servers_gpus(document) > 1 else ""
    if memory["stages"]:
        each = " on the fullest stage"
    return f"{_gib(memory['requested'])} for vLLM{each}: {named}"


def _stages(document: Document) -> Iterator[str]:
    """Yield what each pipeline stage holds; nothing without stages."""
    for row in document["memory"]["stages"]:
        first, last = row["layers"]
        cache = _gib(max(0, row["available_for_cache"]))
        held = f"layers {first} to {last}, weights {_gib(row['weights'])}, room for a cache of {cache}"
        yield f"stage {row['stage']} ({machine_kind(row['gpu'])}, {_gib(row['total'])}): {held}"


def _change(document: Document) -> str:
    """Return the change that makes it fit; where it fits, the one that makes room for longer requests."""
    advice, cache = document["advice"], document["kv_cache"]
    if document["refused"]:
        return "what the problem names; no other memory would help"
    if not document["ok"]:
        starts = [item for item in advice if item["starts"]]
        gentle = [item for item in starts if not item["change"].startswith(_LAST_RESORT)]
        chosen = next(iter(gentle or starts), None)
        if chosen:
            return _advised(chosen)
        return "no single change is enough; --explain lists what each of them gives"
    if cache["max_concurrency"] >= document["flags"]["max_num_seqs"]:
        return "nothing: as many requests as may run at once fit at their full length"
    most_at_once = document["flags"]["max_num_seqs"]
    as_many = [item for item in advice if item["sequences"] == most_at_once]
    gentle = [item for item in as_many if not item["change"].startswith(_LAST_RESORT)]
    if not gentle:
        return "nothing is needed: further requests wait until there is room"
    most = max(gentle, key=lambda item: (item["longest_for_all"], item["longest"]))
    return f"nothing is needed: further requests wait until there is room; more room with {_advised(most)}"


def _advised(item: Mapping[str, Any]) -> str:
    holds = f"1 x {item['longest']:,}"
    if item["sequences"] > 1 and item["longest_for_all"]:
        holds += f" or {item['sequences']} x {item['longest_for_all']:,}"
    return f"{item['change']} (then {holds} tokens)"


def _unknown(document: Document) -> str:
    return "; ".join([*(document["unknown"] or ["nothing was assumed"]), "more: --explain"])


def _gib(nbytes: float) -> str:
    return f"{nbytes / _GIB:.2f} GiB"
