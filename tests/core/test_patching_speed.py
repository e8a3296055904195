"""Speed patches: what patch.yaml claims, and the cells that have to show it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmaspec.check.carry.patchset import load_set
from gemmaspec.cli.text import patch as text
from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching.evidence import FAMILIES, family_of, pairs_of
from gemmaspec.core.patching.patch import load_patch
from gemmaspec.core.profile.machines import MACHINES
from tests.support.speed_patches import CLAIM, evidence, row, write_speed_patch


def test_a_speed_patch_is_read_with_its_evidence(tmp_path: Path) -> None:
    patch = load_patch(write_speed_patch(tmp_path))
    assert patch.is_speed
    (pair,) = pairs_of(patch.id, patch.evidence)
    assert pair.step_gain == pytest.approx(39.2 / 17.3)
    assert pair.first_token_gain is None


def test_a_reviewed_one_says_what_it_leaves_alone(tmp_path: Path) -> None:
    file = write_speed_patch(tmp_path) / "patch.yaml"
    file.write_text(file.read_text().replace("leaves_alone: The rest.\n", ""))
    with pytest.raises(PatchError, match="leaves_alone: missing"):
        load_patch(file.parent)


def test_without_a_claim_it_may_wait_unreviewed(tmp_path: Path) -> None:
    patch = load_patch(write_speed_patch(tmp_path, pays=""))
    assert patch.is_speed
    assert not patch.text.reviewed


def test_first_tokens_that_come_at_once_are_not_compared(tmp_path: Path) -> None:
    cells = evidence(row(ttft_ms=55), row(["faster"], step_ms=17.3, ttft_ms=114))
    patch = load_patch(write_speed_patch(tmp_path, cells=cells))
    (pair,) = pairs_of(patch.id, patch.evidence)
    assert pair.first_token_gain is None
    assert pair.gain == pair.step_gain


def test_a_pair_differs_in_this_patch_only(tmp_path: Path) -> None:
    cells = evidence(
        row(),
        row(["other"], step_ms=30),
        row(["faster", "other"], step_ms=10),
        row(["faster"], concurrency=4, step_ms=5),
        row(["faster"], compile="eager", step_ms=5),
        row(["faster"], attention_backend="FLASH_ATTN", step_ms=5),
        row(["faster"], vllm="0.31.0", step_ms=5),
    )
    patch = load_patch(write_speed_patch(tmp_path, cells=cells))
    (pair,) = pairs_of(patch.id, patch.evidence)
    assert (pair.without.step_ms, pair.having.step_ms) == (30, 10)


def test_a_patch_for_prompts_pays_by_the_first_token(tmp_path: Path) -> None:
    cells = evidence(row(ttft_ms=1339), row(["faster"], ttft_ms=801))
    (pair,) = pairs_of("faster", load_patch(write_speed_patch(tmp_path, cells=cells)).evidence)
    assert pair.gain == pytest.approx(1339 / 801)


MEASURED = (row(), row(["faster"], step_ms=17.3))
SLOW = (row(concurrency=8, context=256, step_ms=20), row(["faster"], concurrency=8, context=256, step_ms=40))
LATE = (row(context=32768, ttft_ms=1000), row(["faster"], context=32768, step_ms=10, ttft_ms=2000))
REFUSED = [
    ({"cells": "{"}, "evidence.json: not JSON"),
    ({"cells": evidence()}, "runs.0.rows: is empty"),
    ({"cells": evidence(row(step_ms=0))}, "runs.0.rows.0.step_ms: must be greater than 0"),
    ({"cells": evidence(row(vllm="0.33.1.dev45+gabc"))}, "runs.0.rows.0.vllm: does not match"),
    ({"cells": evidence(row())}, "no cells with and without the patch for mtp on hopper with TRITON_ATTN"),
    ({"cells": evidence(row(), row(["faster"], step_ms=39))}, "is 1.01 times as fast, which is within the noise"),
    (
        {"cells": evidence(*MEASURED, row(vllm="0.28.0"))},
        "its cells of vLLM 0.28.0 are of another release than the patch is for",
    ),
    (
        {"cells": evidence(*MEASURED, capability="12.1", gpu="NVIDIA GB10", machine="dgx-spark")},
        "its cells of dgx-spark are of another machine: it is gb10, not in pays.gpus",
    ),
    ({"cells": evidence(*MEASURED, capability="12.1")}, "NVIDIA H200 does not have the compute capability 12.1"),
    ({"cells": evidence(*MEASURED, gpu="NVIDIA GeForce RTX 5090")}, "does not have the compute capability 9.0"),
    ({"cells": evidence(*MEASURED, date="2999-12-31")}, "runs.0.date: 2999-12-31 has not come yet"),
    ({"cells": evidence(*MEASURED, date="2026-99-99")}, "runs.0.date: 2026-99-99 does not exist"),
    ({"cells": evidence(row(step_ms=1e308), MEASURED[1])}, "runs.0.rows.0.step_ms: must be"),
    ({"cells": evidence(row(step_ms="39.2"), MEASURED[1])}, "step_ms: is not a number"),
    ({"cells": evidence(row(acceptance=["0.7"] * 4), MEASURED[1])}, "acceptance: is not a number"),
    ({"cells": '{"schema": 2, ' + evidence(*MEASURED)[1:]}, "a key is there twice in schema, schema, runs"),
    ({"cells": evidence(*MEASURED, *SLOW)}, "is 0.50 times as fast (8 requests after 256 tokens): set from_tokens"),
    ({"cells": evidence(*MEASURED, *LATE)}, "is 0.50 times as fast (1 requests after 32768 tokens): set from_tokens"),
    ({"pays": CLAIM.replace("[mtp]", "[mtp, dspark]")}, "no cells with and without the patch for dspark on hopper"),
    ({"pays": CLAIM.replace("hopper", "h200")}, "pays.0.gpus.0: must be"),
    ({"pays": CLAIM.replace(",<0.33", "")}, "'>=0.32.0' is not like >=0.32.0,<0.33; no later release was measured"),
    ({"pays": CLAIM.replace("0.32.0", "0.29.0")}, ">=0.29.0,<0.33 is outside the releases that the patch is for"),
    ({"versions": ">=0.30.0,<0.32", "more": "until: x\n"}, "is outside the releases that the patch is for"),
    ({"more": "dropped_in: 0.33.0\n"}, "dropped_in: is 0.33.0, so the last range must end with <0.33.0"),
    ({"more": "errors: [died]\n"}, "errors: slow code prints no error"),
]


@pytest.mark.parametrize(("changed", "problem"), REFUSED)
def test_a_claim_that_nothing_shows_is_refused(tmp_path: Path, changed: dict[str, str], problem: str) -> None:
    folder = write_speed_patch(tmp_path, **changed)
    with pytest.raises(PatchError) as error:
        load_patch(folder)
    assert problem in str(error.value)


def test_shorter_prompts_may_be_slower_where_the_claim_says_so(tmp_path: Path) -> None:
    claim = CLAIM.replace("}", ", from_tokens: 1024}")
    assert load_patch(write_speed_patch(tmp_path, pays=claim, cells=evidence(*MEASURED, *SLOW))).text.pays


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (f"pays:\n{CLAIM}", "", "pays: missing; a reviewed speed patch states where it was shown to pay"),
        ("purpose: speed\n", "", "pays: belongs to a patch with purpose: speed"),
        ("purpose: speed\n", "", "evidence.json belongs to a patch with purpose: speed"),
        ("purpose: speed", "purpose: fast", "purpose: must be 'defect' or 'speed', got 'fast'"),
    ],
)
def test_what_a_patch_is_for(tmp_path: Path, old: str, new: str, problem: str) -> None:
    file = write_speed_patch(tmp_path) / "patch.yaml"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(PatchError) as error:
        load_patch(file.parent)
    assert problem in str(error.value)


def test_without_the_file_a_claim_is_refused(tmp_path: Path) -> None:
    folder = write_speed_patch(tmp_path)
    (folder / "evidence.json").unlink()
    with pytest.raises(PatchError, match=r"evidence\.json is missing, so nothing shows that the patch pays"):
        load_patch(folder)


def test_every_known_gpu_has_a_family() -> None:
    known = {machine.compute_capability for machine in MACHINES.values() if machine.compute_capability}
    assert all(family_of(one) for one in known)
    assert len({one for members in FAMILIES.values() for one in members}) == sum(map(len, FAMILIES.values()))
    assert family_of("7.5") is None


def test_explain_says_what_it_buys_and_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = evidence(row(ttft_ms=1339), row(["faster"], step_ms=17.3, ttft_ms=1300), row(k=2), row(["faster"], k=2))
    write_speed_patch(tmp_path, versions=">=0.30.0,<0.33", more="until: x\ndropped_in: 0.33.0\n", cells=cells)
    patches = load_set(["faster"], [tmp_path])
    text.explain(patches, "faster", as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "auto takes it vllm >=0.32.0,<0.33 on hopper, TRITON_ATTN: mtp" in said
    assert (
        "mtp k=4, 8,192 tokens of prompt, 1 concurrent, vllm 0.32.0: 39.2 -> 17.3 ms a step, 2.27 times; "
        "first token 1,339 -> 1,300 ms, 1.03 times" in said
    )
    assert "The release of vLLM that has it 0.33.0" in said
    text.explain(patches, "faster", as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["purpose"] == "speed"
    assert [round(pair["step_gain"], 2) for pair in document["evidence"]] == [2.27, 1.0]
    text.listing(patches, as_json=False)
    assert "speed: mtp on hopper" in capsys.readouterr().out
