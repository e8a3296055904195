"""Whether a port is free."""

from __future__ import annotations

import os
import socket

import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine import port


def test_a_free_port_stays_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        number = probe.getsockname()[1]
    for bind in ("127.0.0.1", "0.0.0.0"):
        port.ensure_free(bind, number)
        port.ensure_free(bind, number)


@pytest.mark.parametrize(("held", "wanted"), [("127.0.0.1", "0.0.0.0"), ("0.0.0.0", "127.0.0.1")])
def test_a_listener_on_an_overlapping_address_is_found(held: str, wanted: str) -> None:
    with socket.create_server((held, 0)) as listener:
        number = listener.getsockname()[1]
        with pytest.raises(EnvironmentMissing, match=rf"port {number} on {wanted} .*\(pid {os.getpid()}\)"):
            port.ensure_free(wanted, number)


def test_a_connection_that_is_fading_away_does_not_hold_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", number)):
            accepted, _ = listener.accept()
            accepted.close()  # the side that closes first waits in TIME_WAIT
    port.ensure_free("127.0.0.1", number)


def test_a_low_port_is_told_to_a_user_who_may_not_have_it() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.seteuid(65534)
    try:
        with pytest.raises(EnvironmentMissing, match="below 1024"):
            port.ensure_free("127.0.0.1", 81)
        port.ensure_free("127.0.0.1", 81, as_root=True)
    finally:
        os.seteuid(0)
