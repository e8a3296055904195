"""The last tokens of a prompt, at a server's own layers and contexts.

In the interpreter the rows for FP8 are taken for float32, on a FAKE GPU of their architecture, as in numbers.py.
"""

from pathlib import Path

import attention_cases

NUMBERS = Path(__file__).parent.with_name("triton-verify-split-kv") / "numbers.py"


def cases(job):
    if job["device"] == "cpu":
        pretend(job)
    return attention_cases.prompts(job, attention_cases.bounds(NUMBERS))


def pretend(job):
    import interpreted

    module = attention_cases.tree(job)
    module.current_platform = interpreted.gpu(9)
    table = getattr(module, "PREFILL_LAUNCH", {})
    table |= {(9, head, 4): launch for (_, head, size), launch in list(table.items()) if size == 1}
