"""The help of each command: its section, a summary of at most 45 characters, and examples."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import typer
import typer.core

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.foreign_words import COMMANDS, WITHIN, nearest, option_meant

_ROWS: Final = json.loads(Path(__file__).with_name("help.json").read_text(encoding="utf-8"))
SECTIONS: Final[Mapping[str, Sequence[str]]] = _ROWS["sections"]
"""The groups of commands in the help, the six that carry the product first; commands in no group come last."""
PATCH_SECTIONS: Final[Mapping[str, Sequence[str]]] = _ROWS["sections of patch"]
OTHER: Final = "More"


@dataclass(frozen=True)
class About:
    """One command in the help."""

    summary: str
    """At most 45 characters."""
    examples: tuple[str, ...]
    """Command lines without `gemmaspec`."""


ABOUT: Final[Mapping[str, About]] = {name: About(row[0], tuple(row[1:])) for name, row in _ROWS["commands"].items()}


class HelpedCommand(typer.core.TyperCommand):
    """A command whose help names arguments as people write them: PROFILE, [NAME], [PATCH]..."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words. Raise UsageError in our own words; an unknown option is answered by what it means."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _raise_ours(error, ctx, given, lambda option, whole: self._meant(option, whole, given, ctx.info_name or ""))
            raise

    def _meant(self, option: str, whole: str, given: list[str], command: str) -> str:
        """Return what an unknown option may mean, as the end of a sentence; of -ngl the parser knows -n alone."""
        from gemmaspec.core.profile.model import Profile, Serve

        if whole in given:
            after = given[given.index(whole) + 1 :][:1]
        else:
            after = []
        if after and not after[0].startswith("-"):
            value = after[0]
        else:
            value = None
        spelled = chain.from_iterable(param.opts for param in self.params)
        names = [name for name in spelled if name.startswith("--")]
        fields = {"serve": Serve.model_fields, "": Profile.model_fields}
        meant = option_meant(whole, value, fields, command) or option_meant(option, value, fields, command)
        if meant and "--set" in meant and "--set" not in names:
            meant = None
        near = nearest(option, names)
        if near and near.strip("-") == option.strip("-").lower():
            meant = None
        if meant:
            return f"; {meant}"
        if near:
            return f"; did you mean {near}?"
        return ""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A UsageError that names no next command gets the command's help as one."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            raise error.amended(error.message, hint=error.hint or f"{ctx.command_path} --help") from None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as the class above has it
        """Return [OPTIONS] and the arguments."""
        return [self.options_metavar or "", *(_shown(argument) for argument in _arguments(self))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options."""
        arguments = [(_shown(argument), argument.help or "") for argument in _arguments(self)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        options = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        records = [option.get_help_record(ctx) for option in options]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record])  # a hidden option has none


def _raise_ours(error: Exception, ctx: Any, given: Sequence[str], meant: Callable[[str, str], str]) -> None:
    """Raise UsageError for an error of the parser; nothing for another one, and for a group that shows its help."""
    if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
        return
    from gemmaspec.cli.usage import in_one_sentence

    raise in_one_sentence(error, ctx.command_path, given, meant) from None


class CommandGroup(typer.core.TyperGroup):
    """A group of commands, in sections if it has some, that suggests a command for names from other tools."""

    sections: Mapping[str, Sequence[str]] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before a command's name. Raise UsageError in our own words."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _raise_ours(error, ctx, given, lambda *_: "")
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write every command with its summary."""
        if self.name == "patch":
            sections = PATCH_SECTIONS
        else:
            sections = self.sections
        named = set().union(*sections.values())
        rest = tuple(name for name in self.list_commands(ctx) if name not in named)
        prefix = f"{ctx.command_path} ".partition(" ")[2]
        width = max(len(name) for name in self.commands)
        for title, names in {**sections, (OTHER if named else "Commands"): rest}.items():
            here = [name for name in names if name in self.commands]
            rows = [(f"{name:<{width}}", summary(f"{prefix}{name}")) for name in here]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _within(self, word: str, path: str) -> str | None:
        """Return the command of this group that another tool's word means."""
        for name, words in WITHIN.items():
            if name in self.commands and word in words.split():
                return f"{path} {name}"
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command. Raises an error that suggests the closest name for an unknown one."""
        if args and args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            path = ctx.command_path
            word = args[0].lower()
            if ctx.parent:
                meant = self._within(word, path)
            else:
                meant = COMMANDS.get(word)
            near = difflib.get_close_matches(args[0].lower(), list(self.commands), n=1, cutoff=0.75)
            guess = meant or (f"{path} {near[0]}" if near else None)
            if guess:
                advice = f"Did you mean {guess}?"
            else:
                advice = f"{path} --help lists the commands."
            raise UsageError(f"No such command {args[0]!r}. {advice}")
        return super().resolve_command(ctx, args)


class Commands(typer.Typer):
    """Registers commands with their line and examples from this module. `prefix` is the group's name and a blank."""

    def __init__(self, prefix: str = "", **settings: Any) -> None:
        super().__init__(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True, **settings)
        self._prefix = prefix

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a command."""
        path = f"{self._prefix}{name}"
        return super().command(name, **{"cls": HelpedCommand, "epilog": examples(path), **settings})


def group(name: str) -> Commands:
    """Return a group of commands to add to the command line under `name`."""
    return Commands(prefix=f"{name} ", help=f"{summary(name)}.", epilog=examples(name))


def summary(path: str) -> str:
    """Return the summary of a command, by its path without `gemmaspec`."""
    if path in ABOUT:
        return ABOUT[path].summary
    return ""


def examples(path: str) -> str:
    """Return the examples as the end of a command's help; "" for a command without any."""
    lines = ABOUT[path].examples if path in ABOUT else ()
    if lines:
        return "\n".join(["\b", "Examples:", *(f"  gemmaspec {line}" for line in lines)])
    return ""


def _arguments(command: typer.core.TyperCommand) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument"]


def _shown(argument: Any) -> str:
    name = str(argument.metavar or argument.name).strip("[].…").upper()
    many = "..." if argument.nargs != 1 else ""
    if argument.required:
        return f"{name}{many}"
    return f"[{name}]{many}"
