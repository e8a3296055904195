"""The user's kubectl: what it is asked, and what its failures mean. It reads the user's own configuration."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, TimedOut
from gemmaspec.run.engine.attested import with_attested
from gemmaspec.run.engine.lines import clean
from gemmaspec.run.engine.report import parse_report

REPORT: Final = "/run/gemmaspec/report.json"
ATTESTED: Final = "/run/gemmaspec/attested.json"
MAX_ANSWER: Final = 32 * 1024 * 1024
"""Bytes of an answer; the pods of a large namespace have a few."""
_TIMEOUT_S: Final = 120
_SHOWN_LINES: Final = 20
_UNREACHABLE: Final = (
    "connection refused",
    "no such host",
    "unable to connect to the server",
    "current-context is not set",
    "the connection to the server",
    "i/o timeout",
    "you must be logged in",
    "no configuration has been provided",
)


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod of the cluster, as far as `status` tells of it."""

    namespace: str
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    phase: str
    ready: bool
    restarts: int
    container: str
    """The container of the server."""
    image: str
    """As the node resolved it, by digest where it has one."""
    reason: str
    """Why a container waits or has ended; empty for one that runs."""
    node: str


def dry_run(documents: str, *, namespace: str | None) -> str:
    """Have the API server check objects, and change nothing; return what it says of each.

    Raises EnvironmentMissing without kubectl or cluster, GemmaspecError with the server's own words for an object
    that it refuses.
    """
    # Server-side, as a client-side apply keeps the whole object in an annotation of at most 256 KiB.
    words = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--field-manager=gemmaspec", "-f", "-"]
    return _kubectl([*words, *_namespace(namespace)], stdin=documents, what="the cluster refuses these objects")


def pods(selector: str, *, namespace: str | None) -> list[Pod]:
    """Return the pods that bear labels, in the context's own namespace when none is given."""
    words = ["get", "pods", "--selector", selector, "--output", "json", *_namespace(namespace)]
    answer = _kubectl(words, what="kubectl cannot list the pods")
    try:
        return sorted((_pod(item) for item in json.loads(answer)["items"]), key=lambda pod: (pod.namespace, pod.name))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise GemmaspecError("kubectl's list of pods cannot be read", hint="kubectl version") from None


def report(pod: Pod) -> dict[str, Any]:
    """Return the launcher's report of a pod's server. Raises GemmaspecError when it cannot be read."""
    words = ["exec", "--namespace", pod.namespace, pod.name, "--container", pod.container, "--", "cat"]
    read = parse_report(_kubectl([*words, REPORT], what=f"cannot read the report of {pod.name}").encode())
    if "attestation" not in read:
        return read
    try:
        attested = _kubectl([*words, ATTESTED], what=f"cannot read what {pod.name} attests").encode()
    except GemmaspecError:  # it has not written it yet, and then it is not attested
        attested = b""
    return with_attested(read, attested)


def _namespace(namespace: str | None) -> list[str]:
    if namespace:
        return ["--namespace", namespace]
    return []


def _kubectl(words: Sequence[str], *, what: str, stdin: str | None = None) -> str:
    """Run kubectl and return what it prints. Raises EnvironmentMissing, TimedOut, or GemmaspecError with `what`."""
    program = shutil.which("kubectl")
    if program is None:
        raise EnvironmentMissing(
            "kubectl is not installed, but gemmaspec needs it to reach the cluster",
            hint="sudo apt-get install kubernetes-client    # or: https://kubernetes.io/docs/tasks/tools/",
        )
    command = [program, "--request-timeout=60s", *words]
    try:
        done = subprocess.run(
            command, input=(stdin or "").encode(), capture_output=True, timeout=_TIMEOUT_S, check=False, env=os.environ
        )
    except subprocess.TimeoutExpired:
        raise TimedOut(f"kubectl {words[0]} did not end within {_TIMEOUT_S} s", hint="kubectl cluster-info") from None
    except OSError as error:
        raise EnvironmentMissing(f"cannot run {program}: {error.strerror}", hint=f"ls -l {program}") from None
    if done.returncode == 0 and len(done.stdout) <= MAX_ANSWER:
        return done.stdout.decode("utf-8", "replace")
    if done.returncode == 0:
        raise GemmaspecError(f"kubectl answers with more than {MAX_ANSWER} bytes", hint="name a namespace: --namespace")
    raise _failure(done.stderr.decode("utf-8", "replace"), what)


def _failure(stderr: str, what: str) -> GemmaspecError:
    lines = [clean(line) for line in stderr.splitlines() if line.strip()]
    if any(sign in stderr.lower() for sign in _UNREACHABLE):
        # The lines before the last one are its attempts, each the same.
        return EnvironmentMissing(f"kubectl cannot reach a cluster: {lines[-1]}", hint="kubectl config get-contexts")
    printed = "\n".join(f"  {line}" for line in lines[:_SHOWN_LINES]) or "  (kubectl printed nothing)"
    return GemmaspecError(f"{what}:\n{printed}")


def _pod(item: dict[str, Any]) -> Pod:
    meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    named = [row for row in spec["containers"] if row["name"] in ("vllm", "main")] or spec["containers"]
    name = str(named[0]["name"])
    state: dict[str, Any] = next((row for row in status.get("containerStatuses") or [] if row["name"] == name), {})
    # a pod that has not been scheduled has no image yet, but the name of the one it wants
    image = str(state.get("imageID") or named[0].get("image", ""))
    return Pod(
        namespace=str(meta["namespace"]),
        name=str(meta["name"]),
        labels=_texts(meta.get("labels")),
        annotations=_texts(meta.get("annotations")),
        phase=clean(str(status.get("phase", "Unknown"))),
        ready=state.get("ready") is True,
        restarts=int(state.get("restartCount", 0)),
        container=name,
        image=image,
        reason=_reason(state, status),
        node=str(spec.get("nodeName", "")),
    )


def _reason(state: dict[str, Any], status: dict[str, Any]) -> str:
    """Return why the server does not run: what its container waits for, how it ended, why no node takes the pod."""
    now = state.get("state") or {}
    waiting, ended = now.get("waiting") or {}, now.get("terminated") or {}
    if waiting or ended:
        last = (state.get("lastState") or {}).get("terminated") or {}
        code = ended.get("exitCode", last.get("exitCode"))
        parts = [waiting.get("reason") or ended.get("reason"), f"exit code {code}" if code is not None else None]
        return clean(", ".join(str(part) for part in parts if part))
    unscheduled = [row for row in status.get("conditions") or [] if row.get("reason") == "Unschedulable"]
    if unscheduled:
        return clean(str(unscheduled[0].get("message", "Unschedulable")))
    return ""


def _texts(labels: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in (labels or {}).items()}
