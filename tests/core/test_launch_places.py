"""Where a hunk belongs in a file that is not known, and what is never said of one: applied, superseded, not needed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gemmaspec.core import data
from gemmaspec.core.launcher import launch
from gemmaspec.core.launcher.launch import FileEdit, Hunk, Known, Patch, PatchResult, Rule, Variant
from gemmaspec.core.patching.places import place_of
from tests.support.launching import tree_of_function

PATH, OTHER = "vllm/a.py", "vllm/b.py"
STOCK = '''\
LIMITS = [
    "one",
    "two",
]


def plan(specs):
    """Merge the specs.

    Some text.
    """
    if not specs:
        return True
    try:
        values = list(specs.values())
        merged = values[0].merge(values)
    except AssertionError:
        return False
    return merged is not None


def other(specs):
    return len(specs)
'''
HUNK = Hunk(
    "plan",
    17,
    ("    except AssertionError:",),
    ("    except (AssertionError, ValueError):", "        # windows differ"),
)
RULE = Rule(PATH, "plan", release="0.35.0", tree="0" * 16)
OTHER_RULE = Rule(PATH, "other", release="0.34.0", tree=tree_of_function(STOCK, "other"))
DECOY = "    try:\n        list(specs)\n    except AssertionError:\n        return False\n"
EDITED = STOCK.replace("except AssertionError:", "except (AssertionError, KeyError):")


def known_edit(*hunks: Hunk, stock: str = STOCK, path: str = PATH, release: str = "0.33.0") -> FileEdit:
    """An edit that knows the stock file as that of a release."""
    source = launch.Source(stock.encode())
    found = [launch.find_hunk(hunk, source).index or 0 for hunk in hunks]
    after = source.replaced(zip(found, hunks, strict=True))
    places = tuple(
        place_of(hunk, source, index, launch.Source(after)) for hunk, index in zip(hunks, found, strict=True)
    )
    lines = tuple(index + 1 for index in found)
    entry = Known((release,), launch.sha256(stock.encode()), lines, launch.sha256(after), places)
    return FileEdit(path, hunks, (entry,))


def patch_of(*edits: FileEdit, rules: tuple[Rule, ...] = (RULE,), specifier: str = ">=0.33") -> Patch:
    return Patch("p", "t", True, "any", rules, (Variant("v", specifier, edits or (known_edit(HUNK),)),))


def decided(text: str, patch: Patch | None = None, version: str = "0.34.0") -> PatchResult:
    return launch.decide_patch(patch or patch_of(), version, {PATH: text.encode()}.get)


def after(result: PatchResult) -> str:
    return (result.files[0].after or b"").decode()


# half in, and rules


TWO = (Hunk("", 2, ('    "one",',), ('    "one",', '    "new",')), HUNK)


@pytest.mark.parametrize("number", [0, 1])
def test_half_of_a_patch_is_a_conflict_though_a_rule_would_match(number: int) -> None:
    patch = patch_of(known_edit(*TWO), rules=(OTHER_RULE,))
    half = STOCK.replace("\n".join(TWO[number].old), "\n".join(TWO[number].new), 1)
    result = decided(half, patch)
    assert result.state == "conflict"
    assert result.half
    assert result.files[0].expected == TWO[1 - number].new


def test_half_of_a_patch_over_two_files_is_a_conflict_though_a_rule_would_match() -> None:
    edits = known_edit(HUNK), known_edit(HUNK, path=OTHER)
    patch = patch_of(*edits, rules=(OTHER_RULE,))
    done = STOCK.replace("\n".join(HUNK.old), "\n".join(HUNK.new))
    for first, second in ((done, STOCK), (STOCK, done), (done, EDITED), (EDITED, done)):
        files = {PATH: first.encode(), OTHER: second.encode()}
        assert launch.decide_patch(patch, "0.34.0", files.get).state == "conflict"
    assert launch.decide_patch(patch, "0.34.0", {PATH: done.encode()}.get).state == "missing"


@pytest.mark.parametrize("line", [
    'raise ValueError("no specs")', "kinds = (AssertionError, ValueError)",
    "text = 'except (AssertionError, ValueError): return False'", "pass  # except (AssertionError, ValueError): return False",
])  # fmt: skip
def test_what_only_speaks_of_a_rule_does_not_close_the_hole(line: str) -> None:
    text = STOCK.replace("    if not specs:\n", f"    if not specs:\n        {line}\n")
    assert decided(text).state in ("applies", "drifted")
    assert decided(text.replace("except AssertionError:", "except (AssertionError, KeyError):")).state == "conflict"


def test_where_the_old_lines_stand_nothing_is_superseded() -> None:
    assert decided(STOCK + "\n", patch_of(rules=(OTHER_RULE,))).state == "applies"
    assert decided(EDITED, patch_of(rules=(OTHER_RULE,))).state == "superseded"


def test_all_digests_of_a_release_must_hold() -> None:
    gone = Rule(PATH, "plan", release="0.34.0", tree="0" * 16)
    assert decided(EDITED, patch_of(rules=(OTHER_RULE, gone))).state == "conflict"
    assert decided(EDITED, patch_of(rules=(OTHER_RULE, replace(gone, release="0.35.0")))).state == "superseded"


# places


def test_another_handler_is_not_the_place_when_the_true_one_was_edited() -> None:
    result = decided(EDITED.replace("    try:\n", DECOY + "    try:\n", 1))
    assert result.state == "conflict"
    assert "in a context that no known release has" in result.files[0].detail


@pytest.mark.parametrize("between", ["", "    x = 0\n"])
def test_a_copy_of_the_statement_is_not_the_place_when_the_true_one_was_edited(between: str) -> None:
    begin, end = STOCK.index("    try:"), STOCK.index("    return merged")
    copy = STOCK[begin:end]
    assert (
        decided(EDITED[: EDITED.index("    try:")] + copy + between + EDITED[EDITED.index("    try:") :]).state
        == "conflict"
    )
    at = EDITED.index("    return merged")
    assert decided(EDITED[:at] + between + copy + EDITED[at:]).state == "conflict"


def test_lines_in_a_string_are_no_place_and_no_trace() -> None:
    old = STOCK.replace("    Some text.", "    except AssertionError:")
    assert after(decided(old)) == old.replace("try:", "try:").replace(
        "        merged = values[0].merge(values)\n    except AssertionError:",
        "        merged = values[0].merge(values)\n" + "\n".join(HUNK.new),
    )
    only = EDITED.replace("    Some text.", "    except AssertionError:")
    result = decided(only)
    assert (result.state, "inside a string" in result.files[0].detail) == ("conflict", True)
    new = EDITED.replace("    Some text.", "\n".join(HUNK.new))
    assert decided(new).state == "conflict"
    assert decided(new, patch_of(FileEdit(PATH, (HUNK,)))).state == "conflict"  # without known places too


def test_a_hunk_that_was_made_in_a_string_is_found_in_one() -> None:
    inside = Hunk("plan.__doc__", 10, ("    Some text.",), ("    Other text.",))
    patch = patch_of(FileEdit(PATH, (inside,)), rules=())
    result = decided(STOCK, patch)
    assert (result.state, after(result)) == ("drifted", STOCK.replace("Some text", "Other text"))
    assert "no place is recorded for its lines" in result.files[0].detail
    assert decided(after(result), patch).state == "applied"
    assert (
        decided(STOCK.replace("    Some text.", "").replace("    if not", "    Some text.\n    if not"), patch).state
        == "conflict"
    )


def test_a_function_that_is_defined_twice_is_ambiguous_in_a_file_that_is_not_known() -> None:
    result = decided(STOCK + "\n\ndef plan(specs):\n    return True\n")
    assert (result.state, "defined 2 times" in result.files[0].detail) == ("ambiguous", True)


# drift


def test_a_function_that_did_not_change_says_since_when() -> None:
    result = decided(STOCK.replace("    return len", "    return 1 + len"))
    assert (result.state, result.files[0].detail) == ("applies", "plan unchanged since 0.33.0")


def test_a_function_that_changed_is_drifted_and_says_since_when() -> None:
    text = STOCK.replace("        return True\n", "        return None\n")
    result = decided(text)
    assert result.state == "drifted"
    assert result.files[0].detail == "plan changed since 0.33.0"
    assert after(result) == text.replace("\n".join(HUNK.old), "\n".join(HUNK.new))


def test_a_profile_may_refuse_what_has_drifted() -> None:
    text = STOCK.replace("        return True\n", "        return None\n")
    plan = launch.Plan(1, "", "", (), (patch_of(),), "", "refuse")
    (result,), changed = launch.decide_plan(plan, "0.34.0", {PATH: text.encode()}.get)
    assert (result.state, dict(changed)) == ("conflict", {})
    assert "patches.drift: refuse" in result.files[0].detail
    assert launch.decide_plan(replace(plan, drift="warn"), "0.34.0", {PATH: text.encode()}.get)[1]


def test_a_file_of_another_release_is_named() -> None:
    result = decided(STOCK, version="0.34.0")
    assert result.files[0].detail == "this is 0.33.0's file in a 0.34.0 tree"
    assert decided(STOCK, version="0.33.0").files[0].detail == ""


def test_what_another_patch_put_next_to_a_place_does_not_hide_it() -> None:
    beside = Hunk(
        "plan",
        16,
        ("        merged = values[0].merge(values)",),
        ("        merged = values[0].merge(values)", "        x = 0"),
    )
    first = replace(patch_of(known_edit(beside), rules=()), id="first")
    plan = launch.Plan(1, "", "", (), (first, patch_of()), "")
    results, changed = launch.decide_plan(plan, "0.33.0", {PATH: STOCK.encode()}.get)
    assert [one.state for one in results] == ["applies", "applies"]
    assert b"x = 0\n    except (AssertionError, ValueError):" in changed[PATH]


# by hand


@pytest.mark.parametrize("by_hand", [
    "    except (AssertionError, ValueError):\n        # windows differ \n",
    "    except (AssertionError, ValueError):\n",
    "    except (AssertionError,  ValueError): # mine\n",
    "    except (\n        AssertionError,\n        ValueError,\n    ):\n",
])  # fmt: skip
def test_what_was_put_in_by_hand_is_not_put_in_again(by_hand: str) -> None:
    text = STOCK.replace("    except AssertionError:\n", by_hand)
    assert decided(text).state == "applied"
    assert decided(text, patch_of(rules=())).state == "applied"
    drifted = text.replace("return True", "return None")
    assert decided(drifted, patch_of(rules=())).state in ("conflict", "applied")


def test_an_insertion_that_is_in_by_hand_is_not_put_in_again() -> None:
    insertion = Hunk(
        "other", 22, ("    return len(specs)",), ("    # why", "    specs = dict(specs)", "    return len(specs)")
    )
    patch = patch_of(known_edit(insertion), rules=())
    assert decided(STOCK.replace("    return len", "    specs = dict(specs)\n    return len"), patch).state == "applied"
    elsewhere = STOCK.replace("    return len", "    specs  = dict(specs)\n    y = 0\n    return len")
    assert decided(elsewhere, patch).state == "conflict"


# builds that are no release


ENDED = replace(patch_of(), variants=(Variant("v", ">=0.19,<0.20", (known_edit(HUNK),)),))


@pytest.mark.parametrize(("version", "state"), [
    ("0.33.1.dev45+gabc", "not-needed"), ("0.20.0+ours", "not-needed"), ("0.18.0.dev1", "not-needed"),
    ("0.20.0.dev3", "conflict"), ("0.20.0rc1", "conflict"), ("0.19.1.dev1", "conflict"), ("unknown", "conflict"),
])  # fmt: skip
def test_beyond_its_range_a_patch_whose_lines_are_gone_is_not_needed(version: str, state: str) -> None:
    assert decided(EDITED, ENDED, version).state == state
    assert decided(STOCK, ENDED, version).state == "applies"


def test_beyond_its_range_half_a_patch_is_a_conflict_still() -> None:
    patch = replace(ENDED, variants=(Variant("v", ">=0.19,<0.20", (known_edit(*TWO),)),))
    half = STOCK.replace(TWO[0].old[0], "\n".join(TWO[0].new))
    assert decided(half, patch, "0.33.1.dev45").state == "conflict"


# files


@pytest.mark.parametrize("codec", ["rot13", "hex", "no-such", "punycode", "utf-16"])
def test_an_encoding_that_is_none_of_text_is_a_conflict(codec: str) -> None:
    whole = Hunk("", 1, ("x = 1",), ("x = 2",))
    result = launch.decide_file(FileEdit(PATH, (whole,)), f"# coding: {codec}\nx = 1\n".encode())
    assert result.state in ("conflict", "applies")
    assert launch.closed_by(RULE, {PATH: f"# coding: {codec}\n{STOCK}".encode()}.get) is None


def test_the_launcher_reads_no_file_that_is_larger_than_any_of_vllm(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"#" * (launch.FILE_LIMIT + 1))
    with pytest.raises(launch.LaunchError, match="larger than"):
        launch.read_from(tmp_path)(PATH)


TRICKY = '''\
def f(a, /, b: int = 1, *args, c=2, **kw) -> "x":
    """Docstring."""
    s = f"a{a!r:>{b}}" "b" f'{c}' f"{a=}"
    match a:
        case {"k": [1, *rest], **more} if rest: pass
        case P(x=1) | None: pass
    async def g(): return [x async for x in y]
    with (open(a) as h, open(b)): pass
    return lambda: (yield), -1, 1e5, b"x", ..., a[1:2, ::3], s
'''


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_a_digest_is_the_same_on_every_python(version: str) -> None:
    program = (
        f"import launch; s = launch.Source({TRICKY!r}.encode()); print(launch.tree_digest([s.tree]), s.marks(0, 9))"
    )
    command = [f"python{version}", "-c", program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=data.LAUNCHER.parent, check=False)
    except FileNotFoundError:
        pytest.skip(f"there is no python{version}")
    if done.returncode and "Traceback" not in done.stderr:
        pytest.skip(f"python{version} does not run")
    source = launch.Source(TRICKY.encode())
    assert done.stdout.strip() == f"{launch.tree_digest([source.tree])} {source.marks(0, 9)}", (
        done.stderr,
        sys.version,
    )


def test_a_digest_knows_code_from_comments_and_text() -> None:
    def digest(text: str) -> str:
        return launch.tree_digest([launch.Source(text.encode()).tree])

    assert digest(TRICKY) == digest(TRICKY.replace('    """Docstring."""\n', "    # none\n\n"))
    for old, new in (("1e5", "1e6"), ("c=2", "c='2'"), ("!r", "!s"), ("async def", "def"), ("[1, *rest]", "[1, rest]")):
        assert digest(TRICKY) != digest(
            TRICKY.replace(old, new).replace("[x async", "[x" if "async" in old else "[x async")
        )


BRANCHES = """\
def share(groups, layer):
    for group in groups:
        if group.own:
            target = group.find(layer)
            target.names.append(layer)
            target.done = True
        else:
            target = group.find(layer)
            group.names.add(layer)
            target.done = True
"""
IN_BRANCH = Hunk(
    "share",
    5,
    ("            target.names.append(layer)",),
    ("            target.names.append(layer)", "            x()"),
)


def test_a_copy_that_was_left_over_in_another_branch_is_not_patched() -> None:
    patch = patch_of(known_edit(IN_BRANCH, stock=BRANCHES), rules=())
    moved = BRANCHES.replace("target.names.append(layer)", "target.add(layer)", 1).replace(
        "target = group", "found = group", 1
    )
    moved = moved.replace("            target.done = True\n", "            found.done = True\n", 1)
    moved = moved.replace("group.names.add(layer)", "target.names.append(layer)")
    for version in ("0.33.0", "0.34.0"):
        result = launch.decide_patch(patch, version, {PATH: moved.encode()}.get)
        assert (result.state, "context that no known release has" in result.files[0].detail) == ("conflict", True)
    drifted = BRANCHES.replace("def share(groups, layer):\n", "def share(groups, layer):\n    groups = list(groups)\n")
    assert launch.decide_patch(patch, "0.34.0", {PATH: drifted.encode()}.get).state == "drifted"


FIRST = '''\
def warn(self):
    """Text."""
    if self.images:
        print("no images")
        self.told = True
'''
AT_HEAD = Hunk("warn", 3, ("    if self.images:",), ("    if self.images:", "        self.images = False"))


@pytest.mark.parametrize("edit", [
    ("def warn(self):", "async def warn(self):"), ("def warn(self):", "def warn(self) -> None:"),
    ("def warn(self):", "@cached\ndef warn(self):"), ("    if self", "    def inner():\n        return 1\n\n    if self"),
    ("    if self", "    now = self.now\n    if self"),
])  # fmt: skip
def test_what_comes_before_the_first_line_of_a_function_is_drift_and_no_conflict(edit: tuple[str, str]) -> None:
    patch = patch_of(known_edit(AT_HEAD, stock=FIRST), rules=())
    changed = FIRST.replace(*edit)
    result = launch.decide_patch(patch, "0.34.0", {PATH: changed.encode()}.get)
    assert (result.state, after(result)) == ("drifted", changed.replace(AT_HEAD.old[0], "\n".join(AT_HEAD.new)))
    decoy = changed.replace("self.images:", "self.images and self:") + "    if self.images:\n        print()\n"
    assert launch.decide_patch(patch, "0.34.0", {PATH: decoy.encode()}.get).state == "conflict"


def test_of_a_first_line_and_its_copy_with_a_comment_none_is_taken() -> None:
    patch = patch_of(known_edit(AT_HEAD, stock=FIRST), rules=())
    copied = FIRST.replace("    if self.images:", "    if self.images:  # ours\n        pass\n    if self.images:")
    assert launch.decide_patch(patch, "0.34.0", {PATH: copied.encode()}.get).state == "conflict"


# places that only a name would tell


MODULE = """\
import os

LIMITS = {"a": 1}


def first(x):
    y = x + 1
    z = y + 1
    return z


def plan(x):
    return first(x)


def last(x):
    return plan(x)
"""
BEFORE_PLAN = Hunk("", 12, ("def plan(x):",), ("class Extra:", "    value = 1", "", "", "def plan(x):"))
IN_LIMITS = Hunk("", 3, ('LIMITS = {"a": 1}',), ('LIMITS = {"a": 1, "b": 2}',))
NEIGHBOUR = MODULE[MODULE.index("def first") : MODULE.index("def plan")]


def at_name(text: str, hunk: Hunk = BEFORE_PLAN, version: str = "0.34.0") -> PatchResult:
    patch = patch_of(known_edit(hunk, stock=MODULE), rules=())
    return launch.decide_patch(patch, version, {PATH: text.encode()}.get)


def test_what_belongs_before_a_definition_does_not_go_below_its_new_decorators() -> None:
    assert at_name(MODULE.replace("def plan", "@cached(\n    size=1\n)\n@timed\ndef plan")).state == "conflict"
    stock = MODULE.replace("def plan", "@timed\ndef plan")  # a release that has it, and a patch that goes below it
    patch = patch_of(known_edit(BEFORE_PLAN, stock=stock), rules=())
    same = launch.decide_patch(patch, "0.34.0", {PATH: (stock + "\n").encode()}.get)
    assert (same.state, "@timed\nclass Extra" in after(same)) == ("applies", True)


@pytest.mark.parametrize("text", [
    MODULE.replace("def plan(x):", "def plan(x):  # mine") + "\n\ndef plan(x):\n    return 0\n",
    MODULE.replace("def plan(x):", "if os:\n    def plan(x):\n        return 1\n\n\ndef plan(x):"),
    MODULE.replace("def plan(x):\n    return first(x)", "def plan(x):\n    return x").replace("    return z\n", "    return y\n"),
    MODULE.replace("def plan(x):", "def plan_v2(x):") + "\n\ndef outer():\n    def plan(x):\n        return 2\n",
    MODULE.replace("def plan", NEIGHBOUR.replace("first", "second") + "def plan"),
])  # fmt: skip
def test_a_name_that_is_bound_twice_or_stands_elsewhere_tells_no_place(text: str) -> None:
    assert at_name(text).state in ("conflict", "ambiguous")


def test_a_table_beside_which_something_is_new_is_a_conflict() -> None:
    text = MODULE.replace("import os\n", "import os\n\nKINDS = []\n")
    assert at_name(text, IN_LIMITS).state == "conflict"


@pytest.mark.parametrize("version", ["0.33.0", "0.34.0", "0.34.0.dev1"])
def test_without_recorded_places_a_patch_is_drifted(version: str) -> None:
    patch = patch_of(FileEdit(PATH, (HUNK,)), rules=())
    result = decided(STOCK, patch, version)
    assert (result.state, result.files[0].drifted) == ("drifted", True)
    assert "run gemmaspec patch known p" in result.files[0].detail
    plan = launch.Plan(1, "", "", (), (patch,), "", "refuse")
    assert launch.decide_plan(plan, version, {PATH: STOCK.encode()}.get)[0][0].state == "conflict"


def test_drift_is_told_though_another_patch_changed_the_file_before() -> None:
    beside = Hunk("other", 22, ("    return len(specs)",), ("    specs = dict(specs)", "    return len(specs)"))
    first = replace(patch_of(known_edit(beside), rules=()), id="first")
    text = STOCK.replace("        return True\n", "        return None\n")
    plan = launch.Plan(1, "", "", (), (first, patch_of()), "")
    results, _ = launch.decide_plan(plan, "0.34.0", {PATH: text.encode()}.get)
    assert [one.state for one in results] == ["applies", "drifted"]
    assert "plan changed since 0.33.0" in results[1].files[0].detail
