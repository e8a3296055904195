"""What runs, a container or a process, as keys of a profile. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.takeover import TakenOver, variable
from gemmaspec.core.profile.takeover_docker import INSTALLED, mount, option
from gemmaspec.core.profile.takeover_shell import serve
from gemmaspec.core.releases.facts import known_variables

_OF_SERVERS: Final = re.compile(
    r"(?:VLLM|HF|HUGGING_?FACE|CUDA|NCCL|NVIDIA|PYTORCH|TORCH|TORCHINDUCTOR|TRITON|FLASHINFER|GLOO|OMP|MKL|TRANSFORMERS"
    r"|TOKENIZERS|SAFETENSORS|RAY|UCX|LD)_\w+|PYTHON\w+|TZ|TP_SOCKET_IFNAME"
)
"""Variables of a process that its server, PyTorch, CUDA, NCCL or the Hub's library reads. Others are its shell's."""
_OF_THE_SHELL: Final = frozenset({"PATH", "HOME", "SHELL", "USER", "PWD", "TMPDIR", "TERM", "LOGNAME", "VIRTUAL_ENV"})
_OF_AN_INTERPRETER: Final = frozenset({"PYTHON_VERSION", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"})
"""Variables that change nothing that is served."""
_PACKAGE: Final = re.compile(r".*/(?:dist|site)-packages/([A-Za-z0-9._]+)-([0-9][A-Za-z0-9.!+_]*)\.dist-info")
_SOURCE: Final = re.compile(r".*\.(?:py|json|jinja|so)")


@dataclass(frozen=True, kw_only=True)
class Container:
    """How a container was made."""

    image: str
    """The image's name, as the container was given it."""
    options: tuple[tuple[str, str], ...] = ()
    """The options of `docker run` that make the same container, each with its value."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Folder of this machine, or name of a volume → folder in the container."""
    moved: bool = False
    """Whether the image's name refers to another image today."""
    changed: tuple[str, ...] = ()
    """Files that were changed or added in the container after its image was made."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that somebody else started."""

    called: str
    """How it is named to a user, such as `container vllm-1` and `process 4711`."""
    argv: tuple[str, ...]
    """Its words. Those of a process are exact; nothing is left for a shell to fill in."""
    exact: bool
    """Whether `argv` is that of the process that serves, not what a container's shell makes it from."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it was given; of a container, without what its image sets."""
    container: Container | None = None
    """None for a process of this machine."""
    release: str | None = None
    """The vLLM in the process's own environment, if it was found."""
    python: str | None = None
    """The interpreter of the process."""


def from_running(running: Running, beside: Callable[[str], bytes | None] | None = None) -> TakenOver:
    """Return what a running server serves; `beside` reads a file that it names.

    Raises UsageError for one that does not serve a model with vLLM.
    """
    made = TakenOver(contained=running.container is not None, exact=running.exact, beside=beside)
    if running.container:
        _container(made, running.container)
        for name, value in running.environment.items():
            variable(made, name, value)
    else:
        _process(made, running)
    if not serve(made, running.argv):
        raise not_served(running.called, running.argv)
    return made


def not_served(called: str, argv: Sequence[str]) -> UsageError:
    """Return the error for what runs something else than vLLM; of its words, only the program's name is printed."""
    program = argv[0].rpartition("/")[2] if argv else "nothing"
    return UsageError(
        f"{called} does not serve with vLLM: it runs {program[:80]}",
        hint="docker ps    # or: pgrep -af 'vllm serve|vllm.entrypoints'",
    )


def _container(made: TakenOver, container: Container) -> None:
    made.content["image"] = container.image
    for name, value in container.options:
        option(made, name, value)
    for source, inside in container.mounts:
        mount(made, source, inside)
    if container.moved:
        made.leave(
            f"image {container.image}",
            "the name refers to another image today; docker inspect prints the digest of the one that runs",
        )
    for path in container.changed:
        _changed(made, path)


def _changed(made: TakenOver, path: str) -> None:
    """Name a file of vLLM that differs from the image's, and pin a package that was installed after the image."""
    if INSTALLED.search(path) and _SOURCE.fullmatch(path):
        made.leave(f"{path} was changed in the container", "a changed file of vLLM is a patch: gemmaspec patch import")
    elif package := _PACKAGE.fullmatch(path):
        name = package[1].lower().replace("_", "-")
        if name == "vllm":
            made.leave(f"vllm {package[2]}, installed in the container", "image names the release of vLLM that runs")
        else:
            made.content.setdefault("runtime", {}).setdefault("packages", {})[name] = f"=={package[2]}"
            made.decide(f"{name} {package[2]}", "installed in the container after its image was made; runtime.packages")


def _process(made: TakenOver, running: Running) -> None:
    """Take over the variables that a server reads, and the release; a shell's other variables are counted alone."""
    of_vllm = known_variables()
    others = 0
    for name, value in running.environment.items():
        if name in _OF_AN_INTERPRETER:
            continue
        if name not in _OF_THE_SHELL and (name in of_vllm or _OF_SERVERS.fullmatch(name)):
            variable(made, name, value)
        else:
            others += 1
    if others:
        made.leave(
            f"{others} other variables of its shell", "neither vLLM nor PyTorch, CUDA, NCCL or the Hub reads them"
        )
    if running.release and re.fullmatch(r"[0-9]+(?:\.[0-9]+)+", running.release):
        made.release = running.release
        made.decide(f"vLLM {running.release}", f"the release of {running.python}; runtime.python serves with that one")
    elif running.release:
        made.leave(
            f"vLLM {running.release}", f"no released version; runtime.python: {running.python} serves with that build"
        )
