import pytest
import torch

from hccl_py.bench.collective.oracle import ITEM_SIZES, PERIOD, Call, Piece, contribution, reduced
from hccl_py.bench.collective.rank import count_wrong

_CALL = Call(4, 0, "none", "int64", 0)
_COUNTS = (3, 2 * PERIOD + 9)


def _right(dtype: str) -> tuple[torch.Tensor, list[Piece]]:
    """A right result of two blocks, built without the code under test."""
    pieces = [Piece(count, contribution(_CALL, peer)) for peer, count in enumerate(_COUNTS)]
    values = [int(piece.pattern[i % PERIOD]) for piece in pieces for i in range(piece.count)]
    return torch.tensor(values, dtype=getattr(torch, dtype)), pieces


@pytest.mark.parametrize("dtype", ITEM_SIZES)
def test_count_wrong_sees_every_single_element(dtype: str) -> None:
    actual, pieces = _right(dtype)
    for index in range(sum(_COUNTS)):
        spoilt = actual.clone()
        spoilt[index] += 1
        assert count_wrong(spoilt, pieces, rounded=False) == 1


def test_count_wrong_swapped_blocks_are_wrong() -> None:
    actual, pieces = _right("float32")
    swapped = torch.cat([actual[_COUNTS[0] :], actual[: _COUNTS[0]]])
    assert count_wrong(swapped, pieces, rounded=False) > PERIOD


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_count_wrong_average_allows_its_last_digit_and_no_more(dtype: str) -> None:
    average = reduced(Call(3, 0, "avg", dtype, PERIOD))
    actual = torch.from_numpy(average).to(getattr(torch, dtype))
    pieces = [Piece(PERIOD, average)]
    up = torch.full_like(actual, float("inf"))
    assert count_wrong(torch.nextafter(actual, up), pieces, rounded=False) == PERIOD
    assert count_wrong(actual, pieces, rounded=True) == 0
    assert count_wrong(actual * (1 + 4 * torch.finfo(actual.dtype).eps), pieces, rounded=True) > 0
    assert count_wrong(torch.full_like(actual, float("nan")), pieces, rounded=True) == PERIOD
