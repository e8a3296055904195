"""GPUs that people own, by a fake nvidia-smi: what `up` without a name offers, and what the dry run says of them."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.replica import gpus_each

PYTHON = ("--engine", "process", "--set", f"runtime.python={sys.executable}")
CARDS = {
    "3090": ("NVIDIA GeForce RTX 3090", 24576, "8.6"),
    "4090": ("NVIDIA GeForce RTX 4090", 24564, "8.9"),
    "5090": ("NVIDIA GeForce RTX 5090", 32607, "12.0"),
    "H100": ("NVIDIA H100 80GB HBM3", 81559, "9.0"),
    "PRO 6000": ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "12.0"),
    "L20": ("NVIDIA L20", 46068, "8.9"),
    "4060 Ti": ("NVIDIA GeForce RTX 4060 Ti", 16380, "8.9"),
    "3060": ("NVIDIA GeForce RTX 3060", 12288, "8.6"),
    "GT 1030": ("NVIDIA GeForce GT 1030", 2048, "6.1"),
}


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in PATH for a fake nvidia-smi."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "nvidia-smi"


def put(smi: Path, card: str, count: int) -> None:
    """Write an nvidia-smi that answers as one with so many GPUs of a kind does."""
    put_each(smi, [card] * count)


def put_each(smi: Path, cards: list[str]) -> None:
    """Write an nvidia-smi that answers as one with these GPUs does."""
    lines = ":\n"
    for card in cards:
        name, mib, capability = CARDS[card]
        lines += f"echo '{name}, 580.95.05, {capability}, {mib}, {mib - 600}'\n"
    smi.write_text('#!/bin/sh\ncase "$*" in *query-gpu=name*)\n' + lines + ";; esac\n")
    smi.chmod(0o755)


@pytest.mark.parametrize(
    ("card", "count", "offered", "gpus", "said"),
    [
        ("3090", 2, "nvidia2-31b-mtp", 2, "2 x NVIDIA GeForce RTX 3090, 24 GB each"),
        ("4090", 2, "nvidia2-31b-mtp", 2, "2 x NVIDIA GeForce RTX 4090, 24 GB each"),
        ("5090", 2, "nvidia2-31b-mtp", 2, "2 x NVIDIA GeForce RTX 5090, 32 GB each"),
        ("H100", 1, "nvidia-31b-mtp", 1, "NVIDIA H100 80GB HBM3, 80 GB (h100)"),
        ("H100", 8, "nvidia-31b-mtp", 1, "--set replicas=8"),
        ("PRO 6000", 1, "nvidia-31b-mtp", 1, "96 GB (rtx-pro-6000)"),
        ("5090", 1, "nvidia-31b-mtp-32gb", 1, "32 GB (rtx-5090)"),
        ("4090", 1, "nvidia-31b-qat-mtp-24gb", 1, "24 GB (rtx-4090)"),
        ("3090", 1, "nvidia-12b-qat-mtp", 1, "24 GB (rtx-3090)"),
        ("4060 Ti", 1, "nvidia-12b-qat-mtp", 1, "NVIDIA GeForce RTX 4060 Ti, 16 GB"),
        ("3060", 1, "nvidia-e2b-qat-mtp", 1, "NVIDIA GeForce RTX 3060, 12 GB"),
        ("GT 1030", 1, "tiny-cpu", 0, "nvidia-e2b-qat-mtp does not fit"),
        ("L20", 2, "nvidia-31b-mtp", 1, "2 x NVIDIA L20, 45 GB each"),
    ],
)  # fmt: skip
def test_up_offers_what_the_gpus_are_for(
    card: str, count: int, offered: str, gpus: int, said: str, smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(smi, card, count)
    assert run(["up"]) == 2
    printed = capsys.readouterr().err
    assert f"try: gemmaspec up {offered}\n" in printed
    assert said in printed
    assert gpus_each(load_profile(offered).profile) == gpus


def test_what_idle_gpus_could_do_is_said_for_one_user_and_for_eight(
    smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(smi, "H100", 2)
    assert run(["up"]) == 2
    printed = capsys.readouterr().err
    assert "it uses 1 of 2 GPUs" in printed
    alone, replicas, wider = (line for line in printed.splitlines() if line.startswith("  ") and "server" in line)
    assert "for one user and" in alone
    assert "--set replicas=2" in replicas
    assert "--set serve.tensor_parallel_size=2" in wider


@pytest.mark.parametrize(("card", "count"), [("4090", 4), ("H100", 8)])
def test_each_offer_for_idle_gpus_can_be_pasted(
    card: str, count: int, smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(smi, card, count)
    assert run(["up"]) == 2
    printed = capsys.readouterr().err
    offers = re.findall(r"gemmaspec (up \S+(?: --set \S+)+)[,:]", " ".join(printed.split()))
    assert len(offers) == 2
    for offer in offers:
        assert run([*shlex.split(offer), *PYTHON, "--dry-run"]) == 0, capsys.readouterr().err


def test_a_dry_run_warns_where_the_gpu_is_missing(smi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_each(smi, [])
    assert run(["up", "nvidia-31b-mtp", *PYTHON, "--dry-run"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "gpu: WARNING: nvidia-smi finds no GPU here, and nvidia-31b-mtp needs one: gemmaspec doctor" in printed
    put(smi, "H100", 1)
    assert run(["up", "nvidia-31b-mtp", *PYTHON, "--dry-run"]) == 0
    assert "gpu:" not in capsys.readouterr().out


def test_one_gpu_has_no_idle_ones(smi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(smi, "H100", 1)
    assert run(["up"]) == 2
    assert "it uses" not in capsys.readouterr().err


@pytest.mark.parametrize(("cards", "own", "other"), [(["5090", "4090"], 0, 1), (["4090", "5090"], 1, 0)])
def test_two_kinds_of_gpus_are_both_named(
    cards: list[str], own: int, other: int, smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_each(smi, cards)
    assert run(["up"]) == 2
    printed = capsys.readouterr().err
    assert f"try: gemmaspec up nvidia-31b-mtp-32gb --set 'devices=[{own}]'\n" in printed
    assert "also here: NVIDIA GeForce RTX 4090, 24 GB (rtx-4090); a server of its own there:" in printed
    assert f"  gemmaspec up nvidia-31b-qat-mtp-24gb --set 'devices=[{other}]' --set serve.port=8001\n" in printed


def test_each_further_kind_has_a_port_of_its_own(smi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_each(smi, ["3090", "4090", "5090", "4060 Ti"])
    assert run(["up"]) == 2
    printed = capsys.readouterr().err
    ports = [line.rpartition("serve.port=")[2] for line in printed.splitlines() if "serve.port=" in line]
    assert ports == ["8001", "8002", "8003"]


@pytest.mark.parametrize("cards", [["5090", "4090"], ["4090", "5090"]])
def test_what_is_offered_is_what_fits_where_gpus_differ(
    cards: list[str], smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_each(smi, cards)
    assert run(["up", *PYTHON, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"] == []


def test_several_servers_stay_on_gpus_that_are_alike(smi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_each(smi, ["4090", "H100", "H100"])
    assert run(["up"]) == 2
    printed = capsys.readouterr().err
    assert "gemmaspec up nvidia-31b-mtp --set 'devices=[1,2]' --set replicas=2" in printed
    assert "gemmaspec up nvidia-31b-mtp --set 'devices=[1,2]' --set serve.tensor_parallel_size=2" in printed


@pytest.mark.parametrize("cards", [["5090", "4090"], ["4090", "5090"]])
def test_a_server_on_two_kinds_of_gpus_has_the_room_of_the_smaller(
    cards: list[str], smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_each(smi, cards)
    assert run(["fit", "nvidia2-31b-mtp", "--json"]) == 0
    mixed = json.loads(capsys.readouterr().out)
    put(smi, "4090", 2)
    assert run(["fit", "nvidia2-31b-mtp", "--json"]) == 0
    alike = json.loads(capsys.readouterr().out)
    assert mixed["machine"]["name"] == "NVIDIA GeForce RTX 4090"
    assert mixed["memory"] == alike["memory"]


def test_devices_say_which_gpu_is_judged(smi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_each(smi, ["5090", "4090"])
    for number, fits in ((0, True), (1, False)):
        asked = ["up", "nvidia-31b-mtp-32gb", *PYTHON, "--set", f"devices=[{number}]", "--dry-run", "--json"]
        assert run(asked) == 0
        assert (json.loads(capsys.readouterr().out)["memory"] == []) is fits


@pytest.mark.parametrize(("card", "patched"), [("3090", False), ("5090", False), ("H100", True)])
def test_the_dry_run_judges_the_gpu_that_is_there(
    card: str, patched: bool, smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(smi, card, 1)
    assert run(["up", "nvidia-31b-mtp", *PYTHON, "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert ("humming-launch-params" in said["speed_patches"]) is patched, "it is a table of Hopper's launches"
    assert bool(said["memory"]) is (card != "H100")


def test_the_dry_run_of_two_cards_has_room_where_one_has_none(smi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(smi, "3090", 2)
    assert run(["up", "nvidia2-31b-mtp", *PYTHON, "--dry-run"]) == 0
    assert "does not fit" not in capsys.readouterr().out
    assert run(["up", "nvidia-31b-mtp", *PYTHON, "--dry-run"]) == 0
    assert "memory: WARNING: it does not fit" in capsys.readouterr().out
