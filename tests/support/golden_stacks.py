"""Write the golden stacks of the tests: what every shipped profile renders. Read the diff before you commit it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Final

from gemmaspec.core import data
from gemmaspec.core.fleet.hosts import Host
from gemmaspec.core.launcher import ATTEST_FILES, ORIGINS_FILE
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.run.stack.build import Stack, build_stack, render_stack
from gemmaspec.run.stack.nodes import MASTER_PORT, rank_composes
from gemmaspec.run.stack.paths import container_paths
from gemmaspec.run.stack.serve import served_at

GOLDEN: Final = data.ROOT / "tests" / "golden"
_COPIES: Final = (
    *("launch.py", "rank_facts.py", "probe.py", "chat-template.jinja", ORIGINS_FILE),
    *ATTEST_FILES,
)
"""Files of a stack that are copies of the project's own."""


def hosts_of(nodes: int) -> list[Host]:
    """Return hosts for a profile with `nodes` machines: DGX Sparks with one cable, as NVIDIA's playbook names them."""
    return [
        Host(
            name=f"spark-{rank + 1}",
            docker=f"spark-{rank + 1}",
            address=f"192.168.100.{10 + rank}",
            interface="enp1s0f1np1",
            hca=("rocep1s0f1", "roceP2p1s0f1"),
        )
        for rank in range(nodes)
    ]


def stacks_of(loaded: Loaded, hosts: Sequence[Host], *, master_port: int = MASTER_PORT) -> Mapping[str, Stack]:
    """Return the stack of each host."""
    served = served_at(loaded.profile, container_paths(loaded.profile))
    files = render_stack(loaded, served, form="rank").files
    texts = rank_composes(loaded, served, hosts, files, master_port=master_port)
    return {host: Stack(profile=loaded.profile, files={"compose.yaml": text, **files}) for host, text in texts.items()}


def golden_files(loaded: Loaded) -> Mapping[str, str]:
    """Return the golden files of a profile by path; those of a host are in a folder of its name."""
    nodes = loaded.profile.nodes
    if nodes == 1:
        found = dict(build_stack(loaded, form="folder").files)
    else:
        stacks = stacks_of(loaded, hosts_of(nodes))
        found = {f"{host}/{name}": text for host, stack in stacks.items() for name, text in stack.files.items()}
    return {name: text for name, text in found.items() if name.rpartition("/")[2] not in _COPIES}


def main() -> None:
    """Replace the golden folder of every shipped profile."""
    for name in profile_names([data.PROFILES]):
        folder = GOLDEN / name
        shutil.rmtree(folder, ignore_errors=True)
        for path, text in golden_files(load_profile(name, folders=[data.PROFILES])).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
