"""Types of the compiled engine, one-to-one with `csrc/bindings.cc`.

Numbers, not enums, cross this border: DType and ReduceOp as in `types.py`, addresses as `int`.
Whatever blocks releases the GIL. Arguments are positional unless they are named here.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hccl_py.transport.providers.interface import Lane

_Op = Sequence[int]
"""kind, first peer, peers, destination and source: buffer, begin, end, scratch slot; rendezvous."""
_Blocks = Sequence[tuple[int, int]]
"""Address and element count of every block."""

class Cause(IntEnum):
    """Why a communicator ended; csrc/engine/failure.h explains each."""

    DIED = 1
    LOST = 2
    UNREACHABLE = 3
    LEFT = 4
    TIMED_OUT = 5
    MISMATCH = 6
    UNCAUGHT_EXCEPTION = 7
    INTERRUPTED = 8
    ABORTED = 9
    CLOSED = 10
    INTERNAL_ERROR = 11

class Stage:
    """Where a call stands; steps and tiles count from 1, 0: not begun."""

    activity: Final[str]
    step: Final[int]
    num_steps: Final[int]
    tile: Final[int]
    num_tiles: Final[int]

class PathTrouble:
    """A connection to `rank` that is down, or up and unanswered, for so many seconds."""

    rank: Final[int]
    name: Final[str]
    up: Final[bool]
    seconds: Final[float]
    reason: Final[str]

class EndedPeer:
    """A rank whose control connections have ended: LEFT, DIED, LOST or UNREACHABLE."""

    rank: Final[int]
    cause: Final[Cause]
    last_sequence: Final[int]
    exit_code: Final[int | None]
    signal: Final[int | None]

class Failure:
    """What this rank observed, or what the coordinator's diagnosis made of it.

    csrc/engine/failure.h says which cause sets which field.
    """

    cause: Final[Cause]
    rank: Final[int]
    call: Final[int]
    sequence: Final[int]
    observed_ns: Final[int]
    their_call: Final[int]
    sent_bytes: Final[int | None]
    expected_bytes: Final[int | None]
    sends: Final[bool]
    stage: Final[Stage]
    waiting_for: Final[list[int]]
    half_done: Final[bool]
    paths: Final[list[PathTrouble]]
    process_lives: Final[bool]
    exit_code: Final[int | None]
    signal: Final[int | None]
    error: Final[str]
    last_sequence: Final[int]
    reason: Final[str]
    diagnosis: Final[bytes]

class CommunicatorFailed(RuntimeError):
    """A call ended by a failure."""

    failure: Final[Failure]

def usable_cores() -> int: ...
def address_of(buffer: object, writable: bool, /) -> int:
    """Return the address of a C-contiguous buffer; ValueError or BufferError for others."""

def dlpack_view(
    capsule: object, /
) -> tuple[int, tuple[int, ...], bool, bool, tuple[int, int, int], int]:
    """Return where and what it is: address, shape, whether contiguous, whether read-only, code with
    bits and lanes, and the type of the device.
    """

def multiply(dtype: int, to: int, source: int, count: int, factor: float, /) -> bool:
    """Multiply floats into `to`, which may be `source`; False for other elements."""

def leak(object: object, /) -> None: ...
def reduce_instruction_set() -> str: ...
def reduce_supported(dtype: int, op: int, /) -> bool: ...

class Arena:
    @staticmethod
    def create(num_bytes: int, /) -> Arena: ...
    def fd(self) -> int: ...
    def num_bytes(self) -> int: ...
    def num_allocated(self) -> int: ...
    def unavailable(self) -> str: ...
    def holds(self, address: int, num_bytes: int, /) -> bool: ...

class Region:
    """Allocated memory of an arena, released with this object."""

    def __init__(self, arena: Arena, num_bytes: int, /) -> None:
        """Allocate; raises MemoryError."""

    def address(self) -> int: ...
    def array(self) -> npt.NDArray[np.uint8]:
        """Return the memory; the array keeps this object alive."""

    def is_retired(self) -> bool:
        """Tell whether a peer may still write here, for a collective that failed."""

    def show_at(self, address: int, /) -> None:
        """Replace the pages from `address` on by this memory; their content moves along."""

class Stream:
    """A connection; to be subclassed. What it is for stands in `csrc/stream.h`.

    `send` and `receive` return 0 where they would block. They raise ConnectionError when the other
    end is gone, at the end of the stream too, and OSError for anything else that ends it.
    """

    def __init__(self) -> None: ...
    def fd(self) -> int: ...
    def send(self, data: memoryview, /) -> int: ...
    def receive(self, buffer: memoryview, /) -> int: ...
    def close(self) -> None: ...

Connection = int | Stream
"""A connected, non-blocking descriptor, which is taken over, or an object."""

class Plan: ...

def make_plan(
    ops: Sequence[_Op],
    peers: Sequence[int],
    data_chunks: int,
    scratch_slots: int,
    max_chunk_span: int,
    min_message_bytes: int,
    rank: int,
    world_size: int,
) -> Plan: ...

class Prepared:
    """All of a collective that its ranks agree on."""

    def __init__(
        self,
        plan: Plan,
        dtype: int,
        op: int,
        count: int,
        fingerprint: int,
        /,
    ) -> None: ...
    @property
    def fingerprint(self) -> int: ...

def ring_on_signal(signal: int, event_fd: int, /) -> bool:
    """Have a signal ring a descriptor; False if the program has its own use for that signal."""

def silence_signal_bell() -> None:
    """Have the signal do nothing from now on; the descriptor may be closed then."""

def forget_signal_bell() -> None:
    """Do the same in a forked child, where handlers of the parent's threads do not go on."""

class ProgressThread:
    def __init__(self) -> None: ...
    def stop(self) -> None: ...

class Work:
    def wait(self, timeout_s: float, /) -> bool: ...
    def done(self) -> bool: ...
    def failed(self) -> bool: ...
    def source(self) -> int: ...

class Communicator:
    @staticmethod
    def create(
        progress: ProgressThread,
        rank: int,
        world_size: int,
        local_ranks: Sequence[int],
        num_channels: int,
        num_slots: int,
        slot_bytes: int,
        arena: Arena | None,
        checksum: bool = False,
        path_timeout_s: float = 2.0,
    ) -> Communicator: ...
    def segment_fd(self) -> int: ...
    def doorbell_fd(self) -> int: ...
    def set_checks(self, checks: bool, /) -> None:
        """Compare calls with those of other ranks or not; for measuring what that costs."""

    def set_ranks_on_host(self, ranks: int, /) -> None: ...
    def add_shm_peer(
        self,
        peer: int,
        segment_fd: int,
        doorbell_fd: int,
        arena_fd: int,
        control_fd: int,
        /,
    ) -> None: ...
    def add_lanes(self, peer: int, lanes: Sequence[Lane], control_fd: int, /) -> None: ...
    def add_verbs_peer(
        self, device: VerbsDevice, peer: int, lane_fds: Sequence[int], control_fd: int, /
    ) -> None:
        """Connect a rank: over each socket a queue pair, over each queue pair a lane."""

    def add_tcp_peer(
        self,
        peer: int,
        lanes: Sequence[list[Connection]],
        controls: list[Connection],
        names: Sequence[str],
        /,
    ) -> None:
        """Connect a rank of another node: lanes[lane][path], controls[path], names[path]."""

    def repair_fd(self) -> int:
        """Return a descriptor that is readable when `take_broken` has something to tell."""

    def take_broken(self) -> list[tuple[int, int, int]]:
        """Return peer, index (0: control, 1 + lane) and path of what broke since the last call.

        To be called once a second or so in any case: it looks after the connections, and hands a
        peer what it missed, while no call of this rank is under way.
        """

    def replace_connection(
        self, peer: int, index: int, path: int, connection: Connection, /
    ) -> None:
        """Use `connection` in place of one that broke, or that the peer no longer has."""

    def path_statistics(self) -> list[Any]:
        """Return the counters of every path of every lane to ranks of other nodes."""

    # run_ blocks, start_ does not. Both take, after the collective's Prepared and its timeout_s:
    #   _data      address, divide, buffers
    #   _blocks    input: _Blocks, output: _Blocks, divide, buffers
    #   _equal     input, num_input, output, num_output, count, divide, buffers
    # and _transfer takes sends, address, num_bytes, peer, tag, timeout_s, buffers.
    def run_data(self, *arguments: Any) -> None: ...
    def run_blocks(self, *arguments: Any) -> None: ...
    def run_equal(self, *arguments: Any) -> None: ...
    def run_transfer(self, *arguments: Any) -> None: ...
    def start_data(self, *arguments: Any) -> Work: ...
    def start_blocks(self, *arguments: Any) -> Work: ...
    def start_equal(self, *arguments: Any) -> Work: ...
    def start_transfer(self, *arguments: Any) -> Work: ...
    def sequence(self) -> int: ...
    def caller(self) -> tuple[int, bool, bool]:
        """Return the last submitting thread (0: none), whether there were several, if one waits."""

    def num_finished(self) -> int:
        """Return how many collectives have ended without error."""

    def statistics(self) -> dict[str, Any]: ...
    def records(self) -> list[tuple[Any, ...]]:
        """Return the calls that the flight recorder remembers, oldest first.

        Each is id, kind (0 collective, 1 send, 2 recv), state (0 submitted, 1 started, 2 completed,
        3 failed), in place, sequence, fingerprint or tag, peer, bytes in, bytes out, the times of
        submission, start and end, time waited for late ranks, end of that wait, the rank it was
        for. Times are nanoseconds of CLOCK_MONOTONIC, 0 where not reached.
        """

    def call_log(self, first: int, last: int, /) -> list[tuple[int, int, int]]:
        """Return the collectives first..last that are still remembered.

        Each is number, fingerprint, and the bytes given or got here, whichever are more.
        """

    def failed(self) -> bool: ...
    def set_diagnosis_timeout(self, seconds: float, /) -> None:
        """Wait so long for a diagnosis of what this rank observed; 0: it decides alone."""

    def report_fd(self) -> int:
        """Return an eventfd, readable when one of the next three has something new."""

    def take_report(self) -> Failure | None:
        """Return what this rank observed, once. Reads `report_fd` too."""

    def failure(self) -> Failure | None: ...
    def ended_peers(self) -> list[EndedPeer]: ...
    def adopt_diagnosis(self, cause: Cause, diagnosis: bytes, /) -> None:
        """Take over the coordinator's diagnosis; no call ends before `apply_diagnosis`."""

    def apply_diagnosis(self) -> None: ...
    def poll(self) -> None:
        """Read what peers have to say, if no call does."""

    def has_undelivered(self) -> bool:
        """Say whether a peer still lacks something that finished calls have sent."""

    def progress(self) -> dict[str, Any]: ...
    def abort(self, reason: str, cause: Cause = Cause.ABORTED) -> None: ...
    def close(self, error: str = "") -> None: ...

# Verbs: csrc/bindings_verbs.cc.

_Pieces = Sequence[tuple[int, int, int]]
"""Address, length and lkey of each piece."""
_Completion = tuple[int, int, int, int, int | None, int]
"""wr_id, Status, Opcode, bytes, immediate value, number of the queue pair."""

class UnderlyingLane: ...

class ShmEndpoint:
    def __init__(self, arena: Arena, /) -> None: ...
    def segment_fd(self) -> int: ...
    def doorbell_fd(self) -> int: ...
    def connect(
        self,
        rank: int,
        segment_fd: int,
        doorbell_fd: int,
        arena_fd: int,
        control_fd: int,
        /,
    ) -> UnderlyingLane: ...

def tcp_underlying_lane(fd: int, /) -> UnderlyingLane: ...
def python_underlying_lane(provider: object, lane: object, /) -> UnderlyingLane:
    """Carry messages by a lane of `provider.py`; closes lane and provider when it is let go."""

def loopback_underlying_lanes() -> tuple[UnderlyingLane, UnderlyingLane]: ...

class VerbsDevice:
    @staticmethod
    def create(progress: ProgressThread, /) -> VerbsDevice: ...
    def stop(self) -> None: ...

class ProtectionDomain:
    def register_memory(self, address: int, length: int, access: int, /) -> int: ...
    def deregister_memory(self, key: int, /) -> None: ...

class CompletionQueue:
    def __init__(self, capacity: int, /) -> None: ...
    def poll(self, max_completions: int, /) -> list[_Completion]: ...
    def wait(self, max_completions: int, timeout_s: float, /) -> list[_Completion]: ...
    def close(self) -> None:
        """End the waits of other threads."""

class QueuePair:
    @staticmethod
    def create(
        device: VerbsDevice,
        domain: ProtectionDomain,
        send_queue: CompletionQueue,
        recv_queue: CompletionQueue,
        attributes: object,
        /,
    ) -> QueuePair: ...
    def number(self) -> int: ...
    def state(self) -> int: ...
    def reason(self) -> str: ...
    def attach(self, lane: UnderlyingLane, /) -> None: ...
    def set_attributes(self, attributes: object, /) -> None: ...
    def modify(self, state: int, /) -> None: ...
    def post_send(
        self,
        wr_id: int,
        opcode: int,
        flags: int,
        imm: int,
        rkey: int,
        remote_address: int,
        pieces: _Pieces,
        /,
    ) -> None: ...
    def post_recv(self, wr_id: int, pieces: _Pieces, /) -> None: ...
    def statistics(self) -> dict[str, int]: ...
    def close(self) -> None: ...

# The loops of hccl-perftest: csrc/bindings_perftest.cc. Times are microseconds, but for streams.

class PerftestEnd:
    def __init__(
        self,
        pair: QueuePair,
        queue: CompletionQueue,
        local: tuple[int, int],
        remote: tuple[int, int],
        /,
    ) -> None:
        """Buffers are address and key; two halves, sent and received, of the size set."""

    def set_size(self, size: int, /) -> None: ...
    def send_ping_pong(self, iterations: int, starts: bool, /) -> list[float]: ...
    def write_ping_pong(self, iterations: int, starts: bool, /) -> list[float]: ...
    def read_one_by_one(self, iterations: int, /) -> list[float]: ...
    def stream(self, opcode: int, iterations: int, window: int, /) -> float: ...
    def sink(self, iterations: int, window: int, /) -> None: ...

def socket_ping_pong(
    fd: int, buffer: int, size: int, iterations: int, starts: bool, /
) -> list[float]: ...
def socket_stream(fd: int, buffer: int, size: int, iterations: int, sends: bool, /) -> float: ...
def copy_times(buffer: int, size: int, iterations: int, /) -> list[float]: ...
