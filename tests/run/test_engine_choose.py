"""Choosing between the engines."""

from __future__ import annotations

import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.engine import endpoint
from gemmaspec.run.engine.choose import choose_engine, engine_named
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.engine.server import EngineName


def test_without_docker_the_process_engine_is_chosen_and_the_reason_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    engine, why = choose_engine(None)
    assert engine.name == "process"
    assert why == ("process: docker is not answering: no socket at unix:///nonexistent (DOCKER_HOST)")


def test_a_profile_that_only_docker_can_run_says_that_docker_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    with pytest.raises(EnvironmentMissing, match=r"docker is not answering: .*no runtime.vllm for a process"):
        choose_engine(None, profile=load_profile("spark-31b-e2b").profile)
    profile = load_profile("spark-31b-e2b", overrides=["runtime.vllm=0.33.0"]).profile
    assert choose_engine(None, profile=profile)[0].name == "process"


def test_a_forced_docker_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    with pytest.raises(EnvironmentMissing, match="no socket"):
        choose_engine("docker")


def test_a_forced_process_does_not_ask_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "nowhere")
    engine, why = choose_engine("process")
    assert (engine.name, why) == ("process", "process: chosen with --engine")


def test_an_engine_can_be_had_by_name_without_asking_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    assert engine_named("docker").name == "docker"
    assert engine_named("process").name == "process"
    assert not engine_named("process").remote


@pytest.mark.real_docker
@pytest.mark.parametrize("forced", [None, "docker"])
def test_a_docker_that_answers_is_chosen(forced: EngineName | None) -> None:
    try:
        endpoint.connect(endpoint.find()).close()
    except EnvironmentMissing as missing:
        pytest.skip(f"real docker: {missing.message}")
    engine, why = choose_engine(forced)
    assert isinstance(engine, DockerEngine)
    engine.close()
    assert why.startswith("docker: ")
    assert "version" in why
