"""When a server is told not to use the Hub: with a fake of the Hub, there and gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.kept.models import ModelRef, server_cache
from gemmaspec.run.models import access
from gemmaspec.run.models.download import Cache, list_files
from gemmaspec.serve.decide import offline_for
from gemmaspec.serve.observe import observe_models
from gemmaspec.serve.starting import is_offline
from tests.support import hub as hub_of
from tests.support.hub import Hub, hub_settings

INDEX = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})
FILES = {
    "config.json": b"{}",
    "model.safetensors.index.json": INDEX.encode(),
    "model-00001-of-00002.safetensors": b"one",
    "model-00002-of-00002.safetensors": b"two",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_of.serve() as hub:
        hub.add("some/model", FILES)
        hub.aim(monkeypatch, tmp_path)
        yield hub


def fetch(cache: Path, *, without: tuple[str, ...] = ()) -> str:
    """Fetch the model, all of it but these files; its commit."""
    listing, place = list_files("some/model", None, role="target"), Cache(cache)
    for file in listing.files:
        if file.path not in without:
            place.fetch(listing, file, lambda _: None)
    place.name_commit(listing)
    return listing.commit


def asks(hub: Hub, cache: Path, revision: str | None) -> tuple[bool, list[str], int]:
    """The decision, what was said, and how many requests it took."""
    said: list[str] = []
    hub.forget()
    model = ModelRef(role="target", model="some/model", revision=revision)
    offline = offline_for(tuple(observe_models([model], cache)))
    return is_offline(offline, [model], said.append), said, len(hub.requests)


def test_what_is_pinned_and_whole_needs_no_hub_and_asks_none(hub: Hub, tmp_path: Path) -> None:
    commit = fetch(tmp_path / "hub")
    assert asks(hub, tmp_path / "hub", commit) == (True, [], 0)


def test_a_branch_is_asked_for_while_the_hub_answers(hub: Hub, tmp_path: Path) -> None:
    fetch(tmp_path / "hub")
    decided, said, requests = asks(hub, tmp_path / "hub", None)
    assert (decided, said) == (False, [])
    assert requests


def test_a_branch_that_is_cached_does_when_the_hub_is_gone(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(tmp_path / "hub")
    hub_settings(monkeypatch, ENDPOINT="http://127.0.0.1:9")
    decided, said, _ = asks(hub, tmp_path / "hub", None)
    assert decided
    assert said == ["the Hub does not answer; the server will use the models in the cache"]


@pytest.mark.parametrize("without", ["model-00002-of-00002.safetensors", "model.safetensors.index.json"])
def test_what_is_not_whole_needs_the_hub(hub: Hub, tmp_path: Path, without: str) -> None:
    commit = fetch(tmp_path / "hub", without=(without,))
    whole = access.is_whole("some/model", commit, cache=tmp_path / "hub")
    assert whole == (without == "model.safetensors.index.json"), "one safetensors without an index is all there is"
    assert asks(hub, tmp_path / "hub", commit)[0] == whole


def test_one_shard_of_two_without_the_index_is_not_whole(hub: Hub, tmp_path: Path) -> None:
    commit = fetch(tmp_path / "hub", without=("model-00002-of-00002.safetensors", "model.safetensors.index.json"))
    assert asks(hub, tmp_path / "hub", commit)[0] is False


@pytest.mark.parametrize("index", [b"", b"[]", b"{", b'{"weight_map": 3}', b"[" * 100_000])
def test_an_index_that_is_none_is_not_whole(hub: Hub, tmp_path: Path, index: bytes) -> None:
    hub.add("some/model", {**FILES, "model.safetensors.index.json": index})
    commit = fetch(tmp_path / "hub")
    assert not access.is_whole("some/model", commit, cache=tmp_path / "hub")


def test_folders_never_need_it_decided(tmp_path: Path) -> None:
    folder = ModelRef(role="target", model=str(tmp_path), revision=None)
    assert offline_for(tuple(observe_models([folder], tmp_path))) == "no"


def test_a_container_s_own_volume_is_not_looked_into() -> None:
    profile = load_profile("spark-31b").profile
    assert server_cache(profile, in_image=True) == Path("~/.cache/huggingface/hub").expanduser()
    volume = load_profile("spark-31b", overrides=["caches.huggingface=null"]).profile
    assert server_cache(volume, in_image=True) is None
    assert server_cache(volume, in_image=False) is not None
