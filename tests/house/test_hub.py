"""The fake of the Hub, held against huggingface_hub itself: what it gets wrong, every other test would too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.support.hub import Fault, Hub, Zeros, serve

HEADER = b'{"w":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}'
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8)
FILES = {"config.json": b'{"model_type": "gemma4"}', "model.safetensors": WEIGHTS, "docs/a.txt": b"a"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serve() as server:
        server.aim(monkeypatch, tmp_path / "home")
        yield server


def test_information_tree_and_revisions(hub: Hub) -> None:
    first = hub.add("some/model", FILES, card={"base_model": "some/base"})
    second = hub.add("some/model", {**FILES, "config.json": b"{}"}, ref="refs/pr/1")
    info = HfApi().model_info("some/model", files_metadata=True)
    assert (info.sha, info.gated, info.private) == (first, False, False)
    assert info.card_data["base_model"] == "some/base"
    weights = next(file for file in info.siblings or [] if file.rfilename == "model.safetensors")
    assert weights.size == len(WEIGHTS)
    assert weights.lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    assert HfApi().model_info("some/model", revision="refs/pr/1").sha == second
    paths = [entry.path for entry in HfApi().list_repo_tree("some/model", recursive=True)]
    assert sorted(paths) == ["config.json", "docs", "docs/a.txt", "model.safetensors"]
    assert [entry.path for entry in HfApi().get_paths_info("some/model", ["config.json"])] == ["config.json"]


def test_downloads_land_in_the_cache_under_their_commit(hub: Hub, tmp_path: Path) -> None:
    commit = hub.add("some/model", FILES)
    other = hub.add("some/model", {"config.json": b"other"}, ref="refs/pr/1")
    folder = Path(snapshot_download("some/model"))
    assert folder.name == commit
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == set(FILES)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert Path(hf_hub_download("some/model", "config.json", revision="refs/pr/1")).read_bytes() == b"other"
    assert Path(hf_hub_download("some/model", "config.json", revision=other)).read_bytes() == b"other"


def test_a_range_of_a_sparse_file_is_all_that_is_sent(hub: Hub) -> None:
    hub.add("some/model", {"config.json": b"{}", "model.safetensors": Zeros(WEIGHTS[:-8], size=20 * 2**30)})
    metadata = HfApi().get_safetensors_metadata("some/model")
    assert metadata.files_metadata["model.safetensors"].tensors["w"].shape == [2, 2]
    assert hub.sent < 110_000
    with HfFileSystem(skip_instance_cache=True).open("some/model/model.safetensors", cache_type="none") as file:
        file.seek(20 * 2**30 - 4)
        assert file.read(10) == bytes(4)


def test_storage_never_sees_the_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("some/model", FILES, gated="manual", readers=frozenset({"hf_in"}))
    monkeypatch.setenv("HF_TOKEN", "hf_in")
    hf_hub_download("some/model", "model.safetensors")
    from_storage = [one for one in hub.requests if one.path.startswith("/storage/")]
    assert from_storage
    assert not any(one.authorized for one in from_storage)
    assert all(one.authorized for one in hub.requests if one not in from_storage)


@pytest.mark.parametrize("token", [None, "hf_stranger"])
def test_gated_private_and_missing_models(hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    hub.add("some/gated", FILES, gated="manual", readers=frozenset({"hf_in"}))
    hub.add("some/private", FILES, private=True, readers=frozenset({"hf_in"}))
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    assert HfApi().model_info("some/gated").gated == "manual"
    with pytest.raises(GatedRepoError) as gated:
        hf_hub_download("some/gated", "config.json")
    assert gated.value.response.status_code == (403 if token else 401)
    with pytest.raises(GatedRepoError):
        HfApi().auth_check("some/gated")
    for name in ("some/private", "some/missing"):
        with pytest.raises(RepositoryNotFoundError) as error:
            HfApi().model_info(name)
        assert error.value.response.status_code == (404 if token else 401)
    monkeypatch.setenv("HF_TOKEN", "hf_in")
    HfApi().auth_check("some/gated")
    assert Path(hf_hub_download("some/private", "config.json")).is_file()
    assert HfApi().whoami()["name"] == "tester"


def test_missing_files_and_revisions(hub: Hub) -> None:
    hub.add("some/model", FILES)
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download("some/model", "nothing.json")
    assert not HfApi().file_exists("some/model", "nothing.json")
    with pytest.raises(RevisionNotFoundError):
        HfApi().model_info("some/model", revision="v9")


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub: Hub) -> None:
    size = 24 * 2**20  # huggingface_hub takes it in pieces of 10 MB, and keeps the whole ones
    hub.add("some/model", {"config.json": b"{}", "model.safetensors": Zeros(b"first", size)})
    hub.faults = [Fault("GET /storage/", break_after=13 * 2**20)]
    assert Path(hf_hub_download("some/model", "model.safetensors")).stat().st_size == size
    ranges = [one.range for one in hub.requests if one.path.startswith("/storage/")]
    assert ranges == [None, f"bytes={10 * 10**6}-"] or ranges == [None, f"bytes={10 * 2**20}-"]


def test_an_error_on_demand_and_a_slow_answer(hub: Hub) -> None:
    hub.add("some/model", FILES)
    hub.faults = [Fault("/api/models/", status=500)]
    with pytest.raises(HfHubHTTPError):
        HfApi().model_info("some/model")
    hub.bytes_per_second = 2000
    assert HfApi().model_info("some/model").sha
    hub.forget()
    assert (hub.sent, hub.requests) == (0, [])
