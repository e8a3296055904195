"""Whether the NVIDIA driver of a machine runs what an image requires."""

from __future__ import annotations

import re
from typing import Final

from packaging.version import Version

from gemmaspec.check.doctor.result import CheckResult, failed, ok, warning
from gemmaspec.run.machine.readings import Gpus

_CLAUSE: Final = re.compile(r"(cuda|driver|brand)(>=|<=|!=|=|>|<)([\w.]+)")
_UPDATE: Final = "sudo apt-get install --only-upgrade 'nvidia-driver-*'    # or https://www.nvidia.com/drivers"


def driver_row(gpus: Gpus, *, require: str | None, cuda: str | None, where: str) -> CheckResult:
    """Check the driver against NVIDIA_REQUIRE_CUDA, which the container toolkit enforces, and CUDA_VERSION.

    `where` names their source; empty if it is unknown what will run.
    """
    shown = f"driver {gpus.driver}, which runs CUDA up to {gpus.cuda or 'an unknown release'}"
    if gpus.cuda is None:
        return warning("driver", f"{shown}; cannot compare with {where or 'anything'}", "nvidia-smi")
    clauses = (require or "").split()
    if require and not any(_holds(clause, gpus) for clause in clauses):
        needed = "; ".join(clause for clause in clauses if clause.startswith("cuda")) or require[:80]
        return failed("driver", f"{shown}; {where} requires {needed}", _UPDATE)
    if not where:
        return ok("driver", shown)
    if not cuda or (wanted := _version(cuda)) is None:
        return ok("driver", f"{shown}; {where} does not declare its CUDA version")
    has = Version(gpus.cuda)
    if wanted.major > has.major:
        return failed("driver", f"{shown}; {where} has CUDA {cuda}", _UPDATE)
    if (wanted.major, wanted.minor) > (has.major, has.minor):
        # Within a major release older drivers run newer code, but for kernels that are compiled at run time.
        return warning("driver", f"{shown}; {where} has CUDA {cuda}, a newer minor release", _UPDATE)
    return ok("driver", f"{shown}; {where} has CUDA {cuda}")


def _holds(clause: str, gpus: Gpus) -> bool:
    """Return whether the driver meets one alternative: conditions joined by commas, ignoring the brand."""
    return all(_condition(text, gpus) for text in clause.split(","))


def _condition(text: str, gpus: Gpus) -> bool:
    clause = _CLAUSE.fullmatch(text)
    if clause is None:
        return False
    name, operator, value = clause.groups()
    if name == "brand":
        return True
    has, wanted = _version(gpus.cuda if name == "cuda" else gpus.driver), _version(value)
    if has is None or wanted is None:
        return False
    return {
        ">=": has >= wanted,
        "<=": has <= wanted,
        ">": has > wanted,
        "<": has < wanted,
        "=": has == wanted,
        "!=": has != wanted,
    }[operator]


def _version(text: str | None) -> Version | None:
    try:
        return Version(text or "")
    except ValueError:  # no version, or a number of thousands of digits
        return None
