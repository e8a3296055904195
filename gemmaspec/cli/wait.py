"""`gemmaspec wait`."""

from __future__ import annotations

from functools import partial

from gemmaspec.cli import options
from gemmaspec.cli.target import carry_out


def wait(name: options.Stack, timeout: options.Timeout = 1800, json: options.Json = False) -> None:
    """Wait until a server has drafted, verified and answered, whoever started it.

    With the NAME of a profile that has replicas, waits for each of them; the router must run too.
    Exit code 0 if it has, 6 if it does not run or its start failed, 7 if it takes too long. Stops nothing.
    """
    from gemmaspec.deploy.kept.groups import is_group
    from gemmaspec.deploy.start import replicas
    from gemmaspec.deploy.start.wait import wait as wait_for_one

    grouped = is_group(name)
    verb = partial(replicas.wait_for_all if grouped else wait_for_one, name, timeout_s=timeout)
    carry_out(name, verb, replicas=grouped, as_json=json, verdicts=True)
