"""compose.yaml of a stack, and the only way to quote text in it: for YAML, with Compose's own `$` escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import yaml

from gemmaspec import __version__
from gemmaspec.core import data
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Caches, Profile
from gemmaspec.core.profile.replica import LOOPBACK, bound_environment
from gemmaspec.core.releases.facts import newest
from gemmaspec.run.stack import serve
from gemmaspec.run.stack.paths import IN_CONTAINER, PROBE_FILE, SPECULATIVE_FILE, is_local
from gemmaspec.run.stack.serve import Served

if TYPE_CHECKING:
    import jinja2
from gemmaspec.run.stack.quote import comment, compose_block, compose_folder, compose_string

CACHE: Final = "/var/tmp"  # noqa: S108 - in the container
"""The mount point of the caches. Images have this folder with mode 1777, and a new named volume copies the mode, so
that a server without root can write there too."""
HF_HOME: Final = f"{CACHE}/huggingface"
OFFLINE: Final = "HF_HUB_OFFLINE"
"""Passed on from the shell like a secret, because access to the Hub is not a property of a profile."""
RUN_DIR: Final = "/run/gemmaspec"
HEALTH_STATE: Final = f"{RUN_DIR}/health.json"
"""Where the health check keeps what it saw last; gone with the container's run."""
_ANSWER_S: Final = 15
"""How long the health check waits for a token of a server that has nothing to do."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

CACHE_ENVIRONMENT: Final = {
    "HF_HOME": HF_HOME,
    "HOME": f"{CACHE}/home",
    "VLLM_CACHE_ROOT": f"{CACHE}/vllm",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "FLASHINFER_WORKSPACE_BASE": f"{CACHE}/flashinfer",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/torchinductor",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Where a container's programs keep what outlives it, each in a folder of its own."""


def without_image(loaded: Loaded) -> ProfileError:
    """Return the error for a profile that names no image, where a container would run."""
    return ProfileError(
        f"{loaded.file}: image: is missing, but a container needs it",
        hint=f"--set image=vllm/vllm-openai:v{newest()}    # or --engine process, which needs none",
    )


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One volume or folder of the container; `source` is already quoted for Compose."""

    type: str
    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class InlineFile:
    """A file of the stack inside compose.yaml."""

    name: str
    service: str
    target: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What the container of one named machine has of its own."""

    command: Sequence[str]
    labels: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    host_network: bool = False
    """Whether the container uses the machine's network: one of several that are one server."""
    serves: bool = True
    """Whether requests are answered here: the API, and its key, belong to rank 0."""
    listens: str = LOOPBACK
    """The address on which they are."""
    health: Sequence[str] = ()
    """Docker's check of a container that answers none."""
    rdma: bool = False
    """Whether the container needs the machine's RDMA devices, and memory that stays in place for them."""


def compose_yaml(
    profile: Profile,
    files: Mapping[str, str],
    served: Served,
    *,
    single_file: bool = False,
    volume: bool = False,
    seat: Seat | None = None,
) -> str:
    """Return the text of compose.yaml; `files` are the stack's other files by name.

    `volume` expects them in a volume, for a daemon on another machine.

    `single_file` includes them as inline configs. Docker cannot copy those into a container with a read-only root, so
    the root stays writable in that case. With a `seat` the files are in a volume, into which `docker compose cp` brings
    them, and no folder of the machine is created. What may write to the volume starts nothing but this plan.
    """
    command = seat.command if seat else served.command
    passed, seated = dict.fromkeys((*profile.pass_env, OFFLINE)), seat.environment if seat else {}
    if single_file:
        inline = [_inline(name, text) for name, text in files.items()]
    else:
        inline = []
    mounts = _mounts(profile, single_file=single_file, volume=volume, seat=seat)
    volumes = [mount.source for mount in mounts if mount.type == "volume"]
    plan = plan_sha256(files) if volume or seat else None
    environment = {**container_environment(profile, served), **seated}
    pass_env = [name for name in passed if name not in {"VLLM_API_KEY", *profile.env}]
    serves = seat is None or seat.serves
    bind = f"[{profile.serve.bind}]" if ":" in profile.serve.bind else profile.serve.bind
    text = _template().render(
        gemmaspec=__version__,
        name=profile.name,
        summary=profile.summary,
        project=f"gemmaspec-{profile.name}",
        image=profile.image,
        entrypoint=launcher_command(profile, plan=plan),
        command=command,
        environment=environment,
        pass_env=pass_env,
        api_key=serves and "VLLM_API_KEY" in profile.pass_env,
        seat=seat,
        bind=bind,
        port=profile.serve.port,
        mounts=mounts,
        volumes=volumes,
        single_file=single_file,
        configs=inline,
        watch=_watch(profile),
        read_only=profile.container.read_only and not single_file,
        user=profile.container.user,
        ipc=profile.container.ipc,
        shm_size=profile.container.shm_size,
        gpus=MACHINES[profile.machine].gpus,
        devices=profile.devices,
        health=_health(profile, served, seat),
        restarts=_restarts(profile, seat),
        stop_grace_seconds=profile.container.stop_grace_seconds,
    )
    _check(text, command, inline)
    return text


def _health(profile: Profile, served: Served, seat: Seat | None) -> Sequence[str]:
    """Return Docker's check of the container: that of its seat, else a question to the server where it listens."""
    if seat is None:
        return health_check(profile, served.model, host=LOOPBACK)
    return seat.health or health_check(profile, served.model, host=seat.listens)


def _restarts(profile: Profile, seat: Seat | None) -> int:
    """Return how often Docker starts the server again that has exited.

    A rank that starts alone finds nobody: a server on several machines starts again as a whole, or not at all.
    """
    if seat and seat.host_network:
        return 0
    return profile.container.restarts


def container_environment(profile: Profile, served: Served) -> dict[str, str]:
    """Return the variables that a container's server has, without those that come from whoever starts it."""
    return {**CACHE_ENVIRONMENT, **profile.env, **bound_environment(profile), **served.environment}


@cache
def _template() -> jinja2.Template:
    import jinja2  # slow to import, and most commands write no stack

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data.COMPOSE),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML, not HTML: every value goes through the filter q
    )
    environment.filters |= {"q": compose_string, "block": compose_block, "comment": comment}
    return environment.get_template("compose.yaml.j2")


def plan_sha256(files: Mapping[str, str]) -> str:
    """Return the plan's own digest, of the files of a stack."""
    return str(json.loads(files["plan.json"])["sha256"])


def launcher_command(profile: Profile, *, plan: str | None = None) -> list[str]:
    """Return the launcher's own words, up to the `--` after which the server's command stands.

    With `plan`, a sha256, it starts nothing but this plan: the container can write to the volume that has it.
    """
    words = [profile.container.python, f"{IN_CONTAINER}/launch.py", "--plan", f"{IN_CONTAINER}/plan.json"]
    words += ["--run-dir", RUN_DIR, "--cache-dir", f"{CACHE}/gemmaspec"]
    if profile.speculative:
        words += ["--speculative-config", f"{IN_CONTAINER}/{SPECULATIVE_FILE}"]
    if plan:
        words += ["--expect-plan", plan]
    return [*words, "--"]


def probe_command(
    profile: Profile, model: str, proof: str, *, state: str, deadline_s: int, host: str = LOOPBACK
) -> list[str]:
    """Return the command of a probe, for Compose and for a pod; it finds the API key in its environment."""
    words = [profile.container.python, "-IS", f"{IN_CONTAINER}/{PROBE_FILE}", proof]
    words += [f"--port={profile.serve.port}", f"--model={model}", f"--state={state}", f"--deadline={deadline_s}"]
    words += [f"--host={host}"] if host != LOOPBACK else []
    if proof == "drafted" and profile.speculative:
        return [*words, "--speculates"]
    return words


def health_check(profile: Profile, model: str, *, host: str = LOOPBACK) -> list[str]:
    """Return Docker's check of a server that listens on `host`: a token, unless the counters have changed."""
    return ["CMD", *probe_command(profile, model, "answers", state=HEALTH_STATE, deadline_s=_ANSWER_S, host=host)]


def _mounts(profile: Profile, *, single_file: bool, volume: bool, seat: Seat | None) -> list[Mount]:
    """Return the mounts. What may run on another machine has no folders of this one for the caches."""
    if single_file or volume:
        caches = Caches()
    else:
        caches = profile.caches
    mounts = [_cache(caches.compile)]
    if caches.huggingface:
        mounts.append(Mount(type="bind", source=compose_folder(caches.huggingface), target=HF_HOME))
    if volume or seat:
        mounts.append(Mount(type="volume", source="stack", target=IN_CONTAINER))
    elif not single_file:
        mounts.append(Mount(type="bind", source=".", target=IN_CONTAINER, read_only=True))
    for role, part in (("target", profile.target), ("draft", profile.draft)):
        if part and is_local(part.model):
            source = compose_folder(part.model)
            mounts.append(Mount(type="bind", source=source, target=f"/models/{role}", read_only=True))
    return mounts


def _cache(folder: str | None) -> Mount:
    if folder:
        return Mount(type="bind", source=compose_folder(folder), target=CACHE)
    return Mount(type="volume", source="cache", target=CACHE)


def _inline(file: str, text: str) -> InlineFile:
    """Return a file of the stack at its place: those of the watch are in its own container."""
    watches = file.startswith(f"{serve.FOLDER}/")
    name = file.replace(".", "-").replace("/", "-")
    return InlineFile(
        name=name,
        service=serve.SERVICE if watches else "vllm",
        target=f"/{file}" if watches else f"{IN_CONTAINER}/{file}",
        text=text,
    )


def _watch(profile: Profile) -> dict[str, Any] | None:
    """Return what the template needs for the container of the watch; None for a profile without one."""
    if not profile.watch.container:
        return None
    return {
        "command": [profile.container.python, "-IB", serve.IN_CONTAINER],
        "folder": f"./{serve.FOLDER}",
        "target": serve.IN_CONTAINER,
        "shared": serve.SHARED,
        "user": serve.USER,
        "webhook": serve.WEBHOOK,
    }


def _check(text: str, wanted: Sequence[str], inline: list[InlineFile]) -> None:
    """Read the rendered text again and check that YAML returns the profile's values."""
    document: dict[str, Any] = yaml.load(text, Loader=_LOADER)  # noqa: S506 - our own text, by a safe loader
    command = [word.replace("$$", "$") for word in document["services"]["vllm"]["command"]]
    assert command == list(wanted), "a quoting error"
    for file in inline:
        assert document["configs"][file.name]["content"].replace("$$", "$") == file.text, file.name
