"""The parser of safetensors headers: what it reads, and what it refuses."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.core.checkpoint.header import BITS, LONGEST, header_length, parse_header
from gemmaspec.core.errors import CheckpointError

HEADER: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "b.weight": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]},
    "a.weight": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
}


def parse(header: object, *, data: int = 11) -> tuple[Any, ...]:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return parse_header(raw, file_size=8 + len(raw) + data, where="model.safetensors")


def changed(**entry: object) -> dict[str, Any]:
    return {**HEADER, "a.weight": {**HEADER["a.weight"], **entry}}


def test_tensors_come_in_the_order_in_which_they_are_stored() -> None:
    assert [(one.name, one.dtype, one.shape, one.nbytes) for one in parse(HEADER)] == [
        ("a.weight", "BF16", (2, 2), 8),
        ("b.weight", "U8", (3,), 3),
    ]


def test_an_empty_file_of_tensors_is_one() -> None:
    assert parse({}, data=0) == ()


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ([], "must be a JSON object, got a list"),
        (b"{", "invalid JSON"),
        (b"\xff\xfe{}", "invalid JSON"),
        (b'{"a": 1, "a": 2}', "a key occurs twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "invalid JSON"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        ({"a": 1}, "must be an object"),
        ({"a\x1b[31m": {}}, "invalid name of a tensor"),
        ({"a" * 600: {}}, "invalid name of a tensor"),
        (changed(dtype="evil\n"), "dtype is not a type of safetensors"),
        (changed(dtype=7), "dtype is not a type of safetensors"),
        (changed(shape=[2, -2]), "shape is not a list of sizes"),
        (changed(shape=[2, True]), "shape is not a list of sizes"),
        (changed(shape=[2.0, 2]), "shape is not a list of sizes"),
        (changed(shape=[1] * 9), "shape is not a list of sizes"),
        (changed(shape=[2**60, 2**60]), "shape is not a list of sizes"),
        (changed(shape=[2**40, 2**40]), "does not take 8 bytes"),
        (changed(shape=None), "shape is not a list of sizes"),
        (changed(data_offsets=[-8, 0]), "data_offsets must be two numbers, the beginning and the end"),
        (changed(data_offsets=[8, 0]), "data_offsets must be two numbers, the beginning and the end"),
        (changed(data_offsets=[0]), "data_offsets must be two numbers, the beginning and the end"),
        (changed(data_offsets=["0", "8"]), "data_offsets must be two numbers, the beginning and the end"),
        (changed(data_offsets=[0, 6]), "BF16 of shape [2, 2] does not take 6 bytes"),
        (changed(data_offsets=[2, 10]), "a.weight begins at 2, but the previous tensor ends at 0"),
    ],
)
def test_a_header_that_lies_is_refused(header: object, said: str) -> None:
    with pytest.raises(CheckpointError, match=r"^model\.safetensors: ") as error:
        parse(header)
    assert said in error.value.message
    assert "\x1b" not in error.value.message


@pytest.mark.parametrize("data", [0, 10, 12, 10**12])
def test_a_file_that_is_cut_off_or_goes_on_is_refused(data: int) -> None:
    with pytest.raises(CheckpointError, match="tensors need 11 bytes, but the file has"):
        parse(HEADER, data=data)


@pytest.mark.parametrize(
    ("prefix", "size", "said"),
    [
        (b"", 0, "with 0 bytes it is too short"),
        (b"1234567", 7, "with 7 bytes it is too short"),
        ((100 * 2**20).to_bytes(8, "little"), 2**40, "more than the limit"),
        (b"\xff" * 8, 2**40, "more than the limit"),
        ((50).to_bytes(8, "little"), 57, "the header claims 50 bytes in a file of 57"),
        ((0).to_bytes(8, "little"), 1000, "the header claims 0 bytes"),
    ],
)
def test_a_length_that_cannot_be_is_refused_before_anything_is_read(prefix: bytes, size: int, said: str) -> None:
    with pytest.raises(CheckpointError, match=r"^model\.safetensors: ") as error:
        header_length(prefix, file_size=size, where="model.safetensors")
    assert said in error.value.message


def test_the_longest_header_is_still_read() -> None:
    assert header_length(LONGEST.to_bytes(8, "little"), file_size=2**40, where="x") == LONGEST


shapes = st.lists(st.integers(0, 64), max_size=3)
tensors = st.dictionaries(
    st.text("abc.0123", min_size=1, max_size=12), st.tuples(st.sampled_from(sorted(BITS)), shapes)
)


@given(tensors)
def test_what_was_written_is_read_back(written: dict[str, tuple[str, list[int]]]) -> None:
    whole = {name: one for name, one in written.items() if math.prod(one[1]) * BITS[one[0]] % 8 == 0}
    header, at = {}, 0
    for name, (dtype, shape) in whole.items():
        nbytes = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    found = {one.name: (one.dtype, list(one.shape)) for one in parse(header, data=at)}
    assert found == whole


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, st.integers(0, 100))
def test_anything_else_is_refused_and_never_crashes(value: object, data: int) -> None:
    try:
        found = parse({"a.weight": value}, data=data)
    except CheckpointError as error:
        assert error.message.isprintable()
    else:
        assert sum(one.nbytes for one in found) == data


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_refused_or_read(raw: bytes) -> None:
    try:
        parse_header(raw, file_size=8 + len(raw), where="x")
    except CheckpointError as error:
        assert error.message.startswith("x: ")
