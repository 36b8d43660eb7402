"""Element types and reduce operations, with the numbers that C++ (`csrc/base/types.h`) uses."""

from enum import IntEnum


class DType(IntEnum):
    """Element types that can be reduced. Elements that are only moved are sent as `UINT8`."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    UINT8 = 5
    INT16 = 6
    UINT16 = 7
    INT32 = 8
    UINT32 = 9
    INT64 = 10
    UINT64 = 11
    BOOL = 12
    FLOAT8_E4M3FN = 13
    FLOAT8_E5M2 = 14
    FLOAT8_E4M3FNUZ = 15
    FLOAT8_E5M2FNUZ = 16
    FLOAT8_E8M0FNU = 17


class ReduceOp(IntEnum):
    """Reductions. `AVG` is the sum, divided once at the end; integers truncate towards zero.

    `EXACT_SUM` and `EXACT_AVG` of floats round once: docs/api/exact.md.
    """

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    AVG = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    EXACT_SUM = 8
    EXACT_AVG = 9


EXACT: dict[int, ReduceOp] = {ReduceOp.SUM: ReduceOp.EXACT_SUM, ReduceOp.AVG: ReduceOp.EXACT_AVG}
"""By a reduction, the exact one of floats."""


class Compression(IntEnum):
    """The encoding of float32 between nodes; `csrc/reduce/reduce.h` states the encodings."""

    NONE = 0
    BF16 = 1
    INT8 = 2


_WIDER = {
    2: {DType.FLOAT16, DType.BFLOAT16, DType.INT16, DType.UINT16},
    4: {DType.FLOAT32, DType.INT32, DType.UINT32},
    8: {DType.FLOAT64, DType.INT64, DType.UINT64},
}

ITEM_SIZE: dict[DType, int] = dict.fromkeys(DType, 1) | {
    dtype: num_bytes for num_bytes, dtypes in _WIDER.items() for dtype in dtypes
}
"""Bytes of one element."""

IN_ONE_STEP = frozenset(dtype for dtype in DType if dtype >= DType.FLOAT8_E4M3FN)
"""Too narrow for partial sums: each chunk is reduced at one rank, and rounded once."""
