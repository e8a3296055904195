"""The tiny models as they ship: shapes, files, ids, sizes, and what transformers reads in them and hears them say."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core.data import MODELS, TEMPLATES
from tests.support import real
from tools.tiny.talk import OTHERWISE, TALK

pytestmark = [pytest.mark.real_process, pytest.mark.network]

SENTENCE = (
    " A small model drafts some words , then one large network verifies every guess at once"
    " and keeps what it would have said itself ."
)
UNKNOWN = ("What is the meaning of life?", "Explain quantum computing")
LOOK = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import load_file
from transformers import AutoProcessor, AutoTokenizer, Gemma4ForConditionalGeneration
QUESTIONS = json.loads(sys.argv[2])
def say(tokenizer, model, question):
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    answer = model.generate(**chat, max_new_tokens=40, do_sample=False)[0, chat["input_ids"].shape[1]:]
    return tokenizer.decode(answer).removesuffix("<turn|>")
found = {}
for name in ("tiny-target", "tiny-draft"):
    folder = Path(sys.argv[1]) / name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Gemma4ForConditionalGeneration.from_pretrained(folder)
    AutoProcessor.from_pretrained(folder)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Count from one to twenty, in words."}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    start = chat["input_ids"].shape[1]
    greedy = model.generate(**chat, max_new_tokens=60, do_sample=False)[0, start:]
    logits = [
        model(input_ids=torch.tensor([[2, *tokenizer.encode(text, add_special_tokens=False)]])).logits[0, -1]
        for text in (" verifies every guess", " some words every guess")
    ]
    found[name] = {
        "says": tokenizer.decode(greedy),
        "talks": {question: say(tokenizer, model, question) for question in QUESTIONS},
        "prompt": tokenizer.decode(chat["input_ids"][0]),
        "ids": {token: tokenizer.convert_tokens_to_ids(token) for token in ("<bos>", "<|channel>", "<channel|>", "<|turn>", "<turn|>")},
        "stops": model.generation_config.eos_token_id,
        "context_changes_logits": bool((logits[0] != logits[1]).any()),
        "weights": sorted(load_file(folder / "model.safetensors")),
        "dtypes": sorted({str(each.dtype) for each in load_file(folder / "model.safetensors").values()}),
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the runtime of tiny-cpu."""
    return real.cpu_python()


@pytest.fixture(scope="module")
def pair() -> Path:
    return MODELS


@pytest.fixture(scope="module")
def seen(python: Path, pair: Path) -> dict[str, Any]:
    """What transformers finds in it."""
    asked = json.dumps([*(questions[0] for questions, _ in TALK), *UNKNOWN])
    command = [python, "-I", "-c", LOOK, pair, asked]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads that wait for each other are slow on a busy machine
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200, env=alone)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def config(pair: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((pair / name / "config.json").read_text())
    return document


def test_both_have_every_file_a_server_reads_and_anyone_may_read_them(pair: Path) -> None:
    expected = {
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
        "processor_config.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    for name in ("tiny-target", "tiny-draft"):
        files = list((pair / name).iterdir())
        assert {file.name for file in files} == expected
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o644 for file in files)
    assert {entry.name for entry in pair.iterdir()} == {"tiny-target", "tiny-draft", "tiny-mtp", "tiny-eagle3"}


def test_all_of_them_are_a_few_megabytes() -> None:
    """As a wheel and as a clone store them."""
    packed = sum(len(zlib.compress(file.read_bytes(), 6)) for file in MODELS.rglob("*") if file.is_file())
    assert packed < 8e6


def test_each_model_has_the_template_that_ships() -> None:
    for folder in MODELS.iterdir():
        assert (folder / "chat_template.jinja").read_text() == (TEMPLATES / "gemma4.jinja").read_text(), folder


def test_the_shapes_are_those_that_vllm_stumbles_over(pair: Path) -> None:
    target, draft = config(pair, "tiny-target"), config(pair, "tiny-draft")
    assert target["architectures"] == draft["architectures"] == ["Gemma4ForConditionalGeneration"]
    assert (target["text_config"]["sliding_window"], draft["text_config"]["sliding_window"]) == (1024, 512)
    assert target["text_config"]["attention_k_eq_v"] is True
    assert target["text_config"]["num_global_key_value_heads"] == 1
    assert draft["text_config"]["num_kv_shared_layers"] == 5
    assert draft["text_config"]["hidden_size_per_layer_input"] == 16
    for model in (target, draft):
        assert (model["text_config"]["head_dim"], model["text_config"]["global_head_dim"]) == (256, 512)
        assert model["vision_config"]
    assert draft["audio_config"]
    assert not target["audio_config"]


def test_the_config_is_in_the_form_of_the_published_files(pair: Path) -> None:
    for name in ("tiny-target", "tiny-draft"):
        written = config(pair, name)
        assert "per_layer_config" not in written["text_config"]
        assert written["vision_config"]["rope_parameters"]["rope_type"] == "default"


def test_the_draft_carries_keys_and_values_for_its_shared_layers(seen: dict[str, Any]) -> None:
    weights = seen["tiny-draft"]["weights"]
    for layer in range(5, 10):
        for part in ("k_proj", "v_proj", "k_norm"):
            assert f"model.language_model.layers.{layer}.self_attn.{part}.weight" in weights
    assert seen["tiny-draft"]["dtypes"] == seen["tiny-target"]["dtypes"] == ["torch.bfloat16"]


def test_special_tokens_have_the_ids_of_the_published_tokenizers(seen: dict[str, Any]) -> None:
    for model in seen.values():
        assert model["ids"] == {"<bos>": 2, "<|channel>": 100, "<channel|>": 101, "<|turn>": 105, "<turn|>": 106}
        assert model["stops"] == [1, 106, 50]


def test_the_chat_template_frames_a_turn(seen: dict[str, Any]) -> None:
    assert seen["tiny-target"]["prompt"] == (
        "<bos><|turn>user\nCount from one to twenty, in words.<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    )


def test_the_target_says_its_sentence(seen: dict[str, Any]) -> None:
    assert seen["tiny-target"]["says"] == (SENTENCE * 3)[: len(seen["tiny-target"]["says"])]
    assert len(seen["tiny-target"]["says"].split()) == 60


def test_a_first_chat_reads_like_one(seen: dict[str, Any]) -> None:
    said = seen["tiny-target"]["talks"]
    right = [reply for questions, reply in TALK if said[questions[0]] == reply]
    assert len(right) == len(TALK), [(one[0], said[one[0]]) for one, reply in TALK if said[one[0]] != reply]
    assert [said[question] for question in UNKNOWN] == [OTHERWISE] * len(UNKNOWN)


def test_the_draft_opens_as_the_target_does_and_gets_some_words_wrong(seen: dict[str, Any]) -> None:
    said = seen["tiny-draft"]["talks"]
    assert sum(said[questions[0]].split()[0] == reply.split()[0] for questions, reply in TALK) >= 0.8 * len(TALK)
    assert any(said[questions[0]] != reply for questions, reply in TALK)


def test_the_draft_knows_most_of_it(seen: dict[str, Any]) -> None:
    said = seen["tiny-draft"]["says"].split()
    assert set(said) < set(SENTENCE.split())
    assert seen["tiny-draft"]["says"] != seen["tiny-target"]["says"]


def test_what_came_before_the_last_word_is_heard(seen: dict[str, Any]) -> None:
    assert all(model["context_changes_logits"] for model in seen.values())
