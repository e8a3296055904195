"""`gemmaspec profile schema`: what an editor is told of a profile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.schema import profile_schema
from tests.support.lint_cases import BASE

SHIPPED = sorted(data.PROFILES.glob("*.yaml"))
SCHEMA = profile_schema()
CHECKER = jsonschema.Draft7Validator(SCHEMA)


def wrong(text: str) -> list[str]:
    """What an editor would underline; PyYAML reads numbers as editors do."""
    return [error.message for error in CHECKER.iter_errors(yaml.safe_load(text))]


def test_it_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_it_accepts_every_shipped_profile_and_part(file: Path) -> None:
    assert wrong(file.read_text()) == []


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_shipped_profile_names_the_schema_beside_it(file: Path) -> None:
    first = file.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=schema.json"
    assert (file.parent / "schema.json").is_file()


def test_the_shipped_schema_is_up_to_date() -> None:
    kept = (data.PROFILES / "schema.json").read_text()
    written = json.dumps(SCHEMA, indent=2, ensure_ascii=False) + "\n"
    assert kept == written, "gemmaspec profile schema > profiles/schema.json"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BASE + "nonsense: 1\n", "'nonsense' was unexpected"),
        (BASE.replace("4096}", "4096, max_model_length: 1}"), "'max_model_length' was unexpected"),
        (BASE.replace("draft_model,", "draft_modell,"), "'draft_modell' is not one of ['draft_model', 'eagle'"),
        (BASE.replace("machine: h200\n", ""), "'machine' is a required property"),
        (BASE.replace("h200", "h2000"), "'h2000' is not valid under any of the given schemas"),
        (BASE.replace("4096}", "128k}"), "'128k' is not of type 'integer', 'null'"),
        (BASE + "container: {restarts: 11}\n", "11 is greater than the maximum of 10"),
        (BASE + "env: {A: true}\n", "True is not of type 'string', 'number'"),
        (BASE + "measured: [{machine: h200, date: today}]\n", "'source' is a required property"),
    ],
)
def test_it_refuses_what_the_loader_refuses(text: str, said: str) -> None:
    found = wrong(text)
    assert found
    assert said in found[0]


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        "extends: other\n",
        "extends: other\nname: mine\ndraft: null\nserve: {port: null}\n",
        "extends: other\ntarget: {revision: main}\n",
        "schema: 1\nmachine: cpu\n",
        BASE + "env: {A: 1, B: 1.5, C: text}\n",
        BASE + "runtime: {vllm: 0.33}\ncontainer: {user: 1000}\n",
        BASE.replace("4096}", "4096, gpu_memory_utilization: 0.80, extra_args: [--seed, 1]}"),
    ],
)
def test_it_accepts_what_the_loader_accepts(text: str) -> None:
    assert wrong(text) == []


def properties(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}", inner
        for part in (inner, *inner.get("anyOf", ())):
            yield from properties(part, f"{path}{name}.")
            yield from properties(part.get("items", {}), f"{path}{name}[].")


def test_every_key_has_help() -> None:
    named = dict(properties(SCHEMA))
    assert len(named) > 100
    assert [name for name, inner in named.items() if not inner.get("description")] == []


def test_it_has_every_key_of_a_profile() -> None:
    for name, field in Profile.model_fields.items():
        assert (field.alias or name) in SCHEMA["properties"]


def test_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
