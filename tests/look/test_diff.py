"""What `diff` says of two commands."""

from __future__ import annotations

from gemmaspec.look.diff import moved_keys


def test_a_changed_flag_is_named_as_the_profiles_key() -> None:
    now = [
        "launch.py",
        "--",
        "vllm",
        "serve",
        "/m",
        "--max-num-seqs",
        "2",
        "--enforce-eager",
        "--seed=1",
        "--port",
        "8000",
    ]
    then = [
        "launch.py",
        "--",
        "vllm",
        "serve",
        "/m",
        "--max-num-seqs",
        "3",
        "--no-enforce-eager",
        "--seed=1",
        "--my-flag",
    ]
    assert list(moved_keys(now, then)) == [
        "serve.max_num_seqs: 2 → 3",
        "serve.enforce_eager: true → false",
        "serve.port: 8000 → not set",
        "--my-flag: not set → true",
    ]
    assert list(moved_keys(now, now)) == []
