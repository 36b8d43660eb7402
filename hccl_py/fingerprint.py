"""The 64 bits that every message carries so that two ranks notice when they made different calls.

    bits  0-15  sequence number, low bits (the engine puts it in)
    bits 16-19  collective
    bits 20-24  dtype
    bits 25-28  reduce op
    bits 29-41  root
    bits 42-63  count: itself below 2^21, else 2^21 plus its rest by a prime

Not a hash: two fingerprints that differ still say what each rank called.
"""

from typing import NamedTuple

from hccl_py.transport.types import DType, ReduceOp

_NAMES = (
    "send/recv",
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
)
_NUMBERS = {name: number for number, name in enumerate(_NAMES)}
_REDUCING = {"all_reduce", "reduce", "reduce_scatter"}
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
_LARGE_COUNT = 1 << 21
_COUNT_MODULUS = 2097143  # the largest prime of 21 bits
_MAX_ROOT = (1 << 13) - 1


class Transfer(NamedTuple):
    """A send or recv, for messages; these carry no fingerprint."""

    sends: bool
    peer: int | None
    tag: int
    num_bytes: int


def pack(collective: str, root: int | None, dtype: int, op: int, count: int) -> int:
    """Write a call's bits. Counts that ranks may differ in are passed as 0."""
    if count >= _LARGE_COUNT:
        count = _LARGE_COUNT + count % _COUNT_MODULUS
    bound = min(root or 0, _MAX_ROOT)
    return _NUMBERS[collective] << 16 | dtype << 20 | op << 25 | bound << 29 | count << 42


def describe(call: int | Transfer) -> str:
    """Name the call, e.g. `all_reduce(sum, float32[1000]) number 17`."""
    if isinstance(call, Transfer):
        verb, way = ("send", "to") if call.sends else ("recv", "from")
        peer = "any rank" if call.peer is None else f"rank {call.peer}"
        return f"{verb}({call.num_bytes} bytes {way} {peer}, tag {call.tag})"
    number = call >> 16 & 0xF
    if not 0 < number < len(_NAMES):
        return "an unknown call"
    name = _NAMES[number]
    parts = []
    if name in _ROOTED:
        parts.append(f"root={call >> 29 & _MAX_ROOT}")
    count = _count(call >> 42)
    if name in _REDUCING:
        parts.append(ReduceOp(call >> 25 & 0xF).name.lower())
        parts.append(f"{DType(call >> 20 & 0x1F).name.lower()}[{count}]")
    elif call >> 42 and name != "barrier":
        parts.append(f"{count} bytes")
    sequence = call & 0xFFFF  # 0: the engine has not numbered it
    return f"{name}({', '.join(parts)})" + (f" number {sequence}" if sequence else "")


def _count(field: int) -> str:
    if field < _LARGE_COUNT:
        return str(field)
    # Two large counts that differ must not look the same.
    return f"{_LARGE_COUNT} or more, {field - _LARGE_COUNT} modulo {_COUNT_MODULUS}"
