"""Batch normalisation over the batches of all ranks."""

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.process_sets import global_process_set
from hccl_py.horovod.reductions import Reduction, Sum
from hccl_py.horovod.signatures import DescribedCall
from hccl_py.horovod.torch.calls import run
from hccl_py.horovod.world import size
from hccl_py.transport.errors import InvalidArgumentError


class SyncBatchNorm(_BatchNorm):
    """Normalises with mean and variance of all ranks' batches, in training; (N, C, ...) in and out.

    Arguments and attributes are those of `torch.nn.BatchNorm1d`.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise InvalidArgumentError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; all ranks call it."""
        self._check_input_dim(input)
        if size() == 1 or not (self.training or self.running_mean is None):
            return super().forward(input)
        kind = input.dtype
        if kind.itemsize == 2:  # sums of 16 bits overflow
            input = input.float()
        others = [0, *range(2, input.dim())]
        count = input.new_tensor([input.numel() / input.size(1)])
        # The variance in a second call: the difference of two large sums would lose digits.
        sums = _sum(torch.cat([input.sum(others), count]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        shape = [1, -1] + [1] * (input.dim() - 2)
        centred = input - mean.view(shape)
        variance = _sum(centred.square().sum(others)) / total
        if self.training and self.running_mean is not None:
            self._track(mean.detach(), variance.detach(), total)
        made: Tensor = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            made = made * self.weight.view(shape) + self.bias.view(shape)
        return made.to(kind)

    def _track(self, mean: Tensor, variance: Tensor, total: Tensor) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (total / (total - 1))
        for running, now in ((self.running_mean, mean), (self.running_var, unbiased)):
            assert running is not None
            running.lerp_(now.to(running.dtype), momentum)


def _sum(tensor: Tensor) -> Tensor:
    """Return the sum over all ranks, with its gradient."""
    return run(DescribedCall(Reduce(Reduction(Sum), global_process_set)), [tensor])[0][0]
