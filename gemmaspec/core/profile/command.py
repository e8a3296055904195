"""What a profile puts on vLLM's command line, flag by flag, and which key each came from: the only reading of it.

Which vLLM release a profile will run, as far as the profile itself states it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gemmaspec.core.profile.model import Profile
from gemmaspec.core.releases.drafting import FEATURES

if TYPE_CHECKING:
    from gemmaspec.core.releases.flags import Flag


_TAG: Final = re.compile(r":[a-z-]*v?([0-9]\.[0-9]+\.[0-9]+)(?:[._-][A-Za-z0-9_.-]*)?(?:@.*)?$")


def vllm_of(profile: Profile) -> str | None:
    """Return the release: `runtime.vllm`, else the version in the image's tag; None if neither states it."""
    return profile.runtime.vllm or release_of_tag(profile.image or "")


def release_of_tag(image: str) -> str | None:
    """Return the release that an image's tag states, such as 0.25.1 of v0.25.1-x86_64-cu129-ubuntu2404.

    A tag such as cu130-nightly moves, so only the image itself shows its version. 26.01.1 and 2026.11.21 are dates.
    """
    tag = _TAG.search(image)
    if tag:
        return tag[1]
    return None


def can_be_process(profile: Profile) -> bool:
    """Return whether the profile states which vLLM a process would run; a container brings its own."""
    return bool(profile.runtime.vllm or profile.runtime.python)


def settings_digest(profile: Profile) -> str:
    """Return sha256:… of everything in a profile that decides how its server runs.

    Its name, its figures, where it listens and what `watch` does are left out.
    """
    left_out = {"schema_": True, "name": True, "summary": True, "measured": True, "tuned": True, "watch": True}
    whole = profile.model_dump(mode="json", exclude={**left_out, "serve": {"port", "bind"}})
    return f"sha256:{hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()}"


_NOT_FLAGS: Final = {"bind", "port", "extra_args"}
_OPTIMIZATION: Final = re.compile(r"-O=?(.+)")
"""-O2 is --optimization-level 2, whatever stands behind -O (parse_args in vllm/utils/argparse_utils.py)."""
_NEGATIVE: Final = re.compile(r"-\d+|-\d*\.\d+")
_NUMBER: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6}(?=[kmgt]))?)([kKmMgGtT]?)")
_UNITS: Final = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "K": 1024,
    "M": 1024**2,
    "G": 1024**3,
    "T": 1024**4,
}
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
        return next((argument for argument in reversed(self.arguments) if argument.flag == flag), None)

    def given(self, *flags: str) -> bool:
        """Return whether one of these flags is given, in either form."""
        return any(argument.flag in flags for argument in self.arguments)

    def switched(self, flag: str) -> bool | None:
        """Return whether a flag without a value is on; None if it is not given."""
        given = self.argument(flag)
        if given is None:
            return None
        return not given.negated

    def value(self, flag: str) -> str | None:
        """Return the text that a flag is given."""
        given = self.argument(flag)
        if given:
            return given.value
        return None

    def number(self, flag: str) -> int | None:
        """Return the whole number that a flag is given, 128k and 2K too (human_readable_int); None for another text."""
        number = _NUMBER.fullmatch(self.value(flag) or "")
        if number:
            return int(float(number[1]) * _UNITS[number[2]])
        return None


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
    if not words:
        return Command(())
    return _extra(words, _flags_for(profile) if flags is None else flags)


def gives_parallel_size(profile: Profile) -> bool:
    """Return whether `serve.extra_args` give a parallel size."""
    return extra_of(profile).given("--tensor-parallel-size", "--pipeline-parallel-size")


def words_of(words: Sequence[str], flags: Mapping[str, Flag]) -> Command:
    """Return what the words of a command line give; `flags` are those of the vLLM that it is for."""
    return _extra(words, flags)


def compile_of(profile: Profile, command: Command) -> str:
    """Return how a profile's server compiles: one word, or what its flags say. It changes the step times.

    `eager`: no graphs; `disabled`: graphs, but nothing compiled; `default`: as vLLM decides.
    """
    if profile.serve.enforce_eager:
        return "eager"
    asked = ""
    for argument in command.arguments:
        if argument.flag == LEVEL:
            asked = f"-O{argument.value}"
        elif argument.flag == COMPILATION and argument.keys:  # one key of it, added to the others
            asked = ",".join(filter(None, (asked, f"{'.'.join(argument.keys)}={argument.value}")))
        elif argument.flag == COMPILATION:
            asked = "".join((argument.value or "").split())
    return asked or ("disabled" if profile.env.get("TORCH_COMPILE_DISABLE") == "1" else "default")


def _flags_for(profile: Profile) -> Mapping[str, Flag]:
    from gemmaspec.core.releases.facts import facts_near  # few profiles have extra_args

    return facts_near(vllm_of(profile)).flags


def _serve(profile: Profile) -> Iterator[Argument]:
    for key, value in profile.serve.model_dump(exclude=_NOT_FLAGS, exclude_none=True).items():
        switch = isinstance(value, bool)
        text = None if switch else text_of(value)
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
            yield Argument(path=("chat", key), flag=flag, value=text_of(value))


def _extra(words: Sequence[str], flags: Mapping[str, Flag]) -> Command:
    """Return the flags of `extra_args`, each with the words after it that it takes."""
    arguments: list[Argument] = []
    unclaimed = []
    index = 0
    while index < len(words):
        place, word = ("serve", "extra_args", index), words[index]
        index += 1
        if word == "--":  # all that follows, and what is added later, are no options any more
            unclaimed.append((place, word))
            for after, text in enumerate(words[index:], start=index):
                unclaimed.append((("serve", "extra_args", after), text))
            break
        if not _is_flag(word):
            unclaimed.append((place, word))
            continue
        argument = _flag(word, flags)
        after = 0
        if "=" not in word and not _OPTIMIZATION.fullmatch(word):
            most = _taken(flags.get(argument.flag), keys=argument.keys)
            while after < most and index + after < len(words) and (argument.keys or not _is_flag(words[index + after])):
                after += 1
        if not after and argument.flag not in flags:  # how many words it takes is not known
            end = index
            while end < len(words) and not _is_flag(words[end]):
                end += 1
            arguments.append(replace(argument, path=place, words=tuple(words[index:end])))
            index = end
            continue
        taken = tuple(words[index : index + after])
        arguments.append(replace(argument, path=place, value=taken[0] if taken else argument.value, words=taken))
        index += after
    return Command(tuple(arguments), tuple(unclaimed))


def _flag(word: str, flags: Mapping[str, Flag]) -> Argument:
    if level := _OPTIMIZATION.fullmatch(word):
        return Argument(path=(), flag=LEVEL, value=level[1], written=word)
    written, equals, text = word.partition("=")
    if word == "-O":
        flag, negated = (LEVEL, False)
    else:
        flag, negated = resolve(written, flags)
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
    if flag.form.startswith(("+", "*")):
        return 1_000_000
    return 1


def resolve(written: str, flags: Mapping[str, Flag]) -> tuple[str, bool]:
    """Return the canonical name of a flag, and whether it is the --no- form.

    vLLM accepts underscores for hyphens, `--a.b` for a key of --a's JSON, short names, and unique prefixes; from
    0.33.0 on, also --disable-x for an --enable-x and vice versa, which counts as the --no- form.
    """
    name = written.split(".", 1)[0].replace("_", "-")
    name = next((flag.name for flag in flags.values() if flag.short == name), name)
    forms = {flag: (flag, False) for flag in flags}
    for own, flag in flags.items():
        if flag.negatable:
            forms[f"--no-{own.removeprefix('--')}"] = (own, True)
    for flag in flags.values():
        if flag.opposite:
            forms[flag.opposite] = (flag.name, True)
    if name in forms:
        return forms[name]
    longer = [form for form in forms if name.startswith("--") and form.startswith(name)]
    if len(longer) == 1:
        return forms[longer[0]]
    return (name, False)


def _option(key: str) -> str:
    return "--" + key.replace("_", "-")


def text_of(value: Any) -> str:
    """Return a value as vLLM's command line has it."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value)


def asked_of_runner(profile: Profile, command: Command, unsupported: AbstractSet[str]) -> frozenset[str]:
    """Return the keys and features that are on and may make vLLM fall back from model runner v2 to v1.

    `unsupported`: what the release's v2 lacks, in vLLM's words; a feature counts only where it is among them.
    """
    spec = profile.speculative
    asked = {words for flag, words in FEATURES.items() if command.switched(flag)} & unsupported
    if spec and spec.parallel_drafting:
        asked.add("parallel_drafting")
    if spec and spec.use_heterogeneous_vocab:
        asked.add("use_heterogeneous_vocab")
    if command.value("--runner") == "pooling":
        asked.add("--runner pooling")
    return frozenset(asked)
