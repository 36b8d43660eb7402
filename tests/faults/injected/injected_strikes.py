"""What the victim of a round does to itself, at its random moment.

`Striker.look` is called before each of the victim's calls; most strikes then come from another
thread, in the middle of whatever the main thread is doing.
"""

import ctypes
import os
import random
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from broken_sockets import (
    Break,
    close_socket,
    engine_sockets,
    open_socket_inodes,
    other_sockets,
    reset_socket,
    shut_socket,
    socket_inode,
    write_garbage,
    write_half_frame,
)
from injected_groups import Group
from injections import SIGNALS, SPOKEN, Injection, note_strike, write_mark

from hccl_py import ReduceOp


class ModelExplodedError(ValueError):
    """What nobody catches."""


class LeftError(Exception):
    """The victim has closed its communicator."""


class Striker:
    """Strikes once."""

    def __init__(self, injection: Injection, group: Group, sockets_before: set[int]) -> None:
        self._injection = injection
        self._comm = group.comm
        self._group = group
        self._sockets_before = sockets_before
        self._chance = random.Random(injection.seed + "/strike")
        self._hoard: list[bytes] = []
        self._thread: threading.Thread | None = None

    def look(self, num_started: int) -> None:
        """Strike if it is time; to raise is one way."""
        if self._injection.kind == "coordinator_closed":  # later ones are a subgroup's
            self._sockets = open_socket_inodes()
        if num_started != self._injection.after:
            return
        if self._injection.kind in SPOKEN:
            self._speak()
            return
        if self._injection.kind == "exception":
            note_strike(self._injection, os.getpid())
            raise ModelExplodedError("the model exploded")
        if self._injection.kind == "out_of_memory":
            self._use_up_memory()
            return
        write_mark(self._injection.mark("ready"), str(os.getpid()))
        if not self._injection.is_from_outside:
            self._thread = threading.Thread(target=self._strike_later)
            self._thread.start()

    def _speak(self) -> None:
        note_strike(self._injection, os.getpid())
        if self._injection.kind == "abort":
            self._comm.abort("the injection says so")
        elif self._injection.kind == "leave":
            self._group.close()
            raise LeftError
        elif self._injection.kind == "mismatch":
            self._comm.all_reduce(np.ones(7, np.int8), ReduceOp.BXOR)
        else:
            time.sleep(1.5 * self._injection.timeout_s)

    def note_failure(self) -> None:
        """Note that memory has run out now: what was in the way of telling so is let go."""
        self._hoard.clear()
        note_strike(self._injection, os.getpid())

    def close(self) -> None:
        """Wait for the thread, and let go of everything."""
        if self._thread is not None:
            self._thread.join()
        del self._comm, self._group

    def _strike_later(self) -> None:
        time.sleep(self._injection.delay_s)
        strike = self._strikes()[self._injection.kind]
        note_strike(self._injection, os.getpid())
        strike()

    def _strikes(self) -> dict[str, Callable[[], object]]:
        kind, chance = self._injection.kind, self._chance
        pid = os.getpid()
        kill: Callable[[], object] = lambda: os.kill(pid, SIGNALS[kind])  # noqa: E731
        return {
            "sigkill": kill,
            "sigstop": kill,
            "full_disk": kill,
            "sigsegv": lambda: ctypes.string_at(8),
            "os_exit": lambda: os._exit(chance.randrange(3)),
            "half_frame": self._die_half_way,
            "control_closed": lambda: self._break_one(socket.AF_UNIX, close_socket),
            "control_garbage": lambda: self._break_one(socket.AF_UNIX, write_garbage),
            "path_closed": lambda: self._break_one(socket.AF_INET, close_socket),
            "path_reset": lambda: self._break_one(socket.AF_INET, lambda fd, _: reset_socket(fd)),
            "path_half_frame": lambda: self._break_one(
                socket.AF_INET, partial(write_half_frame, ends=True)
            ),
            "path_garbage": lambda: self._break_one(socket.AF_INET, write_garbage),
            "cut_off": self._cut_off,
            "coordinator_closed": self._close_control_plane,
        }

    def _break_one(self, family: socket.AddressFamily, how: Break) -> None:
        how(self._chance.choice(engine_sockets(self._comm, family)), self._chance)

    def _die_half_way(self) -> None:
        for family in (socket.AF_INET, socket.AF_UNIX):
            for descriptor in engine_sockets(self._comm, family):
                write_half_frame(descriptor, self._chance)
        os.kill(os.getpid(), signal.SIGKILL)

    def _cut_off(self) -> None:
        repair = self._comm._lifetime._repair
        assert repair is not None
        repair.close()
        for descriptor in engine_sockets(self._comm, socket.AF_INET):
            close_socket(descriptor, self._chance)

    def _close_control_plane(self) -> None:
        for descriptor in other_sockets(self._comm, self._sockets_before):
            if socket_inode(descriptor) in self._sockets:
                shut_socket(descriptor)

    def _use_up_memory(self) -> None:
        """Allow hardly more address space, and use up what malloc has kept of it."""
        status = Path("/proc/self/statm").read_text()
        used = int(status.split()[0]) * resource.getpagesize()
        limit = used + self._chance.randrange(1 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        sizes = (1 << 20, 1 << 16, 1 << 12)
        for size in sizes[: self._chance.choice((1, 3))]:
            try:
                while True:
                    self._hoard.append(bytes(size))
            except MemoryError:
                continue
