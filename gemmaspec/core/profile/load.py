"""From a profile's name to a checked Profile: find, extend, override, validate.

All problems of a profile are reported together, each as file:line: key: problem.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gemmaspec.core import strict_yaml
from gemmaspec.core.errors import GemmaspecError, ProfileError, UsageError
from gemmaspec.core.files import UnreadableFile, read_regular
from gemmaspec.core.profile import rules
from gemmaspec.core.profile.command import gives_parallel_size
from gemmaspec.core.profile.find import find_profile, profile_folders, profile_names
from gemmaspec.core.profile.foreign_words import foreign_file
from gemmaspec.core.profile.invalid import invalid
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.replica import derived
from gemmaspec.core.releases.drafting import method_found
from gemmaspec.core.strict_yaml import Document, Place

MAX_EXTENDS: Final = 5
RELATIVE: Final = ("./", "../")
_SET: Final = re.compile(r"([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)=(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A checked profile, its file, and where each of its values was written."""

    profile: Profile
    file: Path
    places: Mapping[strict_yaml.Path, Place]
    emptied: tuple[str, ...] = ()
    """Keys without a value that remove something inherited. An explicit `null` is deliberate and not listed."""

    def place(self, *path: str | int) -> Place:
        """Return where the value at `path` was written, or else the nearest value around it."""
        return _nearest_place(path, self.places)

    @property
    def typed(self) -> str:
        """The profile as typed in a command: its name if that finds this file, else the path."""
        file = profile_names().get(self.file.stem)
        if file == self.file:
            return self.file.stem
        return shlex.quote(str(self.file))


def load_profile(
    name: str,
    *,
    folders: Sequence[Path] | None = None,
    overrides: Sequence[str] = (),
    no_spec: bool = False,
) -> Loaded:
    """Load the profile called `name`, or the file `name` if it has a slash or ends in .yaml.

    `folders` are searched for names; default: the user's and the shipped ones.
    `overrides` are `a.b=c` texts; later ones win. `no_spec` removes draft and speculation.
    Raise UsageError for an unknown name, or ProfileError with all problems of an invalid profile.
    """
    folders = profile_folders() if folders is None else folders
    file = find_profile(name, folders)
    try:
        return _checked(file, folders, overrides, no_spec=no_spec)
    except (ProfileError, UsageError) as error:
        raise error.amended(error.message, hint=error.hint or _next(shlex.quote(name), error)) from None


def _next(typed: str, error: GemmaspecError) -> str:
    """Return the command after an error: the profile's keys for a wrong --set, a check for a wrong file."""
    if error.message.startswith("--set "):
        return f"gemmaspec profile show {typed}    # the keys that it sets; gemmaspec profile schema has all"
    return f"gemmaspec profile lint {typed}    # after the correction"


def _checked(file: Path, folders: Sequence[Path], overrides: Sequence[str], *, no_spec: bool) -> Loaded:
    """Return the profile in a file. Raise ProfileError with all problems of an invalid one."""
    document, emptied = _extended(file, folders, seen=())
    for override in overrides:
        document = _overridden(document, override)
    if no_spec:
        document = _without(document, ("draft", "speculative"))
    profile = _validated(document)
    if profile.name != file.stem:
        place = _nearest_place(("name",), document.places)
        raise ProfileError(f"{place}: name: {profile.name!r} does not match the file's name, {file.name}")
    loaded = Loaded(profile=profile, file=file, places=document.places, emptied=tuple(sorted(emptied)))
    _raise_findings(_blamed(mistake, loaded) for mistake in rules.mistakes(profile))
    return loaded


def _read(file: Path) -> Document:
    shown = _shown(file)
    try:
        content = read_regular(file, limit=4 * strict_yaml.MAX_CHARACTERS, follow=True)
    except UnreadableFile as error:
        raise ProfileError(f"cannot read {file}: {error.why}") from None
    if content is None:
        raise ProfileError(f"cannot read {file}: No such file or directory")
    if foreign := foreign_file(content.decode("utf-8-sig", "replace")):
        raise UsageError(f"{shown} is {foreign[0]}", hint=foreign[1].format(file=shlex.quote(shown)))
    document = strict_yaml.parse(content, file=shown)
    if document.data in ({}, None):
        raise ProfileError(
            f"{shown}:1: the file is empty; a profile names at least schema, name, summary, machine and target",
            hint="gemmaspec profile new NAME --from spark-31b-mtp",
        )
    if not isinstance(document.data, dict):
        raise ProfileError(f"{shown}:1: a profile must be a map of keys")
    return replace(document, data=_anchored(document.data, file.parent))


def _shown(file: Path) -> str:
    """Return the path as a person would type it in the working folder."""
    here = Path.cwd()
    if file.is_relative_to(here):
        return str(file.relative_to(here))
    return str(file)


def _anchored(value: Any, folder: Path) -> Any:
    """Return the value with paths that begin with ./ or ../ resolved from the folder of the file."""
    if isinstance(value, dict):
        return {key: _anchored(item, folder) for key, item in value.items()}
    if isinstance(value, str) and value.startswith(RELATIVE):
        return str((folder / value).resolve())
    return value


def _extended(file: Path, folders: Sequence[Path], *, seen: tuple[Path, ...]) -> tuple[Document, frozenset[str]]:
    """Return a file merged with what it extends, and its empty keys that remove something inherited."""
    document = _read(file)
    parent = document.data.pop("extends", None)
    if parent is None:
        return document, frozenset()
    place = document.places.get(("extends",), Place(_shown(file), 1))
    if not isinstance(parent, str) or not re.fullmatch(r"[a-z0-9_][a-z0-9_-]*", parent):
        raise ProfileError(f"{place}: extends: must be the name of a profile{_did_you_mean(parent, file, folders)}")
    if file in seen or len(seen) >= MAX_EXTENDS:
        chain = " → ".join(parent.stem for parent in (*seen, file))
        if file in seen:
            why = "is circular"
        else:
            why = f"is a chain of more than {MAX_EXTENDS} files"
        raise ProfileError(f"{place}: extends: {why}: {chain}")
    base, lost = _extended(_parent_file(parent, file, folders, place), folders, seen=(*seen, file))
    base.data.pop("tuned", None)  # it was measured with that file's settings, and not with what this one changes
    taken = {".".join(map(str, path)) for path in document.empty if _holds(base.data, path)}
    return _merged(base, document), lost | taken


def _holds(data: Any, path: strict_yaml.Path) -> bool:
    for part in path:
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return True


def _parent_file(parent: str, file: Path, folders: Sequence[Path], place: Place) -> Path:
    for folder in (file.parent, *folders):
        candidate = folder / f"{parent}.yaml"
        if candidate.is_file():
            return candidate
    guess = _did_you_mean(parent, file, folders)
    raise ProfileError(f"{place}: extends: {parent}.yaml is neither next to this file nor a shipped profile{guess}")


def _did_you_mean(parent: Any, file: Path, folders: Sequence[Path]) -> str:
    """Return a hint with the most similar profile, including those that begin with _."""
    wanted = str(parent).rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")
    known: set[str] = set()
    for folder in (file.parent, *folders):
        if folder.is_dir():
            known.update(profile.stem for profile in folder.glob("*.yaml"))
    near = difflib.get_close_matches(wanted, sorted(known - {file.stem}), n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]}?"
    return ""


def _merged(base: Document, over: Document) -> Document:
    """Return both merged: maps key by key, other values replaced, null removes a value."""
    return Document(_merge(base.data, over.data), {**base.places, **over.places})


def _merge(base: Any, over: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    merged = {**base, **{key: _merge(base.get(key), value) for key, value in over.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def _overridden(document: Document, override: str) -> Document:
    match = _SET.fullmatch(override)
    if not match:
        raise UsageError(f"--set {override!r} must be KEY=VALUE, as in --set serve.port=8001")
    path = tuple(match[1].split("."))
    source = f"--set {match[1]}"
    if match[2].strip():
        value = _value_set(match[2], source)
    else:
        value = None
    places: dict[strict_yaml.Path, Place] = {path[: n + 1]: Place(source, 0) for n in range(len(path))}
    for key in reversed(path):
        value = {key: value}
    return _merged(document, Document(_anchored(value, Path.cwd()), places))


def _value_set(text: str, source: str) -> Any:
    """Return the value after the `=` of --set. `source` is --set with its key."""
    try:
        return strict_yaml.parse(text, file=source).data
    except ProfileError as error:
        # The parser counts lines, of which an option has one.
        why = re.sub(rf"^{re.escape(source)}(:\d+)?: ", "", error.message)
        raise ProfileError(
            f"{source}: {text!r} is not a value in YAML: {why}",
            hint=f"{source}=[first, second] is a list, and {source}='\"text\"' is text with marks in it",
        ) from None


def _without(document: Document, keys: Iterable[str]) -> Document:
    kept = {key: value for key, value in document.data.items() if key not in set(keys)}
    return Document(kept, document.places)


def _validated(document: Document) -> Profile:
    data = _with_method(document.data)
    try:
        return _spread(Profile.model_validate(data))
    except ValidationError as error:
        wrong = invalid(error.errors(include_url=False), document.data)
        _raise_findings((_nearest_place(path, document.places), _keyed(path, text)) for path, text in wrong)
        raise AssertionError("a ValidationError contains at least one error") from error


def _with_method(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data with the method that vLLM itself finds, where `speculative` names none and there is a draft."""
    spec, draft = data.get("speculative"), data.get("draft")
    if isinstance(draft, dict):
        model = draft.get("model")
    else:
        model = None
    if not isinstance(spec, dict) or "method" in spec or not isinstance(model, str):
        return data
    return {**data, "speculative": {"method": method_found(model), **spec}}


def _spread(profile: Profile) -> Profile:
    """Return the profile with the parallel sizes that follow from `nodes`; with one node, the profile unchanged.

    Without any parallel size, target and draft share one GPU of each machine. A draft model needs as many GPUs as its
    target (vllm/config/speculative.py and v1/spec_decode/draft_model.py, every release), so 1 follows too.
    """
    if profile.nodes == 1:
        return profile
    serve, spec = profile.serve, profile.speculative
    if not (serve.tensor_parallel_size or serve.pipeline_parallel_size or gives_parallel_size(profile)):
        serve = serve.model_copy(update={"tensor_parallel_size": profile.nodes})
    size = serve.tensor_parallel_size
    if spec and size and spec.method == "draft_model" and spec.draft_tensor_parallel_size in (None, 1):
        spec = spec.model_copy(update={"draft_tensor_parallel_size": size})
    return profile.model_copy(update={"serve": serve, "speculative": spec})


def _keyed(path: strict_yaml.Path, text: str) -> str:
    return f"{'.'.join(map(str, path)) or 'the profile'}: {text}"


def _blamed(mistake: rules.Mistake, loaded: Loaded) -> tuple[Place, str]:
    """Return where to put the blame: on a key of the user's own file if one causes the mistake.

    The value in an extended profile is right there, and the user should not edit it.
    """
    place, because = loaded.place(*mistake.path), loaded.place(*mistake.because)
    own = _shown(loaded.file)
    # line 0: the value was given by --set, which is the user's own as well
    wrong_is_own = place.file == own or place.line == 0
    cause_is_own = because.file == own or because.line == 0
    if not mistake.because or wrong_is_own or not cause_is_own:
        return place, str(mistake)
    key = ".".join(map(str, mistake.path))
    return because, _keyed(
        mistake.because, f"{key} {mistake.message} ({key} comes from {place}; set {key}: null to remove it)"
    )


def _raise_findings(findings: Iterable[tuple[Place, str]]) -> None:
    """Raise ProfileError with all problems in the order of the file, each once."""
    in_order = sorted(findings, key=lambda finding: (finding[0].file, finding[0].line))
    lines = dict.fromkeys(f"{place}: {text}".replace("\n", r"\n") for place, text in in_order)
    if lines:
        raise ProfileError("\n".join(lines))


def _nearest_place(path: Sequence[str | int], places: Mapping[strict_yaml.Path, Place]) -> Place:
    for end in range(len(path), -1, -1):
        place = places.get(tuple(path[:end]))
        if place:
            return place
    return Place("profile", 0)


def replica_of(loaded: Loaded, index: int) -> Loaded:
    """Return one replica of a profile: its stack's name, its port on the loopback interface, its own GPUs."""
    return replace(loaded, profile=derived(loaded.profile, index))
