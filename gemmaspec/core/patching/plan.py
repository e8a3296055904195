"""Compile patches to a plan: plain data with its own sha256, with everything that the launcher needs."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gemmaspec import __version__
from gemmaspec.core import launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.launcher import Measured, Requirement
from gemmaspec.core.patching.judged import deciding_probe
from gemmaspec.core.patching.patch import Patch, Variant, with_needs


def compile_plan(
    profile_name: str,
    required: Sequence[str],
    optional: Sequence[str],
    requires: Sequence[Requirement],
    patches: Mapping[str, Patch],
    *,
    speed: Mapping[str, Sequence[Measured]] | None = None,
    drift: str = "warn",
) -> dict[str, Any]:
    """Return the plan of a profile: its patches in the order given, required ones first, and what it requires.

    `speed` are the patches for speed, last, each with where it was shown to pay.

    The same input gives the same plan, byte for byte. Raise PatchError for an unknown patch (with the most similar id),
    a patch that is listed twice, and a requirement that the launcher cannot compare.
    """
    speed = speed or {}
    names = [*required, *optional, *speed]
    for name in names:
        if name not in patches:
            raise PatchError(unknown_patch(name, patches), hint="ls patches/")
        if names.count(name) > 1:
            raise PatchError(f"patch {name} is listed twice; a patch is either required or optional")
        if patches[name].is_speed != (name in speed):
            raise PatchError(f"patch {name} is for speed, so no start depends on it; list it under patches.speed")
    _check_needs(names, patches)
    entries = [patch_entry(patches[name], required=name in required, where=speed.get(name, ())) for name in names]
    plan: dict[str, Any] = {
        "schema": 1,
        "profile": profile_name,
        "gemmaspec": __version__,
        "drift": drift,
        "requires": [dataclasses.asdict(need) for need in requires],
        "patches": entries,
    }
    plan["sha256"] = launcher.plan_digest(plan)
    try:
        launcher.parse_plan(plan)
    except ValueError as error:
        raise PatchError(f"the launcher would reject the plan of {profile_name}: {error}") from None
    return plan


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return the text of plan.json: indented JSON with sorted keys and a newline at the end."""
    return json.dumps(plan, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def unknown_patch(name: str, patches: Iterable[str]) -> str:
    """Return the sentence about an unknown patch, with the most similar id."""
    patches = sorted(patches)
    near = difflib.get_close_matches(name, patches, n=1, cutoff=0.5)
    if near:
        known = f"did you mean {near[0]}?"
    else:
        known = f"the known patches are {', '.join(patches) or 'none'}"
    return f"unknown patch {name}; {known}"


def _check_needs(names: Sequence[str], patches: Mapping[str, Patch]) -> None:
    """Raise PatchError if a patch comes before one that it needs, because patches are applied in the listed order."""
    for index, name in enumerate(names):
        for need in patches[name].text.needs:
            if need not in names[:index]:
                if need in names:
                    where = "comes after it"
                else:
                    where = "is not listed"
                free = "; it changes nothing under a vLLM without need of it"
                raise PatchError(f"patch {name} needs {need}, which {where}; list {need} before {name}{free}")


def patch_entry(patch: Patch, *, required: bool, where: Sequence[Measured] = ()) -> dict[str, Any]:
    """Return the plan's entry of one patch; `where` says where a speed patch was shown to pay."""
    entry = {
        "id": patch.id,
        "title": patch.text.title,
        "required": required,
        "runner": patch.text.runner,
        "superseded": [rule.model_dump(mode="json", exclude_defaults=True) for rule in patch.text.superseded],
        "variants": [_variant_entry(variant) for variant in patch.variants],
    }
    if not patch.is_speed:
        return entry | _probe_of(patch)
    shown = [_where(row) for row in where]
    return entry | {"purpose": "speed", "needs": list(patch.text.needs), "where": shown}


def _where(row: Measured) -> dict[str, str]:
    """Return where a speed patch was shown to pay; without a place unless it was measured on the spot."""
    shown = {"vllm": row.vllm, "capability": row.capability}
    return shown | {"place": row.place} if row.place else shown


def _probe_of(patch: Patch) -> dict[str, Any]:
    """Return a patch's probe, which the launcher runs where the patch does not fit; nothing if none may decide."""
    files = deciding_probe(patch.folder)
    if files is None:
        return {}
    beside = [{"name": name, "text": text} for name, text in sorted(files.beside.items())]
    return {"probe": files.text, **({"beside": beside} if beside else {})}


def _variant_entry(variant: Variant) -> dict[str, Any]:
    """Return the plan's entry of a variant, with lists instead of tuples as in JSON."""
    entry: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(variant)))
    return entry


def launcher_patch(patch: Patch) -> launcher.Patch:
    """Return a patch as the launcher reads it from a plan, to be judged by its lines alone, whatever it is for."""
    compiled: launcher.Patch = launcher.decode(launcher.Patch, patch_entry(patch, required=False), patch.id)
    return dataclasses.replace(compiled, required=True, purpose="defect")


def chain(patch: Patch, patches: Mapping[str, Patch]) -> tuple[launcher.Patch, ...]:
    """Return the patches that it needs, in order, then the patch.

    Raise PatchError if one is missing or needs it too.
    """
    return tuple(map(launcher_patch, with_needs(patch, patches)))
