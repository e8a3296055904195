"""`gemmaspec fit` as it is typed: text, JSON, exit codes, other machines and releases."""

from __future__ import annotations

import itertools
import json
import re
import struct
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.profile.device import GB, GIB
from gemmaspec.run.machine.readings import this_cpu
from tests.support import hub
from tests.support.fake_nvidia_smi import FakeNvidiaSmi, card

TEXT = {
    "model_type": "gemma4_text",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 1024,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
}
PROFILE = """\
schema: 1
name: mine
summary: mine
machine: {machine}
image: vllm/vllm-openai:{tag}
target: {{model: {model}}}
serve: {{max_model_len: 4096, max_num_seqs: 4, block_size: 64}}
measured:
  - {{tokens_per_second: 18, machine: dgx-spark, date: not given, source: somewhere}}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with config.json and one tensor of 256 KiB."""
    folder = tmp_path / "model"
    folder.mkdir()
    config = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "dtype": "bfloat16",
        "text_config": TEXT,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensor = {"dtype": "BF16", "shape": [1024, 128], "data_offsets": [0, 2 * 1024 * 128]}
    header = json.dumps({"model.language_model.embed_tokens.weight": tensor}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(2 * 1024 * 128)
    (folder / "model.safetensors").write_bytes(data)
    return folder


def write(folder: Path, model: Path | str, *, machine: str = "dgx-spark", tag: str = "v0.32.0") -> str:
    """A profile's path."""
    file = folder / "mine.yaml"
    file.write_text(PROFILE.format(model=model, machine=machine, tag=tag))
    return str(file)


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `gemmaspec fit … --json`."""
    code = run(["fit", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_profile_that_fits(profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = asked(capsys, write(profiles, model))
    assert (code, document["schema"], document["ok"], document["problems"]) == (0, 1, True, [])
    assert (document["vllm"], document["machine"]["name"], document["machine"]["unified"]) == (
        "0.32.0",
        "dgx-spark",
        True,
    )
    cache = document["kv_cache"]
    assert cache["block_bytes"] == 2 * 2 * 64 * 2 * 256
    assert cache["num_blocks"] == document["memory"]["available_for_cache"] // cache["block_bytes"]
    assert cache["groups"] == 6
    assert [row["token_bytes"] for row in cache["layers"]] == [5 * 2048, 2048]
    assert document["measured"] == [
        {
            "tokens_per_second": 18.0,
            "concurrency": 1,
            "machine": "dgx-spark",
            "date": "not given",
            "source": "somewhere",
        }
    ]


def test_what_people_read(profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", write(profiles, model), "--explain"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("mine on dgx-spark, 121.69 GiB, vllm 0.32.0: fits\n")
    for said in (
        "CPU and GPU share this memory",
        "a server held 0.8 to 1.4 GiB more",
        "while loading",
        "target sliding    5 layers, 2 x 256 bfloat16: 10,240 bytes per token, blocks of 64 (window 1024)",
        "maximum concurrency for 4,096 tokens per request",
        "estimate:",
        "273 GB/s",
        "18 tokens/s",
        "of the roofline), 1 concurrent, dgx-spark, somewhere",
    ):
        assert said in out


def test_tokens_per_second_come_first_and_an_effect_stands_below_its_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "nvidia-31b-mtp", "--machine", "h100", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "each on its own\n  --set serve.kv_cache_dtype=fp8\n    one byte per number in the cache; then " in out
    assert re.match(
        r"  speed     mtp k=4: [0-9.]+ tokens/s with the prompt \([0-9.]+ to [0-9.]+\); [0-9]+ without a draft: predicted",
        out.splitlines()[1],
    )


def test_six_lines_say_what_a_person_decides_by(capsys: pytest.CaptureFixture[str]) -> None:
    for profile, machine in (("nvidia-31b-mtp", "h100"), ("spark-31b-e2b", "dgx-spark"), ("spark2-31b", "dgx-spark")):
        assert run(["fit", profile, "--machine", machine]) == 0
        title, *rows = capsys.readouterr().out.splitlines()
        where = f"2 x {machine}" if profile == "spark2-31b" else machine
        assert title.startswith(f"{profile} fits on {where} (")
        assert [row.split()[0] for row in rows] == ["speed", "requests", "memory", "change", "unknown"], profile


def test_the_six_lines_say_the_figures_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    asked_for = ["nvidia-31b-mtp", "--machine", "h100"]
    _, document = asked(capsys, *asked_for)
    alone, drafted = document["speed"]["rows"]
    assert run(["fit", *asked_for]) == 0
    _, speed, requests, memory, change, unknown = capsys.readouterr().out.splitlines()
    low, high = drafted["interval"]
    rate = f"{drafted['tokens_per_second']:,.1f} tokens/s with the prompt (90 %: {low:,.1f} to {high:,.1f})"
    assert f"{rate} for one request after 1,024 tokens; {alone['tokens_per_second']:,.1f} without a draft" in speed
    assert f"{document['kv_cache']['max_concurrency']:,.1f} fit; at most 1 x 262,144, " in requests
    assert f"KV cache {document['memory']['available_for_cache'] / GIB:.2f}" in memory
    best = max(
        (item for item in document["advice"] if item["sequences"] == 8 and "--no-spec" not in item["change"]),
        key=lambda item: item["longest_for_all"] if "tensor_parallel" not in item["change"] else 0,
    )
    assert best["change"] in change
    assert "what your prompts accept (0.70 a drafted token is assumed)" in unknown
    assert document["unknown"][0] in unknown


def test_what_does_not_fit_gets_the_change_that_starts_it_and_keeps_the_draft(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["fit", "nvidia-31b-mtp", "--machine", "rtx-5090"]) == 1
    change = capsys.readouterr().out.splitlines()[5]
    assert change.split()[:3] == ["change", "--set", "serve.kv_cache_dtype=fp8"]
    assert run(["fit", "spark-31b-e2b", "--memory", "20"]) == 1
    assert "no single change is enough; --explain lists what each of them gives" in capsys.readouterr().out


def test_one_that_does_not_fit_says_so_and_what_to_change(
    profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(profiles, model)
    assert run(["fit", file, "--memory", "0.3"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("mine does NOT fit on dgx-spark (0.28 GiB) with vLLM 0.32.0\n")
    assert "PROBLEM  nothing is left for the KV cache" in out
    code, document = asked(capsys, file, "--memory", "0.3")
    assert (code, document["ok"], document["machine"]["memory"]) == (1, False, 3 * 10**8)


def test_another_release_and_another_machine(profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(profiles, model)
    _, old = asked(capsys, file, "--release", "0.26.0", "--machine", "h200")
    assert (old["vllm"], old["machine"]["name"]) == ("0.26.0", "h200")
    sliding, full = old["kv_cache"]["layers"]
    assert (sliding["block_size"], full["block_size"]) == (64, 64)
    hybrid_off = "serve.disable_hybrid_kv_cache_manager=true"
    code, document = asked(capsys, file, "--release", "0.26.0", "--set", hybrid_off)
    assert (code, document["kv_cache"]) == (1, None)
    assert "different block sizes" in document["problems"][0]
    assert asked(capsys, file, "--set", hybrid_off)[0] == 0


def test_a_release_that_is_not_known_is_named_as_such(
    profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(profiles, model)
    _, document = asked(capsys, file, "--set", "image=vllm/vllm-openai:v0.34.0")
    assert document["notes"][0] == "vLLM 0.34.0 is unknown; computed as 0.33.0"
    _, document = asked(capsys, file, "--release", "v0.33")
    assert document["vllm"] == "0.33.0"
    assert "not known" not in " ".join(document["notes"])


def test_what_stops_the_start_beside_the_memory_is_said(
    profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = ("--set", "serve.extra_args=[--calculate-kv-scales]")
    code, document = asked(capsys, write(profiles, model), *flag)
    assert (code, document["ok"]) == (1, False)
    assert "vLLM 0.32.0 has no flag --calculate-kv-scales" in document["problems"][0]
    assert document["problems"][0].startswith("GS101: ")
    code, document = asked(capsys, write(profiles, model))
    assert (code, document["ok"], document["problems"]) == (0, True, [])
    assert run(["fit", str(write(profiles, model)), *flag]) == 1
    assert capsys.readouterr().out.startswith("mine would NOT start on ")


def test_on_two_gpus_the_rows_are_those_of_one(profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = ("--machine", "h200", "--set", "serve.tensor_parallel_size=2")
    run(["fit", write(profiles, model), *two, "--explain"])
    out = capsys.readouterr().out
    assert "on each of 2 GPUs" in out
    assert "1 x 256" in out
    _, document = asked(capsys, write(profiles, model), *two)
    assert [row["kv_heads"] for row in document["kv_cache"]["layers"]] == [1, 1]


def test_on_two_machines_it_says_what_each_holds_and_what_was_never_measured(
    profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(profiles, model)
    _, answer = asked(capsys, file, "--set", "nodes=2")
    assert answer["flags"]["tensor_parallel"] == answer["link"]["nodes"] == 2
    assert not {"resolved", "vllm", "batches"} & answer["flags"].keys()
    run(["fit", file, "--set", "nodes=2", "--explain"])
    text = capsys.readouterr().out
    assert "(1/2 of every layer)" in text
    assert "at 200 Gbit/s: no less" in text
    assert "nobody has measured it" in text


def test_a_moving_tag_is_taken_for_the_newest_release(
    profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, document = asked(capsys, write(profiles, model, tag="cu130-nightly"))
    assert document["vllm"] == "0.33.0"
    assert "cannot tell vLLM's version from the tag" in document["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--release", "newest"), 2, "'newest' is not a vLLM release"),
        (("--memory", "inf"), 2, "--memory 'inf' is not a size; use one such as 128GB or 119GiB"),
        (("--release", "0.34.0"), 2, "vLLM 0.34.0 is not known yet"),
        (("--release", "0.18.0"), 2, "vLLM 0.18.0 does not support Gemma 4"),
        (("--machine", "mainframe"), 2, "--machine: unknown machine 'mainframe'; the known ones are dgx-spark, "),
        (("--set", "serve.extra_args=[--decode-context-parallel-size=2]"), 2, "fit cannot compute"),
        (("--set", "target.model=/nowhere"), 4, "target.model: the folder /nowhere does not exist"),
    ],
)
def test_what_cannot_be_answered(
    profiles: Path, model: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    assert run(["fit", write(profiles, model), *arguments]) == code
    assert said in capsys.readouterr().err


def test_a_model_that_is_nowhere_says_how_to_get_it(
    profiles: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.offline(monkeypatch, tmp_path)
    assert run(["fit", write(profiles, "nobody/nothing")]) == 4
    err = capsys.readouterr().err
    assert "target.model: nobody/nothing" in err
    assert "gemmaspec pull mine" in err


def test_weights_of_unknown_size_are_no_weights_of_size_zero(
    profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "model.safetensors").unlink()
    assert run(["fit", write(profiles, model)]) == 4
    assert "its weight files are missing" in capsys.readouterr().err


def test_flash_attention_is_pointed_out_where_it_may_differ(
    profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, fp8 = write(profiles, model), "serve.kv_cache_dtype=fp8"
    for arguments, said in (
        (("--machine", "h200", "--set", fp8), True),
        (("--machine", "h200"), False),
        (("--machine", "h200", "--set", fp8, "--release", "0.23.0"), False),
        (("--set", fp8), False),
    ):
        _, document = asked(capsys, file, *arguments)
        assert any("FlashAttention" in note for note in document["notes"]) is said, arguments


def test_any_nvidia_machine_needs_one_or_a_name(
    profiles: Path, model: Path, nvidia_smi: FakeNvidiaSmi, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(profiles, model, machine="nvidia")
    assert run(["fit", file]) == 4
    assert "try: gemmaspec fit mine --machine rtx-4090\n" in capsys.readouterr().err
    assert run(["fit", file, "--machine", "rtx-1080"]) == 2
    hint = next(line for line in capsys.readouterr().err.splitlines() if "try: " in line)
    assert hint.split("try: ")[1] == "gemmaspec fit mine --machine nvidia --memory 16"
    assert run(["fit", file, "--machine", "nvidia", "--memory", "16"]) in (0, 1)
    capsys.readouterr()
    assert asked(capsys, file, "--memory", "24")[0] == 0
    nvidia_smi.lists(card("NVIDIA L20", gib=24, free_gib=20, capability="8.9"))
    code, document = asked(capsys, file)
    assert (code, document["machine"]["name"]) == (1, "NVIDIA L20")
    assert "20.00 GiB of 24.00 GiB are free now" in document["problems"][0]


def test_on_the_machine_itself_its_own_numbers_count(
    profiles: Path, model: Path, nvidia_smi: FakeNvidiaSmi, capsys: pytest.CaptureFixture[str]
) -> None:
    nvidia_smi.lists(card("NVIDIA GB10", gib=119, free_gib=110, capability="12.1"))
    _, document = asked(capsys, write(profiles, model))
    machine = document["machine"]
    assert (machine["name"], machine["free"], machine["bandwidth"]) == ("dgx-spark", 110 * GIB, 273 * GB)
    nvidia_smi.lists(card("NVIDIA GB10", gib=119, free_gib=110, capability="9.0"))
    assert asked(capsys, write(profiles, model))[1]["machine"]["free"] is None
    nvidia_smi.lists(card("a PRO 6000", gib=95, capability="12.0"))
    assert asked(capsys, write(profiles, model), "--machine", "rtx-5090")[1]["machine"]["memory"] < 40 * GB


def test_this_machine_without_its_accelerator() -> None:
    assert this_cpu().memory == psutil.virtual_memory().total
    assert 0 < (this_cpu().free or 0) <= this_cpu().memory


def test_an_answer_takes_no_half_second(profiles: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the interpreter's start; `make bench` has the whole command."""
    file = write(profiles, model)
    run(["fit", file])
    began = time.process_time()  # a busy machine takes longer, and computes as long
    run(["fit", file])
    assert time.process_time() - began < 0.5
    capsys.readouterr()


def test_the_memory_is_one_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "spark-31b-e2b", "--explain"]) == 0
    said = capsys.readouterr().out
    assert "W weights, D draft, C cache, G graphs" in said
    bar = next(line for line in said.splitlines() if line.startswith("  [W")).strip(" []")
    assert [letter for letter, _ in itertools.groupby(bar)] == list("WDCGO.")
    assert run(["fit", "spark-31b-e2b", "--memory", "20", "--explain"]) == 1
    tight = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  [W")).strip(" []")
    assert not {"C", "."} & set(tight)


def title_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    run(["fit", *words])
    return capsys.readouterr().out.splitlines()[0]


def test_the_title_counts_the_gpus_that_the_server_takes(capsys: pytest.CaptureFixture[str]) -> None:
    two = "nvidia2-31b-mtp fits on 2 x rtx-4090 (23.52 GiB each) with vLLM 0.32.0"
    assert title_of(capsys, "nvidia2-31b-mtp", "--machine", "rtx-4090") == two
    assert title_of(capsys, "nvidia2-31b-mtp", "--machine", "4x4090") == two
    assert " on rtx-4090 (23.52 GiB) " in title_of(capsys, "nvidia-31b-qat-mtp-24gb", "--machine", "2x4090")
    assert " on 2 x dgx-spark (121.69 GiB each) " in title_of(capsys, "spark2-31b", "--machine", "dgx-spark")


def test_the_title_counts_no_gpu_that_the_machine_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("nvidia2-31b-mtp", "--machine", "dgx-spark", "--set", "serve.max_model_len=8192")
    assert " on dgx-spark (121.69 GiB) " in title_of(capsys, *words)


def test_a_figure_of_others_is_published_and_one_of_this_project_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "spark-26b-a4b-mtp"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "published: 108.78, 40.85 without" in out
    assert "measured: " not in out
    assert run(["fit", "nvidia-31b-mtp", "--machine", "h100"]) == 0
    assert "measured: 211.8 decoding, 91.8 without" in " ".join(capsys.readouterr().out.split())
