"""Arguments of `vllm serve` as keys of a profile. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.command import Argument, Command, release_of_tag, words_of
from gemmaspec.core.profile.fields import Speculative, secret_name
from gemmaspec.core.profile.foreign_words import option_meant
from gemmaspec.core.profile.model import Chat, Serve
from gemmaspec.core.profile.rules import OF_EACH_RANK
from gemmaspec.core.profile.takeover_compile import compiles_plainly
from gemmaspec.core.profile.takeover_trust import CODE, has_credentials, is_harmless, is_module, names_code, runs_code
from gemmaspec.core.releases.facts import facts_for, known_variables, nearest, newest, spans

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHORT: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([kKmM])")
_UNITS: Final = {"k": (1000, 1024), "m": (1000**2, 1024**2)}
"""Lower case is decimal, upper case binary (human_readable_int in vllm/engine/arg_utils.py, every release)."""
_TOKEN: Final = re.compile(r"(?:hf_|sk-|ghp_|xox[bp]-)[A-Za-z0-9_-]{12,}")
"""Texts that are secrets, whatever they are called."""
_CHAT: Final = {
    "--chat-template": "template",
    "--chat-template-content-format": "content_format",
    "--default-chat-template-kwargs": "template_kwargs",
    "--reasoning-parser": "reasoning_parser",
    "--tool-call-parser": "tool_call_parser",
}
_TARGET: Final = {"--model": "model", "--revision": "revision", "--quantization": "quantization"}
_SPEC: Final = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
_OLD_SPEC: Final = {
    "--speculative-model": "model",
    "--num-speculative-tokens": "num_speculative_tokens",
    "--speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
}
"""Options of releases before those that serve Gemma 4, which guides still show."""
ADOPT: Final = (
    "gemmaspec profile new mine --from-running CONTAINER    # or PID: start it as today, then adopt what runs"
)
"""What to do with a text that does not say what it serves."""
OUTPUT: Final = "OUTPUT_OF_"
"""Begins the name that stands for what a command prints."""
TOKENS: Final = 4
"""Tokens that a draft drafts until `tune` has measured better: what most shipped profiles with an MTP head draft."""
_OF_DRAFT: Final = frozenset({"model", "revision", "quantization"})
_LOOKED_UP: Final = frozenset({"ngram", "[ngram]"})
"""Models that vLLM takes for a method (vllm/config/speculative.py, every release)."""
_HEAD: Final = re.compile(r"[\w.-]+/(gemma-4-[\w.-]+-it)-speculator\.(eagle3|dflash2?|dspark)")
"""Heads of the speculators project, which vLLM also takes as the model: it serves their target."""
_K: Final = "num_speculative_tokens"
_PER_BATCH: Final = "num_speculative_tokens_per_batch_size"
_EXAMPLE: Final = "tool_chat_template_gemma4.jinja"
"""vLLM's own template for Gemma 4, which `chat.template: gemma4` is, in the version of the release."""
_LONG_DASH: Final = re.compile(r"[\u2013\u2014\u2212]{1,2}-?(?=[A-Za-z])")
_OTHER_GPU: Final = re.compile(r"(?:ZE|ONEAPI|SYCL|HIP|HSA|ROCR|ROCM|AMD|ASCEND|VLLM_ROCM|VLLM_XPU)_\w+")
"""Variables of Intel's, AMD's and Huawei's accelerators."""
NVIDIA_ALONE: Final = "it is for an accelerator of AMD, Intel or Huawei; gemmaspec serves on NVIDIA GPUs and on CPUs"
_OPEN: Final = re.compile(r"\$(?:\w+|\{\w+\}?|[@*])")


@dataclass(kw_only=True)
class TakenOver:
    """A profile in the making."""

    content: dict[str, Any] = field(default_factory=dict)
    """Its keys."""
    left: list[str] = field(default_factory=list)
    """What could not be taken over, each with what gemmaspec does instead."""
    decided: list[str] = field(default_factory=list)
    """What was taken over in another form, or chosen because nothing said it."""
    mounts: dict[str, str] = field(default_factory=dict)
    """Folder in the container → folder of this machine."""
    cached: dict[str, str] = field(default_factory=dict)
    """The same for a folder of checkpoints that `caches` has, in which a model may lie, too."""
    release: str | None = None
    """The vLLM release that was installed, where no image says it."""
    contained: bool = False
    """Whether the server ran in a container, so that its paths are those of the container."""
    published: bool = False
    """Whether serve.port is the one that a container publishes, and not the one inside."""
    beside: Callable[[str], bytes | None] | None = None
    """Reads a file of this machine that the command names; None where nothing may be read."""
    exact: bool = False
    """Whether the words are those of a process, in which a $ is a $ and nothing is left to fill in."""

    def on_this_machine(self, path: str) -> tuple[str | None, str]:
        """Return the mount that a path of the container is in, if any, and the path on this machine."""
        folders = self.mounts | self.cached
        for inside in sorted(folders, key=len, reverse=True):
            if path == inside or path.startswith(inside.rstrip("/") + "/"):
                return inside, folders[inside].rstrip("/") + path[len(inside.rstrip("/")) :]
        return None, path

    def put(self, section: str, key: str, value: Any) -> None:
        """Set a key."""
        self.content.setdefault(section, {})[key] = value

    def leave(self, what: str, instead: str) -> None:
        """Note what has no key."""
        self.left.append(f"{what}: {instead}")

    def decide(self, what: str, why: str) -> None:
        """Note what differs from what was given, or was chosen."""
        self.decided.append(f"{what}: {why}")


def from_words(made: TakenOver, words: Sequence[str]) -> None:
    """Take over the arguments of `vllm serve`. Raises UsageError for arguments without a model."""
    release = release_of_tag(str(made.content.get("image", ""))) or made.release or newest()
    facts = facts_for(nearest(release))
    if list(words[:2]) == ["vllm", "serve"]:
        made.decide("vllm serve", "it stands there twice, which vLLM refuses: the image starts it already")
        words = words[2:]
    if words and not words[0].startswith("-"):
        made.put("target", "model", words[0])
        words = words[1:]
    parts: list[str] = []
    for word in words:
        parts += _parted(made, word)
    command = words_of(parts, facts.flags if facts else {})
    for argument in command.arguments:
        _take(made, argument)
    for _, word in command.unclaimed:
        if made.content.get("target", {}).get("model"):
            made.leave(_shown(word), "no flag of vLLM takes this word")
        else:
            made.put("target", "model", word)
    _speculative(made, command)
    if any(arg.flag == "--enable-auto-tool-choice" for arg in command.arguments) and not made.content.get(
        "chat", {}
    ).get("tool_call_parser"):
        made.leave("--enable-auto-tool-choice", "it needs a parser: chat.tool_call_parser sets both")
    if not made.content.get("target", {}).get("model"):
        raise UsageError("there is no model: neither after `vllm serve` nor with --model", hint=ADOPT)
    if not command.given("--host"):
        made.decide(
            "no --host", "vLLM listens on all addresses; the profile listens on 127.0.0.1 until serve.bind says more"
        )
    _settle(made)


def _parted(made: TakenOver, word: str) -> list[str]:
    """Return the words of `--flag value` that was written as one, which vLLM refuses."""
    if dash := _LONG_DASH.match(word):
        made.decide(_shown(word), f"it begins with {dash[0]!r}, a dash of a text; an option begins with two hyphens")
        return _parted(made, f"--{word[dash.end() :]}")
    parts = word.split(" ", 1)
    if len(parts) == 1 or not re.fullmatch(r"--[A-Za-z][\w.-]*", parts[0]):
        return [word]
    made.decide(_shown(word), "one word there, which vLLM refuses; taken as an option and its value")
    return [parts[0], parts[1].strip()]


def variable(made: TakenOver, name: str, value: str | None) -> None:
    """Take over an environment variable; only a value that is known to be no secret is written."""
    if not _NAME.fullmatch(name):
        made.leave(f"variable {name[:80]!r}", "it is not the name of a variable")
    elif _OTHER_GPU.fullmatch(name):
        made.leave(name, NVIDIA_ALONE)
    elif name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") and value:
        if value.rstrip("/").endswith("/hub") and not made.contained and not _OPEN.search(value):
            made.put("caches", "huggingface", value.rstrip("/").removesuffix("/hub"))
        else:
            made.leave(f"{name}={value}", "caches.huggingface names the folder that holds hub/, on this machine")
    elif name == "HF_HOME" and value is not None and made.contained:
        made.mounts.setdefault(name, value)
    elif name == "HF_HOME" and (value or "").startswith(("/", "~", "./")):
        made.put("caches", "huggingface", value)
    elif runs_code(name):
        made.leave(name, CODE.format(f"env.{name}"))
    elif value is None or secret_name(name) or not is_harmless(name, value, known_variables()):
        if value is not None:
            made.leave(
                f"the value of {name}", "it is written nowhere, as it may be a secret; export it, pass_env names it"
            )
        passed = made.content.setdefault("pass_env", ["HF_TOKEN"])
        if name not in passed:
            passed.append(name)
    else:
        made.put("env", name, value)


def _shown(word: str) -> str:
    """Return a word without the value of a secret."""
    name, equals, _ = word.partition("=")
    return _TOKEN.sub("…", f"{name}=…" if equals and secret_name(name) else word)


def _take(made: TakenOver, arg: Argument) -> None:
    key = arg.flag.removeprefix("--").replace("-", "_")
    if arg.flag == "--speculative-config" or arg.flag in _SPEC or arg.flag in _OLD_SPEC:
        return
    if key == "trust_remote_code":
        made.leave(arg.flag, "Gemma 4 runs no code of its checkpoint; serve.trust_remote_code: true if yours does")
    elif names_code(arg.flag, arg.keys, value := _read(arg.value or " ".join(arg.words))) and not compiles_plainly(
        arg.flag, arg.keys, value
    ):
        name = arg.written.partition("=")[0]
        made.leave(f"{name} {arg.value or ''}".rstrip(), CODE.format("serve.extra_args"))
    elif any(has_credentials(word) for word in (arg.value, *arg.words)):
        made.leave(arg.flag, "its value holds a user or a password, which does not belong in a profile")
    elif arg.keys:
        _take_one_key(made, arg, key)
    elif arg.flag in _TARGET and arg.value:
        made.put("target", _TARGET[arg.flag], arg.value)
    elif arg.flag in _CHAT and arg.value:
        made.put("chat", _CHAT[arg.flag], _read(arg.value))
    elif arg.flag == "--host":
        _host(made, arg.value or "")
    elif arg.flag == "--port" and arg.value:
        if not made.published:
            made.put("serve", "port", _read(arg.value))
    elif arg.flag in ("--api-key", "--hf-token"):
        variable(made, {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}[arg.flag], None)
        made.decide(arg.flag, "its value is a secret: export it in the shell, pass_env names it")
    elif arg.flag == "--enable-auto-tool-choice":
        pass  # chat.tool_call_parser sets it
    elif arg.flag == "--nnodes" and (arg.value or "").isdecimal():
        made.content["nodes"] = int(arg.value or 1)
    elif arg.flag in OF_EACH_RANK:
        made.leave(f"{arg.flag} {arg.value or ''}".rstrip(), "nodes: N and fleet.yaml set it for each machine")
    elif key == "limit_mm_per_prompt" and isinstance(value, dict) and not all(map(_is_count, value.items())):
        made.decide(f"{arg.flag} {arg.value}", f"serve.{key} has counts alone; serve.extra_args takes sizes, too")
        _extra(made, arg)
    elif key == "max_model_len" and str(value).lower() in ("-1", "auto"):
        made.decide(f"{arg.flag} {value}", f"serve.{key} is a number, as fit needs; vLLM takes what fits")
        _extra(made, arg)
    elif key in Serve.model_fields and key not in ("extra_args", "bind") and len(arg.words) < 2:
        made.put("serve", key, not arg.negated if arg.value is None else _read(arg.value))
    elif any(is_module(word) for word in (arg.value, *arg.words)):
        made.leave(f"{arg.flag} {arg.value or ' '.join(arg.words)}", CODE.format("serve.extra_args"))
    elif spans("flag", arg.flag).startswith("in no ") and (meaning := _foreign(arg)):
        made.leave(" ".join(map(_shown, [arg.written, *arg.words])), meaning)
    else:
        _extra(made, arg)


def _foreign(arg: Argument) -> str:
    """Return what an option of another server means here; empty for one that nobody knows."""
    value = _shown(arg.value or " ".join(arg.words[:1]))
    meaning = option_meant(arg.flag, value, {"serve": Serve.model_fields}) or ""
    if "--set" in meaning or "vLLM" in meaning:
        return meaning
    return ""


def _take_one_key(made: TakenOver, argument: Argument, key: str) -> None:
    """Take over `--a.b value`, which sets one key of a flag's JSON."""
    of_chat = _CHAT.get(argument.flag)
    section, name, known = ("chat", of_chat, Chat) if of_chat else ("serve", key, Serve)
    held = made.content.get(section, {}).get(name, {})
    is_map = name in known.model_fields and "dict" in str(known.model_fields[name].annotation)
    is_one = len(argument.keys) == 1 and not argument.written.endswith("+")
    if is_map and is_one and isinstance(held, dict) and argument.value is not None:
        made.put(section, name, {**held, argument.keys[0]: _read(argument.value)})
    else:
        _extra(made, argument)


def _extra(made: TakenOver, argument: Argument) -> None:
    """Add the words of a flag as they were written to serve.extra_args."""
    whole = "=" in argument.written or argument.written.startswith("-O")
    words = [argument.written, *(() if whole else argument.words)]
    if len(words) == 2 and words[1].startswith("-"):
        words = ["=".join(words)]
    made.content.setdefault("serve", {}).setdefault("extra_args", []).extend(words)


def _is_count(limit: tuple[str, Any]) -> bool:
    return limit[0] in ("image", "video", "audio") and not isinstance(limit[1], dict)


def _host(made: TakenOver, value: str) -> None:
    if value in ("localhost", "127.0.0.1", ""):
        return
    made.put("serve", "bind", value)
    variable(made, "VLLM_API_KEY", None)
    made.decide(f"--host {value}", "other machines reach it, so it asks for a key: export VLLM_API_KEY=…")


def _speculative(made: TakenOver, command: Command) -> None:
    """Take over --speculative-config in all its forms: the model is `draft`, the rest `speculative`."""
    given: dict[str, Any] = {}
    for argument in command.arguments:
        if argument.flag in _SPEC and argument.value is not None:
            given[_SPEC[argument.flag]] = _read(argument.value)
        elif argument.flag == "--speculative-config" and argument.keys:
            given[".".join(argument.keys).replace("-", "_")] = _read(argument.value or "null")
        elif argument.flag in _OLD_SPEC and (value := argument.value or next(iter(argument.words), "")):
            given[_OLD_SPEC[argument.flag]] = _read(value)
            made.decide(
                f"{argument.flag} {value}", "no vLLM that serves Gemma 4 has this option; speculative: says the same"
            )
        elif argument.flag == "--speculative-config":
            config = _read(argument.value or "")
            if isinstance(config, str) and not made.exact and (held := _OPEN.findall(config)):
                why = f"--speculative-config: write the value of {held[0]}, which the command does not set"
                raise UsageError(why, hint=ADOPT)
            if not isinstance(config, dict):
                kept = 'in single quotes the shell keeps it whole: \'{"method": "mtp", …}\''
                raise UsageError(
                    f"--speculative-config: {argument.value!r:.80} is not a JSON object; {kept}", hint=ADOPT
                )
            given |= config
    target = made.content.get("target", {}).get("model", "")
    if not given and (head := _HEAD.fullmatch(str(target))):
        given = {"model": target, "method": head[2]}
        made.put("target", "model", f"google/{head[1]}")
        made.decide(f"target.model: google/{head[1]}", f"{target} is a draft; vLLM serves the target that it names")
    if given.get("model") in _LOOKED_UP:
        given["method"] = "ngram"
        del given["model"]
    if str(given.get("method")).endswith("_mtp"):
        given["method"] = "mtp"  # the deprecated names of MTPModelTypes, which vLLM replaces too
    for key, value in given.items():
        if key in _OF_DRAFT:
            made.put("draft", key, value)
        elif key == _PER_BATCH and isinstance(value, list):
            made.put("speculative", "k_by_requests", dict(_first_and_k(value)))
        elif key in Speculative.model_fields:
            made.put("speculative", key, value)
        else:
            made.leave(f"--speculative-config {key}", "has no key in a profile")


def _first_and_k(rows: Sequence[Any]) -> Iterator[tuple[int, int]]:
    for row in rows:
        if not (isinstance(row, list) and len(row) == 3 and all(isinstance(number, int) for number in row)):
            raise UsageError(f"--speculative-config: {_PER_BATCH} has rows of three numbers, not {row!r:.80}")
        yield row[0], row[2]


def _settle(made: TakenOver) -> None:
    """Replace paths of the container by those of this machine, and name what only the shell knew."""
    home = made.mounts.pop("HF_HOME", None)
    used = {home} & made.mounts.keys()
    if home and home in made.mounts:
        made.put("caches", "huggingface", made.mounts[home])
    elif home:
        made.leave(f"HF_HOME={home}", "caches.huggingface names the folder on this machine")
    for section, key in (("target", "model"), ("draft", "model"), ("chat", "template")):
        path = made.content.get(section, {}).get(key)
        if isinstance(path, str):
            used |= _settle_path(made, section, key, path)
    for inside, source in made.mounts.items():
        if inside not in used:
            made.leave(
                f"volume {source}:{inside}",
                "models in a folder are mounted by target.model: /FOLDER, caches by `caches`",
            )
    for section in ("target", "draft"):
        model = str(made.content.get(section, {}).get("model", ""))
        if _OPEN.search(model) and not made.exact:
            raise UsageError(
                f"the {section}'s model is {_open(model)}: write its value, which the command does not set", hint=ADOPT
            )
    if not made.exact:
        _without_open(made, made.content, "")
    if made.content.get("speculative") and not made.content["speculative"].keys() & {_K, "k_by_requests"}:
        made.put("speculative", _K, TOKENS)
        made.decide(f"speculative.{_K}: {TOKENS}", "the command does not say it; gemmaspec tune finds the fastest")


def _without_open(made: TakenOver, value: dict[str, Any], place: str) -> None:
    """Take out, and name, what only the shell knew: texts with a variable, or with what a command prints."""
    for key, inner in list(value.items()):
        here = f"{place}.{key}".lstrip(".")
        if isinstance(inner, dict):
            _without_open(made, inner, here)
        elif isinstance(inner, str) and _OPEN.search(inner):
            del value[key]
            made.leave(f"{here}: {_open(inner)}", "the command does not set it: write the value")
        elif isinstance(inner, list):
            open_words = [index for index, item in enumerate(inner) if isinstance(item, str) and _OPEN.search(item)]
            for index in reversed(open_words):
                _leave_word(made, inner, index, here)


def _leave_word(made: TakenOver, words: list[str], index: int, place: str) -> None:
    """Take a word out of a list, with the option that it is the only value of."""
    after = words[index + 1 : index + 2]
    follows_option = index > 0 and words[index - 1].startswith("-") and "=" not in words[index - 1]
    is_value = not words[index].startswith("-")
    is_last = not after or after[0].startswith("-")
    if follows_option and is_value and is_last:
        first = index - 1
    else:
        first = index
    made.leave(f"{place}: {_open(' '.join(words[first : index + 1]))}", "the command does not set it: write the value")
    del words[first : index + 1]


def _open(text: str) -> str:
    """Return a text as it is shown: what a command prints is named by its command."""
    return re.sub(rf"\$\{{?{OUTPUT}(\w+?)\}}?(?=\W|$)", r"what \1 prints", text)


def _settle_path(made: TakenOver, section: str, key: str, path: str) -> set[str | None]:
    """Put the path of this machine, and return the mount that it came from."""
    if path.rpartition("/")[2] == _EXAMPLE:
        made.put(section, key, "gemma4")
        made.decide(f"--chat-template {path}", "chat.template: gemma4 is this template, as the release has it")
        return set()
    inside, here = made.on_this_machine(path)
    if inside:
        made.put(section, key, here)
        return {inside}
    if made.contained and path.startswith(("/", "./")) and section != "chat":
        made.leave(f"{section}.{key} {path}", "a path of the container; write the folder on this machine")
    return set()


def _read(value: str) -> Any:
    """Return JSON and numbers as values, other text as it is; 32k is 32000 and 32K is 32768, as vLLM reads them."""
    if short := _SHORT.fullmatch(value):
        return int(float(short[1]) * (_UNITS[short[2].lower()][short[2].isupper()]))
    if value in ("True", "False"):
        return value == "True"
    try:
        return json.loads(f"0{value}" if re.fullmatch(r"\.[0-9]+", value) else value)
    except (ValueError, RecursionError):
        return value
