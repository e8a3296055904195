"""A patch folder: patch.yaml describes the bug and who needs the fix, or what a patch for speed buys and where.

There is one diff per range of releases.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from gemmaspec.core import data, launcher, strict_yaml
from gemmaspec.core.errors import PatchError
from gemmaspec.core.files import UnreadableFile, open_regular
from gemmaspec.core.patching import evidence
from gemmaspec.core.patching.diff import DiffFile, parse_diff
from gemmaspec.core.patching.hashes import KNOWN_FILE, Rules, fingerprint, parse_known
from gemmaspec.core.sentences import sentence

_RANGE: Final = re.compile(rf">=({launcher.VERSION_NUMBER})(?:,<({launcher.VERSION_NUMBER}))?")
_ID: Final = r"^[a-z0-9]+(-[a-z0-9]+)*$"
_DAY: Final = r"^\d{4}-\d{2}-\d{2}$"


Scope = Annotated[str, Field(min_length=0)]
"""The qualified name of a function or class; "" is the whole file."""


class RequiredBy(evidence.Written):
    """Which speculative methods need the patch, and under which conditions, in prose."""

    methods: tuple[str, ...] = Field(min_length=1)
    when: str


class SupersededRule(evidence.Written):
    """The digest of a function in a reviewed release, in which vLLM fixed the bug itself."""

    path: str
    scope: str
    release: str
    tree: str


class Upstream(evidence.Written):
    """A thread about the bug, and its state on the day of the last check (YYYY-MM-DD)."""

    url: str = Field(pattern=r"^https://")
    state: Literal["open", "closed", "merged"]
    seen: str = Field(pattern=_DAY)


class VariantText(evidence.Written):
    """One diff, its range of releases, and the function or class of each hunk, in order, by file."""

    diff: str = Field(pattern=r"^[0-9A-Za-z._-]+\.diff$")
    versions: str
    scopes: dict[str, tuple[Scope, ...]]


class Imported(evidence.Written):
    """The source of a diff: its address or file name, the sha256 of the whole diff, and the day if given."""

    source: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    date: str | None = Field(default=None, pattern=_DAY)


class PatchText(evidence.Written):
    """The content of patch.yaml.

    `symptom` describes in one sentence what goes wrong without the patch. `errors` are the exact error texts, in which
    … matches any text. `instead` is the workaround without the patch ("set serve.x: true"). `until` explains why the
    last range has an end. The keys from `origin` to `last_update`, and `author`, are fields of DEP-3.

    `purpose: speed` is for code that is slow and not wrong; `leaves_alone` says what of it runs as released, `pays`
    where evidence.json shows that the patch is faster, and `dropped_in` is the release of vLLM that has it.
    """

    id: str = Field(pattern=_ID)
    title: str
    purpose: Literal["defect", "speed"] = "defect"
    hole: str
    leaves_alone: str | None = None
    symptom: str | None = Field(default=None, pattern=r"^(?:[A-Z]|vLLM).*\.$", max_length=200)
    errors: tuple[str, ...] = ()
    instead: str | None = Field(default=None, pattern=r"^[a-z].*[^.]$", max_length=150)
    required_by: RequiredBy
    runner: Literal["any", "v1", "v2"]
    speculation_only: bool
    targets: tuple[str, ...] = ()
    """Patterns of the targets that a speed patch changes; empty for all."""
    idle_with: tuple[Literal["several-gpus", "lora"], ...] = ()
    """With what a speed patch changes nothing: a model that several GPUs share, or LoRA adapters."""
    variants: tuple[VariantText, ...] = Field(min_length=1)
    superseded: tuple[SupersededRule, ...] = ()
    upstream: tuple[Upstream, ...] = ()
    needs: tuple[Annotated[str, Field(pattern=_ID)], ...] = ()
    pays: tuple[evidence.Claim, ...] = ()
    until: str | None = None
    dropped_in: str | None = Field(default=None, pattern=rf"^{launcher.VERSION_NUMBER}$")
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
    """Whether somebody reviewed the patch; a profile can require only a reviewed patch."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A diff, parsed and matched with its scopes; `specifier` is its range of releases, `sha256` that of the file."""

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
    evidence: tuple[evidence.EvidenceRun, ...] = ()
    """Measured cells of a speed patch."""

    @property
    def is_speed(self) -> bool:
        """Whether it makes vLLM faster, and does not correct it."""
        return self.text.purpose == "speed"

    @property
    def id(self) -> str:
        """The name of the folder."""
        return self.text.id

    def variant_of(self, diff: str) -> VariantText:
        """Return what patch.yaml says of one diff."""
        return next(variant for variant in self.text.variants if variant.diff == diff)

    def claims(self, release: str) -> bool:
        """Return whether a release is in the range of one of its variants."""
        return any(launcher.range_contains(variant.specifier, release) for variant in self.variants)


def load_patches(folder: Path = data.PATCHES) -> dict[str, Patch]:
    """Return every patch of a folder, in order of id. Raise PatchError with all problems of the first invalid one."""
    return {path.parent.name: load_patch(path.parent) for path in sorted(folder.glob("*/patch.yaml"))}


class Shelf(Mapping[str, Patch]):
    """The patches of several folders by id, read on access; a later folder takes precedence over an earlier one."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._read: dict[str, Patch] = {}
        self._found: dict[str, Path] = {}
        for folder in folders:
            self._found |= {path.parent.name: path.parent for path in folder.glob("*/patch.yaml")}

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


def with_needs(patch: Patch, patches: Mapping[str, Patch]) -> tuple[Patch, ...]:
    """Return the patches that it needs, in order, then the patch.

    Raise PatchError if one is missing or needs it too.
    """
    done: dict[str, Patch] = {}
    _collect(patch, patches, done, ())
    return tuple(done.values())


def _collect(patch: Patch, patches: Mapping[str, Patch], done: dict[str, Patch], above: tuple[str, ...]) -> None:
    if patch.id in above:
        raise PatchError(f"patch {patch.id} needs itself, through {' and '.join(above)}")
    for need in patch.text.needs:
        if need not in patches:
            raise PatchError(f"{patch.folder / 'patch.yaml'}: needs: unknown patch {need}")
        if need not in done:
            _collect(patches[need], patches, done, (*above, patch.id))
    done[patch.id] = patch


def load_patch(folder: Path) -> Patch:
    """Load one patch folder; while no byte of it changes it is parsed once, as commands ask many times.

    Raise PatchError if patch.yaml or a diff is invalid, or patch.yaml does not name a diff.
    """
    kinds = (".diff", ".json")
    beside = [file for file in sorted(folder.glob("*.*")) if file.suffix in kinds and file.is_file()]
    contents = [(file.name, _read(file)) for file in (folder / "patch.yaml", *beside)]
    return _parsed(folder, tuple(contents))


@functools.lru_cache
def _parsed(folder: Path, contents: tuple[tuple[str, bytes], ...]) -> Patch:
    """Return the patch that a folder with these files is; nothing of it is read again."""
    file, files = folder / "patch.yaml", dict(contents)
    text = _text(file, files[file.name])
    measured = evidence.parse_evidence(folder / evidence.EVIDENCE_FILE, files.get(evidence.EVIDENCE_FILE))
    findings = [*_range_findings(text), *_rule_findings(text), *_unwritten_findings(text)]
    findings += _speed_findings(text, measured) if text.purpose == "speed" else _defect_findings(text, measured)
    stored = {name for name in files if name.endswith(".diff")}
    named = {variant.diff for variant in text.variants}
    findings += [f"it does not name {name}" for name in sorted(stored - named)]
    findings += [f"it names {name}, which is missing" for name in sorted(named - stored)]
    if findings:
        raise PatchError("\n".join(f"{file}: {finding}" for finding in findings))
    rules = [rule.model_dump() for rule in text.superseded]
    variants = tuple(_variant(folder, files, item, rules) for item in text.variants)
    return Patch(folder=folder, text=text, variants=variants, evidence=measured)


def load_text(folder: Path) -> PatchText:
    """Return the content of patch.yaml without its diffs. Raise PatchError if it is invalid."""
    return _text(folder / "patch.yaml", _read(folder / "patch.yaml"))


def _text(file: Path, content: bytes) -> PatchText:
    text = _validated(strict_yaml.parse(_decoded(file, content), file=str(file), error=PatchError).data, file)
    if text.id != file.parent.name:
        raise PatchError(f"{file}: id: {text.id} does not match the name of the folder, {file.parent.name}")
    return text


def read_text(file: Path) -> str:
    """Return a file of a patch as text, with its line endings. Raise PatchError if it is unreadable."""
    return _decoded(file, _read(file))


def _decoded(file: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PatchError(f"{file}: not UTF-8 at byte {error.start}") from None


def _read(file: Path) -> bytes:
    try:
        if file.stat().st_size > evidence.MAX_BYTES:
            raise PatchError(f"{file}: is larger than {evidence.MAX_BYTES // 2**20} MiB, too large for a patch")
        with open_regular(file, follow=True) as opened:  # a pipe would make it wait
            return opened.read()
    except UnreadableFile as error:
        raise PatchError(str(error)) from None
    except OSError as error:
        raise PatchError(f"cannot read {file}: {error.strerror}") from None


def _validated(values: Any, file: Path) -> PatchText:
    try:
        return PatchText.model_validate(values)
    except ValidationError as error:
        raise PatchError("\n".join(f"{file}: {line}" for line in _sentences(error))) from None


def _sentences(error: ValidationError) -> Iterator[str]:
    """Yield one sentence per error; for an unknown key it names the most similar known one."""
    models: list[type[evidence.Written]] = evidence.Written.__subclasses__()
    known = list(chain.from_iterable(model.model_fields for model in models))
    for fault in error.errors():
        where = ".".join(str(part) for part in fault["loc"]) or "the file"
        if fault["type"] != "extra_forbidden":
            yield f"{where}: {sentence(fault)}"
            continue
        near = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
        yield f"{where}: unknown key" + (f"; did you mean {near[0]}?" if near else "")


def _range_findings(text: PatchText) -> Iterator[str]:
    """Yield errors of the ranges: they must ascend without overlap, and the last must be open or `until` be set."""
    floor: tuple[int, ...] | None = ()
    for index, variant in enumerate(text.variants):
        bounds = _RANGE.fullmatch(variant.versions)
        if bounds is None:
            yield f"variants.{index}.versions: {variant.versions!r} is not like >=0.19.0,<0.33"
            return
        low = launcher.release_key(bounds[1])
        high = launcher.release_key(bounds[2]) if bounds[2] else None
        if floor is None or low is None or low < floor or (high is not None and high <= low):
            yield f"variants.{index}.versions: {variant.versions} overlaps the previous range or is empty"
        floor = high
    if (floor is None) == (text.until is not None):
        yield "variants: the last range must be open, because content decides for later releases, or until: must be set"


def _rule_findings(text: PatchText) -> Iterator[str]:
    for index, rule in enumerate(text.superseded):
        try:
            launcher.Rule(**rule.model_dump())
        except ValueError as error:
            yield f"superseded.{index}{'.path' if rule.path in str(error) else ''}: {error}"


def _speed_findings(text: PatchText, measured: tuple[evidence.EvidenceRun, ...]) -> Iterator[str]:
    """Yield errors of what a speed patch claims: it is bounded, within its own ranges, and measured."""
    ranges = [variant.versions for variant in text.variants]
    bounds = [_RANGE.fullmatch(versions) for versions in ranges]
    if not all(bounds):
        return  # told with the ranges
    if text.errors:
        yield "errors: slow code prints no error; only a patch of a defect has errors"
    if text.reviewed and not text.leaves_alone:
        yield "leaves_alone: missing; a reviewed speed patch states what of vLLM runs as released"
    if text.reviewed and not text.pays:
        yield "pays: missing; a reviewed speed patch states where it was shown to pay, with cells in evidence.json"
    first, last = [bound for bound in (bounds[0], bounds[-1]) if bound]
    for index, claim in enumerate(text.pays):
        span = _RANGE.fullmatch(claim.versions)
        if span is None or span[2] is None:
            yield f"pays.{index}.versions: {claim.versions!r} is not like >=0.32.0,<0.33; no later release was measured"
            return
        low, high = launcher.release_key(span[1]), launcher.release_key(span[2])
        if low < launcher.release_key(first[1]) or (last[2] and high > launcher.release_key(last[2])) or low >= high:
            yield f"pays.{index}.versions: {claim.versions} is outside the releases that the patch is for"
    if text.dropped_in and (not last[2] or launcher.release_key(last[2]) != launcher.release_key(text.dropped_in)):
        yield f"dropped_in: is {text.dropped_in}, so the last range must end with <{text.dropped_in}"
    yield from evidence.findings(text.id, ranges, text.pays, measured)


def _defect_findings(text: PatchText, measured: tuple[evidence.EvidenceRun, ...]) -> Iterator[str]:
    for key in ("pays", "dropped_in", "leaves_alone"):
        if getattr(text, key):
            yield f"{key}: belongs to a patch with purpose: speed"
    if measured:
        yield f"{evidence.EVIDENCE_FILE} belongs to a patch with purpose: speed"


UNWRITTEN: Final = "TODO"
"""The beginning of a text that somebody still has to write."""


def _unwritten_findings(text: PatchText) -> Iterator[str]:
    """Yield an error for every unwritten text of a patch with reviewed: true."""
    texts = {"required_by.when": text.required_by.when, "required_by.methods": " ".join(text.required_by.methods)}
    texts |= {key: getattr(text, key) for key in ("title", "hole", "drop_when", "licence", "author")}
    for key, value in texts.items():
        if text.reviewed and value.startswith(UNWRITTEN):
            yield f"{key}: not written yet, so the patch cannot have reviewed: true"


def _variant(folder: Path, files: Mapping[str, bytes], text: VariantText, rules: Rules) -> Variant:
    """Return a diff with its scopes. Raise PatchError if their files or numbers of hunks differ."""
    file = folder / text.diff
    unscoped = parse_diff(_decoded(file, files[file.name]), str(file))
    hunks = {edit.path: len(edit.hunks) for edit in unscoped}
    scopes = {path: len(names) for path, names in text.scopes.items()}
    if hunks != scopes:
        raise PatchError(f"{folder / 'patch.yaml'}: {text.diff} has hunks {hunks}, but the scopes are {scopes}")
    edits = tuple(_scoped(edit, text.scopes[edit.path]) for edit in unscoped)
    known = parse_known(folder / KNOWN_FILE, files.get(KNOWN_FILE), file.stem, fingerprint(edits, rules))
    return Variant(
        name=file.stem,
        specifier=text.versions,
        sha256=launcher.sha256(files[file.name]),
        files=tuple(replace(edit, known=known.get(edit.path, ())) for edit in edits),
    )


def _scoped(edit: DiffFile, scopes: tuple[str, ...]) -> launcher.FileEdit:
    """Return a file's hunks, each with its function or class."""
    pairs = zip(scopes, edit.hunks, strict=True)
    hunks = tuple(launcher.Hunk(scope, hunk.line, hunk.old, hunk.new) for scope, hunk in pairs)
    return launcher.FileEdit(edit.path, hunks)
