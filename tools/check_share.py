"""Check measurements that somebody shared, and print their rows for the page of measured machines.

    .venv/bin/python tools/check_share.py ISSUE.md …      # exit code 1 if one cannot stand

Reads the JSON block that `gemmaspec share` writes. The figures are checked against what they must obey: k + 1 tokens in
a step at most, a steady reference step, no speculation in the same run; and the profile is loaded and linted if it is a
shipped one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from gemmaspec.bench.share import doubts, markdown, parse
from gemmaspec.deploy.checks.lint import LintRequest, lint
from gemmaspec.errors import GemmaspecError
from gemmaspec.profile.find import profile_folders, profile_names

_BLOCK = re.compile(r"```json\n(\{.*?\})\n```", re.DOTALL)


def main(arguments: list[str]) -> int:
    """Check each file; return the exit code."""
    wrong = 0
    for name in arguments:
        try:
            text = Path(name).read_text(encoding="utf-8")
            block = _BLOCK.search(text)
            found = parse(block[1] if block else text, file=name)
            said = list(doubts(found))
            if found["profile"] in profile_names(profile_folders()[-1:]):
                said += [f"lint: {one.message}" for one in lint(LintRequest(names=[found["profile"]]))[0].findings
                         if one.severity == "error"]  # fmt: skip
        except (GemmaspecError, OSError, UnicodeDecodeError) as error:
            said = [str(error)]
        else:
            print(markdown(found).partition("\n<details>")[0])
        for one in said:
            print(f"{name}: {one}", file=sys.stderr)
        wrong += bool(said)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
