"""The profile that a tuning writes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gemmaspec.core import strict_yaml
from gemmaspec.core.profile.model import Tuned
from gemmaspec.measure.bench.cells import Arm

_HEAD = """\
# Written by gemmaspec tune, which replaces it when it is run again with this name. `tuned` says what was measured, and
# on what; `gemmaspec up {name}` says whether it is still so.
"""


def profile_text(name: str, arm: Arm, *, overrides: Sequence[str], tuned: Tuned) -> str:
    """Return a profile that extends the arm's with what was set for it. `overrides` are the user's own KEY=VALUE."""
    if arm.alone:
        drafts = "without speculation"
    else:
        drafts = f"{arm.method}, k={arm.k}"
    document: dict[str, Any] = {"extends": arm.profile, "name": name, "summary": f"{arm.profile}, tuned: {drafts}"}
    if arm.knob:
        document["summary"] += f", {arm.knob}"
    for override in (*overrides, *arm.overrides):
        document = _set(document, override)
    if arm.alone:
        document |= {"draft": None, "speculative": None}
    document["tuned"] = tuned.model_dump(mode="json", exclude_none=True)
    return _HEAD.format(name=name) + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def _set(document: Mapping[str, Any], override: str) -> dict[str, Any]:
    key, _, text = override.partition("=")
    changed = copy.deepcopy(dict(document))
    place = changed
    *path, last = key.split(".")
    for part in path:
        inner = place.get(part)
        place[part] = inner if isinstance(inner, dict) else {}
        place = place[part]
    if text.strip():
        place[last] = strict_yaml.parse(text, file=f"--set {key}").data
    else:
        place[last] = None
    return changed
