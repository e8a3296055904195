"""Docker's attributes of a container and of the daemon as facts: pure functions."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from gemmaspec.run.engine.lines import clean
from gemmaspec.run.engine.server import State

_NEVER: Final = "0001-01-01"
_STATUS: Final[dict[str, Literal["running", "restarting"]]] = {
    "running": "running",
    "paused": "running",
    "restarting": "restarting",
}  # docker's other states are created, removing, exited, dead


def state_of(attributes: dict[str, Any]) -> State:
    """Return the state in a container's inspected attributes."""
    seen = attributes["State"]
    detail = [f"container {attributes['Id'][:12]}"]
    if health := seen.get("Health"):
        detail.append(str(health["Status"]))
    if seen.get("Error"):
        detail.append(clean(str(seen["Error"])))
    if seen["Status"] in ("created", "paused"):
        detail.append(seen["Status"])
    if seen["Status"] in ("created", "running", "paused"):
        exit_code = None  # Docker gives 0 for one that has not ended
    else:
        exit_code = int(seen["ExitCode"])
    if seen.get("OOMKilled"):
        starved = "memory ran out: the kernel has killed a process of its container"
    else:
        starved = ""
    return State(
        status=_STATUS.get(seen["Status"], "exited"),
        exit_code=exit_code,
        restarts=int(attributes.get("RestartCount", 0)),
        detail=", ".join(detail),
        unhealthy=bool(health) and health["Status"] == "unhealthy",
        ended=_ended(seen),
        starved=starved,
    )


def _ended(seen: dict[str, Any]) -> float | None:
    stamp = str(seen.get("FinishedAt") or _NEVER)
    if seen["Status"] in (*_STATUS, "created") or stamp.startswith(_NEVER):
        return None
    return moment(stamp)


def log_start(seen: dict[str, Any]) -> float | None:
    """Return the time (seconds since 1970) from which lines belong to the last start; None if all of them do.

    Docker records StartedAt late, so the first lines, or the end of a run of milliseconds, may be earlier. While a
    container runs, FinishedAt is the end of the previous run, and the middle between the two is right. After it ended,
    the end of the previous run is unknown; 0.1 s before StartedAt is right then, because docker waits longer than that
    before it restarts a container.
    """
    started, finished = seen["StartedAt"], seen["FinishedAt"]
    if started.startswith(_NEVER) or finished.startswith(_NEVER):
        return None
    if seen["Status"] in _STATUS and seen["Status"] != "restarting":
        return (moment(started) + moment(finished)) / 2
    return min(moment(started), moment(finished)) - 0.1


def moment(stamp: str) -> float:
    """Return docker's time stamp in seconds since 1970."""
    return datetime.fromisoformat(stamp).timestamp()


def publishes(attributes: dict[str, Any], *, bind: str, port: int) -> bool:
    """Return whether a container holds `port` on an address that overlaps `bind`."""
    everywhere = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
    bindings = (attributes.get("HostConfig", {}).get("PortBindings") or {}).values()
    for binding in (binding for several in bindings for binding in several or ()):
        overlaps = bind in everywhere or binding.get("HostIp", "") in (*everywhere, bind)
        if overlaps and binding.get("HostPort") == str(port):
            return True
    return False


def has_nvidia(info: dict[str, Any]) -> bool:
    """Return whether the daemon supports NVIDIA GPUs, with the `nvidia` runtime or a CDI device.

    Docker reports DiscoveredDevices since 28.3. From 25 to 28.2 it reports only the CDI folders, which a local daemon
    shares with this process.
    """
    if "nvidia" in (info.get("Runtimes") or {}):
        return True
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()]
    specs = (path for folder in info.get("CDISpecDirs") or () for path in Path(folder).glob("*nvidia*"))
    return any(device.startswith("nvidia.com/gpu") for device in devices) or any(specs)
