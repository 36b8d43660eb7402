"""Horovod's DistributedOptimizer for Keras 3: gradients are reduced over ranks, then applied."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import keras
from keras.src.trainers import trainer

from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.compression import Compressor
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, gradient_reduction
from hccl_py.horovod.tensorflow.calls import Compression
from hccl_py.horovod.tensorflow.gradients import TapeReducer
from hccl_py.transport.errors import InvalidArgumentError


def DistributedOptimizer(  # noqa: N802  # the name is Horovod's
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optimizer of the same class that reduces gradients over all ranks.

    It takes over the state of `optimizer`; do not use that one any more. All gradients of a step
    are reduced together; `num_groups` and `groups` are ignored. A model that is compiled with it
    runs without XLA.

    Args:
        optimizer: of Keras 3, which runs on TensorFlow.
        compression: the element type that gradients are sent in.
        sparse_as_dense: reduce IndexedSlices as dense tensors.
        gradient_predivide_factor: with Average, divide by it before the sum, by the rest after.
        op: Average, Sum, Min, Max or Product.
        process_set: its ranks reduce; other ranks step with their own gradients.

    Raises:
        ValueError: an argument is invalid.
        NotImplementedError: backward_passes_per_step > 1.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgumentError(
            f"optimizer: expected one of Keras 3, got {type(optimizer).__module__}."
            f"{type(optimizer).__name__}"
        )
    if keras.backend.backend() != "tensorflow":
        raise InvalidArgumentError(
            f"keras: expected the backend tensorflow, got {keras.backend.backend()}; set "
            "KERAS_BACKEND=tensorflow"
        )
    if backward_passes_per_step != 1:
        raise NotImplementedError(
            "backward_passes_per_step: give the optimizer gradient_accumulation_steps instead"
        )
    _run_without_xla()
    kind = type(optimizer)
    # Saved models name Keras's class, so that they load without hccl-py.
    made: Any = object.__new__(
        type(kind.__name__, (_DistributedKeras, kind), {"__module__": kind.__module__})
    )
    vars(made).update(vars(optimizer))
    call = Reduce(gradient_reduction(op, gradient_predivide_factor), process_set)
    reducer = TapeReducer(call, compression, sparse_as_dense)
    object.__setattr__(made, "_hccl_reducer", reducer)
    return made


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Load a compiled model, and make its optimizer a DistributedOptimizer."""
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    model.jit_compile = False
    return model


class _DistributedKeras:
    _hccl_reducer: TapeReducer

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Reduce gradients over ranks, and change the variables by them."""
        reduced = self._hccl_reducer.reduce(grads)
        return super().apply(reduced, trainable_variables)  # type: ignore[misc]


@cache
def _run_without_xla() -> None:
    """Keep Keras from compiling a model with a distributed optimizer by XLA.

    XLA cannot call back to Python, and Keras uses it by default for models that support it.
    """
    supports: Callable[[Any], bool] = trainer.model_supports_jit

    def model_supports_jit(model: Any) -> bool:
        return not isinstance(getattr(model, "optimizer", None), _DistributedKeras) and supports(
            model
        )

    trainer.model_supports_jit = model_supports_jit
