"""Exact averages of micro-batches: the same bits on any number of ranks, by every way to train."""

import contextlib
import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from exact_oracle import FORMATS, MAGNITUDES, assert_exact, hard_numbers
from ranks import run_ranks
from tiers import by_night
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hccl_py
from hccl_py import ExactAccumulator, InvalidArgumentError

MICRO_BATCHES = 8
WAYS = ("accumulator", "hook", "fast_ddp exact")
ROUNDING_WAYS = ("ddp", "fast_ddp")
WIDTH, WORDS, LENGTH = 16, 32, 12


class Transformer(nn.Module):
    """Predicts the next of a few words; the same in every process."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        found: Tensor = self.head(self.layer(self.words(words), mask, is_causal=True))
        return found


def micro_batches(step: int) -> Iterator[Tensor]:
    random = torch.Generator().manual_seed(step)
    for _ in range(MICRO_BATCHES):
        yield torch.randint(WORDS, (3, LENGTH + 1), generator=random)


def digest_of_training(rank: int, world_size: int, way: str, steps: int) -> str:
    torch.set_num_threads(1)
    network = Transformer()
    each = MICRO_BATCHES // world_size
    total = ExactAccumulator(micro_batches=each)
    model: nn.Module = network
    if way in ("ddp", "hook"):
        model = ddp = DistributedDataParallel(network)
        if way == "hook":
            ddp.register_comm_hook(total, hccl_py.exact_hook)
    elif way != "accumulator":
        hccl_py.fast_ddp(network, exact=way == "fast_ddp exact")
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        mine = list(micro_batches(step))[rank::world_size]
        for number, words in enumerate(mine):
            if way in ("accumulator", "hook"):
                optimizer.zero_grad()
            adds_up = way.endswith("ddp") or way == "fast_ddp exact"
            is_quiet = adds_up and number + 1 < each
            with model.no_sync() if is_quiet else contextlib.nullcontext():  # type: ignore[operator]
                scores = model(words[:, :-1]).flatten(0, 1)
                loss = nn.functional.cross_entropy(scores, words[:, 1:].flatten())
                (loss / each if way in ROUNDING_WAYS else loss).backward()
            gradients = [one.grad for one in network.parameters() if one.grad is not None]
            if way == "accumulator":
                total.add(gradients)
                if number + 1 == each:
                    total.average(gradients)
        optimizer.step()
    bits = b"".join(one.detach().numpy().tobytes() for one in network.parameters())
    return hashlib.sha256(bits).hexdigest()


def digests(way: str, steps: int, world_sizes: tuple[int, ...]) -> set[str]:
    found: set[str] = set()
    for world_size in world_sizes:
        found.update(run_ranks(digest_of_training, world_size, way, steps, backend="hccl"))
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("steps", "world_sizes"), [(3, (1, 2, 4)), *by_night("training", (50, (1, 2, 4, 8)))]
)
def test_training_ends_with_the_same_bits_on_any_number_of_ranks(
    steps: int, world_sizes: tuple[int, ...]
) -> None:
    exact = set().union(*(digests(way, steps, world_sizes) for way in WAYS))
    assert len(exact) == 1, "all three ways, on all numbers of ranks"
    for way in ROUNDING_WAYS:
        assert len(digests(way, steps, world_sizes)) > 1, f"{way} rounds as often as it adds"


def check_averages(rank: int, world_size: int) -> None:
    random = np.random.default_rng(world_size)
    for dtype in FORMATS:
        for magnitude in MAGNITUDES:
            given = hard_numbers(random, dtype, 9, 101, magnitude)
            total = ExactAccumulator()
            for one in given[rank::world_size]:  # each rank cuts them elsewhere
                total.add(list(one.split(20 + rank)))
            result = torch.zeros(101, dtype=dtype)
            total.average(list(result.split(20 + rank)))
            assert_exact(result, given, 9)


@pytest.mark.parametrize("world_size", [1, 2, *by_night("training", 3, 5)])
def test_average_is_rounded_once(world_size: int) -> None:
    run_ranks(check_averages, world_size, backend="hccl")


def test_the_sign_of_zero_does_not_depend_on_other_elements() -> None:
    total = ExactAccumulator()
    for number in (1.0, 2.0**-40, 2.0**-80):
        total.add([torch.tensor([-0.0, number, 0.0])])
    result = torch.ones(3)
    total.average([result])
    assert result.signbit().tolist() == [True, False, False]
    assert result[1] == (1 + 2.0**-40) / 3


def test_gradients_that_do_not_fit_are_named() -> None:
    total = ExactAccumulator()
    with pytest.raises(InvalidArgumentError, match="average: expected gradients before it"):
        total.average([torch.ones(3)])
    with pytest.raises(InvalidArgumentError, match="gradients: expected dense CPU tensors"):
        total.add([torch.ones(3, dtype=torch.int32)])
    total.add([torch.ones(3)])
    with pytest.raises(InvalidArgumentError, match="gradients: expected as many elements"):
        total.add([torch.ones(4)])
    total.average([torch.ones(3)])
    total.add([torch.ones(4)])  # it is empty in between
    assert not dist.is_initialized()
