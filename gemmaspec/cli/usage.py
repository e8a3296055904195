"""A wrong word on the command line, in one sentence that names the word and what may stand there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gemmaspec.core.errors import UsageError

_KINDS: Final = {int: "a whole number", float: "a number"}
"""What an option or argument of this type takes; options.json says it of all others."""


def in_one_sentence(error: Any, command: str, given: Sequence[str], meant: Callable[[str, str], str]) -> UsageError:
    """Return the error for one of the parser's. `given` are the words after the command.

    `meant` returns what an unknown option may mean, as the end of a sentence; of -ngl the parser names -n alone, so it
    gets the option as it was named and as it was typed.

    The parser's classes are known by what they hold, because typer brings them under different names.
    """
    said = _said(error, given, command, meant)
    if "--from-command" in given and "did you mean" not in said:
        said += "; the whole command is one word, in quotes: --from-command 'vllm serve …'"
    return UsageError(said, hint=f"{command} --help")


def _said(error: Any, given: Sequence[str], command: str, meant: Callable[[str, str], str]) -> str:
    kind = type(error).__name__
    if kind == "NoSuchOption":
        word = _whole(error.option_name, given)
        return f"{command} has no option {word}{meant(error.option_name, word)}"
    if kind == "MissingParameter":
        return f"{command} needs {_name(error.param)}"
    if kind == "BadParameter" and error.param is not None:
        return _unfit(error, given)
    if kind == "BadOptionUsage" and "requires an argument" in error.message:
        return f"{error.option_name} needs a value"
    if "unexpected extra argument" in error.message:
        extra = error.message.partition("(s) (")[2].rstrip(")")
        return f"{command} does not take {extra}"
    return str(error.format_message())


def _name(param: Any) -> str:
    """Return an option's name, or an argument's as the help shows it."""
    if param.opts[0].startswith("-"):
        return str(param.opts[0])
    return str(param.metavar)


def _whole(option: str, given: Sequence[str]) -> str:
    """Return an unknown option as it was typed: of -ngl the parser names -n alone."""
    return next((word for word in given if len(option) < 3 and word.startswith(option)), option)


def _unfit(error: Any, given: Sequence[str]) -> str:
    """Return what a number must be, of which something else was typed."""
    param = error.param
    kind = _KINDS.get(param.type_descriptor.annotation)
    if kind is None:
        return f"{_name(param)} is not valid: {error.message}"
    value = _value(param, given)
    wanted = f"{_name(param)} must be {kind}{_range(param.min, param.max)}"
    return wanted if value is None else f"{wanted}, not {value!r}"


def _range(low: float | None, high: float | None) -> str:
    """Return the range of a number, as the end of what it must be."""
    if low is not None and high is not None:
        return f" from {low:,} to {high:,}"
    if low is not None:
        return f" of at least {low:,}"
    return f" of at most {high:,}" if high is not None else ""


def _value(param: Any, given: Sequence[str]) -> str | None:
    """Return what was typed for an option, the last time; None where that is not seen."""
    value = None
    for place, word in enumerate(given):
        name, equals, after = word.partition("=")
        if name in param.opts and equals:
            value = after
        elif word in param.opts and place + 1 < len(given):
            value = given[place + 1]
    return value
