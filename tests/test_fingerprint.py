"""Every call has its own 64 bits, and they can be read back."""

from __future__ import annotations

import itertools

import pytest

from hccl_py.fingerprint import Transfer, describe, pack
from hccl_py.transport.types import DType, ReduceOp

FLOAT, BYTE = int(DType.FLOAT32), int(DType.UINT8)
SUM, MAX = int(ReduceOp.SUM), int(ReduceOp.MAX)

TEXTS = [
    (pack("all_reduce", None, FLOAT, SUM, 1000) | 17, "all_reduce(sum, float32[1000])"),
    (pack("reduce", 3, FLOAT, MAX, 0) | 17, "reduce(root=3, max, float32[0])"),
    (pack("broadcast", 8191, BYTE, SUM, 5) | 17, "broadcast(root=8191, 5 bytes)"),
    (pack("all_to_all", None, BYTE, SUM, 0) | 17, "all_to_all()"),
    (pack("barrier", None, BYTE, SUM, 1) | 17, "barrier()"),
]


@pytest.mark.parametrize(("fingerprint", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_describe_reads_everything_back(fingerprint: int, text: str) -> None:
    assert describe(fingerprint) == f"{text} number 17"


def test_describe_without_sequence_leaves_the_number_out() -> None:
    assert describe(pack("barrier", None, BYTE, SUM, 1)) == "barrier()"


def test_describe_large_count_does_not_look_small() -> None:
    one, other = (
        describe(pack("all_reduce", None, FLOAT, SUM, count)) for count in (1 << 24, (1 << 24) + 1)
    )
    assert one.startswith("all_reduce(sum, float32[2097152 or more, 72 modulo 2097143])")
    assert one != other


def test_describe_bits_of_something_else_is_no_error() -> None:
    assert describe(0) == describe(0xF << 16) == "an unknown call"


def test_pack_different_calls_differ_and_fit() -> None:
    calls = list(
        itertools.product(
            ("all_reduce", "reduce", "scatter", "barrier"),
            (0, 1, 8191),
            (FLOAT, int(DType.BOOL)),
            (SUM, int(ReduceOp.BXOR)),
            (0, 1, (1 << 21) - 1, 1 << 21, (1 << 40) + 1),
        )
    )
    packed = [pack(*call) for call in calls]
    assert len(set(packed)) == len(calls)
    assert max(packed) < 1 << 64
    assert all(one & 0xFFFF == 0 for one in packed), "the engine's bits"


def test_describe_transfers() -> None:
    assert describe(Transfer(True, 3, 7, 80)) == "send(80 bytes to rank 3, tag 7)"
    assert describe(Transfer(False, None, 0, 8)) == "recv(8 bytes from any rank, tag 0)"
