"""Whether calls that run at the same time share memory that one of them writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hccl_py.memory.element_types import Span
from hccl_py.transport.errors import InvalidArgumentError


class Access(NamedTuple):
    """What a call writes and reads on this rank."""

    name: str
    order: object
    """Equal for calls that run one after the other."""
    written: Sequence[Span]
    read: Sequence[Span]


class _Piece(NamedTuple):
    begin: int
    end: int
    order: object
    writes: bool
    call: int


def require_apart_at_once(
    calls: Sequence[Access],
    where: str,
    instead: str,
    share: Callable[[int, int], bool] = lambda one, other: True,
) -> None:
    """Raise InvalidArgumentError if calls without order share memory that one of them writes.

    `share` decides about two calls whose spans share memory: these may have gaps.
    """
    pieces = {
        (span.address, span.end, call.order, writes): number
        for number, call in enumerate(calls)
        for writes, spans in ((True, call.written), (False, call.read))
        for span in spans
        if span.count
    }
    written: list[_Piece] = []
    read: list[_Piece] = []
    for piece in sorted((_Piece(*key, number) for key, number in pieces.items()), key=_by_address):
        written = [one for one in written if one.end > piece.begin]
        read = [one for one in read if one.end > piece.begin] if piece.writes else read
        for other in (*written, *read) if piece.writes else written:
            if other.order != piece.order and share(other.call, piece.call):
                first, second = sorted((other.call, piece.call))
                raise InvalidArgumentError(
                    f"{where}: expected calls that share no memory that one of them writes, since "
                    f"they run at once, got call {first + 1}, {calls[first].name}, and call "
                    f"{second + 1}, {calls[second].name}; {instead}"
                )
        (written if piece.writes else read).append(piece)


def _by_address(piece: _Piece) -> tuple[int, int, int]:
    return piece.begin, piece.end, piece.call
