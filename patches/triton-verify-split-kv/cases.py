"""A step's verification, at a server's own layers, requests and contexts."""

from pathlib import Path

import attention_cases

NUMBERS = Path(__file__).parent.with_name("triton-verify-split-kv") / "numbers.py"


def cases(job):
    return attention_cases.verifying(job, attention_cases.bounds(NUMBERS))
