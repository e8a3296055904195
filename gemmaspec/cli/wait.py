"""`gemmaspec wait`."""

from __future__ import annotations

from gemmaspec.cli import options
from gemmaspec.cli.interrupt import told_of_replicas, told_on_interrupt


def wait(name: options.Stack, timeout: options.Timeout = 1800, json: options.Json = False) -> None:
    """Wait until a server has drafted, verified and answered, whoever started it.

    With the NAME of a profile that has replicas, waits for each of them; the router must run too.
    Exit code 0 if it has, 6 if it does not run or its start failed, 7 if it takes too long. Stops nothing.
    """
    from gemmaspec.cli.text import replicas as replicas_text
    from gemmaspec.cli.text import stack
    from gemmaspec.deploy.kept import stacks
    from gemmaspec.deploy.kept.groups import is_group
    from gemmaspec.deploy.kept.verdicts import last_verdicts
    from gemmaspec.deploy.start import replicas
    from gemmaspec.deploy.start import wait as use_case

    if is_group(name):
        with told_of_replicas(name), stack.start_progress() as progress:
            waited = replicas.wait_for_all(name, progress, timeout_s=timeout)
        replicas_text.rolled(waited, as_json=json)
        return
    with told_on_interrupt(name), stack.start_progress() as progress:
        running = use_case.wait(name, progress, timeout_s=timeout)
    stack.running(running, as_json=json, last=last_verdicts(running.started, stacks.engine_of(running.started)))
