"""`status --kubernetes`: the pods of profiles, and whether each runs the plan that it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.server_state import POD_PHASES, ServerState, Word
from gemmaspec.run.cluster.names import PLAN_ANNOTATION, PROFILE_LABEL, selector
from gemmaspec.run.engine import kubectl
from gemmaspec.run.engine.kubectl import Pod


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
    if profile:
        wanted = selector(profile)
    else:
        wanted = {"app.kubernetes.io/name": "gemmaspec"}
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
    if pod.phase != "Running" or word == ServerState.EXITED:
        return PodStatus(pod=pod, word=word)
    try:
        return PodStatus(pod=pod, word=word, report=kubectl.report(pod))
    except GemmaspecError as error:
        # A launcher that has only begun has not written it yet.
        return PodStatus(pod=pod, word=word if word == ServerState.STARTING else "unknown", problem=error.message)


def _word(pod: Pod) -> Word:
    if pod.ready:
        return ServerState.READY
    if "exit code" in pod.reason:  # its container ended, and Kubernetes starts it again
        return ServerState.EXITED
    return POD_PHASES.get(pod.phase, ServerState.STARTING)


def _against_plan(status: PodStatus, told: str) -> list[str]:
    runs = str((status.report or {}).get("plan_sha256", ""))
    if runs == told:
        return []
    return [f"it runs the plan {runs[:12] or '?'}, its annotation says {told[:12] or 'none'}"]


def _against(status: PodStatus, other: PodStatus) -> list[str]:
    """Return what two pods with one plan do not share: the same tag may be two images."""
    facts, others = _facts(status.report or {}), _facts(other.report or {})
    differ = []
    for what in sorted({*facts, *others}):
        here, there = facts.get(what, "missing"), others.get(what, "missing")
        if here != there:
            differ.append(f"{what} is {here[:12]}, and {there[:12]} in {other.pod.name}")
    return differ


def _facts(report: Mapping[str, Any]) -> dict[str, str]:
    """Return what must be alike: the version, and the sha256 of every patched file. A report is hostile input."""
    vllm = report.get("vllm")
    if isinstance(vllm, dict):
        facts = {"vllm": str(vllm.get("version"))}
    else:
        facts = {}
    patches = report.get("patches")
    for patch in patches if isinstance(patches, list) else []:
        if isinstance(patch, dict):
            files = patch.get("files")
        else:
            files = None
        for file in files if isinstance(files, list) else []:
            if isinstance(file, dict):
                facts[str(file.get("path"))] = str(file.get("sha256_after") or file.get("sha256_before"))
    return facts
