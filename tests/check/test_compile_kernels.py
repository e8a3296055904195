"""Each Triton patch, compiled without a GPU for GPUs of seven capabilities, with the release's own Triton.

A kernel has to compile, to fit the shared memory of a block, and to spill no more than the released one of the same
layer does, which is split for one new token and, up to 0.32, in one piece for several. Some cases run here; `make test-kernels` sets GEMMASPEC_KERNELS and runs all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from gemmaspec.check.proof.environment import prove_python, triton_folder
from gemmaspec.check.proof.source import source_of
from gemmaspec.core import data, launcher
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.patching.plan import chain

pytestmark = pytest.mark.network

ALL: Final = bool(os.environ.get("GEMMASPEC_KERNELS"))
WORKER: Final = Path(__file__).parent.parent / "support" / "compile_worker.py"
SHARED: Final = {121: 101_376, 120: 101_376, 100: 232_448, 90: 232_448, 89: 101_376, 86: 101_376, 80: 166_912}
"""Capability → bytes of shared memory that one block may have."""
KNOWN: Final = {("triton-verify-split-kv", 121, 256, True): 16, ("triton-launch-params", 90, 256, True): 656}
"""Patch, capability, head and FP8 → bytes that it spills and the released kernel does not. The first is that of a split
kernel for several tokens; the second is of the launch that was measured as the fastest on an H100."""
FP8_FROM: Final = 89
VERIFYING, PROMPT = 8, 2048
RELEASES: Final = {"0.32.0": "triton==3.7.1", "0.33.0": "triton==3.8.0"}
"""vLLM → the Triton that its wheel requires."""
PATCHES: Final = {
    "triton-verify-split-kv": ("0.32.0", VERIFYING, (121, 86)),
    "triton-3d-longer-block": ("0.33.0", 16, (121,)),
    "triton-group-geometry": ("0.33.0", VERIFYING, ()),
    "triton-launch-params": ("0.33.0", PROMPT, (90,)),
}
"""Patch → release, the new tokens whose launch it changes, and the capabilities in every run; all others in ALL. The
geometry changes no kernel, only which one is launched."""
WIDTHS: Final = (5376, 3840, 1024)
"""Of a 31B, a 12B and an assistant."""


@dataclass(frozen=True)
class Case:
    """One kind of layer on one GPU."""

    capability: int
    head: int
    fp8: bool
    new: int

    def asked(self) -> dict[str, Any]:
        """Return it for the worker, with the heads and the window of a 31B."""
        kind = {"heads": (32, 4), "window": 0} if self.head == 512 else {"heads": (32, 16), "window": 1024}
        return {**asdict(self), **kind}

    def __str__(self) -> str:
        return f"sm_{self.capability}, heads of {self.head}, {'FP8' if self.fp8 else 'BF16'}, {self.new} tokens"


def cases(new: int, few: tuple[int, ...]) -> list[Case]:
    """Return the cases of a patch, on `few` GPUs or on all."""
    return [
        Case(capability, head, fp8, new)
        for capability in (SHARED if ALL else few)
        for head in (512, 256)
        for fp8 in (True, False)
        if not (fp8 and capability < FP8_FROM)
    ]


class Kernels:
    """Compiles the cases of trees; every tree has a process of its own, since it imports vllm."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._python = prove_python(progress=print)

    def of(
        self, release: str, asked: list[dict[str, Any]], patches: tuple[str, ...] = ()
    ) -> list[list[dict[str, Any]]]:
        """Return what is compiled for each case, on a release with patches applied."""
        source = source_of(release)
        triton = triton_folder(self._python, progress=print, requirement=RELEASES[release])
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            trees = [*patched(source, release, patches, Path(folder)), source, triton]
            ended = subprocess.run(
                [str(self._python), str(WORKER)],
                input=json.dumps(asked),
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
                env={
                    "PATH": os.environ["PATH"], "HOME": folder, "CUDA_VISIBLE_DEVICES": "", "VLLM_LOGGING_LEVEL": "ERROR",
                    "TRITON_CACHE_DIR": str(self._folder / "triton"), "PYTHONPATH": os.pathsep.join(map(str, trees)),
                },
            )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-2000:]
        answers: list[list[dict[str, Any]]] = json.loads(ended.stdout)
        return answers


def patched(source: Path, release: str, patches: tuple[str, ...], folder: Path) -> Iterator[Path]:
    """Yield an overlay of a release with these patches; nothing without a patch."""
    if not patches:
        return
    shelf = Shelf([data.PATCHES])
    members = {one.id: one for name in patches for one in chain(shelf[name], shelf)}
    plan = launcher.Plan(1, "", "", (), tuple(members.values()), "")
    results, changed = launcher.decide_plan(plan, release, launcher.reader_of(source / "vllm"))
    assert {result.state for result in results} <= {"applies", "not-needed"}, [
        (one.patch.id, one.state) for one in results
    ]
    overlay = launcher.build_overlay(source / "vllm", folder, changed)
    assert overlay
    yield overlay


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels(tmp_path_factory.mktemp("kernels"))


def spilled(found: list[dict[str, Any]]) -> int:
    return max(one["spilled"] for one in found if one["kernel"] == "kernel_unified_attention")


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patched_kernel_fits_every_gpu_and_spills_no_more(patch: str, kernels: Kernels) -> None:
    release, new, few = PATCHES[patch]
    wanted = cases(new, few)
    if not wanted:
        pytest.skip("make test-kernels compiles it")
    asked = [case.asked() for case in wanted]
    both = kernels.of(release, [*asked, *({**one, "new": 1} for one in asked)])
    released = [[*same, *split] for same, split in zip(both[: len(asked)], both[len(asked) :], strict=True)]
    changed = kernels.of(release, asked, (patch,))
    for case, before, after in zip(wanted, released, changed, strict=True):
        assert after, f"{case}: nothing was launched"
        too_large = [one["shared"] for one in after if one["shared"] > SHARED[case.capability]]
        assert not too_large, f"{case}: {too_large} bytes of shared memory, and a block has {SHARED[case.capability]}"
        bound = KNOWN.get((patch, case.capability, case.head, case.fp8), spilled(before))
        assert spilled(after) <= bound, f"{case}: spills {spilled(after)} bytes, released {spilled(before)}"


def test_verification_is_split_only_with_the_patch(kernels: Kernels) -> None:
    """Or else the patched kernels above would be the released ones."""
    asked = [Case(121, 512, False, VERIFYING).asked()]
    for patches, split in (((), False), (("triton-verify-split-kv",), True)):
        (found,) = kernels.of("0.32.0", asked, patches)
        assert [one["split"] for one in found if one["kernel"] == "kernel_unified_attention"] == [split]


def test_a_kernel_that_is_too_large_is_seen(kernels: Kernels) -> None:
    """Hopper's best row for prompts with an FP8 cache needs 1,024 bytes more than a block of a Spark has."""
    case = Case(90, 512, True, PROMPT)
    (found,) = kernels.of("0.32.0", [case.asked()], ("triton-launch-params",))
    largest = max(one["shared"] for one in found)
    assert SHARED[121] < largest <= SHARED[90]


def test_fused_norms_round_as_the_released_ones_do(kernels: Kernels) -> None:
    """A product is rounded before it is added. Before Hopper both are fma, the one with zero and the other with one."""
    capabilities = SHARED if ALL else (121, 86)
    asked = [
        {"capability": capability, "width": width, "scaled": scaled}
        for capability in capabilities
        for width in (WIDTHS if ALL else WIDTHS[:1])
        for scaled in (False, True)
    ]
    for case, (norm,) in zip(asked, kernels.of("0.32.0", asked, ("gemma4-fused-norms",)), strict=True):
        assert norm["shared"] <= 1024, case
        assert norm["spilled"] == 0, case
        assert norm["fused"] == 0, case
        assert norm["products"] == (["mul.rn.bf16"] if case["capability"] >= 90 else ["fma.rn.bf16"]), case
