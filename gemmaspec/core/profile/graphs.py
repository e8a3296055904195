"""Which CUDA graphs a profile's server gets, for its target and its draft, and what takes them away. Pure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gemmaspec.core import launcher
from gemmaspec.core.profile.command import COMPILATION, LEVEL, Argument, Command
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.releases.backends import LEVELS, Layers, modes_of, support_of
from gemmaspec.core.releases.drafting import BLOCKS
from gemmaspec.core.releases.facts import Facts
from gemmaspec.core.releases.model_runner import RunnerName

PATCH: Final = "composite-full-graphs"
"""The patch with which composite backends keep full graphs with a draft; a profile lists it by hand."""
_HEADS: Final = {"mtp": "draft", "eagle3": "eagle3", "eagle": "eagle3"}
_CHAINS: Final = ("mtp", "eagle", "eagle3")
_NO_HEAD: Final = ("ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states")
LOST: Final = ("NONE", "PIECEWISE")
"""Modes without a graph of the whole decoding step."""
FAST: Final = 1000.0
"""Memory bandwidth in 10^9 bytes/s above which a drafter's launches, not its bytes, take the time: a DGX Spark has 273,
an H200 4800. Where between them the line is was not measured."""
COST: Final = (
    "on an H200 with vLLM 0.32.0, 256 tokens, a server made 53 tokens/s with such a draft (MTP, k=4) and 86 without one"
)
"""What was measured of a server whose target ran in PIECEWISE and whose head ran without graphs."""
Path = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Supports:
    """What the backends of target and draft support of graphs, for one format of the KV cache; None if not known."""

    layers: Layers
    target: str | None
    draft: str | None


@dataclass(frozen=True, kw_only=True)
class GraphModes:
    """The graphs of a server, as its vLLM resolves them."""

    target: str
    """FULL_AND_PIECEWISE, FULL_DECODE_ONLY, FULL, PIECEWISE or NONE; REFUSED where vLLM does not start."""
    draft: str | None
    """What the drafts after the first run in: FULL, PIECEWISE or NONE; None without a head that vLLM runs."""
    why: str = ""
    """What took them away; empty where the server has all that it can have."""
    fix: str = ""
    """The line of the profile, or the patch, that brings them back; empty where nothing is lost."""
    path: Path = ("speculative", "method")
    """The key that decides."""
    covers: int | None = None
    """The most requests whose decoding has a graph, where the profile's own capture sizes bound them."""

    @property
    def lost(self) -> bool:
        """Whether decoding runs without a graph of the whole step, or the draft without any."""
        return self.target in LOST or self.draft == "NONE"

    def words(self) -> str:
        """Return both modes for people."""
        return f"target {self.target}" + (f", draft {self.draft}" if self.draft else "")


def graph_modes(
    profile: Profile,
    command: Command,
    facts: Facts,
    *,
    method: str | None,
    runner: RunnerName,
    capability: str | None,
    layers: Sequence[Layers],
) -> GraphModes | None:
    """Return the graphs of a server on a GPU; None if they are not known.

    `method`: the one that vLLM drafts with. `layers`: the backends, for each format that the cache may have. The
    profile may list the patch that keeps graphs.
    """
    vllm, where = facts.vllm, capability
    layers = layers if where else ()
    eager, transfer = command.argument("--enforce-eager"), command.argument("--kv-transfer-config")
    compiles, graphs, _ = _asked(command)
    spec = profile.speculative
    drafting = bool(spec and spec.num_speculative_tokens)
    head = _HEADS.get(method or "")
    modes = modes_of(vllm, drafting=drafting, compiles=compiles, graphs=graphs)
    supports = [
        Supports(
            layers=each,
            target=support_of(vllm, where, each.target, fp8=each.fp8, head=head),
            draft=support_of(vllm, where, each.draft, fp8=each.fp8, head=head or "eagle3", role="draft"),
        )
        for each in layers
    ]
    if taken := _taken(profile, command, modes.get("ALWAYS"), eager, transfer):
        return modes_with(taken[0], method, runner, vllm, why=taken[1], fix=taken[2], path=taken[3])
    keeps = PATCH in (*profile.patches.required, *profile.patches.optional)
    weakest = _weakest(supports, with_head=bool(head), keeps=keeps)
    if weakest is None or where is None:
        return None
    support, backend = weakest
    mode = modes.get(support)
    if mode is None:
        return None
    if mode in LOST or mode == "REFUSED":
        why = f"{backend} supports {support} with {method or 'no draft'}, so vLLM takes {mode}"
        fix = _mends(vllm, where, backend, fp8=all(each.fp8 for each in layers))
        return modes_with(mode, method, runner, vllm, why=why, fix=fix, path=("serve", "attention_backend"))
    if spec and spec.enforce_eager:
        path: Path = ("speculative", "enforce_eager")
        return GraphModes(target=mode, draft="NONE", why="speculative.enforce_eager", fix="remove it", path=path)
    if method in BLOCKS and runner == "v2" and (drafts := supports[0].layers.draft):
        support = supports[0].draft or "UNIFORM_BATCH"
        if LEVELS.index(support) < LEVELS.index("UNIFORM_BATCH"):
            why, path = f"{drafts} supports {support} for a {method} head", ("speculative", "attention_backend")
            return GraphModes(target=mode, draft="NONE", why=why, fix="set FLASH_ATTN, or remove it", path=path)
    sizes, path = capture_sizes(command)
    return replace(
        modes_with(mode, method, runner, vllm), covers=max(sizes) // _tokens(profile) if sizes else None, path=path
    )


def _taken(
    profile: Profile, command: Command, plain: str | None, eager: Argument | None, transfer: Argument | None
) -> tuple[str, str, str, Path] | None:
    """Return what a profile's own words leave of the graphs on any GPU, why, and what brings them back.

    `plain`: the mode of a backend that supports all of them.
    """
    compiles, graphs, path = _asked(command)
    if eager and not eager.negated:
        return "NONE", "enforce_eager turns them off", "remove it", eager.path
    if plain and plain in LOST:
        asked = []
        if compiles != "default":
            asked.append(compiles)
        if graphs != "default":
            asked.append(f"cudagraph_mode {graphs}")
        modes = " and ".join(asked) or "the default"
        return plain, f"{modes} leaves {plain}", "remove it", path
    if transfer and (connector := _by_layers(_json(transfer.value))):
        why = f"{connector} works layer by layer, for which vLLM takes PIECEWISE"
        return "PIECEWISE", why, "set use_layerwise: false in kv_connector_extra_config", transfer.path
    spec = profile.speculative
    sizes, path = capture_sizes(command)
    if sizes and spec and max(sizes) < (tokens := _tokens(profile)):
        why = f"the largest capture size is {max(sizes)}, below the {tokens} tokens that one request verifies"
        return "NONE", why, f"let the sizes reach {tokens}", path
    return None


def _by_layers(transfer: dict[str, Any]) -> str:
    """Return the connector that works layer by layer, also inside of a MultiConnector; "" for none.

    requires_piecewise_for_cudagraph of vllm/distributed/kv_transfer/kv_connector/v1/, every release.
    """
    name, extra = transfer.get("kv_connector"), transfer.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    if name == "LMCacheConnectorV1":
        if extra.get("use_layerwise"):
            return str(name)
        return ""
    if name == "MultiConnector":
        for part in extra.get("connectors") or ():
            if isinstance(part, dict) and (inside := _by_layers(part)):
                return inside
    return ""


def hurts(profile: Profile, modes: GraphModes, *, slow: bool = False) -> bool:
    """Return whether it so drafts more slowly than without: a head without graphs on fast, or not `slow`, memory."""
    bandwidth = MACHINES[profile.machine].bandwidth_gb_s
    fast = bandwidth > FAST if bandwidth else not slow
    return fast and modes.target in LOST and modes.draft == "NONE"


def modes_with(
    target: str,
    method: str | None,
    runner: str,
    vllm: str,
    *,
    why: str = "",
    fix: str = "",
    path: Path = ("speculative", "method"),
) -> GraphModes:
    """Return the graphs of a server whose target has a mode, with those that its draft then has."""
    draft = _head_mode(target, method, runner, vllm)
    if draft == "NONE" and not why:
        why, fix = f"vLLM {vllm} captures none for {method} (model runner {runner})", "use mtp"
        if method == "draft_model":
            if runner == "v2":
                by_env = " or set env: {VLLM_USE_V2_MODEL_RUNNER: '0'}"
            else:
                by_env = ""
            fix = f"use vLLM 0.26 to 0.30, which captures them for it,{by_env}"
    return GraphModes(target=target, draft=draft, why=why, fix=fix.rstrip(","), path=path)


def _head_mode(target: str, method: str | None, runner: str, vllm: str) -> str | None:
    """Return what the drafts after the first run in.

    v1: initialize_cudagraph_keys in vllm/v1/spec_decode/llm_base_proposer.py, draft_model from 0.26.0. v2:
    init_cudagraph_manager of vllm/v1/worker/gpu/spec_decode/ (autoregressive, from 0.32 target_dependent_ar; dflash);
    draft_model there has none (standalone_ar).
    """
    if method is None or method in _NO_HEAD:
        return None
    if runner == "v1":
        early = method == "draft_model" and launcher.range_contains("<0.26.0", vllm)
        if not early and target in ("PIECEWISE", "FULL", "FULL_AND_PIECEWISE"):
            return "PIECEWISE"
        return "NONE"
    full = target.startswith("FULL")
    if full and method in (*_CHAINS, *BLOCKS):
        return "FULL"
    return "NONE"


def _asked(command: Command) -> tuple[str, str, Path]:
    """Return what compiles, which graphs are asked for, and the key; `default` for what is left open."""
    compiles = graphs = "default"
    path: Path = ("serve", "extra_args")
    for argument in command.arguments:
        if argument.flag == LEVEL:
            compiles, path = f"-O{argument.value}", argument.path
        elif argument.flag == COMPILATION:
            if argument.keys:
                keys = {argument.keys[0]: argument.value}
            else:
                keys = _json(argument.value)
            path = argument.path
            if (mode := keys.get("mode")) is not None:
                compiles = f"mode {mode}"
            if asked := keys.get("cudagraph_mode"):
                graphs = str(asked).upper()
    return compiles, graphs, path


def capture_sizes(command: Command) -> tuple[list[int] | None, Path]:
    """Return the sizes, or the largest, that the profile lets vLLM capture, and their key; None where it says none."""
    sizes: list[Any] | None = None
    path: Path = ("serve", "extra_args")
    for argument in command.arguments:
        if argument.keys:
            keys = {argument.keys[0]: _value(argument.value)}
        else:
            keys = _json(argument.value)
        if argument.flag in ("--cudagraph-capture-sizes", "--max-cudagraph-capture-size"):
            keys = {"cudagraph_capture_sizes": list(argument.words or (argument.value,))}
        elif argument.flag != COMPILATION:
            continue
        for part in (keys.get("cudagraph_capture_sizes"), keys.get("max_cudagraph_capture_size")):
            if part is not None:
                sizes, path = [*(sizes or ()), *(part if isinstance(part, list) else [part])], argument.path
    if sizes is None:
        return None, path
    return [int(size) for size in sizes if str(size).isdecimal()], path


def _json(text: str | None) -> dict[str, Any]:
    document = _value(text)
    if isinstance(document, dict):
        return document
    return {}


def _value(text: str | None) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text or "")
    return text


def _tokens(profile: Profile) -> int:
    return 1 + ((profile.speculative.num_speculative_tokens or 0) if profile.speculative else 0)


def _weakest(supports: Iterable[Supports], *, with_head: bool, keeps: bool) -> tuple[str, str] | None:
    """Return the weakest support among the layers of target and head, and its backend.

    Where the KV format is open, both formats must lead to one answer. `keeps`: with the patch for composites.
    """
    weakest = set()
    for each in supports:
        target, draft = each.layers.target, each.layers.draft
        if target is None or each.target is None:
            continue
        composite = keeps and target.startswith("TRITON_FLASH")
        rows = [("UNIFORM_BATCH" if composite else each.target, target)]
        if with_head and draft and each.draft:
            rows.append((each.draft, draft))
        weakest.add(min(rows, key=lambda row: LEVELS.index(row[0])))
    ordered = sorted(weakest, key=lambda row: LEVELS.index(row[0]))
    whole = ordered and ordered[0][0] in LEVELS[2:]  # from UNIFORM_BATCH on vLLM resolves the same for every batch
    if whole or len({level for level, _ in weakest}) == 1:
        return ordered[0]
    return None


def _mends(vllm: str, where: str, backend: str, *, fp8: bool) -> str:
    """Return what keeps full graphs with a draft on a GPU, what ships first.

    FlashAttention has no masks over an FP8 cache.
    """
    if where.startswith("9.") and not fp8:
        flash = " (or FLASH_ATTN)"
    else:
        flash = ""
    composite = backend.startswith("TRITON_FLASH") and launcher.range_contains(">=0.30.0", vllm)
    if composite:
        patched = f", or list {PATCH} under patches.optional"
    else:
        patched = ""
    text = ", or serve.language_model_only: true if you serve only text"
    return f"set serve.attention_backend: TRITON_ATTN{flash}{patched}{text}"
