"""Tomorrow's vLLM under the plan of a shipped profile: unchanged, rewritten with the bug or without it, and moved.

The files are those of the installed vLLM for CPUs under a nightly's version, and so are the probe's modules; what is
started in place of vllm is a FAKE that says so.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.patching.plan import compile_plan
from gemmaspec.core.profile.load import load_profile
from tests.support.launching import Done, Place
from tests.support.real import H1, H2, H3A, SHARED

pytestmark = pytest.mark.real_process
PROFILE = "spark-31b-e2b"
NIGHTLY = "0.34.0.dev123+gabc1234"
PATH = "v1/core/kv_cache_utils.py"
TRIES = """\
    try:
        kv_cache_spec_values = list(kv_cache_spec.values())
        _ = kv_cache_spec_values[0].merge(kv_cache_spec_values)
    except AssertionError:
        return False
    return True
"""
REWRITTEN = """\
    specs = list(kv_cache_spec.values())
    try:
        specs[0].merge(specs)
    except {errors} as why:
        logger.debug("layers differ: %s", why)
        return False
    return True
"""
TIME_SAID = "half a minute as a rule, at most 5 minutes"
PINNED = "next: pin vllm 0.33.0, the newest release that it is known to fit: image: vllm/vllm-openai:v0.33.0"
BACK = f"  or: gemmaspec rollback {PROFILE}"


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A tree of the installed vLLM under a nightly's version; compiled parts are links."""
    python = next((SHARED / "runtimes").glob("cpu-*/bin/python"))
    (installed,) = python.parent.parent.glob("lib/python3.*/site-packages/vllm")
    root = tmp_path_factory.mktemp("nightly")

    def copied(source: str, target: str) -> None:
        if source.endswith((".py", ".json")):
            shutil.copyfile(source, target)
        else:
            Path(target).symlink_to(source)

    shutil.copytree(installed, root / "site/vllm", copy_function=copied, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "site/vllm/_version.py").write_text(
        f'__version__ = version = "{NIGHTLY}"\n__version_tuple__ = (0, 34, 0)\n'
    )
    (root / "bin").mkdir()
    program = root / "bin/fake-vllm"
    program.write_text(f"#!{python}\nprint('started')\n")
    program.chmod(0o755)
    return Place(
        python=python,
        site=root / "site",
        run_dir=root / "run",
        cache_dir=root / "cache",
        plan_file=root / "plan.json",
    )


@pytest.fixture
def text(nightly: Place) -> Iterator[str]:
    """The file of the bug; it is as it was after the test."""
    file = nightly.package / PATH
    before = file.read_text()
    assert TRIES in before
    yield before
    file.write_text(before)
    (nightly.package / "v1/core/kv_uniform.py").unlink(missing_ok=True)


def started(nightly: Place, text: str) -> Done:
    """Start that nightly by the launcher, with the plan that the profile makes."""
    (nightly.package / PATH).write_text(text)
    wanted = load_profile(PROFILE).profile.patches
    plan = compile_plan(PROFILE, wanted.required, wanted.optional, [], load_patches())
    path = os.pathsep.join((str(nightly.site.parent / "bin"), os.environ["PATH"]))
    given = {"PYTHONPATH": str(nightly.site), "PATH": path}
    done = nightly.launch(plan, "fake-vllm", "serve", "model", flags=("-P",), env=given)
    sys.stdout.write(done.err)
    assert f"patching vllm {NIGHTLY} at {nightly.package}" in done.err
    return done


def test_an_unchanged_nightly_is_patched_at_once(nightly: Place, text: str) -> None:
    done = started(nightly, text)
    assert (done.code, done.out) == (0, "started\n")
    assert done.states == dict.fromkeys((H1, H2, H3A), "applies")
    assert "its probe" not in done.err


def test_a_nightly_that_is_rewritten_and_has_the_bug_is_not_started(nightly: Place, text: str) -> None:
    done = started(nightly, text.replace(TRIES, REWRITTEN.format(errors="AssertionError")))
    assert (done.code, done.out) == (5, "")
    assert done.states == {H1: "conflict", H2: "applies", H3A: "applies"}
    asked, answered = done.err.index(TIME_SAID), done.err.index("its probe ran: the bug is there: ValueError")
    assert asked < answered
    assert PINNED in done.err
    assert BACK in done.err
    assert "remove the patch" not in done.err


def test_a_nightly_that_is_rewritten_without_the_bug_starts_with_the_other_patches(nightly: Place, text: str) -> None:
    fixed = text.replace(TRIES, REWRITTEN.format(errors="(ValueError, AssertionError)"))
    done = started(nightly, fixed)
    assert (done.code, done.out) == (0, "started\n")
    assert done.states == {H1: "superseded", H2: "applies", H3A: "applies"}
    assert done.err.index(TIME_SAID) < done.err.index("its probe finds no bug in this vllm: not uniform")
    again = started(nightly, fixed)
    assert (again.code, again.states[H1]) == (0, "superseded")
    assert TIME_SAID not in again.err
    assert "asked before" in again.err


def test_a_nightly_that_moved_the_function_away_is_not_started(nightly: Place, text: str) -> None:
    """The probe asks where vLLM's newest release has it, and finds nothing: nobody knows, so nothing starts."""
    begins = text.index("def is_kv_cache_spec_uniform(")
    ends = text.index("\n\n\n", begins)
    moved = REWRITTEN.format(errors="(ValueError, AssertionError)")
    (nightly.package / "v1/core/kv_uniform.py").write_text(text[begins:ends].replace(TRIES.rstrip("\n"), moved))
    rest = text[:begins] + text[ends:].replace("is_kv_cache_spec_uniform(", "_kv_uniform().is_kv_cache_spec_uniform(")
    done = started(nightly, rest)
    assert (done.code, done.out) == (5, "")
    assert done.states[H1] == "conflict"
    assert done.err.index(TIME_SAID) < done.err.index("its probe failed: AttributeError")
    assert PINNED in done.err
    assert BACK in done.err
