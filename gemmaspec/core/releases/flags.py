"""The flags of `vllm serve`, as the table has them (tools/extraction/flags.py reads them)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One long option of `vllm serve`."""

    name: str
    """With the leading --."""
    choices: frozenset[str] | None = None
    """The allowed values; None if the parser allows any text."""
    folds: bool = False
    """Whether a value is lower-cased, with _ for -, before it is compared with the choices."""
    negatable: bool = False
    """Whether it also has a --no- form; then neither takes a value."""
    bare: bool = False
    """Whether the value may be omitted."""
    paired: bool = False
    """Whether --enable-x also has a --disable-x, or the other way round, with the opposite meaning."""
    form: str = ""
    """The form of its value (values.py), - for none; empty for any text."""
    short: str | None = None
    """As -tp."""

    @property
    def opposite(self) -> str | None:
        """The other form of a paired flag: --disable-x of --enable-x."""
        for prefix, other in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
            if self.paired and self.name.startswith(prefix):
                return other + self.name.removeprefix(prefix)
        return None

    @property
    def switch(self) -> bool:
        """Whether it takes no value."""
        return self.negatable or self.form == "-"

    def takes(self, value: str) -> bool:
        """Return whether a value is one of the choices."""
        return self.choices is None or (value.lower().replace("-", "_") if self.folds else value) in self.choices
