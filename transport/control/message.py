"""The messages of control planes: frames that carry many entries each.

Reports, diagnoses and the values of agreements are opaque here. Only messages of authenticated
members are parsed, within limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped]

MAX_MESSAGE_BYTES = 4 << 20
"""A connection that announces a longer message is closed."""
_MAX_BODY_BYTES = 2 << 20
_ENTRY_BYTES = 64
_COMMUNICATOR_ID_BYTES = 16
_MAX_RANK = 1 << 20
_MAX_KIND_BYTES = 16


@dataclass(frozen=True)
class ControlAddress:
    """The address of a process's control plane, in the peer info of its ranks.

    Attributes:
        key: random name of the process; empty for a rank that is alone.
        unix_name: abstract Unix socket, without the zero byte; "" for ranks of other machines.
        host: numeric address for other machines; "" if there is none.
        port: port at `host`; 0 if there is none.
        problem: why there is no address.
    """

    key: bytes = field(default=b"", repr=False)
    unix_name: str = ""
    host: str = ""
    port: int = 0
    problem: str = ""


@dataclass(frozen=True)
class ControlMembers:
    """The list of the ranks of a communicator, for the control plane of one of them."""

    communicator_id: bytes  # random, public
    rank: int  # this rank
    addresses: tuple[ControlAddress, ...]
    secret: bytes = field(default=b"", repr=False)  # known only to members


class Entry(NamedTuple):
    """One message of one rank of a communicator to another."""

    communicator: bytes
    sender: int
    receiver: int
    kind: str
    body: Any


def pack(entries: Sequence[Entry]) -> list[bytes]:
    """Write entries into as few messages as their limit allows; an entry too large is left out."""
    batches: list[list[bytes]] = [[]]
    size = 0
    for entry in entries:
        packed = msgpack.packb(tuple(entry))
        if len(packed) > _MAX_BODY_BYTES + _ENTRY_BYTES:
            continue
        if size + len(packed) + _ENTRY_BYTES > MAX_MESSAGE_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(packed)
        size += len(packed)
    header = msgpack.Packer().pack_array_header
    return [header(len(batch)) + b"".join(batch) for batch in batches if batch]


def unpack(message: bytes) -> list[Entry]:
    """Read the entries of a message.

    Raises:
        ValueError: the message is malformed.
    """
    try:
        rows = msgpack.unpackb(message, strict_map_key=False)
    except Exception as error:  # msgpack's errors have no common base class
        raise ValueError(f"no msgpack: {type(error).__name__}") from error
    if not isinstance(rows, list):
        raise ValueError("expected a list of entries")
    return [_entry(row) for row in rows]


def _entry(row: Any) -> Entry:
    if not isinstance(row, list) or len(row) != len(Entry._fields):
        raise ValueError("an entry has five fields")
    entry = Entry(*row)
    if type(entry.communicator) is not bytes or len(entry.communicator) != _COMMUNICATOR_ID_BYTES:
        raise ValueError("no communicator id")
    for rank in (entry.sender, entry.receiver):
        if type(rank) is not int or not 0 <= rank < _MAX_RANK:
            raise ValueError("no rank")
    if not isinstance(entry.kind, str) or len(entry.kind) > _MAX_KIND_BYTES:
        raise ValueError("no kind")
    return entry
