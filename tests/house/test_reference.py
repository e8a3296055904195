"""What README.md and docs/ say of the code is what the code says, and every link leads somewhere."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
TOOL = ROOT / "tools" / "reference.py"
DOCS = ROOT / "docs"
OUTSIDE = sorted([*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md"), *(ROOT / "gemmaspec").rglob("*.md")])
"""Documents that the site does not hold, whose links its strict build does not see."""
IN_THE_REPOSITORY = sorted({*OUTSIDE, *DOCS.rglob("*.md")})
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return runpy.run_path(str(TOOL))


def test_the_generated_parts_are_those_of_the_code() -> None:
    done = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), "run: make reference"


def test_every_part_is_shown_somewhere(reference: dict[str, Any]) -> None:
    text = "".join(file.read_text() for file in reference["documents"]())
    shown = set(re.findall(r"<!-- ([a-z-]+): made from the code -->", text))
    assert shown == set(reference["PARTS"])
    assert set(re.findall(r"<!-- on the site: ([a-z-]+) -->", text)) == set(reference["SITE"])


def test_a_part_that_is_out_of_date_is_replaced(reference: dict[str, Any]) -> None:
    made = reference["with_parts"]("a\n<!-- exit-codes: made from the code -->\nof yesterday\n<!-- end -->\nb\n")
    assert "yesterday" not in made
    assert "| 130 | Ctrl-C |" in made
    assert reference["with_parts"](made) == made


def test_a_part_that_nobody_makes_is_refused(reference: dict[str, Any]) -> None:
    with pytest.raises(KeyError):
        reference["with_parts"]("<!-- nothing: made from the code -->\n<!-- end -->")
    import site_docs

    with pytest.raises(KeyError):
        site_docs.filled_in("<!-- on the site: nothing -->")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the site, before they become HTML."""
    import site_docs

    folder = tmp_path_factory.mktemp("site")
    (folder / "of-yesterday.md").write_text("<!-- on the site: commands -->")
    site_docs.write(folder)
    return folder


def test_the_site_has_every_page_with_its_parts_and_no_page_of_yesterday(site: Path) -> None:
    written = {file.relative_to(site) for file in site.rglob("*.md")}
    assert written == {file.relative_to(DOCS) for file in DOCS.rglob("*.md")}
    assert not [file.name for file in site.rglob("*.md") if "<!-- on the site:" in file.read_text()]
    assert "\n## gemmaspec up\n" in (site / "reference/commands.md").read_text()
    assert "\n### GS101: " in (site / "reference/lint.md").read_text()
    assert "\n- `no-gemma4` (" in (site / "reference/failures.md").read_text()
    assert (site / "assets/site.css").read_bytes() == (DOCS / "assets/site.css").read_bytes()


def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    wrong = []
    for file in site.rglob("*.md"):
        for path, anchor in LINK.findall(file.read_text()):
            target = (file.parent / path).resolve() if path else file
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                wrong.append(f"{file.relative_to(site)} links {path}#{anchor}")
    assert wrong == []


@pytest.mark.parametrize("file", OUTSIDE, ids=lambda file: file.name)
def test_links_of_documents_outside_the_site_lead_somewhere(file: Path) -> None:
    for path, anchor in LINK.findall(file.read_text()):
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), f"{file.name} links {path}"
        if anchor:
            assert anchor in anchors(target), f"{file.name} links {path}#{anchor}"


@pytest.mark.parametrize("file", IN_THE_REPOSITORY, ids=lambda file: str(file.relative_to(ROOT)))
def test_an_anchor_leads_to_a_heading_of_the_file_that_a_reader_of_the_repository_opens(file: Path) -> None:
    for path, anchor in LINK.findall(file.read_text()):
        target = (file.parent / path).resolve() if path else file
        if anchor and target.suffix == ".md":
            assert anchor in plain_anchors(target), f"{file.name} links {path}#{anchor}"


def test_a_lint_code_is_a_link_on_the_site_alone(site: Path) -> None:
    import site_docs

    assert "[GS309](../reference/lint.md#gs309)" in (site / "guides/fit.md").read_text()
    assert "`GS309`" in (DOCS / "guides/fit.md").read_text()
    assert site_docs.linked("`GS101`, [`GS102`](x), `gemmaspec explain GS103`", Path("reference/lint.md")) == (
        "[GS101](#gs101), [`GS102`](x), `gemmaspec explain GS103`"
    )


def plain_anchors(file: Path) -> set[str]:
    """The ids that a forge gives to the headings of a file, where `{#id}` is text and names nothing."""
    heads = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def anchors(file: Path) -> set[str]:
    """The ids of a document's headings."""
    heads = re.findall(r"^#+ (.+?)(?: \{#([\w-]+)\})?$", file.read_text(), re.MULTILINE)
    return {given or re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head, given in heads}


def test_every_page_is_in_the_navigation_once_and_no_other() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(pages(nav)) == sorted(str(file.relative_to(DOCS)) for file in DOCS.rglob("*.md"))


def pages(nav: Any) -> list[str]:
    """Every page of a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in pages(item)]


def test_pages_that_the_code_names_are_there() -> None:
    named = set()
    for file in (ROOT / "gemmaspec").rglob("*.py"):
        named |= set(re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text()))
    assert named
    assert sorted(page for page in named if not (ROOT / page).is_file()) == []
