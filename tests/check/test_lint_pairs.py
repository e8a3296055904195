"""From 0.33.0 on every --enable-x has a --disable-x, and the other way round."""

from __future__ import annotations

import pytest

from gemmaspec.core.profile.command import resolve
from gemmaspec.core.releases.facts import facts_for

NEWEST, BEFORE = facts_for("0.33.0"), facts_for("0.32.0")


@pytest.mark.parametrize(
    ("written", "flag", "negated"),
    [
        ("--disable-prefix-caching", "--enable-prefix-caching", True),
        ("--disable_prefix_caching", "--enable-prefix-caching", True),
        ("--enable-prefix-caching", "--enable-prefix-caching", False),
        ("--enable-hybrid-kv-cache-manager", "--disable-hybrid-kv-cache-manager", True),
        ("--no-enable-prefix-caching", "--enable-prefix-caching", True),
    ],
)
def test_the_opposite_of_a_flag_is_that_flag(written: str, flag: str, negated: bool) -> None:
    assert NEWEST
    assert resolve(written, NEWEST.flags) == (flag, negated)


def test_the_table_has_all_of_them_and_older_releases_none() -> None:
    assert NEWEST
    assert BEFORE
    assert len([one for one in NEWEST.flags.values() if one.opposite]) == 50
    assert not [one for one in BEFORE.flags.values() if one.opposite]
    assert resolve("--disable-prefix-caching", BEFORE.flags)[0] == "--disable-prefix-caching"
