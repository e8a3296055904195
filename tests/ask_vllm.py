"""Run by a vLLM's own Python: what vLLM says of command lines, as far as it gets without loading a model.

Reads a JSON list of argument lists from stdin, writes a JSON list of error texts, null where there is none.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"


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

    answers = [ask(arguments) for arguments in json.load(sys.stdin)]
    sys.__stdout__.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
