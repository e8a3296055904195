"""Says where this Python would import modules from, asked by origins.py before a server starts; imports none of them.

The launcher runs it with the server's interpreter, flags and environment. It reads {"script", "modules"} from stdin and
prints its answer as one line. Each import here delays every start, so there are three. Standard library, Python 3.10+.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False  # importing typing takes as long as the rest
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

ANSWER = "gemmaspec-origins:"  # begins the line of the answer; other lines are whatever the interpreter prints itself
GROUPS = "vllm."  # every group of entry points that vLLM loads in its processes begins so
PATH_FINDER = "PathFinder"


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return where each module would be imported from, this Python's flags, and vLLM's entry points of others."""
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = os.path.dirname(os.path.realpath(question["script"]))
    elif sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]
    site = next((one.gemmaspec for one in sys.meta_path if hasattr(one, "gemmaspec")), None)
    other = getattr(sys.modules.get("sitecustomize"), "__file__", None)
    flags = {name: getattr(sys.flags, name) for name in ("isolated", "ignore_environment", "no_site")}
    return {
        "prefix": sys.prefix,
        "flags": flags,
        "origins": {name: origin_of(name) for name in question["modules"]},
        "site": site or other,
        "plugins": list(plugins_on(sys.path)),
    }


def origin_of(name: str) -> dict[str, str | None]:
    """Return where a module would come from and the finder that says so, without importing its packages."""
    path: Any = None
    full = ""
    found: dict[str, str | None] = {"origin": None, "finder": None}
    for part in name.split("."):
        full = f"{full}.{part}" if full else part
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if find and not hasattr(finder, "gemmaspec"):
                spec = find(full, path)
            else:
                spec = None
            if spec is not None:
                break
        else:
            return {"origin": None, "finder": None}
        path = spec.submodule_search_locations
        # A folder without __init__.py looks up in sys.modules where the package is that it lies in.
        sys.modules.setdefault(full, type(sys)(full)).__path__ = path
        kind = finder if isinstance(finder, type) else type(finder)
        if kind.__name__ == PATH_FINDER:
            named = PATH_FINDER
        else:
            named = f"{kind.__module__}.{kind.__qualname__}"
        found = {"origin": spec.origin, "finder": named}
    return found


def plugins_on(path: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the entry points of vLLM's groups that are not vLLM's own, from the metadata on a search path.

    importlib.metadata finds the same, and takes longer to import than this takes.
    """
    seen = set()
    for entry in path:
        for one in _names_in(entry or "."):
            if one.endswith((".dist-info", ".egg-info")) and one not in seen:
                seen.add(one)
                yield from _entry_points(os.path.join(entry, one, "entry_points.txt"), one.rpartition(".")[0])


def _names_in(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _entry_points(file: str, distribution: str) -> Iterator[dict[str, str]]:
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read(256 * 1024)
    except (OSError, ValueError):
        return
    if f"[{GROUPS}" not in text.replace(" ", ""):
        return
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[] ")
        elif group.startswith(GROUPS) and "=" in line and not line.startswith(("#", ";")):
            name, _, value = map(str.strip, line.partition("="))
            if value.partition(":")[0].partition(".")[0] != "vllm":
                yield {"group": group, "name": name[:100], "value": value[:200], "distribution": distribution[:100]}


if __name__ == "__main__":
    sys.stdout.write(f"\n{ANSWER}{json.dumps(answer(json.loads(sys.stdin.buffer.read())))}\n")
