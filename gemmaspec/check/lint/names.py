"""GS1xx: names that this vLLM knows."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Final

from gemmaspec.check.lint.rule import Issue, Subject, rule
from gemmaspec.core.profile.foreign_words import key_meant
from gemmaspec.core.releases.facts import spans

_ROWS: Final = json.loads(FilePath(__file__).with_name("names.json").read_text(encoding="utf-8"))
_SUCCESSORS: Final[Mapping[str, str]] = _ROWS["variables"]
"""Replacements of removed variables (vllm/envs.py and vllm/engine/arg_utils.py, every release)."""
_REPLACED: Final[Mapping[str, str]] = _ROWS["flags"]


@rule("GS101", "error")
def flag(subject: Subject) -> Iterator[Issue]:
    """A flag that this vLLM does not have, so that its parser rejects the command line."""
    for given in subject.command.arguments:
        known = subject.resolved.facts.flags.get(given.flag)
        if known and (known.negatable or not given.negated):
            continue
        if given.negated:
            shown = f"--no-{given.flag.removeprefix('--')}"
        else:
            shown = given.flag
        message = f"vLLM {subject.vllm} has no flag {shown}; available {spans('flag', given.flag)}"
        fix = _REPLACED.get(given.flag) or _nearest(given.flag, subject.resolved.facts.flags)
        fix = fix or key_meant(("serve", "extra_args"), given.flag) or "remove it"
        yield Issue(path=given.path, message=message, fix=fix)


@rule("GS105", "warning")
def variable(subject: Subject) -> Iterator[Issue]:
    """A VLLM_ variable that this vLLM does not know; it logs a warning and ignores it."""
    strict = subject.command.switched("--fail-on-environ-validation")
    for name in _variables(subject):
        if name in subject.resolved.facts.environment:
            continue
        if strict:
            effect = "and --fail-on-environ-validation makes this fatal"
        else:
            effect = "and ignores it"
        message = (
            f"vLLM {subject.vllm} does not know the variable {name} (available: {spans('variable', name)}), {effect}"
        )
        fix = _SUCCESSORS.get(name) or _nearest(name, subject.resolved.facts.environment) or "remove it"
        yield Issue(path=_env_path(subject, name), message=message, fix=fix, severity="error" if strict else None)


@rule("GS111", "warning", any_release=True)
def given_twice(subject: Subject) -> Iterator[Issue]:
    """A flag of `extra_args` that a key also sets; the last one silently wins."""
    typed = {}
    for argument in subject.command.arguments:
        if "extra_args" not in argument.path:
            typed[argument.flag] = argument.path
    for argument in subject.command.arguments:
        if "extra_args" in argument.path and argument.flag in typed:
            key = ".".join(map(str, typed[argument.flag]))
            message = f"{argument.flag} is also set by {key}; vLLM uses this one, which is the last"
            yield Issue(path=argument.path, message=message, fix=f"set it once, in {key}")


def _variables(subject: Subject) -> Iterator[str]:
    for name in (*subject.profile.env, *subject.profile.pass_env):
        if name.startswith("VLLM_"):
            yield name


def _env_path(subject: Subject, name: str) -> tuple[str | int, ...]:
    if name in subject.profile.env:
        return ("env", name)
    return ("pass_env", subject.profile.pass_env.index(name))


def _nearest(name: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.8)
    if not near:
        return None
    if _opposite(name, near[0]):
        return f"remove it: it is so unless {near[0]} is given"
    return f"did you mean {near[0]}?"


def _opposite(one: str, other: str) -> bool:
    """Return whether one of two names disables what the other enables, as --disable-log-requests once did."""
    words = [set(re.split("[-_]", name.lower())) for name in (one, other)]
    return words[0] ^ words[1] == {"disable", "enable"}
