"""Keys that people carry over from other servers, and vLLM's own flags: each answer is right, or says that there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.profile.load import load_profile

OWN = "schema: 1\nextends: tiny-cpu\nname: mine\n"

REFUSED = (
    # llama.cpp, SGLang and Ollama
    ("serve: {split_mode: row}", "the right name is serve.tensor_parallel_size"),
    ("serve: {tensor_split: '1,1'}", "the right name is serve.tensor_parallel_size"),
    ("serve: {main_gpu: 1}", "devices: [N] uses GPU N alone"),
    ("serve: {mmproj: a.gguf}", "has its image encoder inside; serve.language_model_only"),
    ("serve: {jinja: true}", "vLLM always renders the checkpoint's template; chat.template names another"),
    ("serve: {temp: 0.7}", "each request sets it"),
    ("serve: {dp_size: 2}", "the right name is replicas"),
    ("serve: {ep: true}", "serve.extra_args: [--enable-expert-parallel]"),
    ("serve: {chunked_prefill_size: 4096}", "the right name is serve.max_num_batched_tokens"),
    ("serve: {schedule_policy: lpm}", "serve.extra_args: [--scheduling-policy=priority]"),
    ("serve: {disable_radix_cache: true}", "the right name is serve.enable_prefix_caching: false"),
    ("speculative: {tokens: 4}", "the right name is speculative.num_speculative_tokens"),
    ("speculative: {spec_draft_n_max: 4}", "the right name is speculative.num_speculative_tokens"),
    ("speculative: {algorithm: EAGLE}", "the right name is speculative.method"),
    ("speculative: {eagle_topk: 4}", "vLLM drafts one chain"),
    # vLLM's own list of flags answers for what no row knows
    ("serve: {max_loras: 2}", "it is a flag of vllm serve: serve.extra_args: [--max-loras, …]"),
    ("serve: {schedule_cls: x}", "did you mean serve.extra_args: [--scheduler-cls, …]?"),
    ("serve: {max_log_length: 5}", "did you mean serve.extra_args: [--max-log-len, …]?"),
    ("serve: {num_lookahead_slots: 4}", "vllm serve 0.33.0 has no flag --num-lookahead-slots; remove it"),
    ("serve: {max_num_partial_prefills: 2}", "--max-num-partial-prefills was a flag of vLLM up to 0."),
    # values
    ("serve: {gpu_memory_utilization: '0,9'}", "write it with a point"),
    ("devices: '0,1'", "numbers of GPUs are a list: devices: [0, 1]"),
    ("serve: {bind: '*'}", "0.0.0.0 listens on every address"),
)


def message(folder: Path, text: str, *sets: str) -> str:
    file = folder / "mine.yaml"
    file.write_text(OWN + text + "\n")
    with pytest.raises(ProfileError) as caught:
        load_profile(str(file), overrides=sets)
    return caught.value.message


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[text for text, _ in REFUSED])
def test_each_key_is_answered_by_what_it_means_in_vllm(text: str, said: str, tmp_path: Path) -> None:
    answer = message(tmp_path, text)
    assert said in answer
    assert "add other flags" not in answer
    assert ("write it with a point" in answer) == ("write it with a point" in said), "1,1 is no number"


def test_every_flag_that_is_advised_is_one_of_vllm(tmp_path: Path) -> None:
    from gemmaspec.core.releases.facts import facts_for, newest

    facts = facts_for(newest())
    assert facts
    for text, _ in REFUSED:
        for flag in re.findall(r"extra_args: \[(--[\w-]+)", message(tmp_path, text)):
            assert flag in facts.flags, (text, flag)


def test_what_commands_write_is_nobodys_guess(tmp_path: Path) -> None:
    assert "measured" not in message(tmp_path, "", "nope=1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "tiny-cpu", "--draft", "google/gemma-4-31B-it-assistant"], "--set draft.model=google/gemma-4-31B-it-assistant"),
        (["up", "tiny-cpu", "--target", "google/gemma-4-31B-it"], "--set target.model=google/gemma-4-31B-it"),
        (["up", "tiny-cpu", "--runtime", "0.33.0"], "--set runtime.vllm=0.33.0"),
        (["config"], "gemmaspec profile show NAME, or gemmaspec render NAME"),
        (["update"], "uv tool upgrade gemmaspec"),
        (["status", "--follow"], "gemmaspec top follows servers"),
    ],
)  # fmt: skip
def test_words_of_a_command_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("serve: {load_format: gguf}", "GS902", "GGUF files are not served here"),
        (
            "target: {model: google/gemma-4-31B-it}\ndraft: {model: google/gemma-4-31B-it-assistant}\n"
            "speculative: {method: eagle, num_speculative_tokens: 4}",
            "GS202",
            "set method: mtp",
        ),
        (
            "target: {model: google/gemma-4-31B-it}\ndraft: {model: google/gemma-4-31B-it-assistant}\n"
            "speculative: {method: eagle3, num_speculative_tokens: 4}",
            "GS202",
            "set method: mtp",
        ),
    ],
)
def test_what_lint_says_of_a_value_that_names_nothing_here(
    text: str, code: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("schema: 1\nextends: tiny-cpu\nname: mine\n" + text + "\n")
    assert run(["profile", "lint", str(tmp_path / "mine.yaml")]) != 0
    printed = capsys.readouterr()
    assert f"error {code}" in printed.out + printed.err
    assert said in printed.out + printed.err
