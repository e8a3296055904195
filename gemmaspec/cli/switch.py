"""`gemmaspec switch`."""

from __future__ import annotations

from functools import partial

from gemmaspec.cli import options
from gemmaspec.cli.target import carry_out
from gemmaspec.errors import UsageError


def switch(
    name: options.Stack,
    profile: options.Profile,
    engine: options.Engine = None,
    set_: options.Set = None,
    no_spec: options.NoSpec = False,
    timeout: options.Timeout = 1800,
    json: options.Json = False,
) -> None:
    """Stop a started profile and start another one in its place, as for two models on one GPU.

    What the other one needs is fetched before anything is stopped. If it does not answer, the first one is started
    again as it was.
    """
    from gemmaspec.deploy.start.decide import UpRequest
    from gemmaspec.deploy.start.observe import has_replicas
    from gemmaspec.deploy.start.switch import switch as use_case

    request = UpRequest(
        profile=profile,
        overrides=tuple(set_ or ()),
        no_spec=no_spec,
        engine=options.engine_name(engine),
        timeout_s=timeout,
    )
    if has_replicas(request):
        raise UsageError(f"{profile} has replicas, and switch starts one server", hint=f"gemmaspec up {profile}")
    carry_out(profile, partial(use_case, name, request), as_json=json)
