"""Which attention backends a server may have: what the profile sets, else what vLLM chooses for its GPU.

Where the format of the cache or the masks are not known, every possible answer is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec.core.launcher import range_contains
from gemmaspec.core.profile.command import Command
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.releases.backends import Layers, backend_for
from gemmaspec.core.releases.model_runner import RunnerName
from gemmaspec.core.resolved.answer import Unknown

Role = Literal["target", "draft"]
_ASKS: Final = {"mtp": "draft", "eagle": "eagle3", "eagle3": "eagle3"}
"""Method → the kind of head for which the releases' answers were recorded."""
_CHAINS: Final = (*_ASKS, "draft_model")
_OPEN: Final = ("", "auto", "none")


@dataclass(frozen=True, kw_only=True)
class Attention:
    """All that decides which backend the layers of target and draft take."""

    profile: Profile
    command: Command
    vllm: str
    """A known release."""
    capability: str | None
    method: str | None
    """The method that vLLM drafts with."""
    mixture: bool
    runner: RunnerName
    masks: tuple[bool, ...]
    """Whether images are masked; both where that is not known."""
    fp8: tuple[bool, ...]
    """Whether the cache is FP8; both where that is not known."""

    def layers(self) -> tuple[Layers, ...]:
        """Return the backends of target and draft for each format that the cache may have."""
        return tuple(Layers(fp8=fp8, target=_one(self._target(fp8)), draft=_one(self._draft(fp8))) for fp8 in self.fp8)

    def backend(self, role: Role) -> str | Unknown:
        """Return the backend of a role, if all that is open leads to one."""
        possible: set[str | None] = set()
        for fp8 in self.fp8:
            possible |= self._target(fp8) if role == "target" else self._draft(fp8)
        if (backend := _one(possible)) is not None:
            return backend
        if None in possible:
            return Unknown(f"vLLM {self.vllm} was not asked for compute capability {self.capability}")
        return Unknown("the checkpoint decides between " + " and ".join(sorted(map(str, possible))))

    def _target(self, fp8: bool) -> set[str | None]:
        set_by_profile = self.command.value("--attention-backend") or ""
        if set_by_profile.lower() not in _OPEN:
            return {set_by_profile.upper()}
        return self._chosen(fp8, "target", self.masks)

    def _draft(self, fp8: bool) -> set[str | None]:
        spec = self.profile.speculative
        set_by_profile = (spec.attention_backend if spec else None) or ""
        if self.method == "mtp":  # its head takes over the target's, with both runners, from 0.21.0
            set_by_profile = self.command.value("--attention-backend") or set_by_profile
        if set_by_profile.lower() not in _OPEN:
            return {set_by_profile.upper()}
        if self.method is None:
            return {None}
        if self.method not in _CHAINS:
            return {"FLASH_ATTN"}  # heads that draft a block are narrow
        if self.method == "mtp" and self._keeps_targets():
            return self._target(fp8)
        masks = (False,) if self.method == "draft_model" else self.masks
        return self._chosen(fp8, _ASKS.get(self.method, "target"), masks)

    def _keeps_targets(self) -> bool:
        """Return whether the head of a mixture keeps the target's backend, as under model runner v1 up to 0.28."""
        return self.mixture and self.runner == "v1" and range_contains(">=0.25.0,<0.29.0", self.vllm)

    def _chosen(self, fp8: bool, asks: str, masks: Iterable[bool]) -> set[str | None]:
        return {backend_for(self.vllm, self.capability, masks=mask, fp8=fp8, role=asks) for mask in masks}


def _one(possible: set[str | None]) -> str | None:
    if len(possible) == 1:
        return next(iter(possible))
    return None
