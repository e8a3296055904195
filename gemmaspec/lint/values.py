"""GS1xx: values that this vLLM refuses: numbers, JSON and its keys, words without a flag, variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from gemmaspec.lint.rule import Issue, Path, rule
from gemmaspec.lint.subject import Subject
from gemmaspec.profile.command import Argument
from gemmaspec.releases.flags import Flag
from gemmaspec.releases.values import refused, refused_keys

_LORA: Final = "--enable-lora"
"""Bounds of the flags for adapters are checked with this one alone (EngineArgs.create_engine_config)."""
_SHOWN: Final = 60
"""Characters of a value that a message shows."""


_BACKENDS: Final = {
    "disable_any_whitespace": ("xgrammar", "guidance"),
    "disable_additional_properties": ("guidance",),
}


@rule("GS114", "error")
def value(subject: Subject) -> Iterator[Issue]:
    """A value that this vLLM does not take: no number, out of range, no JSON, or a key that its class lacks."""
    for given in subject.arguments:
        known = subject.facts.flags.get(given.flag)
        if known is None or given.value is None or known.choices:
            continue
        for word in given.words or (given.value,):
            if said := _refused(subject, given, known, word):
                message = f"{_shown(word)} for {known.name} {said}, and vLLM {subject.vllm} stops"
                yield Issue(path=given.path, message=message, fix=_fix(said))
                break


def _refused(subject: Subject, given: Argument, known: Flag, word: str) -> str | None:
    configs = subject.facts.configs
    if not given.keys:
        form = known.form.lstrip("+*")
        if "lora" in known.name and not subject.switched(_LORA):
            form = re.sub("[<>].*", "", form)
        return refused(word, form, configs)
    if not known.form.startswith(("@", "?@")):
        return None
    inner: Any = _read(word)
    if given.written.partition("=")[0].endswith("+"):
        return None
    for key in reversed(given.keys):
        inner = {key: inner}
    return refused_keys(inner, known.form.lstrip("?@"), configs)


def _read(word: str) -> Any:
    """Return a word after `--a.b` as vLLM reads it: JSON, else text."""
    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        return int(word[:-1]) if word[:-1].isdecimal() and word[-1] in "kKmMgGtT" else word


def _shown(word: str) -> str:
    return repr(word if len(word) <= _SHOWN else word[:_SHOWN] + "…")


def _fix(said: str) -> str:
    if "JSON" in said:
        return "write it as one JSON object in single quotes, or its keys one by one, as --a.b=value"
    return "use another key, or remove it" if "has no key" in said else "use another value, or remove it"


@rule("GS117", "error")
def structured_outputs(subject: Subject) -> Iterator[Issue]:
    """Keys of --structured-outputs-config that want one of its backends (StructuredOutputsConfig, every release)."""
    asked: dict[str, Any] = {}
    path: Path = ()
    for one in subject.arguments:
        if one.flag == "--structured-outputs-config" and one.value is not None:
            inner = _read(one.value)
            asked |= {one.keys[0]: inner} if one.keys else inner if isinstance(inner, dict) else {}
            path = one.path
    for key, backends in _BACKENDS.items():
        if asked.get(key) in (True, 1, "true", "1") and asked.get("backend", "auto") not in backends:
            message = f"{key} needs the backend {' or '.join(backends)}, and vLLM stops without it"
            yield Issue(path=path, message=message, fix=f"add --structured-outputs-config.backend={backends[0]}")


@rule("GS115", "error")
def variable(subject: Subject) -> Iterator[Issue]:
    """A variable that vLLM converts to a number, with another text (vllm/envs.py)."""
    for name, text in subject.profile.env.items():
        said = refused(text, subject.facts.environment_forms.get(name, ""), {})
        if said:
            message = f"{_shown(text)} {said}, and vLLM {subject.vllm} stops where it reads {name}"
            yield Issue(path=("env", name), message=message, fix="write a number; 1 is on and 0 is off")


@rule("GS116", "error")
def words(subject: Subject) -> Iterator[Issue]:
    """A flag without its value, a value for one that takes none, or a word that no flag takes."""
    for given in subject.arguments:
        known = subject.facts.flags.get(given.flag)
        if known is None or not given.written:
            continue
        if known.switch and given.value is not None and not given.keys:
            message = f"{known.name} takes no value, and vLLM {subject.vllm} rejects {_shown(given.value)}"
            no = f"--no-{known.name.removeprefix('--')}" if known.negatable else "nothing"
            yield Issue(path=given.path, message=message, fix=f"write {known.name} to turn it on, {no} to turn it off")
        if given.value is None and not known.bare:
            yield Issue(
                path=given.path, message=f"{known.name} has no value", fix="write the value after it, as =VALUE"
            )
    for path, word in subject.command.unclaimed:
        message = f"{_shown(word)} is not a flag, and no flag before it takes it; vLLM rejects the command line"
        yield Issue(path=path, message=message, fix="remove it, or write the flag that it belongs to")


RULES: Final = (value, variable, words, structured_outputs)
