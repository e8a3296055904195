"""The CUDA graphs of a running server, as its log has them."""

from __future__ import annotations

from dataclasses import replace

from gemmaspec.core.profile.graphs import LOST, GraphModes, modes_with
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.resolve import Resolved


def as_logged(resolved: Resolved, target: str, *, eager_draft: bool = False) -> GraphModes:
    """Return the graphs of a server whose log says the mode of the target, and whether the draft has none."""
    expected = known(resolved.graphs)
    if expected and expected.target == target and (not eager_draft or expected.draft == "NONE"):
        return expected
    if target in LOST:
        why = "its attention backend or its flags allow no more"
    else:
        why = ""
    if why:
        fix = "set serve.attention_backend: TRITON_ATTN"
    else:
        fix = ""
    modes = modes_with(target, resolved.method, resolved.runner, resolved.facts.vllm, why=why, fix=fix)
    if eager_draft and modes.draft != "NONE":
        return replace(modes, draft="NONE", why="the draft's attention supports none", fix="set another for it")
    return modes
