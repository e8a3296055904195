"""Edits of patch.yaml: what is written, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmaspec.core import data, strict_yaml
from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching.patch import Imported
from gemmaspec.core.patching.rewrite import NewVariant, diff_name, ranges_with, skeleton, with_variant

VARIANT = NewVariant(diff="0.34.diff", floor="0.34.0", scopes={"vllm/v1/m.py": ("C.f", "")})
BLOCK = """\
# a note on top
id: some-fix
variants:   # from old to new
  - diff: 0.19.diff
    versions: '>=0.19.0,<0.20'   # the first
    scopes: {vllm/m.py: [f]}

  # the newest
  - diff: 0.20.diff
    scopes:
      vllm/m.py:
        - f
    versions: '>=0.20.0'

# how it is seen
superseded:
- {path: vllm/m.py, scope: f, release: 0.34.0, tree: 0123456789abcdef}
# the end
author: somebody"""
ADDED = """\
    versions: ">=0.20.0,<0.34.0"
  - diff: 0.34.diff
    versions: ">=0.34.0"
    scopes: {vllm/v1/m.py: [C.f, ""]}
"""
BLOCK_AFTER = BLOCK.replace("    versions: '>=0.20.0'\n", ADDED)


def test_a_variant_is_added_and_every_comment_stays() -> None:
    assert with_variant(BLOCK, VARIANT, name="patch.yaml") == BLOCK_AFTER


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            'variants: [{diff: a.diff, versions: ">=0.19", scopes: {}}]\nid: x\n',
            'variants: [{diff: a.diff, versions: ">=0.19,<0.34.0", scopes: {}}, '
            '{diff: 0.34.diff, versions: ">=0.34.0", scopes: {vllm/v1/m.py: [C.f, ""]}}]\nid: x\n',
        ),
        (
            'variants:\n- {diff: a.diff, versions: ">=0.19", scopes: {}}\n',
            'variants:\n- {diff: a.diff, versions: ">=0.19,<0.34.0", scopes: {}}\n'
            '- {diff: 0.34.diff, versions: ">=0.34.0", scopes: {vllm/v1/m.py: [C.f, ""]}}\n',
        ),
        (
            'variants:\n  - {diff: a.diff, versions: ">=0.40", scopes: {}}\n',
            'variants:\n  - {diff: 0.34.diff, versions: ">=0.34.0,<0.40", scopes: {vllm/v1/m.py: [C.f, ""]}}\n'
            '  - {diff: a.diff, versions: ">=0.40", scopes: {}}\n',
        ),
        (
            'variants:\n  -\n    diff: a.diff\n    versions: ">=0.19"\n    scopes: {}',
            'variants:\n  -\n    diff: a.diff\n    versions: ">=0.19,<0.34.0"\n    scopes: {}\n'
            '  - diff: 0.34.diff\n    versions: ">=0.34.0"\n    scopes: {vllm/v1/m.py: [C.f, ""]}\n',
        ),
    ],
)
def test_the_new_variant_is_written_as_the_others_are(before: str, after: str) -> None:
    assert with_variant(before, VARIANT, name="patch.yaml") == after


def test_what_cannot_be_edited_alone_is_refused() -> None:
    text = 'variants:\n- diff: a.diff\n  versions: ">=0.19"\n  scopes: {}\n...\n'
    assert "0.34" in with_variant(text, VARIANT, name="patch.yaml")
    odd = '{variants: [{diff: a.diff, versions: ">=0.19", scopes: {}}, ], id: x}'
    assert with_variant(odd, VARIANT, name="patch.yaml").count("0.34.diff") == 1
    crlf = 'id: x\r\nvariants:\r\n- diff: a.diff\r\n  versions: ">=0.19"\r\n  scopes: {}\r\n'
    assert "0.34.diff" in with_variant(crlf, VARIANT, name="patch.yaml")


@pytest.mark.parametrize(
    ("ranges", "floor", "wanted"),
    [
        ([">=0.19.0"], "0.33.0", (">=0.19.0,<0.33.0", ">=0.33.0")),
        ([">=0.19,<0.20", ">=0.20"], "0.34.0", (">=0.19,<0.20", ">=0.20,<0.34.0", ">=0.34.0")),
        ([">=0.19,<0.33", ">=0.33"], "0.25.1", (">=0.19,<0.25.1", ">=0.25.1,<0.33", ">=0.33")),
        ([">=0.19,<0.20", ">=0.33"], "0.25.1", (">=0.19,<0.20", ">=0.25.1,<0.33", ">=0.33")),
        ([">=0.19,<0.20", ">=0.33"], "0.20.0", (">=0.19,<0.20", ">=0.20.0,<0.33", ">=0.33")),
        ([">=0.19"], "0.18.0", (">=0.18.0,<0.19", ">=0.19")),
    ],
)
def test_ranges_make_room(ranges: list[str], floor: str, wanted: tuple[str, ...]) -> None:
    assert ranges_with(ranges, floor).versions == wanted


def test_a_range_that_begins_there_already_is_refused() -> None:
    with pytest.raises(PatchError, match="already exists"):
        ranges_with([">=0.19", ">=0.33"], "0.33.0")


@pytest.mark.parametrize(
    ("floor", "taken", "name"),
    [
        ("0.33.0", [], "0.33.diff"),
        ("0.33.1", [], "0.33.1.diff"),
        ("0.33.0", ["0.33.diff"], "0.33.0.diff"),
        ("1.0.0", [], "1.0.diff"),
        ("0.10.0", [], "0.10.diff"),
        ("0.34", [], "0.34.diff"),
    ],
)
def test_a_diff_is_named_for_its_first_release(floor: str, taken: list[str], name: str) -> None:
    assert diff_name(floor, taken) == name


def test_a_skeleton_is_strict_yaml_and_unreviewed() -> None:
    origin = Imported(source='a "b": c', sha256="0" * 64, date="2026-11-20")
    found = strict_yaml.parse(skeleton("some-fix", VARIANT, origin), file="x", error=PatchError).data
    assert found["reviewed"] is False
    assert found["imported"] == {"source": 'a "b": c', "sha256": "0" * 64, "date": "2026-11-20"}
    assert found["variants"][0]["scopes"] == {"vllm/v1/m.py": ["C.f", ""]}


def test_names_that_yaml_would_read_as_something_else_are_quoted() -> None:
    variant = NewVariant(diff="0.34.diff", floor="0.34.0", scopes={"vllm/m.py": ("null", "no", "ünï", "x.y")})
    found = strict_yaml.parse(skeleton("x", variant, None), file="x", error=PatchError).data
    assert found["variants"][0]["scopes"]["vllm/m.py"] == ["null", "no", "ünï", "x.y"]


OPEN_ENDED = [file for file in sorted(data.PATCHES.glob("*/patch.yaml")) if "\nuntil:" not in file.read_text()]
"""A patch with `until` is done for later releases, and gets no further variant."""


@pytest.mark.parametrize("file", OPEN_ENDED, ids=lambda file: file.parent.name)
def test_every_shipped_patch_that_goes_on_can_be_edited(file: Path) -> None:
    before = file.read_text()
    after = with_variant(before, NewVariant(diff="9.9.diff", floor="9.9.0", scopes={"vllm/m.py": ("f",)}), name="x")
    changed = [line for line in before.splitlines() if line not in after.splitlines()]
    assert len(changed) == 1
    assert "versions" in changed[0]
