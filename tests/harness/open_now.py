"""What this process has open, to be compared before and after."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from thread_ranks import wait_until


class Open(NamedTuple):
    """Numbers of what communicators open; sockets are left out, torch's store has some too."""

    eventfds: int
    memory: int
    threads: int


def open_now() -> Open:
    """Count."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return Open(
        sum("eventfd" in link for link in links),
        sum("memfd:" in link for link in links),
        len(os.listdir("/proc/self/task")),
    )


def wait_for_no_more_than(before: Open) -> None:
    """Wait until nothing is open that was not before.

    Raises:
        AssertionError: something stays open.
    """

    def is_closed() -> bool:
        return all(now <= then for now, then in zip(open_now(), before, strict=True))

    try:
        wait_until(is_closed, f"no more than {before} is open")
    except AssertionError as error:
        raise AssertionError(f"{error}, but {open_now()}") from None
