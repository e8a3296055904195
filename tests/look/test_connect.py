"""`connect`: settings that clients can read, made from a started profile."""

from __future__ import annotations

import ast
import json
import shlex
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gemmaspec.cli.app import run
from gemmaspec.look.connect import CLIENTS, ServerAddress, note, settings, warnings
from tests.support.fake_engine import FakeMachine

OPEN = ServerAddress(name="a", url="http://127.0.0.1:8001", model="o/m", needs_key=False, context=131072, tools=True)
KEYED = ServerAddress(name="a", url="http://127.0.0.1:8001", model="o/m", needs_key=True, context=None, tools=False)
ODD = replace(OPEN, name="b", model="a'b\"c: {d} # $(e) `f` \\g")


@pytest.mark.parametrize("to", [OPEN, KEYED])
@pytest.mark.parametrize("client", CLIENTS)
def test_settings_name_address_model_and_key(client: str, to: ServerAddress) -> None:
    text = settings(client, to)
    assert "http://127.0.0.1:8001" in text
    assert client in ("open-webui", "n8n") or "o/m" in text  # where the model is chosen in a window
    assert ("VLLM_API_KEY" in text) is to.needs_key


@pytest.mark.parametrize("to", [OPEN, KEYED, ODD])
def test_settings_have_the_form_that_their_program_reads(to: ServerAddress) -> None:
    ast.parse(settings("openai", to))
    opencode = json.loads(settings("opencode", to))
    assert opencode["provider"]["gemmaspec"]["options"]["baseURL"] == "http://127.0.0.1:8001/v1"
    assert to.model in opencode["provider"]["gemmaspec"]["models"]
    (one,) = yaml.safe_load(settings("continue", to))["models"]
    assert (one["apiBase"], one["model"]) == ("http://127.0.0.1:8001/v1", to.model)
    litellm = yaml.safe_load(settings("litellm", to))
    assert litellm["model_list"][0]["model_name"] == to.model
    assert litellm["general_settings"]["master_key"] == "os.environ/LITELLM_MASTER_KEY"
    (one,) = yaml.safe_load(settings("llm", to))
    assert (one["api_base"], one["model_name"]) == ("http://127.0.0.1:8001/v1", to.model)
    aider = yaml.safe_load(settings("aider", to))
    assert (aider["openai-api-base"], aider["model"]) == ("http://127.0.0.1:8001/v1", f"openai/{to.model}")
    (one,) = yaml.safe_load(settings("librechat", to))["endpoints"]["custom"]
    assert (one["baseURL"], one["models"]["default"]) == ("http://127.0.0.1:8001/v1", [to.model])
    codex = tomllib.loads(settings("codex", to))
    provider = codex["model_providers"][codex["model_provider"]]
    assert (codex["model"], provider["base_url"]) == (to.model, "http://127.0.0.1:8001/v1")
    assert provider.get("env_key") == ("VLLM_API_KEY" if to.needs_key else None)
    (credential,) = json.loads(settings("n8n", to))
    assert credential["data"]["url"] == "http://127.0.0.1:8001/v1"
    first, second = settings("curl", to).split("curl ")[1:]
    assert json.loads(shlex.split(first)[-1])["model"] == to.model
    assert json.loads(shlex.split(second)[-1])["stream"] is True
    for client in ("environment", "claude-code"):
        lines = settings(client, to).splitlines()
        assert all(line.startswith("export ") and len(shlex.split(line)) == 2 for line in lines)
    assert shlex.split(settings("open-webui", to))[-1] == "ghcr.io/open-webui/open-webui:main"


def test_claude_code_is_told_how_long_a_conversation_may_be() -> None:
    """2.1.197 takes 200,000 tokens for granted where the variable is not set and the model is none of Anthropic's."""
    assert "export CLAUDE_CODE_MAX_CONTEXT_TOKENS=131072" in settings("claude-code", OPEN)
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS" not in settings("claude-code", KEYED)


@pytest.mark.parametrize("client", CLIENTS)
def test_hosted_tools_are_named_where_a_client_sends_them(client: str) -> None:
    told = settings(client, OPEN) + note(client, OPEN)
    assert ("hosted tool" in told or "hosted ones" in told) is (client in ("claude-code", "codex", "n8n"))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("claude", "claude-code"),
        ("Codex-CLI", "codex"),
        ("webui", "open-webui"),
        ("openai-python", "openai"),
        ("n8", "n8n"),
    ],
)
def test_a_client_with_a_near_name_is_offered(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", typed]) == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_an_agent_is_warned_of_a_server_without_tools_or_with_a_short_context() -> None:
    assert warnings("opencode", OPEN) == []
    assert "has no tool parser" in warnings("opencode", KEYED)[0]
    short = ServerAddress(name="a", url="http://a", model="m", needs_key=False, context=1024, tools=True)
    assert "takes 1024 tokens" in warnings("claude-code", short)[0]
    assert warnings("openai", short) == []


def test_connect_knows_the_only_started_profile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["connect", "openai"]) == 2
    assert "no profile was started here" in capsys.readouterr().err
    machine = FakeMachine()
    machine.install(monkeypatch)
    assert run(["up", "tiny-cpu", "--engine", "process", "--set", f"runtime.python={sys.executable}"]) == 0
    assert "clients   gemmaspec connect" in capsys.readouterr().out
    assert run(["connect", "openai"]) == 0
    assert 'base_url="http://127.0.0.1:8321/v1"' in capsys.readouterr().out
    assert run(["connect", "claude-code", "tiny-cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
    assert run(["connect", "claude-code", "tiny-cpu", "other"]) == 2
    assert run(["connect", "grafana", "tiny-cpu"]) == 2
    assert run(["connect", "emacs"]) == 2
    assert run(["connect"]) == 0
    assert "gemmaspec connect opencode" in capsys.readouterr().out


def test_llama_swap_gets_a_command_that_lives_as_long_as_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    """llama-swap of 2026-08-22 ran this: it started, swapped and stopped servers, and its schema takes the keys."""
    assert run(["connect", "llama-swap", "spark-31b-mtp", "tiny-cpu"]) == 0
    models = yaml.safe_load(capsys.readouterr().out)["models"]
    assert list(models) == ["spark-31b-mtp", "tiny-cpu"]
    assert shlex.split(models["tiny-cpu"]["cmd"]) == [
        "sh", "-c", "gemmaspec up tiny-cpu && exec gemmaspec logs -f tiny-cpu",
    ]  # fmt: skip
    assert models["tiny-cpu"]["proxy"] == "http://127.0.0.1:8321"
    assert models["spark-31b-mtp"]["useModelName"] == "LilaRest/gemma-4-31B-it-NVFP4-turbo"
    known = {"cmd", "cmdStop", "proxy", "checkEndpoint", "useModelName", "ttl", "unloadTimeout", "concurrencyLimit"}
    assert set(models["tiny-cpu"]) == known


def test_a_profile_in_a_folder_with_a_blank_is_still_one_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "it's mine" / "own.yaml"
    file.parent.mkdir()
    file.write_text("extends: tiny-cpu\nname: own\n")
    assert run(["connect", "llama-swap", str(file)]) == 0
    command = shlex.split(yaml.safe_load(capsys.readouterr().out)["models"]["own"]["cmd"])
    assert shlex.split(command[2])[:3] == ["gemmaspec", "up", str(file)]
