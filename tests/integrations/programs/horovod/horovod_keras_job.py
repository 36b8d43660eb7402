"""A program for Horovod and Keras but for its imports; prints the sum of the parameters."""

import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import hccl_py.horovod.keras as hvd

hvd.init()
values, target = load_digits(return_X_y=True)
values, target = values[:1024].astype(np.float32) / 16, target[:1024]
mine = slice(hvd.rank(), None, hvd.size())


def train(seed: int, *callbacks: keras.callbacks.Callback) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    every = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), *callbacks]
    settings = {"batch_size": 128 // hvd.size(), "epochs": 3, "shuffle": False, "verbose": 0}
    model.fit(values[mine], target[mine], callbacks=every, **settings)
    return model


def total(model: keras.Model) -> float:
    return float(sum(np.abs(variable).sum() for variable in model.trainable_variables))


average = hvd.callbacks.MetricAverageCallback()
slower = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)
warmer = hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2)
model = train(0, average, slower)
others = hvd.allgather_object(total(train(hvd.rank(), warmer)))
assert len(set(others)) == 1, f"rank 0's first parameters are not everybody's: {others}"
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "model.keras")
    model.save(path)
    plain = keras.models.load_model(path)
    loaded = hvd.load_model(path)
    loaded.fit(values[mine][:32], target[mine][:32], verbose=0)
assert type(plain.optimizer) is keras.optimizers.SGD, "a saved model needs no hccl-py"
assert float(plain.optimizer.iterations) == 8 * 3
assert len(set(hvd.allgather_object(total(loaded)))) == 1
assert "torch" not in sys.modules
history = model.history.history
print(f"model {total(model):.3f} loss {history['loss'][-1]:.4f} rates {history['lr']}")
print(f"warmup {warmer.model.history.history['lr']}")
