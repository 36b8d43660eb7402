"""Elastic training with `model.fit`: `run`, `KerasState`, and callbacks that keep it up to date."""

from typing import Any

import keras

from hccl_py.horovod.elastic import State
from hccl_py.horovod.tensorflow.elastic import TensorFlowKerasState
from hccl_py.horovod.tensorflow.elastic import run as run

KerasState = TensorFlowKerasState


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits the state after every so many batches, and after each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Restart the count, as all ranks do."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the number of the batch in `state.batch`; 0 after an epoch."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Start from 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the number of finished epochs in `state.epoch`, over all calls of `fit`."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Record how many epochs were finished before."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch, which `fit` counts from 0."""
        self.state.epoch = self.initial_epoch + epoch + 1
