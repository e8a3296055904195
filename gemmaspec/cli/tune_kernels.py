"""`gemmaspec tune-kernels`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.errors import UsageError
from gemmaspec.patching.launches import PATCH, VARIABLE

if TYPE_CHECKING:
    from gemmaspec.deploy.speed.kernels import TunedKernels


def tune_kernels(
    profile: options.Profile,
    engine: options.Engine = None,
    new: Annotated[
        int, typer.Option("--tokens", metavar="N", min=32, max=16384, help="Tokens of a prompt computed at once.")
    ] = 2048,
    context: Annotated[
        int, typer.Option("--context", metavar="N", min=32, max=131072, help="Tokens of the prompt up to their end.")
    ] = 8192,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=1, max=600, help="Time for each kind of layer.")
    ] = 60,
    set_: options.Set = None,
    json: options.Json = False,
) -> None:
    """Find how this GPU computes prompts fastest with Triton's attention, in a minute or two.

    Launches vLLM's own kernel for the profile's layers with other blocks, tiles, warps and stages, and drops what gives
    another result. Prints what to put into the profile for the patch triton-launch-params, whose own table has only
    the GPUs on which it was measured. Starts no server; the profile's must be stopped.
    """
    from gemmaspec.deploy.speed.kernels import KernelsRequest
    from gemmaspec.deploy.speed.kernels import tune_kernels as use_case

    if new > context:
        raise UsageError(f"--tokens {new} are more than --context {context}")
    request = KernelsRequest(
        profile=profile, overrides=set_ or (), engine=options.engine_name(engine), new=new, context=context,
        seconds=seconds,
    )  # fmt: skip
    found = use_case(request, output.progress)
    if json:
        output.json_data(found.as_json())
        return
    _show(found)


def _show(found: TunedKernels) -> None:
    launches = found.launches
    output.told(f"{launches.gpu}, vLLM {launches.vllm}, Triton {launches.triton}")
    output.told("a prompt's part in one layer, ms; rows of a block, tile of keys, warps, stages")
    for row in launches.rows:
        kind = f"heads of {row.head}, {'FP8' if row.bytes == 1 else '16 bit'}"
        best = f"{row.best_ms:.2f} ({', '.join(map(str, row.best))})" if row.best and row.best_ms else "nothing"
        left = f"{row.tried} tried, {row.failed} did not run, {row.wrong} gave another result"
        output.told(f"  {kind:<20} released {row.released_ms:.2f}, best {best}: {row.times:.2f} times as fast; {left}")
    if not found.runs:
        output.told(f"{found.profile} gets {found.backend} for attention, which does not launch these kernels")
    if launches.variable is None:
        output.told("nothing is faster than as released: leave the profile as it is")
        return
    output.told(
        f"put this into {found.profile}, then measure it: gemmaspec bench {found.profile} --speed-patches speed,none"
    )
    output.told(f"  patches: {{speed: [{PATCH}]}}  # and those that it lists already")
    output.told(f'  env: {{{VARIABLE}: "{launches.variable}"}}')
