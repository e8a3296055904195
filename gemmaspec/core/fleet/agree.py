"""What the hosts of one server must agree on: daemons, architecture, clock, image, patched files. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, PatchConflict
from gemmaspec.core.sentences import duration

_REPORT: Final = "the launcher's report"
_MAYBE_UNKNOWN: Final = frozenset({"target", "draft", "nccl", "transformers"})
MOST_APART_S: Final = 30.0
"""Clocks further apart than this make logs of two hosts incomparable, and mean that one of them is not set."""


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """One host as its daemon describes it."""

    host: str
    docker: str
    """The daemon's version."""
    daemon: str
    """The daemon's own ID and its machine's name."""
    architecture: str
    ahead_s: float
    """By how many seconds its clock is ahead of this machine's; negative if it is behind."""


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """The image that a name refers to on one host."""

    host: str
    id: str
    digests: frozenset[str] = frozenset()
    """sha256:… of its manifest in each repository that the host has it from."""


def hosts_disagree(facts: Sequence[HostFacts]) -> GemmaspecError | None:
    """Return the error for hosts that cannot carry one server; None if they agree."""
    first = facts[0]
    seen: dict[str, str] = {}
    for host in facts:
        if host.daemon and host.daemon in seen:
            return EnvironmentMissing(
                f"{seen[host.daemon]} and {host.host} are one docker daemon ({host.daemon}), "
                "but each rank needs a machine of its own",
                hint="set docker: of one of them in fleet.yaml to another daemon",
            )
        seen[host.daemon] = host.host
    for host in facts:
        if host.architecture != first.architecture:
            return EnvironmentMissing(
                f"the hosts have different architectures: {first.host} is {first.architecture}, "
                f"{host.host} is {host.architecture}; one server needs equal machines",
                hint="gemmaspec up NAME --hosts …    # name equal machines of fleet.yaml",
            )
    slow, fast = min(facts, key=lambda host: host.ahead_s), max(facts, key=lambda host: host.ahead_s)
    apart = fast.ahead_s - slow.ahead_s
    if apart > MOST_APART_S:
        return EnvironmentMissing(
            f"the clocks of {slow.host} and {fast.host} are {duration(apart)} apart ({fast.host} is ahead)",
            hint="timedatectl set-ntp true    # on both hosts",
        )
    return None


def images_disagree(name: str, images: Sequence[ImageFacts]) -> GemmaspecError | None:
    """Return the error for a name that means another image on another host; None if all are the same image."""
    first = images[0]
    for image in images[1:]:
        if image.id != first.id and not (image.digests & first.digests):
            return EnvironmentMissing(
                f"the image {name} is not the same on all hosts: {first.host} has {first.id[:19]}…, "
                f"{image.host} has {image.id[:19]}…",
                hint="gemmaspec lock PROFILE    # then up --locked, which names the image by its digest",
            )
    return None


def reports_disagree(name: str, reports: Mapping[str, Mapping[str, Any] | None]) -> GemmaspecError | None:
    """Return the error for launchers of a server, by host, that did not do the same; None if their reports are equal.

    Plan, versions and the bytes of every patched file count; times and paths of one machine do not.
    """
    hint = f"gemmaspec down {name}    # then up again, with one image on all hosts"
    facts = {host: _compared(report) for host, report in reports.items()}
    for host, reported in facts.items():
        if unknown := reported.get(_REPORT):
            return PatchConflict(f"whether ranks run the same is unknown: {_REPORT} is {unknown} on {host}", hint=hint)
    (first, expected), *others = facts.items()
    for host, reported in others:
        unknown_here = _MAYBE_UNKNOWN - (expected.keys() & reported.keys())
        for what in sorted((expected.keys() | reported.keys()) - unknown_here):
            if expected.get(what) != reported.get(what):
                return PatchConflict(
                    f"the ranks do not run the same: {what} is {_short(expected.get(what))} on {first} "
                    f"and {_short(reported.get(what))} on {host}",
                    hint=hint,
                )
    return None


def same_as(reports: Mapping[str, Mapping[str, Any] | None], host: str) -> bool | None:
    """Return whether a host's report equals that of the first one; None if one of the two is missing."""
    first = next(iter(reports.values()))
    if first is None or reports[host] is None:
        return None
    return reports_disagree("", {"": first, host: reports[host]}) is None


def _compared(report: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what must be equal, by a name for people."""
    try:
        if report is None:
            return {_REPORT: "missing"}
        facts = {"the plan": str(report["plan_sha256"]), "vllm": str(report["vllm"]["version"])}
        facts |= {required["name"]: str(required["found"]) for required in report["requires"]}
        for row in (row for patch in report["patches"] for row in patch["files"]):
            facts[row["path"]] = str(row["sha256_after"])
        facts |= {name: str(rank) for name, rank in (report.get("ranks") or {}).items() if rank}
    except (KeyError, TypeError, AttributeError):
        return {_REPORT: "damaged"}
    return facts


def _short(value: str | None) -> str:
    if value is None:
        return "missing"
    return f"{value[:12]}…" if len(value) > 32 else value
