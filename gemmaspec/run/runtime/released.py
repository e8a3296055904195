"""Whether the package index has the release of vLLM that a runtime would be built of."""

from __future__ import annotations

from packaging.version import Version

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.runtime.spec import RuntimeSpec


def ensure_released(spec: RuntimeSpec) -> str:
    """Ask the index for the wheel of a runtime; return what is not known, as a part of a sentence, or ''.

    Raises EnvironmentMissing with the newest release that has a wheel, if this one has none: not every release of vLLM
    is published for CPUs.
    """
    from gemmaspec.run.index.wheels import released_wheels  # slow to import, and most starts build nothing

    try:
        wheels = released_wheels(spec.distribution)
    except EnvironmentMissing:
        return f"whether the index has {spec.vllm_requirement} is not known, because it does not answer"
    released = {Version(Version(version).public) for version in wheels}
    if Version(spec.vllm) in released:
        return ""
    newest = max(released, key=_final_first)
    device = "CPUs" if spec.device == "cpu" else "CUDA"
    raise EnvironmentMissing(
        f"vLLM {spec.vllm} has no wheel for {device} in the package index ({spec.distribution}); "
        f"the newest that has one is {newest}",
        hint=f"--set runtime.vllm={newest}",
    )


def _final_first(version: Version) -> tuple[bool, Version]:
    """Order releases before candidates."""
    return not version.is_prerelease, version
