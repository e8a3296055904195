"""docs/readiness.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmaspec.ready.document import bug_table, failure_table, phase_table, with_tables

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "readiness.md"


def test_the_tables_are_those_of_the_code() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == with_tables(text), "run: python -m gemmaspec.ready.document docs/readiness.md"
    assert phase_table() in text
    assert failure_table() in text


def test_a_table_that_is_out_of_date_is_replaced() -> None:
    old = "a\n<!-- failures: made from the code -->\nold\n<!-- end -->\nb\n"
    assert with_tables(old) == f"a\n<!-- failures: made from the code -->\n\n{failure_table()}\n\n<!-- end -->\nb\n"


@pytest.mark.parametrize("name", ["README.md", "docs/patches.md"])
def test_the_bugs_of_vllm_are_those_of_the_patch_folders(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert bug_table() in text
    assert text == with_tables(text), f"run: python -m gemmaspec.ready.document {name}"
