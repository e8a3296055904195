"""What a file of real servers leaves behind for the next one: the run's profile, as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import real


@pytest.fixture(scope="module", autouse=True)
def _own_profile() -> Iterator[None]:
    """Any file of a worker may run next: a profile that names one file's temporary files would fail in it."""
    yield
    real.write_profile()
