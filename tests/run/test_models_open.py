"""Opening checkpoints: folders, the cache, and a fake of the Hub, which is not reachable here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from gemmaspec.check.inspect.examine import examine
from gemmaspec.core.checkpoint.tokens import added_tokens, words
from gemmaspec.core.errors import CheckpointError, EnvironmentMissing
from gemmaspec.run.models.open import open_checkpoint
from gemmaspec.run.models.vocabulary import same_words
from tests.support import shapes
from tests.support.hub import Body, Fault, Hub, Zeros, hub_settings, serve

BUDGET = 2 * 10**6
SMALL = {
    **shapes.TEXTS["E2B"],
    "num_hidden_layers": 5,
    "num_kv_shared_layers": 0,
    "hidden_size": 64,
    "hidden_size_per_layer_input": 0,
    "vocab_size": 1024,
    "intermediate_size": 128,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"],
}


def small_config() -> dict[str, object]:
    vision = {
        **shapes.config("E2B")["vision_config"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "head_dim": 16,
    }
    vision["position_embedding_size"] = 16
    return {**shapes.config("E2B"), "text_config": dict(SMALL), "vision_config": vision, "audio_config": None}


def small(*, shard: int = 10**9, **more: object) -> dict[str, Body]:
    files = shapes.model(small_config(), shapes.tensors(small_config()), tokens=shapes.tokenizer(more=100))
    weights = shapes.weight_files(shapes.tensors(small_config()), shard=shard)
    return {**{name: body for name, body in files.items() if "safetensors" not in name}, **weights}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Hub]:
    with serve() as server:
        server.aim(monkeypatch, home)
        yield server


def cached_files(home: Path) -> list[str]:
    return sorted(str(file.relative_to(home)) for file in home.rglob("*") if file.is_file())


@pytest.mark.parametrize("size", shapes.TEXTS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_remote_checkpoint_is_described_within_the_budget(hub: Hub, home: Path, size: str, packed: bool) -> None:
    config = shapes.config(size)
    tensors = shapes.tensors(config)
    separate = shapes.modelopt() if packed else None
    files = shapes.model(
        config, shapes.nvfp4(tensors) if packed else tensors, tokens=shapes.tokenizer(), separate=separate
    )
    commit = hub.add("some/model", files)
    found = open_checkpoint("some/model")
    assert (found.source, found.revision) == ("hub", commit)
    assert found.nbytes > 7 * 10**9
    assert found.special_tokens == shapes.SPECIAL
    assert found.tokenizer_digest is not None
    assert hub.sent < 1_000_000 < BUDGET
    assert found.bytes_read < hub.sent
    assert cached_files(home) == []


def test_a_large_tokenizer_config_still_fits_the_budget(hub: Hub) -> None:
    config = shapes.config("31B")
    table = {
        str(number): {
            "content": f"<unused{number}>",
            "special": True,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
        }
        for number in range(9000)
    }
    own = json.dumps({"added_tokens_decoder": table, "chat_template": "x"}).encode()
    assert len(own) > 900_000
    hub.add(
        "some/model", {**shapes.model(config, shapes.tensors(config), instruct=False), "tokenizer_config.json": own}
    )
    found = open_checkpoint("some/model")
    assert (len(found.special_tokens), found.has_chat_template) == (9000, True)
    assert hub.sent < BUDGET


def test_folder_cache_and_hub_say_the_same(hub: Hub, tmp_path: Path) -> None:
    folder = shapes.write(tmp_path / "model", small(shard=100_000))
    hub.add_folder("some/model", folder)
    local, remote = open_checkpoint(str(folder)), open_checkpoint("some/model")
    snapshot_download("some/model")
    cached = open_checkpoint("some/model")
    assert [one.source for one in (local, remote, cached)] == ["folder", "hub", "cache"]
    assert remote.revision == cached.revision
    for name in (
        "text",
        "tensors",
        "special_tokens",
        "tokenizer_digest",
        "modalities",
        "quantization",
        "has_chat_template",
    ):
        assert getattr(local, name) == getattr(remote, name) == getattr(cached, name), name
    assert examine(local) == examine(remote) == examine(cached)


def test_a_whole_snapshot_of_a_commit_is_read_without_asking(hub: Hub) -> None:
    commit = hub.add("some/model", small())
    snapshot_download("some/model")
    hub.forget()
    assert open_checkpoint("some/model", revision=commit).source == "cache"
    assert hub.requests == []


def test_a_branch_that_has_moved_is_read_from_the_hub(hub: Hub) -> None:
    hub.add("some/model", small())
    snapshot_download("some/model")
    later = hub.add("some/model", {**small(), "README.md": b"---\nbase_model: google/gemma-4-E2B-it\n---\n"})
    found = open_checkpoint("some/model")
    assert (found.source, found.revision) == ("hub", later)
    assert open_checkpoint("some/model", offline=True).revision != later


def test_a_snapshot_with_missing_weights_is_completed_by_the_hub_or_told(hub: Hub) -> None:
    hub.add("some/model", small(shard=100_000))
    snapshot_download("some/model", ignore_patterns=["model-00002-*"])
    assert open_checkpoint("some/model").source == "hub"
    found = open_checkpoint("some/model", offline=True)
    assert [name[:11] for name in found.missing_files] == ["model-00002"]
    assert "weights-missing" in {finding.code for finding in examine(found)}


def test_revisions(hub: Hub) -> None:
    first = hub.add("some/model", small())
    second = hub.add("some/model", {**small(), "extra.txt": b"x"}, ref="refs/pr/1")
    assert open_checkpoint("some/model").revision == first
    assert open_checkpoint("some/model", revision="refs/pr/1").revision == second
    assert open_checkpoint("some/model", revision=second).revision == second
    with pytest.raises(EnvironmentMissing, match="some/model has no revision v9"):
        open_checkpoint("some/model", revision="v9")


def test_the_model_card_names_the_base_everywhere(hub: Hub, tmp_path: Path) -> None:
    card = b"---\nlicense: gemma\nbase_model:\n- google/gemma-4-E2B\n---\n# Model\n"
    folder = shapes.write(tmp_path / "model", {**small(), "README.md": card})
    hub.add_folder("some/model", folder, card={"base_model": ["google/gemma-4-E2B"]})
    assert (
        open_checkpoint(str(folder)).base_models == open_checkpoint("some/model").base_models == ("google/gemma-4-E2B",)
    )


@pytest.mark.parametrize(
    "card",
    [
        b"# no head", b"---\n: [\n---\n", b"---\n- a\n---\n", b"---\nbase_model: {a: b}\n---\n", b"---\nbase_model: ../../etc\n---\n",
        b"---\na: &a [x]\nb: *a\n---\n", b"---\n" + b"[" * 5000 + b"\n---\n",
    ],
)  # fmt: skip
def test_a_card_that_cannot_be_read_says_nothing(tmp_path: Path, card: bytes) -> None:
    folder = shapes.write(tmp_path / "model", {**small(), "README.md": card})
    assert open_checkpoint(str(folder)).base_models == ()


@pytest.mark.parametrize("token", [None, "hf_stranger"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("some/gated", "some/gated is gated, and this token has no access yet"),
        ("some/private", "the model some/private does not exist on the Hub, or it is private"),
        ("some/missing", "the model some/missing does not exist on the Hub"),
    ],
)
def test_models_that_cannot_be_read(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str | None, name: str, said: str
) -> None:
    hub.add("some/gated", small(), gated="manual", readers=frozenset({"hf_in"}))
    hub.add("some/private", small(), private=True, readers=frozenset({"hf_in"}))
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(EnvironmentMissing) as error:
        open_checkpoint(name)
    assert said in error.value.message
    assert "hf_stranger" not in f"{error.value.message} {error.value.hint}"
    monkeypatch.setenv("HF_TOKEN", "hf_in")
    if name != "some/missing":
        assert open_checkpoint(name).source == "hub"


def test_storage_is_not_shown_the_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("some/gated", small(), gated="auto", readers=frozenset({"hf_in"}))
    monkeypatch.setenv("HF_TOKEN", "hf_in")
    open_checkpoint("some/gated")
    assert any(one.authorized for one in hub.requests)
    assert not [one for one in hub.requests if one.path.startswith("/storage/") and one.authorized]


def test_a_connection_that_breaks_off_is_asked_again(hub: Hub) -> None:
    hub.add("some/model", small())
    hub.faults = [Fault("GET /storage/", times=2, break_after=100)]
    assert open_checkpoint("some/model").tensors


@pytest.mark.parametrize("times", [1, 2])
def test_a_hub_that_is_busy_for_a_moment_is_asked_again(hub: Hub, times: int) -> None:
    hub.add("some/model", small())
    hub.faults = [Fault("GET /api/models/", times=times, status=503)]
    assert open_checkpoint("some/model").tensors
    assert sum(one.status == 503 for one in hub.requests) == times


def test_a_page_in_place_of_the_hubs_answer_is_named(hub: Hub) -> None:
    hub.faults = [Fault("GET /api/models/", times=9, status=200)]
    with pytest.raises(EnvironmentMissing, match="the answer is not one of a Hub"):
        open_checkpoint("some/model")


def test_a_connection_that_keeps_breaking_off_is_one_clear_error(hub: Hub) -> None:
    hub.add("some/model", small())
    hub.faults = [Fault("GET /storage/", times=99, break_after=100)]
    with pytest.raises(EnvironmentMissing, match="cannot query the Hub about some/model"):
        open_checkpoint("some/model")


def test_a_hub_that_fails_leaves_what_is_cached(hub: Hub) -> None:
    hub.add("some/model", small())
    hub.faults = [Fault("/api/models/", times=99, status=500)]
    with pytest.raises(EnvironmentMissing, match="it answers 500"):
        open_checkpoint("some/model")
    hub.faults = []
    snapshot_download("some/model")
    hub.faults = [Fault("/api/models/", times=99, status=500)]
    assert open_checkpoint("some/model").source == "cache"


def test_a_hub_that_is_not_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_settings(monkeypatch, ENDPOINT="http://127.0.0.1:9")
    with pytest.raises(EnvironmentMissing, match="cannot query the Hub about some/model: connection refused"):
        open_checkpoint("some/model")


def test_offline_asks_nobody(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("some/model", small())
    with pytest.raises(EnvironmentMissing, match="some/model is not in the cache, and the Hub is disabled"):
        open_checkpoint("some/model", offline=True)
    hub_settings(monkeypatch, HF_HUB_OFFLINE=True)
    with pytest.raises(EnvironmentMissing, match="at v1 is not in the cache"):
        open_checkpoint("some/model", revision="v1")
    assert hub.requests == []


def test_another_cache_may_be_named(hub: Hub, tmp_path: Path) -> None:
    hub.add("some/model", small())
    snapshot_download("some/model", cache_dir=tmp_path / "elsewhere")
    assert open_checkpoint("some/model", cache_dir=tmp_path / "elsewhere", offline=True).source == "cache"
    with pytest.raises(EnvironmentMissing):
        open_checkpoint("some/model", offline=True)


def test_a_slow_hub_is_waited_for(hub: Hub) -> None:
    hub.add("some/model", small())
    hub.bytes_per_second = 200_000
    assert open_checkpoint("some/model").tensors


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config.json": b"[]"}, "config.json: must be a JSON object"),
        ({"config.json": Zeros(b"{", 5 * 2**20)}, "config.json: 5242880 bytes, more than the limit"),
        ({"hf_quant_config.json": b"{"}, "hf_quant_config.json: invalid JSON"),
        ({"model.safetensors": b""}, "model.safetensors: with 0 bytes it is too short"),
        ({"model.safetensors": Zeros((100 * 2**20).to_bytes(8, "little"), 200 * 2**20)}, "the header claims 104857600 bytes, more than the limit"),
        ({"model.safetensors": (5000).to_bytes(8, "little") + b"{}"}, "the header claims 5000 bytes in a file of 10"),
        ({"model.safetensors": None, "model.safetensors.index.json": b'{"weight_map": {"a": "../../x.safetensors"}}', "other.safetensors": b""}, "contains the path of a file outside the checkpoint"),
        ({"model.safetensors": None, "model.safetensors.index.json": b'{"weight_map": {"a": 7}}', "other.safetensors": b""}, "every file's name must be a text"),
        ({"tokenizer.json": None, "tokenizer_config.json": b"7"}, "tokenizer_config.json: must be a JSON object"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("remote", [False, True])
def test_hostile_files_are_one_clear_error(
    hub: Hub, tmp_path: Path, changes: dict[str, Body | None], said: str, remote: bool
) -> None:
    files = {name: body for name, body in {**small(), **changes}.items() if body is not None}
    ref = "some/model" if remote else str(shapes.write(tmp_path / "model", files))
    hub.add("some/model", files)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(ref)
    assert error.value.message.startswith(f"{ref}: ")
    assert said in error.value.message
    assert hub.sent < 300_000


def test_no_folder_no_config_no_permission(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissing, match=r"the folder .* does not exist"):
        open_checkpoint(str(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(EnvironmentMissing, match=r"config\.json is missing"):
        open_checkpoint(str(tmp_path / "empty"))


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    folder = shapes.write(tmp_path / "model", small())
    os.mkfifo(folder / "README.md")
    os.mkfifo(folder / "more.safetensors")
    assert open_checkpoint(str(folder)).tensors


def test_a_folder_without_weights_is_described(tmp_path: Path) -> None:
    files = {name: body for name, body in small().items() if "safetensors" not in name}
    found = open_checkpoint(str(shapes.write(tmp_path / "model", files)))
    assert (found.tensors, found.missing_files) == ((), ())


def test_the_index_decides_where_names_do_not(tmp_path: Path) -> None:
    weights = shapes.safetensors(shapes.tensors(small_config()))
    table = dict.fromkeys(shapes.tensors(small_config()), "here.safetensors")
    files: dict[str, Body] = {
        "config.json": json.dumps(small_config()).encode(),
        "here.safetensors": weights,
        "consolidated.safetensors": weights,
        "model.safetensors.index.json": json.dumps({"weight_map": {**table, "gone": "gone.safetensors"}}).encode(),
    }
    found = open_checkpoint(str(shapes.write(tmp_path / "model", files)))
    assert len(found.tensors) == len(table)
    assert found.missing_files == ("gone.safetensors",)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    weights = shapes.safetensors(shapes.tensors(small_config()))
    files: dict[str, Body] = {
        "config.json": json.dumps(small_config()).encode(),
        "a.safetensors": weights,
        "b.safetensors": weights,
    }
    with pytest.raises(CheckpointError, match="a tensor is stored in two weight files"):
        open_checkpoint(str(shapes.write(tmp_path / "model", files)))


def test_too_many_headers_are_refused_before_they_are_read(hub: Hub) -> None:
    first = (30 * 2**20).to_bytes(8, "little") + b"{"
    files: dict[str, Body] = {"config.json": json.dumps(small_config()).encode()}
    for number in range(1, 4):
        files[f"model-{number:05d}-of-00003.safetensors"] = Zeros(first, 40 * 2**20)
    hub.add("some/model", files)
    with pytest.raises(CheckpointError, match="94371840 bytes of headers in 3 files, more than the limit of 67108864"):
        open_checkpoint("some/model")
    assert hub.sent < 100_000


def test_a_tokenizer_of_any_size_is_not_hashed(tmp_path: Path) -> None:
    files = {**small(), "tokenizer.json": Zeros(shapes.tokenizer(more=10), 2**40)}
    assert open_checkpoint(str(shapes.write(tmp_path / "model", files))).tokenizer_digest is None


def test_state_folders_and_home_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes.write(tmp_path / "tiny" / "model", small())
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_checkpoint("state:tiny/model").tensors
    assert open_checkpoint("~/tiny/model").tensors


def test_the_words_of_a_tokenizer() -> None:
    assert words(b'{"model": {"vocab": {"x": 0, "y": 1}}}', "t") == {"x": 0, "y": 1}
    assert words(b'{"model": {"type": "Unigram", "vocab": [["x", -1.5], ["y", -2.0]]}}', "t") == {"x": 0, "y": 1}
    for wrong in (b"{}", b'{"model": 1}', b'{"model": {"vocab": 7}}', b'{"model": {"vocab": {}}}'):
        with pytest.raises(CheckpointError, match="t: the vocabulary is missing"):
            words(wrong, "t")


def test_whole_vocabularies_are_compared_only_where_both_lie_here(hub: Hub, tmp_path: Path) -> None:
    folder = shapes.write(tmp_path / "model", small())
    hub.add("some/model", small())
    local, remote = open_checkpoint(str(folder)), open_checkpoint("some/model")
    assert same_words(local, remote) is None
    snapshot_download("some/model")
    assert same_words(local, remote) == (1, 1)


@pytest.mark.parametrize(
    ("piece", "tokens"),
    [
        (b"", {}),
        (b'{"added_tokens": [', {}),
        (b'{"added_tokens": [{"id": 1, "content": "<a>", "special": true}, {"id": 2, "cont', {"<a>": 1}),
        (b'{"added_tokens": [{"id": 1, "content": "<a>", "special": false}], "model"', {}),
        (b'{"added_tokens": [7, {"id": 1, "content": "<a>", "special": true}]', {}),
        (b'{"added_tokens": [{"id": "1", "content": "<a>", "special": true}]', {}),
        (b'{"added_tokens": [{"id": 1, "content": "' + b"x" * 200 + b'", "special": true}]', {}),
        (b'{"added_tokens": ' + b"[{" * 40_000, {}),
        (b'\xff{"added_tokens": [{"id": 3, "content": "<b>", "special": true}]', {"<b>": 3}),
    ],
)
def test_control_tokens_from_a_piece(piece: bytes, tokens: dict[str, int]) -> None:
    assert added_tokens(piece) == tokens
