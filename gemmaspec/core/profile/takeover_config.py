"""The file of `vllm serve --config FILE`, as the arguments that vLLM makes of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from gemmaspec.core import strict_yaml
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.takeover import ADOPT, TakenOver

_FLAG: Final = "--config"


def with_config(made: TakenOver, words: Sequence[str]) -> list[str]:
    """Return the words of `vllm serve` with those of its file in the place that vLLM gives them.

    What the command line says goes before the file (_pull_args_from_config in vllm/utils/argparse_utils.py, every
    release). A file that cannot be read is named; without it the words must hold a model. Raises UsageError for a file
    that is not a map.
    """
    for index, word in enumerate(words):
        if word == _FLAG and index + 1 < len(words):
            return _inserted(made, list(words[:index]), words[index + 1], list(words[index + 2 :]))
        if word.startswith(f"{_FLAG}="):
            return _inserted(made, list(words[:index]), word.partition("=")[2], list(words[index + 1 :]))
    return list(words)


def _inserted(made: TakenOver, before: list[str], path: str, after: list[str]) -> list[str]:
    inside, here = made.on_this_machine(path)
    content = made.beside(here) if made.beside else None
    if content is None:
        made.leave(f"{_FLAG} {path}", "there is no such file here; write its lines under serve:, with underscores")
        rest = [*before, *after]
        begins_with_model = bool(rest) and not rest[0].startswith("-")
        if not begins_with_model and not any(word.startswith("--model") for word in rest):
            raise UsageError(f"{_FLAG} {path}: there is no such file here, and no model without it", hint=ADOPT)
        return rest
    if inside:
        made.mounts.pop(inside, None)
    made.decide(f"{_FLAG} {path}", f"read from {here}")
    of_file = _words(content, here)
    has_model = bool(before) and not before[0].startswith("-")
    if not has_model:
        return [*of_file, *before, *after]
    return [before[0], *_without_model(of_file), *before[1:], *after]


def _without_model(words: list[str]) -> list[str]:
    """Return a file's words without its model, which the first word of the command line replaces."""
    for index, word in enumerate(words):
        if word == "--model":
            return [*words[:index], *words[index + 2 :]]
    return words


def _words(content: bytes, file: str) -> list[str]:
    data = strict_yaml.parse(content, file=file, error=UsageError, references=True).data
    if not isinstance(data, dict):
        raise UsageError(f"{file} cannot be what vllm serve {_FLAG} reads: it holds no map")
    words: list[str] = []
    for key, value in data.items():
        words += _argument(f"--{str(key).replace('_', '-')}", value)
    return words


def _argument(flag: str, value: Any) -> list[str]:
    if value is True:
        return [flag]
    if value is False:
        return [f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    if isinstance(value, list):
        if value:
            return [flag, *map(str, value)]
        return []
    return [flag, str(value)]
