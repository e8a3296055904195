"""`render --validate FILE`: objects against a CustomResourceDefinition or a chart's schema."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemmaspec.cli.app import run
from gemmaspec.cluster.build import build_manifests
from gemmaspec.cluster.schema import fits, read_schemas, violations
from gemmaspec.cluster.settings import Settings
from gemmaspec.errors import UsageError
from gemmaspec.profile.load import load_profile

SERVICE = build_manifests(load_profile("tiny-cpu"), "kserve", Settings()).objects["inference-service.yaml"]


def definition() -> dict[str, Any]:
    """A CustomResourceDefinition as KServe's is built, with a few of its fields."""
    spec = {
        "type": "object",
        "required": ["model"],
        "properties": {
            "replicas": {"type": "integer", "nullable": True},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            "model": {"type": "object", "properties": {"uri": {"type": "string"}, "name": {"type": "string"}}},
            "storageInitializer": {"type": "object", "properties": {"enabled": {"type": "boolean"}}},
            "router": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {}},
            "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "port": {"type": "string", "x-kubernetes-int-or-string": True},
        },
    }
    version = {"name": "v1alpha2", "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "spec": {
            "group": "serving.kserve.io",
            "names": {"kind": "LLMInferenceService"},
            "versions": [version],
        },
    }


def found(change: Any = None, document: Any = SERVICE) -> list[str]:
    schemas = read_schemas(yaml.safe_dump(change or definition()), file="crd.yaml")
    return [line for one in schemas if fits(one, document) for line in violations(one, document)]


def test_what_is_rendered_passes_and_an_unknown_field_is_named() -> None:
    assert found() == []
    wrong = copy.deepcopy(SERVICE)
    wrong["spec"]["speculator"] = {}
    wrong["spec"]["replicas"] = "2"
    assert found(document=wrong) == [
        "spec: Additional properties are not allowed ('speculator' was unexpected)",
        "spec.replicas: '2' is not of type 'integer', 'null'",
    ]


def test_kubernetes_own_words_of_a_schema_are_understood() -> None:
    one = copy.deepcopy(SERVICE)
    one["spec"] |= {"replicas": None, "port": 8000}
    one["spec"]["router"]["more"] = {"a": 1}
    assert found(document=one) == []


def test_a_schema_is_for_one_kind_and_version() -> None:
    other = definition()
    other["spec"]["versions"][0]["name"] = "v1"
    (schema,) = read_schemas(json.dumps(other), file="crd.json")
    assert not fits(schema, SERVICE)


def test_a_chart_s_schema_is_for_values() -> None:
    (schema,) = read_schemas('{"$schema": "x", "properties": {"decode": {"type": "string"}}}', file="values.json")
    assert fits(schema, {"decode": {}})
    assert violations(schema, {"decode": {}}) == ["decode: {} is not of type 'string'"]


@pytest.mark.parametrize("text", ["", "[]", "a: b", "{", "kind: CustomResourceDefinition", "\x00", "? [a]\n: b"])
def test_a_file_without_a_schema_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_schemas(text, file="crd.yaml")


def test_a_schema_that_holds_itself_or_points_elsewhere_comes_to_an_end() -> None:
    text = "$schema: x\nproperties: &a\n  decode: {type: object, properties: *a}\n"
    (schema,) = read_schemas(text, file="x.yaml")
    assert violations(schema, {"decode": {"decode": {}}}) == []
    (pointing,) = read_schemas('{"$schema": "x", "$ref": "http://127.0.0.1:9/x.json"}', file="x.json")
    with pytest.raises(UsageError, match="refers to another file"):
        violations(pointing, {})
    (damaged,) = read_schemas('{"$schema": "x", "properties": 3}', file="x.json")
    with pytest.raises(UsageError, match="damaged"):
        violations(damaged, {})


def test_render_writes_nothing_that_a_schema_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crd, out = tmp_path / "crd.yaml", tmp_path / "out"
    crd.write_text(yaml.safe_dump(definition()))
    command = ["render", "tiny-cpu", "--to", "kserve", "--out", str(out), "--validate"]
    assert run([*command, str(crd)]) == 0
    assert "inference-service.yaml: as" in capsys.readouterr().err
    narrow = definition()
    del narrow["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicas"]
    crd.write_text(yaml.safe_dump(narrow))
    out = tmp_path / "other"
    assert run([*command[:5], str(out), "--validate", str(crd)]) == 1
    assert "'replicas' was unexpected" in capsys.readouterr().err
    assert not out.exists()


def test_files_that_cannot_be_asked_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["render", "tiny-cpu", "--to", "kubernetes", "--out", str(tmp_path / "x"), "--validate"]
    assert run([*command, str(tmp_path / "missing")]) == 2
    crd = tmp_path / "crd.yaml"
    crd.write_text(yaml.safe_dump(definition()))
    assert run([*command, str(crd)]) == 2
    assert "it is for serving.kserve.io/v1alpha2 LLMInferenceService" in capsys.readouterr().err
    crd.write_bytes(b"\xff")
    assert run([*command, str(crd)]) == 2
    assert run([*command, str(tmp_path)]) == 4
