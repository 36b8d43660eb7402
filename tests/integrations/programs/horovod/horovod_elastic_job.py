"""Elastic training with Keras: rank 1 of 3 dies, the others go on from the last commit."""

import os
import signal

import keras
import numpy as np

import hccl_py.horovod.keras as hvd


class Death(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if hvd.size() == 3 and hvd.rank() == 1 and batch == 5:
            os.kill(os.getpid(), signal.SIGKILL)


hvd.init()
keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)), "mse")
seen: list[tuple[int, int]] = []


@hvd.elastic.run
def train(state: hvd.elastic.KerasState) -> None:
    seen.append((hvd.size(), int(model.optimizer.iterations)))
    values = np.random.default_rng(hvd.rank()).normal(size=(40, 4))
    callbacks = [Death(), hvd.elastic.CommitStateCallback(state, batches_per_commit=2)]
    model.fit(values, values.sum(axis=1), batch_size=4, verbose=0, callbacks=callbacks)


train(hvd.elastic.KerasState(model, step=0))
total = sum(np.abs(variable).sum() for variable in model.variables)
print(f"began {seen} ended {int(model.optimizer.iterations)} model {total:.6f}")
