"""What people write for what exists: keys of vLLM's command line, Compose, Kubernetes and other tools. Pure.

The one table of foreign words: the profile's errors, `--set`, unknown options and unknown commands read it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from gemmaspec.core.profile.machines import MACHINES, as_named, machine_kind

NEAR: Final = 0.75
"""How alike two words must be (difflib's ratio) before one is guessed from the other's letters."""

_ROWS: Final = json.loads(Path(__file__).with_name("foreign_words.json").read_text(encoding="utf-8"))
_FILES: Final[list[tuple[str, str, str]]] = _ROWS.pop("files")
"""What a file begins with or contains, what it is then (nothing: a profile), and the command for it: the first."""
OTHER_SERVER: Final = re.compile(rf"(?<![a-z0-9])(?:{_ROWS.pop('servers')})(?![a-z0-9])")
"""Names of what serves models with something else than vLLM, or on other devices than NVIDIA's GPUs and CPUs."""
COMPOSE_FILE: Final = "a Compose file"


def by_word(table: Mapping[str, str]) -> Mapping[str, str]:
    """Return the meaning of each word; the file has the words of each meaning."""
    meanings: dict[str, str] = {}
    for meaning, words in table.items():
        meanings |= dict.fromkeys(words.split(), meaning)
    return meanings


_TABLES: Final[Mapping[str, Mapping[str, str]]] = {name: by_word(table) for name, table in _ROWS.items()}
"""The rows of meant.json, which are a meaning and the words for it, by word. Letters are compared in lower case, and
hyphens as underscores. An option with the name of a command before it is one of that command."""
_KEYS: Final = _TABLES["keys"]
"""Word → the key that it means."""
_SAID: Final = _TABLES["sentences"]
"""Word → a sentence, where no single key says it."""
COMMANDS: Final = _TABLES["commands"]
"""Names of commands that people know from other tools → the command here."""
WITHIN: Final[Mapping[str, str]] = _ROWS["within"]
"""The command of a group → names that people try in its place."""
_OPTIONS: Final = _TABLES["options"]
"""Options that people know from other tools, where no key is meant."""
_VARIABLE: Final = "a variable of the environment is written as env: {{{0}: …}}, a secret as pass_env: [{0}]"
_PREFIXES: Final = ("ollama", "llamaarg", "dockercompose")


def key_meant(section: Iterable[str], key: str) -> str | None:
    """Return what an unknown key below a section means, as the end of a sentence; None for a word not in the table."""
    if tuple(section) == ("speculative",) and _word(key) in ("model", "quantization", "revision"):
        return f"the right name is draft.{_word(key)}"
    path = _find(_KEYS, key)
    if path and (*section, key) != tuple(path.split(".")):
        return f"the right name is {path}"
    if key.startswith("x-"):
        return _SAID["cap_add"]
    return _find(_SAID, key)


def value_meant(key: str, value: object) -> str:
    """Return what a wrong value may mean, as the end of a sentence; empty for one that no row knows."""
    text = f"{key}={value}".lower()[:200]
    for meaning, form in _ROWS["values"].items():
        if re.fullmatch(form, text):
            return f"; {meaning}"
    return ""


def form_meant(key: str) -> str | None:
    """Return what a key that no table has is by its form: a variable, a setting of another tool; None for no such."""
    if key.isupper() and "_" in key:
        return _VARIABLE.format(key)
    if key.endswith("_settings"):
        return _SAID["model_list"]
    if re.fullmatch(r"[a-z]+(?:[A-Z][a-z0-9]*)+|[\w.-]+\.\w+/[\w.-]+", key):
        return _SAID["kind"]
    return None


def option_meant(option: str, value: str | None, fields: Mapping[str, Iterable[str]], command: str = "") -> str | None:
    """Return what an unknown option means, as the end of a sentence; `fields` are keys of profiles by their section."""
    meaning = _find(_OPTIONS, f"{command} {option.lstrip('-')}") or _find(_OPTIONS, option)
    if meaning and "{value}" in meaning:
        return "write " + meaning.replace("{value}", value or "…")
    if meaning and "{0}" in meaning:
        port = (value or "").split(":")[-2:][0] or "NUMBER"
        return "write " + meaning.format((value or "NAME=VALUE") if "env" in meaning else port)
    if meaning:
        if meaning.startswith("--set"):
            return f"write {meaning}"
        return meaning
    path = _find(_KEYS, option)
    for section, names in fields.items():
        if not path and (name := same(option, names)):
            path = f"{section}.{name}" if section else name
    if path and " " not in path and "," not in path:
        return f"write --set {path}={value or '…'}"
    return path or _find(_SAID, option)


def same(word: str, known: Iterable[str]) -> str | None:
    """Return the known word with the same letters, whatever their case and what is between them."""
    return next((candidate for candidate in known if _word(candidate) == _word(word)), None)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word with the same letters, or else one that is near."""
    names = {_word(name): name for name in known}
    near = difflib.get_close_matches(_word(word), list(names), n=1, cutoff=NEAR)
    if near:
        return names[near[0]]
    return None


def _find(table: Mapping[str, str], key: str) -> str | None:
    """Return what a table has for a word, also after the prefix of another tool's variables."""
    names = {_word(key): meaning for key, meaning in table.items()}
    word = _word(key)
    for prefix in ("", *_PREFIXES):
        if meaning := names.get(word.removeprefix(prefix)):
            return meaning
    return None


def _word(text: str) -> str:
    return re.sub(r"[-_\s]", "", text.lower())


def foreign_file(text: str) -> tuple[str, str] | None:
    """Return what a file is instead of a profile, and the command for it; None for one that may be a profile."""
    for pattern, what, command in _FILES:
        if re.search(pattern, text):
            return (what, command) if what else None
    return None


def unknown_machine(text: str, also: Iterable[str] = ()) -> str:
    """Return the sentence about an unknown machine, with the one that another spelling or a GPU's name means.

    `also`: what else could have been given.
    """
    word = _word(text).removeprefix("nvidia").removeprefix("geforce")
    kind = MACHINES.get(machine_kind(as_named(text)))
    if kind and kind.name == "dgx-spark":
        return f"unknown machine {text!r}; a {kind.name} has one GPU, and nodes: 2 is for a server on two of them"
    if kind:
        if kind.most_gpus:
            most = f"at most {kind.most_gpus} GPUs"
        else:
            most = "no GPUs"
        return f"unknown machine {text!r}; a {kind.name} has {most}"
    near = nearest(text, MACHINES)
    if near and re.findall("[0-9]+", near) != re.findall("[0-9]+", text):
        near = None  # a 4090 differs from a 5090
    if near:
        return f"unknown machine {text!r}; did you mean {near}?"
    if re.match(r"amd|mi[0-9]{2,3}|radeon|rx[0-9]|instinct", word):
        return f"unknown machine {text!r}; AMD GPUs are not supported, only NVIDIA GPUs and CPUs"
    known = f"the known ones are {', '.join((*MACHINES, *also))}"
    if re.fullmatch(r"(?:rtx|gtx|tesla|quadro|titan|[abhltv]|gb|rtxa)?[0-9]{1,4}[a-z]{0,6}", word):
        return (
            f"unknown machine {text!r}; for another NVIDIA GPU write nvidia, and give fit its --memory in GB; {known}"
        )
    return f"unknown machine {text!r}; {known}"
