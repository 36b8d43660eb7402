"""Process sets: some of the job's ranks that call collectives together.

The global one, all ranks, exists from `init()` on; its communicator is the job's.
"""

import itertools
from collections.abc import Iterable, Sequence

from hccl_py.communicator import Communicator
from hccl_py.horovod.errors import NotInitializedError, internal_errors
from hccl_py.transport.errors import InvalidArgumentError


class ProcessSet:
    """Some ranks, in ascending order.

    Attributes:
        ranks: of the job.
        process_set_id: the set's number on all ranks; None: it was not added.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        if not isinstance(ranks, Iterable):
            raise InvalidArgumentError(
                f"ProcessSet: expected a list of ranks, got {type(ranks).__name__}; MPI "
                "communicators cannot be used"
            )
        self.ranks: list[int] = sorted(ranks)
        self.process_set_id: int | None = None
        self._communicator: Communicator | None = None

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    @property
    def communicator(self) -> Communicator:
        """The communicator of these ranks.

        Raises:
            ValueError: the set was not added, or this rank is not in it.
        """
        if self._communicator is not None:
            return self._communicator
        if not global_process_set._communicator:
            raise NotInitializedError
        if self.process_set_id is None:
            raise InvalidArgumentError(
                f"process_set: expected one that was added, got {self}; pass it to hvd.init() or "
                "hvd.add_process_set() on all ranks"
            )
        raise InvalidArgumentError(f"process_set: this rank is not part of {self}")

    def size(self) -> int | None:
        """Return how many ranks it has; None if it was not added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return this process's rank in the set; None if it was not added."""
        return None if self.process_set_id is None else self.communicator.rank

    def included(self) -> bool:
        """Return whether this process is in the set."""
        if global_process_set._communicator is None:
            raise NotInitializedError
        return global_process_set._communicator.rank in self.ranks

    def root(self, root_rank: int) -> int:
        """Return the rank in this set of a rank of the job."""
        if root_rank not in self.ranks:
            raise InvalidArgumentError(
                f"root_rank: expected one of the ranks {self.ranks}, got {root_rank!r}"
            )
        return self.ranks.index(root_rank)


global_process_set = ProcessSet([])
_added: list[ProcessSet] = []
_ids = itertools.count(1)


def open_global(communicator: Communicator) -> None:
    """Make this the communicator of all ranks, and close the earlier sets."""
    close_all()
    global_process_set.ranks = list(range(communicator.world_size))
    global_process_set.process_set_id = 0
    global_process_set._communicator = communicator


def close_all() -> None:
    """Close the communicators of all sets. Idempotent."""
    global _ids
    for process_set in [*_added, global_process_set]:
        _close(process_set)
    _added.clear()
    _ids = itertools.count(1)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Open a process set; all ranks of the job call it, for the same sets in the same order.

    Raises:
        ValueError: there is one with these ranks, or a rank is not in the job.
        HorovodInternalError: a rank failed meanwhile.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    everyone = global_process_set.communicator
    if not made.ranks or not set(made.ranks) <= set(global_process_set.ranks):
        raise InvalidArgumentError(
            f"process_set: expected ranks of 0..{everyone.world_size - 1}, got {made.ranks}"
        )
    if any(made.ranks == other.ranks for other in (*_added, global_process_set)):
        raise InvalidArgumentError(f"Attempted to add a duplicate process set: {made}")
    number = next(_ids)
    if made.included():
        with internal_errors():
            made._communicator = everyone.subset(made.ranks, f"{everyone.name}/set-{number}")
    made.process_set_id = number
    _added.append(made)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Close a process set, on all ranks; return False for the global one and for unknown ones."""
    if process_set not in _added:
        return False
    _added.remove(process_set)
    _close(process_set)
    return True


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have called it."""
    with internal_errors():
        process_set.communicator.barrier()


def _close(process_set: ProcessSet) -> None:
    communicator, process_set._communicator = process_set._communicator, None
    process_set.process_set_id = None
    if communicator is not None:
        communicator.close()
