"""Kubernetes on the two machines of two_hosts: the control plane on the first, a kubelet and a kube-proxy on each.

`tools/build-kubernetes.sh` makes the programs. Pods have a network of their own, one on each machine, joined by the
cable. `python -m tests.support.two_nodes` makes a cluster and keeps it until Ctrl-C, for trials by hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.support.two_hosts import Bed, Machine, NoTwoHosts, two_hosts

BIN = Path(__file__).parent.parent.parent / ".tools" / "kubernetes" / "bin"
PAUSE = "gemmaspec-test-pause:1"
NET = "10.78"
PODS = "10.79"
SERVICES = "10.80.0.0/24"
_SYS_RESOURCE = 24
"""The capability that a process needs to be killed later than others (linux/capability.h)."""
_RUNC = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
if "create" in words:
    file = os.path.join(words[words.index("--bundle") + 1], "config.json")
    with open(file) as opened:
        spec = json.load(opened)
    spec["process"]["oomScoreAdj"] = max(0, spec["process"].get("oomScoreAdj") or 0)
    with open(file, "w") as opened:
        json.dump(spec, opened)
os.execvp("runc", ["runc", *words])
"""
"""runc for a root that may not make a process less likely to be killed, as the kubelet asks for pause processes."""
_OWN_LOGS = [
    "sh", "-c", 'for one in pods containers; do mkdir -p /var/log/$one; mount -t tmpfs none /var/log/$one; done; exec "$@"',
    "sh",
]  # fmt: skip
"""Where a kubelet links the logs of its pods, and removes those of pods that it does not know."""
_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: test, cluster: {{server: "{url}", insecure-skip-tls-verify: true}}}}]
users: [{{name: test, user: {{token: {token}}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
current-context: test
"""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Kubernetes, and its administrator's way in."""

    bed: Bed
    folder: Path
    token: str

    @property
    def url(self) -> str:
        """The API server's."""
        return f"https://{self.bed.one.reached_at}:6443"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its administrator, with the kubectl of the same release."""
        return {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "KUBECONFIG": str(self.folder / "admin.conf"),
            "NO_PROXY": self.bed.one.reached_at,
            "no_proxy": self.bed.one.reached_at,
        }

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run kubectl to its end, whatever it answers."""
        return subprocess.run(
            [BIN / "kubectl", *words], input=stdin, capture_output=True, text=True, env=self.environment, check=False,
            timeout=timeout_s,
        )  # fmt: skip

    def get(self, *words: str) -> dict[str, Any]:
        """Return what `kubectl get` finds."""
        done = self.kubectl("get", *words, "--output", "json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def request(self, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = 120) -> str:
        """Return what the API server answers; it also hands requests on to Services."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self.url}{path}", data=data)
        asked.add_header("Authorization", f"Bearer {self.token}")
        asked.add_header("Content-Type", "application/json")
        unverified = ssl.create_default_context()
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=unverified)
        )
        with direct.open(asked, timeout=timeout_s) as answer:
            return str(answer.read().decode())


@contextlib.contextmanager
def two_nodes() -> Iterator[Cluster]:
    """Make a cluster of two nodes. Raises NoTwoHosts where that is not possible, with the reason."""
    if not (BIN / ".complete").exists():
        raise NoTwoHosts("Kubernetes has not been built: tools/build-kubernetes.sh")
    with tempfile.TemporaryDirectory(prefix="gk", ignore_cleanup_errors=True) as made, contextlib.ExitStack() as undo:
        folder = Path(made)
        bed = undo.enter_context(two_hosts(prefix="gk", net=NET, flags=_runtime(folder)))
        cluster = Cluster(bed=bed, folder=folder, token=secrets.token_hex(16))
        _control_plane(undo, cluster)
        for host, number, other in ((bed.one, 1, bed.two), (bed.two, 2, bed.one)):
            _pod_network(cluster, host, number=number, other=other)
            _import_pause(host)
            _node(undo, cluster, host)
        until(lambda: _ready_nodes(cluster) == 2, seconds=180, what="two nodes are ready")
        yield cluster


def until(condition: Callable[[], object], *, seconds: float, what: str) -> None:
    """Wait until a condition holds. Raises AssertionError with `what` when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not after {seconds:.0f} s: {what}"
        time.sleep(0.5)


def _runtime(folder: Path) -> list[str]:
    """Return the daemons' flags: where this root may not lower an oom_score_adj, a runtime that does not try."""
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    if int(effective.split()[1], 16) >> _SYS_RESOURCE & 1:
        return []
    runc = folder / "runc"
    runc.write_text(_RUNC.format(python=sys.executable))
    runc.chmod(0o755)
    return ["--add-runtime", f"plain={runc}", "--default-runtime", "plain"]


def _control_plane(undo: contextlib.ExitStack, cluster: Cluster) -> None:
    folder, host = cluster.folder, cluster.bed.one
    tokens = {name: secrets.token_hex(16) for name in ("one", "two")}
    lines = [f'{cluster.token},admin,1,"system:masters"']
    lines += [f'{token},system:node:{name},{name},"system:nodes"' for name, token in tokens.items()]
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
    for name, token in {**tokens, "admin": cluster.token}.items():
        url = f"https://{cluster.bed.one.address}:6443" if name != "admin" else cluster.url
        (folder / f"{name}.conf").write_text(_KUBECONFIG.format(url=url, token=token))
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    etcd = "http://127.0.0.1:2379"
    _begin(undo, cluster, host, "etcd", {
        "data-dir": folder / "etcd", "listen-client-urls": etcd, "advertise-client-urls": etcd,
        "listen-peer-urls": "http://127.0.0.1:2380",
    })  # fmt: skip
    _begin(undo, cluster, host, "kube-apiserver", {
        "etcd-servers": etcd, "secure-port": 6443, "insecure-port": 0, "bind-address": "0.0.0.0",
        "advertise-address": host.address, "cert-dir": folder / "pki", "service-cluster-ip-range": SERVICES,
        "token-auth-file": folder / "tokens.csv", "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction", "service-account-issuer": "https://test",
        "service-account-key-file": key, "service-account-signing-key-file": key,
        "kubelet-preferred-address-types": "InternalIP",
    })  # fmt: skip
    until(lambda: _answers(cluster), seconds=120, what=f"the API server answers, see {folder}/kube-apiserver-one.log")
    as_admin = {"kubeconfig": folder / "admin.conf", "leader-elect": "false", "port": 0}
    _begin(undo, cluster, host, "kube-controller-manager", {**as_admin, "service-account-private-key-file": key})
    _begin(undo, cluster, host, "kube-scheduler", as_admin)


def _answers(cluster: Cluster) -> bool:
    try:
        return cluster.request("/readyz", timeout_s=2) == "ok"
    except (OSError, urllib.error.URLError):
        return False


def _pod_network(cluster: Cluster, host: Machine, *, number: int, other: Machine) -> None:
    """Give the machine's pods a subnet, and the machine a way to the other one's."""
    networks = cluster.folder / f"cni-{host.name}"
    networks.mkdir()
    subnet = {"type": "host-local", "subnet": f"{PODS}.{number}.0/24", "dataDir": f"{cluster.folder}/ips-{host.name}"}
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True}
    ipam = {**subnet, "routes": [{"dst": "0.0.0.0/0"}]}
    text = json.dumps({"cniVersion": "0.3.1", "name": "pods", **bridge, "ipam": ipam})
    (networks / "10-pods.conf").write_text(text)
    inside = ["nsenter", f"--net=/run/netns/{host.namespace}"]
    for command in (
        ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"],
        ["ip", "route", "add", f"{PODS}.{3 - number}.0/24", "via", other.address],
        # Addresses of Services lie nowhere: kube-proxy rewrites them, once there is a route.
        ["ip", "route", "add", SERVICES, "via", other.address],
    ):
        subprocess.run([*inside, *command], check=True, capture_output=True)


def _import_pause(host: Machine) -> None:
    """Import the image of the pause process, which holds a pod's namespaces."""
    layer = BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(BIN / "pause", arcname="pause")
    repository, tag = PAUSE.split(":")
    with contextlib.closing(host.client()) as client:
        client.api.import_image_from_data(
            layer.getvalue(), repository=repository, tag=tag, changes=['ENTRYPOINT ["/pause"]']
        )


def _node(undo: contextlib.ExitStack, cluster: Cluster, host: Machine) -> None:
    root, folder = cluster.folder / f"kubelet-{host.name}", cluster.folder
    _begin(undo, cluster, host, "kubelet", {
        "kubeconfig": folder / f"{host.name}.conf", "hostname-override": host.name, "node-ip": host.address,
        "root-dir": root, "cert-dir": root / "pki", "volume-plugin-dir": root / "plugins",
        "container-runtime": "docker", "docker-endpoint": host.socket, "pod-infra-container-image": PAUSE,
        # The two machines share their files: by the usual socket, one kubelet would use the other's daemon.
        "container-runtime-endpoint": f"unix://{root}/dockershim.sock",
        "experimental-dockershim-root-directory": root / "dockershim", "network-plugin": "cni", "cni-bin-dir": BIN,
        "cni-conf-dir": folder / f"cni-{host.name}", "cni-cache-dir": root / "cni", "resolv-conf": "",
        "cgroup-driver": "cgroupfs", "cgroups-per-qos": "false", "enforce-node-allocatable": "", "eviction-hard": "",
        "image-gc-high-threshold": 100, "fail-swap-on": "false", "make-iptables-util-chains": "false",
        # The network between the two is the test's own.
        "anonymous-auth": "true", "authorization-mode": "AlwaysAllow",
    })  # fmt: skip
    _begin(undo, cluster, host, "kube-proxy", {
        "kubeconfig": folder / "admin.conf", "hostname-override": host.name, "proxy-mode": "iptables",
        "cluster-cidr": f"{PODS}.0.0/16", "conntrack-max-per-core": 0, "conntrack-tcp-timeout-established": 0,
        "conntrack-tcp-timeout-close-wait": 0,
    })  # fmt: skip


def _begin(undo: contextlib.ExitStack, cluster: Cluster, host: Machine, name: str, options: dict[str, Any]) -> None:
    """Begin a program on a machine, among its daemon's mounts; it ends with the cluster."""
    words = [BIN / name, *(f"--{option}={value}" for option, value in options.items())]
    inside = [
        "nsenter",
        "--target",
        str(host.daemon.pid),
        "--net",
        "--mount",
        *(_OWN_LOGS if name == "kubelet" else []),
    ]
    with (cluster.folder / f"{name}-{host.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*inside, *map(str, words)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        )  # fmt: skip
    undo.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _ready_nodes(cluster: Cluster) -> int:
    nodes = cluster.get("nodes")["items"]
    conditions = [one for node in nodes for one in node["status"].get("conditions", []) if one["type"] == "Ready"]
    return sum(one["status"] == "True" for one in conditions)


if __name__ == "__main__":
    with two_nodes() as kept:
        sys.stdout.write(f"export KUBECONFIG={kept.folder}/admin.conf PATH={BIN}:$PATH\n")
        sys.stdout.write(f"# sockets: {kept.bed.one.socket} {kept.bed.two.socket}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
