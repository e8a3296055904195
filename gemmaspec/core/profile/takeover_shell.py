"""A command line as keys of a profile: shells, launchers and containers around `vllm serve`. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.fields import secret_name
from gemmaspec.core.profile.meant import OTHER_SERVER, foreign_file
from gemmaspec.core.profile.takeover import OUTPUT, TakenOver, from_words, variable
from gemmaspec.core.profile.takeover_docker import docker_run, image_name, volume

_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*|[0-9@*])|\{([A-Za-z_]\w*|[0-9@*])(?::?-([^}]*)|:?\?[^}]*)?\})")
_PIECE: Final = re.compile(
    r"""(?P<quoted>'[^']*')|(?P<double>"(?:\\.|[^"\\])*")|`\#[^`\n]*`|^[ \t]*\#[^\n]*(?:\n|\Z)|(?<=\s)\#[^\n]*"""
    r"""|(?P<joined>\\[ \t]*(?:\r?\n|\Z)|(?<=\s)[`^][ \t]*\r?\n)"""
    r"""|(?P<unit>^[ \t]*(?:Exec\w+=-?|(?P<set>Environment)=))""",
    re.MULTILINE | re.DOTALL,
)
"""What is read before words: quotes as they are, comments, lines that go on, and the keys of a systemd unit."""
_ARRAY: Final = re.compile(r"^[ \t]*(?:local |declare -a )?(\w+)(\+?)=\(([^()]*)\)", re.MULTILINE)
_PYTHON: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1(?P<rest>[^\n]*)\n.*?^\2\s*$", re.MULTILINE | re.DOTALL)
_COMMAS: Final = re.compile(r"[^\s,]+(?:,[^\s,]+)*,--[^\s,]+(?:,\S+)?")
_LIST: Final = re.compile(r"\s*(?:CMD|ENTRYPOINT|command:|args:)?\s*(\[.*\])\s*", re.DOTALL)
_REDIRECTED: Final = re.compile(
    r"('[^']*'|\"(?:\\.|[^\"\\])*\")|(?:(?<=\s)[0-9]|&)?>>?(?:&[0-9-]|\s*[^\s;|&\n]+)|<\s*[^\s;|&<\n]+"
)
_BUILT: Final = re.compile(
    r"('[^']*')|\$\(\((?:[^()]|\([^()]*\))*\)\)|\$\(\s*([^()]*)\)|`([^`\n]*)`|\$\{\w+:?\+[^}]*\}"
)
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
_DYNAMO: Final = "dynamo.vllm"
_MODULES: Final = frozenset(
    {"vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "vllm.entrypoints.cli.main", _DYNAMO}
)
_SCRIPT: Final = re.compile(r"(?:^|[\s/])vllm\s+serve\s|\s-m\s+vllm\.entrypoints")
"""A whole command in one word, as ssh, tmux and su are given it."""
_FILE: Final = re.compile(r"(?:v?([0-9]+(?:\.[0-9]+){2})[^/]*)?\.(?:sif|sqsh|squashfs)$")
_OF_PIP: Final = re.compile(r"-r|-c|-i|-f|-t|--(?:requirement|constraint|index-url|extra-index-url|find-links|target)")
_LEFT_TO_UP: Final = "gemmaspec up starts the server itself"
_IN_IMAGE: Final = "runtime: {packages: {NAME: '>=5.8,<5.20'}} installs a package once and bounded"
_DEEPEST: Final = 5
_LONGEST: Final = 100_000
_COMPOSE: Final = "gemmaspec profile new mine --from-compose compose.yaml"
_EXAMPLE: Final = "gemmaspec profile new mine --from-command 'vllm serve google/gemma-4-31B-it --max-model-len 32768'"


def from_command(text: str) -> TakenOver:
    """Return what a command line says. Raises UsageError for one that does not serve a model with vLLM."""
    if len(text) > _LONGEST:
        raise UsageError(f"--from-command: longer than {_LONGEST:,} characters")
    if "vllm" not in text.lower() and (other := OTHER_SERVER.search(text.lower())):
        model = re.search(r"[\w.-]+/gemma-4-(?:(?!gguf)[\w.-])+(?![\w.-])", text, re.IGNORECASE)
        hint = f"gemmaspec profile new mine --from-command 'vllm serve {model[0]}'" if model else _EXAMPLE
        raise UsageError(f"this is a command of {other[0]}, and gemmaspec serves with vLLM", hint=hint)
    made = TakenOver()
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
        part = "; give the words of `vllm serve` or `docker run` alone" if "vllm" in text else ""
        hint = _COMPOSE if "compose" in text else "gemmaspec bench PROFILE" if "vllm bench" in text else _EXAMPLE
        raise UsageError(
            f"this is not a command that serves with vLLM: {_no_secret(text.strip())[:80]!r}{part}",
            hint=hint,
        )
    ending = f": {_LEFT_TO_UP}"
    if around := [line.removesuffix(ending) for line in made.left if line.endswith(ending)]:
        made.left = [line for line in made.left if not line.endswith(ending)]
        made.leave(", ".join(dict.fromkeys(around)), _LEFT_TO_UP)
    return made


def _list_word(text: str) -> str:
    return next(iter(_json_words(f"[{text}]")), text) if text.startswith('"') else text.strip("'")


def _json_words(text: str) -> list[str]:
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [str(item) for item in items] if all(isinstance(item, str | int | float) for item in items) else []


def shell(made: TakenOver, text: str, *, set_: dict[str, str] | None = None, depth: int = 0) -> bool:
    """Take over a text of the shell, and return whether it serves. Raises UsageError for one that cannot be read."""
    if depth > _DEEPEST:
        raise UsageError(f"--from-command: shells within shells, more than {_DEEPEST}")
    served, variables = False, {} if set_ is None else set_
    for words in _commands(made, text):
        filled = [one for word in words for one in _filled_words(word, variables)]
        served = _command(made, filled, variables, served=served, depth=depth) or served
    return served


def serve(made: TakenOver, words: Sequence[str], variables: dict[str, str] | None = None, depth: int = 0) -> bool:
    """Take over one command: what stands before `vllm serve`, and its arguments. Return whether it serves."""
    for index, word in enumerate(words):
        name, after = word.rpartition("/")[2], list(words[index + 1 :])
        if name in _ENGINES and "run" in after[:3]:
            _before(made, words[:index])
            return _docker(made, after[after.index("run") + 1 :], variables, depth)
        if name in _ENGINES and "exec" in after[:3]:
            made.contained = True
            made.leave(f"{name} exec", "image: names the image of that container, which docker inspect prints")
        if name in ("kubectl", "oc") and "run" in after[:3] and "--" in after:
            _before(made, words[: index + 1 + after.index("--")])
            return arguments(made, after[after.index("--") + 1 :], variables, depth)
        if name == "gcloud" and (given := next((word for word in after if word.startswith("--args=")), None)):
            _before(made, [word for word in after if word.startswith("--image=")])
            return arguments(made, given.removeprefix("--args=").split(","), variables, depth)
        if name in _SHELLS and (inner := _script(after)) is not None:
            _before(made, words[:index])
            return shell(made, inner, set_=variables, depth=depth + 1)
        if after[:1] == ["serve"] and (name == "vllm" or _RELEASE.fullmatch(name)):
            _before(made, words[: index + 1] if name != "vllm" else words[:index])
            from_words(made, after[1:])
            return True
        if _SCRIPT.search(word):
            _before(made, words[:index])
            return shell(made, word, set_=variables, depth=depth + 1)
        if word in _MODULES:
            _before(made, words[:index])
            if word == _DYNAMO:
                made.decide(word, "vllm serve runs instead, without Dynamo's frontend, router and transfers")
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
    while words and (assigned := _ASSIGNED.fullmatch(words[0])):
        names.append((assigned[1], assigned[2]))
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
    if words[0] == "alias" and len(words) == 2:
        return shell(made, words[1].partition("=")[2], set_=variables, depth=depth + 1)
    if served and words[0].startswith("--"):
        made.leave(_no_secret(" ".join(words)), "the line before it lacks a backslash at its end, so vLLM never got it")
        return False
    if served and "serve" in words[:8]:
        made.leave(_short(words), "a second server; a profile is one: make another profile from it")
        return False
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
    rest = list(words[words.index("install") + 1 :])
    while rest:
        word = rest.pop(0)
        package = _PACKAGE.fullmatch(word)
        if release := _RELEASE.fullmatch(word):
            made.release = release[1]
        elif _OF_PIP.fullmatch(word):
            made.leave(f"pip install {word} {_no_secret(rest.pop(0)) if rest else ''}".rstrip(), _IN_IMAGE)
        elif word.startswith("-") or word in ("pip", "wheel", "setuptools", "uv"):
            continue  # how pip installs
        elif package and _BOUNDED.fullmatch(package[2] or ""):
            made.content.setdefault("runtime", {}).setdefault("packages", {})[package[1]] = package[2]
        elif package and package[1] == "vllm":
            made.leave(f"pip install {_no_secret(word)}", "image names the release of vLLM that runs")
        else:
            made.leave(f"pip install {_no_secret(word)}", _IN_IMAGE)


def _before(made: TakenOver, words: Sequence[str]) -> None:
    """Take over what stands before the server: variables, an image, a release; what is left is named."""
    rest, launcher = list(words), words[0].rpartition("/")[2] if words else ""
    unknown: list[str] = []
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in ("-e", "--env", "--export"):
            for pair in (value if equals else rest.pop(0) if rest else "").split(","):
                key, given, text = pair.partition("=")
                if given:
                    variable(made, key, None if text.startswith("$") else text)
        elif release := _RELEASE.fullmatch(asked := value if name in ("--with", "--from") else word):
            made.release = release[1]
        elif (package := _PACKAGE.fullmatch(asked)) and _BOUNDED.fullmatch(package[2] or ""):
            made.content.setdefault("runtime", {}).setdefault("packages", {})[package[1]] = package[2]
        elif assigned := _ASSIGNED.fullmatch(word):
            variable(made, assigned[1], assigned[2])
        elif name in ("--container-image", "--image") or (name == "-t" and "launch" in launcher) or "docker://" in word:
            _image(
                made, word if "docker://" in word and not equals else value if equals else rest.pop(0) if rest else ""
            )
        elif _FILE.search(word):
            _image(made, word)
        elif name in ("--container-mounts", "-v", "--volume", "--bind", "-B"):
            for pair in (value if equals else rest.pop(0) if rest else "").split(","):
                volume(made, pair)
        elif word.rpartition("/")[2] not in _PLAIN and not re.fullmatch(r"python[0-9.]*", word.rpartition("/")[2]):
            unknown += [name] if name.startswith("-") or not unknown else []
    if unknown:
        made.leave(" ".join(unknown), _LEFT_TO_UP)


def _image(made: TakenOver, text: str) -> None:
    """Take over an image; a file of one has at most its release in its name."""
    made.contained = True
    if file := _FILE.search(text):
        made.release = file[1] or made.release
        made.leave(f"image {text}", "a file; write the image that it was made from")
    else:
        made.content["image"] = image_name(text)


def _commands(made: TakenOver, text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command. Raises UsageError for quotes that do not close."""
    text = _expanded(text)
    kept = _REDIRECTED.sub(lambda match: match[1] or " ", text)
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


def _expanded(text: str) -> str:
    """Return a text with lines joined and arrays filled in, without comments; what a command prints gets a name."""
    text = _PYTHON.sub(lambda match: match["rest"] if "python" in _line_before(text, match.start()) else match[0], text)
    text = re.sub(r"^\s*\$\s+", "", _PIECE.sub(_piece, text), flags=re.MULTILINE)
    arrays: dict[str, str] = {}
    for array in _ARRAY.finditer(text):
        arrays[array[1]] = f"{arrays.get(array[1], '') if array[2] else ''} {' '.join(array[3].split(chr(10)))}"
    text = _ARRAY.sub("", text)
    text = re.sub(r'"?\$\{(\w+)\[[@*]\]\}"?', lambda match: arrays.get(match[1], match[0]), text)
    text, more = _HERE.sub(".", text), True
    while more:
        before = text
        text = _BUILT.sub(_built, text)
        more = text != before
    return text


def _line_before(text: str, place: int) -> str:
    return text[text.rfind("\n", 0, place) + 1 : place]


def _piece(match: re.Match[str]) -> str:
    if match["quoted"]:
        return match[0]
    if match["double"]:
        return re.sub(r"\\\r?\n", " ", match[0])
    return "export " if match["set"] else " " if match["joined"] else ""


def _built(match: re.Match[str]) -> str:
    """Return a name for what a command prints, which nobody knows here."""
    if match[1]:
        return match[1]
    if match[0].startswith("$(("):
        return f"${OUTPUT}arithmetic"
    words = (match[2] or match[3] or "").split()
    if len(words) == 1 and re.fullmatch(r"[A-Z][A-Z0-9_]*", words[0]):
        return f"${{{words[0]}}}"  # a variable in a manifest of Kubernetes
    return f"${OUTPUT}{re.sub(r'[^A-Za-z0-9]', '_', words[0].rpartition('/')[2])}" if words else ""


def _filled_words(word: str, variables: dict[str, str]) -> list[str]:
    """Return a word with its variables filled in; options that one variable holds are words of their own."""
    filled = _filled(word, variables)
    if (filled.startswith("-") or _SCRIPT.search(filled)) and " " in filled and _VARIABLE.fullmatch(word):
        try:
            return shlex.split(filled)
        except ValueError:
            return [filled]
    return [filled] if filled or not _VARIABLE.fullmatch(word) else []


def _filled(word: str, variables: dict[str, str]) -> str:
    """Return a word with the variables that the text sets, and the defaults of others."""

    def of(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name == "HOME" and not match.start():
            return "~"
        return variables.get(name, match[0] if match[3] is None else match[3])

    return _VARIABLE.sub(of, word)


def _short(words: Sequence[str]) -> str:
    """Return a command as one short text, without secrets."""
    shown = " ".join(words[:2]) if re.fullmatch("[a-z-]+", " ".join(words[1:2])) else words[0]
    return f"{_no_secret(shown)} …" if len(words) > 2 else _no_secret(shown)


def _no_secret(text: str) -> str:
    """Return a text without what may be a secret: values of such names, and passwords in addresses."""
    text = re.sub(r"(?:hf_|sk-|ghp_)[A-Za-z0-9_-]+", "…", re.sub(r"//[^/@\s]+@", "//…@", text))
    return re.sub(r"([\w-]+)[= ](\S+)", lambda match: f"{match[1]}=…" if secret_name(match[1]) else match[0], text)
