"""A step's verification for several requests: the patch changes up to how many of them a cache is split."""

from pathlib import Path

import attention_cases

NUMBERS = Path(__file__).parent.with_name("triton-verify-split-kv") / "numbers.py"


def cases(job):
    return attention_cases.verifying(job, attention_cases.bounds(NUMBERS), least=2)
