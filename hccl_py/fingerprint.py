"""The 64 bits in every message by which two ranks detect that they made different calls.

    bits  0-15  sequence number, low bits (the engine puts it in)
    bits 16-19  collective
    bits 20-24  the caller's type of elements (`memory/element_types.py`)
    bits 25-28  reduce op; of elements sent as bytes: the low bits of their signature
    bits 29-41  root; of a collective without one: its Compression
    bits 42-63  number of elements: itself below 2^21, else 2^21 plus its rest by a prime; of bytes
                the same with 2^10 in the lower half, and the rest of the signature in the upper

It is not a hash: fingerprints that differ still show each rank's call. The count is of the data, in
all_gather and reduce_scatter of all blocks together. It is 0 in all_to_all, gather and scatter,
where no rank knows the others' sizes: the messages themselves are compared. Only an all_to_all
algorithm that needs equal blocks counts them.
"""

from enum import IntEnum
from typing import NamedTuple

from hccl_py.memory.element_types import BYTES, ELEMENT_TYPES, ElementType, type_of_signature
from hccl_py.transport import _core
from hccl_py.transport.types import Compression, ReduceOp

NAMES = (
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
_NUMBERS = {name: number for number, name in enumerate(NAMES)}
REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""Collectives with a reduce op."""
_ROOTS = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}
_UNCOUNTED = {"all_to_all", "gather", "scatter", "unknown"}
_OF_ALL_BLOCKS = {"all_gather", "reduce_scatter"}
_LARGE_COUNT = 1 << 21
_COUNT_MODULUS = 2097143  # the largest prime of 21 bits
_LARGE_BYTES = 1 << 10
_BYTES_MODULUS = 1021  # of 10 bits
_OP_BITS, _BYTES_BITS = 4, 11
_MAX_ROOT = (1 << 13) - 1


class Transfer(NamedTuple):
    """A send or recv, for messages; these carry no fingerprint."""

    sends: bool
    peer: int | None
    tag: int
    num_bytes: int


class WindowKind(IntEnum):
    """The calls of a window, with the engine's numbers (`csrc/engine/calls/request.h`)."""

    PUT = 3
    SIGNAL = 4
    WAIT_SIGNAL = 5


class WindowCall(NamedTuple):
    """A call of a window, for messages; these carry no fingerprint."""

    kind: WindowKind
    peer: int
    num_bytes: int


Call = int | Transfer | WindowCall | _core.Prepared
"""The name of a call in messages: a fingerprint, a transfer or a call of a window, or an object
with a fingerprint."""


class Fields(NamedTuple):
    """The fields of a fingerprint. A collective without a name here is called "unknown"."""

    sequence: int
    collective: str
    element: ElementType
    op: int
    root: int
    size: int


def pack(collective: str, root: int | None, element: ElementType, op: int, count: int) -> int:
    """Pack a call's bits. Pass 0 for counts that may differ between ranks.

    `root` is a Compression if the collective has no root. Bytes are not reduced, so the op's bits
    are free.
    """
    large, modulus = _limits(element)
    size = count * element.item_bytes if element.number == BYTES.number else count
    if size >= large:
        size = large + size % modulus
    if element.number == BYTES.number:
        op = element.signature & (1 << _OP_BITS) - 1
        size |= element.signature >> _OP_BITS << _BYTES_BITS
    bound = min(root or 0, _MAX_ROOT)
    return _NUMBERS[collective] << 16 | element.number << 20 | op << 25 | bound << 29 | size << 42


def _limits(element: ElementType) -> tuple[int, int]:
    """Return the size from which on the field has a remainder, and its divisor."""
    is_bytes = element.number == BYTES.number
    return (_LARGE_BYTES, _BYTES_MODULUS) if is_bytes else (_LARGE_COUNT, _COUNT_MODULUS)


def unpack(fingerprint: int) -> Fields:
    """Unpack a collective's bits."""
    number = fingerprint >> 16 & 0xF
    element_number = min(fingerprint >> 20 & 0x1F, BYTES.number)
    element, op, size = ELEMENT_TYPES[element_number], fingerprint >> 25 & 0xF, fingerprint >> 42
    if element is BYTES:
        element = type_of_signature(op | size >> _BYTES_BITS << _OP_BITS)
        op, size = int(ReduceOp.SUM), size & (1 << _BYTES_BITS) - 1
    return Fields(
        fingerprint & 0xFFFF,
        NAMES[number] if 0 < number < len(NAMES) else "unknown",
        element,
        op,
        fingerprint >> 29 & _MAX_ROOT,
        size,
    )


def describe(call: Call, count: int | None = None) -> str:
    """Name the call, e.g. `all_reduce(sum, float32[1000]) number 17`.

    `count` is its exact number of elements, if known.
    """
    if isinstance(call, Transfer):
        verb, way = ("send", "to") if call.sends else ("recv", "from")
        peer = "any rank" if call.peer is None else f"rank {call.peer}"
        return f"{verb}({call.num_bytes} bytes {way} {peer}, tag {call.tag})"
    if isinstance(call, WindowCall):
        amount = f"{call.num_bytes} bytes " * (call.kind is WindowKind.PUT)
        way = "from" if call.kind is WindowKind.WAIT_SIGNAL else "to"
        return f"{call.kind.name.lower()}({amount}{way} rank {call.peer})"
    sequence, name, element, op, root, field = unpack(
        call if isinstance(call, int) else call.fingerprint
    )
    if name == "unknown":
        return "an unknown call"
    parts = []
    if name in _ROOTS:
        parts.append(f"{_ROOTS[name]}={root}")
    if name in REDUCING:
        parts.append(ReduceOp(op).name.lower())
    if root and name not in _ROOTS:
        known = root in Compression._value2member_map_
        parts.append(f"compression={Compression(root).name.lower() if known else root}")
    if name != "barrier":
        size = str(field if count is None else count)
        large, modulus = _limits(element)
        if count is None and field >= large:
            # Two large counts that differ must not look the same.
            size = f"{large} or more, {field - large} modulo {modulus}"
        if count is None and element.signature:
            size += " bytes"
        size += " in all" * (name in _OF_ALL_BLOCKS)
        parts.append(element.name + f"[{size}]" * (field > 0 or name not in _UNCOUNTED))
    numbered = f" number {sequence}" if sequence else ""  # 0: the engine has not numbered it
    return f"{name}({', '.join(parts)}){numbered}"


def without_number(fingerprint: int) -> int:
    """Return the call without its number: equal for equal calls."""
    return fingerprint & ~0xFFFF


def count_of(fingerprint: int, num_bytes: int) -> int | None:
    """Return the exact number of elements of a call, from its bytes; None where none is counted."""
    fields = unpack(fingerprint)
    if fields.collective in _UNCOUNTED:
        return None
    return num_bytes // fields.element.item_bytes
