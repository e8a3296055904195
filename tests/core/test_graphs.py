"""Which CUDA graphs a server gets, as the layers and the configuration of released vLLMs resolved them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.checkpoint.sizes import SIZES, size_called
from gemmaspec.core.profile.graphs import PATCH
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.measure.tune.arms import field_of

OWN = "serve.attention_backend=null"
"""vLLM's own choice of a backend."""
H200, B200, GB10 = ("machine=h200", OWN), ("machine=b200", OWN), ("machine=dgx-spark", OWN)
OFF = "serve.limit_mm_per_prompt={image: 0, video: 0}"


def decode_only(mode: int, graphs: str | None = None) -> str:
    keys = {"mode": mode, **({"cudagraph_mode": graphs} if graphs else {})}
    return f"serve.extra_args={json.dumps(['--compilation-config', json.dumps(keys)])}"


def transfer(connector: str, **extra: object) -> str:
    config = {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return f"serve.extra_args={json.dumps(['--kv-transfer-config', json.dumps(config)])}"


@pytest.mark.parametrize("vllm", ["0.31.0", "0.32.0", "0.33.0"])
@pytest.mark.parametrize(
    ("sets", "target", "draft"),
    [
        (H200, "PIECEWISE", "NONE"),
        (B200, "PIECEWISE", "NONE"),
        (GB10, "FULL_AND_PIECEWISE", "FULL"),
        ((*H200, "target.model=google/gemma-4-12B-it"), "PIECEWISE", "NONE"),
        ((*H200, "target.model=google/gemma-4-26B-A4B-it"), "PIECEWISE", "NONE"),
        ((*H200, "target.model=google/gemma-4-E4B-it"), "FULL_AND_PIECEWISE", "FULL"),
        ((*H200, "serve.attention_backend=FLASH_ATTN"), "FULL_AND_PIECEWISE", "FULL"),
        ((*H200, "serve.attention_backend=TRITON_ATTN"), "FULL_AND_PIECEWISE", "FULL"),
        ((*H200, OFF), "FULL_AND_PIECEWISE", "FULL"),
        ((*B200, OFF), "FULL_AND_PIECEWISE", "FULL"),
        ((*H200, decode_only(0, "FULL_DECODE_ONLY")), "NONE", "NONE"),
        ((*GB10, decode_only(0)), "FULL_DECODE_ONLY", "FULL"),
        ((*GB10, "serve.extra_args=['--compilation-config.cudagraph_mode=PIECEWISE']"), "PIECEWISE", "NONE"),
        ((*GB10, "serve.extra_args=[-O0]"), "NONE", "NONE"),
        ((*GB10, "serve.extra_args=['--compilation-config.cudagraph_mode=NONE']"), "NONE", "NONE"),
        ((*GB10, "serve.extra_args=['--cudagraph-capture-sizes', '1', '2']"), "NONE", "NONE"),
        ((*GB10, "serve.extra_args=['-cc.cudagraph_capture_sizes=[1, 2]']"), "NONE", "NONE"),
        ((*GB10, "serve.extra_args=['-cc.max_cudagraph_capture_size', '4']"), "NONE", "NONE"),
        ((*GB10, transfer("LMCacheConnectorV1", use_layerwise=True)), "PIECEWISE", "NONE"),
        ((*GB10, transfer("LMCacheConnectorV1")), "FULL_AND_PIECEWISE", "FULL"),
        (
            (*GB10, transfer("MultiConnector", connectors=[{"kv_connector": "NixlConnector"}])),
            "FULL_AND_PIECEWISE",
            "FULL",
        ),
        (
            (
                *GB10,
                transfer(
                    "MultiConnector",
                    connectors=[
                        {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": {"use_layerwise": True}}
                    ],
                ),
            ),
            "PIECEWISE",
            "NONE",
        ),
        (("serve.extra_args=[-O0]",), "NONE", "NONE"),
        ((*GB10, "serve.enforce_eager=true"), "NONE", "NONE"),
        ((*GB10, "env.VLLM_USE_V2_MODEL_RUNNER=0"), "FULL_AND_PIECEWISE", "PIECEWISE"),
    ],
)
def test_the_modes_are_those_that_vllm_resolves(vllm: str, sets: tuple[str, ...], target: str, draft: str) -> None:
    modes = known(resolved_of(load_profile("nvidia-31b-mtp", overrides=sets).profile, vllm=vllm).graphs)
    assert modes
    assert (modes.target, modes.draft) == (target, draft)
    assert bool(modes.why and modes.fix) == modes.lost


@pytest.mark.parametrize(
    ("vllm", "mode", "target"),
    [
        ("0.26.0", 0, "NONE"),
        ("0.29.0", 0, "NONE"),
        ("0.30.0", 0, "FULL_DECODE_ONLY"),
        ("0.31.0", 1, "FULL_DECODE_ONLY"),
        ("0.32.0", 1, "NONE"),
        ("0.33.0", 1, "NONE"),
    ],
)
def test_what_is_left_where_vllm_compiles_nothing_itself(vllm: str, mode: int, target: str) -> None:
    modes = known(
        resolved_of(load_profile("nvidia-31b-mtp", overrides=(*GB10, decode_only(mode))).profile, vllm=vllm).graphs
    )
    assert modes
    assert modes.target == target


FP8 = ("machine=h200", "serve.attention_backend=TRITON_ATTN", "serve.kv_cache_dtype=fp8")


@pytest.mark.parametrize(
    ("sets", "draft"),
    [
        (GB10, "FULL"),
        ((*GB10, "serve.extra_args=[-O0]"), "NONE"),
        (FP8, "FULL"),
        ((*FP8, "speculative.attention_backend=FLASHINFER"), "NONE"),
    ],
)
def test_a_head_that_drafts_a_block_has_whole_graphs_or_none(sets: tuple[str, ...], draft: str) -> None:
    modes = known(resolved_of(load_profile("spark-31b-dflash2", overrides=sets).profile, vllm="0.29.0").graphs)
    assert modes
    assert modes.draft == draft
    assert modes.lost == (draft == "NONE")


def test_lint_counts_the_requests_that_capture_sizes_of_ones_own_cover(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["profile", "lint", "nvidia-31b-mtp", "--set", "machine=dgx-spark", "--set", "serve.max_num_seqs=4"]
    asked += ["--set", "speculative.num_speculative_tokens=4", "--release", "0.32.0", "--json"]
    said = {}
    for sizes in ("1, 2, 4, 8", "5, 10, 15, 20"):
        run([*asked, "--set", f"serve.extra_args=['-cc.cudagraph_capture_sizes=[{sizes}]']"])
        (profile,) = json.loads(capsys.readouterr().out)["profiles"]
        said[sizes] = [one["message"] for one in profile["findings"] if one["code"] == "GS501"]
    assert said["1, 2, 4, 8"] == ["these capture sizes have graphs for 1 requests, and serve.max_num_seqs is 4"]
    assert said["5, 10, 15, 20"] == []


@pytest.mark.parametrize("command", [["fit"], ["predict"], ["inspect"]])
def test_it_is_said_before_the_start(
    command: list[str], profiles: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(profiles))
    (profiles / "mine.yaml").write_text(
        "extends: nvidia-31b-mtp\nname: mine\nmachine: h200\nserve: {attention_backend: null}\n"
    )
    run([*command, "mine"])
    said = "".join(capsys.readouterr())
    assert "target PIECEWISE, draft NONE" in said
    assert "53 tokens/s with such a draft" in said


@pytest.mark.parametrize("method", ["ngram", None])
def test_without_a_draft_a_composite_keeps_its_graphs_and_with_one_that_has_no_layers_it_does_not(
    method: str | None,
) -> None:
    profile = load_profile("nvidia-31b-mtp", overrides=H200, no_spec=True).profile
    if method:
        spec = load_profile("nvidia-31b-mtp").profile.speculative
        assert spec
        profile = profile.model_copy(update={"speculative": spec.model_copy(update={"method": method})})
    modes = known(resolved_of(profile, vllm="0.32.0").graphs)
    assert modes
    assert (modes.target, modes.draft) == ("PIECEWISE" if method else "FULL_AND_PIECEWISE", None)


def test_the_patch_brings_the_graphs_back_and_a_machine_that_is_not_known_says_nothing() -> None:
    modes = known(
        resolved_of(
            load_profile("nvidia-31b-mtp", overrides=(*H200, f"patches.optional=[{PATCH}]")).profile, vllm="0.32.0"
        ).graphs
    )
    assert modes
    assert not modes.lost
    assert known(resolved_of(load_profile("nvidia-31b-mtp").profile, vllm="0.32.0").graphs) is None
    assert known(resolved_of(load_profile("tiny-cpu").profile, vllm="0.32.0").graphs) is None


def test_lint_says_it_with_the_line_that_mends_it(capsys: pytest.CaptureFixture[str]) -> None:
    sets = [word for key in ("machine=h200", OWN) for word in ("--set", key)]
    asked = ["profile", "lint", "nvidia-31b-mtp", *sets, "--release", "0.32.0"]
    assert run([*asked, "--json"]) == 2
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    (found,) = (one for one in profile["findings"] if one["code"] == "GS501")
    assert found["severity"] == "error"
    assert "target PIECEWISE, draft NONE" in found["message"]
    assert PATCH in found["fix"]
    assert found["fix"].startswith("set serve.attention_backend: TRITON_ATTN (or FLASH_ATTN)"), "what ships comes first"
    assert run([*asked, "--set", "serve.attention_backend=FLASH_ATTN"]) == 0


@pytest.mark.parametrize(
    ("profile", "sets", "severity"),
    [
        ("nvidia-31b-mtp", ("machine=h200",), "error"),
        ("nvidia-31b-mtp", ("machine=b200",), "warning"),
        ("nvidia-31b-mtp", ("machine=h200", "speculative.method=eagle3"), "warning"),
    ],
)
def test_it_is_an_error_where_it_was_measured_and_else_a_warning(
    profile: str, sets: tuple[str, ...], severity: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for key in (*sets, OWN) for word in ("--set", key)]
    run(["profile", "lint", profile, *words, "--release", "0.32.0", "--json"])
    (linted,) = json.loads(capsys.readouterr().out)["profiles"]
    assert [one["severity"] for one in linted["findings"] if one["code"] == "GS501"] == [severity]


FP8, TEXT = "serve.kv_cache_dtype=fp8", "serve.language_model_only=true"


@pytest.mark.parametrize(
    ("vllm", "backend", "sets", "said"),
    [
        ("0.32.0", "FLASHINFER", (), "has no masks for images"),
        ("0.26.0", "FLASHINFER", (TEXT,), "has no masks for images"),
        ("0.32.0", "FLASHINFER", (TEXT,), ""),
        ("0.22.0", "FLASH_ATTN", (), "has no masks for images"),
        ("0.24.0", "FLASH_ATTN", (), ""),
        ("0.33.0", "FLASH_ATTN", (FP8,), "reads no FP8 KV cache with masks for images"),
        ("0.33.0", "FLASH_ATTN", (FP8, TEXT), ""),
        ("0.30.0", "FLASH_ATTN", (FP8, TEXT), "reads no FP8 KV cache"),
    ],
)
def test_a_backend_that_a_released_vllm_refused_is_an_error(
    vllm: str, backend: str, sets: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each pair is an answer of that release's selector for the layers of a 31B on an H200."""
    keys = ("machine=h200", f"serve.attention_backend={backend}", "speculative=", "draft=", *sets)
    asked = [word for key in keys for word in ("--set", key)]
    run(["profile", "lint", "nvidia-31b-mtp", *asked, "--release", vllm, "--json"])
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    found = [one["message"] for one in profile["findings"] if one["code"] == "GS307"]
    assert len(found) == bool(said)
    assert said in "".join(found)


def test_graphs_of_an_fp8_cache_are_not_mended_by_a_backend_that_refuses_it(capsys: pytest.CaptureFixture[str]) -> None:
    sets = [word for key in ("machine=h200", OWN, FP8) for word in ("--set", key)]
    assert run(["profile", "lint", "nvidia-31b-mtp", *sets, "--release", "0.32.0", "--json"]) == 2
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    (found,) = (one for one in profile["findings"] if one["code"] == "GS501")
    assert "serve.attention_backend: TRITON_ATTN" in found["fix"]


def test_tune_runs_no_arm_whose_server_would_have_no_graphs() -> None:
    knobs = {}
    for sets in (H200, (*H200, "serve.attention_backend=FLASH_ATTN")):
        profile = load_profile("nvidia-31b-mtp", overrides=(*sets, "runtime.vllm=0.32.0")).profile
        knobs[sets] = {one.knob for one in field_of(profile, (), loads=(1,)).knobs}
    lost = load_profile("nvidia-31b-mtp", overrides=(*H200, "runtime.vllm=0.32.0")).profile
    left = field_of(profile, (lost.model_copy(update={"name": "lost"}),), loads=(1,)).left_out
    assert left["lost"].startswith("it drafts without CUDA graphs: TRITON_FLASH_ATTN supports NEVER")
    plain, flash = knobs.values()
    assert "full graphs for decoding, nothing compiled" in flash
    assert "full graphs for decoding, nothing compiled" not in plain


@pytest.mark.parametrize(
    ("name", "vllm", "sets", "target", "draft"),
    [
        ("spark-31b-eagle3", "0.32.0", GB10, "TRITON_ATTN", "TRITON_ATTN"),
        ("spark-31b-eagle3", "0.32.0", (*B200, OFF), "FLASHINFER", "FLASHINFER"),
        ("spark-31b-eagle3", "0.32.0", (*H200, OFF), "FLASH_ATTN", "FLASH_ATTN"),
        ("nvidia-31b-mtp", "0.32.0", (*H200, "target.model=google/gemma-4-12B-it"), "TRITON_FLASH_ATTN", "FLASH_ATTN"),
        ("nvidia-31b-mtp", "0.32.0", (*H200, OFF), "FLASH_ATTN", "FLASH_ATTN"),
        ("nvidia-31b-mtp", "0.32.0", (*H200, "serve.limit_mm_per_prompt={image: 0}"), "TRITON_FLASH_ATTN", "FLASH_ATTN"),
        ("nvidia-31b-mtp", "0.32.0", (*H200, "target.model=someone/my-12b-it"), None, "FLASH_ATTN"),
    ],
)  # fmt: skip
def test_backends_of_heads_of_sizes_and_of_images_off(
    name: str, vllm: str, sets: tuple[str, ...], target: str | None, draft: str | None
) -> None:
    profile = load_profile(name, overrides=sets).profile
    resolved = resolved_of(profile, vllm=vllm)
    assert known(resolved.backend) == target
    assert known(resolved.attention.backend("draft")) == draft


def test_a_size_is_known_by_one_table_alone() -> None:
    assert size_called("someone/my-12b-it") is None
    assert {name for name, one in SIZES.items() if one.masks} == {"31B", "26B-A4B", "12B"}
    package = Path(__file__).parent.parent.parent / "gemmaspec"
    homes = {file.name for file in package.rglob("*.py") if "26b[-_]?a4b" in file.read_text()}
    assert homes == {"sizes.py"}
