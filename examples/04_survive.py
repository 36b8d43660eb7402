"""Lose a rank in the middle of training and continue with the others.

    python examples/04_survive.py
    python examples/04_survive.py --ranks 8 --victim 0

A linear classifier learns handwritten digits (scikit-learn's, 8 x 8 pixels) on several processes,
with numpy alone. Half-way one of them is killed. The others get an error that names it, shrink the
communicator, share the images among the ranks that are left, and continue.
"""

import argparse
import multiprocessing
import os
import signal

import numpy as np

from hccl_py import Communicator, CommunicatorError

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--ranks", type=int, default=4)
parser.add_argument("--victim", type=int, default=2, help="the rank that is killed")
parser.add_argument("--steps", type=int, default=200)


def load_images():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return np.hstack([images / 16, np.ones((len(images), 1))]), labels


def gradient_of(weights, images, labels):
    """Return the gradient of the cross entropy; the last row has the loss and the hits."""
    scores = images @ weights
    chances = np.exp(scores - scores.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    last_row = np.zeros((1, 10))
    last_row[0, :2] = -np.log(chances[rows, labels]).sum(), (scores.argmax(1) == labels).sum()
    chances[rows, labels] -= 1
    return np.vstack([images.T @ chances, last_row])


def train(comm, args, victim):
    """Train, and shrink the communicator each time a rank is lost."""
    images, labels = load_images()
    step, weights = np.zeros(1, np.int64), np.zeros((65, 10))
    while step < args.steps:
        mine = slice(comm.rank, None, comm.world_size)
        try:
            if victim and step == args.steps // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            total = gradient_of(weights, images[mine], labels[mine])
            comm.all_reduce(total)
        except CommunicatorError as error:
            comm = comm.shrink()
            # The failed call may have finished on some ranks, so all continue where rank 0 is.
            comm.broadcast(step, root=0)
            comm.broadcast(weights, root=0)
            if comm.rank == 0:
                print(f"step {step[0]}: {error}", flush=True)
                print(f"continuing as {comm.name} with {comm.world_size} ranks", flush=True)
            continue
        weights -= 2.0 * total[:-1] / len(labels)
        step += 1
        if comm.rank == 0 and step % 25 == 0:
            loss, hits = total[-1, :2] / len(labels)
            print(
                f"step {step[0]}/{args.steps} on {comm.world_size} ranks: "
                f"loss {loss:.3f}, accuracy {hits:.1%}",
                flush=True,
            )
    comm.close()


def run_rank(rank, port, args):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(args.ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the parent hosts the store
    train(Communicator(timeout_s=60), args, victim=rank == args.victim)


def main():
    args = parser.parse_args()
    from torch.distributed import TCPStore

    # torchrun and hccl-launch end all ranks when one dies, so this process starts the ranks itself.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    start = multiprocessing.get_context("spawn").Process
    ranks = [start(target=run_rank, args=(rank, store.port, args)) for rank in range(args.ranks)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    survivors = [process.exitcode for process in ranks if process.exitcode != -signal.SIGKILL]
    raise SystemExit(max(survivors))


if __name__ == "__main__":
    main()
