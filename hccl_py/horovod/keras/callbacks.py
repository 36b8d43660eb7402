"""Horovod's callbacks for `model.fit` of Keras 3."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from hccl_py.horovod import allreduce
from hccl_py.horovod.tensorflow.calls import broadcast_variables
from hccl_py.horovod.world import rank, size
from hccl_py.transport.errors import InvalidArgumentError


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Copies the model and optimizer of one rank to all after the first batch.

    Args:
        root_rank: the rank that has them.
        local_variables: variables that each rank keeps.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        is_list = local_variables is None or isinstance(local_variables, Sequence)
        self._local = list(local_variables or ()) if is_list else [local_variables]
        self.broadcast_done = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch, when the optimizer has its variables."""
        if self.broadcast_done:
            return
        every = [*self.model.variables, *self.model.optimizer.variables]
        chosen = [it for it in every if not any(it is local for local in self._local)]
        broadcast_variables(chosen, self.root_rank)
        self.broadcast_done = True


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Averages metrics over ranks at the end of an epoch, for the callbacks after it."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace each number in `logs`; all ranks have the same names."""
        if logs:
            names = sorted(logs)
            values = allreduce(np.array([float(logs[name]) for name in names]))
            logs.update(zip(names, map(float, values), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to `initial_lr` times a factor.

    Args:
        initial_lr: learning rate at the start.
        multiplier: the factor to the power of the epochs since `start_epoch`; or a function of the
            epoch, which is a fraction unless `staircase`.
        start_epoch: first epoch that is changed.
        end_epoch: first epoch that is not changed any more.
        staircase: whether to change once an epoch, not before each batch.
        momentum_correction: scale the momentum too, for the batch that changes the learning rate.
        steps_per_epoch: None: `fit` sets it.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise InvalidArgumentError("Parameter `initial_lr` is required")
        self.initial_lr, self.staircase = initial_lr, staircase
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.momentum_correction, self.steps_per_epoch = momentum_correction, steps_per_epoch
        self.current_epoch = 0
        self._momentum: float | None = None  # while it is corrected
        self.multiplier: Callable[[float], float]
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Determine how many steps an epoch has."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise InvalidArgumentError(
                    "steps_per_epoch: fit does not know it; pass it to the callback"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Change the learning rate if it is due."""
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if not self.staircase:
            assert self.steps_per_epoch is not None
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Restore the momentum."""
        if self._momentum is not None:
            self.model.optimizer.momentum = self._momentum
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the learning rate."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before, after = float(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = after
        # In Keras 3 the momentum is a Python number, which a compiled step has read already.
        momentum = getattr(optimizer, "momentum", None)
        if self.momentum_correction and momentum and self.model.run_eagerly:
            self._momentum = momentum
            optimizer.momentum = momentum * after / before


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size()` to `initial_lr`, a little each batch."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def factor(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            done = (epoch + 1 / self.steps_per_epoch) / warmup_epochs
            return (done * (size() - 1) + 1) / size()

        super().__init__(
            initial_lr, factor, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the learning rate; print a line when the warmup is over."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch + 1 == self.end_epoch and rank() == 0:
            reached = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {reached:g}.")
