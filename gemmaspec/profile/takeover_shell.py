"""A command line as keys of a profile: shells, launchers and containers around `vllm serve`. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from gemmaspec.errors import UsageError
from gemmaspec.profile.fields import secret_name
from gemmaspec.profile.takeover import TakenOver, from_words, variable
from gemmaspec.profile.takeover_docker import docker_run, image_name, volume

_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*))?\})")
_REDIRECTED: Final = re.compile(
    r"('[^']*'|\"(?:\\.|[^\"\\])*\")|(?:(?<=\s)[0-9]|&)?>>?(?:&[0-9-]|\s*[^\s;|&\n]+)|<\s*[^\s;|&<\n]+"
)
_BUILT: Final = re.compile(r"('[^']*')|\$\([^()]*\)|`[^`\n]*`")
_HERE: Final = re.compile(r"\$\(pwd\)|`pwd`|\$\{PWD\}|\$PWD\b")
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash"})
_ENGINES: Final = frozenset({"docker", "podman", "nerdctl"})
_RELEASE: Final = re.compile(r"vllm(?:\[[^\]]*\])?(?:==|@)v?([0-9]+(?:\.[0-9]+)+)")
_PACKAGE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?((?:[<>=!~]=?|@).*)?", re.DOTALL)
_BOUNDED: Final = re.compile(r"(?:(?:>=?|!=)[0-9.]+,)*(?:<=?|==)[0-9.]+(?:,[<>!=]=?[0-9.]+)*")
_PLAIN: Final = frozenset(
    {"sudo", "-E", "nohup", "exec", "time", "env", "command", "CMD", "ENTRYPOINT", "setsid"}
    | {"uv", "run", "uvx", "python", "-m", "-u", "--", "--with", "--from"}
)
"""Words before `vllm serve` that change nothing for a profile."""
_LEFT_TO_UP: Final = "gemmaspec up starts the server itself"
_DEEPEST: Final = 5
_LONGEST: Final = 100_000
_EXAMPLE: Final = "gemmaspec profile new mine --from-command 'vllm serve google/gemma-4-31B-it --max-model-len 32768'"


def from_command(text: str) -> TakenOver:
    """Return what a command line says. Raises UsageError for one that does not serve a model with vLLM."""
    if len(text) > _LONGEST:
        raise UsageError(f"--from-command: longer than {_LONGEST:,} characters")
    made = TakenOver()
    if not shell(made, text):
        raise UsageError(
            f"this is not a command that serves with vLLM: {_no_secret(text.strip())[:80]!r}", hint=_EXAMPLE
        )
    return made


def shell(made: TakenOver, text: str, *, set_: dict[str, str] | None = None, depth: int = 0) -> bool:
    """Take over a text of the shell, and return whether it serves. Raises UsageError for one that cannot be read."""
    if depth > _DEEPEST:
        raise UsageError(f"--from-command: shells within shells, more than {_DEEPEST}")
    served, variables = False, {} if set_ is None else set_
    for words in _commands(made, text):
        filled = [_filled(word, variables) for word in words]
        served = _command(made, filled, variables, served=served, depth=depth) or served
    return served


def serve(made: TakenOver, words: Sequence[str], variables: dict[str, str] | None = None, depth: int = 0) -> bool:
    """Take over one command: what stands before `vllm serve`, and its arguments. Return whether it serves."""
    for index, word in enumerate(words):
        name, after = word.rpartition("/")[2], list(words[index + 1 :])
        if name in _ENGINES and "run" in after[:3]:
            _before(made, words[:index])
            return _docker(made, after[after.index("run") + 1 :], variables, depth)
        if name in _SHELLS and (inner := _script(after)) is not None:
            _before(made, words[:index])
            return shell(made, inner, set_=variables, depth=depth + 1)
        if after[:1] == ["serve"] and (name == "vllm" or _RELEASE.fullmatch(name)):
            _before(made, words[: index + 1] if name != "vllm" else words[:index])
            from_words(made, after[1:])
            return True
        if word in ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main"):
            _before(made, words[:index])
            from_words(made, after[1:] if after[:1] == ["serve"] else after)
            return True
    if words[:1] == ["serve"] or (words and words[0].startswith("--model")):
        from_words(made, words[1:] if words[0] == "serve" else words)
        return True
    return False


def arguments(made: TakenOver, words: Sequence[str], variables: dict[str, str] | None = None, depth: int = 0) -> bool:
    """Take over the words after an image, which may be a command or the arguments of its own `vllm serve`."""
    if not words or (len(words) == 1 and words[0].rpartition("/")[2] in _SHELLS):
        return False
    if not serve(made, words, variables, depth):
        from_words(made, words[1:] if words[0] == "--" else words)
    return True


def _docker(made: TakenOver, words: Sequence[str], variables: dict[str, str] | None, depth: int) -> bool:
    entrypoint, rest = docker_run(made, words)
    return arguments(made, [*entrypoint, *rest], variables, depth)


def _script(words: Sequence[str]) -> str | None:
    """Return the text after `-c`, as in `bash -lc TEXT`."""
    for index, word in enumerate(words[:4]):
        if re.fullmatch(r"-[a-z]*c", word) and index + 1 < len(words):
            return words[index + 1]
        if not word.startswith("-"):
            return None
    return None


def _command(made: TakenOver, words: list[str], variables: dict[str, str], *, served: bool, depth: int) -> bool:
    """Take over one simple command of a text."""
    names = []
    while words and (found := _ASSIGNED.fullmatch(words[0])):
        names.append((found[1], found[2]))
        words = words[1:]
    variables |= dict(names)
    if not words:
        return False
    if words[0] in ("export", "declare", "setenv"):
        _export(made, words[1:], variables)
        return False
    before = len(made.left)
    for name, value in names:
        variable(made, name, value)
    if served:
        made.leave(_short(words), "it comes after the server; gemmaspec up returns once the server has answered")
        return False
    if any(word == "pip" or word.endswith("/pip") or re.fullmatch(r"pip[0-9.]*", word) for word in words[:4]):
        _installed(made, words)
        return False
    if serve(made, words, variables, depth):
        return True
    if made.contained and len(made.left) == before and words[0].rpartition("/")[2] in (*_ENGINES, "sudo"):
        return False  # a container with a shell, in which the next line serves
    made.leave(_short(words), _LEFT_TO_UP)
    return False


def _export(made: TakenOver, words: Sequence[str], variables: dict[str, str]) -> None:
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            variables[name] = value
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            variable(made, name, variables.get(name))


def _installed(made: TakenOver, words: Sequence[str]) -> None:
    """Take over `pip install`: the release of vLLM, and packages with an upper bound."""
    if "install" not in words:
        made.leave(_short(words), _LEFT_TO_UP)
        return
    for word in words[words.index("install") + 1 :]:
        found = _PACKAGE.fullmatch(word)
        if release := _RELEASE.fullmatch(word):
            made.release = release[1]
        elif word.startswith("-"):
            continue  # how pip installs; what follows -r or --index-url is no package and is named
        elif found and _BOUNDED.fullmatch(found[2] or ""):
            made.content.setdefault("runtime", {}).setdefault("packages", {})[found[1]] = found[2]
        else:
            instead = "runtime: {packages: {NAME: '>=5.8,<5.20'}} installs it once and bounded"
            made.leave(f"pip install {_no_secret(word)}", instead)


def _before(made: TakenOver, words: Sequence[str]) -> None:
    """Take over what stands before the server: variables, an image, a release; what is left is named."""
    rest, launcher = list(words), words[0].rpartition("/")[2] if words else ""
    unknown = []
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in ("-e", "--env", "--export"):
            for pair in (value if equals else rest.pop(0) if rest else "").split(","):
                key, given, text = pair.partition("=")
                if given:
                    variable(made, key, None if text.startswith("$") else text)
        elif release := _RELEASE.fullmatch(value if name in ("--with", "--from") else word):
            made.release = release[1]
        elif found := _ASSIGNED.fullmatch(word):
            variable(made, found[1], found[2])
        elif name in ("--container-image", "--image") or (name == "-t" and "launch" in launcher) or "docker://" in word:
            image = word if "docker://" in word and not equals else value if equals else rest.pop(0) if rest else ""
            made.content["image"], made.contained = image_name(image), True
        elif name in ("--container-mounts", "-v", "--volume", "--bind", "-B"):
            for pair in (value if equals else rest.pop(0) if rest else "").split(","):
                volume(made, pair)
        elif word.rpartition("/")[2] not in _PLAIN and not re.fullmatch(r"python[0-9.]*", word.rpartition("/")[2]):
            unknown += [name] if name.startswith("-") or word == words[0] else []
    if unknown:
        made.leave(" ".join(unknown), _LEFT_TO_UP)


def _commands(made: TakenOver, text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command. Raises UsageError for quotes that do not close."""
    text = re.sub(r"\\\r?\n", " ", text)
    text = re.sub(r"^\s*(?:#.*$|\$\s+)", "", text, flags=re.MULTILINE)
    text = _BUILT.sub(lambda found: found[1] or "$COMMAND_SUBSTITUTION", _HERE.sub(".", text))
    kept = _REDIRECTED.sub(lambda found: found[1] or " ", text)
    if kept != text:
        made.leave("redirections", "`gemmaspec logs` reads the log")
    lexer = shlex.shlex(kept, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if word and not set(word) - set("();<>|&\n"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)
    except ValueError as error:
        raise UsageError(f"--from-command: {error}: check its quotes") from None
    if words:
        yield words


def _filled(word: str, variables: dict[str, str]) -> str:
    """Return a word with the variables that the text sets, and the defaults of others."""

    def of(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name == "HOME" and not found.start():
            return "~"
        return variables.get(name, found[0] if found[3] is None else found[3])

    return _VARIABLE.sub(of, word)


def _short(words: Sequence[str]) -> str:
    """Return a command as one short text, without secrets."""
    shown = " ".join(words[:2]) if re.fullmatch("[a-z-]+", " ".join(words[1:2])) else words[0]
    return f"{_no_secret(shown)} …" if len(words) > 2 else _no_secret(shown)


def _no_secret(text: str) -> str:
    """Return a text without what may be a secret: values of such names, and passwords in addresses."""
    text = re.sub(r"(?:hf_|sk-|ghp_)[A-Za-z0-9_-]+", "…", re.sub(r"//[^/@\s]+@", "//…@", text))
    return re.sub(r"([\w-]+)[= ](\S+)", lambda found: f"{found[1]}=…" if secret_name(found[1]) else found[0], text)
