"""GS1xx: values that this vLLM refuses: numbers, JSON and its keys, words without a flag, variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, Final

from gemmaspec.check.lint.rule import Issue, Path, Subject, rule
from gemmaspec.core import strict_yaml
from gemmaspec.core.profile.command import Argument
from gemmaspec.core.releases.facts import Facts
from gemmaspec.core.releases.flags import Flag
from gemmaspec.core.releases.values import refused, refused_keys

_LORA: Final = "--enable-lora"
"""Bounds of the flags for adapters are checked with this one alone (EngineArgs.create_engine_config)."""
_SHOWN: Final = 60
"""Characters of a value that a message shows."""


CONDITIONS: Final[Mapping[str, Mapping[str, Any]]] = strict_yaml.table(FilePath(__file__).with_name("conditions.yaml"))
"""What flags ask of each other."""


@rule("GS102", "error")
def value_of_a_flag(subject: Subject) -> Iterator[Issue]:
    """A value that this vLLM does not take: no number, out of range, no JSON, or a key that its class lacks."""
    for given in subject.command.arguments:
        known = subject.resolved.facts.flags.get(given.flag)
        if known is None or given.value is None or known.choices:
            continue
        for word in given.words or (given.value,):
            if refusal := _refused(subject, given, known, word):
                message = f"{_shown(word)} for {known.name} {refusal}, and vLLM {subject.vllm} stops"
                yield Issue(path=given.path, message=message, fix=_fix(refusal))
                break


def _refused(subject: Subject, given: Argument, known: Flag, word: str) -> str | None:
    configs = subject.resolved.facts.configs
    if known.form.startswith(("@", "?@")):
        name = known.form.lstrip("?@")
    else:
        name = ""
    inner: Any = _read(word)
    if not given.keys:
        form = known.form.lstrip("+*")
        if "lora" in known.name and not subject.command.switched(_LORA):
            form = re.sub("[<>].*", "", form)
        return refused(word, form, configs) or _not_a_choice(subject.resolved.facts, name, inner)
    if not name:
        return None
    if given.written.partition("=")[0].endswith("+"):
        return None
    for key in reversed(given.keys):
        inner = {key: inner}
    return refused_keys(inner, name, configs) or _not_a_choice(subject.resolved.facts, name, inner)


def _not_a_choice(facts: Facts, name: str, given: object) -> str | None:
    """Return the key of a class whose text its own flag does not take: long lists are kept with the flag alone."""
    for key, inner in given.items() if isinstance(given, dict) else ():
        flag = facts.flags.get("--" + str(key).replace("_", "-"))
        listed = flag is not None and facts.configs.get(name, {}).get(key) == "str"
        if flag and listed and isinstance(inner, str) and not flag.takes(inner):
            return f"has {inner!r} for {key}, which is none of {flag.name}'s choices"
    return None


def _read(word: str) -> Any:
    """Return a word after `--a.b` as vLLM reads it: JSON, else text."""
    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        if word[:-1].isdecimal() and word[-1] in "kKmMgGtT":
            return int(word[:-1])
        return word


def _shown(word: str) -> str:
    return repr(word if len(word) <= _SHOWN else word[:_SHOWN] + "…")


def _fix(refusal: str) -> str:
    if "JSON" in refusal:
        return "write it as one JSON object in single quotes, or its keys one by one, as --a.b=value"
    if "has no key" in refusal:
        return "use another key, or remove it"
    return "use another value, or remove it"


@rule("GS102", "error")
def needed_key(subject: Subject) -> Iterator[Issue]:
    """A key of --structured-outputs-config or --profiler-config that wants another backend or profiler."""
    for name, keys in CONDITIONS["keys"].items():
        asked, path = configured(subject, name)
        if asked.get("profiler") == "torch" and not asked.get("torch_profiler_dir"):
            message = "the profiler torch needs torch_profiler_dir, and vLLM stops without it"
            yield Issue(path=path, message=message, fix=f"add {name}.torch_profiler_dir=/tmp/profile")
        for key, (other, wanted) in keys.items():
            on = asked.get(key) in (True, 1, "true", "1") or (key.endswith("_dir") and asked.get(key))
            if on and asked.get(other) not in wanted:
                message = f"{key} needs the {other} {' or '.join(wanted)}, and vLLM stops without it"
                yield Issue(path=path, message=message, fix=f"add {name}.{other}={wanted[0]}")


def configured(subject: Subject, flag: str) -> tuple[dict[str, Any], Path]:
    """Return the JSON object that a flag is given, whole or key by key, and where."""
    asked: dict[str, Any] = {}
    path: Path = ()
    for argument in subject.command.arguments:
        if argument.flag == flag and argument.value is not None:
            if argument.keys:
                inner = {argument.keys[0]: _read(argument.value)}
            else:
                inner = _read(argument.value)
            if isinstance(inner, dict):  # without a word, or with None, the flag is as if it were not given
                asked, path = asked | inner, argument.path
    return asked, path


@rule("GS102", "error")
def number_of_a_variable(subject: Subject) -> Iterator[Issue]:
    """A variable that vLLM converts to a number, with another text (vllm/envs.py)."""
    for name, text in subject.profile.env.items():
        refusal = refused(text, subject.resolved.facts.environment_forms.get(name, ""), {})
        if refusal:
            message = f"{_shown(text)} {refusal}, and vLLM {subject.vllm} stops where it reads {name}"
            yield Issue(path=("env", name), message=message, fix="write a number; 1 is on and 0 is off")


@rule("GS101", "error")
def words_of_a_flag(subject: Subject) -> Iterator[Issue]:
    """A flag without its value, a value for one that takes none, or a word that no flag takes."""
    for given in subject.command.arguments:
        known = subject.resolved.facts.flags.get(given.flag)
        if known is None or not given.written:
            continue
        if known.switch and given.value is not None and not given.keys:
            message = f"{known.name} takes no value, and vLLM {subject.vllm} rejects {_shown(given.value)}"
            if known.negatable:
                no = f"--no-{known.name.removeprefix('--')}"
            else:
                no = "nothing"
            yield Issue(path=given.path, message=message, fix=f"write {known.name} to turn it on, {no} to turn it off")
        if given.value is None and not known.bare:
            yield Issue(
                path=given.path, message=f"{known.name} has no value", fix="write the value after it, as =VALUE"
            )
    for path, word in subject.command.unclaimed:
        message = f"{_shown(word)} belongs to no flag, and vLLM rejects the command line"
        yield Issue(path=path, message=message, fix="remove it, or write the flag that it belongs to")
