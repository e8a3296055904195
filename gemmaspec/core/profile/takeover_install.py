"""What a start script does to an image before it serves: packages that it installs, files that it changes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gemmaspec.core.profile.fields import secret_name
from gemmaspec.core.profile.takeover import TakenOver

RELEASE: Final = re.compile(r"vllm(?:\[[^\]]*\])?(?:==|@)v?([0-9]+(?:\.[0-9]+)+)")
PACKAGE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?((?:[<>=!~]=?|@).*)?", re.DOTALL)
BOUNDED: Final = re.compile(r"(?:(?:>=?|!=)[0-9.]+,)*(?:<=?|==)[0-9.]+(?:,[<>!=]=?[0-9.]+)*")
_OF_PIP: Final = re.compile(r"-r|-c|-i|-f|-t|--(?:requirement|constraint|index-url|extra-index-url|find-links|target)")
IN_IMAGE: Final = "runtime: {packages: {NAME: '>=5.8,<5.20'}} installs a package once and bounded"
_OF_VLLM: Final = re.compile(
    r"(?:^|[/\s])(?:dist|site)-packages/vllm\b|/vllm-workspace/vllm/|(?:^|/)vllm/[\w/.-]+\.py$|vllm\.__file__"
)
"""A file of vLLM's own, however a script names it."""
_PATCHED: Final = (
    "it changes vLLM's own files at each start; as a patch it is checked once: gemmaspec patch import FILE.diff"
)
_EDITS: Final = frozenset({"sed", "perl", "cp", "mv", "ln", "install", "tee", "patch", "git", "curl", "wget", "rm"})
_SYSTEM: Final = frozenset({"apt-get", "apt", "dnf", "yum", "apk", "microdnf"})


def changes_files(made: TakenOver, words: Sequence[str]) -> bool:
    """Name a command that changes the image at its start, and return whether it is one."""
    plain = [word for word in words if word not in ("sudo", "-E", "env", "DEBIAN_FRONTEND=noninteractive")]
    program = plain[0].rpartition("/")[2] if plain else ""
    if program in _SYSTEM and "install" not in plain and "add" not in plain:
        return True  # it fetches a list of packages, or removes it
    if program in _SYSTEM:
        what = "it installs system packages at each start; an image that has them is built once, and image: names it"
        made.leave(short(plain), what)
        return True
    of_vllm = next((word for word in plain[1:] if _OF_VLLM.search(word)), None)
    if of_vllm and (program in _EDITS or program.startswith("python")):
        made.leave(f"{program} … {no_secret(of_vllm)[-120:]}", _PATCHED)
        return True
    options = filter(re.compile(r"-[a-zA-Z]*i.*|--in-place.*").fullmatch, plain[1:3])
    in_place = program in ("sed", "perl") and any(options)
    if in_place or program == "patch" or plain[:2] == ["git", "apply"]:
        made.leave(
            f"{short(plain[:2])} …",
            "it changes a file at each start; for one of vLLM's: gemmaspec patch import FILE.diff",
        )
        return True
    return False


def installed(made: TakenOver, words: Sequence[str]) -> None:
    """Take over `pip install`: the release of vLLM, and packages with an upper bound."""
    if "install" not in words:
        made.leave(short(words), IN_IMAGE)
        return
    rest = list(words[words.index("install") + 1 :])
    while rest:
        word = rest.pop(0)
        package = PACKAGE.fullmatch(word)
        if release := RELEASE.fullmatch(word):
            made.release = release[1]
        elif _OF_PIP.fullmatch(word):
            made.leave(f"pip install {word} {no_secret(rest.pop(0)) if rest else ''}".rstrip(), IN_IMAGE)
        elif word.startswith("-") or word in ("pip", "wheel", "setuptools", "uv"):
            continue  # how pip installs
        elif package and BOUNDED.fullmatch(package[2] or ""):
            made.content.setdefault("runtime", {}).setdefault("packages", {})[package[1]] = package[2]
        elif package and package[1] == "vllm":
            made.leave(f"pip install {no_secret(word)}", "image names the release of vLLM that runs")
        else:
            made.leave(f"pip install {no_secret(word)}", IN_IMAGE)


def short(words: Sequence[str]) -> str:
    """Return a command as one short text, without secrets."""
    if re.fullmatch("[a-z-]+", " ".join(words[1:2])):
        shown = " ".join(words[:2])
    else:
        shown = words[0]
    if len(words) > 2:
        return f"{no_secret(shown)} …"
    return no_secret(shown)


def no_secret(text: str) -> str:
    """Return a text without what may be a secret: values of such names, and passwords in addresses."""
    text = re.sub(r"(?:hf_|sk-|ghp_)[A-Za-z0-9_-]+", "…", re.sub(r"//[^/@\s]+@", "//…@", text))
    return re.sub(r"([\w-]+)[= ](\S+)", lambda match: f"{match[1]}=…" if secret_name(match[1]) else match[0], text)
