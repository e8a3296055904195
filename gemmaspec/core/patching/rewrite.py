"""Edit patch.yaml as text, so that a person's comments, order and quoting stay; write the skeleton of a new one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from gemmaspec.core import launcher, strict_yaml
from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching.patch import UNWRITTEN, Imported

_WIDTH: Final = 120
_PLAIN: Final = re.compile(r"[A-Za-z_][\w.]*")
_PLAIN_PATH: Final = re.compile(r"[A-Za-z][\w./-]*")


@dataclass(frozen=True, kw_only=True)
class NewVariant:
    """A variant to write: the diff's file, the first release of its range, and the scopes of its hunks by file."""

    diff: str
    floor: str
    scopes: Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The ranges of all variants including a new one, whose position is `index`."""

    versions: tuple[str, ...]
    index: int


def ranges_with(ranges: Sequence[str], floor: str) -> Ranges:
    """Insert a range that begins at `floor`. It ends where the next one begins, or where the one that it splits ended.

    `ranges` are as in `load_patch`. Raise PatchError if one of them already begins at `floor`.
    """
    bounds = [[*text[2:].split(",<"), ""][:2] for text in ranges]
    at = launcher.release_key(floor)
    if any(launcher.release_key(low) == at for low, _ in bounds):
        raise PatchError(f"a variant for vllm {floor} and newer already exists: >={floor}")
    index = sum(launcher.release_key(low) < at for low, _ in bounds)
    high = bounds[index][0] if index < len(bounds) else ""
    if index:
        low, end = bounds[index - 1]
        if not end or launcher.release_key(end) > at:
            bounds[index - 1], high = [low, floor], end
    bounds.insert(index, [floor, high])
    versions = []
    for low, end in bounds:
        versions.append(f">={low},<{end}" if end else f">={low}")
    return Ranges(versions=tuple(versions), index=index)


def with_variant(text: str, variant: NewVariant, *, name: str) -> str:
    """Return the text with one more variant and adjusted ranges.

    Raise PatchError if this is impossible without changing anything else.
    """
    data = _data(text, name)
    ranges = ranges_with([row["versions"] for row in data["variants"]], variant.floor)
    old_ranges = [*ranges.versions[: ranges.index], *ranges.versions[ranges.index + 1 :]]
    item = {"diff": variant.diff, "versions": ranges.versions[ranges.index], "scopes": _plain(variant.scopes)}
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    nodes = _values(root)
    edits = _range_edits(data["variants"], old_ranges, nodes["variants"])
    edits.append(_insertion(text, nodes["variants"], ranges.index, item))
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    _check(text, _expected(data, old_ranges, ranges.index, item), name)
    return text


def skeleton(id_: str, variant: NewVariant, origin: Imported | None) -> str:
    """Return the text of a new patch.yaml: loadable, unreviewed, with every missing text marked."""
    title = f"{UNWRITTEN}: what vLLM does with the patch, in one line"
    problem = f"{UNWRITTEN}: what goes wrong without the patch, with the exact error text"
    item = {"diff": variant.diff, "versions": f">={variant.floor}", "scopes": _plain(variant.scopes)}
    when = f"{UNWRITTEN}: under which conditions"
    drop_when = f"{UNWRITTEN}: when no vLLM in use needs it"
    author = f"{UNWRITTEN}: who wrote it"
    lines = [
        f"id: {id_}",
        f"title: {_scalar(title)}",
        "hole: >-",
        f"  {problem}",
        "required_by:",
        f"  methods: [{UNWRITTEN}]",
        f"  when: {_scalar(when)}",
        "runner: any",
        "speculation_only: false",
        "variants:",
        *_block(item, "  "),
        "superseded: []",
        "upstream: []",
        f"drop_when: {_scalar(drop_when)}",
        "licence: Apache-2.0",
        f"author: {_scalar(author)}",
    ]
    if origin:
        lines.append("imported:")
        for key, value in origin.model_dump().items():
            if value:
                lines.append(f"  {key}: {_scalar(value)}")
    return "\n".join([*lines, "reviewed: false"]) + "\n"


def diff_name(floor: str, taken: Iterable[str]) -> str:
    """Return the file name of a diff for releases from `floor` on: 0.33.diff for 0.33.0.

    Raise PatchError if it exists.
    """
    parts = floor.split(".")
    while len(parts) > 2 and parts[-1] == "0":
        parts.pop()
    short = ".".join(parts)
    for name in (f"{short}.diff", f"{floor}.diff"):
        if name not in taken:
            return name
    raise PatchError(f"the file {floor}.diff already exists")


def _data(text: str, name: str) -> dict[str, Any]:
    data: dict[str, Any] = strict_yaml.parse(text, file=name, error=PatchError).data
    return data


def _plain(scopes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {path: list(names) for path, names in scopes.items()}


def _values(node: yaml.MappingNode) -> dict[str, Any]:
    return {key.value: value for key, value in node.value}


def _range_edits(
    variants: Sequence[Mapping[str, Any]], ranges: Sequence[str], node: yaml.SequenceNode
) -> list[tuple[int, int, str]]:
    edits = []
    for variant, versions, item in zip(variants, ranges, node.value, strict=True):
        if variant["versions"] != versions:
            value = _values(item)["versions"]
            edits.append((value.start_mark.index, value.end_mark.index, json.dumps(versions)))
    return edits


def _insertion(text: str, node: yaml.SequenceNode, index: int, item: Mapping[str, Any]) -> tuple[int, int, str]:
    """Return the edit that inserts `item` at `index` of a list, in the list's own style."""
    items = node.value
    if node.flow_style:
        if index:
            at = items[index - 1].end_mark.index
        else:
            at = node.start_mark.index + 1
        flow = _flow(item)
        if index:
            flow = f", {flow}"
        elif items:
            flow = f"{flow}, "
        return at, at, flow
    if index:
        at = text.find("\n", _last(items[index - 1]))
        at = len(text) if at < 0 else at + 1
    else:
        at = int(node.start_mark.index - node.start_mark.column)
    indent = " " * node.start_mark.column  # a block list begins at its first dash
    one_line = items[0].flow_style
    lines = [f"{indent}- {_flow(item)}"] if one_line else []
    if not one_line or len(lines[0]) > _WIDTH:
        lines = _block(item, indent)
    missing = "" if not at or text[at - 1] == "\n" else "\n"
    return at, at, missing + "\n".join(lines) + "\n"


def _last(node: yaml.Node) -> int:
    """Return where the text of a node ends; the mark of a block includes blank lines and comments after it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _last(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index) - (1 if getattr(node, "style", None) in ("|", ">") else 0)


def _block(item: Mapping[str, Any], indent: str) -> list[str]:
    """Return a list item on several lines, one key per line; a long map of scopes has one path per line."""
    lines = []
    for key, value in item.items():
        line = f"{indent}  {key}: {_flow(value)}"
        if isinstance(value, Mapping) and len(line) > _WIDTH:
            lines += [f"{indent}  {key}:", *(f"{indent}    {_scalar(part)}: {_flow(value[part])}" for part in value)]
        else:
            lines.append(line)
    return [f"{indent}- {lines[0].lstrip()}", *lines[1:]]


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        members = [f"{_scalar(key)}: {_flow(inner)}" for key, inner in value.items()]
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: str) -> str:
    """Return a text as YAML, quoted unless it is a plain word or path that cannot be misread."""
    plain = _PLAIN.fullmatch(value) or _PLAIN_PATH.fullmatch(value) or re.fullmatch(r"[\d.-]+\.diff", value)
    words = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
    if plain and value.isascii() and value.lower() not in words:
        return value
    return json.dumps(value, ensure_ascii=False)


def _expected(data: Mapping[str, Any], ranges: Sequence[str], index: int, item: Mapping[str, Any]) -> dict[str, Any]:
    variants = []
    for row, versions in zip(data["variants"], ranges, strict=True):
        variants.append({**row, "versions": versions})
    variants.insert(index, dict(item))
    return {**data, "variants": variants}


def _check(text: str, expected: Mapping[str, Any], name: str) -> None:
    """Raise PatchError unless the edited text has the expected values and nothing else changed."""
    if _data(text, name) != expected:
        raise PatchError(f"{name}: variants: cannot be edited without rewriting the file")
