"""What the ranks of this process counted, for all communicators together, also closed ones.

Everything comes from counters that the engine keeps for `Communicator.statistics()`: a snapshot
costs calls nothing. The differences since the last snapshot are added up, so that a value does not
decrease when a communicator ends.
"""

import os
import socket
import threading
import weakref
from collections import defaultdict
from typing import Any, NamedTuple

from hccl_py.observe.flight_recorder import FlightRecorder, recorders_of_process
from hccl_py.observe.statistics import read_statistics
from hccl_py.transport import _core

Sample = tuple[str, tuple[str, ...]]
"""A metric's name in `METRICS`, and the values of its labels."""
Counted = defaultdict[Sample, float]


class Metric(NamedTuple):
    """A row of the table.

    Attributes:
        help: what is counted, for operators.
        labels: its own labels, besides those of the rank or node.
        is_gauge: it may decrease.
        labels_of_node: whether only the sums of a node have these labels: for each rank there would
            be as many series as ranks.
    """

    help: str
    labels: tuple[str, ...] = ()
    is_gauge: bool = False
    labels_of_node: bool = False


METRICS = {
    "calls": Metric("Calls that ended without error.", ("call",)),
    "waiting_seconds": Metric("Time of calls spent waiting for late ranks.", ("call",)),
    "moving_seconds": Metric("Time of calls spent moving and reducing data.", ("call",)),
    "sent_bytes": Metric("Payload sent to other ranks.", ("device",)),
    "sent_messages": Metric("Messages sent to other ranks.", ("device",)),
    "stalls": Metric("Messages that could not leave at once.", ("device",)),
    "retries": Metric("Messages sent again after a connection or device failed.", ("device",)),
    "path_failures": Metric("Connections between nodes that broke and were replaced.", ("path",)),
    "paths_down": Metric("Connections between nodes that are down.", ("path",), is_gauge=True),
    "checksum_errors": Metric("Damaged frames received (HCCL_CHECKSUM=1).", ("path",)),
    "straggler_calls": Metric(
        "Collectives in which a rank waited longest for the straggler.",
        ("straggler",),
        labels_of_node=True,
    ),
    "straggler_seconds": Metric(
        "Time that ranks waited for the straggler.", ("straggler",), labels_of_node=True
    ),
    "failures": Metric("Communicators that failed."),
    "communicators": Metric("Open communicators.", is_gauge=True),
}
"""All metrics; a rank's are called hccl_NAME, a node's sums hccl_node_NAME."""


class ProcessCounters:
    """The counters of this process, by rank of the job."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may close a communicator meanwhile
        self._totals: defaultdict[int, Counted] = defaultdict(_zeros)
        self._seen: weakref.WeakKeyDictionary[FlightRecorder, Counted] = weakref.WeakKeyDictionary()

    def count(self, recorder: FlightRecorder) -> None:
        """Add what a communicator counted since the last time; nothing once it is closed."""
        core = recorder.engine
        if core is None:
            return
        with self._lock:
            new, seen = _read(core, recorder), self._seen.get(recorder, _zeros())
            totals = self._totals[recorder.home_rank]
            for sample, value in new.items():
                if not METRICS[sample[0]].is_gauge:
                    totals[sample] += value - seen[sample]
            self._seen[recorder] = new

    def snapshot(self) -> dict[str, Any]:
        """Return the counters of all ranks in this process, fit for JSON."""
        recorders = recorders_of_process()
        for recorder in recorders:
            self.count(recorder)
        with self._lock:
            ranks = {rank: totals.copy() for rank, totals in self._totals.items()}
            for recorder in recorders:
                for sample, value in self._seen.get(recorder, _zeros()).items():
                    if METRICS[sample[0]].is_gauge and recorder.engine is not None:
                        ranks[recorder.home_rank][sample] += value
        samples = {
            rank: [(name, labels, value) for (name, labels), value in counted.items()]
            for rank, counted in ranks.items()
        }
        return {"run": _run(), "node": _node(), "ranks": samples}


def _zeros() -> Counted:
    return defaultdict(float)


def _read(core: _core.Communicator, recorder: FlightRecorder) -> Counted:
    counted, found = read_statistics(core), _zeros()
    found["communicators", ()] = 1
    found["failures", ()] = core.failed()
    for call, of_call in counted["calls"].items():
        found["calls", (call,)] = of_call["calls"]
        found["waiting_seconds", (call,)] = of_call["waiting_s"]
        found["moving_seconds", (call,)] = of_call["moving_s"]
    for device, of_device in counted["devices"].items():
        if not any(of_device.values()):
            continue
        found["sent_bytes", (device,)] = of_device["bytes"]
        found["sent_messages", (device,)] = of_device["messages"]
        found["stalls", (device,)] = of_device["stalls"]
        found["retries", (device,)] = of_device["retries"]
    for path in counted["paths"]:
        interface = (path["path"].partition(" ")[0],)
        found["path_failures", interface] += path["reconnects"]
        found["paths_down", interface] += path["connected"] is False
        found["checksum_errors", interface] += path["checksum_errors"]
    known = recorder.member.global_ranks
    for rank, peer in enumerate(counted["peers"]):
        if peer["times_last"]:
            straggler = (str(known[rank]) if known else "unknown",)
            found["straggler_calls", straggler] += peer["times_last"]
            found["straggler_seconds", straggler] += peer["waited_s"]
    return found


def _run() -> str:
    """Return a name of the job that tells it from other jobs on this node."""
    environ = os.environ
    meeting_point = f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"
    return environ.get("SLURM_JOB_ID") or (meeting_point if meeting_point != ":" else "")


def _node() -> str:
    return os.environ.get("HCCL_NODE_ID") or socket.gethostname()
