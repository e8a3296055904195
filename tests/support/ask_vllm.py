"""Run by a vLLM's own Python: its flags, and what it says of command lines, as far as it gets without loading a model.

Reads a JSON list of argument lists from stdin, writes as JSON: the flags, and a list of error texts, null where there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
from typing import Any

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"


def flags_of(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """What a parser takes, by the name of each flag."""
    found = {}
    for action in parser._actions:
        short = next((name for name in action.option_strings if not name.startswith("--")), None)
        for name in action.option_strings:
            found[name] = {
                "choices": None
                if action.choices is None
                else sorted(str(one) for one in action.choices if one is not None),
                "bare": action.nargs in (0, "?"),
                "negatable": isinstance(action, argparse.BooleanOptionalAction),
                "short": short,
            }
    return found


def main() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def ask(arguments: list[str]) -> str | None:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                parsed: Any = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
            validate_parsed_serve_args(parsed)
            AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1]
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    flags = flags_of(make_arg_parser(FlexibleArgumentParser()))
    answers = [ask(arguments) for arguments in json.load(sys.stdin)]
    sys.__stdout__.write("\n" + json.dumps({"flags": flags, "answers": answers}) + "\n")


if __name__ == "__main__":
    main()
