"""Patch folders: what is read, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core import strict_yaml
from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching.evidence import MAX_BYTES
from gemmaspec.core.patching.patch import load_patch, load_patches
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.stack.build import profile_plan

DIFF = "--- a/vllm/m.py\n+++ b/vllm/m.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
TEXT = """\
id: some-fix
title: A title
hole: What goes wrong
required_by: {methods: [draft_model], when: always}
runner: any
speculation_only: true
variants:
  - {diff: 0.19.diff, versions: ">=0.19.0", scopes: {vllm/m.py: [f]}}
superseded:
  - {path: vllm/m.py, scope: f, release: 0.34.0, tree: 0123456789abcdef}
upstream:
  - {url: "https://example.org/1", state: open, seen: "2026-11-20"}
drop_when: never
licence: Apache-2.0
author: somebody
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "some-fix"
    folder.mkdir()
    (folder / "0.19.diff").write_text(DIFF)
    (folder / "patch.yaml").write_text(TEXT)
    return folder


def refusal(folder: Path, old: str, new: str) -> str:
    """The message for the text with one thing changed."""
    assert old in TEXT
    (folder / "patch.yaml").write_text(TEXT.replace(old, new))
    with pytest.raises(PatchError) as error:
        load_patch(folder)
    return str(error.value)


def test_a_folder_is_read_with_its_diffs_and_scopes(folder: Path) -> None:
    patch = load_patch(folder)
    assert patch.id == "some-fix"
    assert patch.text.required_by.methods == ("draft_model",)
    (variant,) = patch.variants
    assert (variant.name, variant.specifier) == ("0.19", ">=0.19.0")
    (file,) = variant.files
    assert file.path == "vllm/m.py"
    assert (file.hunks[0].scope, file.hunks[0].line, file.hunks[0].old) == ("f", 1, ("a = 1",))


REFUSED = [
    ("id: some-fix", "id: other-fix", "id: other-fix does not match the name of the folder, some-fix"),
    ("id: some-fix", "id: ../x", "id: does not match ^"),
    ("title: A title", "titel: A title", "titel: unknown key; did you mean title?"),
    ("title: A title", "title: ''", "title: is empty"),
    ("runner: any", "runner: v3", "runner: must be 'any', 'v1' or 'v2', got 'v3'"),
    ("speculation_only: true", "", "speculation_only: is missing"),
    ("[draft_model]", "[]", "required_by.methods: is empty"),
    ('versions: ">=0.19.0"', 'versions: "0.19"', "variants.0.versions: '0.19' is not like >=0.19.0,<0.33"),
    ('">=0.19.0"', '">=0.19.0,<0.33"', "the last range must be open"),
    ('">=0.19.0"', '">=0.19.0,<0.19"', "overlaps the previous range or is empty"),
    ("0.19.diff", "../0.19.diff", "variants.0.diff: does not match ^"),
    ("0.19.diff", "gone.diff", "it does not name 0.19.diff"),
    (
        "{vllm/m.py: [f]}",
        "{vllm/m.py: [f, g]}",
        "has hunks {'vllm/m.py': 1}, but the scopes are {'vllm/m.py': 2}",
    ),
    ("{vllm/m.py: [f]}", "{vllm/n.py: [f]}", "the scopes are {'vllm/n.py': 1}"),
    ("tree: 0123456789abcdef", "tree: x", "superseded.0: tree is not a digest, or has no release"),
    ("scope: f, release", 'scope: "", release', "superseded.0.scope: is empty"),
    ("{path: vllm/m.py,", "{path: /etc/m.py,", "superseded.0.path: '/etc/m.py' is not the path of a .py file in vllm/"),
    ('"https://example.org/1"', '"javascript:x"', "upstream.0.url: does not match ^"),
    ('"2026-11-20"', '"yesterday"', "upstream.0.seen: does not match ^"),
    ("hole: What goes wrong", "hole: [", "patch.yaml"),
    (TEXT, "", "patch.yaml"),
    (TEXT, "- a list", "patch.yaml"),
]


@pytest.mark.parametrize(("old", "new", "message"), REFUSED, ids=[case[2] for case in REFUSED])
def test_a_fault_in_the_text_is_named_with_its_file(folder: Path, old: str, new: str, message: str) -> None:
    said = refusal(folder, old, new)
    assert message in said
    assert said.startswith(str(folder))


def test_all_faults_are_listed_at_once(folder: Path) -> None:
    (folder / "patch.yaml").write_text(TEXT.replace("title:", "titel:").replace("runner: any", "runner: 3"))
    with pytest.raises(PatchError) as error:
        load_patch(folder)
    assert len(str(error.value).splitlines()) == 3  # an unknown key, a missing one, a wrong value


def test_ranges_must_not_overlap(folder: Path) -> None:
    (folder / "0.20.diff").write_text(DIFF)
    second = '  - {diff: 0.20.diff, versions: ">=0.20", scopes: {vllm/m.py: [f]}}\nsuperseded:\n'
    assert "variants.1.versions: >=0.20 overlaps" in refusal(folder, "superseded:\n", second)
    (folder / "patch.yaml").write_text(TEXT.replace("superseded:\n", second).replace('">=0.19.0"', '">=0.19,<0.20"'))
    assert [variant.name for variant in load_patch(folder).variants] == ["0.19", "0.20"]


def test_a_diff_that_is_refused_is_named_by_file_and_line(folder: Path) -> None:
    (folder / "0.19.diff").write_text(DIFF + "garbage\n")
    with pytest.raises(PatchError, match=rf"^{folder}/0\.19\.diff:6: this line is outside all hunks"):
        load_patch(folder)


def test_a_diff_in_another_encoding_is_refused(folder: Path) -> None:
    (folder / "0.19.diff").write_bytes(DIFF.encode() + b"\xe9")
    with pytest.raises(PatchError, match=r"not UTF-8 at byte"):
        load_patch(folder)


def test_a_folder_without_patches_has_none(tmp_path: Path) -> None:
    assert load_patches(tmp_path) == {}
    assert load_patches(tmp_path / "nowhere") == {}


# the shipped ones


def test_the_shipped_patches_are_valid_and_say_when_they_can_go() -> None:
    patches = load_patches()
    assert set(patches) >= {"kv-spec-uniform-valueerror", "kv-sharing-uniform-specs", "draft-text-only"}
    for patch in patches.values():
        assert patch.text.drop_when
        assert patch.text.licence == "Apache-2.0"


def test_a_patch_is_parsed_again_when_a_byte_of_it_changes_and_only_then(folder: Path) -> None:
    first = load_patch(folder)
    assert load_patch(folder) is first
    for file, old, new in (("0.19.diff", "a = 2", "a = 3"), ("patch.yaml", "A title", "B title")):
        before = load_patch(folder)
        (folder / file).write_text((folder / file).read_text().replace(old, new))
        assert load_patch(folder) != before
    assert load_patch(folder).text.title == "B title"
    (folder / "more.diff").write_text(DIFF)
    with pytest.raises(PatchError, match=r"does not name more\.diff"):
        load_patch(folder)


def test_an_edit_while_a_patch_is_parsed_is_not_kept_for_the_bytes_before_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = strict_yaml.parse

    def edited(*given: Any, **more: Any) -> Any:
        (folder / "0.19.diff").write_text(DIFF.replace("a = 2", "a = 3"))
        return parse(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(strict_yaml, "parse", edited)
        first = load_patch(folder)
    assert load_patch(folder) != first
    (folder / "0.19.diff").write_text(DIFF)
    assert "a = 2" in load_patch(folder).variants[0].files[0].hunks[0].new


def test_a_diff_that_is_missing_is_named(folder: Path) -> None:
    (folder / "0.19.diff").unlink()
    with pytest.raises(PatchError, match=r"patch\.yaml: it names 0\.19\.diff, which is missing"):
        load_patch(folder)


def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(folder: Path) -> None:
    (folder / "patch.yaml").unlink()
    os.mkfifo(folder / "patch.yaml")
    with pytest.raises(PatchError, match=r"patch\.yaml: it is a named pipe, not a file"):
        load_patch(folder)


def test_a_file_that_is_too_large_is_not_read(folder: Path) -> None:
    with (folder / "known.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(PatchError, match=r"known\.json: is larger than 8 MiB, too large for a patch"):
        load_patch(folder)


def test_lines_of_another_system_are_read(folder: Path) -> None:
    (folder / "patch.yaml").write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert load_patch(folder).text.title == "A title"


def test_every_shipped_hunk_in_a_function_has_a_scope_and_none_has_more_lines_than_it_needs() -> None:
    for patch in load_patches().values():
        for variant in patch.variants:
            for file in variant.files:
                for hunk in file.hunks:
                    on_module_level = len(hunk.old[0]) - len(hunk.old[0].lstrip()) <= 4
                    assert hunk.scope or on_module_level, f"{patch.id} {variant.name} {file.path}"
                    assert len(hunk.old) <= 7


def test_an_unreviewed_patch_may_have_texts_that_are_yet_to_be_written(folder: Path) -> None:
    text = TEXT.replace("What goes wrong", '"TODO: what goes wrong"')
    (folder / "patch.yaml").write_text(text + "reviewed: false\n")
    assert not load_patch(folder).text.reviewed
    (folder / "patch.yaml").write_text(text + "reviewed: true\n")
    with pytest.raises(PatchError, match="hole: not written yet"):
        load_patch(folder)


def test_a_profile_can_have_an_unreviewed_patch_as_an_optional_one_alone(folder: Path) -> None:
    (folder / "patch.yaml").write_text(TEXT + "reviewed: false\n")
    patches = load_patches(folder.parent)
    profile = load_profile("tiny-cpu").profile
    chosen = profile.patches.model_copy(update={"required": [], "optional": ["some-fix"]})
    assert profile_plan(profile.model_copy(update={"patches": chosen}), patches)["patches"][0]["id"] == "some-fix"
    required = profile.patches.model_copy(update={"required": ["some-fix"], "optional": []})
    with pytest.raises(PatchError, match="but unreviewed patches can only be optional"):
        profile_plan(profile.model_copy(update={"patches": required}), patches)


def test_the_scope_can_be_the_whole_file(folder: Path) -> None:
    (folder / "patch.yaml").write_text(TEXT.replace("[f]", '[""]'))
    patch = load_patch(folder)
    assert patch.variants[0].files[0].hunks[0].scope == ""
