"""What a plan requires of the environment: real pip, and wheels made here in place of a package index."""

from __future__ import annotations

import shutil
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core.launcher.launch import contains, installed_version
from tests.support.launching import Done, Place, make_place, plan_of

NEEDS = {"name": "tiny-dep", "specifier": ">=5.5.0,<5.15", "vllm": ">=0"}
PROGRAM = """\
import json, os
import tiny_dep
print(json.dumps({"tiny_dep": tiny_dep.VERSION, "pythonpath": os.environ.get("PYTHONPATH")}))
"""
NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/nonexistent", "PIP_CONFIG_FILE": "/dev/null"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An environment with pip, the fake vLLM and tiny-dep 4.57.6."""
    root = tmp_path_factory.mktemp("requires")
    place = make_place(root)
    pip = metadata.distribution("pip")
    for folder in {file.parts[0] for file in pip.files or () if file.parts[0].startswith("pip")}:
        (place.site / folder).symlink_to(pip.locate_file(folder))
    (place.python.parent / "vllm").write_text(f"#!{place.python}\n{PROGRAM}")
    (root / "index").mkdir()
    for version in ("5.6.2", "5.14.1", "5.23.0"):
        make_wheel(root / "index", "tiny-dep", version, "tiny-base>=2")
    for version in ("1.0", "2.1"):
        make_wheel(root / "index", "tiny-base", version)
    for installed in (("tiny-dep", "4.57.6", "tiny-base>=2"), ("tiny-base", "2.1")):
        zipfile.ZipFile(make_wheel(root, *installed)).extractall(place.site)
    return place


@pytest.fixture
def place(prepared: Place, tmp_path: Path) -> Place:
    return Place(**{**vars(prepared), "run_dir": tmp_path / "run", "cache_dir": tmp_path / "cache"})


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    """The smallest wheel that pip takes."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    files = {
        f"{module}/__init__.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    made = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return made


def launched(place: Place, *needs: dict[str, str], offline: bool = False) -> Done:
    """A start with those requirements, pip seeing the folder of wheels and nothing else."""
    folder = place.plan_file.parent / "index"
    env = NO_INDEX if offline else {**NO_INDEX, "PIP_FIND_LINKS": str(folder)}
    return place.launch(plan_of(requires=list(needs)), env=env)


def cached(place: Place) -> Path:
    """The one folder of packages in the cache."""
    (folder,) = (path for path in (place.cache_dir / "packages").iterdir() if path.is_dir())
    return folder


@pytest.fixture(scope="module")
def filled(prepared: Place) -> Path:
    """A cache that holds what NEEDS asks for."""
    assert launched(prepared, NEEDS).code == 0
    return prepared.cache_dir


def test_what_is_there_already_needs_no_pip_and_no_network(place: Place) -> None:
    done = launched(place, {**NEEDS, "specifier": ">=4.0,<5"}, offline=True)
    assert done.code == 0, done.err
    row = {"name": "tiny-dep", "specifier": ">=4.0,<5", "found": "4.57.6", "state": "present"}
    assert done.report["requires"] == [row]
    assert done.said["tiny_dep"] == "4.57.6"
    assert not place.cache_dir.exists()


def test_what_is_missing_is_installed_beside_the_environment_once(place: Place) -> None:
    before = {path: path.stat().st_mtime_ns for path in place.site.glob("tiny_*/*.py")}
    done = launched(place, NEEDS)
    assert done.code == 0, done.err
    assert done.report["requires"][0]["state"] == "installed"
    assert done.report["requires"][0]["found"] == done.said["tiny_dep"] == "5.14.1"
    assert done.err.count("installing tiny-dep==5.14.1 into ") == 1
    folder = cached(place)
    assert {path.name for path in folder.iterdir()} == {"tiny_dep", "tiny_dep-5.14.1.dist-info"}
    assert done.said["pythonpath"] == f"{place.run_dir}/overlay:{place.run_dir}/attest:{folder}"
    assert before == {path: path.stat().st_mtime_ns for path in place.site.glob("tiny_*/*.py")}

    again = launched(place, NEEDS, offline=True)
    assert again.code == 0, again.err
    assert again.report["requires"][0]["state"] == "cached"
    assert again.report["requires"][0]["found"] == again.said["tiny_dep"] == "5.14.1"
    assert "installing" not in again.err


def test_without_a_network_the_start_ends_in_one_clear_sentence_and_nothing_stays(place: Place) -> None:
    done = launched(place, NEEDS, offline=True)
    assert done.code == 4
    assert "pip could not install tiny-dep>=5.5.0,<5.15, which vllm needs; nothing was changed" in done.err
    assert "No matching distribution found" in done.err
    assert [path.name for path in (place.cache_dir / "packages").iterdir()] == ["lock"]
    assert not (place.run_dir / "overlay").exists()


def test_without_pip_the_start_ends_in_one_clear_sentence(tmp_path: Path) -> None:
    done = make_place(tmp_path).launch(plan_of(requires=[NEEDS]))
    assert done.code == 4
    assert "No module named pip" in done.err


def test_a_conflict_is_found_before_anything_is_installed(place: Place) -> None:
    (place.package / "v1/core.py").rename(place.package / "v1/gone.py")
    try:
        assert launched(place, NEEDS).code == 5
    finally:
        (place.package / "v1/gone.py").rename(place.package / "v1/core.py")
    assert not place.cache_dir.exists()


def test_a_requirement_of_other_vllm_releases_is_not_ours(place: Place) -> None:
    done = launched(place, {**NEEDS, "vllm": ">=0.19.0,<0.20"}, offline=True)
    assert done.code == 0, done.err
    assert done.report["requires"] == []


def test_leftovers_of_a_killed_install_are_removed(place: Place, filled: Path) -> None:
    shutil.copytree(filled, place.cache_dir)
    folder = cached(place)
    folder.rename(folder.with_name(folder.name + ".tmp"))
    done = launched(place, NEEDS)
    assert done.code == 0, done.err
    assert done.report["requires"][0]["state"] == "installed"
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, "lock"}


def test_a_cached_folder_that_does_not_hold_it_is_named(place: Place, filled: Path) -> None:
    shutil.copytree(filled, place.cache_dir)
    folder = cached(place)
    (folder / "tiny_dep-5.14.1.dist-info").rename(folder / "gone")
    done = launched(place, NEEDS)
    assert done.code == 4
    assert f"{folder} lacks tiny-dep>=5.5.0,<5.15: delete it" in done.err


def test_what_vllm_was_built_with_is_never_replaced(place: Place) -> None:
    folder = place.plan_file.parent / "index"
    make_wheel(folder, "torch", "99.0")
    make_wheel(folder, "wants-torch", "1.0", "torch>=99")
    done = launched(place, {"name": "wants-torch", "specifier": ">=1", "vllm": ">=0"})
    assert done.code == 4
    assert "wants-torch>=1 would replace torch; nothing was installed" in done.err


COMPARISONS = [
    (
        ">=5.5.0,<5.15",
        ["5.5.0", "5.5", "5.14.1", "5.5.0rc1", "5.14.1+x"],
        ["5.4.9", "5.15", "4.57.6", "6", ""],
    ),
    (">=0.33", ["0.33", "0.33.0", "0.33.1", "1.0"], ["0.32.9", "0.4"]),
    ("==1.2", ["1.2", "1.2.0"], ["1.2.1", "1.1"]),
    ("!=1.2.0", ["1.3"], ["1.2", "1.2.0"]),
    (">1,<=2", ["1.1", "2", "2.0"], ["1", "1.0", "2.0.1"]),
    (">=0.9", ["0.10", "0.9.1"], ["0.8.99"]),
]


@pytest.mark.parametrize(("specifier", "inside", "outside"), COMPARISONS)
def test_versions_are_compared_as_numbers(specifier: str, inside: list[str], outside: list[str]) -> None:
    assert [version for version in inside + outside if contains(specifier, version)] == inside


def test_what_a_hostile_plan_requires_never_reaches_pip_as_an_option(place: Place) -> None:
    needs: list[dict[str, Any]] = [{**NEEDS, "name": name} for name in ("-r/etc/passwd", "--target=/", "a b", "")]
    for need in needs:
        done = place.launch(plan_of(requires=[need]))
        assert done.code == 2
        assert "is not a distribution name" in done.err


def test_a_version_is_that_of_the_first_distribution_on_the_path() -> None:
    for name in ("pytest", "PyYAML"):
        assert installed_version(name, sys.path) == metadata.version(name)
    assert installed_version("no-such-thing", sys.path) is None
