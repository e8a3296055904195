"""Tuned profiles: where they are written, and whether a machine is still the one they were measured on.

`render`: a stack is written without losing any of the user's files; objects of a cluster are built and checked.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gemmaspec.cluster.build import Manifests, build_manifests
from gemmaspec.cluster.names import yaml_text
from gemmaspec.cluster.settings import ClusterSettings
from gemmaspec.deploy.kept.models import lock_file
from gemmaspec.deploy.kept.owner import owned
from gemmaspec.deploy.kept.stacks import stack_folder
from gemmaspec.deploy.start.lock import as_locked, by_lock
from gemmaspec.deploy.start.prepare import cached, plan_digest, resolve
from gemmaspec.engine import kubectl
from gemmaspec.engine.server import EngineName
from gemmaspec.errors import GemmaspecError, ProfileError, UsageError
from gemmaspec.files import write_whole
from gemmaspec.machine import nvidia
from gemmaspec.profile.command import settings_digest
from gemmaspec.profile.find import own_folder, profile_folders
from gemmaspec.profile.load import Loaded, load_profile
from gemmaspec.profile.model import Profile, Tuned, TunedLoad
from gemmaspec.stack import folder as stack_files
from gemmaspec.stack.folder import Rendered
from gemmaspec.tune.choose import TuneChoice, profile_text


def render(loaded: Loaded, stack: Rendered, out: Path, *, force: bool = False) -> list[str]:
    """Write the stack into `out` and return the names of its files.

    Unless `force`, raises UsageError for files that gemmaspec did not write or that were changed since. Raises
    EnvironmentMissing for a file that cannot be written, GemmaspecError if another command has locked the folder.
    """
    name = loaded.profile.name
    in_state = out.absolute() == stack_folder(name)
    with owned(name, "render") if in_state else contextlib.nullcontext():
        if not force and (strange := stack_files.strangers(stack, out)):
            raise UsageError(
                f"gemmaspec did not write {', '.join(map(str, strange))}, or it was changed since. Nothing was written",
                hint=f"gemmaspec render {loaded.typed} --out {out} --force    # overwrites or removes it",
            )
        return stack_files.write(stack, out)


def manifests(loaded: Loaded, settings: ClusterSettings, *, locked: bool, note: Callable[[str], None]) -> Manifests:
    """Render a profile for a cluster, with image and revisions as its lock pins them, if it has one.

    `locked` demands that nothing has moved since. Raises what as_locked and build_manifests raise.
    """
    pinned = as_locked(loaded, "docker") if locked else by_lock(loaded, "docker", note)
    if "@" in (pinned.profile.image or ""):
        note(f"image by digest, as {lock_file(loaded)} pins it" if pinned is not loaded else "image by digest")
    else:
        note(f"image by tag, which can move: gemmaspec lock {loaded.typed} --engine docker pins its digest")
    return build_manifests(pinned, settings)


def validate(rendered: Manifests, *, namespace: str | None, note: Callable[[str], None]) -> None:
    """Have the API server check every object, and note what it accepts.

    Raises GemmaspecError naming each object and field that is refused, EnvironmentMissing without a cluster to ask.
    """
    accepted = kubectl.dry_run(yaml_text(list(rendered.objects.values())), namespace=namespace)
    note("\n".join(f"the cluster accepts {line}" for line in accepted.splitlines() if line.strip()))


_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MOVES: Final = ("image.name", "target.asked", "draft.asked")
"""Facts of a lock that are names for what other facts say exactly."""
_WORDS: Final = {
    "engine": "the engine", "plan": "the patches", "image.id": "the image", "image.digest": "the image",
    "target.revision": "the target", "target.digest": "the target", "target.model": "the target",
    "draft.revision": "the draft", "draft.digest": "the draft", "draft.model": "the draft",
    "versions.vllm": "vLLM", "versions.torch": "torch", "versions.transformers": "transformers",
}  # fmt: skip


def destination(loaded: Loaded, *, name: str | None, out: Path | None) -> Path:
    """Return the file that a tuning writes: PROFILE-tuned in the user's profile folder, unless it is named.

    Raises UsageError for an invalid name, for a file that is not tune's own, and where `extends` would not find
    the profile.
    """
    file = out.absolute() if out else own_folder() / f"{name or f'{loaded.profile.name}-tuned'}.yaml"
    if out and name and out.stem != name:
        raise UsageError(f"--name {name} and --out {out} name different profiles")
    if file.suffix != ".yaml" or not _NAME.fullmatch(file.stem):
        raise UsageError(f"{file.name} is not a valid name; use NAME.yaml, with lowercase letters, digits and hyphens")
    if file == loaded.file or (file.exists() and _before(file) is None):
        raise UsageError(f"{file} already exists, and tune did not write it", hint="--name OTHER")
    beside = [folder / f"{loaded.file.stem}.yaml" for folder in (file.parent, *profile_folders())]
    if next((file for file in beside if file.is_file()), None) != loaded.file:
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
    text = profile_text(file.stem, choice.arm, overrides=overrides, tuned=tuned)
    _check(file, text, tuned.settings)
    write_whole(file, text, mode=0o600)
    return file


def _tuned(name: str, choice: TuneChoice, measured: Profile, document: Mapping[str, Any]) -> Tuned:
    """Return what the profile `name` says about the measurement that it comes from."""
    facts = document["provenance"]["arms"][choice.arm.profile][choice.arm.name]
    machine = document["provenance"]["machine"]
    return Tuned(
        date=document["date"],
        gemmaspec=document["gemmaspec"],
        complete=document["complete"],
        why=choice.why,
        k_by_load=[
            TunedLoad(
                concurrency=load.concurrency,
                k=load.k,
                tokens_per_second=round(load.tokens_per_second, 3),
                times=round(load.times, 4),
            )
            for load in choice.loads
        ],
        gpu=machine.get("gpu") or [],
        driver=machine.get("driver"),
        prompts=document["settings"]["prompts"],
        prompts_sha256=document["settings"]["prompts_sha256"],
        ran=_as(name, measured, facts.get("lock") or {"versions.vllm": facts.get("vllm") or "unknown"}),
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
        return load_profile(str(file)).profile.tuned if file.is_file() else None
    except GemmaspecError:
        return None


def remark(loaded: Loaded, engine: EngineName) -> str | None:
    """Return in one sentence whether a tuned profile runs on what it was measured on; None for any other profile."""
    tuned = loaded.profile.tuned
    if tuned is None:
        return None
    when = f"tuned on {tuned.date[:10]}"
    try:
        facts = resolve(loaded, engine, cached(loaded.profile, engine)).facts()
    except (GemmaspecError, OSError) as error:
        problem = error.message if isinstance(error, GemmaspecError) else str(error.strerror)
        return f"warning: {when}; cannot tell whether this is still what was measured: {problem}"
    differs = list(dict.fromkeys(_differences(tuned, loaded, facts)))
    if not differs:
        return f"{when}: machine, image, vLLM and models are those that were measured"
    parent = loaded.profile.name.removesuffix("-tuned")
    return (
        f"warning: {when}, on something else: {'; '.join(differs)}. Its k may not be the best here; "
        f"gemmaspec tune {parent} measures again"
    )


def _differences(tuned: Tuned, loaded: Loaded, facts: Mapping[str, str]) -> Iterator[str]:
    gpus = nvidia.gpus()
    names = [gpu.name for gpu in gpus]
    if names != tuned.gpu:
        yield _moved("the GPU", ", ".join(tuned.gpu) or "none", ", ".join(names) or "none")
    elif gpus and gpus[0].driver != tuned.driver:
        yield _moved("the driver", tuned.driver or "unknown", gpus[0].driver or "unknown")
    for name in dict.fromkeys((*tuned.ran, *facts)):
        if name not in _MOVES and tuned.ran.get(name) != facts.get(name):
            yield _moved(_WORDS.get(name, name), *(_short(side.get(name)) for side in (tuned.ran, facts)))
    if tuned.settings != settings_digest(loaded.profile):
        yield "its settings are not those that were measured (--set, or the profile that it extends)"


def _moved(what: str, then: str, now: str) -> str:
    return f"{what} was {then}, and is {now}"


def _short(value: str | None) -> str:
    """Return a fact as a sentence holds it: of a digest the beginning."""
    text = value or "unknown"
    return text[:19] if text.startswith("sha256:") else text[:12] if re.fullmatch(r"[0-9a-f]{40}", text) else text
