"""How a profile's server may come to run, as far as the profile states it, and which speed patches it takes."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gemmaspec.core.patching.choice import Choices, choose, is_shown, speed_patches
from gemmaspec.core.patching.evidence import FAMILIES, READERS, VARIABLE, family_of
from gemmaspec.core.patching.patch import Patch, PatchText
from gemmaspec.core.patching.runs_on import RunsOn
from gemmaspec.core.patching.spot import HERE, shape_of
from gemmaspec.core.profile.command import extra_of, vllm_of
from gemmaspec.core.profile.device import device_of
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.replica import gpus_each
from gemmaspec.core.releases.facts import releases
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.resolve import resolved_of

NO_DRAFT: Final = "none"
"""The method of a server without speculation, in evidence as in measured rows."""
NO_GPU: Final = "for GPUs alone"
"""How the reason begins why a machine without a GPU takes none."""


def speed_choice(profile: Profile, patches: Mapping[str, Patch], *, capability: str | None = None) -> Choices:
    """Return the speed patches of a profile's plan, and why the others are left out.

    `capability`: the compute capability of the GPU that is there, for a profile that leaves the GPU open.
    Raise PatchError for a list in `patches.speed` with an unknown patch or one of a defect.
    """
    settings, why_none = _settings_of(profile, capability)
    chosen = choose(profile.patches.speed, settings, patches, why_none=why_none)
    target, left_out = profile.target.model.lower(), dict(chosen.left_out)
    for text in (patches[name].text for name in chosen.taken):
        if text.targets and not any(fnmatch.fnmatch(target, pattern) for pattern in text.targets):
            left_out[text.id] = f"for other targets ({', '.join(text.targets)})"
        elif text.speculation_only and not profile.speculative:
            left_out[text.id] = "for speculation alone"
        elif why := idle_because(profile, text):
            left_out[text.id] = why
    taken = {name: rows for name, rows in chosen.taken.items() if name not in left_out}
    because = {name: why for name, why in chosen.because.items() if name in taken}
    return Choices(taken=taken, left_out=left_out, because=because)


def untried(profile: Profile, patches: Mapping[str, Patch]) -> tuple[str, ...]:
    """Return the speed patches that would pay here by what was measured on other GPUs, in the order of their ids.

    They are for the release, method, backend and target that run; rows of launch parameters are searched for and not
    tried as they are. Nothing where the GPU or the release is not known, and where the profile chooses itself.
    """
    stated, capability = vllm_of(profile), MACHINES[profile.machine].compute_capability
    if profile.patches.speed != "auto" or capability is None or stated is None:
        return ()
    settings, _ = _settings_of(profile, None)
    choice, target = speed_choice(profile, patches), profile.target.model.lower()
    found = []
    for patch in speed_patches(patches):
        text = patch.text
        fits = not text.targets or any(fnmatch.fnmatch(target, pattern) for pattern in text.targets)
        drafts = not text.speculation_only or profile.speculative is not None
        if (
            patch.id in choice.taken
            or choice.left_out.get(patch.id, "").startswith(HERE)
            or patch.id in READERS.values()
            or not fits
            or not drafts
            or idle_because(profile, text)
        ):
            continue
        families = {family for claim in text.pays for family in claim.gpus}
        elsewhere = [replace(setting, family=family) for setting in settings for family in families]
        if any(is_shown(patch, setting) for setting in elsewhere):
            found.append(patch.id)
    return tuple(found)


def idle_because(profile: Profile, text: PatchText) -> str:
    """Return why a speed patch would change nothing on a profile's server; "" if it changes something."""
    share = gpus_each(profile)
    if "several-gpus" in text.idle_with and share > 1 and not _has_own_matrices(profile):
        return f"it changes nothing where {share} GPUs share a model"
    if "lora" in text.idle_with and extra_of(profile).switched("--enable-lora"):
        return "it changes nothing with LoRA adapters"
    return ""


def _has_own_matrices(profile: Profile) -> bool:
    """Return whether the profile has launches of its own for matrices, which may be those of a rank."""
    return "matrix:" in profile.env.get(VARIABLE, "")


def _settings_of(profile: Profile, given: str | None) -> tuple[Sequence[RunsOn], str]:
    """Return every release and family of GPUs on which the server may run, and why there are none."""
    machine, stated = MACHINES[profile.machine], vllm_of(profile)
    if not machine.gpus:
        return (), f"{NO_GPU}, and the machine {profile.machine} has none"
    if stated and stated not in releases():
        return (), f"vLLM {stated} is not a known release, and only releases were measured"
    fixed = machine.compute_capability or given
    if fixed:
        gpus = [(fixed, "")]
    else:
        gpus = [(gpu, gpu) for members in FAMILIES.values() for gpu in members]
    settings: list[RunsOn] = []
    for vllm in [stated] if stated else releases():
        for capability, unknown in gpus:
            gpu = replace(device_of(machine), capability=capability)
            resolved = resolved_of(profile, vllm=vllm, device=gpu)
            settings.append(
                RunsOn(
                    vllm=vllm,
                    family=family_of(capability) or "",
                    capability=unknown,
                    backend=known(resolved.backend),
                    method=resolved.method or NO_DRAFT,
                    shape=shape_of(resolved),
                )
            )
    return settings, ""
