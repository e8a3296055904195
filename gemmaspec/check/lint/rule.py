"""What a rule is, what it yields, and what it checks: a profile, its vLLM, and its checkpoints if known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from gemmaspec.core import launcher
from gemmaspec.core.checkpoint.sizes import is_other_family, size_called
from gemmaspec.core.finding import Finding, Severity
from gemmaspec.core.profile.command import Argument, Command
from gemmaspec.core.profile.machines import MACHINES, Machine
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.resolved.resolve import Resolved

if TYPE_CHECKING:
    from gemmaspec.core.checkpoint.model import Checkpoint
    from gemmaspec.core.patching.patch import Patch


Role = Literal["target", "draft"]
_HEAD: Final = re.compile(r"assistant|eagle|dflash|dspark|mtp|speculator|draft", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a rule judges: a profile under one vLLM release, and what is known of its models besides.

    What vLLM makes of the profile is all in `resolved`; here is what lint alone asks.
    """

    resolved: Resolved
    """Its checkpoints are None where they were not read."""
    patches: Mapping[str, Patch]
    here: Mapping[str, str] = field(default_factory=dict)
    """The state of `target`, `draft` and `template` on this machine: folder, file, no config or missing; empty if not
    checked."""
    longest: Mapping[Role, int] = field(default_factory=dict)
    """The tokens that `target` and `draft` were made for, where that is known without their checkpoints."""
    templates: tuple[str, ...] = ()
    """The shipped chat templates."""
    emptied: tuple[str, ...] = ()
    """Empty keys that remove inherited values."""

    @property
    def profile(self) -> Profile:
        """The profile, in which a rule names the key at fault."""
        return self.resolved.profile

    @property
    def command(self) -> Command:
        """The server's command line, in which a rule looks for flags."""
        return self.resolved.command

    @property
    def vllm(self) -> str:
        """The release, which messages name; its facts may be those of the nearest known one."""
        return self.resolved.vllm

    @property
    def machine(self) -> Machine:
        """The machine that the profile is for."""
        return MACHINES[self.profile.machine]

    def runs(self, versions: str) -> bool:
        """Return whether the release is in a range such as >=0.25.0,<0.28; builds count as the next release."""
        return launcher.range_contains(versions, self.vllm)

    @property
    def draft_is_head(self) -> bool | None:
        """Whether the draft is only a head; None if unknown."""
        if self.resolved.draft:
            return self.resolved.draft.speculator is not None
        called = self.called("draft")
        if _HEAD.search(called):
            return True
        return False if size_called(called) else None

    @property
    def is_other_family(self) -> bool:
        """Whether the target's name says that it is another family of models than Gemma 4."""
        return self.resolved.target is None and is_other_family(self.called("target"))

    def shares_kv(self, role: Role) -> bool | None:
        """Return whether layers of a model read the KV cache of others, as those of E2B and E4B do; None: not known."""
        checkpoint = self.checkpoint(role)
        if checkpoint:
            return any(layer.shares_with is not None for layer in checkpoint.text.layers)
        if self._is_called_a_head(role):
            return None
        size = size_called(self.called(role))
        if size:
            return size.shares_kv
        return None

    def windows(self, role: Role) -> frozenset[int] | None:
        """Return the sliding windows of a model, in tokens; None: not known."""
        checkpoint = self.checkpoint(role)
        if checkpoint:
            return frozenset(layer.window for layer in checkpoint.text.layers if layer.window)
        if self._is_called_a_head(role):
            return None
        size = size_called(self.called(role))
        if size:
            return frozenset({size.window})
        return None

    def _is_called_a_head(self, role: Role) -> bool:
        """Return whether the name is a head's: the size in it is then the target's, not the head's."""
        return role == "draft" and bool(_HEAD.search(self.called(role)))

    def checkpoint(self, role: Role) -> Checkpoint | None:
        """Return what is known of a model."""
        if role == "target":
            return self.resolved.target
        return self.resolved.draft

    def name(self, role: Role) -> str:
        """Return a model's id or folder; empty when there is none."""
        model = self.profile.target if role == "target" else self.profile.draft
        if model:
            return model.model
        return ""

    def called(self, role: Role) -> str:
        """Return the last part of a model's id or folder: what it is called, without whose or where it is."""
        return self.name(role).rstrip("/").rpartition("/")[2]


Path = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Issue:
    """What a rule yields: the key at fault, and one sentence each for the problem and the fix."""

    path: Path
    message: str
    fix: str
    severity: Severity | None = None
    """The severity, if it differs from the rule's."""


Check = Callable[[Subject], Iterator[Issue]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One check. Rules of one cause share a code, which is stable and never reused."""

    code: str
    severity: Severity
    check: Check
    any_release: bool = False
    """Whether its issues do not depend on the vLLM that runs."""
    of_gemma: bool = False
    """Whether it is about Gemma 4 alone, so that it is not asked about another family of models."""


def rule(
    code: str, severity: Severity, *, any_release: bool = False, of_gemma: bool = False
) -> Callable[[Check], Rule]:
    """Return a decorator that turns a check into a rule."""

    def made(check: Check) -> Rule:
        return Rule(code=code, severity=severity, check=check, any_release=any_release, of_gemma=of_gemma)

    return made


def documentation(finding: Finding) -> str:
    """Return the command that explains a finding's rule."""
    return f"gemmaspec explain {finding.code}"


def set_at(given: Argument | None, otherwise: Path) -> Path:
    """Return where an option is set: the key or word that gives it, or the key to which it would belong."""
    if given:
        return given.path
    return otherwise


def as_text(finding: Finding) -> str:
    """Return a finding of a rule as text in two lines."""
    head = f"{finding.place}: {finding.severity} {finding.code}: {finding.key}: {finding.message}"
    lines = (head, f"    {finding.fix}  [{documentation(finding)}]")
    return "\n".join(line.replace("\n", r"\n") for line in lines)
