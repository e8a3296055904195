"""Which shipped chat template matches which vLLM release."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from gemmaspec.data import TEMPLATES
from gemmaspec.errors import ProfileError

# The output of examples/tool_chat_template_gemma4.jinja changed in these releases of vLLM; newest first.
_CHANGES: Final = (
    ((0, 24), "gemma4.jinja"),
    ((0, 23), "gemma4-0.23.jinja"),
    ((0, 21), "gemma4-0.21.jinja"),
    ((0, 0), "gemma4-0.19.jinja"),
)


def template_for(vllm: str | None) -> Path:
    """Return the shipped template with the same output as the one in the sdist of that vLLM release.

    None and releases after the last compared one get the newest template; a pre-release counts as its release.
    Raise ProfileError if `vllm` is not a version.
    """
    if vllm is None:
        return TEMPLATES / _CHANGES[0][1]
    try:
        release = Version(vllm).release
    except InvalidVersion:
        raise ProfileError(f"{vllm!r} is not a version of vLLM", hint="name a release, such as 0.33.0") from None
    return TEMPLATES / next(name for since, name in _CHANGES if release >= since)
