"""One vLLM release that answers questions: its parser and create_engine_config(), imported on the CPU.

A release's sdist is fetched once, and tools/oracle_engine.py imports it: compiled modules are empty and the platform is
a fake. Its Python is the managed runtime of tiny-cpu (`make runtime`), preceded by the transformers that runs Gemma 4
with that release. No GPU, no weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import sdist
from published import configs

from gemmaspec.core.checkpoint.published.shipped import checkpoint_of, shipped_for
from gemmaspec.core.data import MODELS
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.files import cache_dir, write_whole
from gemmaspec.core.launcher import range_contains
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.index import wheels as index
from gemmaspec.run.runtime import ensure_runtime
from gemmaspec.serve.prepare import runtime_spec

ENGINE: Final = Path(__file__).parent / "oracle_engine.py"
EXTRAS: Final = (
    *("orjson", "gguf", "partial-json-parser", "anthropic", "mistral_common", "compressed-tensors", "depyf"),
    *("lm-format-enforcer", "outlines_core", "lark", "xgrammar", "diskcache", "openai_harmony", "pyzmq", "msgspec"),
    *("prometheus-fastapi-instrumentator", "blake3", "py-cpuinfo", "cbor2", "setproctitle", "python-json-logger"),
    *(
        "triton",
        "cloudpickle",
        "tiktoken",
        "mcp",
        "llguidance",
        "ijson",
        "model-hosting-container-standards",
        "pybase64",
    ),
)
"""Packages that some releases import and the runtime of another lacks."""
TRANSFORMERS: Final = ((">=0.32.0", None), (">=0.28.0", "5.14.1"), (">=0.19.0", "5.8.1"))
"""The transformers for a release; None: the runtime's own."""
_MASK: Final = 4
"""The token in place of those that a head drafts at once; any one will do for a configuration."""
SIZES: Final = ("31B", "26B-A4B", "12B", "E4B", "E2B")
QUANTIZED: Final[Mapping[str, Mapping[str, Any]]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    "bnb": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
}
"""What checkpoints of other tools declare."""


class Oracle:
    """One release on one kind of platform; answers questions until it is closed.

    Answers are kept in the cache, by what they depend on, so that a run that is repeated goes on where it was. vLLM is
    imported for the first question that has no answer yet.
    """

    def __init__(self, release: str, machine: str) -> None:
        self._release, self._machine = release, machine
        self._models = model_folders()
        self._process: subprocess.Popen[str] | None = None
        self._log = _folder("log") / f"{release}-{machine}.txt"
        self._kept = _folder("answers") / f"{release}-{machine}-{self._depends_on()}.jsonl"
        self._answers = dict(_answers(self._kept))

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return one answer. Raises GemmaspecError when the process died."""
        key = json.dumps(question, sort_keys=True)
        if key not in self._answers:
            self._process = self._process or self._start()
            found = self._answered(self._process, question)
            with self._kept.open("a") as file:
                file.write(json.dumps([key, found]) + "\n")
            self._answers[key] = found
        return self._answers[key]

    def _start(self) -> subprocess.Popen[str]:
        path = [str(part) for part in (_transformers(self._release), _extras(), source(self._release)) if part]
        env = {**os.environ, "ORACLE_RELEASE": self._release, "PYTHONPATH": os.pathsep.join(path)}
        env |= {"VLLM_LOGGING_LEVEL": "CRITICAL", "HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": str(_folder("cache"))}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        with self._log.open("w") as log:
            process = subprocess.Popen(
                [str(_interpreter()), str(ENGINE), self._machine],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=env,
                cwd=_folder("cwd"),  # a path in a trial may be relative
            )
        self._answered(process, {"argv": ["--model", str(self._models / "gemma-4-31B-it")], "warm": True})
        return process

    def _answered(self, process: subprocess.Popen[str], question: Mapping[str, Any]) -> dict[str, Any]:
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise GemmaspecError(f"the oracle died; its log: {self._log}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _depends_on(self) -> str:
        """Return a digest of everything but the question that an answer depends on."""
        parts = [ENGINE.read_bytes(), repr((EXTRAS, TRANSFORMERS)).encode()]
        parts += [file.read_bytes() for file in sorted(self._models.glob("*/config.json"))]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def close(self) -> None:
        """End the process."""
        if self._process:
            self._process.communicate(timeout=300)  # closes both pipes

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answers(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what was answered before; a line that was cut short is asked again."""
    for line in file.read_text().splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):
            key, found = json.loads(line)
            yield key, found


def source(release: str) -> Path:
    """Return the folder with a release's Python files, from its sdist."""
    out = _folder("src") / release
    if (out / ".complete").exists():
        return out
    found = next(file for file in index.release_files("vllm", release) if file.package_type == "sdist")
    sys.stderr.write(f"oracle: fetching vllm {release}\n")
    for path, file in sdist.members(found.url):
        inner = Path(path)
        if inner.parts[:1] == ("vllm",) and inner.suffix in (".py", ".json") and ".." not in inner.parts:
            (out / inner).parent.mkdir(parents=True, exist_ok=True)
            (out / inner).write_bytes(file.read())
    (out / ".complete").touch()
    return out


def model_folders() -> Path:
    """Return folders with config.json of the published sizes and heads, and the tiny pair's tokenizer and processor."""
    out = _folder("models")
    wanted: dict[str, dict[str, Any]] = {}
    for size in SIZES:
        wanted[f"gemma-4-{size}-it"] = configs.config(size)
        wanted[f"gemma-4-{size}-it-assistant"] = configs.assistant_config(size)
    for name in ("nvidia/Gemma-4-31B-IT-NVFP4",):
        known = shipped_for(name)
        assert known
        wanted[name.rpartition("/")[2]] = dict(checkpoint_of(known).config)
    for name, declared in QUANTIZED.items():
        wanted[f"gemma-4-31B-it-{name}"] = {**configs.config("31B"), "quantization_config": declared}
    wanted["gemma-4-31B-eagle3"] = configs.eagle3_config()
    layer = configs.eagle3_config()["transformer_layer_config"]
    wanted["gemma-4-31B-eagle3-plain"] = {**layer, "architectures": ["LlamaForCausalLMEagle3"]}
    wanted["gemma-4-31B-dspark"] = {**configs.block_config("dspark"), "mask_token_id": _MASK}
    plain = {"speculators_model_type": "dflash", "architectures": ["DFlashDraftModel"], "mask_token_id": _MASK}
    wanted["gemma-4-31B-dflash"] = {**configs.block_config("dflash2"), **plain}
    for name, config in wanted.items():
        write_model(out / name, config)
    return out


def write_model(folder: Path, config: Mapping[str, Any]) -> None:
    """Write a model without weights: its config.json, and the tiny pair's tokenizer and processor."""
    tiny = MODELS / "tiny-target"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.json", json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if not (folder / file).exists():
            shutil.copyfile(tiny / file, folder / file)
    processor = (tiny / "processor_config.json").read_text(encoding="utf-8")
    if config.get("model_type") == "gemma4_unified":
        processor = processor.replace("Gemma4", "Gemma4Unified")
    write_whole(folder / "processor_config.json", processor)


def served_folder() -> Path:
    """Return where models of shipped profiles are written."""
    return _folder("served")


def _folder(name: str) -> Path:
    found = cache_dir() / "oracle" / name
    found.mkdir(parents=True, exist_ok=True)
    return found


def _interpreter() -> Path:
    return ensure_runtime(runtime_spec(load_profile("tiny-cpu")), progress=lambda text: sys.stderr.write(f"{text}\n"))


def _transformers(release: str) -> Path | None:
    wanted = next(version for versions, version in TRANSFORMERS if range_contains(versions, release))
    return _installed(f"transformers-{wanted}", [f"transformers=={wanted}", "huggingface_hub<2"]) if wanted else None


def _extras() -> Path:
    return _installed("extras", ["--no-deps", *EXTRAS])


def _installed(name: str, wanted: Sequence[str]) -> Path:
    out = _folder("packages") / name
    if not (out / ".complete").exists():
        command = ["uv", "pip", "install", "-q", "--python", str(_interpreter()), "--target", str(out), *wanted]
        subprocess.run([sys.executable, "-m", *command], check=True)
        (out / ".complete").touch()
    return out
