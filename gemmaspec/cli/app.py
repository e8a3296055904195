"""The command line: the table of commands, and the one place that turns errors into text and exit codes.

Commands import what they need when they run, so that `--version`, `--help` and completion stay fast.
"""

from __future__ import annotations

import errno
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import typer.main

from gemmaspec import __version__
from gemmaspec.cli import help as help_
from gemmaspec.cli import output
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, Interrupted, UsageError
from gemmaspec.core.waiting import WAITS

COMMANDS: Final = tuple(chain.from_iterable(help_.SECTIONS.values()))
"""In the order of the help text. Each is a module of gemmaspec.cli with a function of its name, or with a group."""


class _Commands(Mapping[str, Any]):
    """Builds only the command that is run, because building all of them takes longer than rendering a stack."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return _built(name)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _OnDemand(help_.CommandGroup):
    sections = help_.SECTIONS

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()  # type: ignore[assignment]


@functools.cache
def _built(name: str) -> Mapping[str, Any]:
    part = help_.Commands()
    loaded = importlib.import_module(f"gemmaspec.cli.{name}")
    if hasattr(loaded, "add_to"):  # a group
        loaded.add_to(part)
    else:
        part.command(name)(getattr(loaded, name))
    return typer.main.get_group(part).commands


app = typer.Typer(
    name="gemmaspec",
    cls=_OnDemand,
    help="Serve Gemma 4 with speculative decoding on vLLM.",
    epilog="Start here: gemmaspec up, which offers what fits this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        output.data(f"gemmaspec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str], *, command: Callable[..., object] = app) -> int:
    """Run one command line and return its exit code. Every error is printed here, once."""
    wants_json = "--json" in arguments
    if "top" not in arguments:  # it draws over the whole terminal
        WAITS.say = output.progress
    try:
        result = command(args=list(arguments), prog_name="gemmaspec", standalone_mode=False)
    except GemmaspecError as error:
        return output.failure(error, as_json=wants_json)
    except KeyboardInterrupt:
        return output.failure(Interrupted("interrupted"), as_json=wants_json)
    except BrokenPipeError:
        return output.broken_pipe()
    except OSError as error:
        if isinstance(error, PermissionError) or (error.errno in _AWAY and error.filename):
            return output.failure(_unreadable(error), as_json=wants_json)
        if error.errno == errno.ENAMETOOLONG:
            return output.failure(UsageError(f"no file can have so long a name: {error.filename}"), as_json=wants_json)
        if error.filename or error.errno not in (errno.ENOSPC, errno.EIO):
            return _other(error, as_json=wants_json)
        return output.failure(output.unwritten(error), as_json=wants_json)  # the help's own print
    except Exception as error:
        return _other(error, as_json=wants_json)
    if isinstance(result, int):
        return result
    return 0


_AWAY = (errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENODEV)
"""What a disk that fails says, or a folder of another machine that does not answer."""


def _unreadable(error: OSError) -> EnvironmentMissing:
    """Return the error for a file or folder of another user, or on a disk that is away."""
    from gemmaspec.core.files import other_owner, unwritable

    where = error.filename or "a file"
    if isinstance(where, str) and error.filename and other_owner(Path(where)):
        return unwritable(Path(where), error)
    if isinstance(error, PermissionError):
        why = "no permission to read or write"
    else:
        why = f"{error.strerror}:"
    return EnvironmentMissing(f"{why} {where}", hint=f"ls -ld {where}")


def _interrupted(error: Exception) -> bool:
    """Return whether Ctrl-C is behind an error, which Python 3.11 makes of one while a class is made."""
    if str(error).endswith(("KeyboardInterrupt: ", "Terminated: ")):
        return True
    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__cause__
    return False


def _other(error: Exception, *, as_json: bool) -> int:
    """Print an error of the parser in its own words, and anything else as a bug of gemmaspec."""
    # As pydantic's Rust wraps an interrupt, and SIGTERM's (run/kept/stack_lock.py).
    if isinstance(error, typer.Abort) or _interrupted(error):
        return output.failure(Interrupted("interrupted"), as_json=as_json)
    if hasattr(error, "format_message"):  # click's own, under whichever name typer carries it
        return output.usage(error, as_json=as_json)
    import traceback

    output.progress(traceback.format_exc().rstrip())
    output.progress("This is a bug in gemmaspec. Please report it with the lines above.")
    return 1
