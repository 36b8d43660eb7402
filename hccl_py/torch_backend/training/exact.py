"""Gradients of micro-batches that are added up without rounding: `ExactAccumulator`.

It holds, for each element, a few floats whose exact sum is the exact sum of all gradients so far:
adding a gradient to the first one makes the rounded sum and what that lost, and what was lost is
added to the next one. In the end each rank receives all ranks' floats of its share of the elements,
adds them up exactly, divides, and rounds once. docs/api/exact.md has the theorem.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from hccl_py.transport import _core
from hccl_py.transport.arguments import whole_number, wrong
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import DType

_DTYPES = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
}


class ExactAccumulator:
    """Averages the gradients of micro-batches over all ranks: the exact average, rounded once.

    The bits depend only on the gradients, not on which rank computed which, nor on their order.
    Between `average` and the next `add` it is empty. As the state of `exact_hook` it averages over
    `micro_batches` backward passes of each rank.

    Attributes:
        micro_batches: as given.
        process_group: as given.
        num_added: gradients added on this rank since the last average.
    """

    def __init__(
        self, process_group: dist.ProcessGroup | None = None, *, micro_batches: int = 1
    ) -> None:
        """Start empty.

        Args:
            process_group: the ranks, of backend hccl; None: the default group, or this process
                alone if there is none.
            micro_batches: of the hook: backward passes per step.
        """
        if not isinstance(process_group, dist.ProcessGroup | None):
            raise wrong("process_group", "an hccl group, or None", process_group)
        numbers = range(1, 1 << 20)
        self.micro_batches = whole_number("micro_batches", micro_batches, "1 or more", numbers)
        self.process_group = process_group
        self.num_added = 0
        self._sums: dict[torch.dtype, _ExactSum] = {}
        # Of the hook: its parameters in their first order, since DDP changes its buckets; and this
        # backward pass so far.
        self._parameters: list[Tensor] = []
        self._buckets: list[tuple[GradBucket, Future[Tensor]]] = []

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Add one micro-batch's gradients: copies them; the same shapes and types each time.

        Raises:
            InvalidArgumentError: they differ from those before, or are no floats on the CPU.
        """
        given = _by_type(gradients)
        sums = {dtype: _ExactSum(dtype, _count(of_it)) for dtype, of_it in given.items()}
        self._sums = self._sums or sums
        self._check(given)
        for dtype, of_it in given.items():
            self._sums[dtype].add(of_it)
        self.num_added += 1

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Set `gradients` to the average of all that were added on all ranks; all ranks call it.

        Args:
            gradients: as they were added.

        Raises:
            InvalidArgumentError: nothing was added, or they differ from those that were.
            DistBackendError: the communicator has failed.
        """
        if not self.num_added:
            raise InvalidArgumentError("average: expected gradients before it; call add() first")
        given = _by_type(gradients)
        self._check(given)
        group = self.process_group
        if group is None and dist.is_initialized():
            group = dist.group.WORLD
        for dtype, of_it in given.items():
            whole = self._sums[dtype].average(self.num_added, group)
            for one, part in zip(
                of_it, whole.split_with_sizes([it.numel() for it in of_it]), strict=True
            ):
                one.detach().copy_(part.view(one.shape))
        self._sums, self.num_added = {}, 0

    def _check(self, given: dict[torch.dtype, list[Tensor]]) -> None:
        expected = {dtype: one.count for dtype, one in self._sums.items()}
        got = {dtype: _count(of_it) for dtype, of_it in given.items()}
        if expected != got:
            raise InvalidArgumentError(
                f"gradients: expected as many elements as before, {expected}, got {got}"
            )

    def take(self, bucket: GradBucket) -> Future[Tensor]:
        """Take a bucket of DDP; its future is done once the backward pass has its last bucket."""
        future: Future[Tensor] = Future()
        self._buckets.append((bucket, future))
        if bucket.is_last():
            buckets, self._buckets = self._buckets, []
            gradients: dict[Tensor, Tensor] = {}
            for one, _ in buckets:
                gradients.update(zip(one.parameters(), one.gradients(), strict=True))
            self._parameters = self._parameters or list(gradients)
            ordered = [gradients[parameter] for parameter in self._parameters]
            self.add(ordered)
            if self.num_added == self.micro_batches:
                self.average(ordered)
            for one, its_future in buckets:
                its_future.set_result(one.buffer())
        return future


def exact_hook(state: ExactAccumulator, bucket: GradBucket) -> Future[Tensor]:
    """Average DDP's gradients exactly, over `state.micro_batches` backward passes of each rank.

    Empty the gradients before every backward pass, and do without `no_sync`. Only after the last
    pass of a step do they hold the average; before, they are those of the rank.
    """
    if not isinstance(state, ExactAccumulator):
        raise wrong("state", "an ExactAccumulator", state)
    return state.take(bucket)


class _ExactSum:
    """The exact sum of flat gradients of one type, as floats of which none can be left out."""

    def __init__(self, dtype: torch.dtype, count: int) -> None:
        self.count = count
        self._dtype = dtype
        self._wide = torch.float64 if dtype is torch.float64 else torch.float32
        self._parts: list[Tensor] = []

    def add(self, gradients: Sequence[Tensor]) -> None:
        rest = torch.cat([one.detach().reshape(-1).to(self._wide) for one in gradients])
        for part in self._parts:
            addresses = part.data_ptr(), rest.data_ptr()
            if not _core.split_sum(_DTYPES[self._wide], *addresses, self.count):
                return
        self._parts.append(rest)

    def average(self, num_added: int, group: dist.ProcessGroup | None) -> Tensor:
        whole = torch.empty(self.count, dtype=self._dtype)
        if group is None or group.size() == 1:
            self._round(whole, self._parts, num_added)
            return whole
        n, me = group.size(), group.rank()
        sizes = [(self.count + n - 1 - rank) // n for rank in range(n)]
        numbers = torch.tensor([len(self._parts), num_added])
        every = [torch.empty_like(numbers) for _ in range(n)]
        dist.all_gather(every, numbers, group)
        operands: list[Tensor] = []
        for index in range(max(int(one[0]) for one in every)):
            if index == len(self._parts):  # -0 changes no sum, not even that of zeros
                self._parts.append(torch.full((self.count,), -0.0, dtype=self._wide))
            received = torch.empty(n * sizes[me], dtype=self._wide)
            split = [sizes[me]] * n
            dist.all_to_all_single(received, self._parts[index], split, sizes, group)
            operands += received.split_with_sizes(split)
        mine = torch.empty(sizes[me], dtype=self._dtype)
        self._round(mine, operands, sum(int(one[1]) for one in every))
        dist.all_gather(list(whole.split_with_sizes(sizes)), mine, group)
        return whole

    def _round(self, result: Tensor, operands: Sequence[Tensor], divisor: int) -> None:
        types = _DTYPES[self._wide], _DTYPES[self._dtype]
        addresses = [one.data_ptr() for one in operands]
        _core.reduce_exactly(*types, result.data_ptr(), addresses, result.numel(), divisor)


def _by_type(gradients: Sequence[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    found: dict[torch.dtype, list[Tensor]] = {}
    for one in gradients:
        if one.dtype not in _DTYPES or not one.is_cpu or one.layout is not torch.strided:
            kind = f"{one.dtype} on {one.device}, {one.layout}"
            raise InvalidArgumentError(
                f"gradients: expected dense CPU tensors of float16 to float64, got {kind}"
            )
        found.setdefault(one.dtype, []).append(one)
    return found


def _count(gradients: Sequence[Tensor]) -> int:
    return sum(one.numel() for one in gradients)
