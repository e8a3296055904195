"""What people serve with today, as keys of a profile: a `vllm serve` or `docker run` command line. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gemmaspec.errors import UsageError
from gemmaspec.profile.command import Argument, Command, words_of
from gemmaspec.profile.fields import secret_name
from gemmaspec.profile.model import Serve
from gemmaspec.profile.rules import OF_EACH_RANK
from gemmaspec.profile.takeover_trust import CODE, flag_names_code, has_credentials, is_harmless, is_module, runs_code
from gemmaspec.releases.facts import facts_for, nearest, newest

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_TAG: Final = re.compile(r":v([0-9]+(?:\.[0-9]+)+)")
_HF_HOME: Final = re.compile(r"/(?:root|home/[^/]+)/\.cache/huggingface/?")
_WITH_VALUE: Final = (
    "-e", "--env", "-p", "--publish", "-v", "--volume", "--mount", "--gpus", "--ipc", "--shm-size", "--name",
    "--network", "--net", "--restart", "--user", "-u", "--ulimit", "--env-file", "--device", "--entrypoint", "-w",
    "--workdir", "--runtime", "--cap-add", "--security-opt", "--memory", "-m", "--cpus", "--hostname", "-h",
    "--platform", "--label", "-l", "--add-host", "--pull",
)  # fmt: skip
"""Options of `docker run` that take a value."""
_SHORT: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([kKmM])")
_UNITS: Final = {"k": (1000, 1024), "m": (1000**2, 1024**2)}
"""Lower case is decimal, upper case binary (human_readable_int in vllm/engine/arg_utils.py, 0.19.0-0.33.0)."""
_NOT_NEEDED: Final = (
    "-d",
    "--detach",
    "--rm",
    "-it",
    "-i",
    "-t",
    "-ti",
    "--init",
    "--interactive",
    "--tty",
    "--name",
    "--pull",
)
_CHAT: Final = {
    "--chat-template": "template",
    "--chat-template-content-format": "content_format",
    "--default-chat-template-kwargs": "template_kwargs",
    "--reasoning-parser": "reasoning_parser",
    "--tool-call-parser": "tool_call_parser",
}
_TARGET: Final = {"--model": "model", "--revision": "revision", "--quantization": "quantization"}
_SPEC: Final = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
_OF_DRAFT: Final = {"model": "model", "revision": "revision", "quantization": "quantization"}


@dataclass(kw_only=True)
class TakenOver:
    """A profile in the making."""

    content: dict[str, Any] = field(default_factory=dict)
    """Its keys."""
    left: list[str] = field(default_factory=list)
    """What could not be taken over, each with what gemmaspec does instead."""

    def put(self, section: str, key: str, value: Any) -> None:
        """Set a key."""
        self.content.setdefault(section, {})[key] = value

    def leave(self, what: str, instead: str) -> None:
        """Note what has no key."""
        self.left.append(f"{what}: {instead}")


def from_command(text: str) -> TakenOver:
    """Return what a command line says. Raises UsageError for one that does not serve a model with vLLM."""
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise UsageError(f"--from-command: {error}: check its quotes") from None
    made = TakenOver()
    words = [word for word in words if word != "sudo"]
    while words and (found := _ASSIGNED.fullmatch(words[0])):
        variable(made, found[1], found[2])
        words = words[1:]
    if words[:1] in (["docker"], ["podman"]) and "run" in words[:3]:
        words = list(_docker(made, words[words.index("run") + 1 :]))
    from_words(made, words)
    return made


def from_words(made: TakenOver, words: Sequence[str]) -> None:
    """Take over the words of a command. Raises UsageError for one that does not serve a model with vLLM."""
    words = _arguments(words)
    found = _TAG.search(str(made.content.get("image", "")))
    facts = facts_for(nearest(found[1] if found else newest()))
    command = words_of(words, facts.flags if facts else {})
    if words and not words[0].startswith("-"):
        made.put("target", "model", words[0])
    for argument in command.arguments:
        _take(made, argument)
    _speculative(made, command)
    if not made.content.get("target", {}).get("model"):
        raise UsageError("there is no model: neither after `vllm serve` nor with --model")
    if not command.given("--host"):
        made.leave(
            "no --host", "vLLM listens on all addresses; the profile listens on 127.0.0.1 until serve.bind says more"
        )


def variable(made: TakenOver, name: str, value: str | None) -> None:
    """Take over an environment variable; only a value that is known to be no secret is written."""
    if not _NAME.fullmatch(name):
        made.leave(f"variable {name[:80]}", "it is not the name of a variable")
    elif runs_code(name):
        made.leave(name, CODE.format(f"env.{name}"))
    elif secret_name(name) or value is None or (name != "HF_HOME" and not is_harmless(name, value)):
        if value is not None:
            made.leave(f"the value of {name}", "it may be a secret: export it in the shell, pass_env names it")
        passed = made.content.setdefault("pass_env", ["HF_TOKEN"])
        if name not in passed:
            passed.append(name)
    elif name == "HF_HOME":
        made.leave(f"{name}={value}", "caches.huggingface names the folder")
    else:
        made.put("env", name, value)


def volume(made: TakenOver, text: str) -> None:
    """Take over the folder of models; other folders have no key."""
    source, _, rest = text.partition(":")
    target = rest.partition(":")[0]
    if _HF_HOME.fullmatch(target) and source.startswith(("/", "~", "$HOME", "${HOME}")):
        made.put("caches", "huggingface", re.sub(r"^\$\{?HOME\}?", "~", source))
    else:
        made.leave(f"volume {text}", "models in a folder are mounted by target.model: /FOLDER, caches by `caches`")


def port(made: TakenOver, text: str) -> None:
    """Take over a published port."""
    parts = text.partition("/")[0].split(":")
    if len(parts) > 1 and parts[-2].isdecimal():
        made.put("serve", "port", int(parts[-2]))
        if len(parts) == 3:
            made.put("serve", "bind", parts[0])
    else:
        made.leave(f"port {text}", "serve.port is the port on this machine")


def gpus(made: TakenOver, text: str) -> None:
    """Take over the GPUs that a container sees."""
    found = re.fullmatch(r"\"?device=([0-9]+(?:,[0-9]+)*)\"?", text)
    if found:
        made.content["devices"] = [int(one) for one in found[1].split(",")]
    elif text != "all":
        made.leave(f"gpus {text}", "devices: [0, 1] names them by the index of nvidia-smi")


def _arguments(words: Sequence[str]) -> Sequence[str]:
    """Return what follows `vllm serve`, or the module that does the same."""
    for index, word in enumerate(words):
        if word == "serve" and index and words[index - 1].endswith("vllm"):
            return words[index + 1 :]
        if word == "vllm.entrypoints.openai.api_server":
            return words[index + 1 :]
    if (words and words[0] in ("--model", "serve")) or any(word.startswith("--model") for word in words):
        return words[1:] if words[0] == "serve" else words
    if words and "/" in words[0]:
        return words  # of an image whose entrypoint is `vllm serve`
    raise UsageError(
        f"this is not a command that serves with vLLM: {shlex.join(words)[:80]!r}",
        hint="gemmaspec profile new mine --from-command 'vllm serve google/gemma-4-31B-it --max-model-len 32768'",
    )


def _docker(made: TakenOver, words: Sequence[str]) -> Sequence[str]:
    """Take over the options of `docker run`, and return the words after the image."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        if not equals and name in _WITH_VALUE and rest:
            value = rest.pop(0)
        option(made, name, value)
    if not rest:
        raise UsageError("docker run names no image")
    made.content["image"] = rest[0]
    return rest[1:]


def option(made: TakenOver, name: str, value: str) -> None:
    """Take over an option of `docker run`."""
    if name in ("-e", "--env"):
        key, equals, text = value.partition("=")
        variable(made, key, text if equals and not text.startswith("$") else None)
    elif name in _TAKEN:
        _TAKEN[name](made, value)
    elif name not in _NOT_NEEDED:
        made.leave(f"docker run {name}", INSTEAD.get(name.lstrip("-"), "has no key in a profile"))


def _ipc(made: TakenOver, value: str) -> None:
    made.put("container", "ipc", value)


def _shm(made: TakenOver, value: str) -> None:
    made.put("container", "shm_size", re.sub(r"(?<=[0-9])([kmg])i?b?$", r"\1b", value.lower()))


def _user(made: TakenOver, value: str) -> None:
    made.put("container", "user", value)


_TAKEN: Final[Mapping[str, Callable[[TakenOver, str], None]]] = {
    "-p": port, "--publish": port, "-v": volume, "--volume": volume, "--gpus": gpus, "--ipc": _ipc,
    "--shm-size": _shm, "-u": _user, "--user": _user,
}  # fmt: skip
"""Options of `docker run` with a key."""
INSTEAD: Final = {
    "restart": "container.restarts bounds it; `gemmaspec watch` restarts a server that hangs",
    "env-file": "list the names under pass_env and export them in the shell",
    "env_file": "list the names under pass_env and export them in the shell",
    "network": "the container has a network of its own; serve.bind says who reaches it",
    "net": "the container has a network of its own; serve.bind says who reaches it",
    "networks": "the container has a network of its own; serve.bind says who reaches it",
    "runtime": "GPUs are requested by `machine` and `devices`",
    "ulimit": "the container uses the Docker daemon's limits",
    "ulimits": "the container uses the Docker daemon's limits",
    "healthcheck": "a check that asks for a real token is built in",
    "depends_on": "gemmaspec starts one server and waits until it has answered",
    "entrypoint": "the launcher starts `vllm serve` itself",
    "mount": "models in a folder are mounted by target.model: /FOLDER, caches by `caches`",
    "logging": "`gemmaspec logs` reads Docker's own log",
    "stop_grace_period": "container.stop_grace_seconds",
    "memory": "serve.gpu_memory_utilization bounds the GPU's memory",
    "secrets": "list the names under pass_env and export them in the shell",
}
"""What has no key that can be set mechanically → what there is instead."""


def _take(made: TakenOver, one: Argument) -> None:
    key = one.flag.removeprefix("--").replace("-", "_")
    if one.flag in _TARGET and one.value:
        made.put("target", _TARGET[one.flag], one.value)
    elif one.flag in _CHAT and one.value:
        made.put("chat", _CHAT[one.flag], _read(one.value))
    elif flag_names_code(one.flag):
        made.leave(
            f"{one.flag} {one.value or ''}".rstrip(),
            CODE.format("serve.trust_remote_code" if key == "trust_remote_code" else "serve.extra_args"),
        )
    elif has_credentials(one.value):
        made.leave(one.flag, "its value holds a user or a password, which does not belong in a profile")
    elif one.flag == "--host":
        _host(made, one.value or "")
    elif one.flag == "--port" and one.value:
        made.content.setdefault("serve", {}).setdefault("port", int(one.value) if one.value.isdecimal() else one.value)
    elif one.flag in ("--api-key", "--hf-token"):
        variable(made, {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}[one.flag], None)
        made.leave(one.flag, "its value is a secret: export it in the shell, pass_env names it")
    elif one.flag == "--enable-auto-tool-choice":
        pass  # chat.tool_call_parser sets it
    elif one.flag in OF_EACH_RANK:
        made.leave(one.flag, "nodes: N and fleet.yaml set it for each machine")
    elif one.flag == "--config":
        made.leave(f"--config {one.value}", "write its lines under serve:, with underscores")
    elif key in Serve.model_fields and key != "extra_args" and "." not in one.written:
        made.put("serve", key, not one.negated if one.value is None else _read(one.value))
    elif one.flag not in ("--speculative-config", *_SPEC) and is_module(one.value):
        made.leave(f"{one.flag} {one.value}", CODE.format("serve.extra_args"))
    elif one.flag not in ("--speculative-config", *_SPEC):
        made.content.setdefault("serve", {}).setdefault("extra_args", []).extend(_again(one))


def _again(one: Argument) -> list[str]:
    """Return the words of a flag as they were written."""
    if one.value is None or one.written.startswith("-O"):
        return [one.written]
    return [f"{one.written}={one.value}"] if one.value.startswith("-") else [one.written, one.value]


def _host(made: TakenOver, value: str) -> None:
    if value in ("localhost", "127.0.0.1", ""):
        return
    made.put("serve", "bind", value)
    variable(made, "VLLM_API_KEY", None)
    made.leave(f"--host {value}", "other machines reach it, so it asks for a key: export VLLM_API_KEY=…")


def _speculative(made: TakenOver, command: Command) -> None:
    """Take over --speculative-config and its short forms: the model is `draft`, the rest `speculative`."""
    given: dict[str, Any] = {}
    text = command.value("--speculative-config")
    if text:
        found = _read(text)
        if not isinstance(found, dict):
            raise UsageError(f"--speculative-config: {text[:80]!r} is not a JSON object")
        given |= found
    given |= {key: _read(value) for flag, key in _SPEC.items() if (value := command.value(flag))}
    for key, value in given.items():
        if key in _OF_DRAFT:
            made.put("draft", _OF_DRAFT[key], value)
        else:
            made.put("speculative", key, value)


def _read(value: str) -> Any:
    """Return JSON and numbers as values, other text as it is; 32k is 32000 and 32K is 32768, as vLLM reads them."""
    if found := _SHORT.fullmatch(value):
        return int(float(found[1]) * (_UNITS[found[2].lower()][found[2].isupper()]))
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
