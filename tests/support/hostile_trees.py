"""A generator of hostile trees: real files of released wheels, changed at random, and what is true of each.

The oracle is the generator itself. It keeps every line of the file with a tag, so it knows where the patch belongs and
whether the hole is open, without asking the code that it is to judge. Seeded: the same number gives the same case.
"""

from __future__ import annotations

import ast
import functools
import os
import random
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gemmaspec.core.launcher import launch
from gemmaspec.core.launcher.launch import FileEdit, Hunk

RELEASES = ("0.19.0", "0.21.0", "0.26.0", "0.29.0", "0.32.0", "0.33.0")

Truth = Literal["open", "closed", "by hand", "refuse"]
"""What is so: the hole is open and has one right place; the patch is in word for word; it is in, written otherwise;
or there is no right answer but a refusal (half in, no place, two places, no Python)."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One tree, for one patch; `right` is the one set of files that patching may give."""

    number: int
    release: str
    version: str
    patch: str
    mutations: tuple[str, ...]
    truth: Truth
    files: Mapping[str, bytes | None]
    right: Mapping[str, bytes]
    rebound: bool = False
    """Whether other code may run than the patched: at least drifted."""
    link: tuple[str, str] = ("", "")
    """A file that is no plain one, and what it is: a link inside the package or out of it, a loop, a folder, a FIFO."""


@dataclass(kw_only=True)
class Draft:
    """A file under mutation: each line with the index that it has in the released file, None for one put in."""

    edit: FileEdit
    starts: tuple[int, ...]
    """Where the hunks belong, as indices of released lines."""
    stock: list[str]
    lines: list[tuple[int | None, str]]
    done: set[int] = field(default_factory=set)
    """The hunks that were put in, by hand or word for word."""
    wrap: Callable[[str], bytes | None] = lambda text: text.encode()

    def at(self, tag: int) -> int:
        """Where a released line is now."""
        return next(index for index, (one, _) in enumerate(self.lines) if one == tag)

    def insert(self, index: int, *texts: str) -> None:
        """Put lines in."""
        self.lines[index:index] = [(None, text) for text in texts]

    def put(self, number: int, new: Sequence[str]) -> None:
        """Put lines in the place of a hunk's."""
        begin = self.at(self.starts[number])
        self.lines[begin : begin + len(self.edit.hunks[number].old)] = [(None, text) for text in new]
        self.done.add(number)

    def data(self) -> bytes | None:
        """The file as it is to be found."""
        return self.wrap("".join(f"{text}\n" for _, text in self.lines))

    def patched(self) -> bytes | None:
        """The file with every hunk that is not in at its own place."""
        other = Draft(edit=self.edit, starts=self.starts, stock=self.stock, lines=[*self.lines], wrap=self.wrap)
        for number, hunk in enumerate(self.edit.hunks):
            if number not in self.done:
                other.put(number, hunk.new)
        return other.data()


@dataclass(kw_only=True)
class Tree:
    """All files of one patch in one release, under mutation."""

    patch: launch.Patch
    drafts: list[Draft]
    chance: random.Random
    truth: Truth = "open"
    rebound: bool = False
    link: tuple[str, str] = ("", "")

    @property
    def draft(self) -> Draft:
        """One of the files."""
        return self.chance.choice(self.drafts)

    def hunk(self) -> tuple[Draft, int, Hunk]:
        """One of the hunks, with its file and number."""
        draft = self.draft
        number = self.chance.randrange(len(draft.edit.hunks))
        return draft, number, draft.edit.hunks[number]


def function_node(source: Sequence[str], scope: str) -> ast.AST | None:
    """The function or class of a qualified name, by Python's own parser; the module for ""."""
    return _node("\n".join(source), scope)


@functools.lru_cache(maxsize=200)  # most questions are about a few released files
def _node(text: str, scope: str) -> ast.AST | None:
    node: ast.AST | None = ast.parse(text)
    for name in scope.split(".") if scope else ():
        found = [one for one in ast.walk(node) if getattr(one, "name", None) == name] if node else []
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        node = next((one for one in found if isinstance(one, kinds)), None)
    return node


def statement_around(draft: Draft, number: int) -> tuple[int, int] | None:
    """The released lines of the smallest statement of a block that holds a hunk's old lines, and is not all of it.

    A docstring is none: a copy of it changes nothing, so the place behind either is right.
    """
    hunk, start = draft.edit.hunks[number], draft.starts[number]
    first, last = start + 1, start + len(hunk.old)
    node = function_node(draft.stock, hunk.function)
    if node is None:
        return None
    spans = [
        (one.lineno, one.end_lineno or one.lineno)
        for one in ast.walk(node)
        if isinstance(one, ast.stmt) and one is not node and not is_text(one)
    ]
    around = [(a, b) for a, b in spans if a <= first and last <= b and b - a < 60]
    return min(((a - 1, b) for a, b in around), key=lambda span: span[1] - span[0], default=None)


def is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a string alone, as a docstring is."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


# Mutations: each changes the tree and what is true of it; False where there is nothing to change


def unrelated_code(tree: Tree) -> bool:
    """Code elsewhere in the file, and a release that nobody has seen."""
    draft = tree.draft
    draft.insert(len(draft.lines), "", "", "def _unrelated(x):", "    return x + 1")
    return True


def drift(tree: Tree) -> bool:
    """A statement more in the function, some lines away from the hunk."""
    draft, number, hunk = tree.hunk()
    node = function_node(draft.stock, hunk.function)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    far = [one for one in node.body if not draft.starts[number] - 6 < one.lineno - 1 < draft.starts[number] + 10]
    if not far:
        return False
    index = draft.at(tree.chance.choice(far).lineno - 1)
    draft.insert(index, f"{indent_of(draft.lines[index][1])}_drifted = {tree.chance.randrange(100)}")
    return True


def near_edit(tree: Tree) -> bool:
    """Another statement right above or below the old lines' own statement."""
    draft, number, _ = tree.hunk()
    span = statement_around(draft, number)
    if span is None:
        return False
    index = draft.at(span[0]) if tree.chance.random() < 0.5 else draft.at(span[1] - 1) + 1
    draft.insert(index, f"{indent_of(draft.stock[span[0]])}_near = 1")
    return True


def look_alike_outside(tree: Tree) -> bool:
    """The old or the new lines in a function of another name."""
    draft, number, hunk = tree.hunk()
    span = statement_around(draft, number)
    if span is None or not hunk.function:
        return False
    lines = draft.stock[slice(*span)]
    if tree.chance.random() < 0.5:
        at = draft.starts[number] - span[0]
        lines = [*lines[:at], *hunk.new, *lines[at + len(hunk.old) :]]
    indent = indent_of(lines[0])
    body = [line.removeprefix(indent) for line in lines]
    draft.insert(len(draft.lines), "", "", "def _look_alike(self):", *(f"    {line}" if line else "" for line in body))
    return True


def look_alike_inside(tree: Tree) -> bool:
    """The whole statement twice in the function: which one is meant cannot be known."""
    draft, number, hunk = tree.hunk()
    span = statement_around(draft, number)
    if span is None or hunk.function == "":
        return False
    copy = draft.stock[slice(*span)]
    index = draft.at(span[0]) if tree.chance.random() < 0.5 else draft.at(span[1] - 1) + 1
    filler = [f"{indent_of(copy[0])}_between = 0"] if tree.chance.random() < 0.5 else []
    draft.insert(index, *filler, *copy, *filler)
    tree.truth = "refuse"
    return True


def look_alike_and_true_edited(tree: Tree) -> bool:
    """A copy of the statement, and the true lines edited by somebody: no place is right."""
    draft, number, hunk = tree.hunk()
    span = statement_around(draft, number)
    if span is None:
        return False
    copy = draft.stock[slice(*span)]
    if tree.chance.random() < 0.4:  # as patched already, which it is not
        at = draft.starts[number] - span[0]
        copy = [*copy[:at], *hunk.new, *copy[at + len(hunk.old) :]]
    begin = draft.at(draft.starts[number])
    index = draft.at(span[0]) if tree.chance.random() < 0.5 else draft.at(span[1] - 1) + 1
    for at in range(begin, begin + len(hunk.old)):
        tag, text = draft.lines[at]
        draft.lines[at] = tag, edited(text)
    filler = [f"{indent_of(copy[0])}_between = 0"] if tree.chance.random() < 0.5 else []
    draft.insert(index, *filler, *copy, *filler)
    tree.truth = "refuse"
    return True


def decoy_and_true_edited(tree: Tree) -> bool:
    """The old lines alone in another branch of the function, and the true ones edited."""
    draft, number, hunk = tree.hunk()
    node = function_node(draft.stock, hunk.function)
    body = DECOYS.get(hunk.old)
    if body is None or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    begin = draft.at(draft.starts[number])
    for at in range(begin, begin + len(hunk.old)):
        tag, text = draft.lines[at]
        draft.lines[at] = tag, edited(text)
    statements = [one for one in node.body if indent_of(draft.stock[one.lineno - 1]) == indent_of(body[0])]
    index = draft.at(tree.chance.choice(statements[1:] or statements).lineno - 1)
    draft.insert(index, *body)
    tree.truth = "refuse"
    return True


DECOYS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("    except AssertionError:",): (
        "    try:",
        "        list(kv_cache_spec)",
        "    except AssertionError:",
        "        return False",
    ),
    ("        if self.supports_mm_inputs:",): (
        "        if self.supports_mm_inputs:",
        "            pass",
    ),
    ("        tgt_kv_cache_group.layer_names.append(layer_name)",): (
        "    for tgt_kv_cache_group in kv_cache_groups:",
        "        layer_name = ''",
        "        tgt_kv_cache_group.layer_names.append(layer_name)",
    ),
}


def edited(text: str) -> str:
    """A line as somebody else might have changed it; still Python."""
    if text.strip() == "except AssertionError:":
        return text.replace("AssertionError", "(AssertionError, KeyError)")
    if text.rstrip().endswith(":") and text.strip().startswith(("if ", "elif ")):
        return text.rstrip()[:-1] + " and True:"
    return f"{text}  # edited" if text.strip() else text


def true_edited(tree: Tree) -> bool:
    """The true lines edited, or with a blank at their end."""
    draft, number, hunk = tree.hunk()
    begin = draft.at(draft.starts[number])
    blank = tree.chance.random() < 0.3
    for at in range(begin, begin + len(hunk.old)):
        tag, text = draft.lines[at]
        draft.lines[at] = tag, f"{text} " if blank and text.strip() else edited(text)
    tree.truth = "refuse"
    return True


def in_a_string(tree: Tree) -> bool:
    """The old or the new lines in a string of the function; sometimes the true ones are edited as well."""
    draft, number, hunk = tree.hunk()
    node = function_node(draft.stock, hunk.function)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    first = next((one for one in node.body if not is_docstring(one)), None)
    if first is None:
        return False
    block = hunk.old if tree.chance.random() < 0.5 else hunk.new
    if "'''" in "".join(block):
        return False
    index = draft.at(first.lineno - 1)
    if tree.chance.random() < 0.5:
        tree.truth = "refuse"
        begin = draft.at(draft.starts[number])
        for at in range(begin, begin + len(hunk.old)):
            tag, text = draft.lines[at]
            draft.lines[at] = tag, edited(text)
    indent = indent_of(draft.stock[first.lineno - 1])
    prefix = tree.chance.choice(["", "f", "rb" if "".join(block).isascii() else ""])
    if prefix == "f" and re.search("[{}]", "".join(block)):
        prefix = ""
    draft.insert(index, f"{indent}_text = {prefix}'''", *block, f"{indent}'''")
    return True


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def half(tree: Tree) -> bool:
    """Some hunks are in, word for word, and others are not."""
    every = [(draft, number) for draft in tree.drafts for number in range(len(draft.edit.hunks))]
    if len(every) < 2:
        return False
    chosen = tree.chance.sample(every, tree.chance.randrange(1, len(every)))
    for draft, number in sorted(chosen, key=lambda one: -one[1]):
        draft.put(number, draft.edit.hunks[number].new)
    tree.truth = "refuse"
    return True


def closed(tree: Tree) -> bool:
    """All hunks are in, word for word."""
    for draft in tree.drafts:
        for number, hunk in reversed([*enumerate(draft.edit.hunks)]):
            draft.put(number, hunk.new)
    tree.truth = "closed"
    return True


def by_hand(tree: Tree) -> bool:
    """All hunks are in, one of them with other blanks or without its comments."""
    where = tree.hunk()[:2]
    for draft in tree.drafts:
        for number, hunk in reversed([*enumerate(draft.edit.hunks)]):
            chosen = (draft, number) == where
            draft.put(number, respelled(hunk, tree.chance) if chosen else hunk.new)
    tree.truth = "by hand"
    return True


def respelled(hunk: Hunk, chance: random.Random) -> list[str]:
    """The new lines with other blanks, another comment or none; the same code."""
    ways: list[Callable[[list[str]], list[str]]] = [
        lambda new: [f"{line} " if line in hunk.added and line.strip() else line for line in new],
        lambda new: [line for line in new if not (line in hunk.added and line.strip().startswith("#"))],
        lambda new: [f"{line}  # by hand" if line in hunk.added[-1:] else line for line in new],
        lambda new: [one for line in new for one in ((line, "") if line in hunk.added[-1:] else (line,))],
        lambda new: [
            line.replace(", ", " , ") if line in hunk.added and not "\"'".count(line) else line for line in new
        ],
    ]
    for way in chance.sample(ways, len(ways)):
        made = way(list(hunk.new))
        if made != list(hunk.new) and not any("'" in line or '"' in line for line in made if line not in hunk.new):
            return made
    return [*hunk.new[:-1], f"{hunk.new[-1]} "]


def defined_twice(tree: Tree) -> bool:
    """The function once more: another one behind it hides it; one before it is hidden."""
    draft, _, hunk = tree.hunk()
    node = function_node(draft.stock, hunk.function)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    begin = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1
    end = node.end_lineno or node.lineno
    copy = draft.stock[begin:end]
    indent = indent_of(draft.stock[node.lineno - 1])
    stub = [f"{indent}def {node.name}(*args, **kwargs):", f"{indent}    return True", ""]
    way = tree.chance.choice(["copy behind", "stub behind", "stub before"])
    if way == "stub before":
        draft.insert(draft.at(begin), *stub)
        return True
    draft.insert(draft.at(end - 1) + 1, "", *(copy if way == "copy behind" else stub))
    tree.truth = "refuse"
    return True


def renamed(tree: Tree) -> bool:
    """The function has another name; sometimes another one has its name."""
    draft, _, hunk = tree.hunk()
    node = function_node(draft.stock, hunk.function)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    at = draft.at(node.lineno - 1)
    tag, text = draft.lines[at]
    draft.lines[at] = tag, re.sub(rf"\b{node.name}\b", f"{node.name}_v2", text, count=1)
    tree.truth = "refuse"
    return True


def inside(hunk: Hunk, other: Hunk) -> bool:
    """Whether a hunk belongs to the function of another one."""
    return f"{hunk.function}.".startswith(f"{other.function}.")


def indented(tree: Tree) -> bool:
    """The function's body one level deeper; what goes before the body still has its place."""
    draft, _, hunk = tree.hunk()
    node = function_node(draft.stock, hunk.function)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not node.body:
        return False
    first, last = node.body[0].lineno - 1, node.end_lineno or node.lineno
    for index, (tag, text) in enumerate(draft.lines):
        if tag is not None and first <= tag < last and text.strip():
            draft.lines[index] = tag, f"    {text}"
    draft.insert(draft.at(first), f"{indent_of(draft.stock[first])}if True:")
    if any(first <= start for start, one in zip(draft.starts, draft.edit.hunks, strict=True) if inside(one, hunk)):
        tree.truth = "refuse"
    return True


def rebound(tree: Tree) -> bool:
    """The patched name, or its class, bound once more: the patch may go in, but not as if it certainly ran."""
    draft, _, hunk = tree.hunk()
    names = hunk.function.split(".")
    if not hunk.function or function_node(draft.stock, names[0]) is None:
        return False
    ways: list[tuple[str, ...]] = [(f"{names[0]} = _v2",), (f"from vllm._rust import {names[0]}",), ("exec('x = 1')",)]
    if len(names) > 1:
        ways = [(f"class _Fast({names[0]}):", "    pass", "", "", f"{names[0]} = _Fast")]
    ways += [(f"del {names[0]}",)]
    draft.insert(len(draft.lines), "", "", *tree.chance.choice(ways))
    tree.rebound = True
    return True


BAITS: Mapping[str, tuple[str, ...]] = {
    "kv-spec-uniform-valueerror": (
        'if not kv_cache_spec: raise ValueError("no KV cache specs")',
        "_why = 'except (AssertionError, ValueError): return False'",
        "_kinds = (AssertionError, ValueError)",
    ),
    "kv-sharing-uniform-specs": (
        'assert kv_cache_groups is not None, "no kv_cache_specs"',
        "_ = [getattr(one, 'kv_cache_specs', None) for one in kv_cache_groups]",
        "_why = 'tgt_kv_cache_group.kv_cache_spec.kv_cache_specs[layer_name] = 1'",
    ),
    "draft-text-only": (
        "_why = 'if self.supports_mm_inputs: self.supports_mm_inputs = False'",
        "_is = self.supports_mm_inputs == False",
        "logger.debug('self.supports_mm_inputs = False')",
    ),
    "nvfp4-awq": (
        "_why = 'layer.register_parameter(\"pre_quant_scale\")'",
        "_scale = getattr(None, 'pre_quant_scale', None)",
        "_named = 'x.pre_quant_scale'",
    ),
    "mtp-share-embeddings": ("_why = 'if share_embeddings and hasattr(self.model, x): draft_embed ='",),
    "eagle3-gemma4-target": ("_why = 'SupportsEagle3'",),
    "thought-channel-nonstreaming": ("_why = 'request.skip_special_tokens = False return request'",),
}


def bait(tree: Tree) -> bool:
    """Code, a string or a comment that speaks of what a `superseded` rule looks for, and closes nothing."""
    draft, number, hunk = tree.hunk()
    lines = BAITS.get(tree.patch.id)
    if lines is None:
        return False
    line = tree.chance.choice(lines)
    node = function_node(draft.stock, hunk.function)
    if tree.chance.random() < 0.4 and tree.patch.superseded:
        rule = tree.chance.choice(tree.patch.superseded)
        line = f"pass  # {rule.tree}"
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        far = [one for one in node.body if not is_docstring(one) and one.lineno - 1 < draft.starts[number] - 4]
        if far:
            index = draft.at(far[0].lineno - 1)
            draft.insert(index, f"{indent_of(draft.stock[far[0].lineno - 1])}{line}")
            return True
    elsewhere = line if "self" not in line and "kv_cache" not in line else f"_why = {line!r}"
    draft.insert(len(draft.lines), elsewhere)
    return True


def line_endings(tree: Tree) -> bool:
    """CRLF or CR throughout, or a byte order mark; the patch keeps them."""
    draft = tree.draft
    way = tree.chance.choice(["\r\n", "\r", "mark"])
    if way == "mark":
        draft.wrap = lambda text: b"\xef\xbb\xbf" + text.encode()
    else:
        draft.wrap = lambda text: text.replace("\n", way).encode()
    return True


def encoding(tree: Tree) -> bool:
    """Another encoding that says so."""
    draft = tree.draft
    name = tree.chance.choice(["latin-1", "cp1252", "utf-8", "ascii"])
    text = "".join(line for _, line in draft.lines) + "".join(line for hunk in draft.edit.hunks for line in hunk.new)
    if name != "utf-8" and not text.isascii():
        return False
    draft.insert(0, f"# -*- coding: {name} -*-")
    draft.wrap = lambda content: content.encode(name)
    return True


def broken(tree: Tree) -> bool:
    """No Python, in one of many ways, or no file."""
    draft = tree.draft
    ways: list[Callable[[str], bytes | None]] = [
        lambda text: b"# coding: rot13\n" + text.encode(),
        lambda text: b"# coding: hex\n" + text.encode(),
        lambda text: b"# coding: no-such-codec\n" + text.encode(),
        lambda text: text.encode("utf-16"),
        lambda text: text.encode() + b"\x00\n",
        lambda text: text.encode() + b"def (:\n",
        lambda text: text.encode() + b"x = '''\n",
        lambda text: text.encode() + b"(" * 500 + b"\n",
        lambda text: text.encode() + b"\xff\xfe = 1\n",
        lambda text: text.encode()[: len(text) // 2] + b"\n  (",
        lambda text: b"\xef\xbb\xbf# coding: latin-1\n" + text.encode(),
        lambda text: b"",
        lambda text: None,
    ]
    draft.wrap = tree.chance.choice(ways)
    tree.truth = "refuse"
    return True


def linked(tree: Tree) -> bool:
    """A link, a folder or a FIFO in the place of the file."""
    way = tree.chance.choice(["inside", "outside", "loop", "folder", "fifo"])
    tree.link = tree.draft.edit.path, way
    tree.truth = tree.truth if way == "inside" else "refuse"
    return True


MILD = (unrelated_code, drift, near_edit, look_alike_outside, bait)
"""After these the hole is open and the place is where it was."""
DECISIVE = (
    look_alike_inside, look_alike_and_true_edited, decoy_and_true_edited, true_edited, in_a_string, half, half, closed,
    by_hand, by_hand, defined_twice, renamed, indented,
)  # fmt: skip
WRAPPED = (line_endings, encoding, broken, linked)


def make_case(
    number: int, release: str, patch: launch.Patch, stock: Mapping[str, bytes | None], *, seed: int = 0
) -> Case:
    """The case of a number: the files of a release with some mutations, and what is true of them."""
    chance = random.Random(f"{seed} {number} {release} {patch.id}")
    tree = Tree(patch=patch, drafts=_drafts(patch, release, stock), chance=chance)
    unrelated_code(tree)  # no file is a known one
    said = []
    chosen = [*chance.sample(MILD, chance.randrange(3))]
    chosen += [chance.choice(DECISIVE)] if chance.random() < 0.8 else []
    chosen += [chance.choice(WRAPPED)] if chance.random() < 0.25 else []
    chosen += [rebound] if chance.random() < 0.2 else []
    for mutation in chosen:
        if mutation(tree):
            said.append(mutation.__name__)
    files: dict[str, bytes | None] = {**stock, **{one.edit.path: one.data() for one in tree.drafts}}
    right = {one.edit.path: one.patched() for one in tree.drafts} if tree.truth == "open" else {}
    return Case(
        number=number,
        release=release,
        version=chance.choice([release, release, f"{release}.dev1+gabc1234", "unknown"]),
        patch=patch.id,
        mutations=tuple(said),
        truth=tree.truth,
        files=files,
        right={path: data for path, data in right.items() if data is not None},
        rebound=tree.rebound,
        link=tree.link,
    )


def _drafts(patch: launch.Patch, release: str, stock: Mapping[str, bytes | None]) -> list[Draft]:
    (variant,) = launch.candidates(patch, release)
    found = []
    for edit in variant.files:
        known = next(entry for entry in edit.known if release in entry.vllm)
        lines = (stock[edit.path] or b"").decode().split("\n")
        lines = lines[:-1] if lines[-1] == "" else lines
        starts = tuple(line - 1 for line in known.lines)
        found.append(Draft(edit=edit, starts=starts, stock=lines, lines=[*enumerate(lines)]))
    return found


def judged(case: Case, patch: launch.Patch) -> tuple[str, str]:
    """The state that the launcher gives the tree, and what is wrong about it: "" for nothing."""
    plan = launch.Plan(1, "", "", (), (patch,), "")
    if not case.link[0]:
        (result,), changed = launch.decide_plan(plan, case.version, case.files.get)
        return result.state, wrong(case, result, changed)
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), case)
        try:
            (result,), changed = launch.decide_plan(plan, case.version, launch.read_from(Path(folder) / "vllm"))
        except launch.LaunchError:
            return "refused", ""
        return result.state, wrong(case, result, changed)


def _write(folder: Path, case: Case) -> None:
    """The tree on disk, with one file that is no plain one."""
    for path, data in case.files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if data is not None:
            file.write_bytes(data)
    file, way = folder / case.link[0], case.link[1]
    data = case.files[case.link[0]] or b""
    file.unlink(missing_ok=True)
    elsewhere = folder / ("vllm" if way == "inside" else ".") / "elsewhere.py"
    if way in ("inside", "outside"):
        elsewhere.write_bytes(data)
        file.symlink_to(elsewhere)
    elif way == "loop":
        file.symlink_to(file)
    elif way == "folder":
        file.mkdir()
    else:
        os.mkfifo(file)


def wrong(case: Case, result: launch.PatchResult, changed: Mapping[str, bytes]) -> str:
    """What is wrong about a decision; "" for one that is right, or a refusal where one is allowed."""
    if result.state not in launch.FITS:
        return ""
    if case.rebound and result.state in ("applies", "applied", "superseded"):
        return f"{result.state}, though its name is bound again"
    if case.rebound and case.truth in ("closed", "by hand") and not changed.items() - case.files.items():
        return ""  # it is in, and told as drifted
    if result.state in ("applies", "drifted"):
        if case.truth == "open":
            return "" if dict(changed) == dict(case.right) else "patched at a wrong place"
        return {"closed": "patched twice", "by hand": "patched twice"}.get(
            case.truth, "patched where no place is right"
        )
    if case.truth in ("closed", "by hand") and result.state in ("applied", "superseded"):
        return ""
    return f"called {result.state} when it is not"
