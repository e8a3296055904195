"""A patch folder: patch.yaml says what the hole is and who needs it closed; a diff per range of releases."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemmaspec import data, launcher, strict_yaml
from gemmaspec.errors import PatchError
from gemmaspec.patching.diff import DiffFile, parse_diff
from gemmaspec.patching.known import Rules, fingerprint, read_known
from gemmaspec.sentences import sentence

_RANGE: Final = re.compile(rf">=({launcher.VERSION_NUMBER})(?:,<({launcher.VERSION_NUMBER}))?")
_ID: Final = r"^[a-z0-9]+(-[a-z0-9]+)*$"
_DAY: Final = r"^\d{4}-\d{2}-\d{2}$"


Scope = Annotated[str, Field(min_length=0)]
"""The qualified name of a function or class; "" is the whole file."""


class _Written(BaseModel):
    """What a human wrote: unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, defer_build=True, str_strip_whitespace=True, str_min_length=1
    )


class RequiredBy(_Written):
    """Which speculative methods need the patch, and under which conditions, in prose."""

    methods: tuple[str, ...] = Field(min_length=1)
    when: str


class SupersededRule(_Written):
    """How a vLLM that has closed the hole by itself is recognised: `contains` is in the code of `scope`.

    Only words of code are compared: names, signs, whole strings. `lacks` says which words must be gone.
    """

    path: str
    scope: Scope
    contains: str
    lacks: Annotated[str, Field(min_length=0)] = ""


class Upstream(_Written):
    """A thread about the hole, and its state on the day somebody looked (YYYY-MM-DD)."""

    url: str = Field(pattern=r"^https://")
    state: Literal["open", "closed", "merged"]
    seen: str = Field(pattern=_DAY)


class VariantText(_Written):
    """One diff, the releases it is for, and for each file the function or class of each hunk, in order."""

    diff: str = Field(pattern=r"^[0-9A-Za-z._-]+\.diff$")
    versions: str
    scopes: dict[str, tuple[Scope, ...]]


class Imported(_Written):
    """Where a diff was taken from: an address or a file's name, the sha256 of all of it, the day if it was given."""

    source: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    date: str | None = Field(default=None, pattern=_DAY)


class PatchText(_Written):
    """patch.yaml.

    `symptom` says in one sentence what goes wrong without the patch, and `errors` are the exact texts of it, …
    standing for any text; `instead` is what helps without the patch ("set serve.x: true"); `until` says why the last
    range has an end. The keys from `origin` to `last_update`, and `author`, are fields of DEP-3.
    """

    id: str = Field(pattern=_ID)
    title: str
    hole: str
    symptom: str | None = Field(default=None, pattern=r"^(?:[A-Z]|vLLM).*\.$", max_length=200)
    errors: tuple[str, ...] = ()
    instead: str | None = Field(default=None, pattern=r"^[a-z].*[^.]$", max_length=150)
    required_by: RequiredBy
    runner: Literal["any", "v1", "v2"]
    speculation_only: bool
    variants: tuple[VariantText, ...] = Field(min_length=1)
    superseded: tuple[SupersededRule, ...] = ()
    upstream: tuple[Upstream, ...] = ()
    needs: tuple[Annotated[str, Field(pattern=_ID)], ...] = ()
    until: str | None = None
    drop_when: str
    origin: str | None = None
    forwarded: str = Field(default="no", pattern=r"^(no|not-needed|https://.*)$")
    bug: str | None = Field(default=None, pattern=r"^https://")
    applied_upstream: str | None = None
    last_update: str | None = Field(default=None, pattern=_DAY)
    licence: str
    author: str
    imported: Imported | None = None
    reviewed: bool = True
    """Whether somebody stands for it; a profile can require only such a patch."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A diff, parsed and matched with its scopes; `specifier` is its releases, `sha256` that of the file."""

    name: str
    specifier: str
    sha256: str
    files: tuple[launcher.FileEdit, ...]


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A whole patch folder, checked."""

    folder: Path
    text: PatchText
    variants: tuple[Variant, ...]

    @property
    def id(self) -> str:
        """The name of the folder."""
        return self.text.id


def load_patches(folder: Path = data.PATCHES) -> dict[str, Patch]:
    """Every patch of a folder, in order of id; PatchError lists all that is wrong in the first bad one."""
    return {path.parent.name: load_patch(path.parent) for path in sorted(folder.glob("*/patch.yaml"))}


class Shelf(Mapping[str, Patch]):
    """The patches of several folders by id, each read when it is asked for; a later folder hides an earlier one."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._read: dict[str, Patch] = {}
        self._found = {path.parent.name: path.parent for folder in folders for path in folder.glob("*/patch.yaml")}

    def __getitem__(self, id_: str) -> Patch:
        if id_ not in self._read:
            self._read[id_] = load_patch(self._found[id_])
        return self._read[id_]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._found))

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, id_: object) -> bool:
        return id_ in self._found


def load_patch(folder: Path) -> Patch:
    """One patch folder; PatchError when its text or a diff is refused, or a diff is not named in the text."""
    file = folder / "patch.yaml"
    text = load_text(folder)
    findings = [*_range_findings(text), *_rule_findings(text), *_unwritten_findings(text)]
    unused = {path.name for path in folder.glob("*.diff")} - {variant.diff for variant in text.variants}
    findings += [f"{name} is not named in it" for name in sorted(unused)]
    if findings:
        raise PatchError("\n".join(f"{file}: {finding}" for finding in findings))
    rules = [rule.model_dump() for rule in text.superseded]
    return Patch(folder=folder, text=text, variants=tuple(_load_variant(folder, item, rules) for item in text.variants))


def load_text(folder: Path) -> PatchText:
    """Return what patch.yaml says, without its diffs; raise PatchError when it is not valid."""
    file = folder / "patch.yaml"
    text = _validated(_read_yaml(file), file)
    if text.id != folder.name:
        raise PatchError(f"{file}: id: {text.id} is not the name of its folder, {folder.name}")
    return text


def _read_yaml(file: Path) -> Any:
    """The one place where a patch's YAML is read."""
    try:
        return strict_yaml.parse(file.read_text(encoding="utf-8"), file=str(file), error=PatchError).data
    except OSError as error:
        raise PatchError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PatchError(f"{file}: is not UTF-8 text") from None


def _validated(values: Any, file: Path) -> PatchText:
    try:
        return PatchText.model_validate(values)
    except ValidationError as error:
        raise PatchError("\n".join(f"{file}: {line}" for line in _sentences(error))) from None


def _sentences(error: ValidationError) -> Iterator[str]:
    """One sentence per fault; an unknown key names the nearest known one."""
    models: list[type[_Written]] = _Written.__subclasses__()
    known = [name for model in models for name in model.model_fields]
    for fault in error.errors():
        where = ".".join(str(part) for part in fault["loc"]) or "the file"
        if fault["type"] != "extra_forbidden":
            yield f"{where}: {sentence(fault)}"
            continue
        near = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
        yield f"{where}: unknown key" + (f"; did you mean {near[0]}?" if near else "")


def _range_findings(text: PatchText) -> Iterator[str]:
    """Ranges go up without overlap; the last is open (a future release is decided by content) or says why not."""
    floor: tuple[int, ...] | None = ()
    for index, variant in enumerate(text.variants):
        found = _RANGE.fullmatch(variant.versions)
        if found is None:
            yield f"variants.{index}.versions: {variant.versions!r} is not like >=0.19.0,<0.33"
            return
        low, high = (launcher.release_key(bound) if bound else None for bound in found.groups())
        if floor is None or low is None or low < floor or (high is not None and high <= low):
            yield f"variants.{index}.versions: {variant.versions} overlaps the range before it or is empty"
        floor = high
    if (floor is None) == (text.until is not None):
        yield "variants: the last range must be open (a future release is decided by content), or until: say why not"


def _rule_findings(text: PatchText) -> Iterator[str]:
    for index, rule in enumerate(text.superseded):
        try:
            launcher.check_path(rule.path)
        except ValueError as error:
            yield f"superseded.{index}.path: {error}"


UNWRITTEN: Final = "TODO"
"""How a text begins that somebody has yet to write."""


def _unwritten_findings(text: PatchText) -> Iterator[str]:
    """A reviewed patch has no text that is yet to be written."""
    texts = {"required_by.when": text.required_by.when, "required_by.methods": " ".join(text.required_by.methods)}
    texts |= {key: getattr(text, key) for key in ("title", "hole", "drop_when", "licence", "author")}
    for key, value in texts.items():
        if text.reviewed and value.startswith(UNWRITTEN):
            yield f"{key}: is not written yet, so it cannot be reviewed: true"


def _load_variant(folder: Path, text: VariantText, rules: Rules) -> Variant:
    """A diff with its scopes; PatchError when the two do not name the same files and numbers of hunks."""
    file = folder / text.diff
    try:
        content = file.read_bytes()
        files = parse_diff(content.decode("utf-8"), str(file))
    except OSError as error:
        raise PatchError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PatchError(f"{file}: not UTF-8 at byte {error.start}") from None
    hunks = {edit.path: len(edit.hunks) for edit in files}
    scopes = {path: len(names) for path, names in text.scopes.items()}
    if hunks != scopes:
        raise PatchError(f"{folder / 'patch.yaml'}: {text.diff} has hunks {hunks}, its scopes are {scopes}")
    edits = tuple(_scoped(edit, text.scopes[edit.path]) for edit in files)
    known = read_known(folder, file.stem, fingerprint(edits, rules))
    return Variant(
        name=file.stem,
        specifier=text.versions,
        sha256=launcher.sha256(content),
        files=tuple(replace(edit, known=known.get(edit.path, ())) for edit in edits),
    )


def _scoped(edit: DiffFile, scopes: tuple[str, ...]) -> launcher.FileEdit:
    """A file's hunks, each with the function or class to look in."""
    pairs = zip(scopes, edit.hunks, strict=True)
    hunks = tuple(launcher.Hunk(scope, hunk.line, hunk.old, hunk.new) for scope, hunk in pairs)
    return launcher.FileEdit(edit.path, hunks)
