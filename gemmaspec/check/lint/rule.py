"""What a rule is, what it yields, and what it checks: a profile, its vLLM, and its checkpoints if known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

from gemmaspec.core import launcher
from gemmaspec.core.checkpoint.sizes import size_called
from gemmaspec.core.finding import Finding, Severity
from gemmaspec.core.profile.command import Argument, Command, asked_of_runner, command_of, masks_of
from gemmaspec.core.profile.machines import MACHINES, Machine
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.releases import model_runner
from gemmaspec.core.releases.batch import (
    BatchDefaults,
    batch_defaults,
    default_batch,
    raised_for_images,
    wants_whole_items,
)
from gemmaspec.core.releases.drafting import method_run
from gemmaspec.core.releases.facts import Facts
from gemmaspec.core.releases.model_runner import RunnerInput, RunnerName

if TYPE_CHECKING:
    from gemmaspec.core.checkpoint.parts import Checkpoint
    from gemmaspec.core.patching.patch import Patch


Role = Literal["target", "draft"]
_HEAD: Final = re.compile(r"assistant|eagle|dflash|dspark|mtp|speculator|draft", re.IGNORECASE)
_NUMBER: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6}(?=[kmgt]))?)([kKmMgGtT]?)")
_UNITS: Final = {"": 1} | {
    unit: base**power
    for power, pair in enumerate(("kK", "mM", "gG", "tT"), start=1)
    for unit, base in zip(pair, (1000, 1024), strict=True)
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One profile under one vLLM release. `target` and `draft` are None if their checkpoints were not read."""

    profile: Profile
    facts: Facts
    vllm: str
    """The release; its facts may be those of the nearest known one."""
    patches: Mapping[str, Patch]
    target: Checkpoint | None = None
    draft: Checkpoint | None = None
    here: Mapping[str, str] = field(default_factory=dict)
    """The state of `target`, `draft` and `template` on this machine: folder, file, no config or missing; empty if not
    checked."""
    longest: Mapping[Role, int] = field(default_factory=dict)
    """The tokens that `target` and `draft` were made for, where that is known without their checkpoints."""
    templates: tuple[str, ...] = ()
    """The shipped chat templates."""
    emptied: tuple[str, ...] = ()
    """Empty keys that remove inherited values."""

    def runs(self, versions: str) -> bool:
        """Return whether the release is in a range such as >=0.25.0,<0.28; builds count as the next release."""
        return launcher.range_contains(versions, self.vllm)

    @property
    def asked_method(self) -> str | None:
        """The speculative method that the profile names; None without speculation."""
        return self.profile.speculative.method if self.profile.speculative else None

    @property
    def method(self) -> str | None:
        """The method that vLLM drafts with."""
        head = self.draft.speculator if self.draft else None
        called = None if self.draft else self.called("draft")
        return method_run(self.asked_method, self.vllm, head=head.method if head else None, called=called)

    @property
    def draft_is_head(self) -> bool | None:
        """Whether the draft is only a head; None if unknown."""
        if self.draft:
            return self.draft.speculator is not None
        called = self.called("draft")
        if _HEAD.search(called):
            return True
        return False if size_called(called) else None

    @property
    def has_experts(self) -> bool | None:
        """Whether the target is a mixture of experts; None if unknown."""
        if self.target:
            return self.target.text.experts > 0
        size = size_called(self.called("target"))
        return size.experts if size else None

    @property
    def tokens(self) -> int:
        """num_speculative_tokens; 0 without a method. suffix defaults to the depth of its trees, 24."""
        spec = self.profile.speculative
        if not spec:
            return 0
        return spec.num_speculative_tokens or spec.suffix_decoding_max_tree_depth or 24

    @cached_property
    def machine(self) -> Machine:
        """The machine that the profile is for."""
        return MACHINES[self.profile.machine]

    @cached_property
    def command(self) -> Command:
        """The server's command line."""
        return command_of(self.profile, self.facts.flags)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The flags of the command line."""
        return self.command.arguments

    def argument(self, flag: str) -> Argument | None:
        """Return how a flag is given."""
        return self.command.argument(flag)

    def given(self, *flags: str) -> bool:
        """Return whether one of these flags is given, in either form."""
        return self.command.given(*flags)

    def switched(self, flag: str) -> bool | None:
        """Return whether a flag without a value is on; None if it is not given."""
        return self.command.switched(flag)

    def value(self, flag: str) -> str | None:
        """Return the text that a flag is given."""
        return self.command.value(flag)

    def number(self, flag: str) -> int | None:
        """Return the whole number that a flag is given, 128k and 2K too (human_readable_int); None for another text."""
        number = _NUMBER.fullmatch(self.value(flag) or "")
        return int(float(number[1]) * _UNITS[number[2]]) if number else None

    @property
    def hybrid_manager(self) -> Literal["on", "off"]:
        """Whether the hybrid KV cache manager is on, which is vLLM's default for Gemma 4."""
        asked = self.switched("--disable-hybrid-kv-cache-manager")
        if asked is None and "LMCache" in (self.value("--kv-transfer-config") or ""):
            return "off"  # a connector without SupportsHMA turns it off (vllm/config/vllm.py)
        return "off" if asked else "on"

    @property
    def runner(self) -> RunnerName:
        """The model runner that will run."""
        return model_runner.runs(self.facts.runner, self.runner_input)

    @property
    def falls_back(self) -> str | None:
        """Why vLLM uses model runner v1 instead of v2; None if it uses v2."""
        return model_runner.falls_back(self.facts.runner, self.runner_input)

    @property
    def runner_input(self) -> RunnerInput:
        """What decides the model runner."""
        return RunnerInput(
            mixture=self.is_mixture,
            triton=bool(self.machine.gpus),
            forced=model_runner.forced_by(self.profile.env.get("VLLM_USE_V2_MODEL_RUNNER")),
            method=self.method,
            stages=self.number("--pipeline-parallel-size") or 1,
            options=asked_of_runner(self.profile, self.command, self.facts.runner_unsupported),
        )

    @property
    def is_mixture(self) -> bool:
        """Whether the target is known to be a mixture of experts."""
        return bool(self.has_experts)

    @property
    def is_unified(self) -> bool:
        """Whether the target has the unified architecture, by its name."""
        size = size_called(self.called("target"))
        return bool(size and size.unified)

    @property
    def caches_fp8(self) -> bool | None:
        """Whether the KV cache is FP8, as the profile or the checkpoint says; None if unknown."""
        dtype = self.value("--kv-cache-dtype") or "auto"
        if dtype != "auto":
            return dtype.startswith("fp8")
        if self.target is None:
            return None
        quantization = self.target.quantization
        return bool(quantization and (quantization.kv_cache or "").lower().startswith("fp8"))

    @property
    def takes_images(self) -> bool | None:
        """Whether the target accepts images, audio or video; None if unknown.

        All of Google's checkpoints do; some quantized ones were stored without the towers.
        """
        limits = self.profile.serve.limit_mm_per_prompt or {}
        if self.switched("--language-model-only") or (len(limits) == 3 and not any(limits.values())):
            return False
        return self.target.modalities != {"text"} if self.target else None

    @property
    def masks(self) -> bool | None:
        """Whether the target serves images that see later tokens; None if unknown."""
        found = masks_of(self.profile, self.command, self.vllm, self.target.masks_images if self.target else None)
        return found[0] if len(found) == 1 else None

    @property
    def batch(self) -> int | None:
        """max_num_batched_tokens: the given value, else vLLM's default for the machine; None if unknown."""
        if self.argument("--max-num-batched-tokens"):
            return self.number("--max-num-batched-tokens")
        if self._defaults is None:
            return None
        return default_batch(
            self._defaults.tokens,
            vllm=self.vllm,
            length=self.length,
            sequences=self.number("--max-num-seqs"),
            masks=self._raises_batch,
            chunked=self.switched("--enable-chunked-prefill") is not False,
        )

    @property
    def sequences(self) -> int | None:
        """max_num_seqs: as given, else vLLM's default for the machine and batch; None where it is not known."""
        if self.argument("--max-num-seqs"):
            return self.number("--max-num-seqs")
        return min(self._defaults.sequences, self.batch or self._defaults.sequences) if self._defaults else None

    @property
    def _raises_batch(self) -> bool:
        """Return whether the largest image must fit into a batch by default; so it is where that is not known."""
        size = size_called(self.called("target"))
        masks = self.target.wants_whole_images if self.target else not (size and size.shares_kv)
        serves = self.takes_images is not False
        return raised_for_images(self.vllm, masks=masks and not self.is_unified, serves_images=serves)

    @property
    def _defaults(self) -> BatchDefaults | None:
        machine = self.machine
        if (machine.memory_gb is None and machine.gpus) or self.argument("--performance-mode"):
            return None
        stages = self.number("--pipeline-parallel-size") or 1
        return batch_defaults(
            self.vllm,
            memory=round((machine.memory_gb or 0) * 10**9),
            world=stages * (self.number("--tensor-parallel-size") or 1),
            name=machine.name,
            capability=machine.compute_capability,
            cpu=not machine.gpus,
        )

    @property
    def length(self) -> int | None:
        """The maximum context in tokens: max_model_len, else the model's own; None if unknown."""
        if self.argument("--max-model-len"):
            return self.number("--max-model-len")
        if self.target:
            return self.target.text.max_position_embeddings
        size = size_called(self.called("target"))
        return size.context if size else None

    @property
    def wants_whole_items(self) -> bool | None:
        """Whether a batch must hold a whole image or video; None if unknown."""
        if self.switched("--disable-chunked-mm-input"):
            return self.takes_images
        if self.takes_images is False or not wants_whole_items(self.vllm, cpu=not self.machine.gpus):
            return False
        if self.target:
            return self.target.wants_whole_images
        size = size_called(self.called("target"))
        return None if size and size.large_towers else False

    def shares_kv(self, role: Role) -> bool | None:
        """Return whether layers of a model read the KV cache of others, as those of E2B and E4B do; None: not known."""
        checkpoint = self.checkpoint(role)
        if checkpoint:
            return any(layer.shares_with is not None for layer in checkpoint.text.layers)
        if self._is_called_a_head(role):
            return None
        size = size_called(self.called(role))
        return size.shares_kv if size else None

    def windows(self, role: Role) -> frozenset[int] | None:
        """Return the sliding windows of a model, in tokens; None: not known."""
        checkpoint = self.checkpoint(role)
        if checkpoint:
            return frozenset(layer.window for layer in checkpoint.text.layers if layer.window)
        if self._is_called_a_head(role):
            return None
        size = size_called(self.called(role))
        return frozenset({size.window}) if size else None

    def _is_called_a_head(self, role: Role) -> bool:
        """Return whether the name is a head's: the size in it is then the target's, and says nothing of the head."""
        return role == "draft" and bool(_HEAD.search(self.called(role)))

    def checkpoint(self, role: Role) -> Checkpoint | None:
        """Return what is known of a model."""
        return self.target if role == "target" else self.draft

    def name(self, role: Role) -> str:
        """Return a model's id or folder; empty when there is none."""
        model = self.profile.target if role == "target" else self.profile.draft
        return model.model if model else ""

    def called(self, role: Role) -> str:
        """Return the last part of a model's id or folder: what it is called, without whose or where it is."""
        return self.name(role).rstrip("/").rpartition("/")[2]


Path = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Issue:
    """What a rule yields: the key at fault, and one sentence each for the problem and the fix."""

    path: Path
    message: str
    fix: str
    severity: Severity | None = None
    """The severity, if it differs from the rule's."""


Check = Callable[[Subject], Iterator[Issue]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One check. Rules of one cause share a code, which is stable and never reused."""

    code: str
    severity: Severity
    check: Check
    any_release: bool = False
    """Whether its issues do not depend on the vLLM that runs."""


def rule(code: str, severity: Severity, *, any_release: bool = False) -> Callable[[Check], Rule]:
    """Return a decorator that turns a check into a rule."""
    return lambda check: Rule(code=code, severity=severity, check=check, any_release=any_release)


def documentation(finding: Finding) -> str:
    """Return the command that explains a finding's rule."""
    return f"gemmaspec explain {finding.code}"


def as_text(finding: Finding) -> str:
    """Return a finding of a rule as text in two lines."""
    head = f"{finding.place}: {finding.severity} {finding.code}: {finding.key}: {finding.message}"
    lines = (head, f"    {finding.fix}  [{documentation(finding)}]")
    return "\n".join(line.replace("\n", r"\n") for line in lines)
