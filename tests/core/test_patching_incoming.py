"""Diffs from elsewhere: what is kept of them, what is dropped, and what refuses the whole."""

from __future__ import annotations

import pytest

from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching.diff import parse_diff
from gemmaspec.core.patching.incoming import reduce_diff

SOURCE = """\
diff --git a/vllm/v1/core.py b/vllm/v1/core.py
index 1234567..89abcde 100644
--- a/vllm/v1/core.py
+++ b/vllm/v1/core.py
@@ -10,7 +10,7 @@ def value(x):
     total = 0
     for one in x:
         total += one
-    if total:
+    if total > 0:
         return "stock"
     return None

@@ -30,3 +30,4 @@ class Planner:
     def plan(self):
         a = 1
         b = 2
+        c = 3
"""
TEST = """\
diff --git a/tests/test_core.py b/tests/test_core.py
new file mode 100644
index 0000000..89abcde
--- /dev/null
+++ b/tests/test_core.py
@@ -0,0 +1,2 @@
+--- a/vllm/evil.py
+diff --git a/vllm/evil.py b/vllm/evil.py
"""
DOCS = """\
diff --git a/docs/x.md b/docs/x.md
--- a/docs/x.md
+++ b/docs/x.md
@@ -1 +1 @@
-a
+b
\\ No newline at end of file
"""
BINARY = """\
diff --git a/docs/x.png b/docs/x.png
new file mode 100644
index 0000000..e69de29
Binary files /dev/null and b/docs/x.png differ
diff --git a/csrc/y.bin b/csrc/y.bin
GIT binary patch
literal 3
Kcmd<_XJh~XC

literal 0
HcmV?d00001

"""
MOVED = """\
diff --git a/tests/a.py b/tests/b.py
similarity index 100%
rename from tests/a.py
rename to tests/b.py
"""


def test_edits_of_vllm_are_kept_word_for_word_and_all_else_is_dropped_by_name() -> None:
    found = reduce_diff(TEST + SOURCE + DOCS + BINARY + MOVED, "pr.diff")
    assert found.text == SOURCE
    assert found.files == parse_diff(SOURCE, "x")
    assert found.dropped == ("tests/test_core.py", "docs/x.md", "docs/x.png", "csrc/y.bin", "tests/b.py")


def test_the_function_of_a_hunk_is_read_from_its_heading_and_its_indentation() -> None:
    assert reduce_diff(SOURCE, "pr.diff").scopes == (("value", "Planner.plan"),)


def hunk(heading: str, *lines: str) -> str:
    old, new = sum(line[0] != "+" for line in lines), sum(line[0] != "-" for line in lines)
    return f"--- a/vllm/m.py\n+++ b/vllm/m.py\n@@ -1,{old} +1,{new} @@ {heading}\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("heading", "lines", "scope"),
    [
        ("", (" a = 1", "+b = 2"), ""),
        ("def f():", (" a = 1", "+b = 2"), ""),
        ("def f():", ("     a = 1", "+    b = 2"), "f"),
        ("    def f():", ("         a = 1", "+        b = 2"), ""),
        ("if x:", ("     a = 1", "+    b = 2"), ""),
        ("class C:", ("     def f(", "         self,", "     ) -> None:", "+        b = 2"), "C.f"),
        ("class C:", ("         a = 1", "     def f():", "+        b = 2"), "C"),
        ("def f():", ("     a = 1", "+    b = 2", " ", " ", " def g():"), ""),
        ("", (" class C:", "     def f():", "+        b = 2"), "C"),
        ("", (" async def f():", "+    b = 2"), "f"),
    ],
)
def test_a_function_is_named_only_where_every_line_is_seen_to_be_in_it(
    heading: str, lines: tuple[str, ...], scope: str
) -> None:
    assert reduce_diff(hunk(heading, *lines), "x").scopes == ((scope,),)


KEPT = SOURCE.replace("vllm/v1/core.py", "vllm/x.py")
REFUSED = {
    "empty": ("", "pr.diff:1: not the beginning of a diff"),
    "html": ("<!DOCTYPE html>\n<html>\n", "pr.diff:1: not the beginning of a diff: '<!DOCTYPE html>'"),
    "a mail": ("From 0123 Mon Sep 17 00:00:00 2001\nSubject: x\n" + SOURCE, "pr.diff:1: not the beginning of a diff"),
    "nothing of vllm": (
        TEST + DOCS,
        "pr.diff: the diff edits no .py file in vllm/, only tests/test_core.py, docs/x.md",
    ),
    "a path that climbs": (
        SOURCE.replace("vllm/v1/core.py", "vllm/../../etc/x.py"),
        "pr.diff:1: the diff contains the path 'vllm/../../etc/x.py'",
    ),
    "a path that climbs in what would be dropped": (
        DOCS.replace("docs/", "../") + SOURCE,
        "the diff contains the path '../x.md'",
    ),
    "an absolute path": (
        "--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n",
        "the diff contains the path '/etc/passwd'",
    ),
    "a backslash": (SOURCE.replace("core.py", "..\\\\core.py"), "which leaves the folder or is quoted"),
    "a quoted path": (
        SOURCE.replace("a/vllm/v1/core.py b/vllm/v1/core.py", '"a/vllm/\\303.py" "b/vllm/\\303.py"'),
        "the path is quoted or unusual",
    ),
    "a control character in a path": (DOCS.replace("docs/", "do\x1b[2Jcs/"), "which leaves the folder or is quoted"),
    "a new file": (
        SOURCE + KEPT.replace("index ", "new file mode 100644\nindex ", 1),
        "pr.diff:20: the diff adds a file",
    ),
    "a new file from nowhere": (KEPT.replace("--- a/vllm/x.py", "--- /dev/null"), "pr.diff:3: the diff adds a file"),
    "a deleted file": (KEPT.replace("+++ b/vllm/x.py", "+++ /dev/null"), "pr.diff:4: the diff deletes a file"),
    "a file moved into vllm": (MOVED.replace("tests/b.py", "vllm/b.py"), "pr.diff:2: the diff renames"),
    "a mode": (
        KEPT.replace("index ", "old mode 100644\nnew mode 100755\nindex ", 1),
        "pr.diff:2: the diff changes the mode",
    ),
    "binary": (BINARY.replace("csrc/y.bin", "vllm/y.py"), "is binary"),
    "lines taken away alone": (
        hunk("", " a", "-b"),
        "pr.diff:3: the hunk adds no code and keeps no line below the change",
    ),
    "the newline at the end": (
        hunk("", " a", "+b").rstrip("\n") + "\n\\ No newline at end of file\n",
        "newline at the end of a file",
    ),
    "a file twice": (SOURCE + SOURCE, "twice; use one diff, not a series of commits"),
    "a count that is too high": (
        SOURCE.replace("-30,3 +30,4", "-30,9 +30,9"),
        "pr.diff:14: the number of lines in the hunk differs",
    ),
    "a count that is too low": (
        SOURCE.replace("-30,3 +30,4", "-30,2 +30,2"),
        "pr.diff:17: this line is outside all hunks",
    ),
    "CRLF": (SOURCE.replace("\n", "\r\n"), "CRLF"),
    "no prefix": (
        hunk("", " a", "+b").replace("a/vllm", "vllm").replace("b/vllm", "vllm"),
        "a path must have the form",
    ),
    "overlapping hunks": (SOURCE.replace("-30,3 +30,4", "-12,3 +12,4"), "pr.diff:14: this hunk overlaps"),
    "a context diff": ("*** a/vllm/m.py\n--- b/vllm/m.py\n***************\n", "pr.diff:1: not the beginning of a diff"),
    "names nothing": ("diff x\n", "pr.diff:1: the header names no file"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_named_by_line(text: str, said: str) -> None:
    with pytest.raises(PatchError) as caught:
        reduce_diff(text, "pr.diff")
    assert said in caught.value.message
