"""Options of `docker run` and a service's settings as keys of a profile. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.foreign_words import by_word
from gemmaspec.core.profile.takeover import NVIDIA_ALONE, TakenOver, variable

_HF_HOME: Final = re.compile(r"/(?:root|home/[^/]+|\.cache|data)?/?(?:\.cache/)?huggingface(?:/hub)?/?")
_COMPILED: Final = re.compile(r"/(?:root|home/[^/]+)/(?:\.cache/(?:vllm|triton|torch|flashinfer)|\.triton)/?")
_DRIVER: Final = re.compile(r"/lib(?:cuda|nvidia|nv)[\w.-]*\.so[\d.]*$")
INSTALLED: Final = re.compile(r"/(?:dist|site)-packages/vllm/|/vllm-workspace/vllm/")
"""A file of vLLM itself, in a container."""
_FOLDER: Final = ("/", "~", "./", "../")
_QUIET: Final = frozenset(
    {"-d", "--detach", "--rm", "-i", "--interactive", "-t", "--tty", "--init", "-q", "--quiet", "--sig-proxy"}
    | {"--disable-content-trust", "--replace"}
)
_ALONE: Final = frozenset(
    {*_QUIET, "--privileged", "-P", "--publish-all", "--no-healthcheck", "--oom-kill-disable", "--read-only"}
    | {"--use-api-socket", "--help"}
)
"""Options of `docker run` without a value; all others have one."""
_NOT_NEEDED: Final = _QUIET | {"--name", "--pull", "--hostname", "-h"}
_ROWS: Final = json.loads(Path(__file__).with_name("takeover.json").read_text(encoding="utf-8"))
INSTEAD: Final[Mapping[str, str]] = by_word(_ROWS)
"""What has no key that can be set mechanically → what there is instead."""


def docker_run(made: TakenOver, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take over the options of `docker run`; return the words of its entrypoint, and those after the image.

    Raises UsageError where it names no image.
    """
    made.contained = True
    rest, entrypoint = list(words), []
    while rest and rest[0].startswith("-") and rest[0] != "--":
        for name, value in _options(rest):
            if name == "--entrypoint":
                entrypoint = value.split()
            else:
                option(made, name, value)
    if not rest:
        raise UsageError("docker run names no image")
    made.content["image"] = image_name(rest[0])
    return entrypoint, rest[1:]


def _options(rest: list[str]) -> Iterator[tuple[str, str]]:
    """Take one word of options off the front, with the value behind it, and yield each option of it."""
    word = rest.pop(0)
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        yield name, value if equals or name in _ALONE or not rest else rest.pop(0)
        return
    for index, letter in enumerate(word[1:], start=1):  # -itp 8000:8000 and -p8000:8000
        if f"-{letter}" not in _ALONE:
            value = word[index + 1 :].removeprefix("=")
            yield f"-{letter}", value or (rest.pop(0) if rest else "")
            return
        yield f"-{letter}", ""


def image_name(text: str) -> str:
    """Return an image without what launchers write before it: docker://, and # for the first slash."""
    return re.sub(r"^[a-z-]+://", "", text).replace("#", "/", 1)


def option(made: TakenOver, name: str, value: str) -> None:
    """Take over an option of `docker run`."""
    if name in ("-e", "--env"):
        key, equals, text = value.partition("=")
        variable(made, key, text if equals and not text.startswith("$") else None)
    elif name in _TAKEN:
        _TAKEN[name](made, value)
    elif name == "--device" and re.search(r"/dev/(?:kfd|dri|davinci|accel)", value):
        made.leave(f"docker run {name} {value}", NVIDIA_ALONE)
    elif name not in _NOT_NEEDED:
        instead = INSTEAD.get(name.lstrip("-"), "has no key in a profile")
        made.leave(f"docker run {name}", instead)


def volume(made: TakenOver, text: str) -> None:
    """Note a mounted folder: a cache becomes a key, a model's folder is found when the model is known."""
    source, _, rest = text.partition(":")
    mount(made, source, rest.partition(":")[0])


def mount(made: TakenOver, source: str, inside: str) -> None:
    """Note that a folder or file of this machine is mounted."""
    source = re.sub(r"^\$\{?HOME\}?", "~", source)
    shown = f"volume {source}:{inside}"
    is_cache = _HF_HOME.fullmatch(inside) is not None
    if not inside or not source:
        made.leave(f"volume {source or inside}", "caches: names the folders that outlive the container")
    elif source.startswith("$"):
        made.leave(shown, "nothing sets it: write the folder under caches, or in target.model")
    elif not source.startswith(_FOLDER):
        if is_cache:
            way = "caches.huggingface: /FOLDER takes over a folder"
        else:
            way = "caches: names folders"
        made.leave(shown, f"gemmaspec keeps all caches in one volume of its own; {way}")
    elif is_cache:
        made.cached[inside] = source
        made.put(
            "caches", "huggingface", source.removesuffix("/hub") if inside.rstrip("/").endswith("/hub") else source
        )
    elif _COMPILED.fullmatch(inside):
        made.decide(shown, "gemmaspec keeps compiled kernels in a volume of its own; caches.compile names a folder")
    elif _DRIVER.search(inside):
        made.leave(shown, "a library of the driver; NVIDIA's container toolkit mounts those of this machine")
    elif INSTALLED.search(inside):
        made.leave(shown, "a changed file of vLLM is a patch: gemmaspec patch import")
    else:
        made.mounts[inside] = source


def _mounted(made: TakenOver, text: str) -> None:
    """Take over --mount type=bind,source=…,target=…"""
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    source = parts.get("source") or parts.get("src", "")
    target = parts.get("target") or parts.get("destination") or parts.get("dst", "")
    mount(made, source, target)


def port(made: TakenOver, text: str) -> None:
    """Take over a published port."""
    parts = text.partition("/")[0].replace("[::]", "").split(":")
    if len(parts) > 1 and re.fullmatch(r"[0-9]{1,5}", parts[-2]) and "port" not in made.content.get("serve", {}):
        made.put("serve", "port", int(parts[-2]))
        made.published = True
        if len(parts) == 3 and parts[0]:
            address(made, parts[0])
    else:
        made.leave(f"port {text}", "serve.port is the one port on this machine")


def address(made: TakenOver, bind: str) -> None:
    """Take over the address that a port is published on; other machines need a key."""
    made.put("serve", "bind", bind)
    if bind not in ("127.0.0.1", "::1"):
        variable(made, "VLLM_API_KEY", None)
        made.decide(f"address {bind}", "other machines reach it, so it asks for a key: export VLLM_API_KEY=…")


def gpus(made: TakenOver, text: str) -> None:
    """Take over the GPUs that a container sees."""
    devices = re.fullmatch(r"\"?device=([0-9]{1,4}(?:,[0-9]{1,4})*)\"?", text)
    if devices:
        made.content["devices"] = [int(device) for device in devices[1].split(",")]
    elif text not in ("all", "-1"):
        made.leave(f"gpus {text}", "devices: [0, 1] names them by the index of nvidia-smi")


def _seconds(made: TakenOver, value: str) -> None:
    match = re.fullmatch(r"(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s?)?", value)
    if match and value:
        made.put("container", "stop_grace_seconds", int(match[1] or 0) * 60 + int(match[2] or 0))
    else:
        made.leave(f"stop after {value}", "container.stop_grace_seconds takes seconds")


def _restart(made: TakenOver, value: str) -> None:
    match = re.fullmatch(r"on-failure:([0-9]{1,2})", value)
    if match:
        made.put("container", "restarts", int(match[1]))
    else:
        made.leave(f"restart {value}", INSTEAD["restart"])


def _for(key: str) -> Callable[[TakenOver, str], None]:
    return lambda made, value: made.put("container", key, value)


def _shm(made: TakenOver, value: str) -> None:
    made.put("container", "shm_size", re.sub(r"(?<=[0-9])([kmg])i?b?$", r"\1b", value.lower()))


def _read_only(made: TakenOver, value: str) -> None:
    made.put("container", "read_only", value.lower() not in ("false", "0"))


_TAKEN: Final[Mapping[str, Callable[[TakenOver, str], None]]] = {
    "-p": port, "--publish": port, "-v": volume, "--volume": volume, "--mount": _mounted, "--gpus": gpus,
    "--ipc": _for("ipc"), "--shm-size": _shm, "-u": _for("user"), "--user": _for("user"), "--read-only": _read_only,
    "--stop-timeout": _seconds, "--restart": _restart,
}  # fmt: skip
"""Options of `docker run` with a key."""
