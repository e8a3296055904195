"""The flags of `vllm serve`, from the code that builds its argument parser.

vLLM makes most of them from the fields of its config dataclasses: `get_kwargs(ModelConfig)["dtype"]` is interpreted
by type (EngineArgs.add_cli_args and _compute_kwargs in vllm/engine/arg_utils.py, FrontendArgs.add_cli_args in the
file that vllm/entrypoints/cli/serve.py imports make_arg_parser from). A bool field becomes a flag with a --no- form. A
field with a Literal and no str has choices; with str it has none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from extraction.hints import hints_of
from extraction.sources import Hint, Sources, Unexpected, assigned, constant, method_of
from extraction.values import LIMITS, MODALITIES, MULTIMODAL, Configs, bounds_of, configs_of, names_of, word_of
from gemmaspec.core.releases.flags import Flag
from gemmaspec.core.releases.values import ANY

SERVE: Final = "vllm/entrypoints/cli/serve.py"
UTILITIES: Final = "vllm/utils/argparse_utils.py"
ENGINE: Final = "vllm/engine/arg_utils.py"


_PAIRED: Final = ("--enable-", "--disable-")
_TYPES: Final = {
    "int": "int",
    "float": "float",
    "json.loads": "json",
    "optional_type(json.loads)": "?{}",
    "human_readable_int": "readable",
}
"""Types of add_argument that are known here."""


def flags_of(sources: Sources) -> dict[str, Flag]:
    """Return every long option, by name. Raise Unexpected if vLLM's code has an unknown form."""
    where, found = sources.find(SERVE, "make_arg_parser") or (SERVE, None)
    if not isinstance(found, ast.FunctionDef):
        raise Unexpected(f"{SERVE}: make_arg_parser is missing")
    flags = [*_Builder(sources, where, found).flags(), *_frontend(sources, where)]
    command = sources.find(SERVE, "ServeSubcommand")
    if command and isinstance(command[1], ast.ClassDef) and (own := method_of(command[1], "subparser_init")):
        flags += _Builder(sources, SERVE, own).flags()  # --grpc, up to 0.19.1
    for name in ("EngineArgs", "AsyncEngineArgs"):
        if method := method_of(sources.class_of(ENGINE, name)[1], "add_cli_args"):
            flags += _Builder(sources, ENGINE, method).flags()
    pairs = _pairs(sources)
    parallel = sources.fields(ENGINE, "ParallelConfig") if sources.find(ENGINE, "ParallelConfig") else {}
    bounds = {option(name): bounds_of(one) for name, (_, one) in parallel.items()}
    return {
        flag.name: replace(
            flag,
            paired=pairs and flag.negatable and flag.name.startswith(_PAIRED),
            form="int" + bounds.get(flag.name, "") if flag.form == "int" else flag.form,
        )
        for flag in flags
    }


def configs_in(sources: Sources, flags: Iterable[Flag]) -> Configs:
    """Return the keys of the classes that flags take as JSON."""
    names = {flag.form.lstrip("?+@") for flag in flags if "@" in flag.form}
    found = [(where[0], name) for name in sorted(names) if (where := sources.find(ENGINE, name))]
    if LIMITS not in names:
        return configs_of(sources, found)
    limits = {"*": ANY, **{kind: f"exact>=0|@{name}" for kind, name in MODALITIES.items()}}
    return configs_of(sources, [*found, *((MULTIMODAL, name) for name in MODALITIES.values())]) | {LIMITS: limits}


def _pairs(sources: Sources) -> bool:
    """Return whether vLLM's parser gives every --enable-x a --disable-x: its EnableDisableAction, from 0.33.0 on."""
    found = sources.find(UTILITIES, "EnableDisableAction")
    return found is not None and isinstance(found[1], ast.ClassDef)


def option(field: str) -> str:
    """Return a field's name as a long option."""
    return "--" + field.replace("_", "-")


def _frontend(sources: Sources, path: str) -> Iterator[Flag]:
    """Yield one flag per field; _customize_cli_kwargs changes types, never names."""
    found = sources.find(path, "FrontendArgs")
    tree = sources.parsed(found[0]) if found else None
    changed = _changed(tree) if tree else {}
    for field, (where, statement) in sources.fields(path, "FrontendArgs").items():
        flag = replace(_of_hints(hints_of(sources, where, statement.annotation)), name=option(field))
        flag = _with_value(flag, sources, field, where, statement)
        yield replace(flag, form=changed[field]) if field in changed and not flag.bare else flag


def _changed(tree: ast.Module) -> dict[str, str]:
    """Return the fields whose arguments are changed before they are added, each with its form."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name("frontend_kwargs"), slice=ast.Constant(value=str(field))):
                found.setdefault(field, "*")
            case ast.Assign(
                targets=[
                    ast.Subscript(value=ast.Subscript(slice=ast.Constant(value=str(field))), slice=ast.Constant("type"))
                ]
            ):
                found[field] = _TYPES.get(ast.unparse(node.value), "*")
    return found


class _Builder:
    """One function that calls add_argument."""

    def __init__(self, sources: Sources, path: str, function: ast.FunctionDef) -> None:
        self._sources = sources
        self._path = path
        self._function = function
        self._names = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        """Local names and their values: model_kwargs -> get_kwargs(ModelConfig)."""
        self._edits: dict[str, list[ast.AST]] = {}
        """Statements that change arguments, by what they change: x_kwargs["field"]["choices"].remove(…)."""
        for node in ast.walk(function):
            if owner := _edited_by(node):
                self._edits.setdefault(ast.unparse(owner), []).append(node)

    def flags(self) -> Iterator[Flag]:
        """Yield the flags of all its calls."""
        for node in ast.walk(self._function):
            match node:
                case ast.Call(func=ast.Attribute(attr="add_argument")):
                    yield from self._added(node)

    def _added(self, call: ast.Call) -> Iterator[Flag]:
        options = [constant(argument) or "" for argument in call.args]
        short = next((option for option in options if option.startswith("-") and not option.startswith("--")), None)
        flag = Flag(name="", short=short)
        for keyword in call.keywords:
            flag = self._with(keyword, flag)
        for option in options:
            if option.startswith("--"):
                yield replace(flag, name=option)

    def _with(self, keyword: ast.keyword, flag: Flag) -> Flag:
        """Return the flag as one keyword of add_argument changes it."""
        value = keyword.value
        match keyword.arg:
            case None:
                return replace(self._of_field(value), short=flag.short)
            case "action" if ast.unparse(value).endswith("BooleanOptionalAction"):
                return replace(flag, negatable=True, bare=True)
            case "action" if constant(value) in ("store_true", "store_false"):
                return replace(flag, bare=True, form="-")
            case "nargs" if constant(value) == "?":
                return replace(flag, bare=True)
            case "type":
                return replace(flag, form=_TYPES.get(ast.unparse(value), ""))
            case "choices":
                return replace(flag, choices=_choices(self._sources, self._path, value))
        return flag

    def _of_field(self, node: ast.expr) -> Flag:
        """Return the flag of `**x_kwargs["field"]`, of a local name for it, or of a dict that starts with it."""
        match node:
            case ast.Dict(keys=[None, *_], values=[first, *_]):
                return self._of_field(first)
            case ast.Name(id=name) if name in self._names:
                return self._edited(node, self._of_field(self._names[name]))
            case ast.Subscript(value=inner, slice=ast.Constant(value=str(field))):
                fields = self._sources.fields(self._path, self._config(inner))
                if field in fields:
                    where, statement = fields[field]
                    flag = _of_hints(hints_of(self._sources, where, statement.annotation))
                    flag = _with_value(flag, self._sources, field, where, statement)
                    if not (flag.form or flag.choices or flag.bare):
                        hints, owner = hints_of(self._sources, where, statement.annotation), self._config(inner)
                        flag = replace(flag, form=names_of(self._sources, self._path, owner, field, hints))
                    return self._edited(node, flag)
        raise Unexpected(f"{self._path}:{node.lineno}: unknown form: {ast.unparse(node)[:80]}")

    def _config(self, node: ast.expr) -> str:
        """Return the class in get_kwargs(…)."""
        match node:
            case ast.Name(id=name) if name in self._names:
                return self._config(self._names[name])
            case ast.Call(func=ast.Name(id="get_kwargs"), args=[ast.Name(id=name)]):
                return name
        raise Unexpected(f"{self._path}:{node.lineno}: not get_kwargs(…): {ast.unparse(node)[:80]}")

    def _edited(self, kwargs: ast.expr, flag: Flag) -> Flag:
        """Return the flag after the statements that change its arguments before it is added."""
        for edit in self._edits.get(ast.unparse(kwargs), ()):
            if isinstance(edit, ast.Assign):
                flag = replace(flag, form=_TYPES.get(ast.unparse(edit.value), ""))
            match edit:
                case ast.Assign(value=ast.Lambda(body=body)) if ".lower()" in ast.unparse(body):
                    flag = replace(flag, folds=True)
                case ast.AugAssign():  # adds combinations that no literal lists
                    flag = replace(flag, choices=None)
                case ast.Call(args=[taken]) if flag.choices:
                    flag = replace(flag, choices=flag.choices - {self._text(taken)})
        return flag

    def _text(self, node: ast.expr) -> str | None:
        """Return the text of a string constant, or of a name for one."""
        if isinstance(node, ast.Name) and (found := self._sources.find(self._path, node.id)):
            return constant(assigned(found[1]))
        return constant(node)


def _edited_by(node: ast.AST) -> ast.expr | None:
    """Return what a statement changes the type or the choices of."""
    match node:
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=ast.Constant(value="type"))]):
            return owner
        case ast.AugAssign(target=ast.Subscript(value=owner, slice=ast.Constant(value="choices"))):
            return owner
        case ast.Call(
            func=ast.Attribute(value=ast.Subscript(value=owner, slice=ast.Constant("choices")), attr="remove")
        ):
            return owner
    return None


def _with_value(flag: Flag, sources: Sources, field: str, where: str, statement: ast.AnnAssign) -> Flag:
    """Return the flag with the form of its value."""
    if flag.choices or flag.bare:
        return flag
    return replace(flag, form=word_of(field, hints_of(sources, where, statement.annotation), bounds_of(statement)))


def _of_hints(hints: Sequence[Hint]) -> Flag:
    """Return the flag that _compute_kwargs makes of these types."""
    kinds = {hint.kind for hint in hints}
    if "config" in kinds:
        return Flag(name="")
    if kinds == {"bool", "str", "None"}:
        return Flag(name="", bare=True)
    if "bool" in kinds:
        return Flag(name="", negatable=True, bare=True)
    values = frozenset(value for hint in hints if hint.kind == "literal" for value in hint.values)
    if values:
        return Flag(name="", choices=None if "str" in kinds else values)
    listed = frozenset(value for hint in hints if hint.kind == "list" for value in hint.values)
    return Flag(name="", choices=listed or None)


def _choices(sources: Sources, path: str, node: ast.expr) -> frozenset[str] | None:
    """Return the values of `choices=`, written out or from get_args() of a literal; None if the machine decides.

    The machine's own device is left out: vLLM refuses it where a server runs the language model
    (MultiModalConfig.validate_mm_processor_device, from 0.28.0).
    """
    match node:
        case ast.List(elts=values) | ast.Tuple(elts=values):
            return frozenset(constant(value) or ast.unparse(value) for value in values)
        case ast.Call(func=ast.Name(id="get_args"), args=[inner]):
            return frozenset(value for hint in hints_of(sources, path, inner) for value in hint.values)
        case ast.BinOp(left=ast.List() as listed, right=ast.IfExp(body=ast.List(elts=[own]))):
            return _choices(sources, path, listed) if ast.unparse(own) == "current_platform.device_type" else None
    return None
