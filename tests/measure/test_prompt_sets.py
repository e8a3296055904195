"""Prompts by name: those that ship, a folder, and data sets of the Hub at a revision, from a fake of the Hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.files import state_dir
from gemmaspec.measure.bench.prompts import PromptSet, read_prompts
from gemmaspec.measure.bench.settings import OWN
from gemmaspec.measure.servers.bench_cells import prompt_set
from gemmaspec.run.models import datasets
from gemmaspec.run.models.datasets import DatasetRef, dataset_ref
from tests.support import hub as fakes
from tests.support.fake_vllm import fake_vllm

NAME = "some/benchmarks"
FILES = {
    "code.jsonl": b'{"prompt": "def f():", "task_id": "x/1"}\n{"prompt": "def g():"}\n',
    "maths.jsonl": b'{"turns": ["What is 2 + 2?", "And 3 + 3?"]}\n',
    "README.md": b"---\nlicense: apache-2.0\n---\n",
    "more/deep.jsonl": b"not looked at",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fakes.Hub]:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    with fakes.serve() as hub:
        hub.aim(monkeypatch, tmp_path / "home")
        yield hub


def add(hub: fakes.Hub, files: Mapping[str, bytes] | None = None, *, ref: str = "main", **about: object) -> str:
    return hub.add(f"datasets/{NAME}", files or FILES, ref=ref, **about)


def asked(text: str) -> tuple[PromptSet, list[str]]:
    notes: list[str] = []
    return prompt_set(text, notes.append), notes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("RedHatAI/speculator_benchmarks@9cd06ab", DatasetRef("RedHatAI/speculator_benchmarks", "9cd06ab")),
        ("a/b@refs/pr/1", DatasetRef("a/b", "refs/pr/1")),
        ("a/b", None),
        ("a/b@", None),
        ("a@main", None),
        ("../b@main", None),
        ("a/../b@main", None),
        ("a/b@../../etc", None),
        ("a/b@x\n", None),
    ],
)
def test_a_data_set_is_named_with_its_revision(text: str, found: DatasetRef | None) -> None:
    assert dataset_ref(text) == found


def test_a_data_set_is_fetched_once_and_named_by_its_commit(hub: fakes.Hub) -> None:
    commit = add(hub, card={"license": "apache-2.0"})
    found, notes = asked(f"{NAME}@main")
    assert found.name == f"{NAME}@{commit}"
    assert [(one.category, one.messages[0]["content"]) for one in found.prompts] == [
        ("code", "def f():"),
        ("code", "def g():"),
        ("maths", "What is 2 + 2?"),
    ]
    assert notes == [f"fetched {NAME}@{commit}: 2 files, 0 kB; licence, as its card says: apache-2.0"]
    assert sorted(file.name for file in (state_dir() / "prompts" / "some--benchmarks" / commit).iterdir()) == [
        "code.jsonl",
        "maths.jsonl",
    ]
    hub.forget()
    again, notes = asked(f"{NAME}@{commit}")
    assert (again, notes, hub.requests) == (found, [], [])
    moved = add(hub, {"code.jsonl": b'{"prompt": "another"}'})
    assert asked(f"{NAME}@main")[0].name == f"{NAME}@{moved}"
    assert asked(f"{NAME}@{commit}")[0] == found


def test_a_large_file_comes_from_storage_and_is_checked(hub: fakes.Hub) -> None:
    add(hub, {name: fakes.Large(body) for name, body in FILES.items()})
    assert len(asked(f"{NAME}@main")[0].prompts) == 3
    add(hub, {"code.jsonl": fakes.Damaged(b'{"prompt": "another"}')}, ref="damaged")
    with pytest.raises(EnvironmentMissing, match=r"code\.jsonl of some/benchmarks arrived damaged"):
        asked(f"{NAME}@damaged")
    assert len(list((state_dir() / "prompts" / "some--benchmarks").iterdir())) == 1


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"train.parquet": b"PAR1"}, "has no .jsonl file at its top"),
        ({f"{n}.jsonl": b"{}" for n in range(datasets.MOST_FILES + 1)}, "the limit is 64 files"),
        ({"a.jsonl": b'{"question": "?"}'}, "a.jsonl:1: the prompt is empty"),
        ({"a.jsonl": b"\xff"}, "a.jsonl: cannot read it: not UTF-8 text"),
    ],
)
def test_a_data_set_without_prompts_is_told(hub: fakes.Hub, files: dict[str, bytes], said: str) -> None:
    add(hub, files)
    with pytest.raises(GemmaspecError, match=re.escape(said)):
        asked(f"{NAME}@main")


def test_a_data_set_that_is_too_large_is_not_downloaded(hub: fakes.Hub) -> None:
    hub.add(f"datasets/{NAME}", {"a.jsonl": fakes.Zeros(b"", size=datasets.MOST_BYTES + 1)})
    with pytest.raises(EnvironmentMissing, match="64 MiB in all; the limit is 64 files and 64 MiB"):
        asked(f"{NAME}@main")
    assert hub.sent < 10_000


def test_a_hub_that_refuses_is_told_with_the_next_step(hub: fakes.Hub) -> None:
    add(hub)
    with pytest.raises(EnvironmentMissing, match="some/benchmarks has no revision v9"):
        asked(f"{NAME}@v9")
    with pytest.raises(EnvironmentMissing, match="the data set some/other does not exist on the Hub"):
        asked("some/other@main")
    add(hub, private=True)
    with pytest.raises(EnvironmentMissing, match="the data set some/benchmarks does not exist on the Hub, or it is"):
        asked(f"{NAME}@main")
    hub.faults.append(fakes.Fault("GET /api/datasets", times=99, status=503))
    with pytest.raises(EnvironmentMissing, match="cannot query the Hub about some/benchmarks") as caught:
        asked(f"{NAME}@main")
    assert str(caught.value.hint).endswith("/datasets/some/benchmarks")


def test_an_interrupted_fetch_leaves_nothing_that_counts(hub: fakes.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    add(hub)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            asked(f"{NAME}@main")
    assert list((state_dir() / "prompts" / "some--benchmarks").iterdir()) == []
    assert len(asked(f"{NAME}@main")[0].prompts) == 3


def test_a_folder_comes_before_the_hub_and_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b@main").mkdir(parents=True)
    (tmp_path / "a" / "b@main" / "chat.jsonl").write_text('{"prompt": "here"}')
    assert asked("a/b@main")[0].prompts[0].messages[0]["content"] == "here"
    assert asked("gemmaspec")[0] == prompt_set(OWN, print)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--prompts: file is not a folder"):
        asked("file")
    with pytest.raises(UsageError, match="missing folder xxx"):
        asked("x" * 5000)


def test_a_single_file_names_its_categories_itself(tmp_path: Path) -> None:
    rows = [{"turns": ["a"], "category": "writing"}, {"turns": "b", "category": "maths"}, {"prompt": "c"}]
    (tmp_path / "question.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read_prompts(tmp_path, name="own")
    assert found.categories == ("writing", "maths", "question")
    (tmp_path / "other.jsonl").write_text('{"prompt": "d"}')
    assert read_prompts(tmp_path, name="own").categories == ("other", "question")
    (tmp_path / "other.jsonl").unlink()
    (tmp_path / "question.jsonl").write_text('{"prompt": "a", "category": "\\u001b[31m"}')
    with pytest.raises(UsageError, match=r"question\.jsonl:1: category must be a word"):
        read_prompts(tmp_path, name="own")


def test_bench_asks_the_prompts_of_a_data_set(hub: fakes.Hub, tmp_path: Path) -> None:
    commit = add(hub)
    with fake_vllm() as vllm:
        own = ["--k", "2", "--concurrency", "1", "--rounds", "1", "--max-tokens", "24", "--repeats", "0"]
        out = ["--out", str(tmp_path / "out")]
        assert run(["bench", "tiny-cpu", "--url", vllm.url, "--prompts", f"{NAME}@main", *own, *out]) == 0
        asked = {body["messages"][0]["content"] for body in vllm.bodies}
    assert {"def f():", "def g():", "What is 2 + 2?"} < asked
    settings = json.loads((tmp_path / "out" / "result.json").read_text())["settings"]
    assert settings["prompts"] == f"{NAME}@{commit}"
    assert len(settings["prompts_sha256"]) == 64
