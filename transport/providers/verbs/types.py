"""Names and records of verbs, with the numbers that C++ uses.

Each name is libibverbs' name, written out; the docstrings give the original.
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple


class Opcode(IntEnum):
    """The kinds of work request; IBV_WR_* and, in completions, IBV_WC_*."""

    SEND = 0
    SEND_WITH_IMM = 1
    RDMA_WRITE = 2
    RDMA_WRITE_WITH_IMM = 3
    RDMA_READ = 4
    RECV = 5
    """In completions only."""
    RECV_RDMA_WITH_IMM = 6
    """In completions only: a RECV that an RDMA_WRITE_WITH_IMM consumed."""


class Status(IntEnum):
    """How a work request ended."""

    SUCCESS = 0
    """IBV_WC_SUCCESS."""
    LOCAL_LENGTH_ERROR = 1
    """IBV_WC_LOC_LEN_ERR: a message is longer than its RECV."""
    LOCAL_PROTECTION_ERROR = 2
    """IBV_WC_LOC_PROT_ERR: a wrong lkey, range or access on this side."""
    FLUSHED = 3
    """IBV_WC_WR_FLUSH_ERR: the queue pair is in ERROR; an earlier completion has the cause."""
    REMOTE_INVALID_REQUEST_ERROR = 4
    """IBV_WC_REM_INV_REQ_ERR: the peer cannot take this message."""
    REMOTE_ACCESS_ERROR = 5
    """IBV_WC_REM_ACCESS_ERR: a wrong rkey, range or access; nothing was touched."""
    REMOTE_OPERATION_ERROR = 6
    """IBV_WC_REM_OP_ERR: the peer's RECV was faulty."""
    RETRY_EXCEEDED = 7
    """IBV_WC_RETRY_EXC_ERR: the peer has ended, or is silent for timeout_s x (retry_count + 1)."""
    RNR_RETRY_EXCEEDED = 8
    """IBV_WC_RNR_RETRY_EXC_ERR: the peer had no RECV posted, however often it was asked."""
    LOCAL_OPERATION_ERROR = 9
    """IBV_WC_LOC_QP_OP_ERR: the device could not execute the request."""
    DEVICE_ERROR = 10
    """Any other status of a device, or the device is gone; `QueuePair.reason` says which."""


class State(IntEnum):
    """State of a queue pair; IBV_QPS_*."""

    RESET = 0
    INIT = 1
    RTR = 2
    """Ready to receive."""
    RTS = 3
    """Ready to send."""
    ERROR = 4


class Access(IntFlag):
    """The uses of a memory region that are allowed, besides local reads; IBV_ACCESS_*."""

    LOCAL_READ = 0
    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4


class SendFlags(IntFlag):
    """How a send request is carried out; IBV_SEND_*."""

    NONE = 0
    FENCE = 1
    """Start only after all earlier reads have ended."""
    SIGNALED = 2
    """Report a completion also on success."""
    INLINE = 8
    """Copy the payload while posting: needs no region, and the memory is reusable at once."""


INFINITE_RNR_RETRY = 7
"""Value of `rnr_retry`: a receiver that is not ready is retried for ever."""


class ScatterGather(NamedTuple):
    """A piece of a memory region; ibv_sge. `MemoryRegion.piece` makes one."""

    address: int
    length: int
    lkey: int


@dataclass(frozen=True)
class SendRequest:
    """A request for `post_send`; ibv_send_wr.

    Attributes:
        opcode: any but the two of completions.
        pieces: local memory, in order: the source, or the destination of a read.
        wr_id: any number up to 2^64, returned with the completion.
        flags: see SendFlags.
        remote_address: RDMA only.
        rkey: RDMA only: key of the peer's region.
        imm: 32 bits that the peer's completion carries; *_WITH_IMM only.
    """

    opcode: Opcode
    pieces: tuple[ScatterGather, ...] = ()
    wr_id: int = 0
    flags: SendFlags = SendFlags.SIGNALED
    remote_address: int = 0
    rkey: int = 0
    imm: int = 0


@dataclass(frozen=True)
class RecvRequest:
    """A request for `post_recv`; ibv_recv_wr."""

    pieces: tuple[ScatterGather, ...] = ()
    wr_id: int = 0


class Completion(NamedTuple):
    """The end of a work request; ibv_wc.

    Attributes:
        wr_id: of the request.
        status: fields other than `qp_num` are valid only with SUCCESS.
        opcode: of the request; RECV or RECV_RDMA_WITH_IMM on the receiving side.
        byte_len: length of the message.
        imm: immediate value; None without.
        qp_num: `QueuePair.number`.
    """

    wr_id: int
    status: Status
    opcode: Opcode
    byte_len: int
    imm: int | None
    qp_num: int


@dataclass(frozen=True)
class QueuePairAttributes:
    """Sizes, timers and retries of a queue pair; ibv_qp_cap and ibv_qp_attr.

    Attributes:
        max_send_wr: outstanding send requests, at most 16384.
        max_recv_wr: RECVs posted, at most 16384.
        max_sge: pieces of a request, at most 32.
        max_inline: bytes of an INLINE request.
        path_mtu: bytes of a fragment; 0: the provider's maximum.
        max_rd_atomic: outstanding reads.
        timeout_s: how long a peer may take to answer.
        retry_count: retries after that time before RETRY_EXCEEDED.
        rnr_retry: how often a message is sent again to a peer without a RECV; 7: for ever.
        min_rnr_timer_s: how long a peer waits before it does so to this side.
    """

    max_send_wr: int = 128
    max_recv_wr: int = 128
    max_sge: int = 4
    max_inline: int = 64
    path_mtu: int = 0
    max_rd_atomic: int = 16
    timeout_s: float = 0.5
    retry_count: int = 7
    rnr_retry: int = INFINITE_RNR_RETRY
    min_rnr_timer_s: float = 100e-6
