"""Addresses, counts and kinds of what callers hand in; refusals are in test_communicator.py."""

from typing import Any

import numpy as np
import pytest
import torch

from hccl_py.memory.buffers import blocks_of, span_of
from hccl_py.memory.element_types import Span
from hccl_py.transport.types import EXACT, IN_ONE_STEP, ITEM_SIZE, DType, ReduceOp

BITWISE = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR}
OF_FLOATS = set(EXACT.values())
UNDEFINED = {"bool": {ReduceOp.AVG, *OF_FLOATS}}


@pytest.mark.parametrize("dtype", DType)
def test_every_dtype_from_torch_and_numpy(dtype: DType) -> None:
    name = dtype.name.lower()
    buffers: list[Any] = [torch.zeros(5, dtype=getattr(torch, name))]
    if dtype is not DType.BFLOAT16 and dtype not in IN_ONE_STEP:
        buffers.append(np.zeros(5, name))
    for buffer in buffers:
        address, count, kind = span_of(buffer)
        found = (count, kind.name, kind.part_type, kind.parts, kind.item_bytes)
        assert found == (5, name, dtype, 1, ITEM_SIZE[dtype])
        wanted = set(ReduceOp) - UNDEFINED.get(name, BITWISE if "float" in name else OF_FLOATS)
        assert {op for op in ReduceOp if kind.can_reduce(op)} == wanted
        where = buffer.data_ptr() if isinstance(buffer, torch.Tensor) else buffer.ctypes.data
        assert address == where


@pytest.mark.parametrize(("name", "part"), [("complex64", 0), ("complex128", 1)])
def test_complex_numbers_are_two_floats(name: str, part: int) -> None:
    for buffer in (np.zeros(3, name), torch.zeros(3, dtype=getattr(torch, name))):
        span = span_of(buffer)
        assert (span.count, span.kind.part_type, span.kind.parts) == (3, part, 2)
        assert span.num_bytes == buffer.nbytes
        reducible = {op for op in ReduceOp if span.kind.can_reduce(op)}
        assert reducible == {ReduceOp.SUM, ReduceOp.AVG, *OF_FLOATS}


@pytest.mark.parametrize(
    "buffer",
    [
        np.zeros(3, "M8[ns]"),
        np.zeros(3, "S7"),
        np.zeros(3, "i4, f8"),
        torch.zeros(3, dtype=torch.complex32),
    ],
    ids=lambda buffer: str(buffer.dtype),
)
def test_other_types_are_moved_only(buffer: Any) -> None:
    span = span_of(buffer)
    assert (span.count, span.num_bytes) == (3, buffer.nbytes)
    assert span.kind.part_type is None


def test_views_start_where_they_start() -> None:
    array, tensor = np.zeros((4, 4)), torch.zeros(4, 4)
    assert span_of(array[2:]) == Span(array.ctypes.data + 64, 8, span_of(array).kind)
    assert span_of(tensor[2:]) == Span(tensor.data_ptr() + 32, 8, span_of(tensor).kind)


def test_blocks_of_a_list_keep_their_sizes_and_may_mix_numpy_and_torch() -> None:
    blocks = (np.zeros(2, np.float32), torch.zeros(0), torch.zeros(5))
    assert [span.count for span in blocks_of(blocks, "input", 3)] == [2, 0, 5]
