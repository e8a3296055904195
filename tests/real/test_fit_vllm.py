"""The KV cache as it is planned here, beside vLLM's own functions, over many shapes and flag sets: equal in all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.check.proof.prove import Probes
from gemmaspec.check.proof.source import source_of
from tests.support.kv_shapes import asking, cases, ours, theirs
from tests.support.real import cpu_python

ENDS = ("0.19.0", "0.20.0", "0.20.1", "0.24.0", "0.26.0", "0.27.0", "0.29.0", "0.31.0", "0.33.0")
"""The releases between which something of the planning changed, and the first and the last."""


def differences(vllm: str, wanted: Sequence[dict[str, Any]], answers: Sequence[dict[str, Any]]) -> list[Any]:
    """Cases in which the two do not agree. Where vLLM refuses, it is enough that it is refused here too."""
    found = []
    for case, their in zip(wanted, answers, strict=True):
        our = ours(case, vllm)
        if our != their and not ("error" in our and "error" in their):
            found.append((case, our, their))
    return found


@pytest.mark.real_process
def test_every_number_is_that_of_the_installed_vllm() -> None:
    wanted = cases(200, seed=1)
    answers = theirs(cpu_python(), wanted)
    assert differences("0.32.0", wanted, answers) == []
    assert sum("error" not in answer for answer in answers) > 100
    assert any("error" in answer for answer in answers)


@pytest.mark.network
@pytest.mark.parametrize("vllm", ENDS)
def test_every_number_is_that_of_a_released_vllm(vllm: str, probes: Probes, tmp_path: Path) -> None:
    wanted = cases(100, seed=2)
    asked = asking(tmp_path, wanted)
    answer = probes.run([source_of(vllm)], {"planning": asked})["planning"]
    assert answer.state == "open", answer.seen
    assert differences(vllm, wanted, json.loads(answer.seen)) == []
