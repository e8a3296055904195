"""A list of ids travels with its stack, to containers, processes and pods, and is known to lint, fit, predict and tune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemmaspec.check.fit.roofline import step_bytes
from gemmaspec.check.use_cases.server_facts import plan_on
from gemmaspec.cli.app import run
from gemmaspec.core.profile.load import load_profile
from gemmaspec.measure.servers.tuned import from_anywhere
from gemmaspec.measure.tune.arms import field_of
from gemmaspec.run.cluster.objects import objects_of
from gemmaspec.run.cluster.server import ClusterSettings, pod_server
from gemmaspec.run.stack.build import build_stack
from gemmaspec.serve.prepare import prepare

SPARK = "spark-31b-mtp"
WITH_PATCH = "patches.required=[mtp-draft-ids]"


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    """An eighth of the vocabulary, with what else a file tells."""
    file = tmp_path / "ids.json"
    file.write_text(json.dumps({"schema": 1, "counted": {"answers": 3}, "ids": "0-999,2000-33767"}))
    return file


def sets(ids: Path) -> list[str]:
    return [f"draft.ids={ids}", WITH_PATCH]


def test_a_container_gets_the_list_and_its_place(ids: Path) -> None:
    for form in ("folder", "single-file"):
        stack = build_stack(load_profile(SPARK, overrides=sets(ids)), form=form)  # type: ignore[arg-type]
        document = yaml.safe_load(stack.files["compose.yaml"])
        assert document["services"]["vllm"]["environment"]["GEMMASPEC_DRAFT_IDS"] == "/gemmaspec/draft-ids.json"
        text = stack.files.get("draft-ids.json") or document["configs"]["draft-ids-json"]["content"]
        assert json.loads(text) == {"ids": "0-999,2000-33767"}
    plain = build_stack(load_profile(SPARK), form="folder")
    assert "draft-ids.json" not in plain.files
    assert "GEMMASPEC_DRAFT_IDS" not in plain.files["compose.yaml"]
    alone = build_stack(load_profile(SPARK, overrides=sets(ids), no_spec=True), form="folder")
    assert "draft-ids.json" not in alone.files


def test_a_process_reads_the_list_in_its_stack(ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    loaded = load_profile("tiny-cpu-mtp", overrides=[f"draft.ids={ids}"])
    server, stack, _ = prepare(loaded, engine="process")
    assert server.environment["GEMMASPEC_DRAFT_IDS"] == str(tmp_path / "state/stacks/tiny-cpu-mtp/draft-ids.json")
    assert json.loads(stack.files["draft-ids.json"]) == {"ids": "0-999,2000-33767"}


def test_a_list_that_cannot_be_read_is_never_rendered(
    ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    ids.write_text('{"ids": "9-3"}')
    words = [word for one in sets(ids) for word in ("--set", one)]
    assert run(["render", SPARK, *words, "--out", str(tmp_path / "out")]) != 0
    assert "the range 9-3 is not above the one before it" in capsys.readouterr().err
    assert run(["profile", "lint", SPARK, *words, "--json"]) != 0
    (finding,) = json.loads(capsys.readouterr().out)["profiles"][0]["findings"]
    assert finding["code"] == "GS235"
    assert finding["fix"] == "gemmaspec bench PROFILE --save-ids FILE writes one"


def lint(capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, str]:
    run(["profile", "lint", SPARK, *[word for one in overrides for word in ("--set", one)], "--json"])
    findings = json.loads(capsys.readouterr().out)["profiles"][0]["findings"]
    return {one["code"]: one["message"] for one in findings}


def test_lint_asks_for_the_patch_and_for_a_draft_that_takes_a_list(
    ids: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lint(capsys, *sets(ids)) == {}
    assert "mtp-draft-ids is missing" in lint(capsys, f"draft.ids={ids}")["GS401"]
    old = lint(capsys, *sets(ids), "image=vllm/vllm-openai:v0.28.0")
    assert "vLLM 0.28.0 has no head that the patch mtp-draft-ids fits" in old["GS235"]
    small = lint(capsys, *sets(ids), "draft.model=google/gemma-4-E4B-it-assistant")
    assert "by centroids" in small["GS235"]
    other = lint(capsys, *sets(ids), "speculative.method=draft_model", "draft.model=google/gemma-4-E2B-it")
    assert "only an assistant (method mtp)" in other["GS235"]


def steps(capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[int, float]:
    words = [word for one in overrides for word in ("--set", one)]
    assert run(["predict", SPARK, *words, "--k", "0,7", "--concurrency", "1", "--context", "1024", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {row["k"]: row["step_ms"] for row in document["rows"]}


def test_predict_and_fit_know_the_bytes_of_the_list(ids: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Computed for a Spark: 939 MB a pass with 262,144 rows of 1,024 numbers, and 470 with 32,768 of them."""
    plans = [plan_on(load_profile(SPARK, overrides=more).profile, "0.33.0", shapes=True) for more in ([], sets(ids))]
    whole, few = (step_bytes(plan, context=1024, concurrency=1, tokens=8).draft for plan in plans)
    assert whole - few == 2 * 1024 * (262_144 - 32_768)
    assert (round(whole / 1e6), round(few / 1e6)) == (939, 469)
    assert plans[0].weights - plans[1].weights == whole - few  # the draft's own table goes when it gets the target's
    before, after = steps(capsys), steps(capsys, *sets(ids))
    assert after[0] == before[0]
    assert (round(before[7]), round(after[7])) == (127, 112)


def test_predict_says_what_it_does_not_know_of_a_list(ids: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for profile, machine in ((SPARK, "dgx-spark"), ("nvidia-31b-mtp", "h100")):
        words = [word for one in sets(ids) for word in ("--set", one)]
        assert run(["predict", profile, "--machine", machine, *words, "--json"]) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert "draft.ids: what the list costs in acceptance was not measured, and no cell is of such a head" in notes


def test_tune_tries_a_draft_with_all_ids_where_a_list_is_named(ids: Path) -> None:
    for more, tried in (([], False), (sets(ids), True)):
        profile = load_profile(SPARK, overrides=more).profile
        knobs = {knob.knob: knob.overrides for knob in field_of(profile, [], loads=[1]).knobs}
        assert ("a draft that scores all ids" in knobs) is tried
    assert knobs["a draft that scores all ids"] == ("draft.ids=",)
    assert load_profile(SPARK, overrides=[*sets(ids), "draft.ids="]).profile.draft.ids is None  # type: ignore[union-attr]


def test_a_tuned_profile_finds_the_list_from_its_own_folder(
    ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written into another folder than the one in which tune was typed."""
    work, profiles = tmp_path / "with: a colon", tmp_path / "profiles"
    work.mkdir()
    profiles.mkdir()
    (work / "ids.json").write_text(ids.read_text())
    monkeypatch.chdir(work)
    for typed in ("draft.ids=./ids.json", "draft.ids=../with: a colon/ids.json"):
        assert from_anywhere(typed) == f'draft.ids="{work}/ids.json"'
        file = profiles / "mine.yaml"
        file.write_text(f"extends: {SPARK}\nname: mine\ndraft: {{ids: {from_anywhere(typed).partition('=')[2]}}}\n")
        draft = load_profile(str(file)).profile.draft
        assert draft
        assert draft.ids == str(work / "ids.json")
    assert from_anywhere("patches.speed=off") == "patches.speed=off"


def test_a_pod_gets_the_list_and_its_place(ids: Path) -> None:
    server = pod_server(load_profile(SPARK, overrides=sets(ids)), ClusterSettings())
    assert json.loads(server.files["draft-ids.json"]) == {"ids": "0-999,2000-33767"}
    deployment = next(one for one in objects_of(server).values() if one["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    values = {one["name"]: one.get("value") for one in container["env"]}
    assert values["GEMMASPEC_DRAFT_IDS"] == "/gemmaspec/draft-ids.json"
