"""The paths of a stack's models and files, as the server sees them.

The router's configuration, from a profile. Pure.

Checked against HAProxy 2.6, the first with `balance hash`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

from gemmaspec.core.profile.fields import LOCAL_PREFIXES
from gemmaspec.core.profile.model import MOST_REPLICAS, Policy, Profile

IN_CONTAINER: Final = "/gemmaspec"
"""The path of the stack folder in a container."""
_WORKSPACE: Final = "/vllm-workspace/"
"""Where vllm/vllm-openai has vLLM's examples (docker/Dockerfile, every release)."""
TEMPLATE_FILE: Final = "chat-template.jinja"
SPECULATIVE_FILE: Final = "speculative-config.json"
PROBE_FILE: Final = "probe.py"


@dataclass(frozen=True, kw_only=True)
class Paths:
    """The paths that a server sees: those on its command line, and of a process also its interpreter and its caches."""

    host: str
    """The address that vLLM itself listens on."""
    target: str
    draft: str | None
    template: str | None
    brings_template: bool = False
    """Whether the stack brings that template, which vLLM's image does not have."""
    python: str | None = None
    huggingface: str | None = None
    compile: str | None = None


def is_local(model: str) -> bool:
    """Return whether a model is a local folder rather than a Hugging Face id."""
    return model.startswith(LOCAL_PREFIXES)


def container_paths(profile: Profile) -> Paths:
    """Return the paths inside the container, in which local models are mounted under /models.

    The server listens on all addresses of the container, and the published port decides who can reach it; one rank of
    several has the machine's own network, and listens on `serve.bind`.
    """
    draft, in_image = profile.draft.model if profile.draft else None, template_in_image(profile)
    return Paths(
        host="0.0.0.0" if profile.nodes == 1 else profile.serve.bind,  # noqa: S104 - inside the container's own network
        target="/models/target" if is_local(profile.target.model) else profile.target.model,
        draft="/models/draft" if draft and is_local(draft) else draft,
        template=in_image or (f"{IN_CONTAINER}/{TEMPLATE_FILE}" if profile.chat.template else None),
        brings_template=bool(profile.chat.template) and not in_image,
    )


def template_in_image(profile: Profile) -> str | None:
    """Return the path of a chat template that vLLM's image brings; None for one of this machine, or none."""
    template = profile.chat.template or ""
    return template if profile.image and template.startswith(_WORKSPACE) and ".." not in template else None


def host_paths(profile: Profile, *, folder: Path, state: Path) -> Paths:
    """Return the paths on this machine, for the process engine."""
    own, caches = profile.runtime.python, profile.caches
    return Paths(
        host=profile.serve.bind,
        target=on_host(profile.target.model, state=state),
        draft=on_host(profile.draft.model, state=state) if profile.draft else None,
        template=str(folder / TEMPLATE_FILE) if profile.chat.template else None,
        python=own and on_host(own, state=state),
        huggingface=caches.huggingface and on_host(caches.huggingface, state=state),
        compile=caches.compile and on_host(caches.compile, state=state),
        brings_template=bool(profile.chat.template),
    )


def on_host(model: str, *, state: Path) -> str:
    """Return the path of a model's folder on this machine; a Hugging Face id stays unchanged."""
    if model.startswith("state:"):
        return str(state / model.removeprefix("state:"))
    return str(Path(model).expanduser()) if is_local(model) else model


BACKEND: Final = "replicas"
"""The name of HAProxy's backend; its servers are r1, r2 …"""
ADMIN_SOCKET: Final = "admin.sock"
"""HAProxy's runtime socket, in the router's folder, which only its owner can open."""
CONFIG_FILE: Final = "haproxy.cfg"
_FORM: Final = Path(__file__).with_name(CONFIG_FILE)
"""Its lines with set-var are for the policy `conversation`: how one is known, as long as its beginning stands in the
first 64 KiB. A message is a text or a list of parts; what follows the first one of a user changes from turn to turn."""
CONNECTIONS: Final = 1536
"""Clients' connections at once. Each takes two files, and 4,096 is the lowest hard limit that systems set."""
CONNECTIONS_OF_ONE: Final = 1024
"""Connections from one address, so that one client leaves room for others."""
REQUEST_S: Final = 10
"""How long a client may take to send a request's headers and the beginning of its body."""
_METRICS_CONNECTIONS: Final = 16

# Without hash-balance-factor: with it HAProxy 2.6.12 answered 503 for all requests after one of two replicas had died.
_BALANCE: Final[dict[Policy, tuple[str, ...]]] = {
    "conversation": ("balance hash var(txn.conversation)", "hash-type consistent"),
    "leastconn": ("balance leastconn",),
    "round_robin": ("balance roundrobin",),
}


def haproxy_config(*, bind: str, port: int, metrics_port: int, policy: Policy, first_port: int) -> str:
    """Return haproxy.cfg. Every replica that there could be has a place, which is out of service until it is added.

    A request goes to another replica only if the first one refused the connection and so has read nothing of it: one
    that ends a server would otherwise end all of them. A connection to a replica carries one request, because vLLM
    closes an idle one after 5 s, and a request sent at that moment would be lost. `first_port` is that of replica 1.
    """
    servers = (f"server r{index} 127.0.0.1:{first_port + index - 1} disabled" for index in range(1, MOST_REPLICAS + 1))
    lines = _FORM.read_text(encoding="utf-8").splitlines(keepends=True)
    form = "".join(line for line in lines if policy == "conversation" or "set-var(" not in line)
    return Template(form).substitute(
        address=f"[{bind}]" if ":" in bind else bind,
        port=port,
        metrics_port=metrics_port,
        socket=ADMIN_SOCKET,
        backend=BACKEND,
        request_s=REQUEST_S,
        connections=CONNECTIONS,
        connections_of_one=CONNECTIONS_OF_ONE,
        metrics_connections=_METRICS_CONNECTIONS,
        all_connections=CONNECTIONS + _METRICS_CONNECTIONS,
        balance="\n".join(f"    {line}" for line in _BALANCE[policy]),
        servers="\n".join(f"    {line}" for line in servers),
    )
