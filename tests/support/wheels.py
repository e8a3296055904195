"""Small wheels written on the spot: fakes of releases of hundreds of megabytes, for the real uv."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wheel:
    """A written wheel."""

    path: Path

    def unpack(self, folder: Path) -> None:
        """Unpack it as an installer would."""
        zipfile.ZipFile(self.path).extractall(folder)


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    files: Mapping[str, str | bytes] | None = None,
    requires: Sequence[str] = (),
    python: str = ">=3.11",
) -> Wheel:
    """Write `<name>-<version>-py3-none-any.whl` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Requires-Python: {python}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    content: dict[str, str | bytes] = {
        **(files or {}),
        f"{info}/METADATA": "\n".join(metadata) + "\n\nA fake.\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, text in content.items():
            archive.writestr(member, text)
    return Wheel(path)
