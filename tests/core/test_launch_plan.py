"""A plan that was tampered with, is broken or is hostile: one sentence, exit 2, nothing written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core.launcher import launch
from tests.support.launching import HUNK, Place, forking, make_place, patch_of, plan_of

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with forking(make_place(tmp_path_factory.mktemp("place"))) as place:
        yield place


def refused(place: Place, plan: dict[str, Any] | str | bytes) -> str:
    done = place.launch(plan)
    assert done.code == 2, done.err
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert not place.run_dir.exists()
    return done.err


def changed(change: Change) -> dict[str, Any]:
    """A plan with a change and the sha256 that belongs to it."""
    plan = json.loads(json.dumps(plan_of()))
    change(plan)
    return {**plan, "sha256": launch.plan_digest(plan)}


def of_patch(**values: Any) -> Change:
    return lambda plan: plan["patches"][0].update(values)


def of_variant(**values: Any) -> Change:
    return lambda plan: plan["patches"][0]["variants"][0].update(values)


def of_file(**values: Any) -> Change:
    return lambda plan: plan["patches"][0]["variants"][0]["files"][0].update(values)


def of_hunk(**values: Any) -> Change:
    return lambda plan: plan["patches"][0]["variants"][0]["files"][0]["hunks"][0].update(values)


def needing(name: str, specifier: str, vllm: str = ">=0") -> Change:
    return lambda plan: plan.update(requires=[{"name": name, "specifier": specifier, "vllm": vllm}])


FILE = {"path": "vllm/v1/core.py", "hunks": [HUNK]}
BROKEN: dict[str, Change] = {
    "an unknown schema": lambda plan: plan.update(schema=2),
    "a schema that is text": lambda plan: plan.update(schema="1"),
    "a schema that is true": lambda plan: plan.update(schema=True),
    "no profile": lambda plan: plan.pop("profile"),
    "a profile that is a list": lambda plan: plan.update(profile=[]),
    "patches that are an object": lambda plan: plan.update(patches={}),
    "a patch that is text": lambda plan: plan.update(patches=["x"]),
    "a patch twice": lambda plan: plan.update(patches=[patch_of(), patch_of()]),
    "required that is text": of_patch(required="yes"),
    "required that is 1": of_patch(required=1),
    "an unknown runner": of_patch(runner="v3"),
    "no variants": of_patch(variants=[]),
    "a rule without a digest": of_patch(superseded=[{"path": "vllm/a.py", "scope": "f", "release": "1", "tree": ""}]),
    "no files": of_variant(files=[]),
    "a file twice": of_variant(files=[FILE, FILE]),
    "a specifier in words": of_variant(specifier="any"),
    "an empty specifier": of_variant(specifier=""),
    "no hunks": of_file(hunks=[]),
    "a hunk without old lines": of_hunk(old=[]),
    "a hunk without new lines": of_hunk(new=[]),
    "a hunk that changes nothing": of_hunk(new=HUNK["old"]),
    "lines that are text": of_hunk(old="abc"),
    "a line that is null": of_hunk(old=[None]),
    "a line with a line break": of_hunk(new=["a\nb"]),
    "a line with a carriage return": of_hunk(new=["a\r"]),
    "a line with NUL": of_hunk(new=["a\0"]),
    "a line number that is a fraction": of_hunk(line=1.5),
    "a scope that is null": of_hunk(scope=None),
    "a requirement that is an option": needing("--index-url=x", ">=1"),
    "a requirement with a marker": needing("x", ">=1; python_version>'3'"),
    "a requirement that is an address": needing("x", "@ https://example.org/x.whl"),
    "a requirement of an unreadable vllm": needing("x", ">=1", "latest"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_plan_with_something_wrong_is_refused(place: Place, what: str) -> None:
    assert "is invalid: " in refused(place, changed(BROKEN[what]))


PATHS = [
    "/etc/passwd.py",
    "vllm/../../etc/x.py",
    "../x.py",
    "vllm/./x.py",
    "vllm//x.py",
    "vllm/",
    "vllm",
    "vllm.py",
    "other/x.py",
    "vllm/x.txt",
    "vllm/x.pyc",
    "vllm\\..\\x.py",
    "vllm/x\n.py",
    "vllm/x\0.py",
    "vllm/" + chr(27) + "[2J.py",
    "",
    "vllm/..",
    "vllm/.py/../x.py",
]


@pytest.mark.parametrize("path", PATHS, ids=ascii)
def test_a_path_that_is_no_py_file_inside_vllm_is_refused(place: Place, path: str) -> None:
    in_a_file = changed(of_file(path=path))
    in_a_rule = changed(of_patch(superseded=[{"path": path, "scope": "f", "release": "1", "tree": "0123456789abcdef"}]))
    for plan in (in_a_file, in_a_rule):
        assert "is not the path of a .py file in vllm/" in refused(place, plan)


CHANGES: list[dict[str, Any]] = [
    {"profile": "other"},
    {"gemmaspec": "9"},
    {"patches": []},
    {"sha256": "0" * 64},
    {"sha256": None},
    {"more": 1},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_change_of_a_value_breaks_the_sha256(place: Place, change: dict[str, Any]) -> None:
    assert "changed after it was rendered" in refused(place, {**plan_of(), **change})


NO_PLANS = [
    b"",
    b"null",
    b"[]",
    b'"x"',
    b"{",
    b"\xff\xfe",
    b"{}",
    b"[" * 100_000,
    b"1" * 10_000,
    b'{"schema": 1, "sha256": NaN}',
    b'{"schema": 1, "profile": "\\ud800"}',
    bytes(100),
    b"{" + b" " * launch.PLAN_LIMIT + b"}",
]


@pytest.mark.parametrize("text", NO_PLANS, ids=lambda text: ascii(text[:20]))
def test_what_is_no_plan_at_all_is_refused(place: Place, text: bytes) -> None:
    assert "is invalid: " in refused(place, text)


def test_a_plan_that_cannot_be_read_is_refused(place: Place, tmp_path: Path) -> None:
    for file in (tmp_path / "none.json", tmp_path):
        argv = dataclasses.replace(place, plan_file=file).argv()
        assert launch.main(argv[argv.index("--plan") :]) == 2
