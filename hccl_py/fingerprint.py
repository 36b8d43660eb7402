"""The 64 bits that every message carries so that two ranks notice when they made different calls.

    bits  0-15  sequence number, low bits (the engine puts it in)
    bits 16-19  collective
    bits 20-24  dtype
    bits 25-28  reduce op
    bits 29-41  root
    bits 42-63  element count, modulo a prime

Not a hash: two fingerprints that differ still say what each rank called.
"""

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
_COUNT_MODULUS = 4194301  # the largest prime of 22 bits
_MAX_ROOT = (1 << 13) - 1


def pack_call(collective: str, root: int | None) -> int:
    """Return the bits that depend on collective and root alone."""
    return _NUMBERS[collective] << 16 | min(root or 0, _MAX_ROOT) << 29


def pack(call: int, dtype: int, op: int, count: int) -> int:
    """Add what changes from call to call. Counts that ranks may differ in are passed as 0."""
    return call | dtype << 20 | op << 25 | (count % _COUNT_MODULUS) << 42


def describe(fingerprint: int) -> str:
    """Name the call, e.g. `all_reduce(sum, float32[1000]) number 17`."""
    number = fingerprint >> 16 & 0xF
    if not 0 < number < len(_NAMES):
        return "an unknown call"
    name = _NAMES[number]
    count = fingerprint >> 42
    parts = []
    if name in _ROOTED:
        parts.append(f"root={fingerprint >> 29 & _MAX_ROOT}")
    if name in _REDUCING:
        parts.append(ReduceOp(fingerprint >> 25 & 0xF).name.lower())
        parts.append(f"{DType(fingerprint >> 20 & 0x1F).name.lower()}[{count}]")
    elif count:
        parts.append(f"{count} bytes")
    return f"{name}({', '.join(parts)}) number {fingerprint & 0xFFFF}"
