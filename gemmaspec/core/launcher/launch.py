"""Start `vllm serve` with patches: mirror the installed package, patch the mirror, report it, then become the server.

    python3 launch.py --plan FILE --run-dir DIR --cache-dir DIR [--speculative-config FILE] [--expect-plan SHA256]
                      -- vllm serve …

The launcher never writes to vLLM's own files. It locates every hunk of the plan in them by content. It writes the
patched files into DIR/overlay, a mirror of symlinks that comes first on PYTHONPATH, and its decisions into
DIR/report.json. It imports nothing of vLLM and uses only the standard library of Python 3.10, because this file is
copied into stacks and containers. The host imports the half that decides. Its neighbours are origins.py, which asks the
server's own interpreter whether it would import the patched files, attest.py, by which every process of the server then
attests its patched functions, and with --nnodes rank_facts.py, which reports what a rank runs.

Exit codes: 1 a bug · 2 invalid plan or usage · 4 something needed is missing · 5 a required patch does not fit, or
another plan was expected · 6 already running · 130 interrupted. Otherwise the process becomes the server.
To read it as a story, start at `launch`.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import itertools
import json
import operator
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
Read = Callable[[str], "bytes | None"]  # "vllm/….py" -> its bytes; None if the file is missing

MARKER = ".gemmaspec-overlay"  # this file distinguishes an overlay from an installed package
PLAN_LIMIT = 16 * 1024 * 1024  # bytes
FILE_LIMIT = 4 * 1024 * 1024  # bytes; more than twice vLLM's largest Python file
LEFT_OUT = "left-out"  # the state of a speed patch without which the server starts
FITS = ("applies", "drifted", "applied", "superseded", "not-needed", LEFT_OUT)
SIGNS = {"<": operator.lt, "<=": operator.le, "==": operator.eq}
SIGNS |= {"!=": operator.ne, ">": operator.gt, ">=": operator.ge}
NUMBER = r"\d{1,9}(?:\.\d{1,9})*"
BOUND = re.compile(rf"(>=|<=|==|!=|>|<)({NUMBER})")
UNFINISHED = re.compile(rf"{NUMBER}\.?(?:dev|rc|a|b)\d*")  # a build made before the release of the same number
RELEASE = re.compile(rf"{NUMBER}(?:\.post\d+)?(?:\+(?:cpu|cu\d+|rocm[\d.]*|xpu|tpu))?")
DIGEST = re.compile("[0-9a-f]{64}")
PROJECT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
TREE = re.compile("[0-9a-f]{16}")
MARKS = re.compile("(?:[0-9a-f]{8})*")
WORD = re.compile(
    r"""[A-Za-z]{0,2}(?:'''(?:.*?'''|.*)|\"\"\"(?:.*?\"\"\"|.*)|'(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?)"""
    r"""|\#.*|\w+|[-+*/%&|^@=!<>:]=|\*\*=?|//=?|<<=?|>>=?|->|\.\.\.|[^\w\s]"""
)
EDGE = "0" * 8  # the mark of the edge of a function or file
# What ast.parse, compile, decoding and tokenize raise for a file that is not valid Python.
UNREADABLE = (SyntaxError, ValueError, LookupError, RecursionError, MemoryError, tokenize.TokenError)
SECRETS = ("--api-key", "--hf-token")
RANK_FACTS = "rank_facts.py"  # beside this file: what a rank on several machines reports besides
ORIGINS = "origins.py"  # beside this file: where the server would import the patched modules from
# Beside this file: what answers origins.py, what runs inside vLLM, and what runs probes.
ATTEST = ("asked.py", "attest.py", "attest_code.py", "attest_site.py", "attest_sum.py", "judge.py")
JUDGE = "judge.py"  # beside this file: what runs a patch's probe on the installed vLLM


class LaunchError(Exception):
    """An error that ends the start: the lines to log and the exit code."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__(*lines[:1])
        self.code = code
        self.lines = lines


# The plan: the fields of the classes are the keys of its JSON


@dataclass(frozen=True)
class Requirement:
    """A distribution that some vLLM releases need in their Python environment."""

    name: str
    specifier: str
    vllm: str

    def __post_init__(self) -> None:
        check(PROJECT.fullmatch(self.name), f"{self.name!r} is not a distribution name")
        check_specifier(self.specifier)
        check_specifier(self.vllm)


@dataclass(frozen=True)
class Hunk:
    """Lines to find in a scope, and the lines that replace them.

    `scope` is the qualified name of a function or class, or "" for the whole file. It ends in __doc__ for a hunk that
    begins inside a string; all other hunks match code only.
    """

    scope: str
    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]

    def __post_init__(self) -> None:
        check(self.old and self.new and self.old != self.new, "the old and new lines must not be empty and must differ")
        check(not re.search("[\r\n\0]", "".join(self.old + self.new)), "a line contains a line break or NUL")

    @property
    def function(self) -> str:
        """The qualified name in the scope, without __doc__."""
        return re.sub(r"(^|\.)__doc__$", "", self.scope)

    @property
    def in_string(self) -> bool:
        return self.function != self.scope

    @property
    def takes_away(self) -> bool:
        """Whether the patch removes old lines: where they are, the bug is. If not, they are only context."""
        return any(line not in self.new for line in self.old)

    @property
    def added(self) -> tuple[str, ...]:
        return tuple(line for line in self.new if line not in self.old)


@dataclass(frozen=True)
class Surroundings:
    """The context of a hunk in a release: a mark of 8 hex digits per line of code, the nearest line first.

    The context in a function is the whole function; in a whole file it is a few lines. `again` counts how many of the
    lines above and below occur, in this order, elsewhere in the scope too. `function` and `patched` are digests of the
    function's syntax tree, before and after; "" for the whole file.
    """

    above: str
    below: str
    again: tuple[int, ...]
    function: str = ""
    patched: str = ""
    inside: str = ""
    """In a function, the lines that the blocks around the hunk begin with, the innermost first; "" if not recorded."""
    head: bool = False
    """Whether the hunk is the first code of its function, so that the line above is the function's own."""

    def __post_init__(self) -> None:
        check(MARKS.fullmatch(self.above) and MARKS.fullmatch(self.below), "above or below is not a row of marks")
        check(len(self.again) == 2, "again is not two numbers")


@dataclass(frozen=True)
class Known:
    """A file in some releases: its sha256, the line of each hunk, and the sha256 after ("" if they do not apply)."""

    vllm: tuple[str, ...]
    before: str
    lines: tuple[int, ...]
    after: str
    places: tuple[Surroundings, ...] = ()

    def __post_init__(self) -> None:
        check(len(self.places) in (0, len(self.lines)), "there must be one known place per known line")
        digests = (self.before, self.after) if self.after else (self.before,)
        check(all(DIGEST.fullmatch(digest) for digest in digests), "before or after is not a sha256")
        check(all(line > 0 for line in self.lines), "lines are counted from 1")


@dataclass(frozen=True)
class FileEdit:
    """All hunks of one file, and the file's digests in the releases on which the edit was tested."""

    path: str
    hunks: tuple[Hunk, ...]
    known: tuple[Known, ...] = ()

    def __post_init__(self) -> None:
        check_path(self.path)
        check(self.hunks, "there are no hunks")
        counts = {len(entry.lines) for entry in self.known if entry.after}
        check(counts <= {len(self.hunks)}, "there must be one known line per hunk")


@dataclass(frozen=True)
class Variant:
    """The edits that fit one range of vLLM releases."""

    name: str
    specifier: str
    files: tuple[FileEdit, ...]

    def __post_init__(self) -> None:
        check_specifier(self.specifier)
        paths = {edit.path for edit in self.files}
        check(paths and len(paths) == len(self.files), "files is empty or lists a file twice")


@dataclass(frozen=True)
class Rule:
    """The digest of a reviewed function or class in a release that fixed the bug; all rules of a release must hold."""

    path: str
    scope: str
    release: str
    tree: str

    def __post_init__(self) -> None:
        check_path(self.path)
        check(self.scope, "scope is empty: a rule is about a function or class")
        check(TREE.fullmatch(self.tree) and self.release, "tree is not a digest, or has no release")


@dataclass(frozen=True)
class ProbeFile:
    """A module that a probe imports by its name."""

    name: str
    text: str

    def __post_init__(self) -> None:
        check(re.fullmatch(r"[a-z0-9_]{1,60}\.py", self.name) and self.name != "probe.py", "not the name of a module")


@dataclass(frozen=True)
class Measured:
    """A release on which a speed patch was shown to pay, and the GPU's compute capability; "" for the profile's own.

    `place`: for one that was measured on the spot, what `place` returned there; elsewhere it does not count.
    """

    vllm: str
    capability: str = ""
    place: str = ""


@dataclass(frozen=True)
class Patch:
    """One patch, its variants from the oldest range to the newest; `where` is empty for one that the profile names.

    A `speed` patch only makes vLLM faster: it is left out wherever it does not certainly fit, and comes after those of
    defects, so that nothing of those depends on it.
    """

    id: str
    title: str
    required: bool
    runner: str
    superseded: tuple[Rule, ...]
    variants: tuple[Variant, ...]
    purpose: str = "defect"
    needs: tuple[str, ...] = ()
    where: tuple[Measured, ...] = ()
    probe: str = ""
    """The text of its probe.py, which says whether the bug is there; "" for none that may decide."""
    beside: tuple[ProbeFile, ...] = ()
    """Modules that the probe imports."""

    def __post_init__(self) -> None:
        check(self.purpose in ("defect", "speed"), f"purpose {self.purpose!r} is not defect or speed")
        check(self.purpose == "defect" or not self.required, "a speed patch cannot be required")
        check(self.runner in ("any", "v1", "v2"), f"runner {self.runner!r} is not any, v1 or v2")
        check(self.variants, "there are no variants")


@dataclass(frozen=True)
class Plan:
    schema: int
    profile: str
    gemmaspec: str
    requires: tuple[Requirement, ...]
    patches: tuple[Patch, ...]
    sha256: str
    drift: str = "warn"

    def __post_init__(self) -> None:
        check(self.drift in ("warn", "refuse"), f"drift {self.drift!r} is not warn or refuse")
        check(len({patch.id for patch in self.patches}) == len(self.patches), "a patch is listed twice")
        purposes = [patch.purpose for patch in self.patches]
        check(purposes == sorted(purposes), "patches for speed must come after those of defects")


def load_plan(path: Path) -> Plan:
    """Read and check a plan file. Raise LaunchError(2) if gemmaspec did not write it."""
    try:
        data = read_plain(path, PLAN_LIMIT + 1)
        check(len(data) <= PLAN_LIMIT, f"larger than {PLAN_LIMIT} bytes")
        return parse_plan(json.loads(data))
    except OSError as error:
        raise LaunchError(2, f"cannot read the plan {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LaunchError(2, f"the plan {path} is invalid: {error}") from None


def read_plain(path: Path, limit: int) -> bytes:
    """Return the beginning of a file. Raise ValueError for a FIFO or device, which could keep a start waiting."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        check(stat.S_ISREG(os.fstat(file.fileno()).st_mode), "not a regular file")
        return file.read(limit)


def parse_plan(data: Any) -> Plan:
    """Return decoded JSON as a Plan. Raise ValueError for the first problem."""
    check(isinstance(data, dict) and data.get("schema") == 1, "not a plan of schema 1")
    check(data.get("sha256") == plan_digest(data), "its sha256 does not match; it was changed after it was rendered")
    plan: Plan = build(Plan, data, "plan")
    return plan


def plan_digest(plan: Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical JSON of everything but "sha256"; ValueError for what JSON cannot hold."""
    rest = {key: value for key, value in plan.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


type_hints = functools.cache(get_type_hints)  # a plan holds hundreds of the same few classes


def build(kind: Any, data: Any, where: str) -> Any:
    """Return decoded JSON as one of the classes above. Raise ValueError with the path of a value of another type."""
    if get_origin(kind) is tuple:
        members = build(list, data, where)
        return tuple(build(get_args(kind)[0], item, f"{where}[{index}]") for index, item in enumerate(members))
    if not is_dataclass(kind):
        check(type(data) is kind, f"{where} is missing or not of type {kind.__name__}")
        return data
    check(isinstance(data, dict), f"{where} is missing or not an object")
    wanted = {field.name for field in fields(kind) if field.default is MISSING or field.name in data}
    hints = {key: hint for key, hint in type_hints(kind).items() if key in wanted}  # type: ignore[arg-type]
    values = {key: build(hint, data.get(key), f"{where}.{key}") for key, hint in hints.items()}
    try:
        return kind(**values)  # type: ignore[operator]  # is_dataclass() narrows to an instance
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def check(condition: object, message: str) -> None:
    if not condition:
        raise ValueError(message)


def check_path(path: str) -> None:
    """Raise ValueError unless the path is that of a .py file in vllm/ and cannot leave that folder."""
    parts = path.split("/")
    plain = path.isprintable() and "\\" not in path and not {"", ".", ".."} & set(parts)
    inside = parts[0] == "vllm" and parts[1:] and path.endswith(".py")
    check(plain and inside, f"{path!r} is not the path of a .py file in vllm/")


def check_specifier(text: str) -> None:
    """Raise ValueError unless the text is a comma-separated list of comparisons with release numbers."""
    check(all(BOUND.fullmatch(part) for part in text.split(",")), f"specifier {text!r} is not like >=1.2,<2")


# Versions


@lru_cache(maxsize=4096)
def contains(specifier: str, version: str) -> bool:
    """Return whether a version is in a specifier's range; only its release number counts (5.5.0rc1 as 5.5.0)."""
    number = re.match(NUMBER, version)
    bounds = BOUND.findall(specifier)
    return number is not None and all(SIGNS[sign](release(number[0]), release(bound)) for sign, bound in bounds)


def release(number: str) -> tuple[int, ...]:
    """Return a release number as a tuple to compare; 0.33 and 0.33.0 are equal."""
    return tuple(int(part) for part in re.sub(r"(\.0+)+$", "", number).split("."))


def candidates(patch: Patch, version: str) -> tuple[Variant, ...]:
    """Return the variants to try: at most one for a published release, all for any other build (rc, dev, unknown)."""
    if not RELEASE.fullmatch(version):
        return patch.variants
    return tuple(variant for variant in patch.variants if contains(variant.specifier, version))[:1]


def out_of_range(patch: Patch, version: str) -> str:
    """Return why the number of an unreleased build is outside the patch's ranges; "" if it may be inside."""
    number = re.match(NUMBER, version)
    if not number:
        return ""
    at = release(number[0])
    unfinished = UNFINISHED.match(version) is not None
    low = next((bound for sign, bound in BOUND.findall(patch.variants[0].specifier) if sign == ">="), "0")
    high = next((bound for sign, bound in BOUND.findall(patch.variants[-1].specifier) if sign == "<"), "")
    if high and (release(high) < at or (release(high) == at and not unfinished)):
        return f"the patch is for releases before {high}"
    if at < release(low):
        return f"the patch is for releases from {low} on"
    return ""


# Reading code


class Source:
    """A Python file as lines of bytes, so that unchanged lines keep every byte, including line endings."""

    def __init__(self, data: bytes) -> None:
        """Raise SyntaxError or LookupError for an unknown or contradictory encoding."""
        self.encoding = tokenize.detect_encoding(BytesIO(data).readline)[0].replace("utf-8-sig", "utf-8")
        "".encode(self.encoding)  # LookupError for a codec that is not a text encoding, such as rot13
        self.data = data
        if data.startswith(b"\xef\xbb\xbf"):
            self.mark = data[:3]
        else:
            self.mark = b""
        self.raw = data[len(self.mark) :].splitlines(keepends=True)
        self._words: dict[int, tuple[str, ...]] = {}
        self._marks: dict[tuple[int, int], list[tuple[int, str]]] = {}

    @cached_property
    def lines(self) -> list[bytes]:
        return [line.rstrip(b"\r\n") for line in self.raw]

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree. Raise SyntaxError, ValueError or RecursionError if Python cannot compile the file."""
        parsed: ast.Module = quietly(ast.parse, self.data)
        return parsed

    @cached_property
    def bound(self) -> list[tuple[str, int]]:
        """The names that the module itself binds or defines, with lines."""
        defined = [(str(node.name), int(node.lineno)) for node in defined_in(self.tree)]
        return defined + [one for node in self.tree.body for one in bindings(node)]

    @cached_property
    def inside(self) -> frozenset[int]:
        """The indices of lines that begin inside a string. Raise one of UNREADABLE if the file is not valid Python."""
        return frozenset(rows_in_strings(line.decode(self.encoding) + "\n" for line in self.lines))

    def words(self, index: int) -> tuple[str, ...]:
        """Return the words of a line; none if it begins inside a string, because then it is text."""
        if index not in self._words:
            line = self.lines[index].decode(self.encoding)
            if index in self.inside:
                self._words[index] = ()
            else:
                self._words[index] = words(line)
        return self._words[index]

    def marks(self, begin: int, end: int) -> list[tuple[int, str]]:
        """Return the indices and marks of the lines of code in a range."""
        if (begin, end) not in self._marks:
            self._marks[begin, end] = [(at, mark) for at in range(begin, end) if (mark := line_mark(self.words(at)))]
        return self._marks[begin, end]

    def text(self, begin: int, end: int) -> tuple[str, ...]:
        return tuple(line.decode(self.encoding, "replace") for line in self.lines[begin:end])

    def spans(self, scope: str) -> list[tuple[int, int]]:
        """Return where the scope is defined, as half-open ranges of line indices; empty if it is not defined."""
        if not scope:
            return [(0, len(self.lines))]
        return [(first_line(node) - 1, node.end_lineno) for node in definitions(self.tree, scope)]

    def places(self, block: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[int]:
        """Return every line index in the spans at which exactly these lines begin.

        Raise UnicodeEncodeError if the file's encoding cannot express the lines.
        """
        wanted = [line.encode(self.encoding) for line in block]
        starts = {index for begin, end in spans for index in range(begin, end - len(wanted) + 1)}
        return sorted(index for index in starts if self.lines[index : index + len(wanted)] == wanted)

    def has(self, block: Sequence[str], index: int) -> bool:
        """Return whether exactly these lines begin at a line index."""
        return self.lines[index : index + len(block)] == [line.encode(self.encoding) for line in block]

    def replaced(self, edits: Iterable[tuple[int, Hunk]]) -> bytes:
        """Return the file with each hunk at its place; ValueError for places that overlap or mixed line endings."""
        raw, limit = list(self.raw), len(self.raw)
        for index, hunk in sorted(edits, key=lambda edit: edit[0], reverse=True):
            end = index + len(hunk.old)
            check(end <= limit, "two hunks overlap")
            raw[index:end] = self.ended([line.encode(self.encoding) for line in hunk.new], raw[index:end])
            limit = index
        return self.mark + b"".join(raw)

    def ended(self, new: Sequence[bytes], old: Sequence[bytes]) -> list[bytes]:
        """Return the new lines with the line ending of the lines that they replace."""
        endings = {ending(line) for line in old} - {b""} or {ending(self.raw[0]) or b"\n"}
        check(len(endings) == 1, "the lines to replace have mixed line endings")
        end = endings.pop()
        return [line + end for line in new[:-1]] + [new[-1] + (end if ending(old[-1]) else b"")]


source_of = lru_cache(maxsize=16)(Source)  # a file is read once for every variant and patch that asks


def ending(line: bytes) -> bytes:
    """Return the line ending of a line; empty if the last line of a file has none."""
    return line[len(line.rstrip(b"\r\n")) :]


def definitions(tree: ast.AST, scope: str) -> list[Any]:
    """Return the functions and classes of this qualified name ("Class.method"); several if it is defined twice."""
    nodes: list[Any] = [tree]
    for name in scope.split("."):
        nodes = [child for node in nodes for child in defined_in(node) if child.name == name]
    return nodes


def defined_in(node: ast.AST) -> Iterator[Any]:
    """Yield the functions and classes directly inside a node, including those under if, try and with."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
        elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from defined_in(child)


def first_line(node: Any) -> int:
    """Return the line at which a statement begins, including its decorators."""
    return int(min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))]))


def quietly(function: Callable[..., T], *arguments: object) -> T:
    """Call the function (parse or compile) without Python's warnings about the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


def rows_in_strings(rows: Iterator[str]) -> Iterator[int]:
    """Yield the numbers of the rows, from 0, that begin inside a string."""
    begun: list[int] = []
    for token in tokenize.generate_tokens(lambda: next(rows, "")):
        kind = tokenize.tok_name[token.type]  # from Python 3.12 on, an f-string is several tokens
        if kind.endswith("STRING_START"):
            begun.append(token.start[0])
        elif kind == "STRING" or kind.endswith("STRING_END"):
            yield from range(token.start[0] if kind == "STRING" else begun.pop(), token.end[0])


def words(text: str) -> tuple[str, ...]:
    """Return the words of a line of code: names, numbers, signs and whole strings, without comments and blanks."""
    found = [word for word in WORD.findall(text) if not word.startswith("#")]
    return tuple('"' + word[1:-1] + '"' if re.fullmatch(r"'[^'\"\\]*'", word) else word for word in found)


def stream(lines: Iterable[Sequence[str]]) -> list[str]:
    """Return the words of consecutive lines, however wrapped: without commas before a closing bracket."""
    found = [word for line in lines for word in line]
    return [word for word, after in zip(found, [*found[1:], ""], strict=False) if word != "," or after not in ")]}"]


def occurrences(wanted: Sequence[str], among: Sequence[str]) -> int:
    if wanted:
        return f"\0{chr(0).join(among)}\0".count(f"\0{chr(0).join(wanted)}\0")
    return 0


@lru_cache(maxsize=1 << 14)
def line_mark(line: tuple[str, ...]) -> str:
    """Return the mark of a line's words: 8 hex digits, or "" for a line of text, which does not identify a place."""
    if all(word[-1] in "'\"" or word[:1] in "'\"" for word in line):
        return ""
    return hashlib.sha256("\x1f".join(line).encode("utf-8", "surrogatepass")).hexdigest()[:8]


def tree_digest(nodes: Iterable[ast.AST]) -> str:
    """Return 16 hex digits for the names, values and structure of code.

    The digest is the same in every Python version. Raise RecursionError for code that is nested too deeply.
    """
    return hashlib.sha256("\n".join(map(canonical, nodes)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def canonical(node: Any) -> str:
    """Return a syntax tree as text, without positions, comments, docstrings and fields that only some Pythons have."""
    if isinstance(node, list):
        kept = [item for item in node if not is_text(item)]
        return f"[{','.join(map(canonical, kept))}]"
    if not isinstance(node, ast.AST):
        return f"{type(node).__name__}:{node!a}"
    if isinstance(node, ast.JoinedStr):
        return f"f({','.join(joined(node))})"
    # Leave out empty and missing fields, so that a field added by a later Python changes nothing.
    parts = [(name, getattr(node, name, None)) for name in node._fields if name not in ("kind", "type_comment")]
    parts = [(name, value) for name, value in parts if value is not None or isinstance(node, ast.Constant)]
    return f"{type(node).__name__}({','.join(f'{name}={canonical(value)}' for name, value in parts if value != [])})"


def joined(node: ast.JoinedStr) -> Iterator[str]:
    """Yield the parts of an f-string, with its plain parts joined because Python versions split them differently."""
    text = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        yield from [ascii(text)] if text else []
        text = ""
        yield canonical(part)
    yield from [ascii(text)] if text else []


def is_text(node: Any) -> bool:
    """Return whether a statement is only a string, usually a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


# Names that are bound again


def rebound(source: Source, scope: str, added: Iterable[str] = ()) -> list[tuple[str, int]]:
    """Return what the module binds besides, each with a line: the name of the scope, and builtins in the added lines.

    Other code than the patched may then run. What an attribute, setattr or another module binds, attestation sees.
    """
    top = scope.partition(".")[0]
    if scope:
        own = [(top, line) for name, line in source.bound if name in (top, "*")]
    else:
        own = []
    used = {word for line in added for word in words(line) if hasattr(builtins, word)}
    return [*own[1:], *(row for row in source.bound if row[0] in used), *rebound_inside(source, scope)]


def rebound_inside(source: Source, scope: str) -> Iterator[tuple[str, int]]:
    """Yield what a function binds of a class or function that is defined in it and holds the scope, with lines.

    In create().Builder.__init__ that is Builder, Builder.__init__ and every other attribute of Builder: the digest of
    the scope does not hold these lines.
    """
    parts = scope.split(".")
    for depth in range(1, len(parts)):
        inner = parts[depth]
        for node in definitions(source.tree, ".".join(parts[:depth])):
            if isinstance(node, ast.ClassDef):
                continue
            for one in ast.walk(node):
                name, line = dotted(one), int(getattr(one, "lineno", 0))
                if name.partition(".")[0] == inner and not isinstance(getattr(one, "ctx", None), ast.Load):
                    yield name, line
                sets = isinstance(one, ast.Call) and dotted(one.func) in ("setattr", "delattr")
                if sets and [dotted(each) for each in getattr(one, "args", ())[:1]] == [inner]:
                    yield f"an attribute of {inner}", line


def dotted(node: Any) -> str:
    """Return a name, or an attribute of one, as a dotted text; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        if left:
            return f"{left}.{node.attr}"
        return ""
    return ""


def bindings(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield what a statement binds or deletes in the scope in which it stands, with lines; "*" is any name.

    Definitions do not count.
    """
    name: str | None = None
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        name = node.id
    elif isinstance(node, ast.alias):
        name = (node.asname or node.name).partition(".")[0]
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)):
        if isinstance(node, ast.MatchMapping):
            name = node.rest
        else:
            name = node.name
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "exec":
        name = "*"
    if name:
        yield name, getattr(node, "lineno", 0)
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Assign) and child in node.targets and is_wrapped(child, node.value)):
            yield from bindings(child)


def is_wrapped(target: ast.AST, value: ast.AST) -> bool:
    """Return whether a value is a call whose one positional argument is the target itself, or such a call."""
    if not isinstance(value, ast.Call) or len(value.args) != 1:
        return False
    (argument,) = value.args
    return ast.unparse(argument) == ast.unparse(target) or is_wrapped(target, argument)


# Finding a place


@dataclass(frozen=True)
class Found:
    """Where one hunk is in one file, and its state.

    `index` is a line index. `changed`: the function is not that of the release `since`. `stands`: the file has
    lines that the hunk removes. `trace`: the file has the new lines, but at a place that no known release has.
    """

    state: str
    index: int | None = None
    detail: str = ""
    expected: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    stands: bool = False
    trace: bool = False
    since: str = ""
    changed: bool = False


def find_hunk(hunk: Hunk, source: Source, known: Sequence[Known] = (), number: int = 0) -> Found:
    """Find one hunk and decide whether it applies, is already applied, or neither.

    `known` has the places of the number-th hunk; without them the lines alone decide: that the old ones occur once
    (`applies`), or the new ones do and the old ones nowhere else (`applied`).
    """
    return Search(hunk, source, known, number).found()


class Search:
    """One hunk in one file: `spans` is where its scope is, `rows` its places in known releases, the newest first."""

    def __init__(self, hunk: Hunk, source: Source, known: Sequence[Known], number: int) -> None:
        self.hunk, self.source = hunk, source
        self.scope = hunk.function or "the file"
        self.spans = source.spans(hunk.function)
        self.rows = [(entry.vllm[-1], entry.places[number]) for entry in reversed(known) if entry.places]

    @cached_property
    def digest(self) -> str:
        return function_digest(self.source, self.hunk)

    @property
    def is_patched(self) -> bool:
        """Whether the function has the syntax tree of a patched release, whatever its blanks and comments."""
        one = self.hunk.function and len(self.spans) == 1
        return bool(one) and any(place.patched and place.patched == self.digest for _, place in self.rows)

    def places(self, block: Sequence[str]) -> list[int]:
        """Return where a block begins in code, or inside a string for a hunk that was made inside one."""
        places, inside = self.source.places(block, self.spans), self.source.inside
        return [index for index in places if (index in inside) == self.hunk.in_string]

    def found(self) -> Found:
        hunk = self.hunk
        if not self.spans:
            return Found("conflict", None, f"the file does not define {hunk.function}", expected=hunk.old)
        olds, news = self.places(hunk.old), self.places(hunk.new)
        slack = len(hunk.new) - len(hunk.old)
        if len(news) == 1 and all(news[0] <= old <= news[0] + slack for old in olds):
            return self.seen_in(news[0])
        stands = bool(olds) and hunk.takes_away
        if len(olds) == 1:
            return replace(self.seen_out(olds[0]), stands=stands)
        if olds:
            lines = ", ".join(str(old + 1) for old in olds)
            detail = f"the old lines occur {len(olds)} times in {self.scope}: lines {lines}"
            return Found("ambiguous", olds[0], detail, expected=hunk.old, stands=stands)
        if self.is_patched:
            return Found("applied", self.spans[0][0], f"{self.scope} already has the patch, formatted differently")
        return self.nowhere()

    def seen_in(self, index: int) -> Found:
        """Decide on new lines that occur once: applied at a known place, or in a function known to be patched."""
        size = len(self.hunk.new)
        if not self.rows or self.is_patched or any(self.is_place(index, size, place) for _, place in self.rows):
            return Found("applied", index)
        return replace(self.misplaced(index, "the new lines"), trace=True)

    def seen_out(self, index: int) -> Found:
        """Decide on old lines that occur once: they apply at the place of a known release, the newest first."""
        if not self.rows:
            return Found("applies", index)
        if not self.hunk.in_string and self.is_patched:
            return Found("applied", index, f"{self.scope} already has the patch, formatted differently")
        if not self.hunk.in_string and self.is_added():
            detail = f"{self.scope} already has the lines to add, formatted differently or at another place"
            return Found("conflict", index, detail, expected=self.hunk.new)
        fits = [row for row in self.rows if self.is_place(index, len(self.hunk.old), row[1])]
        same = next((vllm for vllm, place in fits if self.is_unchanged(index, place)), "")
        if fits:
            return Found("applies", index, since=same or fits[0][0], changed=not same)
        return self.misplaced(index, "the old lines")

    def misplaced(self, index: int, what: str) -> Found:
        """Return the result for lines that occur once, but possibly at the wrong place."""
        state, detail = "conflict", f"the file has {what}, but in a context that no known release has"
        if len(self.spans) > 1:
            lines = ", ".join(str(begin + 1) for begin, _ in self.spans)
            state, detail = "ambiguous", f"{self.scope} is defined {len(self.spans)} times: lines {lines}"
        return Found(state, index, detail, self.hunk.old, self.source.text(max(0, index - 2), index + 3))

    def is_added(self) -> bool:
        """Return whether somebody already added the words: the scope has them more often than the old lines do."""
        added = stream(map(words, self.hunk.added))
        there = stream(self.source.words(index) for begin, end in self.spans for index in range(begin, end))
        return occurrences(added, there) > occurrences(added, stream(map(words, self.hunk.old)))

    def is_place(self, index: int, size: int, place: Surroundings) -> bool:
        """Return whether some lines have the context that the hunk had in a release: the next lines of code.

        No longer run of either side may occur elsewhere in the scope than it did there, because then somebody copied
        code. One side must match better here than anywhere else.
        """
        if len(self.spans) > 1 or (place.inside and place.inside != enclosing(self.source, self.spans, index)):
            return False  # lines that were left over in another branch
        sides = [(index, -1, place.above, place.again[0]), (index + size, 1, place.below, place.again[1])]
        if place.head:
            marks = dict(self.source.marks(*self.spans[0]))
            if list(marks.values()).count(marks.get(index, "")) > 1:
                return False  # a line and its copy, whatever their comments: one of them may be a left-over
            del sides[0]
        unique = False
        for edge, step, known, again in sides:
            here, elsewhere = likeness(self.source, self.spans, edge, step, cut(known))
            if not here or elsewhere > max(again, 1):
                return False
            unique = unique or here > elsewhere
        return unique

    def is_unchanged(self, index: int, place: Surroundings) -> bool:
        """Return whether the function, or the context in a whole file, is unchanged since a release."""
        if self.digest:
            return self.digest == place.function
        sides = (index, -1, cut(place.above)), (index + len(self.hunk.old), 1, cut(place.below))
        return all(likeness(self.source, self.spans, *side)[0] == len(side[2]) for side in sides)

    def nowhere(self) -> Found:
        """Return the conflict for a file with neither the old nor the new lines; it shows the most similar lines."""
        index = self.nearest()
        detail = f"the old lines are not in {self.scope}"
        if elsewhere := self.source.places(self.hunk.old, self.spans):
            if self.hunk.in_string:
                where = "in its code"
            else:
                where = "inside a string"
            detail += f"; line {elsewhere[0] + 1} has them {where}"
        return Found("conflict", index, detail, self.hunk.old, self.source.text(index, index + len(self.hunk.old)))

    def nearest(self) -> int:
        """Return the line index in the spans that is most similar to the old lines, or closest to their line."""
        wanted = [set(words(line)) for line in self.hunk.old]
        there = [set(words(line)) for line in self.source.text(0, len(self.source.lines))]

        def alike(index: int) -> tuple[float, int]:
            pairs = zip(wanted, there[index : index + len(wanted)], strict=False)
            alike = sum(2 * len(old & new) / (len(old) + len(new) or 1) for old, new in pairs)
            return alike, -abs(index + 1 - self.hunk.line)

        return max((index for begin, end in self.spans for index in range(begin, end)), key=alike, default=0)


def function_digest(source: Source, hunk: Hunk) -> str:
    """Return the digest of a hunk's function; "" for the whole file."""
    if hunk.function:
        return tree_digest(definitions(source.tree, hunk.function))
    return ""


def enclosing(source: Source, spans: Sequence[tuple[int, int]], index: int) -> str:
    """Return the marks of the lines that the blocks around a line of a function begin with, the innermost first."""

    def depth(at: int) -> int:
        line = source.lines[at].expandtabs()
        return len(line) - len(line.lstrip())

    begin = next((begin for begin, end in spans if begin <= index < end), index)
    level, row = depth(index), []
    for at, mark in reversed(source.marks(begin, index)):
        if depth(begin) < depth(at) < level:
            level = depth(at)
            row.append(mark)
    return "".join([*row, EDGE])


def likeness(
    source: Source, spans: Sequence[tuple[int, int]], edge: int, step: int, known: Sequence[str]
) -> tuple[int, int]:
    """Return how many lines of code match above (step -1) or below a line index, and the best match elsewhere."""
    here = elsewhere = 0
    for begin, end in spans:
        rows = source.marks(begin, end)
        own = -1  # where the hunk's own place begins in the row; -1: it is in another span
        if begin <= edge <= end:
            own = sum(at >= edge if step < 0 else at < edge for at, _ in rows)
        if step < 0:
            rows = rows[::-1]
        row = [*(mark for _, mark in rows), EDGE]
        starts = [start for start, mark in enumerate(row) if mark == known[0]]
        same = {start: map(operator.eq, row[start : start + len(known)], known) for start in starts}
        alike = {start: sum(itertools.accumulate(equal, operator.and_)) for start, equal in same.items()}
        here, elsewhere = alike.pop(own, here if own < 0 else 0), max([elsewhere, *alike.values()])
    return here, elsewhere


def cut(text: str) -> list[str]:
    return [text[at : at + 8] for at in range(0, len(text), 8)]


# Deciding


@dataclass(frozen=True)
class FileResult:
    """The decision on one file; `line` counts from 1; `expected` and `found` explain a conflict.

    `half`: some hunks are applied and others are not. `stands`: the file has lines that the patch removes. `drifted`:
    the patch applies, but to a function that no known release has.
    """

    path: str
    state: str
    line: int | None = None
    detail: str = ""
    before: bytes | None = None
    after: bytes | None = None
    expected: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    half: bool = False
    stands: bool = False
    drifted: bool = False


@dataclass(frozen=True)
class PatchResult:
    """The decision on one patch, and the variant that fits; `detail` is about the whole patch."""

    patch: Patch
    state: str
    variant: str | None
    files: tuple[FileResult, ...]
    detail: str = ""
    judged: str = ""
    """What the patch's probe said of the installed vLLM: open, closed or failed; "" if it was not asked."""

    @property
    def half(self) -> bool:
        """Whether part of the patch is applied and the rest is not."""
        done = [file.half or file.state == "applied" for file in self.files]
        return any(done) and not (all(done) and self.state in ("applied", "drifted"))

    @property
    def stands(self) -> bool:
        """Whether a file has lines that the patch removes."""
        return any(file.stands for file in self.files)


def decide_plan(
    plan: Plan,
    version: str,
    read: Read,
    capabilities: Callable[[], frozenset[str]] = frozenset,
    here: Callable[[], str] = str,
) -> tuple[list[PatchResult], dict[str, bytes]]:
    """Decide every patch on the result of those before it, and return the changed files too.

    `capabilities` returns the compute capabilities of this machine's GPUs; empty if unknown. `here` is `place`; "" if
    unknown.
    """
    changed: dict[str, bytes] = {}
    stock: Read = functools.cache(read)
    results: list[PatchResult] = []
    for patch in plan.patches:
        result = decide_patch(patch, version, stock, changed)
        if result.state == "drifted" and plan.drift == "refuse":
            result = refused(result)
        if patch.purpose == "speed":
            result = unless_left_out(result, results, version, capabilities, here)
        results.append(result)
        if result.state in ("applies", "drifted"):
            changed.update({file.path: file.after for file in result.files if file.after is not None})
    return results, changed


def unless_left_out(
    result: PatchResult,
    before: Sequence[PatchResult],
    version: str,
    capabilities: Callable[[], frozenset[str]],
    here: Callable[[], str],
) -> PatchResult:
    """Return the decision on a speed patch; left out unless it fits exactly, where it was shown to pay."""
    if result.state in ("applied", "superseded", "not-needed"):
        return result
    out = {one.patch.id for one in before if one.state == LEFT_OUT or one.state not in FITS}
    needs = [f"it needs {name}, which is not in" for name in result.patch.needs if name in out]
    file = next((file for file in result.files if file.state != "applies" or file.drifted), None)
    if file:
        unfit = f"{file.path}:{file.line or 1}: {result.state}: {file.detail}"
    else:
        unfit = result.state
    if result.state == "applies":
        unfits = []
    else:
        unfits = [f"it does not fit exactly: {unfit}"]
    why = [*unmeasured(result.patch, version, capabilities, here), *needs, *unfits]
    if not why:
        return result
    files = tuple(replace(file, after=None, state=LEFT_OUT if file.state == "applies" else file.state)
                  for file in result.files)  # fmt: skip
    return replace(result, state=LEFT_OUT, detail=why[0], files=files)


def unmeasured(
    patch: Patch, version: str, capabilities: Callable[[], frozenset[str]], here: Callable[[], str]
) -> list[str]:
    """Return why the evidence of a speed patch does not cover this vLLM on this machine."""
    if not patch.where:
        return []
    shown = sorted({row.vllm for row in patch.where}, key=release)
    if not RELEASE.fullmatch(version):
        return [f"vllm {version} is not a published release, and it was measured on {', '.join(shown)} only"]
    covering = [row for row in patch.where if row.vllm == version.partition("+")[0]]
    if not covering:
        return [f"it was not measured on vllm {version}, only on {', '.join(shown)}"]
    places, rows = [row.place for row in covering if row.place], [row.capability for row in covering if not row.place]
    if places:
        found_here = here()
        if found_here in places:
            return []
        if not rows:
            return [f"it was measured with {places[0]}, and here is {found_here or 'nothing that is known'}"]
    if "" in rows:
        return []
    found = capabilities()
    if not found:
        return ["the GPU's compute capability is not known: nvidia-smi does not tell it"]
    others = sorted(found - set(rows))
    if others:
        return [f"it was not measured on GPUs of compute capability {', '.join(others)}"]
    return []


def compute_capabilities() -> frozenset[str]:
    """Return the compute capabilities of the GPUs, as nvidia-smi tells them; empty if it tells nothing."""
    return frozenset(line for line in nvidia_smi("compute_cap") if re.fullmatch(r"\d{1,2}\.\d", line))


def nvidia_smi(names: str) -> set[str]:
    """Return a line for each kind of GPU with these fields; nothing if nvidia-smi tells nothing."""
    command = ["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
        return {line.strip() for line in done.stdout.splitlines() if done.returncode == 0}
    return set()


def place() -> str:
    """Return GPU, driver, torch and Triton, for which what was measured on the spot holds."""
    gpus = sorted(nvidia_smi("name,driver_version")) or ["no GPU"]
    versions = [f"{name} {installed_version(name, sys.path) or 'none'}" for name in ("torch", "triton")]
    return "".join(filter(str.isprintable, ", ".join([*gpus, *versions])))[:300]


def refused(result: PatchResult) -> PatchResult:
    """Return a conflict for a patch that applies to drifted code, because the profile refuses drift."""
    why = "the profile sets patches.drift: refuse"
    files = [
        replace(file, state="conflict", detail=f"{file.detail}; {why}", after=None) if file.drifted else file
        for file in result.files
    ]
    return replace(result, state="conflict", files=tuple(files))


def decide_patch(patch: Patch, version: str, read: Read, changed: Mapping[str, bytes] | None = None) -> PatchResult:
    """Decide one patch: applied, half applied, superseded by vLLM's own fix, or to be applied, in this order.

    `read` returns the installed files; `changed` holds those that earlier patches changed.
    """
    named = candidates(patch, version)
    known = [one for one in patch.variants if all(known_as(edit, read(edit.path)) for edit in one.files)]
    # the files say which release this is, whatever its version says
    if not known or set(known) & set(named):
        variants = named
    else:
        variants = (known[-1],)
    if variants:
        result = decide_variants(patch, variants, version, read, changed or {})
    else:
        result = None
    if result is None or not (named or result.state == "applies"):
        return PatchResult(patch, "not-needed", None, ())
    return result


def decide_variants(
    patch: Patch, variants: Sequence[Variant], version: str, read: Read, changed: Mapping[str, bytes]
) -> PatchResult:
    """Decide one patch by some of its variants, as decide_patch() does."""
    results = [decide_variant(patch, variant, version, read, changed) for variant in variants]
    newest_first = [result for result in reversed(results) if result.state != "missing"]
    applies = [result for result in results if result.state in ("applies", "drifted")]
    if RELEASE.fullmatch(version):
        beyond = ""
    else:
        beyond = out_of_range(patch, version)
    prove = f"run gemmaspec patch prove {patch.id} --tree DIR"
    for result in results:
        if result.state == "applied":
            return result
    # Beyond the range, vLLM's own fix may contain some of the patch's lines; then the lines that the patch removes
    # are gone. A variant that is half applied because of vLLM's own lines does not count if another one applies fully.
    for result in results[::-1]:
        if result.half and (result.stands or not beyond) and not applies:
            return replace(result, detail=f"part of it is in: install vllm again, or {prove}")
    stands = any(result.stands for result in results)
    if closed := () if stands else closed_rules(patch, variants, read, changed):
        return PatchResult(patch, "superseded", None, closed)
    if beyond and not [result for result in applies if result.state == "applies" or result.stands]:
        return PatchResult(patch, "not-needed", None, (), f"{beyond}, and this build lacks the lines that it changes")
    result = (applies or newest_first or results[::-1])[0]
    if result.state in FITS or any(file.drifted for file in result.files):
        return result
    return replace(result, detail=f"vLLM may have fixed it itself: {prove}, where DIR contains vllm/")


def closed_rules(
    patch: Patch, variants: Iterable[Variant], read: Read, changed: Mapping[str, bytes]
) -> tuple[FileResult, ...]:
    """Return the rules that say that vLLM itself fixed the bug; known files were checked when they were listed."""
    edits = [edit for variant in variants for edit in variant.files]
    decided = {edit.path for edit in edits if known_as(edit, read(edit.path))}
    rules = [rule for rule in patch.superseded if rule.path not in decided]
    found: list[FileResult] = []
    for fixed in dict.fromkeys(rule.release for rule in rules):
        of_release = [rule for rule in rules if rule.release == fixed]
        closed = [closed_by(rule, lambda path: changed.get(path, read(path))) for rule in of_release]
        found += [file for file in closed if file] if all(closed) else []
    return tuple(found)


def decide_variant(
    patch: Patch, variant: Variant, version: str, read: Read, changed: Mapping[str, bytes]
) -> PatchResult:
    """Decide a variant: all its files apply or none, so one conflict decides for all."""
    files = []
    for edit in variant.files:
        file = decide_file(edit, changed.get(edit.path, read(edit.path)), read(edit.path))
        placed = known_as(edit, file.before) or any(entry.places for entry in edit.known)
        if file.state == "applies" and not placed:
            said = f"no place is recorded for its lines, so they alone decide: run gemmaspec patch known {patch.id}"
            file = replace(file, detail=joined_by(file.detail, said), drifted=True)
        whose = releases_with(patch, file.path, read(file.path))
        if whose and not (RELEASE.fullmatch(version) and version.partition("+")[0] in whose):
            file = replace(file, detail=joined_by(file.detail, f"this is {whose[-1]}'s file in a {version} tree"))
        files.append(file)
    states = [file.state for file in files]
    unfit = [state for state in states if state not in ("applies", "applied")]
    if not unfit and {"applies", "applied"} <= set(states):
        detail = "this file already has the patch, but another file of the patch does not"
        half = {"state": "conflict", "detail": detail, "half": True}
        files = [replace(file, **half) if file.state == "applied" else file for file in files]  # type: ignore[arg-type]
        unfit = ["conflict"]
    if any(file.drifted for file in files):
        drifted = ["drifted"]
    else:
        drifted = []
    return PatchResult(patch, (unfit or drifted or states)[0], variant.name, tuple(files))


def joined_by(*said: str) -> str:
    """Return what there is to say, each once, as one line."""
    return "; ".join(dict.fromkeys(filter(None, said)))


def releases_with(patch: Patch, path: str, data: bytes | None) -> tuple[str, ...]:
    """Return the known releases that have exactly this file; empty for an unknown file."""
    edits = [edit for variant in patch.variants for edit in variant.files if edit.path == path]
    if data is not None:
        known = [entry for edit in edits for entry in edit.known]
    else:
        known = []
    return tuple(vllm for entry in known if entry.before == sha256(data or b"") for vllm in entry.vllm)


def is_pristine(plan: Plan, path: str, data: bytes, version: str) -> bool | None:
    """Return whether a file has the sha256 of the release; None if the plan does not know this build."""
    edits = [edit for patch in plan.patches for variant in patch.variants for edit in variant.files]
    known = [known for edit in edits if edit.path == path for known in edit.known]
    build = version.partition("+")[0]
    of_build = [entry.before for entry in known if build in entry.vllm]
    if of_build:
        return sha256(data) in of_build
    if sha256(data) in [entry.before for entry in known]:
        return True
    return None


@lru_cache(maxsize=16)
def sha256(data: bytes) -> str:
    """Return the digest of a file as the plan and the report record it."""
    return hashlib.sha256(data).hexdigest()


def closed_by(rule: Rule, read: Read) -> FileResult | None:
    """Return the result if the one definition of the rule's scope is fixed as the rule says; else None."""
    data = read(rule.path)
    if rule.scope.rpartition(".")[2].encode() not in (data or b""):
        return None
    with contextlib.suppress(*UNREADABLE):
        source = source_of(data or b"")
        nodes = definitions(source.tree, rule.scope)
        if len(nodes) == 1 and tree_digest(nodes) == rule.tree and not rebound(source, rule.scope):
            return FileResult(rule.path, "superseded", first_line(nodes[0]), f"{rule.scope} is that of {rule.release}")
    return None


def decide_file(edit: FileEdit, data: bytes | None, stock: bytes | None = None) -> FileResult:
    """Find every hunk of one file and make its new content; `stock`, the file as installed, decides the places."""
    if data is None:
        return FileResult(edit.path, "missing", detail="this vllm does not have the file")
    known = known_as(edit, data)
    if known:
        return apply_known(edit, data, known)
    done = next((entry for entry in edit.known if entry.after and entry.after == sha256(data)), None)
    if done:
        return FileResult(edit.path, "applied", done.lines[0], before=data, after=data)
    if stock is not None and stock != data:
        before = decide_file(edit, stock)
    else:
        before = None
    told = before is not None and before.state == "applies"
    try:
        source = source_of(data)
        known_rows = () if told else edit.known
        places = [find_hunk(hunk, source, known_rows, number) for number, hunk in enumerate(edit.hunks)]
        result = decide_places(edit, source, places)  # it parses a file whose hunks are all at file level
    except UNREADABLE as error:
        return FileResult(edit.path, "conflict", detail=f"the file is not valid Python: {error}")
    if before is not None and told and before.drifted and result.state == "applies":
        return replace(result, detail=before.detail, drifted=True)
    return result


def decide_places(edit: FileEdit, source: Source, places: Sequence[Found]) -> FileResult:
    """Return the decision on a file from those on its hunks."""
    states = [place.state for place in places]
    again = []
    for hunk, place in zip(edit.hunks, places, strict=True):
        if place.state in ("applies", "applied"):
            for name, line in rebound(source, hunk.function, hunk.added)[:1]:
                again.append(f"{name} is bound again in line {line}, so other code may run than the patched")
    half = any(place.trace or place.state == "applied" for place in places)
    result = FileResult(edit.path, "conflict", half=half, stands=any(place.stands for place in places))
    for place in places:
        if place.state not in ("applies", "applied"):
            result = replace(result, state=place.state, line=None if place.index is None else place.index + 1)
            return replace(result, detail=place.detail, expected=place.expected, found=place.found)
    result = replace(result, line=(places[0].index or 0) + 1)
    if "applies" not in states:
        result = replace(result, state="applied", detail=joined_by(places[0].detail, *again), drifted=bool(again))
        return replace(result, before=source.data, after=source.data, half=False, stands=False)
    if "applied" in states:
        detail = f"the file already has {states.count('applied')} of {len(states)} hunks, but not the others"
        missing = edit.hunks[states.index("applies")]
        return replace(result, detail=detail, expected=missing.new, found=missing.old)
    try:
        after = source.replaced((place.index or 0, hunk) for place, hunk in zip(places, edit.hunks, strict=True))
        quietly(compile, after, edit.path, "exec", 0, True)
    except UNREADABLE as error:
        return replace(result, detail=f"the patched file would be invalid: {error}")
    drifted = bool(again) or any(place.changed for place in places)
    result = replace(result, state="applies", detail=joined_by(drift_of(edit, places), *again), drifted=drifted)
    return replace(result, before=source.data, after=after)


def drift_of(edit: FileEdit, places: Sequence[Found]) -> str:
    """Return, for each function with hunks, whether it is unchanged since a release."""
    told: dict[str, str] = {}
    for hunk, place in zip(edit.hunks, places, strict=True):
        name = hunk.function or "the code around the lines"
        if place.since and (place.changed or name not in told):
            told[name] = f"{name} {'changed' if place.changed else 'unchanged'} since {place.since}"
    return "; ".join(told.values())


def known_as(edit: FileEdit, data: bytes | None) -> Known | None:
    """Return the entry of a file to which the edit is known to apply, found by the file's sha256."""
    if data is not None and edit.known:
        found = sha256(data)
    else:
        found = ""
    return next((entry for entry in edit.known if entry.after and entry.before == found), None)


def apply_known(edit: FileEdit, data: bytes, known: Known) -> FileResult:
    """Apply an edit to a known file without parsing it; the result must have the known sha256."""
    source, line = Source(data), known.lines[0]
    stands = any(hunk.takes_away for hunk in edit.hunks)
    edits = [(number - 1, hunk) for number, hunk in zip(known.lines, edit.hunks, strict=True)]
    with contextlib.suppress(*UNREADABLE):
        if all(source.has(hunk.old, index) for index, hunk in edits):
            after = source.replaced(edits)
            if sha256(after) == known.after:
                return FileResult(edit.path, "applies", line, before=data, after=after, stands=stands)
    return FileResult(edit.path, "conflict", line, "the sha256 of the patched file differs from that in the plan")


# This machine: the installed vLLM


def clean_search_path() -> list[str]:
    """Remove this script's folder, the working folder and old overlays from sys.path; return PYTHONPATH cleaned."""
    given = os.environ.get("PYTHONPATH", "")
    named = given.split(os.pathsep) if given else []
    # Python turns these into absolute paths, and an empty entry into the working folder
    accidents = {Path(entry).absolute() for entry in named if not Path(entry).is_absolute()} | {Path.cwd()}
    accidents &= {Path(entry).absolute() for entry in named}

    def trusted(entry: str) -> bool:
        path = Path(entry).absolute()
        return not (path / MARKER).exists() and not (path in accidents and (path / "vllm").exists())

    own = str(Path(__file__).absolute().parent)
    first = [entry for entry in sys.path[:1] if entry not in ("", own)]
    sys.path[:] = [entry for entry in first + sys.path[1:] if trusted(entry)]
    return [entry for entry in named if entry and trusted(entry)]


def locate_vllm() -> Path:
    """Return the folder of the installed package without importing it. Raise LaunchError(4) if it is missing."""
    try:
        spec = importlib.util.find_spec("vllm")
    except Exception as error:  # an import finder of a .pth file may raise anything
        why = f"{sys.executable} cannot look for vllm: {type(error).__name__}: {error}"
        raise LaunchError(
            4, why, "next: remove the import finder, which a .pth file or sitecustomize has set"
        ) from None
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        raise LaunchError(4, f"vllm is not installed in the Python that runs the launcher: {sys.executable}")
    return Path(spec.origin).absolute().parent


def vllm_version(package: Path) -> str:
    """Return the version from vllm/_version.py (read, not run), else from the distribution, else "unknown"."""
    with contextlib.suppress(OSError):
        if stated := stated_version((package / "_version.py").read_bytes()):
            return stated
    from importlib import metadata  # takes longer than all else that most starts import

    beside = metadata.distributions(path=[str(package.parent)])
    return next((found.version for found in beside if "vllm/__init__.py" in map(str, found.files or ())), "unknown")


def stated_version(data: bytes) -> str | None:
    """Return the version in the text of vllm/_version.py, without running it."""
    with contextlib.suppress(*UNREADABLE):
        for node in quietly(ast.parse, data).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                if names & {"__version__", "version"} and isinstance(node.value.value, str):
                    return node.value.value
    return None


def read_from(package: Path) -> Read:
    """Return a reader of the installed package that raises LaunchError(2) for a link that leaves it."""
    root = os.path.realpath(package)
    linked = Path(os.path.realpath(package / "__init__.py")).parent  # uv links all of its files into its cache

    def read(path: str) -> bytes | None:
        inside = path.split("/")[1:]
        real = os.path.realpath(Path(root, *inside))
        if os.path.commonpath([root, real]) != root and Path(real) != linked.joinpath(*inside):
            raise LaunchError(2, f"invalid: {path} of the installed vllm is a link that leaves the package, to {real}")
        if not Path(real).is_file():
            return None
        with Path(real).open("rb") as file:
            data = file.read(FILE_LIMIT + 1)
        if len(data) > FILE_LIMIT:
            raise LaunchError(2, f"invalid: {path} of the installed vllm is larger than {FILE_LIMIT} bytes")
        return data

    return read


# This machine: what the installed vLLM does


def by_behaviour(
    results: Sequence[PatchResult], package: Path, cache_dir: Path, environment: Mapping[str, str]
) -> list[PatchResult]:
    """Return the results, superseded in place of a conflict where the patch's own probe finds no bug.

    A file with lines that the patch removes has the bug, and nobody is asked.
    """
    told = []
    for result in results:
        if result.state not in FITS and result.patch.probe and not result.stands:
            say(f"patch {result.patch.id}: {result.state}; its probe says whether this vllm has the bug")
            result = judged(result, package, cache_dir, environment)
        told.append(result)
    return told


def judged(result: PatchResult, package: Path, cache_dir: Path, environment: Mapping[str, str]) -> PatchResult:
    """Return the result on a patch that does not fit, as its probe has it."""
    patch = result.patch
    beside = {file.name: file.text for file in patch.beside}
    began = time.perf_counter()
    found = load_next_to_this(JUDGE).probed(patch.probe, package, cache_dir, environment, beside, say)
    if "kept" in found:
        took = f"asked before, see {found['kept']}"
    else:
        took = f"{time.perf_counter() - began:.0f} s"
    seen = str(found["seen"])[:400]
    if found["state"] == "closed":
        detail = f"its probe finds no bug in this vllm: {seen} ({took})"
        return PatchResult(patch, "superseded", None, (), detail, judged="closed")
    if found["state"] == "open":
        return replace(result, detail=f"its probe ran: the bug is there: {seen} ({took})", judged="open")
    return replace(result, detail=joined_by(f"its probe failed: {seen} ({took})", result.detail), judged="failed")


# This machine: the packages vLLM needs


def installed_version(name: str, path: Sequence[str]) -> str | None:
    """Return the version of a distribution on a search path; None if it is missing."""
    from importlib import metadata

    return next((found.version for found in metadata.distributions(name=name, path=list(path))), None)


def meet_requires(plan: Plan, cache_dir: Path, version: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return rows for the report, and the folder of packages to add if this Python's own do not suffice."""
    needs = [need for need in plan.requires if need.vllm == ">=0" or contains(need.vllm, version)]
    rows = [
        {"name": need.name, "specifier": need.specifier, "found": installed_version(need.name, sys.path)}
        for need in needs
    ]
    if all(contains(str(row["specifier"]), row["found"] or "") for row in rows):
        return [{**row, "state": "present"} for row in rows], []
    wanted = sorted(need.name + need.specifier for need in needs)
    key = hashlib.sha256(json.dumps([wanted, sys.version, version]).encode()).hexdigest()[:16]
    folder = cache_dir / "packages" / key
    if folder.is_dir():
        state = "cached"
    else:
        state = load_next_to_this(ORIGINS).install(wanted, folder, say)
    for row in rows:
        inside = installed_version(str(row["name"]), [str(folder)])
        row.update(found=inside or row["found"], state=state if inside else "present")
        if not contains(str(row["specifier"]), row["found"] or ""):
            raise LaunchError(4, f"{folder} lacks {row['name']}{row['specifier']}: delete it and start again")
    return rows, [str(folder)]


# The overlay


def build_overlay(package: Path, run_dir: Path, changed: Mapping[str, bytes]) -> Path | None:
    """Remove the last overlay; if any file changed, build a new one in a fresh folder and rename it into place."""
    overlay, fresh, old = run_dir / "overlay", run_dir / "overlay.new", run_dir / "overlay.old"
    remove(fresh)
    remove(old)
    if overlay.exists() or overlay.is_symlink():  # a kill leaves no half of it under its name
        overlay.rename(old)
        remove(old)
    if not changed:
        return None
    try:
        fresh.mkdir(mode=0o755)
        (fresh / MARKER).touch()
        mirror(package, fresh / "vllm", {path.partition("/")[2]: data for path, data in changed.items()})
        fresh.rename(overlay)
    finally:
        remove(fresh)
    return overlay


def mirror(source: Path, target: Path, changed: Mapping[str, bytes]) -> None:
    """Link everything in a folder, write changed files, and descend only into folders with changed files."""
    target.mkdir(mode=0o755)
    below: dict[str, dict[str, bytes]] = {}
    for path, data in changed.items():
        name, _, rest = path.partition("/")
        below.setdefault(name, {})[rest] = data
    for name in sorted(entry.name for entry in source.iterdir()):
        if name == "__pycache__":
            link_compiled(source / name, target / name, {module.removesuffix(".py") for module in below})
        elif name not in below:
            (target / name).symlink_to(source / name)
        elif "" in below[name]:
            with naming(target / name):
                (target / name).write_bytes(below[name][""])
        else:
            mirror(source / name, target / name, below[name])


def link_compiled(source: Path, target: Path, patched: set[str]) -> None:
    """Link the compiled files of a folder except those of patched modules, because they contain the old code."""
    target.mkdir(mode=0o755)
    for name in (entry.name for entry in source.iterdir()):
        if name.partition(".")[0] not in patched:
            (target / name).symlink_to(source / name)


def remove(path: Path) -> None:
    """Delete a file, a link (never its target) or a folder if it exists."""
    with naming(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


# Several machines


@functools.cache
def load_next_to_this(name: str) -> Any:
    """Return the module of a file next to this one. Raise LaunchError(4) if it is missing."""
    file = Path(__file__).absolute().parent / name
    if not file.is_file():
        raise LaunchError(4, f"{file} is missing, and this server needs it; render the stack again")
    spec = importlib.util.spec_from_file_location(f"gemmaspec_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def rank_facts(command: Sequence[str], path: Sequence[str]) -> dict[str, str]:
    """Return what a rank reports besides, and warn of an NCCL that hangs."""
    module = load_next_to_this(RANK_FACTS)
    found: dict[str, str] = module.facts(command, path, installed_version)
    if hangs := module.nccl_hangs(found["nccl"], eager="--enforce-eager" in command):
        say(f"WARNING: {hangs}")
    return found


def expect_plan(file: Path, plan: Plan, expected: str | None) -> None:
    """Raise LaunchError(5) unless the plan is the one that was rendered; without an expectation, any plan is."""
    if expected is not None and not DIGEST.fullmatch(expected):
        raise LaunchError(2, f"--expect-plan {expected!r} is not a sha256")
    if expected is not None and plan.sha256 != expected:
        why = f"{file} is the plan {plan.sha256[:12]}…, not {expected[:12]}… that this start is for"
        advice = "next: render the stack again, and bring its files to every machine"
        raise LaunchError(5, f"{why}: vllm was not started", advice)


# The start


def say(line: str) -> None:
    """Print one line to stderr, with all terminal control characters escaped."""
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
    print(f"gemmaspec: {text}", file=sys.stderr, flush=True)


def milliseconds(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Raise LaunchError(2) instead of exiting as argparse does."""
        raise LaunchError(2, f"{message}; usage: launch.py --plan FILE --run-dir DIR --cache-dir DIR -- COMMAND")


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the launcher's options (before the first "--") and the server's command (after it)."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = Parser(add_help=False, allow_abbrev=False)
    for name in ("--plan", "--run-dir", "--cache-dir"):
        parser.add_argument(name, type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--speculative-config", type=Path)
    parser.add_argument("--expect-plan")
    options = parser.parse_args(argv[:split])
    if not argv[split + 1 :]:
        parser.error("the command after -- is missing")
    return options, list(argv[split + 1 :])


def speculative_arguments(path: Path | None) -> list[str]:
    """Return the flag for vLLM with the file's JSON on one line."""
    if path is None:
        return []
    try:
        data = json.loads(read_plain(path, PLAN_LIMIT))
        check(isinstance(data, dict), "not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise LaunchError(2, f"cannot read the speculative config {path}: {error}") from None
    return ["--speculative-config", json.dumps(data, separators=(",", ":"))]


def take_run_dir(path: Path) -> int:
    """Make and lock the run folder. This process, and the server that it becomes, hold the lock until they end."""
    if path.is_symlink():
        raise LaunchError(2, f"the run folder {path} is a link: use another --run-dir")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner, mode = path.stat().st_uid, path.stat().st_mode
    if owner not in (0, os.geteuid()):
        raise LaunchError(2, f"the run folder {path} belongs to user {owner}: use another --run-dir")
    # whoever can write could swap the overlay before the import; not in a sticky folder or a container's own mount
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not (mode & stat.S_ISVTX or os.path.ismount(path)):
        raise LaunchError(2, f"other users can write to the run folder {path}", f"next: chmod go-w {path}")
    file = path / "lock"
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        raise LaunchError(2, f"{file} is not a regular file", f"next: rm {file}")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 20).decode("ascii", "replace").strip() or "?"
        raise LaunchError(6, f"already running: process {holder} holds {path}; stop it first") from None
    with naming(file):
        os.truncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
    return lock


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an OSError that names none, or only its last part."""
    try:
        yield
    except OSError as error:
        if not Path(str(error.filename or "")).is_absolute():
            error.filename = str(path)
        raise


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write the report completely or not at all."""
    fresh = path.with_name(path.name + ".new")
    remove(fresh)
    try:
        with naming(fresh):
            fresh.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        fresh.replace(path)
    finally:
        remove(fresh)


def patch_row(result: PatchResult, pristine: Mapping[str, bool | None]) -> dict[str, Any]:
    """Return one patch as a row of the report; `pristine` says which installed files are as released."""
    files = []
    for file in result.files:
        decided = {"path": file.path, "state": file.state, "line": file.line, "detail": file.detail}
        if file.before is None:
            before = None
        else:
            before = sha256(file.before)
        if file.after is None:
            after = None
        else:
            after = sha256(file.after)
        files.append(decided | {"sha256_before": before, "sha256_after": after, "pristine": pristine.get(file.path)})
    row = {name: getattr(result.patch, name) for name in ("purpose", "required", "runner")}
    row |= {"state": result.state, "detail": result.detail, "variant": result.variant, "judged": result.judged}
    return {"patch": result.patch.id, **row, "files": files}


def without_secrets(command: Sequence[str]) -> list[str]:
    """Return the command with every value of a secret flag, abbreviated or not, replaced by "***"."""
    shown, secret = [], False
    for word in command:
        flag, given, _ = word.replace("_", "-").partition("=")
        if flag.startswith("--"):
            secret = len(flag) > len("--h") and any(known.startswith(flag) for known in SECRETS)
            shown.append(f"{flag}=***" if secret and given else word)
        else:
            shown.append("***" if secret else word)
    return shown


def tell(result: PatchResult) -> None:
    """Log the decision on a patch; if it does not fit, log the lines that explain why."""
    patch = result.patch
    variant = f" ({result.variant})" if result.variant else ""
    if patch.runner == "any":
        runner = ""
    else:
        runner = f", affects model runner {patch.runner} only"
    say(f"patch {patch.id}: {result.state}{variant}{runner}")
    for file in result.files if result.state in ("applies", "drifted", "applied") else ():
        if file.detail:
            loud = "WARNING: " if file.drifted else ""
            say(f"  {loud}{file.path}:{file.line or 1}: {file.detail}")
    if result.state == "drifted":
        say(f"  WARNING: applying {patch.id} to code that no known release has; patches.drift: refuse would stop here")
    if result.state == LEFT_OUT:
        say(f"  WARNING: vllm starts without this patch for speed: {result.detail}")
    elif result.detail:
        say(f"  {result.detail}")
    for file in result.files:
        if result.state in FITS or file.state in ("applies", "applied"):
            continue
        say(f"  {file.path}:{file.line or 1}: {file.state}: {file.detail}")
        for line in file.expected:
            say(f"  expected | {line}")
        for line in file.found:
            say(f"     found | {line}")
    if result.state not in FITS:
        newest = newest_known([patch])
        written = f"written for vllm {' or '.join(variant.specifier for variant in patch.variants)}"
        say(f"  it is known to fit vllm up to {newest}" if newest else f"  {written}")


def look_at_files(plan: Plan, results: Sequence[PatchResult], version: str, read: Read) -> dict[str, bool | None]:
    """Return, for every existing file that a patch reads, whether it is as released."""
    found = {file.path: read(file.path) for result in results for file in result.files}
    return {path: is_pristine(plan, path, data, version) for path, data in found.items() if data is not None}


def warn_of_edits(plan: Plan, pristine: Mapping[str, bool | None], version: str, read: Read) -> None:
    """Warn of installed files that somebody edited; they do not stop the start unless a patch conflicts."""
    for path, as_released in pristine.items():
        if as_released is False:
            whose = [one for patch in plan.patches for one in releases_with(patch, path, read(path))]
            if whose:
                what = f"it is {whose[-1]}'s file in a {version} tree"
            else:
                what = "another build, or edited"
            say(f"WARNING: {path} differs from the file in the release {version} of vllm: {what}")


def stop_on_conflict(plan: Plan, results: Sequence[PatchResult], version: str) -> None:
    """Raise LaunchError(5) if a required patch does not fit; warn if an optional one does not."""
    unfit = [result for result in results if result.state not in FITS]
    for result in unfit:
        if not result.patch.required:
            say(f"WARNING: skipped the optional patch {result.patch.id}, which does not fit vllm {version}")
    required = ", ".join(result.patch.id for result in unfit if result.patch.required)
    if required:
        stopped = f"{required} does not fit vllm {version}: vllm was not started"
        raise LaunchError(5, stopped, *ways_out(plan, [result.patch for result in unfit if result.patch.required]))


def ways_out(plan: Plan, unfit: Sequence[Patch]) -> list[str]:
    """Return what to do where required patches do not fit: the newest release that they fit, or what ran before."""
    newest = newest_known([patch for patch in plan.patches if patch.required])
    newest = newest or newest_known(unfit)
    back = f"gemmaspec rollback {plan.profile}    # what ran before"
    pinned = f"pin vllm {newest}, the newest release that it is known to fit: image: vllm/vllm-openai:v{newest}"
    if newest:
        return [f"next: {pinned}", f"  or: {back}"]
    return [f"next: {back}"]


def newest_known(patches: Sequence[Patch]) -> str:
    """Return the newest published release whose files all these patches are known to fit; "" for none."""
    common: set[str] | None = None
    for patch in patches:
        fitted = set()
        for variant in patch.variants:
            rows = [{vllm for entry in edit.known if entry.after for vllm in entry.vllm} for edit in variant.files]
            fitted |= set.intersection(*rows)
        common = fitted if common is None else common & fitted
    published = [one for one in common or () if RELEASE.fullmatch(one)]
    return max(published, key=lambda one: release(re.match(NUMBER, one)[0]), default="")  # type: ignore[index]


def program_of(command: Sequence[str]) -> str:
    """Return the server's program, next to this Python or on PATH. Raise LaunchError(4) if it is missing."""
    beside = Path(sys.executable).parent / command[0]
    program = str(beside) if os.access(beside, os.X_OK) and beside.is_file() else shutil.which(command[0])
    if program is None:
        raise LaunchError(4, f"the program {command[0]} is neither next to {sys.executable} nor on PATH")
    return program


def environment_of(pythonpath: Sequence[str]) -> dict[str, str]:
    """Return the server's environment; an empty PYTHONPATH would mean the working folder."""
    rest = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if pythonpath:
        return {**rest, "PYTHONPATH": os.pathsep.join(pythonpath)}
    return rest


def become(program: str, command: Sequence[str], environment: Mapping[str, str], lock: int) -> NoReturn:
    """Replace this process with the server, which keeps the lock."""
    os.set_inheritable(lock, True)
    try:
        # A Python that is called by its bare name takes its modules from the first python on PATH.
        os.execvpe(program, [program, *command[1:]], environment)  # noqa: S606 - an argv list, no shell
    except OSError as error:
        raise LaunchError(4, f"cannot run {program}: {error.strerror}") from None


def first_report(plan: Plan, vllm: dict[str, str], patches: list[dict[str, Any]], command: list[str]) -> dict[str, Any]:
    """Return the report of a start after its decisions and before the overlay."""
    return {
        "schema": 1,
        "profile": plan.profile,
        "plan_sha256": plan.sha256,
        "gemmaspec": plan.gemmaspec,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": sys.version.split()[0],
        "pid": os.getpid(),
        "vllm": vllm,
        "overlay": None,
        "overlay_ms": None,
        "requires": [],
        "patches": patches,
        "command": without_secrets(command),
    }


def launch(argv: Sequence[str]) -> NoReturn:
    """Run the whole start, in order: decide, build the overlay, ask the interpreter, and become the server."""
    options, command = parse_arguments(argv)
    plan = load_plan(options.plan)
    expect_plan(options.plan, plan, options.expect_plan)
    command += speculative_arguments(options.speculative_config)
    lock = take_run_dir(options.run_dir)
    report_file = options.run_dir / "report.json"
    remove(report_file)  # the report is always that of the last start
    pythonpath = clean_search_path()
    package = locate_vllm()
    version = vllm_version(package)
    say(f"patching vllm {version} at {package}")
    began = time.perf_counter()
    read = read_from(package)
    results, changed = decide_plan(plan, version, read, compute_capabilities, place)
    results = by_behaviour(results, package, options.cache_dir, environment_of(pythonpath))
    pristine = look_at_files(plan, results, version, read)
    deciding = milliseconds(began)
    rows = [patch_row(result, pristine) for result in results]
    report = first_report(plan, {"version": version, "path": str(package)}, rows, command)
    write_report(report_file, report)
    for result in results:
        tell(result)
    warn_of_edits(plan, pristine, version, read)
    say(f"patches decided in {deciding} ms")
    stop_on_conflict(plan, results, version)
    report["requires"], front = meet_requires(plan, options.cache_dir, version)
    began = time.perf_counter()
    overlay = build_overlay(package, options.run_dir, changed)
    if overlay:
        report["overlay"], report["overlay_ms"] = str(overlay), milliseconds(began)
        front.insert(0, str(overlay))
    for name in ("attest", "attested.json"):
        remove(options.run_dir / name)
    with naming(options.run_dir / "attest"):
        attested = load_next_to_this(ORIGINS).prepared(options.run_dir, package, overlay, results, changed)
    if attested:
        front.insert(1 if overlay else 0, str(attested.folder))
    program, environment = program_of(command), environment_of([*front, *pythonpath])
    if attested:
        with naming(options.run_dir / "attest"):
            report["attestation"] = attested.ask(program, command, environment, plan.drift, say)
    if any(word.partition("=")[0] in ("--nnodes", "-n") for word in command):
        report["ranks"] = rank_facts(command, [*front, *sys.path])
    write_report(report_file, report)
    if overlay:
        ready = f"overlay ready in {report['overlay_ms']} ms"
    else:
        ready = "no overlay, because no file needs a patch"
    say(f"{ready}, starting vllm")
    become(program, command, environment, lock)


def main(argv: Sequence[str]) -> int:
    """Run the start and turn every error into log lines and an exit code, never a traceback."""
    try:
        launch(argv)
    except KeyboardInterrupt:
        say("interrupted; vllm was not started")
        return 130
    except OSError as error:
        say(f"{error.filename or 'the run folder'}: {error.strerror}; vllm was not started")
        return 4
    except Exception as error:  # a container's log must not end in a traceback
        lines = getattr(error, "lines", None)  # of a LaunchError, or of the Refused of a file next to this one
        for line in lines or [f"this is a bug in gemmaspec: {type(error).__name__}: {error}"]:
            say(line)
        if lines:
            return int(getattr(error, "code", 1))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
