"""A sampler that continues with the unseen samples after ranks were lost."""

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from hccl_py.horovod.world import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a data set among the ranks, and its rest again when there are fewer ranks.

    Put it in the TorchState, call `record_batch` after each batch, and `set_epoch` at the end of
    each epoch.

    Args:
        dataset: its size must not change.
        shuffle: whether to shuffle, by seed and epoch, in the same order on all ranks.
        seed: the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch, of which no sample was seen."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that every rank has seen a batch."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and how much of it was seen."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from there with the present ranks."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the unseen samples among the present ranks."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        """Iterate over this rank's share; shares are equally long, so a few samples occur twice."""
        num_shared = self.num_samples * self.num_replicas
        shared = itertools.islice(itertools.cycle(self.remaining_indices), num_shared)
        return itertools.islice(shared, self.rank, None, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples
