"""Whose code a profile's server runs: what to read before somebody else's profile is started. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.core.profile.command import extra_of
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.takeover_trust import names_code, runs_code

TRUST = "--trust-remote-code"


def code_of(profile: Profile, *, container: bool | None = None) -> list[str]:
    """Return what a server of the profile runs besides vLLM's own command, each with the name that it is given by.

    `container` says whether it runs in the image (True) or in a Python of this machine (False); None for not known yet.
    """
    return list(dict.fromkeys(_code_of(profile, container)))


def _code_of(profile: Profile, container: bool | None) -> Iterator[str]:
    if profile.image and container is not False:
        yield f"the image {profile.image}"
    if profile.runtime.python and container is not True:
        yield f"the interpreter {profile.runtime.python}"
    yield from _of_models(profile)
    if profile.watch.hook:
        yield f"the hook {profile.watch.hook[0]}, by watch"
    for argument in extra_of(profile).arguments:
        flag = argument.flag
        if flag != TRUST and not argument.negated and names_code(flag, argument.keys, argument.value):
            yield f"{flag} {argument.value}" if argument.value else flag
    yield from (f"the variable {name}" for name in sorted(profile.env) if runs_code(name))


def _of_models(profile: Profile) -> Iterator[str]:
    """Yield the checkpoints whose own Python files (auto_map in config.json) vLLM imports."""
    if not trusts_models(profile):
        return
    yield f"the target {profile.target.model} (trust_remote_code)"
    if profile.draft:
        yield f"the draft {profile.draft.model} (trust_remote_code)"


def trusts_models(profile: Profile) -> bool:
    """Return whether vLLM runs the code of a checkpoint."""
    return bool(profile.serve.trust_remote_code) or extra_of(profile).switched(TRUST) is True


def is_plain(code: list[str]) -> bool:
    """Return whether nothing runs but an image of vLLM's own."""
    return all(one.startswith("the image vllm/vllm-openai:") for one in code)
