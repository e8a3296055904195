"""A profile's template stays below the folder of the profile, and its copy is its owner's alone."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.data import MODELS

FOREIGN = "extends: tiny-cpu\nname: foreign\nsummary: s\nchat: {{template: {template}}}\n"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (tmp_path / "private.jinja").write_text("SECRET")
    (folder / "link.jinja").symlink_to(tmp_path / "private.jinja")
    (folder / "own.jinja").write_text("{{ messages }}")
    return folder / "foreign.yaml"


@pytest.mark.parametrize(
    "template", ["{top}/private.jinja", "../private.jinja", "./link.jinja", "./../private.jinja", "~/private.jinja"]
)
def test_a_file_elsewhere_is_not_copied(
    profile: Path, template: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(profile.parent.parent))
    profile.write_text(FOREIGN.format(template=template.format(top=profile.parent.parent)))
    out = profile.parent.parent / "out"
    assert run(["render", str(profile), "--out", str(out)]) == 2
    printed = capsys.readouterr().err
    assert "is outside of the profile's folder" in printed
    assert "--set chat.template=" in printed
    assert not out.exists()
    assert run(["profile", "lint", str(profile)]) == 2
    assert "GS904" in capsys.readouterr().out


def test_a_file_beside_the_profile_is_copied_for_its_owner_alone(profile: Path) -> None:
    profile.write_text(FOREIGN.format(template="./own.jinja"))
    out = profile.parent.parent / "out"
    assert run(["render", str(profile), "--out", str(out)]) == 0
    assert (out / "chat-template.jinja").read_text() == "{{ messages }}"
    assert stat.S_IMODE((out / "chat-template.jinja").stat().st_mode) == 0o600
    assert stat.S_IMODE((out / "launch.py").stat().st_mode) == 0o644


def test_a_path_that_is_typed_may_be_anywhere(profile: Path) -> None:
    profile.write_text(FOREIGN.format(template="./own.jinja"))
    out, elsewhere = profile.parent.parent / "out", profile.parent.parent / "private.jinja"
    assert run(["render", str(profile), "--out", str(out), "--set", f"chat.template={elsewhere}"]) == 0
    assert (out / "chat-template.jinja").read_text() == "SECRET"


def test_a_containers_own_user_can_read_it(profile: Path) -> None:
    profile.write_text(FOREIGN.format(template="./own.jinja") + "container: {user: '1234:1234'}\n")
    out = profile.parent.parent / "out"
    assert run(["render", str(profile), "--out", str(out)]) == 0
    assert stat.S_IMODE((out / "chat-template.jinja").stat().st_mode) == 0o644


def test_a_hostile_template_of_a_model_or_a_profile_is_never_run(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would make a file, or never end; and its text reaches no terminal."""
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    touch = f"{{{{ cycler.__init__.__globals__.os.system('touch {tmp_path}/owned') }}}}"
    hostile = touch + "{% for _ in range(10**12) %}x{% endfor %}\x1b]0;title\x07"
    model = tmp_path / "model"
    shutil.copytree(MODELS / "tiny-target", model)
    (model / "chat_template.jinja").write_text(hostile)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": hostile}))
    (profile.parent / "own.jinja").write_text(hostile)
    profile.write_text(f"{FOREIGN.format(template='./own.jinja')}target: {{model: {model}}}\n")
    out = tmp_path / "out"
    for words in (
        ["inspect", str(model)],
        ["profile", "lint", str(profile)],
        ["up", str(profile), "--dry-run", "--engine", "process"],
        ["render", str(profile), "--out", str(out)],
    ):
        assert run(words) in (0, 1), words
    printed = capsys.readouterr()
    assert "\x1b]0;" not in printed.out + printed.err
    assert not (tmp_path / "owned").exists()
    assert (out / "chat-template.jinja").read_text() == hostile
