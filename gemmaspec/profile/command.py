"""What a profile puts on vLLM's command line, flag by flag, and which key each came from: the only reading of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gemmaspec.profile.model import Profile
from gemmaspec.profile.runs import vllm_of

if TYPE_CHECKING:
    from gemmaspec.releases.flags import Flag

_NOT_FLAGS: Final = {"bind", "port", "extra_args"}
_OPTIMIZATION: Final = re.compile(r"-O=?(.+)")
"""-O2 is --optimization-level 2, whatever stands behind -O (parse_args in vllm/utils/argparse_utils.py)."""
_NEGATIVE: Final = re.compile(r"-\d+|-\d*\.\d+")
LEVEL: Final = "--optimization-level"
COMPILATION: Final = "--compilation-config"


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One flag as the profile gives it."""

    path: tuple[str | int, ...]
    """The profile's key that it came from."""
    flag: str
    """With the leading --, without no-."""
    value: str | None
    """The text after it, if any."""
    negated: bool = False
    written: str = ""
    """The word of `extra_args`; empty for a flag with a key of its own."""
    words: tuple[str, ...] = ()
    """All the words after it, of a flag that takes several; of an unknown one, those up to the next flag."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of `--a.b.c`, which sets one value in --a's JSON."""
        return tuple(self.written.partition("=")[0].removesuffix("+").split(".")[1:])


@dataclass(frozen=True)
class Command:
    """Flags of a command line under their canonical names, in order. The last of several wins, as in vLLM."""

    arguments: tuple[Argument, ...]
    unclaimed: tuple[tuple[tuple[str | int, ...], str], ...] = ()
    """Words of `extra_args` that no flag takes, each with its place."""

    def argument(self, flag: str) -> Argument | None:
        """Return how a flag is given."""
        return next((one for one in reversed(self.arguments) if one.flag == flag), None)

    def given(self, *flags: str) -> bool:
        """Return whether one of these flags is given, in either form."""
        return any(one.flag in flags for one in self.arguments)

    def switched(self, flag: str) -> bool | None:
        """Return whether a flag without a value is on; None if it is not given."""
        found = self.argument(flag)
        return None if found is None else not found.negated

    def value(self, flag: str) -> str | None:
        """Return the text that a flag is given."""
        found = self.argument(flag)
        return found.value if found else None


def command_of(profile: Profile, flags: Mapping[str, Flag] | None = None) -> Command:
    """Return the server's whole command line.

    `flags` are those of the vLLM that will run: they show which words are short for which flag, and which flags take a
    value. Without them, those of the release that the profile names, or of the newest known one.
    """
    extra = extra_of(profile, flags)
    return Command((*_serve(profile), *_model(profile), *_chat(profile), *extra.arguments), extra.unclaimed)


def extra_of(profile: Profile, flags: Mapping[str, Flag] | None = None) -> Command:
    """Return what `serve.extra_args` give; `flags` as in `command_of`."""
    words = profile.serve.extra_args
    return _extra(words, _flags_for(profile) if flags is None else flags) if words else Command(())


def words_of(words: Sequence[str], flags: Mapping[str, Flag]) -> Command:
    """Return what the words of a command line give; `flags` are those of the vLLM that it is for."""
    return _extra(words, flags)


def compile_of(profile: Profile) -> str:
    """Return how a profile's server compiles: one word, or what its flags say. It changes the step times.

    `eager`: no graphs; `disabled`: graphs, but nothing compiled; `default`: as vLLM decides.
    """
    if profile.serve.enforce_eager:
        return "eager"
    asked = ""
    for one in extra_of(profile).arguments:
        if one.flag == LEVEL:
            asked = f"-O{one.value}"
        elif one.flag == COMPILATION and one.keys:  # one key of it, added to the others
            asked = ",".join(filter(None, (asked, f"{'.'.join(one.keys)}={one.value}")))
        elif one.flag == COMPILATION:
            asked = "".join((one.value or "").split())
    return asked or ("disabled" if profile.env.get("TORCH_COMPILE_DISABLE") == "1" else "default")


def _flags_for(profile: Profile) -> Mapping[str, Flag]:
    from gemmaspec.releases.facts import facts_for, nearest, newest  # few profiles have extra_args

    facts = facts_for(nearest(vllm_of(profile) or newest()))
    return facts.flags if facts else {}


def _serve(profile: Profile) -> Iterator[Argument]:
    for key, value in profile.serve.model_dump(exclude=_NOT_FLAGS, exclude_none=True).items():
        switch = isinstance(value, bool)
        text = None if switch else _text(value)
        yield Argument(path=("serve", key), flag=_option(key), value=text, negated=value is False)


def _model(profile: Profile) -> Iterator[Argument]:
    for key, value in (("revision", profile.target.revision), ("quantization", profile.target.quantization)):
        if value:
            yield Argument(path=("target", key), flag=_option(key), value=value)


def _chat(profile: Profile) -> Iterator[Argument]:
    chat = profile.chat
    for key, flag, value in (
        ("template", "--chat-template", chat.template),
        ("content_format", "--chat-template-content-format", chat.content_format),
        ("template_kwargs", "--default-chat-template-kwargs", chat.template_kwargs),
        ("reasoning_parser", "--reasoning-parser", chat.reasoning_parser),
        ("tool_call_parser", "--tool-call-parser", chat.tool_call_parser),
    ):
        if value:
            yield Argument(path=("chat", key), flag=flag, value=_text(value))


def _extra(words: Sequence[str], flags: Mapping[str, Flag]) -> Command:
    """Return the flags of `extra_args`, each with the words after it that it takes."""
    found: list[Argument] = []
    unclaimed = []
    index = 0
    while index < len(words):
        place, word = ("serve", "extra_args", index), words[index]
        index += 1
        if word == "--":  # all that follows, and what is added later, are no options any more
            unclaimed.append((place, word))
            unclaimed += [(("serve", "extra_args", place), text) for place, text in enumerate(words) if place >= index]
            break
        if not _is_flag(word):
            unclaimed.append((place, word))
            continue
        one = _flag(word, flags)
        after = 0
        if "=" not in word and not _OPTIMIZATION.fullmatch(word):
            most = _taken(flags.get(one.flag), keys=one.keys)
            while after < most and index + after < len(words) and (one.keys or not _is_flag(words[index + after])):
                after += 1
        if not after and one.flag not in flags:  # nobody knows how many words it takes
            end = next((at for at in range(index, len(words)) if _is_flag(words[at])), len(words))
            found.append(replace(one, path=place, words=tuple(words[index:end])))
            index = end
            continue
        taken = tuple(words[index : index + after])
        found.append(replace(one, path=place, value=taken[0] if taken else one.value, words=taken))
        index += after
    return Command(tuple(found), tuple(unclaimed))


def _flag(word: str, flags: Mapping[str, Flag]) -> Argument:
    if level := _OPTIMIZATION.fullmatch(word):
        return Argument(path=(), flag=LEVEL, value=level[1], written=word)
    written, equals, text = word.partition("=")
    flag, negated = (LEVEL, False) if word == "-O" else resolve(written, flags)
    return Argument(path=(), flag=flag, value=text if equals else None, negated=negated, written=word)


def _is_flag(word: str) -> bool:
    """Return whether argparse takes a word for a flag; a negative number is a value."""
    return (
        word.startswith("-") and len(word) > 1 and " " not in word.partition("=")[0] and not _NEGATIVE.fullmatch(word)
    )


def _taken(flag: Flag | None, *, keys: Sequence[str]) -> int:
    """Return the most words after a flag that are its values."""
    if keys:
        return 1
    if flag is None or flag.switch:
        return 0
    return 1_000_000 if flag.form.startswith(("+", "*")) else 1


def resolve(written: str, flags: Mapping[str, Flag]) -> tuple[str, bool]:
    """Return the canonical name of a flag, and whether it is the --no- form.

    vLLM accepts underscores for hyphens, `--a.b` for a key of --a's JSON, short names, and unique prefixes; from
    0.33.0 on, also --disable-x for an --enable-x and vice versa, which counts as the --no- form.
    """
    name = written.split(".", 1)[0].replace("_", "-")
    name = next((flag.name for flag in flags.values() if flag.short == name), name)
    forms = {flag: (flag, False) for flag in flags}
    forms |= {f"--no-{flag.removeprefix('--')}": (flag, True) for flag in flags if flags[flag].negatable}
    forms |= {flag.opposite: (flag.name, True) for flag in flags.values() if flag.opposite}
    if name in forms:
        return forms[name]
    longer = [form for form in forms if name.startswith("--") and form.startswith(name)]
    return forms[longer[0]] if len(longer) == 1 else (name, False)


def _option(key: str) -> str:
    return "--" + key.replace("_", "-")


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
