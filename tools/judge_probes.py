"""Judge the probes that may decide at a start, and keep the results in patches/*/judged.json.

    .venv/bin/python tools/judge_probes.py              # all that have fixes in tests/judged_fixes.py
    .venv/bin/python tools/judge_probes.py PATCH…

The digest of what was asked is kept with the result: a probe that is changed decides nothing until it is judged again.
Exit code 1 if a wrong fix was called right, or too few right ones were; then the old result is removed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from gemmaspec.check.proof.environment import prove_python
from gemmaspec.check.proof.prove import Probes
from gemmaspec.core import data
from gemmaspec.core.launcher import release_key
from gemmaspec.core.patching.judged import JUDGED as FILE
from gemmaspec.core.patching.judged import Judgement, probe_files
from tests.support.judged_fixes import JUDGED
from tests.support.judging import Judged, judge


def main(arguments: Sequence[str]) -> int:
    """Judge the patches that are named, or all; print what was told wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patch", nargs="*", choices=[[], *JUDGED], help="default: all")
    named = parser.parse_args(arguments).patch or list(JUDGED)
    failed = 0
    with Probes(prove_python(progress=print)) as probes:
        for patch in named:
            found = judge(patch, probes)
            for line in (*found.called_closed, *found.missed):
                print(f"  {line}")
            print(f"{patch}: {len(found.called_closed)} of {found.wrong} wrong fixes called right, ", end="")
            print(f"{found.right - len(found.missed)} of {found.right} right ones recognised", flush=True)
            failed += not keep(patch, found)
    return 1 if failed else 0


def keep(patch: str, found: Judged) -> bool:
    """Write judged.json if the probe passes, else remove it; return whether it passes."""
    folder = data.PATCHES / patch
    files = probe_files(folder)
    assert files
    document = {
        "schema": 1,
        "probe": files.digest,
        "releases": sorted(found.releases, key=release_key),
        "wrong": found.wrong,
        "called_closed": len(found.called_closed),
        "right": found.right,
        "recognised": found.right - len(found.missed),
    }
    passes = Judgement.model_validate(document).passes
    if passes:
        (folder / FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    else:
        (folder / FILE).unlink(missing_ok=True)
    return passes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
