"""`bench --dummy-weights`: the profile as it is, but for its weights and how drafts are accepted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.check.use_cases.lint import stop_on_errors
from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.checkpoint.published.shipped import servable_config, shipped_for
from gemmaspec.core.checkpoint.sizes import UNIFIED
from gemmaspec.core.data import MODELS
from gemmaspec.core.errors import ProfileError, UsageError
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.rows import Row
from gemmaspec.measure.bench.cell_json import cell_json
from gemmaspec.measure.bench.cells import Arm, Cell, Task, arms_of
from gemmaspec.measure.bench.page import remarks
from gemmaspec.measure.bench.rows import rows_of
from gemmaspec.measure.bench.settings import Asked, BenchRequest
from gemmaspec.measure.cell import Asking, measure_cell
from gemmaspec.measure.lengths import count, of_length
from gemmaspec.measure.servers import dummy
from gemmaspec.measure.servers.bench import decided, patch_arms, resumed
from gemmaspec.measure.servers.dummy import dummy_overrides
from gemmaspec.run.engine.server import Server
from gemmaspec.run.kept.attention import logged
from gemmaspec.run.kept.lockfile import release_of
from gemmaspec.run.models.dummy import dummy_model
from gemmaspec.run.stack.speed import speed_choice
from gemmaspec.serve.prepare import prepare
from tests.measure.test_bench_compare import result
from tests.support import real
from tests.support.fake_vllm import FakeVllm

HERE = ("runtime.python=/opt/vllm/bin/python",)
MADE = ("nvidia-31b-mtp", "spark-31b-mtp", "nvidia-26b-a4b-mtp", "nvidia-31b-qat-mtp", "nvidia-12b-qat-mtp")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def command(profile: str, *overrides: str, alone: bool = False) -> dict[str, str]:
    """The flags of the server, each with its value; of the speculative config each key."""
    loaded = load_profile(profile, overrides=(*HERE, *overrides), no_spec=alone)
    server, stack, _ = prepare(loaded, engine="process")
    words = list(server.command)
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            after = words[place + 1] if place + 1 < len(words) else ""
            found[word] = "" if after.startswith("--") else after
    if spec := found.pop("--speculative-config", None):
        found |= {f"speculative.{key}": json.dumps(value) for key, value in json.loads(spec).items()}
    return found | {"model": words[1], "plan": stack.files.get("plan.json", "")}


@pytest.mark.parametrize("profile", MADE)
@pytest.mark.parametrize("drafts", [True, False])
def test_nothing_but_weights_and_acceptance_is_replaced(profile: str, *, drafts: bool) -> None:
    loaded = load_profile(profile).profile
    arm = next(one for one in arms_of(loaded, ()) if one.alone is not drafts)
    replaced = dummy_overrides(profile, HERE, arm, lambda _: None)
    before = command(profile, *arm.overrides, alone=arm.alone)
    after = command(profile, *arm.overrides, *replaced, alone=arm.alone)
    moved = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    weights = {"model", "--load-format", "--served-model-name"}
    lots = {"speculative.model", "speculative.rejection_sample_method", "speculative.synthetic_acceptance_rates"}
    assert moved <= weights | (lots if drafts else set())
    assert after["--load-format"] == "dummy"
    assert before.get("--served-model-name", loaded.target.model) in (after["--served-model-name"], loaded.target.model)
    run = load_profile(profile, overrides=(*HERE, *arm.overrides, *replaced), no_spec=arm.alone).profile
    plain = load_profile(profile, overrides=(*HERE, *arm.overrides), no_spec=arm.alone).profile
    shelf = Shelf(data.patch_folders())
    assert speed_choice(run, shelf).taken == speed_choice(plain, shelf).taken
    assert run.env == {**plain.env, "HF_HUB_OFFLINE": "1"}


def test_the_rates_are_those_of_the_arm() -> None:
    (arm,) = arms_of(load_profile("nvidia-31b-mtp").profile, (7,))
    found = dummy_overrides("nvidia-31b-mtp", (), arm, lambda _: None)
    run = load_profile("nvidia-31b-mtp", overrides=(*arm.overrides, *found)).profile
    assert run.speculative
    assert run.speculative.synthetic_acceptance_rates == pytest.approx([0.7**place for place in range(1, 8)], abs=1e-4)


def test_an_acceptance_that_the_profile_sets_stays() -> None:
    own = ("speculative.rejection_sample_method=synthetic", "speculative.synthetic_acceptance_length=2.5")
    found = dummy_overrides("nvidia-31b-mtp", own, Arm(method="mtp", k=4), lambda _: None)
    assert not any("synthetic" in one for one in found)


def test_a_cpu_draws_no_lots(tmp_path: Path) -> None:
    """The tiny pair ships, and no start has copied it to the state folder yet."""
    found = dummy_overrides("tiny-cpu", (), Arm(method="draft_model", k=4), lambda _: None)
    assert not any("synthetic" in one for one in found)
    made = {
        one.relative_to(tmp_path / "state" / "dummy").parts[-1] for one in (tmp_path / "state" / "dummy").rglob("*.*")
    }
    assert made == {file.name for file in (MODELS / "tiny-target").iterdir()} - {"model.safetensors"}


@pytest.mark.parametrize(
    "model",
    [
        "LilaRest/gemma-4-31B-it-NVFP4-turbo",
        "RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic",
        "google/gemma-4-E4B-it",
        "google/gemma-4-31B-it-qat-w4a16-ct",
        "google/gemma-4-E2B-it-qat-mobile-ct",
        "google/gemma-4-12B-it",
        "google/gemma-4-12B-it-qat-w4a16-ct",
    ],
)
def test_a_folder_has_all_that_vllm_reads_beside_the_weights(model: str, tmp_path: Path) -> None:
    made = dummy_model(model, None, into=tmp_path, note=lambda _: None)
    files = {one.name: one.read_text() for one in made.iterdir()}
    assert {"config.json", "generation_config.json", "processor_config.json", "tokenizer.json"} < files.keys()
    config, tokenizer = json.loads(files["config.json"]), json.loads(files["tokenizer.json"])
    words = tokenizer["model"]["vocab"]
    assert sorted(words.values()) == list(range(config["text_config"]["vocab_size"]))
    assert words["<|image|>"] == config["image_token_id"]
    assert words["<|image>"] == config["boi_token_id"]
    assert config["vision_config"] is not None  # vLLM reads its shapes where images are served
    unified = config["architectures"] == [UNIFIED]
    processor = json.loads(files["processor_config.json"])
    assert processor["processor_class"] == ("Gemma4UnifiedProcessor" if unified else "Gemma4Processor")
    assert ("Unified" in processor["image_processor"]["image_processor_type"]) is unified
    assert all(words[one["content"]] == one["id"] for one in tokenizer["added_tokens"])
    assert made.name == model.partition("/")[2]  # sizes are read from names


@pytest.mark.parametrize("model", ["z-lab/gemma-4-26B-A4B-it-DFlash", "nobody/knows"])
def test_a_model_without_shapes_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"do not ship with gemmaspec"):
        dummy_model(model, None, into=tmp_path, note=lambda _: None)


def test_what_a_published_configuration_lacks_its_dummy_lacks_too() -> None:
    """The 12B in Google's four bits has no num_soft_tokens, so that vLLM serves no images of it, nor of its dummy."""
    published = shipped_for("google/gemma-4-12B-it-qat-w4a16-ct")
    assert published
    assert "num_soft_tokens" not in servable_config(published)["vision_config"]


@pytest.mark.parametrize("model", ["./..", "~/..", "/a/.", "/a/.hidden/..", "state:../../x"])
def test_a_folder_s_name_leads_nowhere_else(model: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text("{}")
    into = tmp_path / "into"
    (into / "kept").mkdir(parents=True)
    made = dummy_model(model, tmp_path / "own", into=into, note=lambda _: None)
    assert made.parent == into
    assert made != into
    assert (into / "kept").is_dir()


def test_every_model_that_ships_can_be_declared() -> None:
    for ref in ("nvidia/Gemma-4-31B-IT-NVFP4", "RedHatAI/gemma-4-31B-it-NVFP4", "google/gemma-4-31B-it"):
        known = shipped_for(ref)
        assert known
        config = servable_config(known)
        assert ("quantization_config" in config) is ("NVFP4" in ref)
        left = config.get("quantization_config", {}).get("ignore", ["vision_tower"])
        assert any("vision_tower" in one for one in left)


@pytest.mark.parametrize(
    "ref", ["RedHatAI/gemma-4-31B-it-speculator.dflash2", "RedHatAI/gemma-4-31B-it-speculator.dspark"]
)
def test_a_head_that_drafts_a_block_has_what_vllm_reads_of_it(ref: str) -> None:
    """update_dflash() and update_dspark() of vllm/transformers_utils/configs/speculators/algos.py end with a KeyError."""
    known = shipped_for(ref)
    assert known
    config = servable_config(known)
    assert 0 <= config["mask_token_id"] < config["transformer_layer_config"]["vocab_size"]
    assert config["transformer_layer_config"]["rms_norm_eps"] > 0


def test_vllm_as_released_names_no_kernel_and_takes_no_patch() -> None:
    profile = "nvidia-31b-mtp"
    wanted = arms_of(load_profile(profile).profile, (0, 4))
    found = patch_arms(wanted, ("speed", "none", "released"), profile, ())
    assert [one.name for one in found if "released" in one.name] == [
        "none/0/patches released",
        "mtp/4/patches released",
    ]
    shelf = Shelf(data.patch_folders())
    for arm in found:
        run = load_profile(profile, overrides=arm.overrides, no_spec=arm.alone).profile
        if arm.patches == "released":
            assert run.serve.attention_backend is None
        if arm.patches != "speed":
            assert not speed_choice(run, shelf).taken


def test_a_run_is_taken_up_with_what_it_replaced(tmp_path: Path) -> None:
    """A result says that weights were random, and --resume does the same again; also one from elsewhere may."""
    request = BenchRequest(profile="nvidia-31b-mtp", out=tmp_path, dummy_weights=True, contexts=(256,))
    asked = decided(request, load_profile("nvidia-31b-mtp"), dummy.PROMPTS)
    assert (asked.dummy_weights, asked.ignore_eos, asked.prompts) == (True, True, "dummy")
    document = result() | {"settings": asked.settings(), "profile": "nvidia-31b-mtp"}
    (tmp_path / "result.json").write_text(json.dumps(document))
    again = resumed(BenchRequest(profile="nvidia-31b-mtp", out=tmp_path, resume=True))
    assert (again.dummy_weights, again.contexts, again.ignore_eos) == (True, (256,), True)
    plain = asked.differs(dataclasses.replace(asked, dummy_weights=False).settings())
    assert plain == "dummy_weights"
    document["rows"][0]["weights"] = "dummy"
    assert "Weights are random" in " ".join(remarks(document))


def asking_of(fake_api: FakeVllm) -> Asking:
    port = int(fake_api.url.rpartition(":")[2])
    server = Server(name="x", folder=Path("/x"), port=port, bind="127.0.0.1", model="m", speculates=False)
    asked = Asked(profile="x", max_tokens=8, ignore_eos=True, request_timeout_s=10.0)
    return Asking(server=server, api_key=None, asked=asked)


def test_prompts_have_just_as_many_tokens_as_a_cell(fake_api: FakeVllm) -> None:
    asking = asking_of(fake_api)
    for tokens in (64, 257):
        made = of_length(asking, dummy.PROMPTS.prompts[:2], tokens, exactly=True)
        assert [count(asking, one) for one in made] == [tokens, tokens]
    with pytest.raises(UsageError, match="every prompt is longer"):
        of_length(asking, dummy.PROMPTS.prompts[:2], 1, exactly=True)


@pytest.mark.parametrize("load", [1, 4])
def test_answers_are_timed_apart_from_their_prompts(fake_api: FakeVllm, load: int) -> None:
    """The first token is that of a prompt that was computed, and the rate that of decoding alone."""
    fake_api.caches, fake_api.prompt_s, fake_api.k = True, 2.0, 0
    prompts = of_length(asking_of(fake_api), dummy.PROMPTS.prompts[:load], 400, exactly=True)
    asking, cell = asking_of(fake_api), Cell(concurrency=load, context=400)
    found = measure_cell(asking, cell, prompts, drafts=False, apart=True, reference=lambda _: 0.002)
    task = Task(arm=Arm(method="none", k=0), cell=Cell(concurrency=load, context=400), round=1)
    cell = cell_json(task, found, repeated=0)
    (row,) = rows_of([cell], common={})
    assert 2000 < row["ttft_ms"] < 4000
    assert row["step_ms"] < 250  # with a prompt in it: 2,000 / 8
    assert "answer_tokens" not in row
    assert row["context"] == 400


def test_a_cache_that_does_not_hold_the_prompts_is_no_decoding_alone(fake_api: FakeVllm) -> None:
    fake_api.prompt_s, fake_api.k = 0.02, 0
    prompts = of_length(asking_of(fake_api), dummy.PROMPTS.prompts[:1], 400, exactly=True)
    found = measure_cell(asking_of(fake_api), Cell(concurrency=1, context=400), prompts, drafts=False, apart=True)
    assert not found.first_waits
    task = Task(arm=Arm(method="none", k=0), cell=Cell(concurrency=1, context=400), round=1)
    (row,) = rows_of([cell_json(task, found, repeated=0)], common={})
    assert row["answer_tokens"] == 8


@pytest.mark.parametrize(
    ("line", "kernel"),
    [
        ("Using MarlinNvFp4LinearKernel for NVFP4 GEMM", "marlin"),
        ("Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM", "flashinfer_cutlass"),
        ("Using HummingLinearKernel for mixed-precision linear", "humming"),
        ("Using CutlassFP8ScaledMMLinearKernel for Fp8LinearMethod", "cutlass"),
        ("Using FlashInferCuteDslNvFp4W4A16LinearKernel for NVFP4 GEMM", "flashinfer_cutedsl"),
        ("Using DeepGemmFp8BlockScaledMMKernel for Fp8LinearMethod", "deep_gemm"),
        ("Using a kernel for nothing", None),
    ],
)
def test_a_kernel_is_called_as_its_setting(line: str, kernel: str | None) -> None:
    assert logged([line]).linear_kernel == kernel


@pytest.mark.real_process
def test_bench_starts_the_tiny_pair_with_dummy_weights_and_its_result_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real vLLM with random weights: contexts to the token, rows that say what the log says, nothing left running."""
    monkeypatch.undo()
    real.tiny_pair()
    out = tmp_path / "out"
    cells = ["--k", "4", "--context", "64,200", "--concurrency", "1", "--max-tokens", "24"]
    once = ["--rounds", "1", "--repeats", "0", "--each", "1", "--engine", "process", "--out", str(out), "--json"]
    server = ["--set", f"serve.port={real.free_port()}"]
    done = real.gemmaspec("bench", "tiny-cpu", "--dummy-weights", *cells, *once, *server, timeout=1800)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    assert [(row["k"], row["context"]) for row in found["rows"]] == [(4, 64), (4, 200)]
    assert done.json["rows"] == found["rows"]
    asked = [(one["context"], sample["prompt_tokens"]) for one in found["cells"] for sample in one["samples"]]
    assert all(context == tokens for context, tokens in asked)
    for row in found["rows"]:
        Row.model_validate(row)
        assert (row["weights"], row["graphs"], row["kv_cache_dtype"]) == ("dummy", "none", "bf16")
        assert (row["images"], row["sampling"], row["compile"]) == (True, "greedy", "eager")
        assert "acceptance_by" not in row  # on a CPU vLLM draws no lots
        assert row["rounds"] == 1
    arm = found["provenance"]["arms"]["draft_model/4"]
    assert arm["lock"]["plan"].startswith("sha256:")
    assert arm["vllm"].startswith("0.32.0")
    assert real.gemmaspec("status", "tiny-cpu").code == 1
    predicted = real.gemmaspec("predict", "tiny-cpu", "--measured", str(out), "--k", "2,4", "--json")
    assert predicted.code == 0, predicted.err
    assert (out / "report.html").stat().st_size < 500_000


def test_a_server_that_is_only_slow_starts_to_be_measured() -> None:
    loaded = load_profile("nvidia-31b-mtp", overrides=("machine=h200", "serve.attention_backend="))
    with pytest.raises(ProfileError, match="GS501"):
        stop_on_errors(loaded, lambda _: None, release=release_of(loaded))
    stop_on_errors(loaded, lambda _: None, to_measure=True, release=release_of(loaded))
    broken = load_profile("nvidia-31b-mtp", overrides=("serve.max_model_len=9999999",))
    with pytest.raises(ProfileError):
        stop_on_errors(broken, lambda _: None, to_measure=True, release=release_of(broken))


def synthetic(k: int, drawn: list[float]) -> dict[str, Any]:
    """A cell whose drafts were accepted by lot."""
    rates = {"tokens_per_second": 200.0, "output_tokens_per_second": 200.0, "step_ms": 12.5, "acceptance_length": 2.5}
    of_cell = {"method": "mtp" if k else "none", "k": k, "concurrency": 1, "context": 256, "prompt_tokens": 256}
    times = {"ttft_ms": {"median": 70.0}, "tpot_ms": None, "reference": {"steady": True}, "prompts": "apart"}
    return {**of_cell, **rates, **times, "acceptance": drawn}


def test_lots_are_counted_as_they_were_asked_for_and_not_as_they_fell() -> None:
    asked = [0.7, 0.49, 0.343]
    (row,) = rows_of([synthetic(2, [0.8, 0.7])], common={"acceptance_by": "synthetic", "acceptance_asked": asked})
    assert row["acceptance"] == asked[:2]
    assert row["tokens_per_second"] == pytest.approx((1 + 0.7 + 0.49) / 12.5 * 1000)
    assert (row["acceptance_length"], row["acceptance_drawn"]) == (pytest.approx(2.19), 2.5)
    assert "acceptance_asked" not in row


@pytest.mark.parametrize(
    ("cell", "common"),
    [
        (synthetic(2, [0.8, 0.7]), {}),
        (synthetic(0, []), {"acceptance_asked": [0.7]}),
        (synthetic(2, [0.8, 0.7]), {"acceptance_asked": [0.7]}),
        (
            {**synthetic(2, [0.8, 0.7]), "prompts": "together", "completion_tokens": 64, "requests": 1},
            {"acceptance_asked": [0.7, 0.49]},
        ),
    ],
    ids=["no lots", "no draft", "fewer rates than tokens", "the prompt's wait is in it"],
)
def test_other_rows_stay_as_measured(cell: dict[str, Any], common: dict[str, Any]) -> None:
    (row,) = rows_of([cell], common=common)
    assert (row["tokens_per_second"], row["acceptance"]) == (200.0, cell["acceptance"])


def test_a_dry_run_says_what_would_be_measured_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["bench", "spark-31b-mtp", "--k", "0,7", "--concurrency", "1,4", "--rounds", "2", "--dry-run"]
    assert run([*asked, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["arms"]) == 2
    assert len(plan["cells"]) == 2 * 2 * 2
    assert plan["starts"] == 3  # the second round begins with the last of the first
    assert run(asked) == 0
    assert "would measure 8 cells, with 3 server starts" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert run([*asked, "--running"]) == 2
