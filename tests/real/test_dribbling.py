"""What looks at servers that send a byte now and then: it ends in its time, whatever their number."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from tests.serve.test_up_faults import servers
from tests.support import fake_runtime
from tests.support.real import free_port

NAMES = tuple(f"slow{number}" for number in range(5))
COMMANDS = (
    (("status",), 16),
    (("status", "slow0"), 16),
    (("top", "--once"), 8),
    (("status", "slow0", "--wait", "--timeout", "5"), 10),
    (("up", "slow0", "--engine", "process", "--timeout", "5"), 10),
)
"""Each with the seconds that it may take on an idle machine; one server after another would take five times as long."""


def test_commands_end_in_their_time_with_servers_that_dribble(tmp_path: Path) -> None:
    fake_runtime.make_models()
    fake = fake_runtime.installed(tmp_path)
    with contextlib.ExitStack() as ended:
        for name in NAMES:
            fake.profile(name, free_port())
        ups = [("up", name, "--engine", "process") for name in NAMES]
        done = fake.race(*ups, env={"FAKE_VLLM_DRIBBLES": str(tmp_path / "now")})
        for process in servers("slow"):
            ended.callback(process.kill)
        assert [one.code for one in done] == [0] * len(NAMES), done
        (tmp_path / "now").touch()
        began = time.monotonic()
        fake.race(("profile", "list"))
        busy_s = 10 * (time.monotonic() - began)  # on a busy machine a command that asks nobody takes long, too
        took = {}
        for command, seconds in COMMANDS:
            began = time.monotonic()
            (found,) = fake.race(command)
            took[command] = time.monotonic() - began
            assert took[command] < seconds + busy_s, (took, found)
            assert found.code in (1, 4, 6, 7), found
            assert len(servers("slow")) == len(NAMES), (command, found)
