"""`status --kubernetes`: the pods of profiles, and whether each runs the plan that it was given.

What `doctor` ends with: the folders that gemmaspec uses and the variables that it reads, with their values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from gemmaspec.core import data
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.files import state_dir
from gemmaspec.core.profile.find import own_folder, profile_folders
from gemmaspec.run.cluster.names import PLAN_ANNOTATION, PROFILE_LABEL, selector
from gemmaspec.run.engine import kubectl
from gemmaspec.run.engine.kubectl import Pod

Word = Literal["ready", "starting", "exited", "unknown"]


@dataclass(frozen=True, kw_only=True)
class PodStatus:
    """One pod, and what its launcher reports."""

    pod: Pod
    word: Word
    report: Mapping[str, Any] | None = None
    problem: str = ""
    """Why there is no report of a pod that runs."""
    findings: tuple[str, ...] = ()
    """What is not as the plan says, or not as in the other pods of the same plan."""

    @property
    def profile(self) -> str:
        """The profile as the pod's label has it."""
        return self.pod.labels.get(PROFILE_LABEL, "")


def pods(profile: str | None, *, namespace: str | None) -> list[PodStatus]:
    """Return the status of a profile's pods, or of all that gemmaspec rendered.

    Raises what the cluster's answer raises: EnvironmentMissing without kubectl or cluster.
    """
    wanted = selector(profile) if profile else {"app.kubernetes.io/name": "gemmaspec"}
    listed = kubectl.pods(",".join(f"{key}={value}" for key, value in wanted.items()), namespace=namespace)
    return compared([_looked_at(pod) for pod in listed])


def compared(statuses: Sequence[PodStatus]) -> list[PodStatus]:
    """Return the same pods with what differs: each from its plan, and each from the first one with that plan."""
    first: dict[tuple[str, str], PodStatus] = {}
    result = []
    for status in statuses:
        if status.report is None:
            result.append(status)
            continue
        told = status.pod.annotations.get(PLAN_ANNOTATION, "")
        before = first.setdefault((status.profile, told), status)
        findings = [*_against_plan(status, told), *(_against(status, before) if before is not status else [])]
        result.append(replace(status, findings=tuple(findings)))
    return result


def _looked_at(pod: Pod) -> PodStatus:
    word = _word(pod)
    if pod.phase != "Running" or word == "exited":
        return PodStatus(pod=pod, word=word)
    try:
        return PodStatus(pod=pod, word=word, report=kubectl.report(pod))
    except GemmaspecError as error:
        # A launcher that has only begun has not written it yet.
        return PodStatus(pod=pod, word=word if word == "starting" else "unknown", problem=error.message)


def _word(pod: Pod) -> Word:
    if pod.ready:
        return "ready"
    if pod.phase in ("Failed", "Succeeded") or "exit code" in pod.reason:
        return "exited"
    return "unknown" if pod.phase == "Unknown" else "starting"


def _against_plan(status: PodStatus, told: str) -> list[str]:
    runs = str((status.report or {}).get("plan_sha256", ""))
    return [] if runs == told else [f"it runs the plan {runs[:12] or '?'}, its annotation says {told[:12] or 'none'}"]


def _against(status: PodStatus, other: PodStatus) -> list[str]:
    """Return what two pods with one plan do not share: the same tag may be two images."""
    facts, others = _facts(status.report or {}), _facts(other.report or {})
    return [
        f"{what} is {facts.get(what, 'missing')[:12]}, and {others.get(what, 'missing')[:12]} in {other.pod.name}"
        for what in sorted({*facts, *others})
        if facts.get(what) != others.get(what)
    ]


def _facts(report: Mapping[str, Any]) -> dict[str, str]:
    """Return what must be alike: the version, and the sha256 of every patched file. A report is hostile input."""
    vllm = report.get("vllm")
    facts = {"vllm": str(vllm.get("version"))} if isinstance(vllm, dict) else {}
    patches = report.get("patches")
    for patch in patches if isinstance(patches, list) else []:
        files = patch.get("files") if isinstance(patch, dict) else None
        for file in files if isinstance(files, list) else []:
            if isinstance(file, dict):
                facts[str(file.get("path"))] = str(file.get("sha256_after") or file.get("sha256_before"))
    return facts


@dataclass(frozen=True, kw_only=True)
class Location:
    """One folder or variable."""

    kind: Literal["folder", "variable"]
    name: str
    value: str | None
    """None for a variable that is not set; `set` for one whose value is a secret."""
    meaning: str


_SECRET: Final = ("HF_TOKEN", "VLLM_API_KEY")
_VARIABLES: Final = {
    "GEMMASPEC_STATE": "the state folder",
    "GEMMASPEC_PROFILES": "additional profile folders, searched before your own",
    "GEMMASPEC_PATCHES": "additional patch folders, which take precedence",
    "HF_HOME": "Hugging Face's folder: cache and token",
    "HF_TOKEN": "the token for gated models",
    "HF_ENDPOINT": "address of another Hugging Face Hub",
    "HF_HUB_OFFLINE": "do not use the Hub",
    "VLLM_API_KEY": "the API key of servers",
    "DOCKER_HOST": "the Docker daemon's address",
    "DOCKER_CONTEXT": "the Docker context, if DOCKER_HOST is not set",
    "HTTPS_PROXY": "the proxy for downloads",
    "NO_PROXY": "hosts to reach without the proxy",
    "NO_COLOR": "disable colours",
    "COLUMNS": "the width of the output",
}
"""Every variable that changes what gemmaspec does; those of the server are listed by a profile's pass_env."""


def settings() -> Iterator[Location]:
    """Yield every folder, then every variable."""
    for name, path, meaning in _folders():
        yield Location(kind="folder", name=name, value=str(path), meaning=meaning)
    for name, meaning in _VARIABLES.items():
        value = os.environ.get(name) or os.environ.get(name.lower() if name.endswith("_PROXY") else name)
        shown = "set" if value and name in _SECRET else value
        yield Location(kind="variable", name=name, value=shown or None, meaning=meaning)


def _folders() -> Iterator[tuple[str, Path, str]]:
    from huggingface_hub import constants

    state = state_dir()
    yield "state", state, "the state folder, which contains the next folders"
    yield "stacks", state / "stacks", "started stacks: files, records, logs"
    yield "known good", state / "known-good", "stacks to roll back to"
    yield "runtimes", state / "runtimes", "Python environments of the process engine"
    yield "own profiles", own_folder(), "your profiles and their locks"
    for index, folder in enumerate(path for path in profile_folders() if path not in (own_folder(), data.PROFILES)):
        yield f"more profiles {index + 1}", folder, "from GEMMASPEC_PROFILES"
    yield "shipped profiles", data.PROFILES, "do not edit; extend one with: gemmaspec profile new"
    for folder in data.patch_folders()[1:]:
        yield "more patches", folder, "from GEMMASPEC_PATCHES"
    yield "shipped patches", data.PATCHES, "do not edit"
    yield "models", Path(constants.HF_HUB_CACHE), "the Hugging Face cache, unless a profile names another one"
