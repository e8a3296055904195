"""Check that an installed vLLM loads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any, Final

from gemmaspec.core.errors import EnvironmentMissing

_SMOKE_TIMEOUT_S: Final = 300

_SMOKE_TEST: Final = """
import importlib, importlib.metadata, importlib.util, json, platform, sys
import torch, torchvision, transformers
facts = {name: importlib.metadata.version(name) for name in ("torch", "torchvision", "transformers", "vllm")}
facts["python"] = platform.python_version()
if sys.argv[1] == "cpu":
    from vllm.platforms import current_platform
    current_platform.import_kernels()
    if not current_platform.is_cpu() or not hasattr(torch.ops._C, "rms_norm"):
        raise SystemExit("vLLM's CPU kernels did not load with torch " + torch.__version__)
    for name in ("entrypoints.openai.api_server", "v1.worker.cpu_worker", "model_executor.models.gemma4_mm"):
        importlib.import_module("vllm." + name)
elif torch.version.cuda is None:
    raise SystemExit("torch " + torch.__version__ + " is not built for CUDA")
print(json.dumps(facts))
"""
"""Import most of a server's modules, to find load errors now and to compile the files for the first start."""


def smoke_test(python: Sequence[str], *, device: str) -> dict[str, Any]:
    """Import a server's modules once with the command `python`; return the installed versions.

    Raise EnvironmentMissing with the last lines, because packages that install together may not load together.
    """
    command = [*python, "-I", "-c", _SMOKE_TEST, device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMOKE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentMissing(
            f"{python[-1]} needs more than {_SMOKE_TIMEOUT_S} s to import torch", hint="top"
        ) from None
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise EnvironmentMissing(
            f"the installed packages do not load together:\n{last}",
            hint="set other bounds under runtime: in the profile",
        )
    facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return facts
