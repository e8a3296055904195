"""Proving: a FAKE vllm, probes written on the spot, the real runner in this Python. Real ones: tests/real/test_proof_real.py."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import proof_table
import pytest

from gemmaspec.check.proof import source
from gemmaspec.check.proof.prove import ProbeResult, Probes, Proof, ends_of_ranges, prove, says
from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing, PatchError
from gemmaspec.core.files import state_dir
from gemmaspec.core.patching.patch import Patch, load_patch, load_patches
from tests.support import vllm_trees as fake
from tests.support.launching import CORE

GOOD = """\
def probe():
    from vllm.v1.core import value
    if value() == "stock":
        return True, "value() says stock, and the engine dies with ValueError: stock"
    return False, f"value() says {value()}"
"""


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The source of a fake release; its wheels are in an index on disk."""
    fake.use_index(monkeypatch, fake.write_index(tmp_path / "index", ["0.19.0", "0.20.0"]))
    for _ in fake.own_cache(monkeypatch, tmp_path / "cache"):
        yield source.source_of("0.20.0")


@pytest.fixture
def probes() -> Iterator[Probes]:
    with Probes(Path(sys.executable)) as running:
        yield running


def patch_with(folder: Path, probe: str, *, id_: str = "right-value", more: str = "", **options: str) -> Patch:
    place = fake.write_patch(folder, id_, more=more, **options)
    (place / "probe.py").write_text(probe)
    return load_patch(place)


def outcome(patch: Patch, probes: Probes, release: str = "0.20.0") -> Proof:
    (proof,) = prove([patch], {patch.id: patch}, [release], probes)
    return proof


def test_a_hole_that_is_open_and_then_closed_is_proven(tmp_path: Path, released: Path, probes: Probes) -> None:
    found = outcome(patch_with(tmp_path, GOOD), probes)
    assert found.holds
    assert found.stock == ProbeResult(
        state="open", seen="value() says stock, and the engine dies with ValueError: stock"
    )
    assert found.patched == ProbeResult(state="closed", seen="value() says patched")
    assert (released / "vllm/v1/core.py").read_text() == CORE


@pytest.mark.parametrize(
    ("probe", "expected", "detail"),
    [
        ('def probe(): return False, "fine"', "not-open", "the probe passes on the stock tree: fine"),
        ('def probe(): return True, "ValueError"', "not-closed", "the bug remains"),
        ('def probe(): raise KeyError("gone")', "broken-probe", "on the stock tree: KeyError: 'gone'"),
        ("import no_such_module", "broken-probe", "ModuleNotFoundError"),
        ("def look(): pass", "broken-probe", "KeyError: 'probe'"),
        ("def probe(): raise SystemExit(0)", "broken-probe", "SystemExit"),
        ("import os\nos._exit(0)", "broken-probe", "died with wait status 0"),
        ("import os\nos.abort()", "broken-probe", "died with wait status"),
        (GOOD.replace("def probe():", 'def probe():\n    print("noise", flush=True)'), "proven", ""),
    ],
)
def test_a_probe_that_shows_nothing_is_told(
    probe: str, expected: str, detail: str, tmp_path: Path, released: Path, probes: Probes
) -> None:
    found = outcome(patch_with(tmp_path, probe), probes)
    assert found.outcome == expected
    assert detail in found.detail


def test_what_the_probe_sees_has_to_be_the_error_that_patch_yaml_names(
    tmp_path: Path, released: Path, probes: Probes
) -> None:
    named = patch_with(tmp_path / "named", GOOD, more='errors: ["dies with ValueError: …ock"]\n')
    assert outcome(named, probes).holds
    other = patch_with(tmp_path / "other", GOOD, more='errors: ["KeyError: stock"]\n')
    assert "an error that patch.yaml does not list" in outcome(other, probes).detail


def test_text_and_omissions_are_compared_literally() -> None:
    assert says("a (33) b", "a (…) b")
    assert says("a\nb", "a…b")
    assert not says("a33b", "a(…)b")


def test_one_broken_probe_leaves_the_others_alone(tmp_path: Path, released: Path, probes: Probes) -> None:
    bad = patch_with(tmp_path / "bad", "import os\nos._exit(3)", id_="bad")
    good = patch_with(tmp_path / "good", GOOD, id_="good")
    assert not outcome(bad, probes).holds
    assert outcome(good, probes).holds


def test_the_process_that_dies_with_a_probe_fails_that_probe_alone(
    tmp_path: Path, released: Path, probes: Probes
) -> None:
    good = patch_with(tmp_path / "good", GOOD, id_="good")
    bad = patch_with(tmp_path / "bad", "import os\nos.kill(os.getppid(), 9)", id_="bad")
    assert outcome(good, probes).holds
    died = outcome(bad, probes)
    assert (died.outcome, died.detail) == (
        "broken-probe",
        "on the stock tree: the process that runs probes ended",
    )
    assert outcome(good, probes).holds


def test_a_process_that_dies_between_two_probes_fails_neither(tmp_path: Path, probes: Probes) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text("import os\ndef probe():\n    return True, os.getppid()")
    process = int(probes.run([tmp_path], {"p": probe})["p"].seen)
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert int(probes.run([tmp_path], {"p": probe})["p"].seen) != process


def test_a_patch_that_does_not_fit_is_not_proven(tmp_path: Path, released: Path, probes: Probes) -> None:
    found = outcome(patch_with(tmp_path, GOOD, old="something else"), probes)
    assert (found.outcome, found.detail) == ("unfit", "the state of the patch is conflict")


def test_a_release_that_is_not_claimed_is_left_out(tmp_path: Path, released: Path, probes: Probes) -> None:
    patch = patch_with(tmp_path, GOOD)
    assert [*prove([patch], {patch.id: patch}, ["0.18.0"], probes)] == []


def test_a_patch_without_a_probe_is_refused(tmp_path: Path, released: Path, probes: Probes) -> None:
    patch = load_patch(fake.write_patch(tmp_path))
    with pytest.raises(PatchError, match=r"probe\.py is missing"):
        outcome(patch, probes)


def test_probes_of_the_next_tree_see_nothing_of_the_one_before(tmp_path: Path, probes: Probes) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "vllm").mkdir(parents=True)
        (tmp_path / name / "vllm/__init__.py").write_text(f"name = {name!r}\nimport json.tool")
    probe = tmp_path / "probe.py"
    probe.write_text("def probe():\n    import vllm\n    return True, vllm.name")
    seen = [probes.run([tmp_path / name], {"p": probe})["p"].seen for name in ("one", "two", "one")]
    assert seen == ["one", "two", "one"]


def test_a_probe_gets_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probes: Probes) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    probe = tmp_path / "probe.py"
    probe.write_text("import os\ndef probe():\n    return True, 'hf_secret' in str(os.environ)")
    assert probes.run([tmp_path], {"p": probe})["p"].seen == "False"


def test_the_ends_of_every_range_are_chosen() -> None:
    patches = load_patches()
    chosen = ends_of_ranges([patches["nvfp4-nan-scales"]], ["0.19.0", "0.20.2", "0.21.0", "0.24.0", "0.29.0", "0.33.0"])
    assert chosen == ["0.19.0", "0.20.2", "0.21.0", "0.29.0", "0.33.0"]


def test_the_table_has_a_row_for_each_release_and_says_what_was_seen_once(
    tmp_path: Path, released: Path, probes: Probes
) -> None:
    patch = patch_with(tmp_path, GOOD)
    proofs = [*prove([patch], {patch.id: patch}, ["0.19.0", "0.20.0"], probes)]
    text = proof_table.table([dataclasses.asdict(proof) for proof in proofs], day="2026-11-20", packages="a test")
    assert text.count("  - released: `value() says stock") == 1
    assert "\n- 0.19.0 to 0.20.0\n" in text


# The source of a release, out of a wheel


def test_only_the_python_files_of_vllm_are_taken_out_of_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.use_index(monkeypatch, fake.write_index(tmp_path / "index", ["0.20.0"]))
    for cache in fake.own_cache(monkeypatch, tmp_path / "cache"):
        folder = source.source_of("0.20.0")
        assert folder.is_relative_to(cache)
        assert (folder / "vllm/v1/core.py").read_text() == CORE
        made = folder.stat().st_ino
        assert source.source_of("0.20.0") == folder
        assert folder.stat().st_ino == made, "it is not made twice"
        with pytest.raises(EnvironmentMissing, match=r"no wheel of vllm 9\.9\.9"):
            source.source_of("9.9.9")


@pytest.mark.parametrize("whole", [False, True])
def test_a_part_of_a_remote_file_is_asked_for_and_nothing_else_taken(whole: bool) -> None:
    from gemmaspec.run.index import wheels

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            begin, end = self.headers["Range"].removeprefix("bytes=").split("-")
            data = b"0123456789"
            self.send_response(200 if whole else 206)
            self.end_headers()
            self.wfile.write(data if whole else data[int(begin) : int(end) + 1 if end else None])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, wheels.open_session() as session:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/wheel"
        try:
            if whole:
                with pytest.raises(source._UNREADABLE, match="range requests"):
                    source._read(url, session, 2, 4)
            else:
                assert source._read(url, session, 2, 4) == b"23"
                assert source._read(url, session, 8, None) == b"89"
        finally:
            server.shutdown()


def test_a_patch_without_a_probe_is_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(data.PATCHES / "draft-text-only", tmp_path / "draft-text-only")
    (folder / "probe.py").unlink()
    monkeypatch.setenv("UV_OFFLINE", "1")
    assert run(["patch", "prove", "draft-text-only", "--patches", str(tmp_path)]) != 0
    said = capsys.readouterr().err
    assert "probe.py is missing" in said
    assert "building an environment" not in said
    assert not (state_dir() / "runtimes").exists()
