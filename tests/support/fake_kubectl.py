"""A fake of kubectl: answers from a folder of files, and writes down what it was asked. No cluster is here to ask.

FAKE_KUBECTL names the folder: pods.json is the answer to `get pods`, report-POD.json to `exec POD`, stderr makes every
command fail with that text, and calls gets a line of JSON for each call: its words, and what came on standard input.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> int:
    folder, words = Path(os.environ["FAKE_KUBECTL"]), sys.argv[1:]
    stdin = sys.stdin.read() if "-" in words else ""
    with (folder / "calls").open("a") as calls:
        calls.write(json.dumps({"words": words, "stdin": stdin}) + "\n")
    if (folder / "stderr").exists():
        sys.stderr.write((folder / "stderr").read_text())
        return 1
    if "apply" in words:
        sys.stdout.write("configmap/x serverside-applied (server dry run)\n")
        return 0
    if "exec" in words:
        name = words[words.index("--namespace") + 2]
        report = folder / f"report-{name}.json"
        if not report.exists():
            sys.stderr.write(f"cat: {words[-1]}: No such file or directory\n")
            return 1
        sys.stdout.write(report.read_text())
        return 0
    sys.stdout.write((folder / "pods.json").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
