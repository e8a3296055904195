"""The process in which released vLLM trees are asked, one after the other, for all tests of a worker.

To import what vLLM imports takes ten seconds, and a question one: see gemmaspec/check/proof/run_probes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gemmaspec.check.proof.environment import prove_python, triton_folder
from gemmaspec.check.proof.prove import Probes
from tests.support.real import STATE


@contextmanager
def probing() -> Iterator[tuple[Probes, Path]]:
    """Yield it, in the environment of `gemmaspec patch prove`, and the folder with Triton."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GEMMASPEC_STATE", str(STATE))
        python = prove_python(progress=print)
        triton = triton_folder(python, progress=print)
    with Probes(python, lambda: triton) as running:
        yield running, triton
