"""The command line itself: help, version, completion, errors and exit codes."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from inspect import getsource
from pathlib import Path
from types import FunctionType

import pytest
from pydantic_core import SchemaSerializer, core_schema

from gemmaspec import __version__
from gemmaspec.check.carry.verify import VerifyRequest
from gemmaspec.check.use_cases.fit import FitRequest
from gemmaspec.check.use_cases.inspect import InspectRequest
from gemmaspec.check.use_cases.predict import PredictRequest
from gemmaspec.cli import app as cli
from gemmaspec.cli.app import run
from gemmaspec.cli.bench import bench
from gemmaspec.cli.fit import fit
from gemmaspec.cli.inspect import inspect
from gemmaspec.cli.patch import verify
from gemmaspec.cli.patch_measure import measure
from gemmaspec.cli.predict import predict
from gemmaspec.cli.render import render
from gemmaspec.cli.smoke import smoke
from gemmaspec.cli.tune import tune
from gemmaspec.cli.up import up
from gemmaspec.core.data import ROOT
from gemmaspec.core.files import state_dir
from gemmaspec.look.smoke import SmokeRequest
from gemmaspec.measure.bench.settings import BenchRequest
from gemmaspec.measure.tune.trials import TuneRequest
from gemmaspec.run.cluster.server import ClusterSettings
from gemmaspec.run.kept.stack_lock import Terminated
from gemmaspec.serve.decide import UpRequest
from gemmaspec.serve.spot import MeasureRequest
from tests.check.test_fit_cli import TEXT

COMMANDS = (
    "up",
    "down",
    "restart",
    "status",
    "logs",
    "render",
    "profile",
    "patch",
    "inspect",
    "fit",
    "doctor",
    "lock",
    "rollback",
    "pull",
    "predict",
    "bench",
    "compare",
)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"gemmaspec {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "Usage: gemmaspec" in printed
    assert all(line.strip() for line in printed.splitlines()[:1])


def test_help_names_every_command_and_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-h"]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in COMMANDS)
    assert "Start here: gemmaspec up, which offers" in printed


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["up", "spark-31b-e2"], 2, "did you mean spark-31b-e2b"),
        (["up", "/no/such.yaml"], 2, "the profile file /no/such.yaml does not exist"),
        (["up", "tiny-cpu", "--engine", "podman"], 2, "--engine must be docker or process, not 'podman'"),
        (["up", "tiny-cpu", "--set", "nonsense"], 2, "must be KEY=VALUE"),
        (["up"], 2, "without a terminal nothing can be asked"),
        (["upp"], 2, "No such command"),
        (["down", "never-started"], 2, "no stack named 'never-started' was started"),
        (["logs", "never-started"], 2, "no stack named"),
        (["status", "never-started"], 2, "no stack named"),
        (["restart", "never-started"], 2, "no stack named"),
        (["render", "tiny-cpu", "--set", "image=null"], 2, "image: is missing, but a container needs it"),
        (["render", "tiny-cpu", "--set", "chat.template=nothing.jinja"], 2, "chat.template: cannot read"),
        (["render", "tiny-cpu", "--set", "patches.required=[draft-text-onli]"], 2, "draft-text-only"),
        (["up", "spark-31b", "--engine", "process"], 2, "runtime.vllm"),
    ],
)
def test_a_mistake_is_one_clear_error_with_its_exit_code(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    printed = capsys.readouterr()
    assert said in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_down_of_an_unknown_server_does_not_offer_to_start_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["down", "tiny-cpu-ngram"]) == 2
    assert "  try: gemmaspec status\n" in capsys.readouterr().err


def test_a_tuned_profile_that_is_missing_names_the_command_that_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "spark-31b-mtp-tuned", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "spark-31b-mtp was not tuned yet, so spark-31b-mtp-tuned is missing" in said
    assert "try: gemmaspec tune spark-31b-mtp\n" in said


@pytest.mark.parametrize(
    ("command", "hint"),
    [("fit", "try: gemmaspec fit nvidia-31b-mtp --machine nvidia --memory 16"), ("predict", "try: --m")],
)
def test_an_unknown_machine_names_what_to_give_instead(
    command: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "nvidia-31b-mtp", "--machine", "4090+5090"]) == 2
    assert f"  {hint}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "override",
    [
        "foo=1", "nonsense", "=3", "serve", "serve..port=3", "--max-model-len=4", "serve.max_model_len=abc",
        "serve.max_model_len=-1", "serve.port=99999999", "serve.port=0x50", "serve.prot=1", "serve=3", "k=4",
        "replicas=0", "name=Other Name", "patches=all", "machine=foo", "target=", "runtime.vllm=0.1.0",
        "serve.extra_args=[", "serve.port=!!python/object:os.system", "serve.port=&a [*a]", "watch.memory_guard=200",
        "serve.attention_backend=FOO", "image=null",
    ],
)  # fmt: skip
def test_every_wrong_set_ends_with_a_next_command(override: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "tiny-cpu", "--engine", "docker", "--dry-run", "--set", override]) in (2, 4)
    said = capsys.readouterr().err
    _, found, hint = said.partition("  try: ")
    assert found
    assert "--set" in said
    assert hint.startswith(("gemmaspec ", "--set "))


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        ("bench tiny-cpu --running --url http://x", "gemmaspec bench --help"),
        ("bench tiny-cpu --k 999 --dry-run", "gemmaspec bench --help"),
        ("fit tiny-cpu --release abc", "gemmaspec fit --help"),
        ("profile new x1 --from-compose /no.yaml", "gemmaspec profile new --help"),
        ("profile new x1 --from tiny-cpu --with-draft", "gemmaspec profile new --help"),
        ("bench", "gemmaspec profile list"),
    ],
)
def test_a_wrong_command_line_ends_with_a_next_command(
    words: str, asks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    assert f"  try: {asks}\n" in capsys.readouterr().err


def test_a_value_of_set_that_is_no_yaml_is_shown_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "tiny-cpu", "--dry-run", "--set", "serve.extra_args=["]) == 2
    said = capsys.readouterr().err
    assert "--set serve.extra_args: '[' is not a value in YAML: did not find expected node content" in said
    assert "--set serve.extra_args=[first, second] is a list" in said


def test_an_error_of_a_file_names_the_command_that_checks_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("extends: tiny-cpu\nname: own\nserve: {port: 999999}\n")
    assert run(["up", str(file), "--dry-run"]) == 2
    assert f"  try: gemmaspec profile lint {file}" in capsys.readouterr().err


def test_an_error_as_json_is_one_document_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "nothing-like-it", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["ok"] is False
    assert document["error"]["hint"] == "gemmaspec profile list"


def test_a_model_folder_that_is_not_there_is_told_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--set", f"runtime.python={sys.executable}", "--set", "target.model=/no/such/model"]
    assert run(["up", "tiny-cpu", "--engine", "process", "--set", "draft.model=/no/such/draft", *arguments]) == 4
    assert "target.model: missing folder /no/such/model" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("inspect",), ("fit",), ("profile", "lint", "--models")])
def test_a_tiny_model_is_looked_at_before_up_has_copied_it(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "tiny-cpu"]) == 0, capsys.readouterr().err
    assert not (state_dir() / "tiny").exists()


@pytest.mark.parametrize("name", ["..", "tiny"])
def test_what_is_no_tiny_model_that_ships_is_missing_in_the_state_folder(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", "tiny-cpu", "--set", f"target.model=state:tiny/{name}"]) != 0
    assert str(ROOT) not in capsys.readouterr().err


def test_profile_list_names_every_shipped_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "list"]) == 0
    assert re.search(r"^spark-31b-e2b +shipped +dgx-spark +Gemma 4 31B", capsys.readouterr().out, re.MULTILINE)


def test_profile_list_keeps_going_past_one_that_is_not_valid(
    profiles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (profiles / "broken.yaml").write_text("schema: 7\n")
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(profiles))
    assert run(["profile", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["profiles"]}
    assert rows["broken"]["summary"].startswith("invalid:")
    assert rows["tiny-cpu"]["machine"] == "cpu"


def test_profile_show_has_everything_that_was_inherited(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "show", "spark-31b-e2b", "--set", "serve.port=8123"]) == 0
    printed = capsys.readouterr().out
    assert "max_model_len: 131072" in printed
    assert "port: 8123" in printed
    assert "18.05" in printed


def test_dry_run_says_what_would_happen_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    assert run(["up", "tiny-cpu", "--engine", "process", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "engine: process" in printed
    assert re.search(r"launch\.py'? --plan", printed), "a folder with a space is quoted"
    assert "vllm serve" in printed
    assert printed.count("write:") == 1
    assert f"files in {tmp_path}/state/stacks/tiny-cpu\n" in printed
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("release", "line"),
    [
        (
            "0.32.0",
            "speed:  triton-verify-split-kv (as vLLM 0.33.0 does); 3 patches not measured on this GPU: gemmaspec",
        ),
        ("0.33.0", "speed:  no patch; 1 patch not measured on this GPU: gemmaspec patch measure spark-31b-mtp"),
    ],
)
def test_a_dry_run_says_in_one_line_what_is_for_speed_and_about_how_large_an_image_is(
    release: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gemmaspec.serve.start_costs._image_bytes", lambda image: None)
    monkeypatch.setattr("gemmaspec.run.engine.pulling.is_here", lambda image: False)
    image = f"image=vllm/vllm-openai:v{release}"
    assert run(["up", "spark-31b-mtp", "--engine", "docker", "--dry-run", "--set", image]) in (0, 4)
    printed = capsys.readouterr().out
    if printed:  # a daemon answers
        (told,) = [text for text in printed.splitlines() if text.startswith("speed:")]
        assert told.startswith(line)
        assert "about 10 GB, as vLLM's images have" in printed


def test_the_line_about_speed_names_the_next_command_or_is_not_there() -> None:
    from gemmaspec.cli.text.dry_run import speed_line
    from gemmaspec.core import data
    from gemmaspec.core.patching.patch import Shelf
    from gemmaspec.core.profile.find import profile_names
    from gemmaspec.core.profile.load import load_profile
    from gemmaspec.run.stack.speed import speed_choice, untried

    shelf, said = Shelf(data.patch_folders()), {}
    for name in profile_names():
        profile = load_profile(name).profile
        said[name] = speed_line(name, speed_choice(profile, shelf), untried(profile, shelf))
    assert said["tiny-cpu"] == ""
    assert said["spark-31b-e2b"].endswith("; where each was: gemmaspec patch list")
    assert said["nvidia-31b-mtp"] == "6 patches, which gemmaspec up nvidia-31b-mtp --dry-run --json names"
    for name, line in said.items():
        assert len(line) <= 120, name
        assert "none" not in line or "gemmaspec " in line, name


@pytest.mark.parametrize(
    ("profile", "longest"), [("spark-31b-mtp", "262144"), ("tiny-cpu", "4096")], ids=["shapes that ship", "a folder"]
)
def test_a_context_beyond_the_model_is_refused_by_lint_render_fit_and_dry_run_alike(
    profile: str, longest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    for name in ("tiny-target", "tiny-draft"):
        folder = tmp_path / "state" / "tiny" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(
            json.dumps({"architectures": ["Gemma4ForConditionalGeneration"], "text_config": TEXT})
        )
    too_long = ["--set", "serve.max_model_len=524288"]
    for command, code in (
        (["profile", "lint", profile], 2),
        (["render", profile, "--out", str(tmp_path / "out")], 2),
        (["up", profile, "--dry-run", "--engine", "process"], 2),
    ):
        assert run([*command, *too_long]) == code, command
        printed = capsys.readouterr()
        assert f"is 524288, but the target was made for {longest} tokens" in printed.out + printed.err, command
    if profile != "tiny-cpu":  # fit needs the weights' headers
        assert run(["fit", profile, *too_long]) == 1
        said = capsys.readouterr().out.splitlines()
        assert said[0].startswith(f"{profile} would NOT start on ")
        assert any("PROBLEM   GS216: serve.max_model_len is 524288" in line for line in said)


def test_status_of_nothing_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status"]) == 0
    assert "no stack was started" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_completes_profile_names(shell: str) -> None:
    complete = {
        "bash": {
            "COMP_WORDS": "gemmaspec up spark-31b-e",
            "COMP_CWORD": "2",
            "_GEMMASPEC_COMPLETE": "complete_bash",
        },
        "zsh": {"_TYPER_COMPLETE_ARGS": "gemmaspec up spark-31b-e", "_GEMMASPEC_COMPLETE": "complete_zsh"},
        "fish": {
            "_TYPER_COMPLETE_ARGS": "gemmaspec up spark-31b-e",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_GEMMASPEC_COMPLETE": "complete_fish",
        },
    }[shell]
    done = subprocess.run(
        [sys.executable, "-m", "gemmaspec"],
        capture_output=True,
        text=True,
        env={**os.environ, **complete},
        check=False,
    )
    assert "spark-31b-e2b" in done.stdout
    assert "spark-31b-eagle3" in done.stdout
    assert "tiny-cpu" not in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_can_be_printed(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gemmaspec", "--show-completion", shell],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},  # there may be no shell above us
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "GEMMASPEC_COMPLETE" in done.stdout


def test_a_reader_that_leaves_is_no_traceback() -> None:
    command = f"{shlex.quote(sys.executable)} -m gemmaspec profile show spark-31b-e2b | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_ctrl_c_when_the_command_has_ended_is_no_traceback() -> None:
    late = "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGINT)"
    command = f"{late}; import sys; sys.argv = ['gemmaspec', '--version']; from gemmaspec.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert done.stdout.startswith("gemmaspec ")


def test_a_bug_says_that_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    assert run(["profile", "list"], command=broken) == 1
    assert "This is a bug in gemmaspec" in capsys.readouterr().err


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, Terminated])
def test_an_interrupt_while_pydantic_builds_a_model_is_no_bug(
    interrupt: type[KeyboardInterrupt], capsys: pytest.CaptureFixture[str]
) -> None:
    class Pressed:
        def __repr__(self) -> str:
            raise interrupt

    def interrupted(*_: object, **__: object) -> None:
        SchemaSerializer(core_schema.literal_schema([Pressed()]))

    assert run(["profile", "list"], command=interrupted) == 130
    assert "bug" not in capsys.readouterr().err


def test_docker_is_imported_without_paramiko_which_stays_usable() -> None:
    """The SDK imports it for ssh:// and, as gemmaspec uses it, runs the ssh program instead."""
    script = (
        "import sys; from gemmaspec.__main__ import on_first_use; on_first_use('paramiko'); import docker.transport;"
        "assert 'paramiko.client' not in sys.modules;"
        "from docker.transport.sshconn import SSHHTTPAdapter, paramiko;"
        "assert paramiko.SSHClient.__module__ == 'paramiko.client';"
        "import paramiko as real; assert real.__file__ and sys.modules['paramiko'] is real"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_what_was_delayed_and_is_not_installed_is_missed_only_on_use() -> None:
    script = (
        "from gemmaspec.__main__ import on_first_use; on_first_use('not_there'); import not_there\n"
        "try: not_there.anything\nexcept ModuleNotFoundError as error: assert error.name == 'not_there'\n"
        "else: raise SystemExit(1)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_nothing_heavy_is_imported_for_version_and_help() -> None:
    script = (
        "import sys; from gemmaspec.cli.app import run; run(['--version']);"
        "heavy = {'pydantic', 'yaml', 'jinja2', 'docker', 'httpx', 'unidiff', 'huggingface_hub', 'psutil', 'prometheus_client'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


REQUESTS = {
    bench: BenchRequest, tune: TuneRequest, fit: FitRequest, inspect: InspectRequest, predict: PredictRequest,
    render: ClusterSettings, smoke: SmokeRequest, up: UpRequest, verify: VerifyRequest, measure: MeasureRequest,
}  # fmt: skip


@pytest.mark.parametrize("command", REQUESTS)
def test_no_option_of_a_request_is_lost(command: FunctionType) -> None:
    """The command uses each of its parameters, and gives only fields of the request by their names."""
    function = ast.parse(getsource(command)).body[0]
    assert isinstance(function, ast.FunctionDef)
    nodes = [node for line in function.body for node in ast.walk(line)]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert {parameter.arg for parameter in function.args.args} <= used
    (given,) = (node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "options.given")
    fields = {field.name for field in dataclasses.fields(REQUESTS[command])}
    assert {keyword.arg for keyword in given.keywords} <= fields
    assert all(keyword.arg in ast.unparse(keyword.value) for keyword in given.keywords), "a field of another option"


def test_every_request_of_a_command_is_looked_at() -> None:
    texts = [file.read_text() for file in Path(cli.__file__).parent.glob("*.py")]
    assert sum(text.count("**options.given(") for text in texts) == len(REQUESTS)


@pytest.mark.parametrize(
    "arguments", [("fit", "x" * 300), ("compare", "x" * 300, "y"), ("bench", "tiny-cpu", "--out", "x" * 300)]
)
def test_a_name_that_no_file_can_have_is_no_bug(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "no file can have so long a name" in capsys.readouterr().err


def test_ctrl_c_while_a_class_is_made_is_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    """Python 3.11 raises RuntimeError from what a descriptor's __set_name__ raises, as in a module that is imported."""

    class Descriptor:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def imports(*_: object, **__: object) -> None:
        try:
            type("Made", (), {"field": Descriptor()})
        except KeyboardInterrupt as error:  # Python 3.12 and later
            raise RuntimeError("Error calling __set_name__ on 'Descriptor' instance 'field' in 'Made'") from error

    assert run(["status"], command=imports) == 130
    assert capsys.readouterr().err.strip() == "error: interrupted"
