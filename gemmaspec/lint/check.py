"""Check a profile. Pure; the vLLM release comes from `--release`, the profile or an assumption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from packaging.version import Version

from gemmaspec.data import TEMPLATES
from gemmaspec.finding import SEVERITIES, Finding, Severity
from gemmaspec.lint import (
    acceptance,
    advice,
    chat,
    heads,
    kv_cache,
    live_k,
    local,
    machine,
    names,
    nodes,
    pairing,
    parallel,
    patching,
    quantization,
    runtime,
    sizes,
    values,
)
from gemmaspec.lint.rule import Issue, Path, Rule, rule
from gemmaspec.lint.subject import Role, Subject
from gemmaspec.profile.load import Loaded
from gemmaspec.profile.runs import vllm_of
from gemmaspec.releases.facts import Facts, facts_for, nearest, newest, releases

if TYPE_CHECKING:
    from gemmaspec.checkpoint.parts import Checkpoint
    from gemmaspec.patching.patch import Patch


@dataclass(frozen=True, kw_only=True)
class Vllm:
    """The vLLM release that a profile is checked against."""

    version: str
    assumed: bool
    """Whether the newest known release was assumed, because nothing names one."""
    facts: Facts


def vllm_for(loaded: Loaded, asked: str | Facts | None = None) -> Vllm:
    """Return the requested release or that of the given facts, else the profile's, else the newest known one."""
    if isinstance(asked, Facts):
        return Vllm(version=asked.vllm, assumed=False, facts=asked)
    known = asked or vllm_of(loaded.profile)
    version = known or newest()
    facts = facts_for(nearest(version))
    assert facts, "the nearest release is one of the table"
    return Vllm(version=version, assumed=known is None, facts=facts)


@rule("GS701", "note")
def _assumed(subject: Subject) -> Iterator[Issue]:
    """The vLLM release is not named."""
    message = f"the profile does not name a vLLM release; checked against {subject.vllm}, the newest known one"
    pin = "pin the image to a release's tag (v0.33.0)" if subject.profile.image else "set runtime.vllm"
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
    message = f"vLLM {subject.vllm} is unknown; checked with the facts of {subject.facts.vllm}"
    beyond: Severity | None = "warning" if Version(subject.vllm) > Version(newest()) else None
    yield Issue(
        path=_says_so(subject), message=message, fix="use a newer gemmaspec or a known release", severity=beyond
    )


def _says_so(subject: Subject) -> Path:
    """Return the key that names the vLLM release, or could."""
    profile = subject.profile
    return ("image",) if profile.image and not profile.runtime.vllm else ("runtime", "vllm")


_LOWER: Final[Mapping[Severity, Severity]] = {"error": "warning", "warning": "note"}
ABOUT_THE_RELEASE: Final = (_assumed, _too_old, _not_in_table)
RULES: Final[tuple[Rule, ...]] = (
    *advice.RULES,
    *names.RULES,
    *values.RULES,
    *pairing.RULES,
    *acceptance.RULES,
    *parallel.RULES,
    *kv_cache.RULES,
    *patching.RULES,
    *machine.RULES,
    *chat.RULES,
    *runtime.RULES,
    *heads.RULES,
    *live_k.RULES,
    *local.RULES,
    *quantization.RULES,
    *sizes.RULES,
    *nodes.RULES,
)
CODES: Final[Mapping[str, Rule]] = {one.code: one for one in (*RULES, *ABOUT_THE_RELEASE)}


def check(
    loaded: Loaded,
    *,
    patches: Mapping[str, Patch],
    asked: str | Facts | None = None,
    target: Checkpoint | None = None,
    draft: Checkpoint | None = None,
    notes: bool = True,
    here: Mapping[str, str] | None = None,
    longest: Mapping[Role, int] | None = None,
) -> tuple[Finding, ...]:
    """Return all findings of a profile, in the order of its file.

    Without `notes`, rules that only give notes are skipped. `here` describes the models' folders and the template on
    this machine; `longest` holds the tokens that models were made for, where their checkpoints are not given. If the
    vLLM release is only assumed, a finding that some other known release would not give has a lower severity.
    """
    vllm = vllm_for(loaded, asked)
    subject = Subject(
        profile=loaded.profile,
        facts=vllm.facts,
        vllm=vllm.version,
        patches=patches,
        target=target,
        draft=draft,
        here=here or {},
        longest=longest or {},
        templates=tuple(sorted(file.name for file in TEMPLATES.glob("*.jinja"))),
        emptied=loaded.emptied,
    )
    found = list(_about_the_release(subject, vllm))
    if found and found[0][0] is _too_old:
        return _placed(loaded, found)
    found += _found(subject, [one for one in RULES if notes or one.severity != "note"])
    if vllm.assumed:
        found = _doubted(subject, found)
    return tuple(one for one in _placed(loaded, found) if notes or one.severity != "note")


def _about_the_release(subject: Subject, vllm: Vllm) -> Iterator[tuple[Rule, Issue]]:
    oldest = releases()[0]
    if Version(vllm.version) < Version(oldest):
        wrong = _too_old
    elif vllm.assumed:
        wrong = _assumed
    elif vllm.facts.vllm not in (vllm.version, Version(vllm.version).public):
        wrong = _not_in_table
    else:
        return
    yield from ((wrong, found) for found in wrong.check(subject))


def _found(subject: Subject, rules: Iterable[Rule]) -> list[tuple[Rule, Issue]]:
    return [(one, found) for one in rules for found in one.check(subject)]


def _doubted(subject: Subject, found: Sequence[tuple[Rule, Issue]]) -> list[tuple[Rule, Issue]]:
    """Return the findings; those that not every release gives are one severity lower, as another one may run."""
    doubtful = {_key(one): one for one in found if not one[0].any_release and _severity(one) != "note"}
    everywhere = dict(doubtful)
    for release in releases():
        if not everywhere:
            break
        facts = facts_for(release)
        assert facts, "every release of the table has facts"
        rules = {one.code: one for one, _ in everywhere.values()}
        there = {_key(one) for one in _found(replace(subject, facts=facts, vllm=release), rules.values())}
        everywhere = {key: one for key, one in everywhere.items() if key in there}
    return [_lower(one) if _key(one) in doubtful and _key(one) not in everywhere else one for one in found]


def _key(one: tuple[Rule, Issue]) -> tuple[str, Path]:
    return one[0].code, one[1].path


def _severity(one: tuple[Rule, Issue]) -> Severity:
    return one[1].severity or one[0].severity


def _lower(one: tuple[Rule, Issue]) -> tuple[Rule, Issue]:
    return one[0], replace(one[1], severity=_LOWER[_severity(one)])


def _placed(loaded: Loaded, found: Iterable[tuple[Rule, Issue]]) -> tuple[Finding, ...]:
    """Return the findings with file and line in the order of the file; on the same line, the worst comes first."""
    placed = []
    for rule_, one in found:
        place, severity = loaded.place(*one.path), _severity((rule_, one))
        key = ".".join(map(str, one.path))
        finding = Finding(code=rule_.code, severity=severity, message=one.message, fix=one.fix, place=place, key=key)
        placed.append(((place.file, place.line, SEVERITIES.index(severity), rule_.code), finding))
    return tuple(finding for _, finding in sorted(placed, key=lambda one: one[0]))
