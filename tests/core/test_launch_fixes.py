"""vLLM's own fix of a bug: where the text does not fit, the patch's probe decides before vLLM starts, and never the text."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
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
from tests.support.launching import (
    CORE,
    HUNK,
    Done,
    Place,
    make_place,
    patch_of,
    plan_of,
    tree_of_function,
    variant_of,
)

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
    text = "import os, sys\nif 'LAUNCHER_PROBE' not in os.environ: print('started')\n"
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


FORKS = """
import os, subprocess, sys
def probe():
    import vllm.v1.core
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], {more})
    with open({log!r}, "w") as log:
        log.write(str(os.getpid()))
    with open({log!r} + ".mark", "w") as log:
        log.write(os.environ["LAUNCHER_PROBE"])
    {then}
    return False, "no bug"
"""


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        ("def probe(): raise KeyError('x')", "KeyError"),
        ("def probe(): return False, 'nothing of vllm was run'", "it imported another vllm"),
        ("def probe():\n    import sys, types\n    sys.modules['vllm.x'] = types.ModuleType('vllm.x')\n    return False, ''", "another vllm"),
        ("import os\nprint('gemmaspec-probe:[]')\nos._exit(3)", "exit code 3"),
        ("syntax error", "SyntaxError"),
        ("probe = 1", "TypeError"),
        ("def probe():\n    import vllm.v1.core\n    return (), 'not a bool'", "it returned ()"),
        ("def probe():\n    import vllm.v1.core\n    return None, 'not a bool'", "it returned None"),
        ("import time\ndef probe(): time.sleep(60)", "no answer within 5 s"),
        ("print('{\"state\": \"closed\", \"seen\": \"forged\"}')\nimport os\nos._exit(0)", "exit code 0"),
        ("import os\nif os.fork(): os._exit(7)\ndef probe():\n    import vllm.v1.core\n    return False, 'a fork says so'", "exit code 7"),
    ],
)  # fmt: skip
def test_a_probe_that_gives_no_answer_closes_nothing(place: Place, probe: str, says: str, tmp_path: Path) -> None:
    judge = launch.load_next_to_this(launch.JUDGE)
    found = judge.probed(probe, place.package, tmp_path, {}, python=str(place.python), limit_s=5.0)
    assert (found["state"], says in found["seen"]) == ("failed", True), found
    result = launch.PatchResult(launch.build(launch.Patch, {**patch_of(), "probe": probe}, "x"), "conflict", "all", ())
    (again,) = launch.by_behaviour([result], place.package, tmp_path, {})
    assert (again.state, again.judged, "its probe failed" in again.detail) == ("conflict", "failed", True)
    assert "asked before" in again.detail, "a restart does not wait for it again"


@pytest.mark.parametrize("more", ["", "start_new_session=True"])
@pytest.mark.parametrize("then", ["pass", "import time; time.sleep(600)", "os.kill(os.getpid(), 11)"])
def test_what_a_probe_began_ends_with_it_and_does_not_make_it_wait(
    place: Place, more: str, then: str, tmp_path: Path
) -> None:
    judge = launch.load_next_to_this(launch.JUDGE)
    probe = FORKS.format(more=more, then=then, log=str(tmp_path / "pid"))
    found = judge.probed(probe, place.package, tmp_path, {}, python=str(place.python), limit_s=8.0)
    assert found["state"] == ("closed" if then == "pass" else "failed")
    assert list(judge.marked((tmp_path / "pid.mark").read_text())) == []


def test_a_probe_ends_with_a_launcher_that_is_killed(place: Place, tmp_path: Path) -> None:
    log = tmp_path / "pid"
    probe = FORKS.format(more="", then="import time; time.sleep(600)", log=str(log))
    place.write_plan(plan_of({**patch_of(), "probe": probe}))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(place.argv(), env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.DEVNULL)
    until(lambda: log.exists() and log.read_text().isdigit())
    group = int(log.read_text())
    process.kill()
    process.wait()
    until(lambda: not alive(group))
    assert list(temporary.iterdir()) == []


def until(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.05)


def alive(group: int) -> bool:
    """Whether a process of the group is there that has not ended."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state != "Z":
                return True
    return False


KEPT = {
    "no reason": {"seen": None},
    "no text": {"seen": ""},
    "another state": {"state": "shut"},
    "another question": {"of": "0" * 64},
    "no time": {"at": "now"},
    "too large": {"seen": "x" * 70_000},
    "a failure of long ago": {"state": "failed", "at": 1.0},
}


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_verdict_is_checked_when_it_is_read(place: Place, tmp_path: Path, name: str) -> None:
    judge = launch.load_next_to_this(launch.JUDGE)
    file, digest = tmp_path / "v.json", "1" * 64
    right = {"of": digest, "state": "closed", "seen": "no bug", "at": time.time()}
    file.write_text(json.dumps(right))
    file.chmod(0o600)
    assert judge.read(file, digest) == right
    file.write_text(json.dumps({**right, **KEPT[name]}))
    assert judge.read(file, digest) is None


def test_a_kept_verdict_that_others_can_write_or_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    judge = launch.load_next_to_this(launch.JUDGE)
    file, digest = tmp_path / "v.json", "1" * 64
    file.write_text(json.dumps({"of": digest, "state": "closed", "seen": "no bug", "at": time.time()}))
    file.chmod(0o666)
    assert judge.read(file, digest) is None
    file.chmod(0o600)
    (tmp_path / "link.json").symlink_to(file)
    assert judge.read(tmp_path / "link.json", digest) is None
    os.mkfifo(tmp_path / "fifo.json")
    assert judge.read(tmp_path / "fifo.json", digest) is None
    (tmp_path / "folder.json").mkdir()
    assert judge.read(tmp_path / "folder.json", digest) is None


SWITCHED = "import os\n\n\n" + FIXED


def test_a_probe_gets_what_vllm_reads_and_its_verdict_is_of_that_alone(place: Place, tmp_path: Path) -> None:
    text = SWITCHED.replace('return "mended"', 'return "stock" if os.environ.get("VLLM_NEW") == "0" else "mended"')
    (place.package / "v1/core.py").write_text(text)
    assert started(place, asks(tmp_path)).code == 0
    done = started(place, asks(tmp_path), env={"VLLM_NEW": "0"})
    assert (done.code, done.states) == (5, {"one": "conflict"}), done.err
    assert "the bug is there: value() is stock" in done.err


def test_another_package_beside_vllm_is_another_question(place: Place, tmp_path: Path) -> None:
    (place.site / "other-1.0.dist-info").mkdir()
    assert started(place, asks(tmp_path)).code == 0
    (place.site / "other-1.0.dist-info").rename(place.site / "other-0.9.dist-info")
    assert started(place, asks(tmp_path)).code == 0
    assert (tmp_path / "asked").read_text() == "asked\n" * 2


def test_a_package_of_links_into_a_cache_is_asked_too(place: Place, tmp_path: Path) -> None:
    """uv installs so with --link-mode symlink."""
    cache = tmp_path / "uv-cache"
    for file in [*place.package.rglob("*.py")]:
        moved = cache / file.relative_to(place.package)
        moved.parent.mkdir(parents=True, exist_ok=True)
        file.rename(moved)
        file.symlink_to(moved)
    done = started(place, asks(tmp_path))
    assert (done.code, done.states) == (0, {"one": "superseded"}), done.err


def test_a_probe_finds_its_own_file_and_what_it_imports(place: Place, tmp_path: Path) -> None:
    probe = "import helper\nfrom pathlib import Path\nassert (Path(__file__).parent / 'helper.py').is_file()\n"
    probe += "def probe():\n    import vllm.v1.core\n    return helper.OPEN, 'as the helper says'"
    patch = {**patch_of(), "probe": probe, "beside": [{"name": "helper.py", "text": "OPEN = False\n"}]}
    done = place.launch(plan_of(patch))
    assert done.states == {"one": "superseded"}, done.err
    done = place.launch(plan_of({**patch, "beside": [{"name": "../x.py", "text": ""}]}))
    assert done.code == 2
    assert "not the name of a module" in done.err


PLUGIN = """\
def load():
    import vllm.v1.core
    vllm.v1.core.value = lambda: "stock"
"""


def test_a_plugin_that_brings_the_bug_back_is_in_the_probe_too(place: Place, tmp_path: Path) -> None:
    (place.site / "meddler.py").write_text(PLUGIN)
    info = place.site / "meddler-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: meddler\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nmeddler = meddler:load\n")
    (place.package / "plugins").mkdir()
    (place.package / "plugins/__init__.py").write_text(
        "def load_general_plugins():\n    import meddler\n    meddler.load()\n"
    )
    done = started(place, asks(tmp_path))
    assert (done.code, done.states) == (5, {"one": "conflict"}), done.err


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


RULED = {"path": "vllm/v1/core.py", "scope": "value", "release": "0.33.0"}
WORDS = {
    "superseded by its probe": {},
    "superseded by a rule": {"superseded": [{**RULED, "tree": tree_of_function(FIXED, "value")}]},
    "not needed": {"variants": [variant_of("later", ">=0.33.0", [{"path": "vllm/v1/core.py", "hunks": [HUNK]}])]},
    "applied": {},
}


@pytest.mark.parametrize("name", WORDS)
def test_what_is_said_of_one_vllm_starts_no_other(place: Place, tmp_path: Path, name: str) -> None:
    """The launcher's Python has a vLLM that needs no patch, and the program is that of another one."""
    other = make_place(tmp_path / "other")
    (place.python.parent / "vllm").unlink()
    text = CORE.replace('return "stock"', 'return "patched"  # by us') if name == "applied" else FIXED
    (place.package / "v1/core.py").write_text(text)
    patch = {**patch_of(), **WORDS[name]}
    if "probe" in name:
        patch["probe"] = asks(tmp_path)
    path = f"{other.python.parent}{os.pathsep}{os.environ['PATH']}"
    done = place.launch(plan_of(patch), env={"PATH": path})
    assert done.code == 5, done.err
    assert f"would import vllm from {other.package}" in done.err
    assert done.out == "", "it was not started"
    optional = place.launch(plan_of({**patch, "required": False}), env={"PATH": path})
    assert optional.code == (5 if name == "applied" else 0), optional.err


def test_a_required_patch_that_is_superseded_names_the_plugins_that_run(place: Place) -> None:
    info = place.site / "meddler-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[vllm.platform_plugins]\nmeddler = meddler:load\n")
    patch = {**patch_of(), **WORDS["superseded by a rule"]}
    done = place.launch(plan_of(patch))
    assert (done.code, done.states) == (0, {"one": "superseded"}), done.err
    assert [plugin["name"] for plugin in done.report["attestation"]["plugins"]] == ["meddler"]
    assert not (place.run_dir / "attest").exists(), "nothing is patched, so nothing is attested"


NEWER = "def f(): return 1\ntype X[T] = list[T] if True else\n"


@pytest.mark.parametrize("text", [NEWER, "\0", "<<<<<<< ours\nB = 1\n", "(" * 300 + ")" * 300, "\ufeffx = ("])
@pytest.mark.parametrize("purpose", ["required", "optional", "speed"])
def test_a_file_that_this_python_cannot_parse_is_a_conflict(place: Place, text: str, purpose: str) -> None:
    """Though the lines stand there, and none of them is in a function."""
    hunk = {"scope": "", "line": 1, "old": ["A = 1"], "new": ["A = 2"]}
    (place.package / "v1/plain.py").write_text(f"A = 1\n{text}")
    files = [{"path": "vllm/v1/plain.py", "hunks": [hunk]}]
    more = {"purpose": "speed", "required": False} if purpose == "speed" else {"required": purpose == "required"}
    program = place.python.parent / "vllm"
    program.write_text(program.read_text().replace("import vllm.v1.core, vllm.v1.plain", "import vllm.v1.core"))
    program.write_text(program.read_text().replace("vllm.v1.plain.__file__", "None"))
    (place.package / "__init__.py").write_text("")
    done = place.launch(plan_of(patch_of(files=files, **more)))
    expected = {"required": (5, "conflict"), "optional": (0, "conflict"), "speed": (0, "left-out")}[purpose]
    assert (done.code, done.states["one"]) == expected, done.err
    assert "this is a bug in gemmaspec" not in done.err
