"""The flight recorder: the last calls of this process's communicators, and their progress.

The engine writes the records (`engine/calls/recorder.h`); this file converts them to entries with
torch's keys, and `dump_files.py` writes them to files: when a communicator fails (in
HCCL_TRACE_DIR, if set), on SIGUSR2 (`dump_signal.py`), and on request.
"""

import contextlib
import logging
import os
import threading
import time
import weakref
from collections import Counter, namedtuple
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hccl_py.fingerprint import Transfer, WindowCall, WindowKind, describe, unpack
from hccl_py.memory.element_types import BYTES, ElementType
from hccl_py.observe.call_sites import CallSites
from hccl_py.observe.dump_files import (
    Dump,
    content,
    default_folder,
    folder_of_failures,
    for_torch,
    write,
)
from hccl_py.observe.dump_signal import BELL
from hccl_py.transport import _core
from hccl_py.transport.clock import ClockReading
from hccl_py.transport.process_lifecycle import LifecycleStage, register
from hccl_py.transport.threads import start_without_signals

logger = logging.getLogger("hccl_py")

_STATES = ("submitted", "started", "completed", "failed")


class Membership(NamedTuple):
    """A communicator's identity for the recorder and reports of one of its ranks."""

    name: str
    rank: int
    id: bytes  # equal on all its ranks and on no other communicator; empty if it is alone
    processes: tuple[tuple[str, int], ...]  # host and pid of every rank
    boot_id: str  # ranks with the same one share a clock
    global_ranks: tuple[int, ...] | None  # its ranks in the job; None: not known
    description: str = ""  # the user's
    nodes: tuple[tuple[int, ...], ...] = ()  # ranks of each node


Call = namedtuple(  # one record of the engine, see csrc/bindings/reports.cc
    "Call",
    "id kind state rendezvous sequence fingerprint peer bytes_in bytes_out submitted_ns started_ns "
    "ended_ns waiting_ns waited_until_ns straggler",
)


class FlightRecorder:
    """The last calls of one communicator. Any thread may read them."""

    def __init__(
        self, core: _core.Communicator, member: Membership, clock: Callable[[], ClockReading | None]
    ) -> None:
        self.member = member  # replaced when more is known of the communicator
        self._clock = clock
        self.sites = CallSites()  # lines of the user's program with the last calls
        self._core: _core.Communicator | None = core
        self._recording = threading.RLock()  # a signal handler may call, and fail, meanwhile
        self._recorded_failure = False
        with _lock:
            _recorders[id(self)] = self
        # The thread must not depend on an unreferenced communicator.
        self._dropped = weakref.finalize(self, BELL.release)
        self._dropped.atexit = False
        BELL.acquire(_dump_on_signal)

    @property
    def home_rank(self) -> int:
        """Rank of this process in the job, which names its files."""
        if self.member.global_ranks is not None:
            return self.member.global_ranks[self.member.rank]
        environment = os.environ.get("RANK", "")
        return int(environment) if environment.isdecimal() else self.member.rank

    @property
    def engine(self) -> _core.Communicator | None:
        """The engine that writes the records; None once the communicator is closed."""
        return self._core

    def entries(self) -> list[dict[str, Any]]:
        """Return the calls, oldest first, with the keys of torch's flight recorder and ours."""
        clock_ns = time.time_ns() - time.monotonic_ns()
        core = self._core  # another thread may close it
        calls = [Call(*record) for record in core.records()] if core is not None else []
        return [self._entry(call, clock_ns) for call in calls]

    def header(self) -> dict[str, Any]:
        """Return the facts about the communicator as a whole."""
        reading = self._clock()
        about = self.member._asdict()
        processes = about.pop("processes")
        return {
            **about,
            "id": self.member.id.hex(),
            "world_size": len(processes),
            "hosts": [f"host {host}, pid {pid}" for host, pid in processes],
            "clock": None if reading is None else reading._asdict(),
        }

    def record_failure(self, text: str) -> None:
        """Write the dump of a failure, once, if HCCL_TRACE_DIR is set. Never raises."""
        folder = folder_of_failures()
        core = self._core  # another thread may close it
        if folder is None or core is None or not core.failed():  # one late recv fails alone
            return
        with self._recording:
            if self._recorded_failure:
                return
            self._recorded_failure = True
            with contextlib.suppress(Exception):  # the failure itself has priority
                _dump(folder, f"failure: {text}", self.home_rank)

    def record_failure_soon(self, text: str) -> None:
        """Write the dump in a thread of its own, so that the caller continues; never raises.

        A call that raises meanwhile waits for that thread, so the file precedes the error.
        """
        if folder_of_failures() is not None and not self._recorded_failure:
            name = "hccl-flight-recorder-failure"
            with contextlib.suppress(RuntimeError, MemoryError):  # no thread can be started
                writer = threading.Thread(target=self.record_failure, args=(text,), name=name)
                start_without_signals(writer)

    def dump(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write the calls of this rank's communicators; see `Communicator.dump_flight_recorder`."""
        (path,) = write_all(Path(folder) if folder else default_folder(), "request", self.home_rank)
        return path

    def close(self) -> None:
        """Drop the communicator. Idempotent."""
        if self._core is not None:
            for watch in BEFORE_CLOSE:
                watch(self)
        with _lock:
            _recorders.pop(id(self), None)
        if self._dropped.detach() is not None:  # calling it has no effect while the process exits
            BELL.release()
        self._core = None  # frees the engine's memory

    def _entry(self, call: Call, clock_ns: int) -> dict[str, Any]:
        return {
            **(self._transfer(call) if call.kind else self._collective(call)),
            "process_group": [self.member.name, self.member.description],
            "collective_seq_id": call.sequence,
            "op_id": call.id,
            "time_created_ns": call.submitted_ns + clock_ns,
            "time_discovered_started_ns": call.started_ns and call.started_ns + clock_ns,
            "time_discovered_completed_ns": call.ended_ns and call.ended_ns + clock_ns,
            "state": _STATES[call.state],
            "bytes_in": call.bytes_in,
            "bytes_out": call.bytes_out,
            "is_p2p": call.kind != 0,
            "rendezvous": call.rendezvous,
            "waiting_ns": call.waiting_ns,
            "waited_until_ns": call.waited_until_ns and call.waited_until_ns + clock_ns,
            "waited_for": _rank(call.straggler),
            "peer": _rank(call.peer),
        }

    def _collective(self, call: Call) -> dict[str, Any]:
        fields = unpack(call.fingerprint)
        name, element = fields.collective, fields.element
        # The engine adds the number when the call starts.
        number = call.fingerprint & ~0xFFFF | call.sequence & 0xFFFF
        # The fingerprint may have no room for the exact size.
        count = max(call.bytes_in, call.bytes_out) // element.item_bytes
        return {
            "profiling_name": f"hccl:{name}",
            "call": describe(number, count),
            "p2p_seq_id": 0,
            "tag": None,
            "fingerprint": number,
            "frames": self.sites.frames_of(call.sequence),
            **_data(call, [] if name == "barrier" else [element]),
        }

    def _transfer(self, call: Call) -> dict[str, Any]:
        peer, num_bytes = _rank(call.peer), call.bytes_in or call.bytes_out
        transfer: Transfer | WindowCall = Transfer(
            call.kind == 1, peer, call.fingerprint, num_bytes
        )
        verb = "send" if call.kind == 1 else "recv"
        if call.kind > 2:
            transfer = WindowCall(WindowKind(call.kind), call.peer, num_bytes)
            verb = transfer.kind.name.lower()
        way = "<-" if verb in ("recv", "wait_signal") else "->"
        name = f"{verb} {self.member.rank}{way}{'any' if peer is None else peer}"
        return {
            "profiling_name": f"hccl:{name}",
            "call": describe(transfer),
            "p2p_seq_id": call.id + 1,
            "tag": call.fingerprint,
            "fingerprint": None,
            "frames": [],
            **_data(call, [BYTES]),
        }


def recorders_of_process() -> list[FlightRecorder]:
    """Return the recorders of all open communicators, on any thread."""
    with _lock:
        return list(_recorders.values())


def write_all(folder: Path, reason: str, home_rank: int | None = None) -> list[Path]:
    """Write a file for each rank in this process, or for one rank; may raise OSError."""
    recorders = recorders_of_process()
    homes = sorted({one.home_rank for one in recorders}) if home_rank is None else [home_rank]
    return [
        write(folder, rank, reason, _dumps(one for one in recorders if one.home_rank == rank))
        for rank in homes
    ]


def content_for_torch(reason: str) -> dict[str, Any]:
    """Return the content for torch's analyser of all calls of this process, one rank."""
    recorders = recorders_of_process()
    rank = recorders[0].home_rank if recorders else 0
    return for_torch(content(rank, reason, _dumps(recorders)))


def _dumps(recorders: Iterable[FlightRecorder]) -> list[Dump]:
    dumps: list[Dump] = []
    names: Counter[str] = Counter()
    for one in recorders:
        header, entries = one.header(), one.entries()
        name = header["name"]
        names[name] += 1
        if names[name] > 1:  # it replaces a failed communicator of that name
            header["name"] = f"{name}#{names[name]}"
            for entry in entries:
                entry["process_group"][0] = header["name"]
        dumps.append((header, entries))
    return dumps


def _dump(folder: Path, reason: str, home_rank: int | None) -> None:
    try:
        for path in write_all(folder, reason, home_rank):
            logger.warning("flight recorder: %s", path)
    except OSError as error:
        logger.warning("flight recorder: %s could not be written: %s", folder, error)


def _dump_on_signal() -> None:
    _dump(default_folder(), "SIGUSR2", None)


def _rank(number: int) -> int | None:
    return None if number < 0 else number


def _data(call: Call, elements: list[ElementType]) -> dict[str, Any]:
    names = [one.name for one in elements]
    return {
        "input_sizes": [[call.bytes_in // one.item_bytes] for one in elements],
        "input_dtypes": names,
        "output_sizes": [[call.bytes_out // one.item_bytes] for one in elements],
        "output_dtypes": names,
    }


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _recorders.clear()


BEFORE_CLOSE: "list[Callable[[FlightRecorder], None]]" = []
"""Functions that get each recorder while its calls can be read; none may raise."""

_lock = threading.RLock()  # a signal handler may close a communicator meanwhile
_recorders: "weakref.WeakValueDictionary[int, FlightRecorder]" = weakref.WeakValueDictionary()
register(LifecycleStage.FLIGHT_RECORDERS, in_forked_child=_forget_after_fork)
