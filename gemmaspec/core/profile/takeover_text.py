"""A command line as a user pastes it: of a shell, a console, a list of arguments, a unit. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.foreign_words import OTHER_SERVER, foreign_file
from gemmaspec.core.profile.takeover import TakenOver
from gemmaspec.core.profile.takeover_install import no_secret
from gemmaspec.core.profile.takeover_manifest import from_manifest, is_manifest
from gemmaspec.core.profile.takeover_shell import LEFT_TO_UP, arguments, shell
from gemmaspec.core.profile.takeover_unit import from_unit, is_unit

_LONGEST: Final = 100_000
_COMPOSE: Final = "gemmaspec profile new mine --from-compose compose.yaml"
_EXAMPLE: Final = "gemmaspec profile new mine --from-command 'vllm serve google/gemma-4-31B-it --max-model-len 32768'"
_COMMAS: Final = re.compile(r"[^\s,]+(?:,[^\s,]+)*,--[^\s,]+(?:,\S+)?")
_LIST: Final = re.compile(r"\s*(?:CMD|ENTRYPOINT|command:|args:)?\s*(\[.*\])\s*", re.DOTALL)


def from_command(text: str, beside: Callable[[str], bytes | None] | None = None) -> TakenOver:
    """Return what a command line says. Raises UsageError for one that does not serve a model with vLLM.

    `beside` reads a file that it names.
    """
    if len(text) > _LONGEST:
        raise UsageError(f"--from-command: longer than {_LONGEST:,} characters")
    if "vllm" not in text.lower() and (other := OTHER_SERVER.search(text.lower())):
        model = re.search(r"[\w.-]+/gemma-4-(?:(?!gguf)[\w.-])+(?![\w.-])", text, re.IGNORECASE)
        if model:
            hint = f"gemmaspec profile new mine --from-command 'vllm serve {model[0]}'"
        else:
            hint = _EXAMPLE
        raise UsageError(f"this is a command of {other[0]}, and gemmaspec serves with vLLM", hint=hint)
    if is_manifest(text):
        return from_manifest(text.encode(), file="the text", beside=beside)
    if is_unit(text):
        return from_unit(text, beside)
    made = TakenOver(beside=beside)
    listed = _LIST.fullmatch(text)
    words = _json_words(listed[1]) if listed else []
    if _COMMAS.fullmatch(text.strip()):  # as a cloud's console takes them
        words = text.strip().split(",")
    rows = [row.strip() for row in text.strip().splitlines()]
    if len(rows) > 1 and all(row.startswith("- ") or row.endswith(":") for row in rows):  # `args:` of a manifest
        words = [_list_word(row[2:].strip()) for row in rows if not row.endswith(":")]
    if not (arguments(made, words) if words else shell(made, text)):
        if (foreign := foreign_file(text)) and not foreign[0].startswith("a command"):
            raise UsageError(f"this is {foreign[0]}", hint=foreign[1].format(file="FILE"))
        if "vllm" in text:
            part = "; give the words of `vllm serve` or `docker run` alone"
        else:
            part = ""
        hint = _EXAMPLE
        if "compose" in text:
            hint = _COMPOSE
        elif "vllm bench" in text:
            hint = "gemmaspec bench PROFILE"
        raise UsageError(
            f"this is not a command that serves with vLLM: {no_secret(text.strip())[:80]!r}{part}",
            hint=hint,
        )
    ending = f": {LEFT_TO_UP}"
    if around := [line.removesuffix(ending) for line in made.left if line.endswith(ending)]:
        made.left = [line for line in made.left if not line.endswith(ending)]
        made.leave(", ".join(dict.fromkeys(around)), LEFT_TO_UP)
    return made


def _list_word(text: str) -> str:
    if text.startswith('"'):
        return next(iter(_json_words(f"[{text}]")), text)
    return text.strip("'")


def _json_words(text: str) -> list[str]:
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if all(isinstance(item, str | int | float) for item in items):
        return [str(item) for item in items]
    return []
