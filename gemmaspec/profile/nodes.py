"""What follows from `nodes`: how many GPUs share target and draft when one server spans several machines. Pure."""

from __future__ import annotations

from gemmaspec.errors import UsageError
from gemmaspec.profile.command import extra_of
from gemmaspec.profile.model import Profile


def spread(profile: Profile) -> Profile:
    """Return the profile with the parallel sizes that follow from `nodes`; with one node, the profile unchanged.

    Without any parallel size, target and draft share one GPU of each machine. A draft model needs as many GPUs as its
    target (vllm/config/speculative.py and v1/spec_decode/draft_model.py, every release), so 1 follows too.
    """
    if profile.nodes == 1:
        return profile
    serve, spec = profile.serve, profile.speculative
    if not (serve.tensor_parallel_size or serve.pipeline_parallel_size or gives_parallel_size(profile)):
        serve = serve.model_copy(update={"tensor_parallel_size": profile.nodes})
    size = serve.tensor_parallel_size
    if spec and size and spec.method == "draft_model" and spec.draft_tensor_parallel_size in (None, 1):
        spec = spec.model_copy(update={"draft_tensor_parallel_size": size})
    return profile.model_copy(update={"serve": serve, "speculative": spec})


def gives_parallel_size(profile: Profile) -> bool:
    """Return whether `serve.extra_args` give a parallel size."""
    return extra_of(profile).given("--tensor-parallel-size", "--pipeline-parallel-size")


def need_one_machine(profile: Profile, what: str) -> None:
    """Raise UsageError for a server on several machines, where `what` knows servers on one."""
    if profile.nodes > 1:
        raise UsageError(
            f"{what} is for a server on one machine, and {profile.name} has nodes: {profile.nodes}",
            hint=f"gemmaspec fit {profile.name}    # memory and bounds on several machines",
        )
