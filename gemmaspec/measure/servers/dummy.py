"""What `--dummy-weights` replaces in a profile: its weights, and how drafts are accepted. Nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gemmaspec.core import data
from gemmaspec.core.files import state_dir
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.measure.bench.cells import Arm
from gemmaspec.measure.bench.prompts import Prompt, PromptSet
from gemmaspec.run.kept.models import models_of
from gemmaspec.run.models.dummy import dummy_model

RATE: Final = 0.7
"""Probability that a drafted token is accepted if those before it are."""
NAME: Final = "dummy"
_MESSAGE: Final = {"role": "user", "content": "Go on."}
PROMPTS: Final = PromptSet(
    name=NAME,
    sha256="",
    prompts=tuple(Prompt(id=f"{NAME}-{number}", category=NAME, messages=(_MESSAGE,)) for number in range(1, 33)),
)
"""Dummy weights answer nothing, so that a prompt is its length: of them --each takes some, and fills them up."""


def dummy_overrides(profile: str, overrides: Sequence[str], arm: Arm, note: Callable[[str], None]) -> tuple[str, ...]:
    """Return the overrides that give an arm's server dummy weights, once its models' folders are made.

    Raises what dummy_model raises.
    """
    run = load_profile(profile, overrides=(*overrides, *arm.overrides), no_spec=arm.alone).profile
    return tuple(_overrides(run, arm, note))


def draws_lots(run: Profile) -> bool:
    """Return whether vLLM can accept drafts by lot on a machine: not on a CPU (utils/cpu_triton_utils.py, 0.32.0)."""
    return bool(MACHINES[run.machine].gpus)


def _overrides(run: Profile, arm: Arm, note: Callable[[str], None]) -> Iterator[str]:
    into = state_dir() / NAME / run.name
    for model in models_of(run):
        folder = data.shipped(model.model) or (model.folder if model.local else None)
        made = dummy_model(model.model, folder, into=into / model.role, note=note)
        yield f"{model.role}.model={json.dumps(str(made))}"
        if model.revision:
            yield f"{model.role}.revision="
    if not run.serve.served_model_name:
        yield f"serve.served_model_name={json.dumps(run.target.model)}"
    yield "serve.load_format=dummy"
    yield 'env.HF_HUB_OFFLINE="1"'
    spec = run.speculative
    if spec and draws_lots(run) and spec.rejection_sample_method != "synthetic":
        rates = [round(RATE**place, 4) for place in range(1, arm.k + 1)]
        yield "speculative.rejection_sample_method=synthetic"
        yield f"speculative.synthetic_acceptance_rates={json.dumps(rates)}"
