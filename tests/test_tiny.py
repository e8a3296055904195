"""The tiny pair, made for real by the runtime's own Python: shapes, files, ids, bytes, and what it says."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.data import MAKER
from gemmaspec.deploy.start.prepare import runtime_spec
from gemmaspec.profile.load import load_profile
from gemmaspec.runtime import ensure_runtime
from gemmaspec.tiny.talk import OTHERWISE, TALK
from tests import real

pytestmark = [pytest.mark.real_process, pytest.mark.network]

SENTENCE = (
    " A small model drafts some words , then one large network verifies every guess at once"
    " and keeps what it would have said itself ."
)
FEW = ("--rounds", "2")
"""They learn nothing worth hearing, in seconds."""
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
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of the runtime of tiny-cpu."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GEMMASPEC_STATE", str(real.STATE))
        return ensure_runtime(runtime_spec(load_profile("tiny-cpu")), progress=lambda _: None)


@pytest.fixture(scope="module")
def pair(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pair that the suite made with this runtime, alone in a folder."""
    made, folder = real.tiny_pair(), tmp_path_factory.mktemp("pair")
    for name in ("tiny-target", "tiny-draft"):
        shutil.copytree(made / name, folder / name)
    return folder


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


def make(python: Path, out: Path, *arguments: str) -> Path:
    command = [str(python), "-I", str(MAKER), str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr
    return out


def config(pair: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((pair / name / "config.json").read_text())
    return document


def sums(folder: Path) -> dict[str, str]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_making_it_again_replaces_it_with_the_same_bytes_and_a_given_template(python: Path, tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}\n")
    old = tmp_path / "deeper" / "tiny-target"
    old.mkdir(parents=True)
    (old / "config.json").write_text("{}")
    (old / "other.txt").touch()
    once = sums(make(python, tmp_path / "once", "--chat-template", str(template), *FEW))
    assert sums(make(python, tmp_path / "deeper", "--chat-template", str(template), *FEW)) == once
    for name in ("tiny-target", "tiny-draft"):
        assert (tmp_path / "once" / name / "chat_template.jinja").read_text().strip() == template.read_text().strip()


def test_both_have_every_file_a_server_reads_and_anyone_may_read_them(pair: Path) -> None:
    expected = {
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
        "processor_config.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    for name in ("tiny-target", "tiny-draft"):
        files = list((pair / name).iterdir())
        assert {file.name for file in files} == expected
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o644 for file in files)
    assert {entry.name for entry in pair.iterdir()} == {"tiny-target", "tiny-draft"}


def test_the_shapes_are_those_that_vllm_stumbles_over(pair: Path) -> None:
    target, draft = config(pair, "tiny-target"), config(pair, "tiny-draft")
    assert target["architectures"] == draft["architectures"] == ["Gemma4ForConditionalGeneration"]
    assert (target["text_config"]["sliding_window"], draft["text_config"]["sliding_window"]) == (1024, 512)
    assert target["text_config"]["attention_k_eq_v"] is True
    assert target["text_config"]["num_global_key_value_heads"] == 1
    assert draft["text_config"]["num_kv_shared_layers"] == 5
    assert draft["text_config"]["hidden_size_per_layer_input"] == 32
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
    assert len(right) >= 0.9 * len(TALK), [(one[0], said[one[0]]) for one, reply in TALK if said[one[0]] != reply]
    assert [said[question] for question in UNKNOWN] == [OTHERWISE] * len(UNKNOWN)


def test_the_draft_opens_as_the_target_does_and_gets_some_words_wrong(seen: dict[str, Any]) -> None:
    said = seen["tiny-draft"]["talks"]
    assert sum(said[questions[0]].split()[0] == reply.split()[0] for questions, reply in TALK) >= 0.8 * len(TALK)
    assert any(said[questions[0]] != reply for questions, reply in TALK)


def test_a_reply_names_no_word_twice_and_shares_its_first_with_no_other() -> None:
    """What the pair can learn in a minute rests on it."""
    words = [re.findall(r"[\w-]+|[^\s\w]", reply) for _, reply in TALK]
    assert all(len(set(one)) == len(one) for one in words)
    assert len({one[0] for one in words}) == len(TALK)


def test_the_draft_knows_most_of_it(seen: dict[str, Any]) -> None:
    said = seen["tiny-draft"]["says"].split()
    assert set(said) < set(SENTENCE.split())
    assert seen["tiny-draft"]["says"] != seen["tiny-target"]["says"]


def test_what_came_before_the_last_word_is_heard(seen: dict[str, Any]) -> None:
    assert all(model["context_changes_logits"] for model in seen.values())


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_making_leaves_no_half_model(python: Path, tmp_path: Path, sign: signal.Signals) -> None:
    process = subprocess.Popen([python, "-I", MAKER, tmp_path], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not list(tmp_path.glob(".tiny-*/tiny-*")):  # within the block that removes the folder
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)
    process.send_signal(sign)
    process.wait(timeout=60)
    visible = [entry for entry in tmp_path.iterdir() if not entry.name.startswith(".")]
    assert visible == []
    if sign == signal.SIGINT:
        assert list(tmp_path.iterdir()) == []
