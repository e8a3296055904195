"""Workers in a router that are not of its profile: named, written into the audit, and removed.

vllm-router takes `POST /add_worker` from anybody who reaches its port, a web page in a browser on this machine
included, and then sends prompts and the client's key there (0.1.17).
"""

from __future__ import annotations

from gemmaspec.checkpoint.fields import printable
from gemmaspec.deploy.kept import groups, stacks
from gemmaspec.deploy.kept.groups import Group
from gemmaspec.errors import GemmaspecError


def remove_strangers(group: Group, command: str) -> tuple[str, ...]:
    """Remove every stranger from a running router, and return a sentence for each. Raise GemmaspecError."""
    known = {groups.place_of(one.server, 0).url for name in group.members if (one := stacks.read_stack(name))}
    routing = group.router.routing
    return tuple(_removed(group, url, command) for url in routing.strangers(known))


def _removed(group: Group, url: str, command: str) -> str:
    shown = printable(url)
    try:
        group.router.routing.evict(url)
        result = "removed"
    except GemmaspecError as error:
        result = f"still there: {error.message}"
    groups.write_audit(group.name, command, f"stranger {shown}", result)
    return (
        f"{shown} was in the router of {group.name}, which has no such replica; {result}. Prompts, and the keys sent "
        "with them, may have gone there: change the keys, and use router: {kind: haproxy}"
    )
