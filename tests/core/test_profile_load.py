"""From a profile's name to a checked profile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemmaspec.core import data
from gemmaspec.core.errors import ProfileError, UsageError
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import load_profile

BASE = """\
schema: 1
name: mine
summary: a test
machine: dgx-spark
image: vllm/vllm-openai:v0.33.0
target: {model: owner/target}
draft: {model: owner/draft}
speculative:
  method: draft_model
  num_speculative_tokens: 4
serve:
  max_model_len: 4096
"""


def write(folder: Path, name: str, text: str) -> str:
    file = folder / f"{name}.yaml"
    file.write_text(text)
    return str(file)


def refused(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ProfileError) as caught:
        load_profile(write(folder, "mine", text), overrides=overrides)
    return caught.value.message


@pytest.mark.parametrize("name", profile_names([data.PROFILES]))
def test_every_shipped_profile_is_valid(name: str) -> None:
    assert load_profile(name).profile.name == name


@pytest.mark.parametrize("name", [name for name in profile_names([data.PROFILES]) if not name.startswith("tiny-")])
def test_every_shipped_figure_can_be_found_and_a_profile_without_one_says_so(name: str) -> None:
    loaded = load_profile(name)
    measured = loaded.profile.measured
    assert all(re.search(r"\w[./]\w", figure.source) and figure.machine and figure.date for figure in measured)
    own = [figure for figure in measured if not figure.draft and figure.tokens_per_second]
    told = " ".join(loaded.file.read_text().replace("#", " ").split())
    assert own or (measured and not loaded.profile.draft) or "found" in told or name == "spark-31b-eagle3"


def test_the_shipped_profiles() -> None:
    assert set(profile_names([data.PROFILES])) == {
        "spark-31b-e2b",
        "spark-31b",
        "spark-e2b",
        "spark-31b-eagle3",
        "spark-e4b",
        "spark-e4b-fp8",
        "spark-deckard-31b-e4b",
        "spark-31b-mtp",
        "spark2-31b",
        "spark2-31b-mtp",
        "spark-31b-dflash2",
        "spark-31b-dspark",
        "spark-26b-a4b-dflash",
        "nvidia-26b-a4b-dflash",
        "spark-26b-a4b-mtp",
        "spark-12b-mtp",
        "spark-e4b-mtp",
        "spark-e2b-mtp",
        "nvidia-31b-mtp",
        "nvidia-31b-mtp-32gb",
        "nvidia-26b-a4b-mtp",
        "nvidia-31b-qat-mtp",
        "nvidia-31b-qat-mtp-24gb",
        "nvidia2-31b-qat-mtp",
        "nvidia-12b-qat-mtp",
        "nvidia-e4b-qat-mtp",
        "nvidia-e2b-qat-mtp",
        "nvidia-26b-a4b-qat-mtp",
        "spark-31b-qat-e2b",
        "spark-31b-qat-mtp",
        "nvidia2-31b-mtp",
        "nvidia2-26b-a4b-mtp",
        "tiny-cpu",
        "tiny-cpu-mtp",
        "tiny-cpu-eagle3",
        "tiny-cpu-ngram",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(BASE.replace("method:", "methd:"), "mine.yaml:9: speculative.methd: unknown key; did you mean 'method'?", id="typo"),
        pytest.param(BASE + "servee: {}\n", "mine.yaml:13: servee: unknown key; did you mean 'serve'?", id="typo at the top"),
        pytest.param(BASE + "  zzz: 1\n", "serve.zzz: unknown key; vllm serve 0.33.0 has no flag --zzz; remove it (all keys: gemmaspec profile schema)", id="nothing near"),
        pytest.param(BASE.replace("  method: draft_model\n", "").replace("draft: {model: owner/draft}\n", ""), "mine.yaml:7: speculative.method: is missing", id="no method"),
        pytest.param(BASE.split("speculative:")[0], "a draft needs `speculative: {method: …}`", id="draft alone"),
        pytest.param(BASE.replace("draft: {model: owner/draft}\n", ""), "draft_model needs a `draft: {model: …}`", id="no draft"),
        pytest.param(
            BASE.replace("method: draft_model", "method: mtp\n  use_heterogeneous_vocab: true"),
            "mine.yaml:10: speculative.use_heterogeneous_vocab: belongs to the method draft_model, not to mtp",
            id="mtp with a field of draft_model",
        ),
        pytest.param(
            BASE.replace("draft: {model: owner/draft}\n", "").replace(
                "method: draft_model", "method: ngram\n  prompt_lookup_min: 4\n  prompt_lookup_max: 2"
            ),
            "mine.yaml:9: speculative.prompt_lookup_min: is 4, which is larger than prompt_lookup_max, 2",
            id="ngrams that are longer than the longest",
        ),
        pytest.param(
            BASE.replace("method: draft_model", "method: ngram\n  draft_tensor_parallel_size: 1").replace(
                "draft: {model: owner/draft}\n", ""
            ),
            "belongs to the method dflash or draft_model or dspark or eagle or eagle3 or mtp, not to ngram",
            id="ngram with draft parallelism",
        ),
        pytest.param(
            BASE.replace("method: draft_model", "method: mtp\n  draft_tensor_parallel_size: 1"),
            None,
            id="mtp with draft parallelism",
        ),
        pytest.param(
            BASE.replace("tokens: 4", "tokens: 4\n  fly_window_size: 2"),
            "mine.yaml:11: speculative.fly_window_size: belongs to rejection_sample_method: fly",
            id="fly without fly",
        ),
        pytest.param(
            BASE.replace("tokens: 4", "tokens: 4\n  synthetic_acceptance_length: 2"),
            "mine.yaml:11: speculative.synthetic_acceptance_length: belongs to rejection_sample_method: synthetic",
            id="synthetic without synthetic",
        ),
        pytest.param(
            BASE.replace("method: draft_model", "method: eagle3\n  parallel_drafting: true\n  disable_padded_drafter_batch: true"),
            "mine.yaml:11: speculative.disable_padded_drafter_batch: vLLM does not support it with parallel_drafting",
            id="unpadded and parallel",
        ),
        pytest.param(BASE + "  extra_args: [--seed, 1]\n", None, id="a number among the arguments"),
        pytest.param(
            BASE + "  tensor_parallel_size: 4\n",
            None,
            id="draft TP not given",
        ),
        pytest.param(
            BASE.replace("method: draft_model", "method: draft_model\n  draft_tensor_parallel_size: 2") + "  tensor_parallel_size: 4\n",
            "mine.yaml:10: speculative.draft_tensor_parallel_size: is 2; vLLM accepts 1 or the target's tensor_parallel_size, here 4",
            id="draft TP",
        ),
        pytest.param(BASE.replace("4096", "128k"), "mine.yaml:12: serve.max_model_len: '128k' is not a whole number; write 131072", id="128k"),
        pytest.param(BASE.replace("4096", "0"), "serve.max_model_len: must be at least 1, got 0", id="zero"),
        pytest.param(BASE + "  bind: 0.0.0.0\n", "add VLLM_API_KEY to pass_env", id="open to others"),
        pytest.param(BASE + "  bind: example\n", "mine.yaml:13: serve.bind:", id="not an address"),
        pytest.param(BASE + "  extra_args: [--api-key=abc]\n", "set --api-key with its own key, pass_env (VLLM_API_KEY)", id="api key"),
        pytest.param(BASE + "env: {HF_TOKEN: hf_x}\n", "HF_TOKEN looks like a secret", id="secret"),
        pytest.param(BASE + "env: {A B: x}\n", "'A B' is not the name of an environment variable", id="env name"),
        pytest.param(BASE + "env: {DEBUG: true}\n", "env.DEBUG: must be text, but true is not; write 'true' in quotes", id="env bool"),
        pytest.param(BASE + "runtime: {packages: {transformers: '>=5.5.0'}}\n", "has no upper bound", id="unbounded"),
        pytest.param(BASE + "runtime: {vllm: latest}\n", "'latest' is not a release like 0.32.0", id="latest"),
        pytest.param(BASE.replace("owner/target", "target"), "neither a Hugging Face id (owner/name) nor a folder", id="model"),
        pytest.param(BASE.replace("owner/target", "--help"), "neither a Hugging Face id", id="a flag for a model"),
        pytest.param(BASE.replace("dgx-spark", "dgx"), "machine: unknown machine 'dgx'; the known ones are dgx-spark", id="machine"),
        pytest.param(f"{BASE}devices: 2\n", "devices: must be a list: [2]; the numbers of the GPUs", id="devices"),
        pytest.param(BASE.replace("name: mine", "name: yours"), "mine.yaml:2: name: 'yours' does not match the file's name, mine.yaml", id="name"),
        pytest.param(BASE.replace("name: mine", "name: ../x"), "is not a name of lower-case letters", id="name with a path"),
        pytest.param("extends: mine\n", "is circular", id="extends itself"),
        pytest.param("extends: ../x\n", "extends: must be the name of a profile", id="extends a path"),
        pytest.param("extends: nothing\n", "nothing.yaml is neither next to this file nor a shipped profile", id="extends nothing"),
        pytest.param("- a\n", "a profile must be a map of keys", id="a list"),
        pytest.param("schema: 2\n", "schema: must be 1, got 2", id="schema"),
        pytest.param(BASE + "patches: {required: [a, b], optional: [a]}\n", "patches: a is listed twice", id="patch twice"),
    ],
)  # fmt: skip
def test_each_mistake_gets_one_clear_error(profiles: Path, text: str, said: str | None) -> None:
    if said is None:
        assert load_profile(write(profiles, "mine", text))
        return
    message = refused(profiles, text)
    assert said in message
    assert "Traceback" not in message


def test_all_mistakes_are_told_at_once(profiles: Path) -> None:
    message = refused(profiles, BASE.replace("4096", "128k").replace("method:", "methd:").replace("summary", "sumary"))
    assert [line.split(":")[1] for line in message.splitlines()] == ["1", "3", "9", "12"]


def test_a_child_replaces_single_values_of_what_it_extends_and_null_takes_one_away(profiles: Path) -> None:
    write(profiles, "_base", BASE.replace("name: mine\n", "") + "  max_num_seqs: 8\n")
    child = "extends: _base\nname: mine\nserve: {max_model_len: 8192, max_num_seqs: null}\n"
    loaded = load_profile(write(profiles, "mine", child))
    assert loaded.profile.serve.max_model_len == 8192
    assert loaded.profile.serve.max_num_seqs is None
    assert loaded.profile.target.model == "owner/target"
    assert str(loaded.place("serve", "max_model_len")).endswith("mine.yaml:3")
    assert str(loaded.place("target", "model")).endswith("_base.yaml:5")


def test_a_mistake_is_blamed_on_the_file_it_stands_in(profiles: Path) -> None:
    write(profiles, "_base", BASE.replace("name: mine\n", "").replace("4096", "many"))
    assert "_base.yaml:11: serve.max_model_len" in refused(profiles, "extends: _base\nname: mine\n")


def test_set_overrides_one_value_and_the_last_one_wins(profiles: Path) -> None:
    file = write(profiles, "mine", BASE)
    loaded = load_profile(
        file, overrides=["serve.port=8001", "serve.port=8002", "chat.template_kwargs={enable_thinking: true}"]
    )
    assert loaded.profile.serve.port == 8002
    assert loaded.profile.chat.template_kwargs == {"enable_thinking": True}


def test_set_with_an_unknown_key_names_the_nearest(profiles: Path) -> None:
    assert "--set serve.prot: serve.prot: unknown key; did you mean 'port'?" in refused(profiles, BASE, "serve.prot=1")


@pytest.mark.parametrize("override", ["serve.port", "=3", "serve..port=1", ""])
def test_set_that_is_not_an_assignment_is_a_usage_error(profiles: Path, override: str) -> None:
    with pytest.raises(UsageError, match="must be KEY=VALUE"):
        load_profile(write(profiles, "mine", BASE), overrides=[override])


def test_no_spec_leaves_the_target_alone(profiles: Path) -> None:
    profile = load_profile(write(profiles, "mine", BASE), no_spec=True).profile
    assert profile.draft is None
    assert profile.speculative is None


def test_a_name_that_does_not_exist_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        load_profile("spark-31b-e2")
    assert "did you mean spark-31b-e2b" in caught.value.message
    assert caught.value.hint == "gemmaspec profile list"


def test_a_users_own_profile_hides_a_shipped_one(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(profiles, "tiny-cpu", BASE.replace("mine", "tiny-cpu"))
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(profiles))
    assert load_profile("tiny-cpu").profile.summary == "a test"


def test_relative_folders_are_meant_from_the_profiles_own_folder(profiles: Path) -> None:
    file = write(profiles, "mine", BASE.replace("owner/target", "./models/target"))
    assert load_profile(file).profile.target.model == str(profiles / "models" / "target")


def test_the_targets_parallelism_may_stand_in_extra_args(tmp_path: Path) -> None:
    sets = ["serve.extra_args=[-tp, '2']", "speculative.draft_tensor_parallel_size=2"]
    assert load_profile(write(tmp_path, "mine", BASE), overrides=sets).profile.serve.extra_args == ["-tp", "2"]


def test_drafts_that_are_looked_up_in_the_text_are_not_in_every_step() -> None:
    head = load_profile("tiny-cpu-mtp").profile
    assert head.drafts_always
    assert head.speculative
    looked_up = head.speculative.model_copy(update={"method": "ngram"})
    assert not head.model_copy(update={"speculative": looked_up}).drafts_always
    assert not head.model_copy(update={"speculative": None}).drafts_always
