"""How a server is spread over GPUs: the sizes that decide what each GPU computes, and so how long a step takes."""

from __future__ import annotations

from gemmaspec.core.profile.command import Command
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.rows import Parallel


def parallel_of(profile: Profile, command: Command) -> Parallel:
    """Return how a profile's server is spread; the draft's size is the target's where the profile does not say."""
    spec = profile.speculative
    tensor = _size(command, "--tensor-parallel-size")
    own = spec.draft_tensor_parallel_size if spec else None
    return Parallel(
        tensor=tensor,
        pipeline=_size(command, "--pipeline-parallel-size"),
        data=_size(command, "--data-parallel-size"),
        draft=own or tensor,
    )


def _size(command: Command, flag: str) -> int:
    """Return a size that the command line gives, else 1; vLLM refuses all but whole numbers."""
    given = command.value(flag) or "1"
    if given.isdecimal() and int(given) > 0:
        return int(given)
    return 1
