"""Runs first in every Python that the server starts: waits for vLLM's import, then loads what attests its functions.

The launcher puts this file as `sitecustomize.py` into the run folder and that folder on PYTHONPATH, behind the overlay.
A process that never imports vLLM pays one small finder and nothing else. Standard library, Python 3.10+.
"""

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


class GemmaspecFinder:
    """A finder that finds nothing of its own: it notices the first look for vLLM, and modules that are followed."""

    gemmaspec = FOLDER
    waits = True
    attestor = None

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Begin to attest as soon as anything looks for vLLM."""
        if cls.waits and name.partition(".")[0] == "vllm":
            cls.waits = False
            import gemmaspec_attest  # type: ignore[import-not-found]  # beside this file, under that name

            cls.attestor = gemmaspec_attest.begin(FOLDER)
        return cls.attestor and cls.attestor.find_spec(cls, name, path, target)


def run_the_next() -> None:
    """Run the sitecustomize that would have run without this one, if there is one."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder  # importlib.machinery costs a millisecond in every process

    rest = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


sys.meta_path.insert(0, GemmaspecFinder)
run_the_next()
