"""Which model runner runs: one answer, which lint and fit give alike."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gemmaspec.check.fit.demand import demand_of
from gemmaspec.core import data
from gemmaspec.core.profile.device import GIB, Device
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.releases.drafting import TABLE
from gemmaspec.core.releases.facts import releases
from gemmaspec.core.releases.model_runner import RunnerInput, falls_back, forced_by, runner_for, runs
from gemmaspec.core.resolved.resolve import resolved_of
from tests.support.checkpoints import gemma

H200 = Device(name="h200", memory=140 * GIB, capability="9.0")
TARGETS, DRAFT = {size: gemma(size) for size in ("31B", "26B-A4B")}, gemma("E2B")
OPTIONS = ("parallel_drafting", "use_heterogeneous_vocab")
WORDS = ("--kv-sharing-fast-prefill", "--ec-transfer-config={}", "--runner=pooling", "--no-enable-dbo")
PROFILE = """\
schema: 1
name: mine
summary: a pair
target: {{model: google/gemma-4-{target}}}
draft: {{model: google/gemma-4-E2B}}
image: vllm/vllm-openai:v0.32.0
machine: h200
serve: {{max_model_len: 4096}}
speculative: {{method: draft_model, num_speculative_tokens: 3{more}}}
env: {env}
"""


@pytest.mark.parametrize("more", ["", *(f", {one}: true" for one in OPTIONS)])
@pytest.mark.parametrize("env", ["{}", "{VLLM_USE_V2_MODEL_RUNNER: '0'}", "{VLLM_USE_V2_MODEL_RUNNER: '1'}"])
@pytest.mark.parametrize("target", [*TARGETS])
def test_lint_and_fit_name_the_same_runner(more: str, env: str, target: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(PROFILE.format(target=target, more=more, env=env))
    profile, one = load_profile(str(file)).profile, TARGETS[target]
    for release in releases():
        linted = resolved_of(profile, vllm=release, target=one, draft=DRAFT)
        assert (
            demand_of(resolved_of(profile, vllm=release, device=H200, target=one, draft=DRAFT)).runner == linted.runner
        ), release


@pytest.mark.parametrize("word", WORDS)
def test_a_feature_that_v2_lacks_needs_v1(word: str) -> None:
    """As 0.26.0 and 0.29.0 were asked: use_v2_model_runner of their VllmConfig, on a pretended H200."""
    sets = (f"serve.extra_args={json.dumps([word])}", "machine=h200", "draft=", "speculative=")
    profile, found = load_profile("nvidia-31b-mtp", overrides=sets).profile, []
    for release in ("0.26.0", "0.29.0"):
        linted = resolved_of(profile, vllm=release, target=TARGETS["31B"])
        assert (
            demand_of(resolved_of(profile, vllm=release, device=H200, target=TARGETS["31B"], draft=None)).runner
            == linted.runner
        )
        found.append(linted.runner)
    assert found == {"--kv": ["v1", "v1"], "--no": ["v2", "v2"]}.get(word[:4], ["v1", "v2"])


def ask(vllm: str, **given: object) -> tuple[str, str | None]:
    rule = runner_for(vllm)
    what = RunnerInput(**{"mixture": False, "triton": True} | given)  # type: ignore[arg-type]
    return runs(rule, what), falls_back(rule, what)


def test_two_vocabularies_need_v1_where_v2_drafts_with_a_model() -> None:
    """ "heterogeneous-vocabulary draft models" in _get_v2_model_runner_unsupported_features of 0.32.0."""
    given = {"method": "draft_model", "options": frozenset({"use_heterogeneous_vocab"})}
    assert ask("0.32.0", **given) == ("v1", "v2 does not support use_heterogeneous_vocab")
    assert ask("0.31.0", **given) == ("v2", None)
    assert ask("0.32.0", method="draft_model") == ("v2", None)


def test_what_else_decides() -> None:
    assert ask("0.32.0", triton=False) == ("v1", "without a GPU there is no Triton")
    assert ask("0.24.0")[0] == "v1"
    assert [ask("0.28.0", mixture=one)[0] for one in (False, True)] == ["v2", "v1"]
    assert ask("0.26.0", method="dspark", mixture=True)[0] == "v2"
    assert ask("0.29.0", method="eagle3", stages=2)[0] == "v1"
    assert ask("0.32.0", method="suffix", forced="v2")[0] == "v2"
    assert [forced_by(text) for text in (None, "0", "False", "1")] == [None, "v1", "v1", "v2"]


def test_since_when_a_method_drafts_is_written_in_one_table_alone() -> None:
    row = re.compile(r'"(?:mtp|eagle3?|dflash2?|dspark|draft_model|peagle)"[,:] (?:"[\w.-]+", )?"(?:>=)?0\.\d')
    files = [file for room in data.ROOT.joinpath("gemmaspec").iterdir() for file in room.rglob("*.py")]
    assert [file.name for file in files if row.search(file.read_text())] == []
    assert {"mtp", "eagle3", "dflash", "dspark", "draft_model"} <= set(re.findall(r"method: (\w+)", TABLE.read_text()))
