from __future__ import annotations

import pytest

from gemmaspec.core.data import TEMPLATES
from gemmaspec.core.errors import ProfileError
from gemmaspec.run.stack.build import template_for


@pytest.mark.parametrize(
    ("vllm", "name"),
    [
        (None, "gemma4.jinja"),
        ("0.19.0", "gemma4-0.19.jinja"),
        ("0.19.1", "gemma4-0.19.jinja"),
        ("0.20.2+cpu", "gemma4-0.19.jinja"),
        ("0.21.0", "gemma4-0.21.jinja"),
        ("0.22.1", "gemma4-0.21.jinja"),
        ("0.23.0", "gemma4-0.23.jinja"),
        ("0.24.0rc2.dev7+gabc1234", "gemma4.jinja"),
        ("0.33.0", "gemma4.jinja"),
        ("1.0", "gemma4.jinja"),
    ],
)
def test_a_release_gets_the_template_that_reads_as_its_own(vllm: str | None, name: str) -> None:
    assert template_for(vllm) == TEMPLATES / name


def test_every_shipped_template_goes_with_a_release() -> None:
    chosen = {template_for(vllm) for vllm in ("0.19.1", "0.21.0", "0.23.0", "0.33.0")}
    assert chosen == set(TEMPLATES.glob("*.jinja"))


def test_what_is_no_version_is_refused_by_name() -> None:
    with pytest.raises(ProfileError, match="'nightly' is not a version of vLLM"):
        template_for("nightly")
