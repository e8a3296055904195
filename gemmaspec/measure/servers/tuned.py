"""Tuned profiles: where they are written, and with what."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.errors import GemmaspecError, ProfileError, UsageError
from gemmaspec.core.files import write_whole
from gemmaspec.core.profile.command import settings_digest
from gemmaspec.core.profile.find import own_folder, profile_folders
from gemmaspec.core.profile.load import RELATIVE, Loaded, load_profile
from gemmaspec.core.profile.model import Profile, Tuned, TunedLoad
from gemmaspec.measure.tune.choose import TuneChoice
from gemmaspec.measure.tune.written import profile_text
from gemmaspec.serve.prepare import plan_digest

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def destination(loaded: Loaded, *, name: str | None, out: Path | None) -> Path:
    """Return the file that a tuning writes: PROFILE-tuned in the user's profile folder, unless it is named.

    Raise UsageError for an invalid name, a file that is not tune's own, and where `extends` would not find the profile.
    """
    if out:
        file = out.absolute()
    else:
        file = own_folder() / f"{name or f'{loaded.profile.name}-tuned'}.yaml"
    if out and name and out.stem != name:
        raise UsageError(f"--name {name} and --out {out} name different profiles")
    if file.suffix != ".yaml" or not _NAME.fullmatch(file.stem):
        raise UsageError(f"{file.name} is not a valid name; use NAME.yaml, with lowercase letters, digits and hyphens")
    if file == loaded.file or (file.exists() and _before(file) is None):
        raise UsageError(f"{file} already exists, and tune did not write it", hint="--name OTHER")
    beside = [folder / f"{loaded.file.stem}.yaml" for folder in (file.parent, *profile_folders())]
    if next(filter(Path.is_file, beside), None) != loaded.file:
        raise UsageError(
            f"a profile in {file.parent} cannot extend {loaded.file}, which is neither there nor with other profiles",
            hint=f"--out {loaded.file.parent}/{file.name}",
        )
    return file


def write(
    file: Path,
    choice: TuneChoice,
    *,
    loaded: Loaded,
    overrides: Sequence[str],
    document: Mapping[str, Any],
    note: Callable[[str], None],
) -> Path | None:
    """Write the profile of a choice, and return its file.

    None if a complete answer already exists and this one is incomplete. `loaded` is the profile that the chosen arm
    extends. Raises ProfileError if the file would not run as measured.
    """
    before = _before(file)
    if before and before.complete and not document["complete"]:
        note(f"{file} was left unchanged, because a complete tuning wrote it")
        return None
    measured = load_profile(
        loaded.typed if loaded.file.stem == loaded.typed else str(loaded.file),
        overrides=(*overrides, *choice.arm.overrides),
        no_spec=choice.arm.alone,
    )
    tuned = _tuned(file.stem, choice, measured.profile, document)
    arm = dataclasses.replace(choice.arm, overrides=tuple(map(from_anywhere, choice.arm.overrides)))
    text = profile_text(file.stem, arm, overrides=[from_anywhere(text) for text in overrides], tuned=tuned)
    _check(file, text, tuned.settings)
    write_whole(file, text, mode=0o600)
    return file


def from_anywhere(override: str) -> str:
    """Return KEY=VALUE with a path of the working folder as a whole one: the profile is written into another folder."""
    key, _, value = override.partition("=")
    if value.startswith(RELATIVE):
        return f"{key}={json.dumps(str(Path(value).resolve()))}"
    return override


def _tuned(name: str, choice: TuneChoice, measured: Profile, document: Mapping[str, Any]) -> Tuned:
    """Return what the profile `name` says about the measurement that it comes from."""
    facts = document["provenance"]["arms"][choice.arm.profile][choice.arm.name]
    machine, settings = document["provenance"]["machine"], document["settings"]
    by_load = []
    for load in document["choice"]["k_by_load"]:
        by_load.append(TunedLoad(**{name: load[name] for name in TunedLoad.model_fields}))
    # a server behind an address has no lock; its version is all that is known of it
    pinned = facts.get("lock") or {"versions.vllm": facts.get("vllm") or "unknown"}
    return Tuned(
        date=document["date"],
        gemmaspec=document["gemmaspec"],
        complete=document["complete"],
        why=choice.why,
        k_by_load=by_load,
        gpu=machine.get("gpu") or [],
        driver=machine.get("driver"),
        prompts=settings["prompts"],
        prompts_sha256=settings["prompts_sha256"],
        ran=_as(name, measured, pinned),
        settings=settings_digest(measured),
    )


def _as(name: str, profile: Profile, ran: Mapping[str, str]) -> dict[str, str]:
    """Return what ran, with the plan that the profile has under another name, if it is the plan that ran."""
    if ran.get("plan") != plan_digest(profile):
        return dict(ran)
    return {**ran, "plan": plan_digest(profile.model_copy(update={"name": name}))}


def _check(file: Path, text: str, digest: str) -> None:
    """Raise ProfileError where the text is not the profile that was measured."""
    draft = file.with_name(f".{file.name}.new") / file.name
    try:
        write_whole(draft, text, mode=0o600)
        profile = load_profile(str(draft), folders=(file.parent, *profile_folders())).profile
    finally:
        draft.unlink(missing_ok=True)
        draft.parent.rmdir()
    if settings_digest(profile) != digest:
        raise ProfileError(
            f"{file} was not written: as a profile it would not run what was measured (a relative path in --set?)"
        )


def _before(file: Path) -> Tuned | None:
    """Return what tune wrote there before; None where there is nothing, or somebody else's."""
    try:
        if file.is_file():
            return load_profile(str(file)).profile.tuned
        return None
    except GemmaspecError:
        return None
