"""This rank's progress, written at least once a second to a file for the launcher.

HCCL_PROGRESS_FILE names the file; hccl-launch sets it. The control thread writes it from existing
counters, at no cost to calls. The file is a line: a checksum, and JSON with the keys of `Snapshot`.
`launcher/progress/rank_progress.py` reads it.
"""

import contextlib
import json
import math
import os
import threading
import time
import weakref
import zlib
from typing import NamedTuple, TypedDict

from hccl_py.diagnosis.errors import AFTER_ERROR
from hccl_py.diagnosis.record import Progress
from hccl_py.diagnosis.stall import warning_from_environment
from hccl_py.observe.flight_recorder import FlightRecorder, Membership, recorders_of_process
from hccl_py.observe.statistics import DEVICES
from hccl_py.transport.control.coordination import Coordination
from hccl_py.transport.errors import CollectiveTimeoutError, CommunicatorError
from hccl_py.transport.process_lifecycle import LifecycleStage, register

VARIABLE = "HCCL_PROGRESS_FILE"
_PERIOD_S = 1.0
_LOOKS_PER_STALL = 4  # an older file would make an active rank look idle


class Snapshot(TypedDict):
    """The contents of the file. Counters never decrease while the process runs."""

    connecting: bool  # the first communicator is being made
    steps: int  # of torch's optimizers
    collectives: int  # finished, of all communicators
    bytes: int  # sent
    changed_s: float  # when any of these last changed, by `time.monotonic`
    call: str  # a running call without progress; empty: none
    waiting_for: tuple[int, ...]  # ranks of the job that this call waits for
    blames: int | None  # the job's rank that the last error named, unless only for lateness


class _Counted(NamedTuple):
    """The counters of one communicator when they were last read."""

    calls: int = 0
    collectives: int = 0
    num_bytes: int = 0
    bytes_done: int = 0  # of a call that was running then


class _Call(NamedTuple):
    text: str = ""
    waiting_for: tuple[int, ...] = ()


class ProgressFile:
    """Writes the file of this process; a service of the control thread.

    Attributes:
        steps: counted by `torch_backend/step_count.py`.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._fd: int | None = None
        self._collectives = self._num_bytes = self._last_steps = 0
        self._seen: weakref.WeakKeyDictionary[FlightRecorder, _Counted] = (
            weakref.WeakKeyDictionary()
        )
        self._changed_s = self._next_s = 0.0
        self._period_s = _PERIOD_S
        self._blames: int | None = None
        self._last = Snapshot(
            connecting=True,
            steps=0,
            collectives=0,
            bytes=0,
            changed_s=0.0,
            call="",
            waiting_for=(),
            blames=None,
        )
        self._writing = threading.RLock()  # a signal's handler may call, and fail, meanwhile

    @property
    def is_open(self) -> bool:
        """Whether the launcher has named a file."""
        return self._fd is not None

    def note_connecting(self) -> None:
        """Write that this rank starts to connect, if the launcher has named a file."""
        path = os.environ.get(VARIABLE, "")
        if path and self._fd is None:
            with contextlib.suppress(OSError):  # optional for the job
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._write(self._last)

    def follow(self, coordination: Coordination) -> None:
        """Write regularly from now on, if the launcher has named a file; called by any thread."""
        os.environ.pop(VARIABLE, "")  # child processes are not the rank that the launcher watches
        if self._fd is not None:
            stall_s = warning_from_environment() or math.inf
            self._period_s = min(_PERIOD_S, stall_s / _LOOKS_PER_STALL)
            coordination.serve(self)

    def leave_to_parent(self) -> None:
        """In a forked child: stop writing."""
        self._writing = threading.RLock()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def next_s(self) -> float:
        """See `loop.Service`."""
        return self._next_s

    def turn(self) -> None:
        """See `loop.Service`."""
        now_s = time.monotonic()
        if now_s < self._next_s or self._fd is None:
            return
        self._next_s = now_s + self._period_s
        self._write(self._snapshot(now_s))

    def note_error(self, error: CommunicatorError, member: Membership) -> None:
        """Write the rank that an error names at once: the program may end before the next turn.

        The launcher then knows the first failure, however this rank ends.
        """
        if self._fd is None or error.rank is None or isinstance(error, CollectiveTimeoutError):
            return
        known = member.global_ranks
        self._blames = known[error.rank] if known else error.rank
        self._write(self._last)

    def _write(self, snapshot: Snapshot) -> None:
        with self._writing, contextlib.suppress(OSError):  # a full disk
            self._last = snapshot
            body = json.dumps({**snapshot, "blames": self._blames})  # from an earlier error
            if self._fd is not None:
                os.pwrite(self._fd, f"{zlib.crc32(body.encode()):08x} {body}\n".encode(), 0)

    def _snapshot(self, now_s: float) -> Snapshot:
        counted = [self._count(recorder) for recorder in recorders_of_process()]
        has_changed = self.steps != self._last_steps or any(moves for moves, _ in counted)
        self._last_steps = self.steps
        if has_changed:
            self._changed_s = now_s
        calls = [] if has_changed else [call for _, call in counted if call.text]
        call = calls[0] if calls else _Call()
        return {
            "connecting": False,
            "steps": self.steps,
            "collectives": self._collectives,
            "bytes": self._num_bytes,
            "changed_s": self._changed_s,
            "call": call.text,
            "waiting_for": call.waiting_for,
            "blames": self._blames,
        }

    def _count(self, recorder: FlightRecorder) -> tuple[bool, _Call]:
        """Update the counters; return whether there is progress, and if not, the stalled call."""
        core = recorder.engine
        if core is None:
            return False, _Call()
        seen, counters = self._seen.get(recorder, _Counted()), core.statistics()
        now = _Counted(
            calls=sum(one[0] for one in counters["calls"]),
            collectives=counters["collectives"],
            num_bytes=sum(counters[device]["bytes"] for device in DEVICES),
        )
        self._collectives += now.collectives - seen.collectives
        self._num_bytes += now.num_bytes - seen.num_bytes
        call = _Call()
        if now == seen._replace(bytes_done=0):
            # Last, because the thread that drives the engine must answer.
            progress = Progress.of(core)
            now = now._replace(bytes_done=progress.bytes_done)
            call = _under_way(progress, recorder.member)
        self._seen[recorder] = now
        return now != seen, call


def _under_way(progress: Progress, member: Membership) -> _Call:
    where = f" of communicator {member.name}"
    if progress.sequence:
        known = member.global_ranks
        waiting_for = tuple(known[rank] for rank in progress.waiting_for) if known else ()
        return _Call(progress.call + where, waiting_for)
    return _Call(f"send or recv{where}") if progress.num_transfers else _Call()


PROGRESS = ProgressFile()
"""One per process, like the file."""

AFTER_ERROR.append(PROGRESS.note_error)

register(LifecycleStage.FLIGHT_RECORDERS, in_forked_child=PROGRESS.leave_to_parent)
