"""Check a profile. Pure; the vLLM release comes from `--release`, the profile or an assumption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from packaging.version import Version

from gemmaspec.check.lint import (
    acceptance,
    attention,
    chat,
    draft_table,
    drafting,
    experts,
    few_bits,
    heads,
    known_values,
    kv_cache,
    long_prompts,
    machine,
    model_files,
    names,
    pairing,
    parallel,
    partners,
    patching,
    quantization,
    runtime,
    sizes,
    small_values,
    training,
    values,
)
from gemmaspec.check.lint.rule import Issue, Path, Role, Rule, Subject, rule
from gemmaspec.core.data import TEMPLATES
from gemmaspec.core.finding import SEVERITIES, Finding, Severity
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.releases.facts import Facts, facts_for, nearest, newest, releases
from gemmaspec.core.resolved.resolve import resolved_of

if TYPE_CHECKING:
    from gemmaspec.core.checkpoint.model import Checkpoint
    from gemmaspec.core.patching.patch import Patch


@dataclass(frozen=True, kw_only=True)
class Vllm:
    """The vLLM release that a profile is checked against."""

    version: str
    assumed: bool
    """Whether the newest known release was assumed, because nothing names one."""
    facts: Facts


def vllm_for(asked: str | Facts | None) -> Vllm:
    """Return a release, or that of the given facts; the newest known one where nobody names one."""
    if isinstance(asked, Facts):
        return Vllm(version=asked.vllm, assumed=False, facts=asked)
    version = asked or newest()
    facts = facts_for(nearest(version))
    assert facts, "the nearest release is one of the table"
    return Vllm(version=version, assumed=asked is None, facts=facts)


@dataclass(frozen=True)
class _Raised:
    """A rule, and what it has against the profile."""

    rule: Rule
    issue: Issue

    @property
    def key(self) -> tuple[str, Path]:
        """What makes it the same under another release."""
        return self.rule.code, self.issue.path

    @property
    def severity(self) -> Severity:
        """The issue's own severity, else the rule's."""
        return self.issue.severity or self.rule.severity

    def lowered(self) -> _Raised:
        """Return it one severity lower."""
        return _Raised(self.rule, replace(self.issue, severity=_LOWER[self.severity]))


@rule("GS701", "note")
def _assumed(subject: Subject) -> Iterator[Issue]:
    """The vLLM release is not named."""
    message = f"the profile does not name a vLLM release; checked against {subject.vllm}, the newest known one"
    if subject.profile.image:
        pin = "pin the image to a release's tag (v0.33.0)"
    else:
        pin = "set runtime.vllm"
    fix = f"{pin}, run gemmaspec lock, or use --release RELEASE"
    yield Issue(path=_says_so(subject), message=message, fix=fix)


@rule("GS703", "error")
def _too_old(subject: Subject) -> Iterator[Issue]:
    """A vLLM release without Gemma 4."""
    yield Issue(
        path=_says_so(subject), message=f"vLLM {subject.vllm} does not support Gemma 4", fix="use 0.19.0 or later"
    )


@rule("GS708", "note")
def _not_in_table(subject: Subject) -> Iterator[Issue]:
    """A vLLM release that gemmaspec does not know."""
    message = f"vLLM {subject.vllm} is unknown; checked with the facts of {subject.resolved.facts.vllm}"
    beyond: Severity | None = "warning" if Version(subject.vllm) > Version(newest()) else None
    yield Issue(
        path=_says_so(subject), message=message, fix="use a newer gemmaspec or a known release", severity=beyond
    )


def _says_so(subject: Subject) -> Path:
    """Return the key that names the vLLM release, or could."""
    profile = subject.profile
    if profile.image and not profile.runtime.vllm:
        return ("image",)
    return ("runtime", "vllm")


_LOWER: Final[Mapping[Severity, Severity]] = {"error": "warning", "warning": "note"}
ABOUT_THE_RELEASE: Final = (_assumed, _too_old, _not_in_table)
_MODULES: Final = (
    *(values, names, known_values, pairing, quantization, training, few_bits),
    *(drafting, acceptance, heads, draft_table, machine, parallel, experts),
    *(kv_cache, attention, patching, runtime, chat, model_files),
    *(sizes, partners, small_values, long_prompts),
)
RULES: Final = tuple(value for module in _MODULES for value in vars(module).values() if isinstance(value, Rule))
CODES: Final[Mapping[str, Rule]] = {rule.code: rule for rule in reversed((*RULES, *ABOUT_THE_RELEASE))}  # the first


def check(
    loaded: Loaded,
    *,
    patches: Mapping[str, Patch],
    asked: str | Facts | None,
    target: Checkpoint | None = None,
    draft: Checkpoint | None = None,
    notes: bool = True,
    here: Mapping[str, str] | None = None,
    longest: Mapping[Role, int] | None = None,
) -> tuple[Finding, ...]:
    """Return all findings of a profile, in the order of its file.

    `asked` is the vLLM release or its facts, None if nobody names it. Without `notes`, rules that only give notes
    are skipped. `here` describes the models' folders and the template on this machine; `longest` holds the tokens
    that models were made for, where their checkpoints are not given. If the vLLM release is only assumed, a finding
    that some other known release would not give has a lower severity.
    """
    vllm = vllm_for(asked)
    templates = sorted(file.name for file in TEMPLATES.glob("*.jinja"))
    subject = Subject(
        resolved=resolved_of(loaded.profile, vllm=vllm.version, facts=vllm.facts, target=target, draft=draft),
        patches=patches,
        here=here or {},
        longest=longest or {},
        templates=tuple(templates),
        emptied=loaded.emptied,
    )
    raised = _raised(subject, _about_the_release(vllm))
    if not any(each.rule is _too_old for each in raised):
        raised += _raised(subject, RULES if notes else [rule for rule in RULES if rule.severity != "note"])
    if vllm.assumed:
        raised = _doubted(subject, raised)
    found = _placed(loaded, raised)
    if notes:
        return tuple(found)
    return tuple(finding for finding in found if finding.severity != "note")


def _about_the_release(vllm: Vllm) -> Sequence[Rule]:
    """Return the rules that say how the release is known, of which at most one applies."""
    if Version(vllm.version) < Version(releases()[0]):
        return [_too_old]
    if vllm.assumed:
        return [_assumed]
    known = vllm.facts.vllm in (vllm.version, Version(vllm.version).public)
    if known:
        return []
    return [_not_in_table]


def _raised(subject: Subject, rules: Iterable[Rule]) -> list[_Raised]:
    raised: list[_Raised] = []
    for asked in rules:
        if not (asked.of_gemma and subject.is_other_family):
            raised += [_Raised(asked, issue) for issue in asked.check(subject)]
    return raised


def _doubted(subject: Subject, raised: Sequence[_Raised]) -> list[_Raised]:
    """Return all of them; those that not every release gives are one severity lower, as another one may run."""
    of_release = [each for each in raised if not each.rule.any_release]
    doubtful = {each.key: each.rule for each in of_release if each.severity != "note"}
    everywhere = dict(doubtful)
    for release in releases():
        if not everywhere:
            break
        facts = facts_for(release)
        assert facts, "every release of the table has facts"
        rules = dict.fromkeys(everywhere.values())
        other = replace(subject, resolved=replace(subject.resolved, facts=facts, vllm=release))
        there = {each.key for each in _raised(other, rules)}
        everywhere = {key: rule for key, rule in everywhere.items() if key in there}
    lowered = doubtful.keys() - everywhere.keys()
    return [each.lowered() if each.key in lowered else each for each in raised]


def _placed(loaded: Loaded, raised: Iterable[_Raised]) -> tuple[Finding, ...]:
    """Return the findings with file and line in the order of the file; on the same line, the worst comes first."""
    placed = []
    for each in raised:
        issue, code, severity = each.issue, each.rule.code, each.severity
        place, key = loaded.place(*issue.path), ".".join(map(str, issue.path))
        finding = Finding(code=code, severity=severity, message=issue.message, fix=issue.fix, place=place, key=key)
        placed.append(((place.file, place.line, SEVERITIES.index(severity), code), finding))
    return tuple(finding for _, finding in sorted(placed, key=lambda row: row[0]))
