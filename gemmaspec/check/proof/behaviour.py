"""Whether a bug is in one vLLM, by the patch's probe: it runs vLLM's own modules, without a GPU."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gemmaspec.check.proof.environment import prove_python
from gemmaspec.check.proof.prove import PROBE, RUNNER, ProbeResult, Probes, Proof, judge
from gemmaspec.core import launcher
from gemmaspec.core.files import cache_dir, keep, kept
from gemmaspec.core.patching.patch import Patch
from gemmaspec.core.patching.plan import chain
from gemmaspec.run.trees.folder import package_in


class Behaviour(contextlib.AbstractContextManager["Behaviour"]):
    """Answers of probes, each remembered for exactly these files; the process starts with the first question."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._probes: Probes | None = None
        self._stack = contextlib.ExitStack()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, patch: Patch, folder: Path) -> ProbeResult:
        """Return what the patch's probe sees in the vllm/ of a folder. Raise EnvironmentMissing without one."""
        probe, package = patch.folder / PROBE, package_in(folder)
        if not probe.is_file():
            return ProbeResult(state="failed", seen=f"{patch.id} has no {PROBE}")
        interpreter = prove_python(progress=self._progress)
        sources = [*sorted(patch.folder.glob("*.py")), RUNNER]
        rows = [str(interpreter), *(launcher.sha256(file.read_bytes()) for file in sources), *_digests(package)]
        file = cache_dir() / "behaviour" / f"{launcher.sha256(json.dumps(rows).encode())}.json"
        with contextlib.suppress(ValueError, TypeError):
            return ProbeResult(**json.loads(kept(file) or b""))
        self._progress(f"running the probe of {patch.id} on {folder}")
        seen = self._run(interpreter, patch.id, probe, package)
        if seen.state != "failed":
            keep(file, json.dumps({"state": seen.state, "seen": seen.seen}).encode())
        return seen

    def _run(self, interpreter: Path, id_: str, probe: Path, package: Path) -> ProbeResult:
        self._probes = self._probes or self._stack.enter_context(Probes(interpreter))
        with alone(package) as place:
            return self._probes.run([place], {id_: probe})[id_]


@contextlib.contextmanager
def alone(package: Path) -> Iterator[Path]:
    """Yield a folder with nothing but this package, because a site-packages also has a torch of its own."""
    with tempfile.TemporaryDirectory(prefix="gemmaspec-prove-") as place:
        (Path(place) / "vllm").symlink_to(package)
        yield Path(place)


def _digests(package: Path) -> list[str]:
    digests = []
    for file in sorted(package.rglob("*.py")):
        if file.is_file():
            digests.append(f"{file.relative_to(package)} {launcher.sha256(file.read_bytes())}")
    return digests


def prove_folder(patches: Sequence[Patch], shelf: Mapping[str, Patch], folder: Path, probes: Probes) -> Iterator[Proof]:
    """Prove patches on the vllm/ of a folder. One that does not fit is `open` or `closed`, as its probe finds.

    Raise EnvironmentMissing without a vllm/.
    """
    package = package_in(folder)
    version = launcher.vllm_version(package)
    read = launcher.reader_of(package)
    for patch in patches:
        results, changed = launcher.decide_plan(launcher.Plan(1, "", "", (), chain(patch, shelf), ""), version, read)
        probe = {patch.id: patch.folder / PROBE}
        with alone(package) as place:
            stock = probes.run([place], probe)[patch.id]
            patched = None
            if results[-1].state in ("applies", "drifted"):
                overlay = launcher.build_overlay(package, place, changed)
                patched = probes.run([overlay or place, place], probe)[patch.id]
        yield judge(patch, version, results[-1], stock, patched)
