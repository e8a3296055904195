"""compose.yaml of a stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jinja2
import yaml

from gemmaspec import __version__, data
from gemmaspec.profile.machines import MACHINES
from gemmaspec.profile.model import Caches, Profile
from gemmaspec.stack.paths import IN_CONTAINER, SPECULATIVE_FILE, container_paths, is_local
from gemmaspec.stack.quote import comment, compose_block, compose_folder, compose_string
from gemmaspec.stack.serve import serve_command

CACHE: Final = "/var/tmp"  # noqa: S108 - in the container
"""The mount point of the caches. Images have this folder with mode 1777, and a new named volume copies the mode, so
that a server without root can write there too."""
HF_HOME: Final = f"{CACHE}/huggingface"
OFFLINE: Final = "HF_HUB_OFFLINE"
"""Passed on from the shell like a secret, because access to the Hub is not a property of a profile."""
RUN_DIR: Final = "/run/gemmaspec"

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
    target: str
    text: str


def compose_yaml(profile: Profile, files: Mapping[str, str], *, single_file: bool) -> str:
    """Return the text of compose.yaml; `files` are the stack's other files by name.

    `single_file` includes them as inline configs. Docker cannot copy those into a container with a read-only root, so
    the root stays writable in that case.
    """
    inline = [InlineFile(name=_config_name(name), target=f"{IN_CONTAINER}/{name}", text=text)
              for name, text in files.items()] if single_file else []  # fmt: skip
    mounts = _mounts(profile, single_file=single_file)
    text = _template().render(
        gemmaspec=__version__,
        name=profile.name,
        summary=profile.summary,
        project=f"gemmaspec-{profile.name}",
        image=profile.image,
        entrypoint=launcher_command(profile),
        command=serve_command(profile, container_paths(profile)),
        environment={**CACHE_ENVIRONMENT, **profile.env},
        pass_env=[name for name in dict.fromkeys((*profile.pass_env, OFFLINE)) if name not in _settled(profile)],
        api_key="VLLM_API_KEY" in profile.pass_env,
        bind=f"[{profile.serve.bind}]" if ":" in profile.serve.bind else profile.serve.bind,
        port=profile.serve.port,
        mounts=mounts,
        volumes=[mount.source for mount in mounts if mount.type == "volume"],
        single_file=single_file,
        configs=inline,
        read_only=profile.container.read_only and not single_file,
        user=profile.container.user,
        ipc=profile.container.ipc,
        shm_size=profile.container.shm_size,
        gpus=MACHINES[profile.machine].gpus,
        devices=profile.devices,
        health=_health(profile),
        restarts=profile.container.restarts,
        stop_grace_seconds=profile.container.stop_grace_seconds,
    )
    _check(text, profile, inline)
    return text


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data.COMPOSE),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML, not HTML: every value goes through the filter q
    )
    environment.filters |= {"q": compose_string, "block": compose_block, "comment": comment}
    return environment.get_template("compose.yaml.j2")


def _settled(profile: Profile) -> set[str]:
    """Return the variables that have their own line in the template."""
    return {"VLLM_API_KEY", *profile.env}


def launcher_command(profile: Profile) -> list[str]:
    """Return the launcher's own words, up to the `--` after which the server's command stands."""
    words = [profile.container.python, f"{IN_CONTAINER}/launch.py", "--plan", f"{IN_CONTAINER}/plan.json"]
    words += ["--run-dir", RUN_DIR, "--cache-dir", f"{CACHE}/gemmaspec"]
    if profile.speculative:
        words += ["--speculative-config", f"{IN_CONTAINER}/{SPECULATIVE_FILE}"]
    return [*words, "--"]


def _health(profile: Profile) -> list[str]:
    url = f"http://127.0.0.1:{profile.serve.port}/health"
    return [
        "CMD",
        profile.container.python,
        "-c",
        f"import urllib.request as r; r.urlopen({url!r}, timeout=8)",
    ]


def _mounts(profile: Profile, *, single_file: bool) -> list[Mount]:
    """Return the mounts. A single file may run on another machine, so it has no folders of this one for the caches."""
    caches = Caches() if single_file else profile.caches
    mounts = [_cache(caches.compile)]
    if caches.huggingface:
        mounts.append(Mount(type="bind", source=compose_folder(caches.huggingface), target=HF_HOME))
    if not single_file:
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


def _config_name(file: str) -> str:
    return file.replace(".", "-")


def _check(text: str, profile: Profile, inline: list[InlineFile]) -> None:
    """Read the rendered text again and check that YAML returns the profile's values."""
    document: dict[str, Any] = yaml.load(text, Loader=_LOADER)  # noqa: S506 - our own text, by a safe loader
    command = [word.replace("$$", "$") for word in document["services"]["vllm"]["command"]]
    assert command == list(serve_command(profile, container_paths(profile))), "a quoting error"
    for file in inline:
        assert document["configs"][file.name]["content"].replace("$$", "$") == file.text, file.name
