"""Parses the text of an op as plans render it: a plan in a file is these lines.

`parse_op(str(op)) == op` for every op.
"""

import re

from hccl_py.plan.language import Buffer, Chunk, Op, OpKind

_RANGE = r"(\d+)(?::(\d+))?"
_CHUNK = rf"(?:scratch\[{_RANGE}\] like )?(data|input|output)\[{_RANGE}\]"
_PEERS = r"(\d+~?(?: \d+~?)*)"
_SEND = re.compile(rf"send {_CHUNK} to {_PEERS}", re.ASCII)
_RECEIVE = re.compile(rf"(recv|recv_reduce) {_CHUNK} from {_PEERS}", re.ASCII)
_COPY = re.compile(rf"copy {_CHUNK} to {_CHUNK}", re.ASCII)
_EXPECTED = (
    "`send CHUNK to RANKS`, `recv CHUNK from RANK`, `recv_reduce CHUNK from RANKS` or "
    "`copy CHUNK to CHUNK` with chunks such as data[0], output[2:4] or scratch[0] like input[1]"
)


def parse_op(text: str) -> Op:
    """Parse an op.

    `verify` checks whether it fits its plan.

    Raises:
        ValueError: it is not an op; the message says what was expected.
    """
    if found := _SEND.fullmatch(text):
        *chunk, peers = found.groups()
        return _with_peers(OpKind.SEND, peers, src=_chunk(chunk))
    if found := _RECEIVE.fullmatch(text):
        kind, *chunk, peers = found.groups()
        return _with_peers(OpKind[kind.upper()], peers, dst=_chunk(chunk))
    if found := _COPY.fullmatch(text):
        groups = found.groups()
        half = len(groups) // 2
        return Op(OpKind.COPY, src=_chunk(groups[:half]), dst=_chunk(groups[half:]))
    raise ValueError(f"expected {_EXPECTED}; got {text!r}")


def _with_peers(kind: OpKind, text: str, dst: Chunk | None = None, src: Chunk | None = None) -> Op:
    words = text.split()
    peers = tuple(int(word.rstrip("~")) for word in words)
    compressed = tuple(int(word[:-1]) for word in words if word.endswith("~"))
    return Op(kind, peers, dst, src, compressed)


def _chunk(groups: "list[str] | tuple[str, ...]") -> Chunk:
    slot, _, buffer, begin, end = groups
    first = int(begin)
    last = first + 1 if end is None else int(end)
    return Chunk(Buffer[buffer.upper()], first, last, None if slot is None else int(slot))
