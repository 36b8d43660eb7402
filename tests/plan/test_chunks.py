import pytest

from hccl_py.plan import BufferName, Chunk, data, input, output


def test_index_names_one_chunk() -> None:
    assert data[3] == Chunk(BufferName.DATA, 3, 4)
    assert input[0] == Chunk(BufferName.INPUT, 0, 1)
    assert output[2] == Chunk(BufferName.OUTPUT, 2, 3)


def test_slice_names_a_range() -> None:
    assert data[1:4] == Chunk(BufferName.DATA, 1, 4)
    assert data[:4] == data[0:4]


@pytest.mark.parametrize(
    "key", [-1, slice(-2, None), slice(0, -1), slice(0, 4, 2), slice(4, 0, -1)]
)
def test_index_that_would_wrap_or_skip_is_refused(key: int | slice) -> None:
    with pytest.raises(IndexError, match="count up from 0"):
        data[key]


def test_chunks_are_spelt_as_algorithms_write_them() -> None:
    assert str(data[2]) == "data[2]"
    assert str(input[1]) == "input[1]"
    assert str(data[0:3]) == "data[0:3]"
    assert str(output[2].in_scratch(1)) == "scratch[1] like output[2]"
