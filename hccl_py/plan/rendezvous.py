"""Finds the messages that may stay in the sender's memory until the receiver reads them.

The engine copies a small message (eager). It only announces a large one in registered memory, and
the receiver reads it there (rendezvous). The sender must not overwrite the source before that. Two
rules follow from the sender's plan alone:

- A rank that overwrites the source before it receives from the peer again may deadlock with that
  peer, as two ranks that swap would. Such a message is always copied. `simulate.py` proves that
  every other message can wait.
- A rank often receives into the very chunk that it has sent, as in the second step of a mesh. The
  announcement then asks the peer to write that reply straight into the chunk.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hccl_py.plan.language import COPY, RECV, SEND, Buffer, Chunk, Op, data, input

COPIED = -1
"""The message is copied when it is sent."""

ANNOUNCED = 0
"""The message may be announced. A larger number k has the peer write its k-th next message."""

_LAST_REPLY = (1 << 16) - 2
"""A header has 16 bits for k."""


@dataclass(slots=True)
class _Sent:
    index: int
    op: Op
    received: tuple[int, ...]  # messages received before, by peer
    touched: bool  # another op uses the source


def rendezvous(ops: Sequence[Op]) -> list[int]:
    """Return, for every op, `COPIED`, `ANNOUNCED` or the reply that goes to its source."""
    result = [ANNOUNCED] * len(ops)
    received: defaultdict[int, int] = defaultdict(int)
    sent: defaultdict[tuple[Buffer, int], list[_Sent]] = defaultdict(list)
    untouched: defaultdict[tuple[Buffer, int], list[_Sent]] = defaultdict(list)
    for index, op in enumerate(ops):
        source = _places(op.src)
        is_shared = any(map(sent.get, source))
        for place in source:
            for earlier in untouched.pop(place, ()):
                earlier.touched = True
        if op.kind is SEND and op.compressed:
            result[index] = COPIED  # the message is an encoding
        elif op.kind is SEND:
            if op.src is not None and op.src.scratch is not None:
                result[index] = COPIED  # scratch is not registered, and reused at once
            elif source:
                counts = tuple(received[peer] for peer in op.peers)
                one = _Sent(index, op, counts, touched=is_shared)
                for place in source:
                    sent[place].append(one)
                    untouched[place].append(one)
            continue
        for place in _places(op.written if op.compressed else op.dst) if sent else ():
            for earlier in sent.pop(place, ()):
                before = zip(earlier.op.peers, earlier.received, strict=True)
                if any(received[peer] == count for peer, count in before):
                    result[earlier.index] = COPIED
                elif not earlier.touched and _replies(op, earlier.op):
                    reply = received[op.peers[0]] - earlier.received[0] + 1
                    result[earlier.index] = reply if reply <= _LAST_REPLY else ANNOUNCED
                earlier.touched = True
        if op.kind not in (COPY, SEND):
            for peer in op.peers:
                received[peer] += 1
    return result


def _replies(receive: Op, send: Op) -> bool:
    return (
        receive.kind is RECV
        and receive.dst == send.src
        and receive.peers == send.peers
        and send.src is not None
        and send.src.buffer is data
    )


def _places(chunk: Chunk | None) -> Sequence[tuple[Buffer, int]]:
    if chunk is None or chunk.scratch is not None or chunk.buffer is input:
        return ()
    return [(chunk.buffer, index) for index in range(chunk.begin, chunk.end)]
