"""A Compose service that runs vLLM, as keys of a profile. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gemmaspec import strict_yaml
from gemmaspec.errors import UsageError
from gemmaspec.profile.takeover import INSTEAD, TakenOver, from_words, gpus, option, port, variable, volume

_HELD: Final = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*))?\}?")
_SILENT: Final = ("image", "command", "environment", "ports", "volumes", "deploy", "container_name", "hostname")
_OPTIONS: Final = {"ipc": "--ipc", "shm_size": "--shm-size", "user": "--user"}


def from_compose(content: bytes, *, file: str) -> TakenOver:
    """Return what a Compose file serves. Raises UsageError for a file without one service that runs vLLM."""
    text = strict_yaml.read_text(content, file=file, error=UsageError)
    document = strict_yaml.parse(text, file=file, error=UsageError).data
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict):
        raise UsageError(f"{file} has no services, so it is not a Compose file")
    found = {name: one for name, one in services.items() if isinstance(one, dict) and "vllm" in str(one).lower()}
    if len(found) != 1:
        said = f"services that run vLLM: {', '.join(found)}" if found else "no service runs vLLM"
        raise UsageError(f"{file}: {said}; one profile serves one of them", hint="leave one in the file")
    ((name, service),) = found.items()
    made = TakenOver()
    if image := service.get("image"):
        made.content["image"] = _filled(made, str(image))
    for key, value in service.items():
        if key in _OPTIONS:
            option(made, _OPTIONS[key], _filled(made, str(value)))
        elif key not in _SILENT:
            made.leave(f"services.{name}.{key}", INSTEAD.get(key, "has no key in a profile"))
    _environment(made, service.get("environment"))
    for one in _list(service.get("ports")):
        port(made, _filled(made, str(one)))
    for one in _list(service.get("volumes")):
        volume(made, str(one))
    _gpus(made, service)
    for other in services:
        if other != name:
            made.leave(f"services.{other}", "a profile is one server; keep others in a Compose file of their own")
    from_words(made, [_filled(made, word) for word in _words(service.get("command"))])
    return made


def _environment(made: TakenOver, given: Any) -> None:
    pairs = given.items() if isinstance(given, dict) else (str(one).partition("=")[::2] for one in _list(given))
    for name, value in pairs:
        held = value in (None, "") or _HELD.fullmatch(str(value))
        variable(made, str(name), None if held else _filled(made, str(value)))


def _gpus(made: TakenOver, service: Mapping[str, Any]) -> None:
    """Take over `deploy.resources.reservations.devices`."""
    found: Any = service
    for key in ("deploy", "resources", "reservations", "devices"):
        found = found.get(key) if isinstance(found, dict) else None
    for device in _list(found):
        if isinstance(device, dict) and isinstance(device.get("device_ids"), list):
            gpus(made, f"device={','.join(map(str, device['device_ids']))}")


def _words(command: Any) -> Iterator[str]:
    if isinstance(command, str):
        yield from shlex.split(command)
    yield from (str(one) for one in _list(command))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _filled(made: TakenOver, text: str) -> str:
    """Return text with the defaults of its variables; a variable without one is noted."""

    def of(found: re.Match[str]) -> str:
        if found[2] is None:
            made.leave(f"${found[1]}", "a profile reads no variables: write the value")
        return found[2] if found[2] is not None else found[0]

    return _HELD.sub(of, text)
