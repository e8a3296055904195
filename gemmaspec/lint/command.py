"""What a profile puts on vLLM's command line, flag by flag, and which key each came from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.profile.model import Profile
from gemmaspec.releases.flags import Flag

_NOT_FLAGS: Final = {"bind", "port", "extra_args"}
_OPTIMIZATION: Final = re.compile(r"-O(\d|\..*|=.*)?")
"""-O2 and -O.mode=…: vLLM's parser takes these before argparse sees them (vllm/utils/argparse_utils.py)."""


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


def arguments(profile: Profile, flags: Mapping[str, Flag]) -> tuple[Argument, ...]:
    """Yield every flag of the server's command line; `flags` are vLLM's, which show whether one takes a value."""
    return (*_serve(profile), *_model(profile), *_chat(profile), *_extra(profile.serve.extra_args, flags))


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


def _extra(words: Sequence[str], flags: Mapping[str, Flag]) -> Iterator[Argument]:
    """Yield the flags of `extra_args`; a word after a flag that takes a value is that value."""
    for index, word in enumerate(words):
        if not word.startswith("-") or re.fullmatch(r"-[0-9.]+", word) or _OPTIMIZATION.fullmatch(word):
            continue
        written, equals, text = word.partition("=")
        flag, negated = resolve(written, flags)
        after = words[index + 1] if index + 1 < len(words) else "-"
        takes = flag in flags and not flags[flag].bare and not after.startswith("-") and "." not in written
        value = text if equals else after if takes else None
        yield Argument(path=("serve", "extra_args", index), flag=flag, value=value, negated=negated)


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
