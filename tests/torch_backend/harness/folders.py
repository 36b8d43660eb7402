"""Folders that the ranks of a check share."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch.distributed as dist


@contextmanager
def folder_of_all(rank: int) -> Iterator[str]:
    """Return a new folder that all ranks know; it is gone when rank 0 is done with it."""
    with ExitStack() as stack:
        made = None
        if rank == 0:
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="features-"))
        told = [made]
        dist.broadcast_object_list(told, 0)
        yield str(told[0])
        # Others may still be at it, unless they are ranks of another job by now.
        if dist.is_initialized():
            dist.barrier()
