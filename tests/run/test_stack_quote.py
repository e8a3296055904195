"""Quoting for Compose: whatever a profile says comes back unchanged."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.run.stack.quote import compose_block, compose_folder, compose_string

_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


def _read(text: str) -> str:
    """The text as Compose has it: YAML, then `$$` for `$`; a lone `$` would have been interpolated."""
    value = yaml.safe_load(text)
    assert value.replace("$$", "").count("$") == 0
    return str(value.replace("$$", "$"))


@given(_TEXT)
def test_any_text_survives_a_quoted_scalar(text: str) -> None:
    assert _read(compose_string(text)) == text


@given(_TEXT)
def test_any_text_survives_a_block(text: str) -> None:
    document = yaml.safe_load(f"a:\n  b:\n    content: {compose_block(text)}\n    last: 1\n")
    assert document["a"]["b"]["content"].replace("$$", "$") == text
    assert document["a"]["b"]["last"] == 1


def test_a_program_stays_readable_in_a_block() -> None:
    assert compose_block("if x:\n    print('$y')\n", indent=2) == "|\n  if x:\n      print('$$y')"


def test_the_home_and_state_folders_stay_open_until_compose_runs() -> None:
    assert compose_folder("~/models/a b") == '"${HOME}/models/a b"'
    assert compose_folder("state:tiny/x") == '"${GEMMASPEC_STATE:-${HOME}/.local/state/gemmaspec}/tiny/x"'
    assert compose_folder("/a/$b") == '"/a/$$b"'
