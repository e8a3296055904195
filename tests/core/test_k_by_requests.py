"""`speculative.k_by_requests`: what it must say, and what vLLM is told."""

from __future__ import annotations

import json

import pytest

from gemmaspec.core.errors import ProfileError
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.stack.build import build_stack
from gemmaspec.run.stack.paths import SPECULATIVE_FILE

K = "speculative.num_speculative_tokens=6"


def config(table: str) -> dict[str, object]:
    loaded = load_profile("tiny-cpu", overrides=(K, f"speculative.k_by_requests={table}"))
    files = build_stack(loaded, form="folder").files
    return dict(json.loads(files[SPECULATIVE_FILE]))


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ("{1: 6}", [[1, 1, 6]]),
        ("{1: 6, 2: 4, 4: 3, 8: 2}", [[1, 1, 6], [2, 3, 4], [4, 7, 3], [8, 8, 2]]),
        ("{16: 0, 1: 6}", [[1, 15, 6], [16, 16, 0]]),
    ],
)
def test_vllm_gets_its_own_table(table: str, rows: list[list[int]]) -> None:
    found = config(table)
    assert found["num_speculative_tokens_per_batch_size"] == rows
    assert found["num_speculative_tokens"] == 6
    assert "k_by_requests" not in found


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("{2: 6}", "needs an entry for 1 request"),
        ("{1: 0, 2: 6}", "needs an entry for 1 request"),
        ("{1: 4}", "num_speculative_tokens must be the same"),
        ("{0: 6, 1: 6}", "k_by_requests"),
        ("{1: 6, 2: -1}", "k_by_requests"),
        ("[6, 4]", "k_by_requests"),
    ],
)
def test_a_table_that_cannot_be_followed_is_refused(table: str, why: str) -> None:
    with pytest.raises(ProfileError, match=why):
        config(table)
