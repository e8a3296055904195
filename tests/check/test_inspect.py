"""`gemmaspec inspect`, on a fake of the Hub and on folders of the published shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.cli.app import run
from tests.support import shapes
from tests.support.hub import Hub, serve

TARGET, DRAFT = "LilaRest/gemma-4-31B-it-NVFP4-turbo", "mikeytag/gemma-4-E2B-it-NVFP4"
ASSISTANT, HEAD = "google/gemma-4-31B-it-assistant", "RedHatAI/gemma-4-31B-it-speculator.eagle3"


@pytest.fixture(scope="module")
def published() -> Iterator[Hub]:
    tokens = shapes.tokenizer()
    with serve() as server:
        for name, size in ((TARGET, "31B"), (DRAFT, "E2B")):
            config = shapes.config(size)
            packed = shapes.nvfp4(shapes.tensors(config))
            server.add(name, shapes.model(config, packed, tokens=tokens, separate=shapes.modelopt(kv_cache="FP8")))
        base = shapes.config("E2B")
        server.add("google/gemma-4-E2B", shapes.model(base, shapes.tensors(base), tokens=tokens, instruct=False))
        assistant, head = shapes.assistant_config("31B"), shapes.eagle3_config()
        server.add(ASSISTANT, shapes.model(assistant, shapes.assistant_tensors(assistant)))
        server.add(HEAD, shapes.model(head, shapes.eagle3_tensors(head), instruct=False))
        server.add("some/gated", {"config.json": b"{}"}, gated="manual")
        yield server


@pytest.fixture
def hub(published: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    monkeypatch.setenv("HOME", str(tmp_path))  # the profiles' cache is under it
    published.aim(monkeypatch, tmp_path / "home")
    published.forget()
    return published


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    return found


def test_one_checkpoint_as_text(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", TARGET]) == 0
    printed = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert lines[0].startswith(f"{TARGET} (Hugging Face Hub, commit ")
    assert "model Gemma4ForConditionalGeneration, bfloat16, 31.27 B parameters, 20.45 GB" in lines
    assert "layers 50 sliding 32 heads, 16 KV heads of 256, window 1024" in lines
    assert "10 full 32 heads, 4 KV heads of 512, keys are values" in lines
    assert "declared NVFP4 by modelopt in hf_quant_config.json, groups of 16, KV cache FP8" in lines
    assert "stored 192 modules as BF16, 410 modules as NVFP4" in lines
    assert "how NVFP4 looks in a file" in printed
    assert "\x1b" not in printed
    assert hub.sent < 2 * 10**6


def test_kv_sharing_and_per_layer_embeddings_are_told(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", DRAFT]) == 0
    printed = capsys.readouterr().out
    assert "the last 20 layers read the cache of layers 13 and 14" in printed
    assert "256 wide embeddings, 262144 tokens x 35 layers" in printed
    assert "text, image, video, audio" in printed
    assert "per-layer embeddings     4.73 GB" in printed


def test_a_pair_that_works_with_patches(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", TARGET, "--draft", DRAFT]) == 0
    printed = capsys.readouterr().out
    patches = "kv-spec-uniform-valueerror, kv-sharing-uniform-specs, draft-text-only"
    assert f"they pair with {patches}; speculative.method: draft_model" in printed
    assert "  PATCH    sliding windows differ: 1024 in the target, 512 in the draft" in printed
    assert "           -> patch kv-spec-uniform-valueerror" in printed
    assert (
        "this pair has been run: profile spark-31b-e2b, published in model card mikeytag/gemma-4-E2B-it-NVFP4"
        in printed
    )


def test_a_profile_is_its_target_and_its_draft(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "spark-31b-e2b", "--json"]) == 0
    found = document(capsys)
    assert (found["target"]["ref"], found["draft"]["ref"]) == (TARGET, DRAFT)
    assert found["pairing"]["method"] == "draft_model"
    assert found["pairing"]["known"]["profile"] == "spark-31b-e2b"
    assert run(["inspect", "spark-31b-e2b", "--draft", ASSISTANT, "--json"]) == 0
    assert document(capsys)["pairing"]["method"] == "mtp"


def test_a_pair_that_cannot_work_has_exit_code_3(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", DRAFT, "--draft", ASSISTANT]) == 3
    printed = capsys.readouterr().out
    assert "they do NOT pair; speculative.method: mtp" in printed
    assert "  ERROR    the draft was made for hidden states of 5376, but the target has 1536" in printed


def test_a_base_draft_pairs_with_a_warning(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", TARGET, "--draft", "google/gemma-4-E2B"]) == 0
    assert (
        "  WARNING  the target is an instruct model (its name says so), the draft a base one" in capsys.readouterr().out
    )


def test_json_holds_everything(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", TARGET, "--draft", HEAD, "--json"]) == 0
    found = document(capsys)
    assert found["ok"] is True
    target = found["target"]
    assert len(target["text"]["layers"]) == 60
    assert target["text"]["layers"][5] == {
        "kind": "full", "heads": 32, "kv_heads": 4, "head_dim": 512, "window": None, "keys_are_values": True,
        "shares_with": None, "shares_target": False,
    }  # fmt: skip
    assert target["quantization"]["algorithm"] == "NVFP4"
    assert target["stored"]["formats"] == {"BF16": 192, "NVFP4": 410}
    assert {part["name"] for part in target["parts"]} == {"decoder layers", "embeddings", "vision", "other"}
    assert len(target["tensors"]) == 2418
    assert target["config"]["model_type"] == "gemma4"
    assert (target["kind"], target["modalities"]) == ("instruct", ["image", "text", "video"])
    assert found["draft"]["speculator"]["target_layers"] == [2, 30, 57]
    assert {finding["code"] for finding in found["pairing"]["findings"]} >= {"eagle3-groups", "verifier", "cost"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["some/missing"], 4, "the model some/missing does not exist on the Hub"),
        (["some/gated"], 4, "some/gated is gated"),
        ([TARGET, "--revision", "v9"], 4, "has no revision v9"),
        ([TARGET, "--draft", DRAFT, "--draft-revision", "v9"], 4, f"{DRAFT} has no revision v9"),
        (["some/missing", "--offline"], 4, "is not in the cache"),
        (["/no/such/folder"], 4, "the folder /no/such/folder does not exist"),
        (["spark-31b-e2"], 2, "unknown profile 'spark-31b-e2'; did you mean spark-31b-e2b"),
        (["spark-31b-e2b", "--revision", "main"], 2, "spark-31b-e2b is a profile, which has its own revisions"),
        (["./nothing.yaml"], 4, "does not exist"),
        (["nothing.yaml"], 2, "the profile file nothing.yaml does not exist"),
    ],
)
def test_mistakes(hub: Hub, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str) -> None:
    assert run(["inspect", *arguments]) == code
    assert said in capsys.readouterr().err


def test_a_mistake_as_json(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "some/missing", "--json"]) == 4
    assert document(capsys)["error"]["kind"] == "EnvironmentMissing"


def test_two_folders_with_tokenizers_written_differently(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    added = [{"id": number, "content": token, "special": True} for token, number in shapes.SPECIAL.items()]
    for name, size, indent, first in (("target", "31B", None, 5), ("same", "E2B", 1, 5), ("other", "E2B", None, 6)):
        vocabulary = {f"word{number}": first + number for number in range(100)}
        content = {"added_tokens": added, "model": {"vocab": vocabulary, "merges": []}}
        config = shapes.config(size)
        tokens = json.dumps(content, indent=indent).encode()
        shapes.write(tmp_path / name, shapes.model(config, shapes.tensors(config), tokens=tokens))
    assert run(["inspect", str(tmp_path / "target"), "--draft", str(tmp_path / "same")]) == 0
    assert "written differently, but every token has the same id in both" in capsys.readouterr().out
    assert run(["inspect", str(tmp_path / "target"), "--draft", str(tmp_path / "other")]) == 3
    assert "  ERROR    100 of the target's 100 tokens have a different id in the draft" in capsys.readouterr().out


def test_a_checkpoint_that_cannot_be_loaded_has_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = shapes.config("E2B")
    files = shapes.model(config, shapes.tensors(config), separate=shapes.modelopt())
    assert run(["inspect", str(shapes.write(tmp_path / "model", files))]) == 3
    assert "ERROR    hf_quant_config.json declares NVFP4, but no module is stored as NVFP4" in capsys.readouterr().out


def test_as_a_process_of_its_own_with_a_token(published: Hub, tmp_path: Path) -> None:
    published.forget()
    done = subprocess.run(
        [sys.executable, "-m", "gemmaspec", "inspect", TARGET, "--json"],
        capture_output=True, text=True, check=False, env=published.environment(tmp_path, HF_TOKEN="hf_secret_token"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["target"]["bytes_read"] < published.sent < 2 * 10**6
    assert "hf_secret_token" not in done.stdout + done.stderr
    assert not list(tmp_path.rglob("config.json"))


def test_a_stranger_s_json_cannot_talk_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**shapes.config("E2B"), "note": "\x9b2J\x7f\x1b[2J"}
    folder = shapes.write(
        tmp_path / "model", shapes.model(config, shapes.tensors(config), tokens=shapes.tokenizer(more=9))
    )
    assert run(["inspect", str(folder), "--json"]) == 0
    printed = capsys.readouterr().out
    assert not set("\x9b\x7f\x1b") & set(printed)
    assert json.loads(printed)["target"]["config"]["note"] == config["note"]


def test_profiles_complete(capsys: pytest.CaptureFixture[str]) -> None:
    from gemmaspec.cli.options import complete_profile

    assert "spark-31b-e2b" in complete_profile("spark-31")
    assert run(["inspect", "--help"]) == 0
    assert "exit code 3" in " ".join(capsys.readouterr().out.split()).lower()
