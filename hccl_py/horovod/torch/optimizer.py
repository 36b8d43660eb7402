"""Horovod's DistributedOptimizer: a step waits until gradients are reduced over ranks."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.compression import Compressor
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, gradient_reduction
from hccl_py.horovod.torch.gradients import GradientReducer, buckets_of
from hccl_py.horovod.torch.tensors import Compression
from hccl_py.transport.errors import InvalidArgumentError

Groups = int | Sequence[Sequence[Tensor]] | None


def DistributedOptimizer(  # noqa: N802  # the name is Horovod's
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optimizer of the same class that reduces gradients over all ranks.

    It takes over the parameters and the state of `optimizer`; do not use that one any more.
    Gradients are reduced while `backward` runs; `step()` waits for them.

    Args:
        optimizer: of torch; its groups have the same parameters in the same order on all ranks.
        named_parameters: checked as Horovod does: unique names, for every parameter.
        compression: the element type that gradients are sent in.
        backward_passes_per_step: number of backward passes that add up gradients for a step.
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: with Average, divide by it before the sum, by the rest after.
        num_groups: the old name of `groups`.
        groups: a number of groups, or lists of parameters. The gradients of a group are reduced
            together. None: groups of a few MB.
        sparse_as_dense: reduce sparse gradients as dense ones.
        process_set: its ranks reduce; other ranks step with their own gradients.

    Raises:
        ValueError: an argument is invalid.
    """
    chosen = gradient_reduction(op, gradient_predivide_factor)
    if backward_passes_per_step <= 0:
        raise InvalidArgumentError("backward_passes_per_step must be > 0")
    if num_groups:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups`.",
            DeprecationWarning,
            stacklevel=2,
        )
        groups = num_groups if groups is None else groups
    if named_parameters is not None:
        _check_names(optimizer, list(named_parameters))
    trained = [
        each for group in optimizer.param_groups for each in group["params"] if each.requires_grad
    ]
    kind = type(optimizer)
    made: Any = object.__new__(type(kind.__name__, (_Distributed, kind), {}))
    # A scheduler may have put a `step` of its own there, which calls the old optimizer's.
    made.__dict__.update((key, it) for key, it in vars(optimizer).items() if key != "step")
    is_alone = not process_set.included() or process_set.communicator.world_size == 1
    buckets = [] if is_alone else _buckets(trained, groups)
    call = Reduce(chosen, process_set)
    made._reducer = GradientReducer(buckets, call, compression, sparse_as_dense)
    made.set_backward_passes_per_step(backward_passes_per_step)
    return made


class _Distributed(Optimizer):
    """The methods that DistributedOptimizer adds to a class of optimizers."""

    _reducer: GradientReducer
    _is_synchronized = False
    _skips_synchronize = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Add up the gradients of so many backward passes for a step from now on."""
        self._reducer.set_passes_per_step(passes)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced, as before clipping them.

        Raises:
            HorovodInternalError: a rank failed.
        """
        self._reducer.synchronize()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make `step()` use the gradients as they are, after a call of `synchronize()`."""
        self._skips_synchronize = True
        try:
            yield
        finally:
            self._skips_synchronize = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the reduced gradients and update the parameters."""
        if closure is not None:
            return super().step(lambda: self._reduced(closure))
        if not self._skips_synchronize:
            if self._is_synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): gradients are reduced twice.",
                    stacklevel=2,
                )
            self.synchronize()
        self._is_synchronized = False
        return super().step()

    def _reduced(self, closure: Callable[[], Any]) -> Any:
        """Run the closure, and reduce its gradients."""
        loss = closure()
        self.synchronize()
        self._is_synchronized = False
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients; AssertionError: they are not reduced yet."""
        if self._reducer.is_pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause "
                "a race condition."
            )
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state, and discard gradients that are not reduced yet."""
        self._reducer.reset()
        self._is_synchronized = False
        super().load_state_dict(state_dict)


def _check_names(optimizer: Optimizer, named: Sequence[tuple[str, Tensor]]) -> None:
    if any(not isinstance(each, tuple) for each in named):
        raise InvalidArgumentError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced "
            "by model.named_parameters()."
        )
    times = Counter(name for name, _ in named)
    twice = [name for name, count in times.items() if count > 1]
    if twice:
        raise InvalidArgumentError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(twice)
        )
    known = {id(each) for _, each in named}
    optimized = [each for group in optimizer.param_groups for each in group["params"]]
    unnamed = [tuple(each.shape) for each in optimized if id(each) not in known]
    if unnamed:
        raise InvalidArgumentError(
            "named_parameters was specified, but one or more model parameters were not named: "
            f"tensors of shape {', '.join(map(str, unnamed))}"
        )


def _buckets(trained: Sequence[Tensor], groups: Groups) -> Sequence[Sequence[Tensor]]:
    """Return the groups of parameters that are reduced together, the last parameters first."""
    if groups is None or groups == 0:
        return buckets_of(trained)
    if isinstance(groups, int):
        if groups < 0:
            raise InvalidArgumentError(f"groups: expected a number or lists, got {groups}")
        bounds = [len(trained) * each // groups for each in range(groups + 1)]
        return [trained[begin:end] for begin, end in pairwise(bounds)][::-1]
    listed = [each for group in groups for each in group]
    if any(not isinstance(each, Tensor) for each in listed):
        raise InvalidArgumentError("groups must consist of torch.Tensor.")
    places = {each: place for place, each in enumerate(trained)}
    if len(set(listed)) < len(listed):
        raise InvalidArgumentError("A parameter can only appear once in groups.")
    given = [[each for each in group if each in places] for group in groups]
    alone = [[each] for each in trained if each not in set(listed)]
    found = [group for group in given + alone if group]
    return sorted(found, key=lambda group: max(places[each] for each in group), reverse=True)
