"""How fast this machine's processor reads its memory, tried out."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from typing import Final

import psutil

from gemmaspec.doctor.speed import Reading

SECONDS: Final = 10.0
SLICES: Final = 10
_BUFFER: Final = 128 * 1024 * 1024
"""Bytes that each thread reads over and over: more than caches hold."""
_SHARE: Final = 0.25
"""Share of the memory that is free which the buffers may take together."""


def read_memory(*, seconds: float = SECONDS, slices: int = SLICES, buffer: int = _BUFFER) -> Reading:
    """Read memory with a thread for each processor this process may use, and return the rates slice by slice.

    The C library's memchr looks for a byte that is not there: it reads every byte once, and leaves the interpreter
    free for the other threads.
    """
    threads = len(os.sched_getaffinity(0))
    size = max(1024 * 1024, min(buffer, int(psutil.virtual_memory().available * _SHARE) // threads))
    counts = [0] * threads
    over = threading.Event()
    ready = threading.Barrier(threads + 1)
    workers = [
        threading.Thread(target=_read, args=(counts, n, size, ready, over), name=f"gemmaspec-memory-{n}", daemon=True)
        for n in range(threads)
    ]
    for worker in workers:
        worker.start()
    ready.wait()
    try:
        rates = _rates(counts, size, seconds=seconds, slices=slices)
    finally:
        over.set()
        for worker in workers:
            worker.join()
    return Reading(threads=threads, bytes_per_second=tuple(rates))


def _read(counts: list[int], place: int, size: int, ready: threading.Barrier, over: threading.Event) -> None:
    """Read one buffer again and again, and count."""
    find = ctypes.CDLL(None).memchr
    find.argtypes, find.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), ctypes.c_void_p
    memory = ctypes.create_string_buffer(size)
    ctypes.memset(memory, 2, size)  # pages that were never written are all the same one
    address = ctypes.addressof(memory)
    ready.wait()
    while not over.is_set():
        find(address, 1, size)
        counts[place] += 1


def _rates(counts: Sequence[int], size: int, *, seconds: float, slices: int) -> list[float]:
    found = []
    before, began = sum(counts), time.perf_counter()
    for _ in range(slices):
        time.sleep(seconds / slices)
        now, at = sum(counts), time.perf_counter()
        found.append((now - before) * size / (at - began))
        before, began = now, at
    return found
