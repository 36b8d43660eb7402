"""The process that emulates the network: serves the ranks, makes the faults, prints the report.

`python -m hccl_py.lab.emulation.server FILE LISTENER PIPE RANKS_PER_NODE`: hccl-launch starts it
with the descriptors of a listening socket and of a pipe, and closes its standard input when the job
has ended. The report follows. The process writes a line into the pipe every second and before every
kill; `launch_network.py` reads them.

A packet is JSON (`network.py`, `rank.py`). The first byte that a rank gets says whether its steps
are answered: they are if the file has faults.
"""

import json
import os
import re
import resource
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hccl_py.lab import _lab
from hccl_py.lab.emulation.cluster import Cluster, RankKill, read
from hccl_py.lab.emulation.network import MAX_MESSAGE_BYTES
from hccl_py.lab.emulation.record import CommunicatorRank, Record
from hccl_py.transport.network.sockets import peer_process

_NODE = re.compile(r"emulated-node-(\d+)")
_BEAT_S = 1.0


@dataclass
class _Process:
    """The peer of a connection."""

    pid: int
    rank: int | None = None  # known from its first step on
    members: set[CommunicatorRank] = field(default_factory=set)


class Server:
    """The network of a job while it runs.

    Attributes:
        record: the reports of the ranks.
        network: the emulated wires, which carry the ranks' connections.
        faults: those that are still to come.
    """

    def __init__(self, cluster: Cluster, listener: socket.socket, launcher: int) -> None:
        """Serve the ranks that connect to `listener`; `launcher` is a pipe to hccl-launch."""
        self._launcher = launcher
        os.set_blocking(launcher, False)
        self.network = _lab.EmulatedNetwork(
            num_nodes=cluster.num_nodes,
            bytes_per_s=cluster.bytes_per_s,
            burst_bytes=cluster.burst_bytes,
            links=cluster.links,
            latency_s=cluster.latency_s,
            latencies_s=cluster.latencies_s,
        )
        self.record = Record(self.network.traffic)
        self.faults = list(cluster.faults)
        self._answers_steps = bool(self.faults)
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def run(self, end: int) -> None:
        """Serve until `end` is readable: the launcher closes the other side of that pipe."""
        ends = self._selector.register(end, selectors.EVENT_READ)
        beat_s = 0.0
        while True:
            if time.monotonic() >= beat_s:
                beat_s = time.monotonic() + _BEAT_S
                self._beat()
            events = [key for key, _ in self._selector.select(_BEAT_S)]
            # Messages that ranks sent before they ended have arrived, so they are read first.
            for key in events:
                if key is not ends:
                    key.data()
            if ends in events:
                return

    def _beat(self) -> None:
        """Show the launcher that this thread and the one that carries bytes are alive."""
        self.network.traffic()  # the other thread answers
        self._write_launcher("alive")

    def _write_launcher(self, line: str) -> None:
        # The pipe is full if the launcher is stopped.
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._launcher, f"{line}\n".encode())

    def _make_faults(self, step: int, rank: int, pid: int) -> None:
        """Make the faults that are due when a rank, which is process `pid`, has ended a step."""
        for fault in tuple(self.faults):
            if fault.step > step or (isinstance(fault, RankKill) and fault.rank != rank):
                continue
            self.faults.remove(fault)
            if isinstance(fault, RankKill):
                say(f"step {step}: rank {rank} is killed")
                self._write_launcher(f"kill {rank} {step}")
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            else:
                one, other = fault.nodes
                self.network.cut(one, other, fault.seconds)
                say(f"step {step}: the link {one}-{other} is cut for {fault.seconds:g} s")

    def _accept(self) -> None:
        try:
            rank, _ = self._listener.accept()
        except OSError:
            return
        try:
            pid, uid = peer_process(rank)
            if uid != os.getuid():
                raise PermissionError(f"it belongs to user {uid}")
            rank.setblocking(False)
            rank.send(b"1" if self._answers_steps else b"0")
        except OSError:  # it ended meanwhile, or belongs to another user
            rank.close()
            return
        who = _Process(pid)
        self._selector.register(rank, selectors.EVENT_READ, lambda: self._read(rank, who))

    def _read(self, rank: socket.socket, who: _Process) -> None:
        """Read a packet; an error closes this rank's connection and leaves the others."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(rank, MAX_MESSAGE_BYTES, 2)
        except BlockingIOError:
            return
        except OSError:
            packet, descriptors = b"", []
        if packet:
            try:
                self._take(json.loads(packet), descriptors, rank, who)
                return
            except OSError:  # the rank ended before its answer
                pass
            except (ValueError, KeyError, TypeError) as error:
                say(f"a message of process {who.pid} was not understood: {error!r}")
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        self._selector.unregister(rank)
        rank.close()
        self.record.note_end(who.rank, who.members, time.monotonic_ns())

    def _take(
        self, message: dict[str, Any], descriptors: list[int], rank: socket.socket, who: _Process
    ) -> None:
        """Handle a message; removes from `descriptors` those that the network takes over."""
        if "carry" in message:
            from_node, to_node = map(_node, message["carry"])
            here, there = descriptors
            descriptors.clear()
            self.network.carry(here, there, from_node, to_node)
        elif "step" in message:
            step, who.rank = message["step"], message["rank"]
            self.record.note_step(who.rank, step, message["at_ns"])
            self._make_faults(step, who.rank, who.pid)
            if self._answers_steps:
                rank.send(b".")
        else:
            name, number, size = message["communicator"]
            member = (name, number, size)
            who.members.add(member)
            self.record.note_calls(member, _node(message["node"]), message["calls"])
            self.record.note_reported(member, message["until_ns"])


def _node(node_id: str) -> int:
    found = _NODE.fullmatch(node_id)
    if found is None:
        raise ValueError(f"HCCL_NODE_ID: expected emulated-node-N, got {node_id!r}")
    return int(found[1])


def say(text: str) -> None:
    """Print a line while the job runs."""
    print(f"hccl-launch: emulated network: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Serve a job; return the exit code."""
    # The launcher ends the network after the ranks, which need it to close their connections.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # both ends of every connection
    path, listener, launcher, ranks_per_node = sys.argv[1:]
    cluster = read(Path(path))
    server = Server(cluster, socket.socket(fileno=int(listener)), int(launcher))
    server.run(sys.stdin.fileno())
    # Imported late: the simulator takes a second to import.
    from hccl_py.lab.emulation.report import lines
    from hccl_py.lab.emulation.steps import steps_of

    for line in lines(cluster, int(ranks_per_node), steps_of(server.record)):
        print(line, flush=True)
    for fault in server.faults:
        print(f"  not reached: {fault}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
