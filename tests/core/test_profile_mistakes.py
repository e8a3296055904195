"""What people really get wrong in a profile, and the sentence that helps: one test for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmaspec.check.use_cases.lint import LintRequest, lint
from gemmaspec.core import data
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.profile.load import load_profile

OWN = "schema: 1\nextends: tiny-cpu\nname: mine\n"
CHARACTERS = {"nbsp": "\u00a0", "left": "\u201c", "right": "\u201d"}


def refused(folder: Path, text: str | bytes, *sets: str) -> str:
    file = folder / "mine.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ProfileError) as caught:
        load_profile(str(file), overrides=sets)
    message = caught.value.message.replace(f"{folder}/", "")
    assert not [
        word for word in ("input should", "pydantic", "instance of", "function-", "NoneType") if word in message
    ]
    return message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("serve:\n\tport: 8001\n", "mine.yaml:5: the line begins with a tab; YAML indents with spaces", id="tab"),
        pytest.param("serve:\n  port: 1\n\tdtype: auto\n", "mine.yaml:6: the line begins with a tab", id="tab after spaces"),
        pytest.param("serve:\n  port: 8001\n   dtype: auto\n", "mine.yaml:6: indented more than the line above", id="one blank too many"),
        pytest.param("serve:\n   port: 8001\n  dtype: auto\n", "mine.yaml:6: indented differently from the keys around it", id="one blank too few"),
        pytest.param("summary: Gemma: the best\n", "mine.yaml:4: the value contains a colon; put it in quotes: summary: 'Gemma: the best'", id="a: b: c"),
        pytest.param("summary:x\nimage: y\n", "mine.yaml:4: 'summary:x' is not `key: value`; put a space after the colon", id="no blank"),
        pytest.param("summary: @home\n", "a value cannot begin with '@'; put it in quotes", id="reserved character"),
        pytest.param("summary: 'mine\nimage: x\n", "mine.yaml:4: the quote that opens in this line is not closed", id="open quote"),
        pytest.param("serve: {port: 8001\nimage: x\n", "mine.yaml:4: the { that opens in this line is not closed", id="open brace"),
        pytest.param("serve: {enforce_eager: on}\n", "serve.enforce_eager: must be true or false, got 'on'; write true", id="on"),
        pytest.param("serve: {enforce_eager: yes}\n", "got 'yes'; write true", id="yes"),
        pytest.param("serve: {enforce_eager: no}\n", "got 'no'; write false", id="no"),
        pytest.param("env: {BAR: true}\n", "env.BAR: must be text, but true is not; write 'true' in quotes", id="env bool"),
        pytest.param("serve: {gpu_memory_utilization: 80}\n", "must be a share between 0 and 1, got 80; did you mean 0.80?", id="80"),
        pytest.param("serve: {gpu_memory_utilization: 80%}\n", "must be a number, got '80%'; did you mean 0.80?", id="80%"),
        pytest.param("serve: {host: 127.0.0.1}\n", "serve.host: unknown key; the right name is serve.bind", id="host"),
        pytest.param("serve: {api_key: x}\n", "the right name is pass_env (VLLM_API_KEY)", id="api key"),
        pytest.param("port: 8001\n", "port: unknown key; the right name is serve.port", id="a key of another section"),
        pytest.param("serve: {frobnicate: 1}\n", "vllm serve 0.33.0 has no flag --frobnicate; remove it", id="unknown flag"),
        pytest.param("serve:\n  <<: x\n", "merge keys (<<) are not supported; use extends: NAME to inherit from another profile", id="merge key"),
        pytest.param("patches: {required: draft-text-only}\n", "patches.required: must be a list: [draft-text-only]", id="no list"),
        pytest.param("serve: fast\n", "serve: must be a map with keys such as bind, port, served_model_name, got 'fast'", id="no map"),
        pytest.param("speculative: {method: eagle_3}\n", "did you mean eagle3?", id="method"),
        pytest.param("serve: {max_model_len: 12345678901234567890}\n", "serve.max_model_len: must be at most 2147483647", id="20 digits"),
        pytest.param(f"serve:\n  p{CHARACTERS['nbsp']}ort: 1\n", "mine.yaml:5: the key 'p\\xa0ort' contains a no-break space (U+00A0)", id="no-break space in a key"),
        pytest.param(f"serve:\n{CHARACTERS['nbsp']} port: 1\n", "contains a no-break space (U+00A0)", id="no-break space to indent"),
        pytest.param(f"summary: a{CHARACTERS['nbsp']}b\n", "mine.yaml:4: the value contains a no-break space (U+00A0)", id="no-break space in a value"),
        pytest.param(f"summary: {CHARACTERS['left']}a{CHARACTERS['right']}\n", "begins with \u201c (U+201C), which is not a quote in YAML", id="smart quotes"),
    ],
)  # fmt: skip
def test_each_mistake_gets_the_sentence_that_helps(tmp_path: Path, text: str, said: str) -> None:
    message = refused(tmp_path, OWN + text)
    assert said in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("quoted", ["'a\u00a0b'", '"\u201ca\u201d"'])
def test_a_character_that_is_quoted_is_meant(tmp_path: Path, quoted: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"{OWN}summary: {quoted}\n")
    assert load_profile(str(tmp_path / "mine.yaml")).profile.summary == quoted[1:-1]


def test_set_with_a_key_of_another_section_names_it(tmp_path: Path) -> None:
    assert "the right name is serve.port" in refused(tmp_path, OWN, "port=1")


def test_a_value_of_a_wrong_type_is_one_error_without_names_of_types(tmp_path: Path) -> None:
    message = refused(tmp_path, OWN + "chat: {template_kwargs: {n: [1]}}\n")
    assert message == "mine.yaml:4: chat.template_kwargs.n: must be text, a whole number, true or false, got a list"


def test_bytes_that_are_not_utf8_are_named_with_line_and_column(tmp_path: Path) -> None:
    message = refused(tmp_path, OWN.encode() + b"summary: caf\xe9\n")
    assert message == "mine.yaml:4: is not UTF-8 text: byte 0xe9 at column 13; save it as UTF-8"
    assert "looks like UTF-16" in refused(tmp_path, OWN.encode("utf-16"))


@pytest.mark.parametrize(
    ("own", "blamed"),
    [
        ("speculative: {method: ngram}", "mine.yaml:4: speculative.method: draft ngram drafts from the text itself"),
    ],
)
def test_what_the_users_file_makes_wrong_is_blamed_on_it(tmp_path: Path, own: str, blamed: str) -> None:
    message = refused(tmp_path, f"{OWN}{own}\n")
    assert blamed in message
    assert all(line.startswith("mine.yaml:") for line in message.splitlines())
    assert "speculative.draft_tensor_parallel_size: null to remove it" in message


@pytest.mark.parametrize("parent", ["tiny-cpuu", "tiny-cpu.yaml", "./tiny-cpu.yaml"])
def test_a_parent_that_is_misspelt_is_named(tmp_path: Path, parent: str) -> None:
    assert "did you mean tiny-cpu?" in refused(tmp_path, OWN.replace("tiny-cpu", parent))


def test_a_circle_shows_its_chain(tmp_path: Path) -> None:
    (tmp_path / "_b.yaml").write_text("extends: _c\n")
    (tmp_path / "_c.yaml").write_text("extends: _b\n")
    assert "is circular: mine → _b → _c → _b" in refused(tmp_path, "extends: _b\nname: mine\n")


def linted(folder: Path, text: str) -> list[str]:
    (folder / "mine.yaml").write_text(OWN + text)
    (found,) = lint(LintRequest(names=[str(folder / "mine.yaml")]))
    assert found.invalid is None, found.invalid
    return [f"{one.severity} {one.code} {one.key}: {one.message}" for one in found.findings if one.severity != "note"]


@pytest.mark.parametrize("text", ["serve:\n  # port: 8001\n", "serve:\n  port:\n"])
def test_an_empty_key_that_takes_something_inherited_away_draws_a_warning(tmp_path: Path, text: str) -> None:
    assert [one[:13] for one in linted(tmp_path, text) if "GS901" in one] == ["warning GS901"]
    assert not [
        one
        for one in linted(tmp_path, text.replace("# port: 8001", "port: null").replace("port:\n", "port: null\n"))
        if "GS901" in one
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("chat: {template: gemma5}\n", "error GS904 chat.template: unknown template gemma5"),
        ("target: {model: /nowhere/gemma}\n", "warning GS902 target.model: missing folder /nowhere/gemma"),
        ("target: {model: /nowhere/gemma.gguf}\n", "error GS902 target.model: /nowhere/gemma.gguf is a file"),
        ("runtime: {vllm: 0.99.0}\n", "warning GS708 runtime.vllm: vLLM 0.99.0 is unknown"),
    ],
)
def test_lint_sees_what_is_not_there(tmp_path: Path, text: str, said: str) -> None:
    assert [one for one in linted(tmp_path, text) if one.startswith(said)]


def test_a_misspelt_patch_is_one_error(tmp_path: Path) -> None:
    names = load_profile("tiny-cpu", folders=[data.PROFILES]).profile.patches.required
    wrong = [names[0].replace("uniform", "unifrom"), *names[1:]]
    found = linted(tmp_path, f"patches: {{required: [{', '.join(wrong)}]}}\n")
    assert [one for one in found if "patch" in one] == [f"error GS404 patches.required.0: unknown patch {wrong[0]}"]
