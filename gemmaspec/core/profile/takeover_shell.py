"""A command line as keys of a profile: shells, launchers and containers around `vllm serve`. Pure.

It reads simple commands one after another, variables that are set to a text, and what `bash -c` makes
of `$0`, `$1` and `$@`. A script with branches, loops, functions or arrays is refused: what it starts is seen exactly
once it runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.takeover import ADOPT, OUTPUT, TakenOver, from_words, variable
from gemmaspec.core.profile.takeover_config import with_config
from gemmaspec.core.profile.takeover_docker import docker_run, image_name, volume
from gemmaspec.core.profile.takeover_install import (
    BOUNDED,
    PACKAGE,
    RELEASE,
    changes_files,
    installed,
    no_secret,
    short,
)  # fmt: skip

_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*|[0-9@*])|\{([A-Za-z_]\w*|[0-9@*])(?::?-([^}]*)|:?\?[^}]*)?\})")
_PIECE: Final = re.compile(
    r"""(?P<quoted>'[^']*')|(?P<double>"(?:\\.|[^"\\])*")|`\#[^`\n]*`|^[ \t]*\#[^\n]*(?:\n|\Z)|(?<=\s)\#[^\n]*"""
    r"""|(?P<joined>\\[ \t]*(?:\r?\n|\Z)|(?<=\s)[`^][ \t]*\r?\n)""",
    re.MULTILINE | re.DOTALL,
)
"""What is read before words: quotes as they are, comments, and lines that go on."""
_REDIRECTED: Final = re.compile(
    r"('[^']*'|\"(?:\\.|[^\"\\])*\")|(?:(?<=\s)[0-9]|&)?>>?(?:&[0-9-]|\s*[^\s;|&\n]+)|(?<!<)<(?!<)\s*[^\s;|&<\n]+"
)
_BUILT: Final = re.compile(
    r"('[^']*')|\$\(\((?:[^()]|\([^()]*\))*\)\)|\$\(\s*([^()]*)\)|`([^`\n]*)`|\$\{\w+:?\+[^}]*\}"
)
_HERE: Final = re.compile(r"\$\(pwd\)|`pwd`|\$\{PWD\}|\$PWD\b")
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash"})
_ENGINES: Final = frozenset({"docker", "podman", "nerdctl"})
_PLAIN: Final = frozenset(
    {"sudo", "-E", "nohup", "exec", "time", "env", "command", "CMD", "ENTRYPOINT", "setsid", "tini", "dumb-init"}
    | {"uv", "run", "uvx", "python", "-m", "-u", "--", "--with", "--from"}
)
"""Words before `vllm serve` that change nothing for a profile."""
_DYNAMO: Final = "dynamo.vllm"
_MODULES: Final = frozenset(
    {"vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "vllm.entrypoints.cli.main", _DYNAMO}
)
_SCRIPT: Final = re.compile(r"(?:^|[\s/])vllm\s+serve\s|\s-m\s+vllm\.entrypoints")
"""A whole command in one word, as ssh, tmux and su are given it."""
_FILE: Final = re.compile(r"(?:v?([0-9]+(?:\.[0-9]+){2})[^/]*)?\.(?:sif|sqsh|squashfs)$")
LEFT_TO_UP: Final = "gemmaspec up starts the server itself"
_AFTER: Final = "it comes after the server; gemmaspec up returns once the server has answered"
_DEEPEST: Final = 5

_BRANCHES: Final = frozenset({"if", "case", "for", "while", "until", "select", "function", "{"})
"""Words that begin what only a shell can follow."""
_TESTS: Final = frozenset({"[", "[[", "test"})
_ALL_WORDS: Final = frozenset({"$@", "${@}", "$*", "${*}"})
_OPERATORS: Final = "();<>|&\n"
_ADOPTS: Final = "gemmaspec profile new NAME --from-running CONTAINER takes them over"
_START_SCRIPT: Final = re.compile(r"(?:.*/)?(?:[\w.-]+\.(?:sh|bash)|[\w.-]*entrypoint[\w.-]*)")


@dataclass
class Scope:
    """What a text of the shell may refer to."""

    variables: dict[str, str] = field(default_factory=dict)
    """Those that the text has set so far."""
    words: list[str] | None = None
    """`$@`: the words that the text is given; None where nobody knows them."""
    depth: int = 0
    """How many shells it is in."""

    def inner(self, script: Sequence[str]) -> Scope:
        """Return the scope of a text in `bash -c TEXT NAME WORD…`; `script` is what stands behind TEXT."""
        name = {"0": script[0]} if script else {}
        return Scope(self.variables | name, list(script[1:]), self.depth + 1)

    def deeper(self) -> Scope:
        """Return the scope of a text that another program gives to a shell, as ssh does."""
        return replace(self, depth=self.depth + 1)


def shell(made: TakenOver, text: str, scope: Scope | None = None) -> bool:
    """Take over a text of the shell, and return whether it serves.

    Raises UsageError for one that cannot be read, and for a script with branches, loops, functions or arrays before
    its server.
    """
    scope = scope or Scope()
    if scope.depth > _DEEPEST:
        raise UsageError(f"--from-command: shells within shells, more than {_DEEPEST}")
    served, before = False, [""]
    for words in _commands(made, text):
        kind = _needs_a_shell(words) or _condition(before, words)
        before = words
        if kind:
            if served:
                made.leave(f"{kind} …", _AFTER)
                return True
            raise UsageError(f"this script has {kind}, so its text does not say what it serves", hint=ADOPT)
        filled: list[str] = []
        for word in words:
            filled += _filled_words(made, word, scope)
        served = _command(made, filled, scope, served=served) or served
    return served


def serve(made: TakenOver, words: Sequence[str], scope: Scope | None = None) -> bool:
    """Take over one command: what stands before `vllm serve`, and its arguments. Return whether it serves."""
    scope = scope or Scope()
    for index, word in enumerate(words):
        name, after = word.rpartition("/")[2], list(words[index + 1 :])
        if name in _ENGINES and "run" in after[:3]:
            _before(made, words[:index])
            entrypoint, rest = docker_run(made, after[after.index("run") + 1 :])
            return arguments(made, [*entrypoint, *rest], scope)
        if name in _ENGINES and "exec" in after[:3]:
            made.contained = True
            made.leave(f"{name} exec", f"the image and the mounts of that container are not in this command; {_ADOPTS}")
        if name in ("kubectl", "oc") and "run" in after[:3] and "--" in after:
            _before(made, words[: index + 1 + after.index("--")])
            return arguments(made, after[after.index("--") + 1 :], scope)
        if name == "gcloud" and (given := next((word for word in after if word.startswith("--args=")), None)):
            _before(made, [word for word in after if word.startswith("--image=")])
            return arguments(made, given.removeprefix("--args=").split(","), scope)
        if name in _SHELLS and (script := _script(after)):
            _before(made, words[:index])
            return shell(made, script[0], scope.inner(script[1:]))
        if after[:1] == ["serve"] and (name == "vllm" or RELEASE.fullmatch(name)):
            _before(made, words[: index + 1] if name != "vllm" else words[:index])
            _serve_words(made, after[1:])
            return True
        if _SCRIPT.search(word):
            _before(made, words[:index])
            return shell(made, word, scope.deeper())
        if word in _MODULES:
            _before(made, words[:index])
            if word == _DYNAMO:
                made.decide(word, "vllm serve runs instead, without Dynamo's frontend, router and transfers")
            _serve_words(made, after[1:] if after[:1] == ["serve"] else after)
            return True
    if words[:1] == ["serve"] or (words and words[0].startswith("--model")):
        _serve_words(made, words[1:] if words[0] == "serve" else words)
        return True
    return False


def _serve_words(made: TakenOver, words: Sequence[str]) -> None:
    from_words(made, with_config(made, words))


def serves(words: Sequence[str]) -> bool:
    """Return whether the words of a process are those of a vLLM server itself, not of a shell or a launcher around it.

    The kernel puts the interpreter of a script before it, and the script's path behind that.
    """
    program = words[0].rpartition("/")[2] if words else ""
    for index, word in enumerate(words[:6]):
        if not (program.startswith("python") or index == 0 or (index == 1 and word.startswith("/"))):
            return False
        is_program = word.rpartition("/")[2] == "vllm" and list(words[index + 1 : index + 2]) == ["serve"]
        if is_program or word in _MODULES:
            return True
    return False


def arguments(made: TakenOver, words: Sequence[str], scope: Scope | None = None) -> bool:
    """Take over the words after an image, which may be a command or the arguments of its own `vllm serve`."""
    if not words or (len(words) == 1 and words[0].rpartition("/")[2] in _SHELLS):
        return False
    if serve(made, words, scope):
        return True
    rest = list(words)
    if rest[0].rpartition("/")[2] in _SHELLS and (script := _script(rest[1:])):
        if not any(_SCRIPT.search(f"{word} ") or word == "vllm" for word in script[1:]):
            return False
        message = f"`{rest[0]} -c` takes one word as its text, and here that is {no_secret(script[0])[:40]!r} alone"
        raise UsageError(message, hint='command: ["pip install … && vllm serve …"]    # a list of one text')
    if rest[0].rpartition("/")[2] in _SHELLS:
        rest.pop(0)
    if _START_SCRIPT.fullmatch(rest[0]):
        script = rest.pop(0)
        _start_script(made, script)
        if not rest:
            raise UsageError(f"what is served stands in {script}, which is not read", hint=ADOPT)
    _serve_words(made, rest[1:] if rest[0] == "--" else rest)
    return True


def _start_script(made: TakenOver, script: str) -> None:
    made.leave(script, f"a start script, whose further steps are not here; {_ADOPTS}")


def _script(words: Sequence[str]) -> Sequence[str]:
    """Return the text after `-c`, as in `bash -lc TEXT`, and the words behind it; nothing if there is none."""
    for index, word in enumerate(words[:4]):
        if re.fullmatch(r"-[a-z]*c", word):
            return words[index + 1 :]
        if not word.startswith("-"):
            return ()
    return ()


def _command(made: TakenOver, words: list[str], scope: Scope, *, served: bool) -> bool:
    """Take over one simple command of a text, and return whether it serves."""
    names = []
    while words and (assigned := _ASSIGNED.fullmatch(words[0])):
        names.append((assigned[1], assigned[2]))
        words = words[1:]
    scope.variables |= dict(names)
    if not words:
        return False
    if words[0] in ("export", "declare", "setenv"):
        _export(made, words[1:], scope.variables)
        return False
    if words[0] == "unset":
        for name in words[1:]:
            scope.variables.pop(name, None)
        return False
    if words[:2] == ["set", "--"]:
        scope.words = words[2:]
        return False
    if words[0] == "shift" and scope.words is not None:
        scope.words = scope.words[int(words[1]) if words[1:2] and words[1].isdecimal() else 1 :]
        return False
    if served:
        _after_the_server(made, words)
        return False
    before = len(made.left)
    for name, value in names:
        variable(made, name, value)
    if any(map(_is_pip, words[:4])):
        installed(made, words)
        return False
    if serve(made, words, scope):
        return True
    if made.contained and len(made.left) == before and words[0].rpartition("/")[2] in (*_ENGINES, "sudo"):
        return False  # a container with a shell, in which the next line serves
    if not changes_files(made, words):
        made.leave(short(words), LEFT_TO_UP)
    return False


def _after_the_server(made: TakenOver, words: Sequence[str]) -> None:
    """Name a command that comes after the server."""
    if words[0].startswith("--"):
        made.leave(no_secret(" ".join(words)), "the line before it lacks a backslash at its end, so vLLM never got it")
    elif "serve" in words[:8]:
        made.leave(short(words), "a second server; a profile is one: make another profile from it")
    else:
        made.leave(short(words), _AFTER)


def _export(made: TakenOver, words: Sequence[str], variables: dict[str, str]) -> None:
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            variables[name] = value
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            variable(made, name, variables.get(name))


def _before(made: TakenOver, words: Sequence[str]) -> None:
    """Take over what stands before the server: variables, an image, a release; what is left is named."""
    rest, launcher = list(words), words[0].rpartition("/")[2] if words else ""
    enters_a_container = launcher in _ENGINES and "exec" in words[:3]
    unknown: list[str] = []

    def value_of(word: str) -> str:
        """Return the value of an option: after its =, or the next word, which is then taken too."""
        _, equals, value = word.partition("=")
        if equals:
            return value
        if rest:
            return rest.pop(0)
        return ""

    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in ("-e", "--env", "--export"):
            for pair in value_of(word).split(","):
                key, given, text = pair.partition("=")
                if given:
                    variable(made, key, None if text.startswith("$") else text)
        elif release := RELEASE.fullmatch(asked := value if name in ("--with", "--from") else word):
            made.release = release[1]
        elif (package := PACKAGE.fullmatch(asked)) and BOUNDED.fullmatch(package[2] or ""):
            made.content.setdefault("runtime", {}).setdefault("packages", {})[package[1]] = package[2]
        elif assigned := _ASSIGNED.fullmatch(word):
            variable(made, assigned[1], assigned[2])
        elif "docker://" in word and not equals:
            _image(made, word)
        elif name in ("--container-image", "--image") or (name == "-t" and "launch" in launcher) or "docker://" in word:
            _image(made, value_of(word))
        elif _FILE.search(word):
            _image(made, word)
        elif name in ("--container-mounts", "-v", "--volume", "--bind", "-B"):
            for pair in value_of(word).split(","):
                volume(made, pair)
        elif _START_SCRIPT.fullmatch(word):
            _start_script(made, word)
        elif word.rpartition("/")[2] not in _PLAIN and not re.fullmatch(r"python[0-9.]*", word.rpartition("/")[2]):
            unknown += [name] if name.startswith("-") or not unknown else []
    if launcher == "ssh":
        made.leave(" ".join(words[:2]), "gemmaspec serves where it is typed: type it there, or use a docker context")
    elif unknown and not enters_a_container:
        made.leave(" ".join(unknown), LEFT_TO_UP)


def _image(made: TakenOver, text: str) -> None:
    """Take over an image; a file of one has at most its release in its name."""
    made.contained = True
    if file := _FILE.search(text):
        made.release = file[1] or made.release
        made.leave(f"image {text}", "a file; write the image that it was made from")
    else:
        made.content["image"] = image_name(text)


def _is_pip(word: str) -> bool:
    return word.endswith("/pip") or re.fullmatch(r"pip[0-9.]*", word) is not None


def _is_array(word: str) -> bool:
    """Return whether a word sets an array or reads an item of one."""
    return re.fullmatch(r"\w+\+?=\(", word) is not None or re.search(r"\$\{\w+\[", word) is not None


def _needs_a_shell(words: Sequence[str]) -> str:
    """Return what in a command only a shell can follow; empty for a simple command."""
    if words[0] in _BRANCHES or words[0].endswith("()"):
        if words[0] in ("{", "function") or words[0].endswith("()"):
            return "a function"
        return f"`{words[0]}`"
    if any(map(_is_array, words)):
        return "an array"
    if "<<" in words:
        return "a text of its own (<<)"
    return ""


def _condition(before: Sequence[str], words: Sequence[str]) -> str:
    """Return the test on which a variable's value depends, as in `[ "$1" ] && MODEL=x`; empty where there is none."""
    sets = words[0] in ("export", "declare") or (len(words) == 1 and _ASSIGNED.fullmatch(words[0]) is not None)
    if sets and before[0] in _TESTS:
        return f"`{before[0]}`"
    return ""


def _commands(made: TakenOver, text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command. Raises UsageError for quotes that do not close.

    `NAME=(`, `NAME()` and `<<` stay in the words, because only a shell can go on from there.
    """
    text = _expanded(text)
    kept = _REDIRECTED.sub(lambda match: match[1] or " ", text)
    if kept != text:
        made.leave("redirections", "`gemmaspec logs` reads the log")
    lexer = shlex.shlex(kept, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if not word or set(word) - set(_OPERATORS):
                words.append(word)
            elif word.startswith("<<") or (words and word.startswith("(") and words[-1].endswith("=")):
                yield [*words[:-1], f"{words[-1]}("] if words and word.startswith("(") else [*words, "<<"]
                words = []
            elif word.startswith("()") and len(words) == 1:
                yield [f"{words[0]}()"]
                words = []
            else:
                if words:
                    yield words
                words = []
    except ValueError as error:
        raise UsageError(f"--from-command: {error}: check its quotes") from None
    if words:
        yield words


def _expanded(text: str) -> str:
    """Return a text with lines joined and without comments; what a command prints gets a name."""
    text = re.sub(r"^\s*\$\s+", "", _PIECE.sub(_piece, text), flags=re.MULTILINE)
    text, more = _HERE.sub(".", text), True
    while more:
        before = text
        text = _BUILT.sub(_built, text)
        more = text != before
    return text


def _piece(match: re.Match[str]) -> str:
    if match["quoted"]:
        return match[0]
    if match["double"]:
        return re.sub(r"\\\r?\n", " ", match[0])
    if match["joined"]:
        return " "
    return ""


def _built(match: re.Match[str]) -> str:
    """Return a name for what a command prints, which nobody knows here."""
    if match[1]:
        return match[1]
    if match[0].startswith("$(("):
        return f"${OUTPUT}arithmetic"
    words = (match[2] or match[3] or "").split()
    if len(words) == 1 and re.fullmatch(r"[A-Z][A-Z0-9_]*", words[0]):
        return f"${{{words[0]}}}"  # a variable in a manifest of Kubernetes
    if words:
        return f"${OUTPUT}{re.sub(r'[^A-Za-z0-9]', '_', words[0].rpartition('/')[2])}"
    return ""


def _filled_words(made: TakenOver, word: str, scope: Scope) -> list[str]:
    """Return a word with its variables filled in; `$@`, and options that one variable holds, are words of their own."""
    if word in _ALL_WORDS:
        if scope.words is None:
            made.leave(word, "the words that the script is given, which its text does not hold; add them")
        return scope.words or []
    variables = scope.variables
    if scope.words is not None:
        variables = variables | {str(number): one for number, one in enumerate(scope.words, start=1)}
    filled = _filled(word, variables)
    if (filled.startswith("-") or _SCRIPT.search(filled)) and " " in filled and _VARIABLE.fullmatch(word):
        try:
            return shlex.split(filled)
        except ValueError:
            return [filled]
    if filled or not _VARIABLE.fullmatch(word):
        return [filled]
    return []


def _filled(word: str, variables: dict[str, str]) -> str:
    """Return a word with the variables that the text sets, and the defaults of others."""

    def of(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name == "HOME" and not match.start():
            return "~"
        return variables.get(name, match[0] if match[3] is None else match[3])

    return _VARIABLE.sub(of, word)
