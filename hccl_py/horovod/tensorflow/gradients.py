"""DistributedGradientTape, and how it and the optimizer of Keras reduce gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.compression import Compressor
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, gradient_reduction
from hccl_py.horovod.signatures import DescribedCall
from hccl_py.horovod.tensorflow.calls import Compression, run


@dataclass(frozen=True)
class TapeReducer:
    """How the gradients of a step are reduced over ranks."""

    call: Reduce
    compression: type[Compressor]
    sparse_as_dense: bool

    def reduce(self, gradients: Sequence[Any]) -> list[Any]:
        """Return reduced gradients; None stays None, and must be None on all ranks."""
        members = self.call.process_set
        if not members.included() or members.communicator.world_size == 1:
            return list(gradients)
        present = [it for it in gradients if it is not None]
        if self.sparse_as_dense:
            present = [tf.convert_to_tensor(gradient) for gradient in present]
        reduced = iter(run(DescribedCall(self.call, self.compression), present)[0])
        return [None if gradient is None else next(reduced) for gradient in gradients]


def DistributedGradientTape(  # noqa: N802  # the name is Horovod's
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape of the same class whose `gradient` reduces over all ranks.

    It takes over the record of `gradtape`; do not use that tape any more. All gradients of a call
    are reduced together; `num_groups` and `groups` are ignored.

    Raises:
        ValueError: an argument is invalid.
    """
    kind = type(gradtape)
    made: Any = object.__new__(type(kind.__name__, (_DistributedTape, kind), {}))
    vars(made).update(vars(gradtape))
    call = Reduce(gradient_reduction(op, gradient_predivide_factor), process_set)
    made._reducer = TapeReducer(call, compression, sparse_as_dense)
    return made


class _DistributedTape:
    _reducer: TapeReducer

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the gradients of this rank, and reduce them over ranks."""
        found = super().gradient(target, sources, *args, **kwargs)  # type: ignore[misc]
        reduced = self._reducer.reduce(tf.nest.flatten(found))
        return tf.nest.pack_sequence_as(found, reduced)
