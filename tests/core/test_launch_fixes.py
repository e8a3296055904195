"""vLLM's own fix of a bug: where the text does not fit, the patch's probe decides before vLLM starts, and never the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core import launcher
from gemmaspec.core.launcher import launch
from gemmaspec.core.patching.decide import needed_paths
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.patching.plan import launcher_patch
from gemmaspec.run.index.wheels import read_from_wheel
from tests.support.foreign_fixes import TUNED, UNSEEN
from tests.support.launching import CORE, Done, Place, make_place, patch_of, plan_of

FIXED = CORE.replace('return "stock"', 'return "mended"  # by upstream')
ASKS = """\
def probe():
    from vllm.v1.core import value
    with open({log!r}, "a") as log:
        log.write("asked\\n")
    return value() == "stock", f"value() is {{value()}}"
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = make_place(tmp_path)
    (made.package / "v1/core.py").write_text(FIXED)
    text = "import os, sys\nif os.environ.get('VLLM_PLUGINS') is None: print('started')\n"
    (made.package / "__init__.py").write_text(text)
    return made


def started(place: Place, probe: str, **more: Any) -> Done:
    return place.launch(plan_of({**patch_of(), "probe": probe}), **more)


def asks(tmp_path: Path) -> str:
    return ASKS.format(log=str(tmp_path / "asked"))


def test_where_the_probe_finds_no_bug_the_server_starts_and_the_answer_is_kept(place: Place, tmp_path: Path) -> None:
    for _ in range(2):
        done = started(place, asks(tmp_path))
        assert (done.code, done.states) == (0, {"one": "superseded"}), done.err
        assert "its probe finds no bug in this vllm: value() is mended" in done.report["patches"][0]["detail"]
    assert (tmp_path / "asked").read_text() == "asked\n"
    (place.package / "v1/plain.py").write_text("A = 2\n")  # any file of vLLM may bring the bug back
    assert started(place, asks(tmp_path)).code == 0
    assert (tmp_path / "asked").read_text() == "asked\n" * 2


def test_where_the_bug_is_there_the_start_ends_as_without_a_probe(place: Place, tmp_path: Path) -> None:
    (place.package / "v1/core.py").write_text(CORE.replace('return "stock"', 'return "st" + "ock"'))
    done = started(place, asks(tmp_path))
    assert (done.code, done.states) == (5, {"one": "conflict"})
    assert "the bug is there: value() is stock" in done.err
    assert "next: " in done.err


def test_where_a_line_stands_that_the_patch_removes_nobody_is_asked(place: Place, tmp_path: Path) -> None:
    (place.package / "v1/core.py").write_text(FIXED + '\n\ndef more():\n    return "stock"\n')
    assert started(place, asks(tmp_path)).states == {"one": "superseded"}  # elsewhere in the file
    twice = CORE.replace('    return "stock"', '    return "stock"\n    return "stock"')
    (place.package / "v1/core.py").write_text(twice)
    (tmp_path / "asked").unlink()
    assert started(place, asks(tmp_path)).states == {"one": "ambiguous"}
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        ("def probe(): raise KeyError('x')", "KeyError"),
        ("def probe(): return False, 'nothing of vllm was run'", "it imported another vllm"),
        ("def probe():\n    import sys, types\n    sys.modules['vllm.x'] = types.ModuleType('vllm.x')\n    return False, ''", "another vllm"),
        ("import os\nprint('gemmaspec-probe:[]')\nos._exit(3)", "exit code 3"),
        ("syntax error", "SyntaxError"),
        ("probe = 1", "TypeError"),
        ("import time\ndef probe(): time.sleep(60)", "no answer within 5 s"),
    ],
)  # fmt: skip
def test_a_probe_that_gives_no_answer_closes_nothing(
    place: Place, probe: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    origins = launch.load_next_to_this(launch.ORIGINS)
    monkeypatch.setattr(origins, "PROBE_S", 5.0)
    monkeypatch.setattr(launch.sys, "executable", str(place.python))
    found = origins.probed(probe, place.package, tmp_path, {})
    assert (found["state"], says in found["seen"]) == ("failed", True), found
    result = launch.PatchResult(launch.build(launch.Patch, {**patch_of(), "probe": probe}, "x"), "conflict", "all", ())
    (again,) = launch.by_behaviour([result], place.package, tmp_path, {})
    assert (again.state, "its probe failed" in again.detail) == ("conflict", True)
    assert not (tmp_path / "probes").exists()


def test_a_probe_gets_no_secret_and_an_optional_patch_is_asked_too(place: Place) -> None:
    probe = "def probe():\n    import os, vllm.v1.core\n    return 'HF_TOKEN' in os.environ, sorted(os.environ)"
    done = place.launch(plan_of({**patch_of(), "probe": probe, "required": False}), env={"HF_TOKEN": "hf_secret"})
    assert done.states == {"one": "superseded"}, done.err


def wrong_fixes() -> Iterator[Any]:
    for name, fixes in (("tuned", TUNED), ("later", UNSEEN)):
        yield from (pytest.param(id_, one, id=f"{name} {id_}") for id_, one in fixes.items())


@pytest.mark.network
@pytest.mark.parametrize(("id_", "fixes"), [*wrong_fixes()])
def test_of_foreign_fixes_the_text_alone_calls_no_wrong_one_fixed(id_: str, fixes: Any) -> None:
    """What their behaviour is, `tools/bench_fixes.py --probe` asks: it takes a minute for each patch."""
    patch = launcher_patch(load_patches()[id_])
    stock = read_from_wheel("vllm", fixes.release, needed_paths([patch]))
    for fix in fixes.wrong:
        text = stock[fixes.path].decode()
        for old, new in fix:
            assert old in text
            text = text.replace(old, new, 1)
        for version in (fixes.release, "0.34.0", f"{fixes.release}.dev3+gabc1234"):
            plan = launcher.Plan(1, "", "", (), (patch,), "")
            (result,), _ = launcher.decide_plan(plan, version, (stock | {fixes.path: text.encode()}).get)
            assert result.state not in ("superseded", "applied"), fix
