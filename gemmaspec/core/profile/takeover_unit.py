"""A unit of systemd, or a quadlet of Podman, as keys of a profile. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.takeover import TakenOver, variable
from gemmaspec.core.profile.takeover_docker import INSTEAD, image_name, option
from gemmaspec.core.profile.takeover_shell import Scope, arguments, shell

_UNIT: Final = re.compile(r"^\[(?:Service|Container)\][ \t]*$", re.MULTILINE)
_ROW: Final = re.compile(r"([A-Za-z]+)[ \t]*=[ \t]*(.*)", re.DOTALL)
_OPTIONS: Final = {
    "Volume": "-v", "Mount": "--mount", "PublishPort": "-p", "ShmSize": "--shm-size", "Network": "--network",
    "Ulimit": "--ulimit", "AddCapability": "--cap-add", "EnvironmentFile": "--env-file",
}  # fmt: skip
"""Keys of a quadlet → the option of `podman run` that each is."""
_QUIET: Final = frozenset(
    {"ContainerName", "HostName", "Label", "Annotation", "AutoUpdate", "Pull", "Notify", "RunInit", "Timezone"}
    | {"SecurityLabelDisable", "LogDriver"}
)
_GPU: Final = re.compile(r"nvidia\.com/gpu=(.+)")


def is_unit(text: str) -> bool:
    """Return whether a text is a unit with a service or a container."""
    return _UNIT.search(text) is not None


def from_unit(text: str, beside: Callable[[str], bytes | None] | None = None) -> TakenOver:
    """Return what a unit serves; `beside` reads a file that it names. Raises UsageError for one that runs no vLLM."""
    rows = list(_rows(text))
    made = TakenOver(beside=beside)
    variables: dict[str, str] = {}
    for _, key, value in rows:
        if key == "Environment":
            variables |= _pairs(value)
    for name, value in variables.items():
        variable(made, name, value)
    sections = {section for section, _, _ in rows}
    if "Container" in sections:
        served = _container(made, rows)
    else:
        served = _service(made, rows, variables)
    if not served:
        raise UsageError(
            "this unit does not serve with vLLM", hint="systemctl cat UNIT    # give the unit whose Exec serves"
        )
    return made


def _service(made: TakenOver, rows: list[tuple[str, str, str]], variables: dict[str, str]) -> bool:
    """Take over [Service]: the command of ExecStart, with the variables of Environment."""
    served = False
    for section, key, value in rows:
        if section == "Service" and key == "ExecStart":
            served = shell(made, value.lstrip("-@:+!"), Scope(variables=dict(variables))) or served
        elif section == "Service" and key.startswith("Exec"):
            made.leave(f"{key}={value.split(' ')[0]} …", "gemmaspec up starts the server itself")
        elif section == "Service" and key == "EnvironmentFile":
            option(made, "--env-file", value)
    return served


def _container(made: TakenOver, rows: list[tuple[str, str, str]]) -> bool:
    """Take over [Container]: an image, the options of `podman run`, and the words of Entrypoint and Exec."""
    made.contained = True
    entrypoint: list[str] = []
    words: list[str] = []
    for section, key, value in rows:
        if section != "Container" or key in _QUIET or key == "Environment":
            continue
        if key == "Image":
            made.content["image"] = image_name(value)
        elif key == "Entrypoint":
            entrypoint = _split(value)
        elif key == "Exec":
            words = _split(value)
        elif key == "Secret":
            made.leave(f"Secret={value.partition(',')[0]}", INSTEAD["secrets"])
        elif key == "AddDevice":
            _device(made, value)
        elif key in _OPTIONS:
            option(made, _OPTIONS[key], value)
        elif key == "User":
            option(made, "--user", value)
        elif key == "ReadOnly":
            option(made, "--read-only", value)
        elif key == "PodmanArgs":
            _arguments_of_podman(made, _split(value))
        else:
            made.leave(f"{key}={value.split(' ')[0]}", "has no key in a profile")
    return arguments(made, [*entrypoint, *words])


def _device(made: TakenOver, value: str) -> None:
    """Take over the GPUs of AddDevice=nvidia.com/gpu=all."""
    gpu = _GPU.fullmatch(value)
    if gpu is None:
        option(made, "--device", value)
    elif gpu[1] != "all":
        option(made, "--gpus", f"device={gpu[1]}")


def _arguments_of_podman(made: TakenOver, words: list[str]) -> None:
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        option(made, name, value)


def _rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of each line; a line that ends with a backslash goes on."""
    section = ""
    joined = re.sub(r"\\[ \t]*\r?\n[ \t]*", " ", text)
    for line in (line.strip() for line in joined.splitlines()):
        if head := re.fullmatch(r"\[([A-Za-z]+)\]", line):
            section = head[1]
        elif line and line[0] not in "#;" and (row := _ROW.fullmatch(line)):
            yield section, row[1], row[2].replace("%h", "~").replace("%%", "%")


def _pairs(value: str) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in _split(value) if "=" in word)


def _split(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        raise UsageError(f"a unit's line: {error}: check its quotes") from None
