"""Elastic training of TensorFlow's models: `run`, `TensorFlowState`, `TensorFlowKerasState`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hccl_py.horovod import elastic
from hccl_py.horovod.elastic import ObjectState as ObjectState
from hccl_py.horovod.elastic import Result
from hccl_py.horovod.elastic import State as State
from hccl_py.horovod.errors import internal_errors
from hccl_py.horovod.process_sets import global_process_set
from hccl_py.horovod.tensorflow.calls import broadcast_variables


def run(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that the remaining ranks repeat when one of them is lost.

    See `hccl_py.horovod.elastic.run`. A tf.function raises an error of TensorFlow if a collective
    failed, which is handled too.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Result:
        try:
            return function(*args, **kwargs)
        except tf.errors.OpError as error:
            if "HorovodInternalError" in error.message:
                with internal_errors():
                    global_process_set.communicator.barrier()  # raises what failed before
            raise

    return elastic.run(wrapper)


class TensorFlowState(ObjectState):
    """Variables, and other Python objects, each an attribute.

    Args:
        variables: of TensorFlow or Keras, the same on all ranks.
        session: not used.
        objects: any other objects by name.
    """

    def __init__(self, variables: Sequence[Any], session: None = None, **objects: Any) -> None:
        self.variables = list(variables)
        super().__init__(**objects)

    def _copied(self) -> list[Any]:
        return [variable.numpy().copy() for variable in self.variables]

    def _load(self, copies: list[Any]) -> None:
        for variable, value in zip(self.variables, copies, strict=True):
            variable.assign(value)

    def _broadcast(self) -> None:
        broadcast_variables(self.variables, root_rank=0)


class TensorFlowKerasState(TensorFlowState):
    """A model of Keras, its optimizer, and other Python objects, each an attribute.

    Args:
        model: of Keras, built.
        optimizer: None: the one with which the model was compiled.
        backend: not used.
        objects: any other objects by name.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: object = None, **objects: Any
    ) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer or model.optimizer
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__([*model.variables, *self.optimizer.variables], **objects)
