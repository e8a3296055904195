"""Render a profile to the files of a stack, as text, with the chat template that matches its release of vLLM.

Pure: no Docker, no network, no clock.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from packaging.version import InvalidVersion, Version

from gemmaspec.core import data, draft_ids
from gemmaspec.core.data import TEMPLATES
from gemmaspec.core.errors import PatchError, ProfileError
from gemmaspec.core.files import MAX_STATE, UnreadableFile, open_regular
from gemmaspec.core.launcher import ATTEST_FILES, ORIGINS_FILE, RANK_FACTS_FILE, Requirement
from gemmaspec.core.patching.patch import Patch, Shelf
from gemmaspec.core.patching.plan import compile_plan, plan_text
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.releases.drafting import TRANSFORMERS_BY_VLLM
from gemmaspec.run.stack.compose import compose_yaml, without_image
from gemmaspec.run.stack.paths import PROBE_FILE, SPECULATIVE_FILE, TEMPLATE_FILE, container_paths
from gemmaspec.run.stack.serve import WATCH_FILES, Served, served_at, watch_files
from gemmaspec.run.stack.speed import speed_choice

Form = Literal["folder", "single-file", "volume", "process", "rank"]
"""`folder`, `single-file` and `volume` are for Docker Compose; `process` has the same files without compose.yaml, and
`rank` has them for one of several machines. A server reads the files of `volume` in a volume of its daemon, into which
the engine copies them."""

OWN_TEMPLATE: Final = "gemma4"
"""`chat.template: gemma4` means the shipped template that matches the vLLM release."""

STACK_FILES: Final = (
    *("compose.yaml", "plan.json", "launch.py", ORIGINS_FILE, *ATTEST_FILES),
    *(RANK_FACTS_FILE, PROBE_FILE),
    *(SPECULATIVE_FILE, TEMPLATE_FILE, draft_ids.FILE),
    *WATCH_FILES,
)
"""Every file that a stack may have; files that a profile does not need are absent."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The rendered files of one profile, by name."""

    profile: Profile
    files: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Every file that a stack may have, and a compose file for each machine of a server on several."""
        return (*STACK_FILES, *(name for name in self.files if name not in STACK_FILES))


def build_stack(loaded: Loaded, *, form: Form) -> Stack:
    """Render `loaded` for a container. Raise what `render_stack` raises."""
    return render_stack(loaded, served_at(loaded.profile, container_paths(loaded.profile)), form=form)


def render_stack(loaded: Loaded, served: Served, *, form: Form) -> Stack:
    """Render `loaded`, served as `served` says.

    Raise ProfileError for what depends on the form (a missing image or template), PatchError for an unknown patch.
    """
    profile = loaded.profile
    if profile.nodes > 1 and form != "rank":
        raise ProfileError(
            f"{loaded.place('nodes')}: nodes: is {profile.nodes}, so each of as many machines needs a stack",
            hint=f"gemmaspec up {loaded.typed} --hosts HOST,HOST    # rank 0 first",
        )
    if form in ("volume", "rank") and profile.watch.container:
        raise ProfileError(
            f"{loaded.place('watch', 'container')}: watch.container: needs a Docker daemon of this machine",
            hint=f"gemmaspec watch {profile.name}    # from here; and --set watch.container=false",
        )
    files = _files(loaded, served, form=form)
    if form in ("process", "rank"):
        return Stack(profile=profile, files=files)
    if not profile.image:
        raise without_image(loaded)
    if profile.watch.container:
        files |= watch_files(profile, served.model)
    compose = compose_yaml(profile, files, served, single_file=form == "single-file", volume=form == "volume")
    return Stack(
        profile=profile,
        files={"compose.yaml": compose} if form == "single-file" else {"compose.yaml": compose, **files},
    )


def _files(loaded: Loaded, served: Served, *, form: Form) -> dict[str, str]:
    """Return the files by name that the server itself reads or runs."""
    profile = loaded.profile
    plan = profile_plan(profile, Shelf(data.patch_folders()))
    files = {"plan.json": plan_text(plan), "launch.py": data.LAUNCHER.read_text(encoding="utf-8")}
    for name in (ORIGINS_FILE, *(ATTEST_FILES if plan["patches"] else ())):
        files[name] = data.LAUNCHER.with_name(name).read_text(encoding="utf-8")
    if profile.nodes > 1:
        files[RANK_FACTS_FILE] = data.RANK_FACTS.read_text(encoding="utf-8")
    if form != "process":
        files[PROBE_FILE] = data.PROBE.read_text(encoding="utf-8")
    if served.speculative:
        files[SPECULATIVE_FILE] = json.dumps(served.speculative, indent=2, ensure_ascii=False) + "\n"
    if served.paths.brings_template:
        files[TEMPLATE_FILE] = _template_text(loaded)
    if served.paths.draft_ids and profile.draft and profile.draft.ids:
        files[draft_ids.FILE] = draft_ids.served(profile.draft.ids)
    return files


def profile_plan(profile: Profile, patches: Mapping[str, Patch]) -> dict[str, Any]:
    """Return the plan of a profile; without speculation, it omits patches that only speculation needs.

    Raise PatchError for an unknown patch, and for a required patch that nobody has reviewed.
    """
    required, optional = profile.patches.required, profile.patches.optional
    if not profile.speculative:
        required = [name for name in required if not _only_speculation(name, patches)]
        optional = [name for name in optional if not _only_speculation(name, patches)]
    for name in required:
        _refuse_unreviewed(name, profile, patches)
    requires, speed = _requires(profile), speed_choice(profile, patches)
    return compile_plan(
        profile.plan_name,
        required,
        optional,
        requires,
        patches,
        speed=speed.taken,
        drift=profile.patches.drift,
    )


def _refuse_unreviewed(name: str, profile: Profile, patches: Mapping[str, Patch]) -> None:
    if name in patches and not patches[name].text.reviewed:
        raise PatchError(
            f"profile {profile.name} requires the patch {name}, but unreviewed patches can only be optional",
            hint=f"review it, write its texts, and set reviewed: true in {patches[name].folder / 'patch.yaml'}",
        )


def _requires(profile: Profile) -> list[Requirement]:
    """Return the profile's requirements, plus the known ranges of transformers unless the profile sets its own."""
    stated = [Requirement(name, specifier, ">=0") for name, specifier in sorted(profile.runtime.packages.items())]
    if "transformers" in profile.runtime.packages:
        return stated
    return [*stated, *(Requirement("transformers", range_, vllm) for vllm, range_ in TRANSFORMERS_BY_VLLM)]


def _only_speculation(name: str, patches: Mapping[str, Patch]) -> bool:
    return name in patches and patches[name].text.speculation_only


# The output of examples/tool_chat_template_gemma4.jinja changed in these releases of vLLM; newest first.
_CHANGES: Final = (
    ((0, 24), "gemma4.jinja"),
    ((0, 23), "gemma4-0.23.jinja"),
    ((0, 21), "gemma4-0.21.jinja"),
    ((0, 0), "gemma4-0.19.jinja"),
)


def template_for(vllm: str | None) -> Path:
    """Return the shipped template with the same output as the one in the sdist of that vLLM release.

    None and releases after the last compared one get the newest template; a pre-release counts as its release.
    Raise ProfileError if `vllm` is not a version.
    """
    if vllm is None:
        return TEMPLATES / _CHANGES[0][1]
    try:
        release = Version(vllm).release
    except InvalidVersion:
        raise ProfileError(f"{vllm!r} is not a version of vLLM", hint="name a release, such as 0.33.0") from None
    return TEMPLATES / next(name for since, name in _CHANGES if release >= since)


def template_file(profile: Profile) -> Path:
    """Return the file of `chat.template`: the shipped one for the release, one of templates/, or a path."""
    name = profile.chat.template or ""
    if name == OWN_TEMPLATE:
        return template_for(profile.runtime.vllm)
    if "/" in name:
        return Path(name).expanduser()
    return data.TEMPLATES / name


def template_outside(loaded: Loaded) -> Path | None:
    """Return the profile's folder where the path of a template leads out of it; None where it stays inside.

    A profile may be somebody else's, and a template is copied and served. A path that is typed with --set may be
    anywhere.
    """
    place = loaded.place("chat", "template")
    if "/" not in (loaded.profile.chat.template or "") or not place.line:
        return None
    root = Path(place.file).resolve().parent
    if template_file(loaded.profile).resolve().is_relative_to(root):
        return None
    return root


def _template_text(loaded: Loaded) -> str:
    file = template_file(loaded.profile)
    place = loaded.place("chat", "template")
    if root := template_outside(loaded):
        raise ProfileError(
            f"{place}: chat.template: {file} is outside of the profile's folder, {root}",
            hint=f"gemmaspec up {loaded.typed} --set {shlex.quote(f'chat.template={file}')}    # or copy it there",
        )
    try:
        with open_regular(file, follow=True) as opened:
            return opened.read(MAX_STATE).decode("utf-8")
    except (OSError, UnreadableFile, UnicodeDecodeError):
        raise ProfileError(f"{place}: chat.template: cannot read {file}") from None
