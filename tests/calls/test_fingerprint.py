"""Every call has its own 64 bits, and they can be read back."""

import itertools

import pytest

from hccl_py.fingerprint import describe, pack, unpack
from hccl_py.memory.element_types import BYTES, ELEMENT_TYPES, ElementType, element_type
from hccl_py.transport.types import Compression, DType, ReduceOp

FLOAT, BYTE = ELEMENT_TYPES[DType.FLOAT32], ELEMENT_TYPES[DType.UINT8]
FLOAT8 = element_type("float8_e4m3fn", 1)
COMPLEX = element_type("complex128", 16)
SUM, MAX = int(ReduceOp.SUM), int(ReduceOp.MAX)

TEXTS = [
    (pack("all_reduce", None, FLOAT, SUM, 1000) | 17, "all_reduce(sum, float32[1000])"),
    (pack("reduce", 3, FLOAT, MAX, 0) | 17, "reduce(dst=3, max, float32[0])"),
    (pack("broadcast", 8191, BYTE, SUM, 5) | 17, "broadcast(src=8191, uint8[5])"),
    (pack("broadcast", 0, FLOAT8, SUM, 5) | 17, "broadcast(src=0, float8_e4m3fn[5])"),
    (pack("broadcast", 0, BYTES, SUM, 5) | 17, "broadcast(src=0, bytes[5])"),
    (pack("all_reduce", None, COMPLEX, SUM, 5) | 17, "all_reduce(sum, complex128[5])"),
    (pack("all_gather", None, FLOAT, SUM, 40) | 17, "all_gather(float32[40 in all])"),
    (pack("reduce_scatter", None, FLOAT, SUM, 8) | 17, "reduce_scatter(sum, float32[8 in all])"),
    (
        pack("all_reduce", int(Compression.INT8), FLOAT, SUM, 5) | 17,
        "all_reduce(sum, compression=int8, float32[5])",
    ),
    (
        pack("reduce_scatter", 77, FLOAT, SUM, 5) | 17,
        "reduce_scatter(sum, compression=77, float32[5 in all])",
    ),
    (pack("all_to_all", None, BYTE, SUM, 0) | 17, "all_to_all(uint8)"),
    (pack("gather", 2, FLOAT, SUM, 0) | 17, "gather(dst=2, float32)"),
    (pack("scatter", 2, FLOAT, SUM, 0) | 17, "scatter(src=2, float32)"),
    (pack("barrier", None, BYTE, SUM, 1) | 17, "barrier()"),
]


@pytest.mark.parametrize(("fingerprint", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_describe_reads_everything_back(fingerprint: int, text: str) -> None:
    assert describe(fingerprint) == f"{text} number 17"


def test_pack_different_calls_differ_and_fit() -> None:
    calls = list(
        itertools.product(
            ("all_reduce", "reduce", "scatter", "barrier"),
            (0, 1, 8191),
            (FLOAT, ELEMENT_TYPES[DType.BOOL], COMPLEX),
            (SUM, int(ReduceOp.BXOR)),
            (0, 1, (1 << 21) - 1, 1 << 21, (1 << 40) + 1),
        )
    )
    packed = [pack(*call) for call in calls]
    assert len(set(packed)) == len(calls)
    assert max(packed) < 1 << 64
    assert all(one & 0xFFFF == 0 for one in packed), "the engine's bits"


@pytest.mark.parametrize("collective", ["broadcast", "gather"])
def test_pack_types_that_travel_as_bytes_differ_by_name(collective: str) -> None:
    names = ["datetime64[s]", "datetime64[ms]", "timedelta64[s]", "S8", "[('a', '<i8')]"]
    packed = [pack(collective, 8191, element_type(name, 8), SUM, 1 << 40) for name in names]
    assert len(set(packed)) == len(names)
    assert max(packed) < 1 << 64
    assert [unpack(one).element.name for one in packed] == names


def test_describe_other_ranks_type_without_a_name_here() -> None:
    unknown = ElementType(BYTES.number, "only there", 4, signature=5)
    fingerprint = pack("broadcast", 0, unknown, SUM, 3)
    assert describe(fingerprint) == "broadcast(src=0, bytes of type 5[12 bytes])"
