"""Checks that concurrent calls share no memory that one of them writes."""

from collections.abc import Sequence
from typing import NamedTuple

from hccl_py.memory.element_types import Span
from hccl_py.memory.strided import Elements
from hccl_py.transport.errors import InvalidArgumentError


class Access(NamedTuple):
    """The memory that a call writes and reads on this rank."""

    name: str
    order: object
    """Equal for calls that run one after the other."""
    written: Sequence[Span | Elements]
    read: Sequence[Span | Elements]


class _Piece(NamedTuple):
    data: Span | Elements
    order: object
    writes: bool
    call: int


def require_apart_at_once(calls: Sequence[Access], where: str, instead: str) -> None:
    """Raise InvalidArgumentError if calls without order share memory that one of them writes."""
    pieces = {
        (span, call.order, writes): number
        for number, call in enumerate(calls)
        for writes, spans in ((True, call.written), (False, call.read))
        for span in spans
        if span.end > span.address
    }
    written: list[_Piece] = []
    read: list[_Piece] = []
    for piece in sorted((_Piece(*key, number) for key, number in pieces.items()), key=_by_address):
        written = [one for one in written if one.data.end > piece.data.address]
        read = [one for one in read if one.data.end > piece.data.address] if piece.writes else read
        for other in (*written, *read) if piece.writes else written:
            if other.order != piece.order and _meet(other.data, piece.data):
                first, second = sorted((other.call, piece.call))
                raise InvalidArgumentError(
                    f"{where}: expected calls that share no memory that one of them writes, since "
                    f"they run at once, got call {first + 1}, {calls[first].name}, and call "
                    f"{second + 1}, {calls[second].name}; {instead}"
                )
        (written if piece.writes else read).append(piece)


def _by_address(piece: _Piece) -> tuple[int, int, int]:
    return piece.data.address, piece.data.end, piece.call


def _meet(one: Span | Elements, other: Span | Elements) -> bool:
    """Return whether data with overlapping extents overlaps; only Elements have gaps."""
    if isinstance(one, Elements) and isinstance(other, Elements):
        return one.meet(other)
    return True
