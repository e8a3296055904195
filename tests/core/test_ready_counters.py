"""Speculation counters, read from /metrics."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.core.live.sample import Counters, read_sample

METRICS = """\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 12030.0
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} 37.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="tiny"} 3.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="tiny"} 1.7636e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="tiny"} 148.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="tiny"} 12.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="a\\"b\\\\{}"} 29.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="0"} 20.0
"""


def spec_counters(text: str) -> Counters:
    return Counters.of(read_sample(text, at=0.0))


def test_counters_are_summed_over_engines() -> None:
    counted = spec_counters(METRICS)
    assert counted == Counters(drafts=40, drafted=160, accepted=29, by_position=(20,))
    assert counted.acceptance_length == 1 + 29 / 40


def test_a_server_without_a_draft_counts_nothing() -> None:
    alone = read_sample('vllm:generation_tokens_total{engine="0"} 12.0\n', at=0.0)
    assert (Counters.of(alone), alone.counts_drafts) == (Counters(generated=12), False)
    assert Counters().acceptance_length is None
    assert read_sample('vllm:spec_decode_num_drafts_total{engine="0"} 0.0\n', at=0.0).counts_drafts


@pytest.mark.parametrize("text", ["", "\n\n", "<html>not metrics</html>", "process_cpu_seconds_total 1.0\n"])
def test_a_page_without_counters_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no vLLM counters"):
        spec_counters(text)


@pytest.mark.parametrize(
    "line",
    [
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_drafts_total{ 1",
        "vllm:spec_decode_num_drafts_total NaN",
        "vllm:spec_decode_num_drafts_total +Inf",
        "vllm:spec_decode_num_drafts_total -1",
        "vllm:spec_decode_num_drafts_total many",
    ],
)
def test_a_counter_that_is_no_count_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        spec_counters(line)


def test_counts_that_decreased_are_those_of_another_start() -> None:
    before = Counters(drafts=5, drafted=20, by_position=(3,))
    assert Counters(drafts=2, drafted=28).since(before) is None
    assert Counters(drafts=6, drafted=24, by_position=(2,)).since(before) is None
    assert Counters(drafts=6, drafted=24, by_position=(4, 1)).since(before) == Counters(
        drafts=1, drafted=4, by_position=(1, 1)
    )


@given(st.text())
def test_any_text_after_a_counters_name_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert spec_counters(f"vllm:spec_decode_num_drafts_total{text}").drafts >= 0
