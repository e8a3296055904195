"""Runs beside vLLM: patches a mirror of the installed package, says what it did, becomes `vllm serve`.

    python3 launch.py --plan FILE --run-dir DIR --cache-dir DIR [--speculative-config FILE] -- vllm serve …

vLLM's own files are only read. Every hunk of the plan is looked up in them by content; the patched files go
into DIR/overlay, a mirror of symlinks that comes first on PYTHONPATH; what was decided goes into
DIR/report.json. Nothing of vLLM is imported, and only the standard library of Python 3.10 is used: this file
is copied into stacks and containers and runs there alone. The host imports its deciding half.

Exit codes: 1 a bug · 2 bad plan or usage · 4 something needed is not there · 5 a required patch does not fit
· 6 already running · 130 interrupted. Otherwise the process becomes the server.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import operator
import os
import re
import shutil
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
Read = Callable[[str], "bytes | None"]  # "vllm/….py" -> its bytes; None when there is no such file

MARKER = ".gemmaspec-overlay"  # a file that tells an overlay from an installed package
PLAN_LIMIT = 16 * 1024 * 1024  # bytes
FITS = ("applies", "applied", "superseded", "not-needed")
SIGNS = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
NUMBER = r"\d{1,9}(?:\.\d{1,9})*"
BOUND = re.compile(rf"(>=|<=|==|!=|>|<)({NUMBER})")
RELEASE = re.compile(rf"{NUMBER}(?:\.post\d+)?(?:\+(?:cpu|cu\d+|rocm[\d.]*|xpu|tpu))?")
DIGEST = re.compile("[0-9a-f]{64}")
PROJECT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)  # what ast.parse and compile raise
SECRETS = ("--api-key", "--hf-token")


class LaunchError(Exception):
    """The start ends here: what is said, line by line, and the exit code."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__(lines[0])
        self.code = code
        self.lines = lines


# The plan, as its JSON has it: the fields below are its keys


@dataclass(frozen=True)
class Requirement:
    """A distribution that the Python of some vLLM releases must have."""

    name: str
    specifier: str
    vllm: str

    def __post_init__(self) -> None:
        """Both become arguments of pip."""
        check(PROJECT.fullmatch(self.name), f"{self.name!r} is no distribution name")
        check_specifier(self.specifier)
        check_specifier(self.vllm)


@dataclass(frozen=True)
class Hunk:
    """Lines to find in a function or class (its qualified name, or "" for the file), and their successors."""

    scope: str
    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]

    def __post_init__(self) -> None:
        """A hunk without old lines has no place, one without new lines leaves no trace."""
        check(self.old and self.new and self.old != self.new, "old and new lines must be there and differ")
        check(not re.search("[\r\n\0]", "".join(self.old + self.new)), "a line holds a line break or NUL")


@dataclass(frozen=True)
class Known:
    """The sha256 of a file in some releases; where the hunks go, and the sha256 after ("" if they do not apply)."""

    vllm: tuple[str, ...]
    before: str
    lines: tuple[int, ...]
    after: str

    def __post_init__(self) -> None:
        """They are compared with what is found."""
        digests = (self.before, self.after) if self.after else (self.before,)
        check(all(DIGEST.fullmatch(digest) for digest in digests), "before or after is no sha256")
        check(all(line > 0 for line in self.lines), "lines are counted from 1")


@dataclass(frozen=True)
class FileEdit:
    """All hunks of one file, and what the file is in the releases that the edit was tried on."""

    path: str
    hunks: tuple[Hunk, ...]
    known: tuple[Known, ...] = ()

    def __post_init__(self) -> None:
        """A file without hunks would count as applied."""
        check_path(self.path)
        check(self.hunks, "there are no hunks")
        counts = {len(entry.lines) for entry in self.known if entry.after}
        check(counts <= {len(self.hunks)}, "known lines and hunks are not as many")


@dataclass(frozen=True)
class Variant:
    """The edits that fit one range of vLLM releases."""

    name: str
    specifier: str
    files: tuple[FileEdit, ...]

    def __post_init__(self) -> None:
        """A file is edited once."""
        check_specifier(self.specifier)
        check(
            self.files and len({edit.path for edit in self.files}) == len(self.files),
            "files: none, or one twice",
        )


@dataclass(frozen=True)
class Rule:
    """The tree itself closes the hole when `contains` is in the code of `scope`."""

    path: str
    scope: str
    contains: str

    def __post_init__(self) -> None:
        """The empty text is in everything."""
        check_path(self.path)
        check(self.contains, "contains is empty")


@dataclass(frozen=True)
class Patch:
    """One patch, its variants from the oldest range to the newest."""

    id: str
    title: str
    required: bool
    runner: str
    superseded: tuple[Rule, ...]
    variants: tuple[Variant, ...]

    def __post_init__(self) -> None:
        """Without variants it would never be needed."""
        check(self.runner in ("any", "v1", "v2"), f"runner {self.runner!r} is not any, v1 or v2")
        check(self.variants, "there are no variants")


@dataclass(frozen=True)
class Plan:
    """A whole plan."""

    schema: int
    profile: str
    gemmaspec: str
    requires: tuple[Requirement, ...]
    patches: tuple[Patch, ...]
    sha256: str

    def __post_init__(self) -> None:
        """Patches are told apart by their ids."""
        check(len({patch.id for patch in self.patches}) == len(self.patches), "one patch is listed twice")


def load_plan(path: Path) -> Plan:
    """Read and check a plan file; LaunchError(2), in one sentence, when it is not what gemmaspec wrote."""
    try:
        with path.open("rb") as file:
            data = file.read(PLAN_LIMIT + 1)
        check(len(data) <= PLAN_LIMIT, f"larger than {PLAN_LIMIT} bytes")
        return parse_plan(json.loads(data))
    except OSError as error:
        raise LaunchError(2, f"cannot read the plan {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LaunchError(2, f"the plan {path} is refused (invalid): {error}") from None


def parse_plan(data: Any) -> Plan:
    """Decoded JSON as a Plan; ValueError names the first thing that is wrong."""
    check(isinstance(data, dict) and data.get("schema") == 1, "not a plan of schema 1")
    check(data.get("sha256") == plan_digest(data), "it was changed after it was rendered (sha256)")
    plan: Plan = build(Plan, data, "plan")
    return plan


def plan_digest(plan: Mapping[str, Any]) -> str:
    """sha256 over the canonical JSON of all but "sha256" itself; ValueError for what JSON cannot carry."""
    rest = {key: value for key, value in plan.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def build(kind: Any, data: Any, where: str) -> Any:
    """Decoded JSON as one of the classes above, every value of exactly its type; ValueError says where."""
    if get_origin(kind) is tuple:
        members = build(list, data, where)
        return tuple(build(get_args(kind)[0], item, f"{where}[{index}]") for index, item in enumerate(members))
    if not is_dataclass(kind):
        check(type(data) is kind, f"{where} is missing or no {kind.__name__}")
        return data
    check(isinstance(data, dict), f"{where} is missing or no object")
    wanted = {field.name for field in fields(kind) if field.default is MISSING or field.name in data}
    hints = {key: hint for key, hint in type_hints(kind).items() if key in wanted}  # type: ignore[arg-type]
    values = {key: build(hint, data.get(key), f"{where}.{key}") for key, hint in hints.items()}
    try:
        return kind(**values)  # type: ignore[operator]  # is_dataclass() narrows to an instance
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@functools.cache
def type_hints(kind: Any) -> dict[str, Any]:
    """The types of a class's fields, resolved once: a plan holds hundreds of the same few."""
    return get_type_hints(kind)


def check(condition: object, message: str) -> None:
    """ValueError unless the condition holds."""
    if not condition:
        raise ValueError(message)


def check_path(path: str) -> None:
    """A .py file inside vllm/, by a relative path that cannot climb out."""
    parts = path.split("/")
    plain = path.isprintable() and "\\" not in path and not {"", ".", ".."} & set(parts)
    check(
        plain and parts[0] == "vllm" and parts[1:] and path.endswith(".py"),
        f"{path!r} is no .py file in vllm/",
    )


def check_specifier(text: str) -> None:
    """Comma-separated comparisons with plain release numbers."""
    check(all(BOUND.fullmatch(part) for part in text.split(",")), f"specifier {text!r} is not like >=1.2,<2")


# Versions


def contains(specifier: str, version: str) -> bool:
    """Whether a version lies in a specifier, by its release number alone (5.5.0rc1 counts as 5.5.0)."""
    number = re.match(NUMBER, version)
    bounds = BOUND.findall(specifier)
    return number is not None and all(SIGNS[sign](release(number[0]), release(bound)) for sign, bound in bounds)


def release(number: str) -> tuple[int, ...]:
    """A release number to compare with: 0.33 and 0.33.0 are the same."""
    return tuple(int(part) for part in re.sub(r"(\.0+)+$", "", number).split("."))


def candidates(patch: Patch, version: str) -> tuple[Variant, ...]:
    """A published release chooses one variant or none; any other build (rc, dev, unknown) tries them all."""
    if not RELEASE.fullmatch(version):
        return patch.variants
    return tuple(variant for variant in patch.variants if contains(variant.specifier, version))[:1]


# Finding lines


class Source:
    """A Python file as lines of bytes: what is not replaced keeps every byte, line endings included."""

    def __init__(self, data: bytes) -> None:
        """Raises SyntaxError for an unknown or contradictory encoding."""
        self.encoding = tokenize.detect_encoding(BytesIO(data).readline)[0].replace("utf-8-sig", "utf-8")
        self.data = data
        self.mark = data[:3] if data.startswith(b"\xef\xbb\xbf") else b""
        self.raw = data[len(self.mark) :].splitlines(keepends=True)

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines without their endings."""
        return [line.rstrip(b"\r\n") for line in self.raw]

    @cached_property
    def tree(self) -> ast.Module:
        """The code. Raises SyntaxError, ValueError or RecursionError for what Python would not compile either."""
        parsed: ast.Module = quietly(ast.parse, self.data)
        return parsed

    def spans(self, scope: str) -> list[tuple[int, int]]:
        """Where the scope is defined, as half-open ranges of line indices; empty when it is not."""
        if not scope:
            return [(0, len(self.lines))]
        return [(first_line(node) - 1, node.end_lineno) for node in definitions(self.tree, scope)]

    def places(self, block: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[int]:
        """Every line index in the spans at which exactly these lines begin (UnicodeEncodeError: none can)."""
        wanted = [line.encode(self.encoding) for line in block]
        starts = {index for begin, end in spans for index in range(begin, end - len(wanted) + 1)}
        return sorted(index for index in starts if self.lines[index : index + len(wanted)] == wanted)

    def has(self, block: Sequence[str], index: int) -> bool:
        """Whether exactly these lines begin at a line index."""
        there = [line.rstrip(b"\r\n") for line in self.raw[index : index + len(block)]]
        return there == [line.encode(self.encoding) for line in block]

    def replaced(self, edits: Iterable[tuple[int, Hunk]]) -> bytes:
        """The file with each hunk at its place; ValueError when places overlap or line endings are mixed."""
        raw, limit = list(self.raw), len(self.raw)
        for index, hunk in sorted(edits, key=lambda edit: edit[0], reverse=True):
            end = index + len(hunk.old)
            check(end <= limit, "two hunks fall on the same lines")
            raw[index:end] = self.ended([line.encode(self.encoding) for line in hunk.new], raw[index:end])
            limit = index
        return self.mark + b"".join(raw)

    def ended(self, new: Sequence[bytes], old: Sequence[bytes]) -> list[bytes]:
        """New lines with the line ending of the lines they replace."""
        endings = {ending(line) for line in old} - {b""} or {ending(self.raw[0]) or b"\n"}
        check(len(endings) == 1, "the lines to replace have mixed line endings")
        end = endings.pop()
        return [line + end for line in new[:-1]] + [new[-1] + (end if ending(old[-1]) else b"")]


def ending(line: bytes) -> bytes:
    """The line ending of a line; empty for the last line of some files."""
    return line[len(line.rstrip(b"\r\n")) :]


def definitions(tree: ast.AST, scope: str) -> list[Any]:
    """The functions and classes of this qualified name ("Class.method"); several when it is defined twice."""
    nodes: list[Any] = [tree]
    for name in scope.split("."):
        nodes = [child for node in nodes for child in defined_in(node) if child.name == name]
    return nodes


def defined_in(node: ast.AST) -> Iterator[Any]:
    """The functions and classes right inside a node, those under if, try and with included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
        elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from defined_in(child)


def first_line(node: Any) -> int:
    """The line at which a definition begins, its decorators included."""
    return int(min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]))


def quietly(function: Callable[..., T], *arguments: object) -> T:
    """Parse or compile without the warnings that Python has about the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


# Deciding


@dataclass(frozen=True)
class FileResult:
    """What is to happen to one file; `line` counts from 1; `expected` and `found` explain a conflict."""

    path: str
    state: str
    line: int | None = None
    detail: str = ""
    before: bytes | None = None
    after: bytes | None = None
    expected: tuple[str, ...] = ()
    found: tuple[str, ...] = ()


@dataclass(frozen=True)
class PatchResult:
    """What is to happen to one patch, and by which of its variants."""

    patch: Patch
    state: str
    variant: str | None
    files: tuple[FileResult, ...]


def decide_plan(plan: Plan, version: str, read: Read) -> tuple[list[PatchResult], dict[str, bytes]]:
    """Decide every patch, each on the result of those before it; the second value is what changes."""
    changed: dict[str, bytes] = {}
    seen: dict[str, bytes | None] = {}

    def current(path: str) -> bytes | None:
        if path not in seen:
            seen[path] = read(path)
        return seen[path]

    results = []
    for patch in plan.patches:
        result = decide_patch(patch, version, current)
        results.append(result)
        if result.state == "applies":
            changed.update({file.path: file.after for file in result.files if file.after is not None})
            seen.update(changed)
    return results, changed


def decide_patch(patch: Patch, version: str, read: Read) -> PatchResult:
    """Decide one patch: in the tree already, closed by the tree itself, or by the first variant that fits."""
    variants = candidates(patch, version)
    if not variants:
        return PatchResult(patch, "not-needed", None, ())
    results = [decide_variant(patch, variant, read) for variant in variants]
    applied = [result for result in results if result.state == "applied"]
    if applied:
        return applied[0]
    # A file that is known, and known to be patched, was decided before: there the rules did not match.
    edits = [edit for variant in variants for edit in variant.files]
    decided = {edit.path for edit in edits if known_as(edit, read(edit.path))}
    rules = [rule for rule in patch.superseded if rule.path not in decided]
    closed = tuple(file for rule in rules if (file := closed_by(rule, read)))
    if closed:
        return PatchResult(patch, "superseded", None, closed)
    applies = [result for result in results if result.state == "applies"]
    newest_first = [result for result in reversed(results) if result.state != "missing"]
    return (applies or newest_first or results[::-1])[0]


def decide_variant(patch: Patch, variant: Variant, read: Read) -> PatchResult:
    """All files of a variant or none: one that does not fit decides for all."""
    files = tuple(decide_file(edit, read(edit.path)) for edit in variant.files)
    states = [file.state for file in files]
    unfit = [state for state in states if state not in ("applies", "applied")]
    if not unfit and "applies" in states and "applied" in states:
        detail = "this file has the patch already, another file of the patch has not"
        files = tuple(
            replace(file, state="conflict", detail=detail) if file.state == "applied" else file for file in files
        )
        unfit = ["conflict"]
    return PatchResult(patch, (unfit or states)[0], variant.name, files)


def is_pristine(plan: Plan, path: str, data: bytes, version: str) -> bool | None:
    """Whether a file is as released, known by its sha256; None when the plan does not know this build."""
    edits = [edit for patch in plan.patches for variant in patch.variants for edit in variant.files]
    known = [known for edit in edits if edit.path == path for known in edit.known]
    build = version.partition("+")[0]
    of_build = [entry.before for entry in known if build in entry.vllm]
    if of_build:
        return sha256(data) in of_build
    return True if sha256(data) in [entry.before for entry in known] else None


@lru_cache(maxsize=16)
def sha256(data: bytes) -> str:
    """The digest of a file, as the plan and the report write it."""
    return hashlib.sha256(data).hexdigest()


def closed_by(rule: Rule, read: Read) -> FileResult | None:
    """Whether the code of the rule's scope (no comments, docstrings, formatting) holds the rule's text."""
    data = read(rule.path)
    if rule.scope.rpartition(".")[2].encode() not in (data or b""):
        return None
    with contextlib.suppress(*UNREADABLE):
        tree = quietly(ast.parse, data or b"")
        for node in definitions(tree, rule.scope) if rule.scope else [tree]:
            if rule.contains in code_of(node):
                detail = f"{rule.scope or 'the file'} contains {rule.contains}"
                return FileResult(rule.path, "superseded", getattr(node, "lineno", 1), detail)
    return None


def code_of(tree: ast.AST) -> str:
    """Code as Python prints it back, every string that stands alone (a docstring) left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value = ast.Constant(value=...)
    return ast.unparse(tree)


def decide_file(edit: FileEdit, data: bytes | None) -> FileResult:
    """Find every hunk of one file and make its new content, in memory."""
    if data is None:
        return FileResult(edit.path, "missing", detail="this vllm has no such file")
    known = known_as(edit, data)
    if known:
        return apply_known(edit, data, known)
    try:
        source = Source(data)
        places = [decide_hunk(edit.path, hunk, source) for hunk in edit.hunks]
    except UNREADABLE as error:
        return FileResult(edit.path, "conflict", detail=f"it cannot be read as Python: {error}")
    for place in places:
        if place.state not in ("applies", "applied"):
            return place
    states = [place.state for place in places]
    line = places[0].line
    if "applies" not in states:
        return FileResult(edit.path, "applied", line, before=data, after=data)
    if "applied" in states:
        detail = f"{states.count('applied')} of {len(states)} hunks are in the file already, the others are not"
        return FileResult(edit.path, "conflict", line, detail)
    try:
        after = source.replaced(((place.line or 1) - 1, hunk) for place, hunk in zip(places, edit.hunks, strict=True))
        quietly(compile, after, edit.path, "exec", 0, True)
    except UNREADABLE as error:
        return FileResult(edit.path, "conflict", line, f"the patched file would not do: {error}")
    return FileResult(edit.path, "applies", line, before=data, after=after)


def known_as(edit: FileEdit, data: bytes | None) -> Known | None:
    """The entry of a file to which the edit is known to apply; the files before and after are known by sha256."""
    found = sha256(data) if data is not None and edit.known else ""
    return next((entry for entry in edit.known if entry.after and entry.before == found), None)


def apply_known(edit: FileEdit, data: bytes, known: Known) -> FileResult:
    """The decision made before on the same bytes, so nothing is parsed: the known file must come out."""
    source, line = Source(data), known.lines[0]
    edits = [(number - 1, hunk) for number, hunk in zip(known.lines, edit.hunks, strict=True)]
    with contextlib.suppress(*UNREADABLE):
        if all(source.has(hunk.old, index) for index, hunk in edits):
            after = source.replaced(edits)
            if sha256(after) == known.after:
                return FileResult(edit.path, "applies", line, before=data, after=after)
    return FileResult(edit.path, "conflict", line, "the patched file is not the one that the plan knows")


def decide_hunk(path: str, hunk: Hunk, source: Source) -> FileResult:
    """Find one hunk. The new lines, once, and no old lines outside them, mean that it is in already."""
    scope = hunk.scope or "the file"
    spans = source.spans(hunk.scope)
    if not spans:
        return FileResult(path, "conflict", None, f"there is no {scope} in the file", expected=hunk.old)
    olds, news = source.places(hunk.old, spans), source.places(hunk.new, spans)
    slack = len(hunk.new) - len(hunk.old)
    if len(news) == 1 and all(news[0] <= old <= news[0] + slack for old in olds):
        return FileResult(path, "applied", news[0] + 1)
    if len(olds) == 1:
        return FileResult(path, "applies", olds[0] + 1)
    if olds:
        detail = f"the old lines are {len(olds)} times in {scope}: lines {', '.join(str(old + 1) for old in olds)}"
        return FileResult(path, "ambiguous", olds[0] + 1, detail, expected=hunk.old)
    index = nearest(source, hunk, spans)
    found = tuple(line.decode(source.encoding, "replace") for line in source.lines[index : index + len(hunk.old)])
    detail = f"the old lines are not in {scope}"
    return FileResult(path, "conflict", index + 1, detail, expected=hunk.old, found=found)


def nearest(source: Source, hunk: Hunk, spans: Sequence[tuple[int, int]]) -> int:
    """Where to look: the place in the spans most like the old lines, or closest to their line."""
    wanted = [set(line.encode(source.encoding).split()) for line in hunk.old]

    def likeness(index: int) -> tuple[int, int]:
        there = source.lines[index : index + len(wanted)]
        alike = sum(len(words & set(line.split())) for words, line in zip(wanted, there, strict=False))
        return alike, -abs(index + 1 - hunk.line)

    return max((index for begin, end in spans for index in range(begin, end)), key=likeness, default=0)


# This machine: the installed vLLM


def clean_search_path() -> list[str]:
    """Take this script's folder, the working folder and old overlays off sys.path; returns PYTHONPATH so."""
    given = os.environ.get("PYTHONPATH", "")
    named = given.split(os.pathsep) if given else []
    # Python makes absolute paths of these, and the working folder of an empty entry
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
    """The folder of the installed package, found without importing it; LaunchError(4) when there is none."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        raise LaunchError(4, f"there is no vllm in the Python that runs this: {sys.executable}")
    return Path(spec.origin).absolute().parent


def vllm_version(package: Path) -> str:
    """The version in vllm/_version.py (read, not run), else of the distribution it is in, else "unknown"."""
    with contextlib.suppress(OSError):
        stated = stated_version((package / "_version.py").read_bytes())
        if stated:
            return stated
    for found in importlib.metadata.distributions(path=[str(package.parent)]):
        if "vllm/__init__.py" in map(str, found.files or ()):
            return found.version
    return "unknown"


def stated_version(data: bytes) -> str | None:
    """The version that the text of vllm/_version.py states; it is not run."""
    with contextlib.suppress(*UNREADABLE):
        for node in quietly(ast.parse, data).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                if names & {"__version__", "version"} and isinstance(node.value.value, str):
                    return node.value.value
    return None


def read_from(package: Path) -> Read:
    """A reader of the installed package that follows no link out of it (LaunchError(2))."""
    root = os.path.realpath(package)

    def read(path: str) -> bytes | None:
        real = os.path.realpath(Path(root, *path.split("/")[1:]))
        if os.path.commonpath([root, real]) != root:
            raise LaunchError(2, f"invalid: {path} of the installed vllm is a link that leads out of it, to {real}")
        return Path(real).read_bytes() if Path(real).is_file() else None

    return read


# This machine: the packages vLLM needs


def installed_version(name: str, path: Sequence[str]) -> str | None:
    """The version of a distribution on a search path; None when it is not there."""
    for found in importlib.metadata.distributions(name=name, path=list(path)):
        return found.version
    return None


def meet_requires(plan: Plan, cache_dir: Path, version: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows for the report, and the folder of packages to add when this Python's own do not do."""
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
    state = "cached" if folder.is_dir() else install(wanted, folder)
    for row in rows:
        inside = installed_version(str(row["name"]), [str(folder)])
        row.update(found=inside or row["found"], state=state if inside else "present")
        if not contains(str(row["specifier"]), row["found"] or ""):
            raise LaunchError(4, f"{folder} does not hold {row['name']}{row['specifier']}: delete it and start again")
    return rows, [str(folder)]


def install(wanted: Sequence[str], folder: Path) -> str:
    """Install what pip would change into a folder, whole or not at all; a second start waits."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder.parent / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return "cached"
        pins = would_install(wanted)
        say(f"installing {', '.join(pins)} into {folder}")
        fresh = folder.with_name(folder.name + ".tmp")
        remove(fresh)
        try:
            pip(wanted, "install", "--quiet", "--no-deps", "--target", str(fresh), *pins)
            fresh.replace(folder)
        finally:
            remove(fresh)
    return "installed"


def would_install(wanted: Sequence[str]) -> list[str]:
    """Ask pip what has to change; LaunchError(4) when that is nothing, or what vLLM was built with."""
    answer = json.loads(pip(wanted, "install", "--quiet", "--dry-run", "--report", "-", *wanted))
    pins = {entry["metadata"]["name"].lower(): entry["metadata"]["version"] for entry in answer["install"]}
    if not pins:
        raise LaunchError(4, f"{', '.join(wanted)} is not met, yet pip has nothing to install")
    built_with = sorted({"torch", "vllm"} & set(pins))
    if built_with:
        raise LaunchError(4, f"{', '.join(wanted)} would replace {' and '.join(built_with)}; nothing was installed")
    return [f"{name}=={version}" for name, version in sorted(pins.items())]


def pip(wanted: Sequence[str], *arguments: str) -> str:
    """Run this Python's pip with the user's settings; LaunchError(4) with its last lines when it fails."""
    command = [sys.executable, "-I", "-m", "pip", *arguments, "--no-input", "--disable-pip-version-check"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode == 0:
        return done.stdout
    tail = [line for line in done.stderr.splitlines() if line.strip()][-5:]
    raise LaunchError(4, f"{', '.join(wanted)} is needed and pip cannot install it; nothing was changed", *tail)


# The overlay


def build_overlay(package: Path, run_dir: Path, changed: Mapping[str, bytes]) -> Path | None:
    """Remove the last overlay; build one in a fresh folder and put it in place, if anything changed."""
    overlay, fresh = run_dir / "overlay", run_dir / "overlay.new"
    remove(fresh)
    remove(overlay)
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
    """Link everything of a folder, write what changed, and go down only where something below changed."""
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
            (target / name).write_bytes(below[name][""])
        else:
            mirror(source / name, target / name, below[name])


def link_compiled(source: Path, target: Path, patched: set[str]) -> None:
    """Link the compiled files of a folder, but not those of patched modules: they hold the old code."""
    target.mkdir(mode=0o755)
    for name in (entry.name for entry in source.iterdir()):
        if name.partition(".")[0] not in patched:
            (target / name).symlink_to(source / name)


def remove(path: Path) -> None:
    """Delete a file, a link (never what it points to) or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# The start


def say(line: str) -> None:
    """One line to stderr, with everything escaped that a terminal would act on."""
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
    print(f"gemmaspec: {text}", file=sys.stderr, flush=True)


def milliseconds(began: float) -> float:
    """Time since a reading of time.perf_counter()."""
    return round((time.perf_counter() - began) * 1000, 1)


class Parser(argparse.ArgumentParser):
    """An argument parser that complains in one line."""

    def error(self, message: str) -> NoReturn:
        """LaunchError(2) in place of argparse's own exit."""
        raise LaunchError(2, f"{message}; usage: launch.py --plan FILE --run-dir DIR --cache-dir DIR -- COMMAND")


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our options before the first "--", the server's command after it."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = Parser(add_help=False, allow_abbrev=False)
    for name in ("--plan", "--run-dir", "--cache-dir"):
        parser.add_argument(name, type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--speculative-config", type=Path)
    options = parser.parse_args(argv[:split])
    if not argv[split + 1 :]:
        parser.error("there is no command after --")
    return options, list(argv[split + 1 :])


def speculative_arguments(path: Path | None) -> list[str]:
    """The flag for vLLM, with the file's JSON on one line."""
    if path is None:
        return []
    try:
        data = json.loads(path.read_bytes())
        check(isinstance(data, dict), "not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise LaunchError(2, f"cannot use the speculative config {path}: {error}") from None
    return ["--speculative-config", json.dumps(data, separators=(",", ":"))]


def take_run_dir(path: Path) -> int:
    """Make and lock the run folder; the lock is held as long as this process and the server it becomes."""
    if path.is_symlink():
        raise LaunchError(2, f"the run folder {path} is a link: use another --run-dir")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = path.stat().st_uid
    if owner not in (0, os.geteuid()):
        raise LaunchError(2, f"the run folder {path} belongs to user {owner}: use another --run-dir")
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 20).decode("ascii", "replace").strip() or "?"
        raise LaunchError(6, f"already running: process {holder} holds {path}; stop it first") from None
    os.truncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    return lock


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write the report whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    remove(fresh)
    try:
        fresh.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        fresh.replace(path)
    finally:
        remove(fresh)


def patch_row(result: PatchResult, pristine: Mapping[str, bool | None]) -> dict[str, Any]:
    """One patch in the report; `pristine` says of the installed files whether they are as released."""
    files = [
        {
            "path": file.path,
            "state": file.state,
            "line": file.line,
            "detail": file.detail,
            "sha256_before": None if file.before is None else sha256(file.before),
            "sha256_after": None if file.after is None else sha256(file.after),
            "pristine": pristine.get(file.path),
        }
        for file in result.files
    ]
    row = {"patch": result.patch.id, "required": result.patch.required, "state": result.state}
    return {**row, "variant": result.variant, "runner": result.patch.runner, "files": files}


def without_secrets(command: Sequence[str]) -> list[str]:
    """The command with every value of a secret flag, abbreviated or not, replaced by "***"."""
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
    """Say what happens to a patch and, when it does not fit, what a human needs to see why."""
    patch = result.patch
    variant = f" ({result.variant})" if result.variant else ""
    runner = "" if patch.runner == "any" else f", acts under model runner {patch.runner} only"
    say(f"patch {patch.id}: {result.state}{variant}{runner}")
    for file in result.files:
        if result.state in FITS or file.state in ("applies", "applied"):
            continue
        say(f"  {file.path}:{file.line or 1}: {file.state}: {file.detail}")
        for line in file.expected:
            say(f"  expected | {line}")
        for line in file.found:
            say(f"     found | {line}")
    if result.state not in FITS:
        say(f"  written for vllm {' or '.join(variant.specifier for variant in patch.variants)}")


def look_at_files(plan: Plan, results: Sequence[PatchResult], version: str, read: Read) -> dict[str, bool | None]:
    """For every file that a patch looked at and that is there: whether the installed one is as released."""
    found = {file.path: read(file.path) for result in results for file in result.files}
    return {path: is_pristine(plan, path, data, version) for path, data in found.items() if data is not None}


def warn_of_edits(pristine: Mapping[str, bool | None], version: str) -> None:
    """Be loud about files that somebody edited; it is the patches' old lines that decide about the start."""
    for path, as_released in pristine.items():
        if as_released is False:
            say(f"WARNING: {path} is not the file that vllm {version} was released with: somebody edited it")


def stop_on_conflict(results: Sequence[PatchResult], version: str) -> None:
    """LaunchError(5) when a required patch does not fit; an optional one is left out, loudly."""
    unfit = [result for result in results if result.state not in FITS]
    for result in unfit:
        if not result.patch.required:
            say(f"WARNING: the optional patch {result.patch.id} does not fit vllm {version} and is left out")
    required = ", ".join(result.patch.id for result in unfit if result.patch.required)
    if required:
        advice = "next: run a vllm release that the patch is written for, or take the patch out of the profile"
        raise LaunchError(5, f"{required} does not fit vllm {version}: vllm was not started", advice)


def become(command: Sequence[str], pythonpath: Sequence[str], lock: int) -> NoReturn:
    """Replace this process by the server, found beside this Python or on PATH; the lock goes with it."""
    beside = Path(sys.executable).parent / command[0]
    program = str(beside) if os.access(beside, os.X_OK) and beside.is_file() else shutil.which(command[0])
    if program is None:
        raise LaunchError(4, f"there is no program {command[0]} beside {sys.executable} or on PATH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(pythonpath)}
    if not pythonpath:
        del environment["PYTHONPATH"]  # an empty one would mean the working folder
    os.set_inheritable(lock, True)
    try:
        os.execvpe(program, list(command), environment)  # noqa: S606 - an argv list, no shell
    except OSError as error:
        raise LaunchError(4, f"cannot run {program}: {error.strerror}") from None


def launch(argv: Sequence[str]) -> NoReturn:
    """The whole start, in order."""
    options, command = parse_arguments(argv)
    plan = load_plan(options.plan)
    command += speculative_arguments(options.speculative_config)
    lock = take_run_dir(options.run_dir)
    report_file = options.run_dir / "report.json"
    remove(report_file)  # a report is always that of the last start
    pythonpath = clean_search_path()
    package = locate_vllm()
    version = vllm_version(package)
    say(f"patching vllm {version} at {package}")
    began = time.perf_counter()
    read = read_from(package)
    results, changed = decide_plan(plan, version, read)
    pristine = look_at_files(plan, results, version, read)
    deciding = milliseconds(began)
    report: dict[str, Any] = {
        "schema": 1,
        "profile": plan.profile,
        "plan_sha256": plan.sha256,
        "gemmaspec": plan.gemmaspec,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": sys.version.split()[0],
        "pid": os.getpid(),
        "vllm": {"version": version, "path": str(package)},
        "overlay": None,
        "overlay_ms": None,
        "requires": [],
        "patches": [patch_row(result, pristine) for result in results],
        "command": without_secrets(command),
    }
    write_report(report_file, report)
    for result in results:
        tell(result)
    warn_of_edits(pristine, version)
    say(f"patches decided in {deciding} ms")
    stop_on_conflict(results, version)
    report["requires"], front = meet_requires(plan, options.cache_dir, version)
    began = time.perf_counter()
    overlay = build_overlay(package, options.run_dir, changed)
    if overlay:
        report["overlay"], report["overlay_ms"] = str(overlay), milliseconds(began)
        front.insert(0, str(overlay))
    write_report(report_file, report)
    ready = f"overlay ready in {report['overlay_ms']} ms" if overlay else "no file needs a patch, no overlay"
    say(f"{ready}, starting vllm")
    become(command, [*front, *pythonpath], lock)


def main(argv: Sequence[str]) -> int:
    """Run the start and turn whatever ends it into lines and an exit code, never a traceback."""
    try:
        launch(argv)
    except LaunchError as error:
        for line in error.lines:
            say(line)
        return error.code
    except KeyboardInterrupt:
        say("interrupted; vllm was not started")
        return 130
    except OSError as error:
        say(f"{error.filename or 'the run folder'}: {error.strerror}; vllm was not started")
        return 4
    except Exception as error:  # a container's log must not end in a traceback
        say(f"this is a bug in gemmaspec: {type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
