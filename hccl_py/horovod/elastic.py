"""Elastic training: after the loss of a rank the others restore their last commit and continue.

    run       calls the training function again, on the remaining ranks
    State     is committed, restored and synchronised; ObjectState: of Python objects

`torch/elastic.py` has the state of torch's models and optimizers.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hccl_py.horovod.errors import HorovodInternalError
from hccl_py.horovod.objects import broadcast_object
from hccl_py.horovod.process_sets import global_process_set, open_global
from hccl_py.horovod.world import rank
from hccl_py.transport.errors import CollectiveTimeoutError, PeerLostError

Result = TypeVar("Result")


class State:
    """The data that a training function changes; subclasses save, restore and broadcast it."""

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = broadcast_object,
        get_rank: Callable[[], int] = rank,
    ) -> None:
        self._bcast_object = bcast_object
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Register functions to call after ranks were lost, before the state is synchronised."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call `reset` and the registered functions."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the state in memory: training continues from there after a loss."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Do nothing: hosts never join a job that runs."""

    def save(self) -> None:
        """Copy the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the last copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Copy the state of rank 0 to all ranks."""
        raise NotImplementedError

    def reset(self) -> None:
        """Prepare for another number of ranks."""


class ObjectState(State):
    """Python objects, each an attribute. `commit` keeps the objects themselves, not copies.

    Subclasses add tensors, which they copy.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = broadcast_object,
        get_rank: Callable[[], int] = rank,
        **objects: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved, self._copies = objects, self._copied()
        self.restore()

    def save(self) -> None:
        """See `State`."""
        self._saved = {name: getattr(self, name) for name in self._saved}
        self._copies = self._copied()

    def restore(self) -> None:
        """See `State`."""
        for name, value in self._saved.items():
            setattr(self, name, value)
        self._load(self._copies)

    def sync(self) -> None:
        """See `State`. The copied state is committed."""
        self._broadcast()
        self._copies = self._copied()
        if self._saved:
            self._saved = self._bcast_object(self._saved)
            self.restore()

    def _copied(self) -> Any:
        """Return copies of the tensors."""

    def _load(self, copies: Any) -> None:
        """Overwrite the tensors with `copies`, and leave these unchanged."""

    def _broadcast(self) -> None:
        """Overwrite the tensors with rank 0's."""


def run(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that the remaining ranks repeat when one of them is lost.

    It calls `state.sync()` before each `function(state, ...)`. All other errors are raised, also
    those of calls that differ between ranks, and of `abort`.

    Raises:
        BootstrapError: the remaining ranks are no majority, or could not connect.
    """

    @functools.wraps(function)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Result:
        while True:
            try:
                state.sync()
                return function(state, *args, **kwargs)
            except HorovodInternalError as error:
                if not isinstance(error.__cause__, PeerLostError | CollectiveTimeoutError):
                    raise
            state.restore()
            _shrink()
            state.on_reset()

    return wrapper


def _shrink() -> None:
    """Shrink the job to the remaining ranks, and close all process sets."""
    old = global_process_set.communicator
    # Another rank may compute for long before it detects the loss.
    open_global(old.shrink(timeout_s=old.timeout_s))
