"""The servers of one run of bench: one per arm, started as `up` does it, or the one that already runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gemmaspec.core.errors import DifferencesFound, EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.launcher import LEFT_OUT
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.machines import MACHINES, machine_of
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.logged import as_logged
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.core.rows import GRAPH_MODES, MAX_K
from gemmaspec.measure.bench.cells import NONE, Arm
from gemmaspec.measure.bench.settings import Asked
from gemmaspec.measure.counters import speculates
from gemmaspec.measure.lengths import ServedModel, served, version_of
from gemmaspec.measure.servers.dummy import RATE, draws_lots, dummy_overrides
from gemmaspec.measure.stream import Broken
from gemmaspec.run.engine.server import Server, server_at
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.attention import Logged, logged
from gemmaspec.run.kept.stack_lock import StartProgress, this_command
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.machine import nvidia
from gemmaspec.run.ready.failures import find_cause
from gemmaspec.run.ready.first_request import api_key_for
from gemmaspec.run.ready.logline import printable
from gemmaspec.run.ready.tracebacks import root_exception
from gemmaspec.serve import speedless
from gemmaspec.serve.decide import UpRequest
from gemmaspec.serve.down import down
from gemmaspec.serve.prepare import resolve
from gemmaspec.serve.up import up

_LOOK_S: Final = 30.0
OF_SERVER: Final = (
    *("attention_backend", "draft_backend", "graphs", "head_graphs", "images", "kv_cache_dtype", "linear_kernel"),
    "sampling",
)
"""What a row says of the server that it was measured on, where that is known."""


class Servers:
    """At most one server at a time."""

    def __init__(
        self,
        asked: Asked,
        loaded: Loaded,
        progress: StartProgress,
        *,
        running: bool = False,
        url: str | None = None,
        dummy: bool = False,
    ) -> None:
        """`asked` names the profile as it was typed."""
        self._asked, self._loaded, self._progress = asked, loaded, progress
        self._running, self._url, self._dummy = running, url, dummy
        self._arm: Arm | None = None
        self._server: Server | None = None
        self._model: ServedModel | None = None
        self._expected: Mapping[str, Any] = {}
        self._started = False
        self._before: Started | None = None
        """The options of the last start outside bench, which `restart` uses."""
        self.all_arms: tuple[Arm, ...] = ()
        self.facts: dict[str, Any] = {}
        """What each arm ran (plan, image, versions and models), by the arm's name."""

    @functools.cached_property
    def machine(self) -> dict[str, Any]:
        """The machine that is measured, as read: null for what could not be, as behind --url."""
        gpus = () if self._url or self._loaded.profile.nodes > 1 else nvidia.gpus()
        named = self._loaded.profile.machine
        if not self._url and not MACHINES[named].gpus:
            without = named
        else:
            without = None
        return {
            "machine": machine_of(gpus[0].name) if gpus else without,
            "gpu": [gpu.name for gpu in gpus] or None,
            "driver": gpus[0].driver if gpus else None,
        }

    @property
    def common(self) -> dict[str, Any]:
        """What every row says of where it was measured."""
        machine = self.machine
        versions = [fact["vllm"] for fact in self.facts.values() if fact.get("vllm")]
        spec = self._loaded.profile.speculative
        by_lot = self._dummy and draws_lots(self._loaded.profile)
        synthetic = bool(spec and (by_lot or spec.rejection_sample_method == "synthetic"))
        common: dict[str, Any] = {"machine": machine["machine"]}
        if not self._url:
            common["target"] = self._loaded.profile.target.model
        if machine["gpu"]:
            common["gpu"] = machine["gpu"][0]
        if not self._url:
            common |= resolved_of(self._loaded.profile).parallel.keys()
        if versions:
            common["vllm"] = versions[0]
        if synthetic:
            common["acceptance_by"] = "synthetic"
            if asked := self._asked_rates():
                common["acceptance_asked"] = asked
        if self._dummy:
            common["weights"] = "dummy"
        return common

    def _asked_rates(self) -> list[float]:
        """Return r_1 … r_k of synthetic acceptance where the profile sets them by position; none where by a length."""
        spec = self._loaded.profile.speculative
        if spec is None or spec.synthetic_acceptance_length is not None:
            return []
        if spec.rejection_sample_method == "synthetic":
            return list(spec.synthetic_acceptance_rates or ())
        return [round(RATE**place, 4) for place in range(1, MAX_K + 1)]

    @property
    def limit(self) -> int | None:
        """Tokens of prompt and answer that the server takes; None where it does not say."""
        if self._model:
            return self._model.max_model_len
        return None

    def arms(self, wanted: Sequence[Arm]) -> tuple[Arm, ...]:
        """Return the arms that can be measured; a server that already runs has only one."""
        if not (self._running or self._url):
            self._refuse_running()
            self.all_arms = tuple(wanted)
            return self.all_arms
        speculates = self._find().speculates
        mine = [arm for arm in wanted if arm.alone != speculates][:1]
        if not mine:
            raise UsageError(
                f"the server {'speculates' if speculates else 'does not speculate'}, which does not match --k"
            )
        self.all_arms = tuple(mine)
        return self.all_arms

    def expect(self, facts: Mapping[str, Any]) -> None:
        """Remember what the arms ran when this run was started, because a resumed run must run the same."""
        self._expected = facts

    def serving(self, arm: Arm) -> tuple[Server, str | None]:
        """Return the arm's server, started if necessary, and the key for its requests."""
        if self._arm != arm:
            if self._running or self._url:
                self._server = self._find()
            else:
                self._server = self._start(arm)
            self._arm = arm
            key = _key(self._server, self._url)
            self._model = served(self._server, key)
            if self._url:
                self._server = dataclasses.replace(self._server, model=self._model.name)
            self._remember(arm, key)
        assert self._server
        return self._server, _key(self._server, self._url)

    def died(self, where: str, error: Broken) -> GemmaspecError:
        """Return the error for a server that failed while a cell was measured, with the cause from its log."""
        if self._url or not self._server:
            return GemmaspecError(f"{where}: {error.message}")
        what, lines = error.message, []
        with contextlib.suppress(GemmaspecError):
            started = stacks.find(self._server.name)
            engine = stacks.engine_of(started)
            state = engine.state(self._server)
            lines = list(engine.logs(self._server, tail=2000))
            if state.status != "running":
                if state.exit_code is None:
                    code = ""
                else:
                    code = f" with exit code {state.exit_code}"
                what = f"the server died while the cell was measured{code}"
        cause = find_cause(lines)
        root = root_exception(lines)
        problem = ""
        if cause:
            problem = cause.message
        elif root:
            problem = root.text
        why = f" ({printable(problem)[:300]})" if problem else ""
        return GemmaspecError(f"{where}: {what}{why}")

    def ran(self, arm: Arm) -> dict[str, Any]:
        """Return what a row says of its arm's server: the patches for speed, and what else is known of `OF_SERVER`."""
        facts = self.facts.get(arm.name, {})
        return {"patches": facts.get("patches"), **{name: facts[name] for name in OF_SERVER if name in facts}}

    def within(self, timeout_s: float) -> None:
        """Give the next start no more time than this."""
        self._asked = dataclasses.replace(self._asked, timeout_s=timeout_s)

    def close(self) -> None:
        """Stop what this run has started."""
        self._arm = self._server = None
        if self._started:
            name = self._loaded.profile.name
            with contextlib.suppress(GemmaspecError):
                if stacks.look(stacks.find(name)).status == "running":
                    self._progress.note(f"stopping {name}")
                down(name)
            if self._before:
                stacks.save(dataclasses.replace(self._before, outcome="stopped"))
            self._started = False

    def _refuse_running(self) -> None:
        """Raise UsageError if a server already runs under this name, because it belongs to somebody."""
        name = self._loaded.profile.name
        with contextlib.suppress(UsageError):
            self._before = stacks.find(name)
        before = self._before
        if before is None or (before.by is None and self._asked.replace):
            return
        with contextlib.suppress(EnvironmentMissing):
            if stacks.engine_of(before).state(before.server).status == "running":
                if before.by and not before.by.alive:
                    self._progress.note(f"stopping {name}, which {before.by} has left behind")
                    down(name)
                    return
                if before.by:
                    hint = f"gemmaspec down {name}    # ends that; or wait for it"
                    raise UsageError(f"{name} is being measured by {before.by}", hint=hint)
                raise UsageError(
                    f"{name} is already running, and {self._asked.COMMAND} needs to start its own server",
                    hint=self._instead(),
                )

    def _instead(self) -> str:
        if self._asked.COMMAND == "bench":
            return f"gemmaspec bench {self._asked.profile} --running    # measure it as it is; --replace stops it"
        return f"gemmaspec down {self._asked.profile}    # or --replace, which stops it"

    def _find(self) -> Server:
        if self._url:
            there = server_at(self._url, option="--url", name=self._loaded.profile.name)
            drafts = speculates(there, timeout_s=_LOOK_S, api_key=_key(there, self._url))
            return dataclasses.replace(there, speculates=drafts)
        started = stacks.find(self._loaded.profile.name)
        if stacks.engine_of(started).state(started.server).status != "running":
            raise UsageError(f"{started.server.name} is not running", hint=f"gemmaspec up {self._asked.profile}")
        return started.server

    def _start(self, arm: Arm) -> Server:
        self._progress.note(f"starting {self._loaded.profile.name}: {arm.said}")
        if self._asked.any_text:
            self._progress.note("accepting any first answer (--accept-any-text), because this server is only timed")
        overrides, note = self._asked.overrides, self._progress.note
        if self._dummy:
            stand_in = dummy_overrides(self._asked.profile, overrides, arm, note)
        else:
            stand_in = ()
        if self._before:
            hosts = self._before.options.hosts
        else:
            hosts = ()
        request = UpRequest(
            profile=self._asked.profile,
            overrides=(*overrides, *arm.overrides, *stand_in),
            no_spec=arm.alone,
            engine=self._asked.engine,
            hosts=hosts,
            timeout_s=self._asked.timeout_s,
            measured_by=this_command(self._asked.COMMAND),
            any_text=self._asked.any_text or self._dummy,
        )
        self._started = True
        return up(request, self._progress).started.server

    def _remember(self, arm: Arm, key: str | None) -> None:
        """Record what the arm runs. Raises DifferencesFound if it differs from the start of a resumed run."""
        name = arm.name
        facts = self._facts(arm, key)
        before = self._expected.get(name)
        if before is not None and before != facts:
            both = {**before, **facts}
            moved = next(key for key in both if before.get(key) != facts.get(key))
            raise DifferencesFound(
                f"{moved} of {arm} was {before.get(moved)!r} at the start of this run, and is {facts.get(moved)!r} now",
                hint="start a new run with another --out",
            )
        self.facts[name] = facts

    def _facts(self, arm: Arm, key: str | None) -> dict[str, Any]:
        assert self._server
        version = version_of(self._server, key)
        if self._url:
            return {"vllm": version, "url": self._url, "patches": None}
        started = stacks.find(self._server.name)
        loaded = load_profile(self._asked.profile, overrides=started.overrides, no_spec=started.no_spec)
        facts: dict[str, Any] = {"vllm": version, "engine": started.engine, "overrides": list(started.overrides)}
        facts |= {"images": known(resolved_of(loaded.profile).images) is not False}
        facts |= _kernels(started, loaded.profile)
        with contextlib.suppress(GemmaspecError, OSError):
            lock = resolve(loaded, started.engine)
            facts |= {"lock": dict(lock.facts())}
        spec = loaded.profile.speculative
        if spec and arm.method != NONE:
            facts |= {"speculative": spec.model_dump(exclude_none=True)}
        facts |= {"serve": loaded.profile.serve.model_dump(exclude_none=True, exclude={"port", "bind"})}
        return facts


def _kernels(started: Started, profile: Profile) -> dict[str, Any]:
    """Return the patches for speed that a server has, why others are left out, and what it logged of its speed."""
    facts: dict[str, Any] = {"patches": None}
    with contextlib.suppress(GemmaspecError):
        engine = stacks.engine_of(started)
        report = engine.report(started.server)
        if report is not None:
            facts["patches"] = list(speedless.in_report(report))
            left_out = {row["patch"]: row["detail"] for row in report["patches"] if row["state"] == LEFT_OUT}
            if left_out:
                facts["left_out"] = left_out
        facts |= _of_log(logged(engine.logs(started.server)), profile)
    return facts


def _of_log(of_log: Logged, profile: Profile) -> dict[str, Any]:
    """Return what a server's log says of its speed, as far as it says it; what the profile asks for goes first."""
    asked, spec = profile.serve.attention_backend, profile.speculative
    # vLLM logs the target's backend first, and the draft's only where it is another one
    if asked:
        named = [asked.upper()]
    else:
        named = list(of_log.backends[:1])
    if spec and spec.attention_backend:
        heads = [spec.attention_backend.upper()]
    else:
        heads = list(of_log.backends[1:2])
    modes = as_logged(resolved_of(profile), of_log.mode or "", eager_draft=of_log.eager_draft)
    known = {
        "attention_backend": next(iter(named), None),
        "graphs": GRAPH_MODES.get(modes.target),
        "kv_cache_dtype": of_log.kv_cache,
        "linear_kernel": of_log.linear_kernel,
        "sampling": of_log.sampling,
    }
    if profile.draft:
        known["draft_backend"] = next(iter(heads or named), None)
    if profile.draft and of_log.mode:
        known["head_graphs"] = GRAPH_MODES.get(modes.draft or "")
    return {name: value for name, value in known.items() if value is not None}


def _key(server: Server, url: str | None) -> str | None:
    if url:
        return os.environ.get("VLLM_API_KEY") or None
    return api_key_for(server)
