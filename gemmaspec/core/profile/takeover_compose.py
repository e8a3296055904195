"""A Compose service that runs vLLM, as keys of a profile. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

from gemmaspec.core import strict_yaml
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.foreign_words import COMPOSE_FILE, foreign_file
from gemmaspec.core.profile.takeover import ADOPT, TakenOver, variable
from gemmaspec.core.profile.takeover_docker import INSTEAD, address, gpus, mount, option, port, volume
from gemmaspec.core.profile.takeover_shell import arguments

_HELD: Final = re.compile(r"\$(?:\$|\{([A-Za-z_]\w*)(?::?-([^}]*)|:?\?[^}]*)?\}|([A-Za-z_]\w*))")
"""$$ for a $ of the shell, ${NAME}, ${NAME:-default}, ${NAME:?message} and $NAME."""
_SILENT: Final = (
    "image", "command", "entrypoint", "environment", "ports", "volumes", "deploy", "container_name", "hostname",
    "stdin_open", "tty", "pull_policy", "labels",
)  # fmt: skip
_OPTIONS: Final = {
    "ipc": "--ipc", "shm_size": "--shm-size", "user": "--user", "read_only": "--read-only", "restart": "--restart",
    "stop_grace_period": "--stop-timeout", "gpus": "--gpus",
}  # fmt: skip
_SERVES: Final = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\b")
_IMAGE: Final = re.compile(r"(?:^|[-_/])vllm(?:[-_].*)?")
_NOT_A_SERVER: Final = re.compile(r"router|webui|bench|exporter|proxy|gateway|dashboard")


def from_compose(
    content: bytes,
    *,
    file: str,
    service: str | None = None,
    configured: Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
    beside: Callable[[str], bytes | None] | None = None,
) -> TakenOver:
    """Return what a Compose file serves. Raises UsageError for a file without one service that runs vLLM.

    `service` names one of several. `configured` is what Docker Compose makes of the file, with its variables open;
    `variables` are those that Compose would fill in, and `beside` reads a file that the service names.
    """
    if (foreign := foreign_file(content.decode("utf-8-sig", "replace"))) and foreign[0] != COMPOSE_FILE:
        raise UsageError(f"{file} is {foreign[0]}", hint=foreign[1].format(file=shlex.quote(file)))
    document = strict_yaml.parse(content, file=file, error=UsageError, references=True).data
    whole = document if configured is None else configured
    if isinstance(whole, Mapping):
        services = whole.get("services")
    else:
        services = None
    if not isinstance(services, dict):
        raise UsageError(f"{file} has no services, so it is not a Compose file")
    filled = {name: _with_variables(one, variables or {}) for name, one in services.items()}
    name = _chosen(filled, file, service)
    made = TakenOver(contained=True, beside=beside)
    _settings(made, name, filled[name])
    if "include" in whole:
        made.leave("include", INSTEAD["include"])
    for other in services:
        if other != name:
            made.leave(f"services.{other}", "a profile is one server; keep others in a Compose file of their own")
    written = [*_words(filled[name].get("entrypoint")), *_words(filled[name].get("command"))]
    words = [_filled(word) for word in written]
    if not arguments(made, words):
        raise UsageError(f"{file}: services.{name} runs no `vllm serve` with a model", hint=ADOPT)
    return made


def _with_variables(value: Any, variables: Mapping[str, str]) -> Any:
    """Return a service with the variables that Compose would fill in; the others keep their form."""
    if isinstance(value, dict):
        return {key: _with_variables(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_variables(one, variables) for one in value]
    if not isinstance(value, str) or not variables:
        return value

    def of(match: re.Match[str]) -> str:
        held = variables.get(match[1] or match[3] or "")
        if held is None or match[0] == "$$":
            return match[0]
        return held.replace("$", "$$")

    return _HELD.sub(of, value)


def _chosen(services: Mapping[str, Any], file: str, asked: str | None) -> str:
    """Return the service to take. Raises UsageError where that is not clear."""
    maps = {name: service for name, service in services.items() if isinstance(service, dict)}
    if asked is not None:
        if asked not in maps:
            raise UsageError(f"{file} has no service {asked}; it has {', '.join(maps)}")
        return asked
    names = [name for name, service in maps.items() if runs_vllm(service)]
    if len(names) == 1:
        return names[0]
    if names:
        raise UsageError(
            f"{file}: {len(names)} services run vLLM: {', '.join(names)}; a profile serves one of them",
            hint=f"gemmaspec profile new NAME --from-compose {shlex.quote(file)} --service {names[0]}",
        )
    others = []
    for name, service in maps.items():
        image = " ".join(str(service.get("image", "built from a folder")).split())
        others.append(f"{name} ({image})")
    raise UsageError(
        f"{file}: no service runs vLLM, only {', '.join(others) or 'nothing'}", hint="gemmaspec profile list"
    )


def runs_vllm(service: Mapping[str, Any]) -> bool:
    """Return whether a service runs vLLM: by its command, else by its image's name."""
    words = [*_words(service.get("entrypoint")), *_words(service.get("command"))]
    if _SERVES.search(" ".join(words)):
        return True
    image = str(service.get("image", "")).partition("@")[0].rpartition("/")[2].partition(":")[0]
    return _IMAGE.search(image) is not None and not _NOT_A_SERVER.search(image)


def _settings(made: TakenOver, name: str, service: Mapping[str, Any]) -> None:
    if image := service.get("image"):
        made.content["image"] = _filled(str(image))
    for key, value in service.items():
        if key in _OPTIONS and isinstance(value, str | int):
            option(made, _OPTIONS[key], _filled(str(value)))
        elif key not in _SILENT and not _is_composes_own(key, value):
            made.leave(f"services.{name}.{key}", INSTEAD.get(key, "has no key in a profile"))
    _environment(made, service.get("environment"))
    for entry in _list(service.get("ports")):
        _port(made, entry)
    for entry in _list(service.get("volumes")):
        if isinstance(entry, dict):
            mount(made, _filled(str(entry.get("source", ""))), str(entry.get("target", "")))
        else:
            volume(made, _filled(re.sub(r"\$\{?PWD\}?", ".", str(entry))))
    _gpus(made, service)


def _is_composes_own(key: str, value: Any) -> bool:
    """Return whether Compose itself wrote a key: the default network, and the names of a file's parts."""
    return (key == "networks" and value in ({"default": None}, {"default": {}})) or key == "profiles" or value is None


def _port(made: TakenOver, given: Any) -> None:
    if not isinstance(given, dict):
        port(made, _filled(str(given)))
        return
    port(made, _filled(f"{given.get('published', '')}:{given.get('target', '')}"))
    if given.get("host_ip"):
        address(made, str(given["host_ip"]))


def _environment(made: TakenOver, given: Any) -> None:
    pairs = given.items() if isinstance(given, dict) else (str(pair).partition("=")[::2] for pair in _list(given))
    for name, value in pairs:
        held_value = _HELD.fullmatch(str(value))
        held = value in (None, "") or (held_value is not None and held_value[0] != "$$" and held_value[2] is None)
        variable(made, str(name), None if held else _filled(_text(value)))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _gpus(made: TakenOver, service: Mapping[str, Any]) -> None:
    """Take over `deploy.resources.reservations.devices`, and name the rest of `deploy`."""
    section: Any = service
    for key in ("deploy", "resources", "reservations", "devices"):
        for other in section if isinstance(section, dict) and section is not service else ():
            if other not in ("resources", "reservations", "devices"):
                made.leave(f"deploy: {other}", "has no key in a profile")
        if isinstance(section, dict):
            section = section.get(key)
        else:
            section = None
    for device in _list(section):
        if isinstance(device, dict) and isinstance(device.get("device_ids"), list):
            gpus(made, f"device={','.join(map(str, device['device_ids']))}")
        elif isinstance(device, dict) and "count" in device:
            gpus(made, str(device["count"]))


def _words(command: Any) -> list[str]:
    if isinstance(command, str):
        try:
            return shlex.split(command)
        except ValueError as error:
            raise UsageError(f"the command of the service: {error}: check its quotes") from None
    return [_text(word) for word in _list(command)]


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []


def _filled(text: str) -> str:
    """Return text with the defaults of its variables; one without a default stays, and is named later."""

    def filled(match: re.Match[str]) -> str:
        if match[0] == "$$":  # Compose's way to write one
            return "$"
        if match[2] is None:
            return match[0]
        return match[2]

    return _HELD.sub(filled, text)
