"""Train a small convolutional network on real handwritten digits, on any number of ranks.

    hccl-launch --nnodes 2 --nproc-per-node 8 examples/01_train_digits.py
    torchrun --nproc-per-node 4 examples/01_train_digits.py --backend gloo
    python examples/01_train_digits.py
    hccl-launch --nproc-per-node 4 --max-restarts 3 examples/01_train_digits.py

The data: 1,797 images of 8 x 8 pixels that scikit-learn ships; a fifth is held out. Every rank
computes the gradient of its share of each batch. DistributedDataParallel averages the gradients, so
all ranks hold the same model after every step.

Rank 0 saves a checkpoint after every epoch. With --max-restarts, kill a rank: the launcher starts
all ranks again, they resume from the checkpoint and reach the same bits.
"""

import argparse
import gc
import io
import json
import os
import sys
import time

RANK = int(os.environ.setdefault("RANK", "0"))
WORLD_SIZE = int(os.environ.setdefault("WORLD_SIZE", "1"))
JOB = os.environ.get("TORCHELASTIC_RUN_ID", "none")  # restarted ranks are of the same job
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "0")  # a single rank takes any free port
TRAINING_IMAGES = 1437


class Parser(argparse.ArgumentParser):
    def error(self, message):
        # Every rank exits here; hccl-launch prints the reason once.
        sys.exit(f"{self.prog}: error: {message}\n{self.format_usage()}")


def parse_args():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="hccl", help="hccl (default), gloo, ...")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, help="images of one step, all ranks together")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default="checkpoints/digits.pt", metavar="PATH")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--loss-log", metavar="PATH", help="write every step's loss as JSON lines")
    args = parser.parse_args()
    if args.batch_size is None:
        args.batch_size = max(128 // WORLD_SIZE, 1) * WORLD_SIZE
    for name in ("epochs", "lr"):
        if not getattr(args, name) > 0:
            parser.error(f"argument --{name}: expected more than 0, got {getattr(args, name)}")
    if not 0 < args.batch_size <= TRAINING_IMAGES or args.batch_size % WORLD_SIZE:
        expected = f"a multiple of {WORLD_SIZE} (ranks) from {WORLD_SIZE} to {TRAINING_IMAGES}"
        parser.error(f"argument --batch-size: expected {expected}, got {args.batch_size}")
    return args


def tell(line):
    """Print a line on rank 0, at once."""
    if RANK == 0:
        print(line, flush=True)


args = parse_args()  # before torch is imported: a typing mistake is reported at once
tell(f"importing torch, on {WORLD_SIZE} rank{'s' * (WORLD_SIZE > 1)}")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def load_images():
    """Return training and held-out data. Rank 0 reads it and broadcasts it."""
    data = torch.empty(1797, 65)
    if RANK == 0:
        from sklearn.datasets import load_digits  # takes a second: not on every rank

        images, labels = load_digits(return_X_y=True)
        data[:, :64], data[:, 64] = torch.from_numpy(images) / 16, torch.from_numpy(labels)
    dist.broadcast(data, src=0)
    data = data[torch.randperm(len(data), generator=torch.Generator().manual_seed(args.seed))]
    images, labels = data[:, :64].reshape(-1, 1, 8, 8), data[:, 64].long()
    cut = TRAINING_IMAGES
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def build_model():
    torch.manual_seed(args.seed)
    features = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1)]
    return nn.Sequential(*features, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))


def train_epoch(model, optimizer, images, labels, order):
    """Train on all images once, in the given order; return the loss of every step."""
    losses = []
    # Ranks must have equal shares for the mean of their gradients to be the gradient of the mean.
    for step in range(len(order) // args.batch_size):
        mine = order[step * args.batch_size :][: args.batch_size][RANK::WORLD_SIZE]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    dist.all_reduce(losses)
    return (losses / WORLD_SIZE).tolist()


@torch.no_grad()
def accuracy(model, images, labels):
    mine = slice(RANK, None, WORLD_SIZE)
    correct = (model(images[mine]).argmax(1) == labels[mine]).sum()
    dist.all_reduce(correct)
    return correct.item() / len(labels)


def save(state):
    """Replace the checkpoint in one step: a crash leaves the old one or the new one."""
    os.makedirs(os.path.dirname(args.checkpoint) or ".", exist_ok=True)
    torch.save(state, args.checkpoint + ".partial")
    os.replace(args.checkpoint + ".partial", args.checkpoint)


def load():
    """Return the checkpoint of this job's last attempt, or any checkpoint with --resume.

    Rank 0 reads it and broadcasts it: other nodes need not see its disk.
    """
    content = [None]
    if RANK == 0 and os.path.exists(args.checkpoint):
        with open(args.checkpoint, "rb") as file:
            content = [file.read()]
    dist.broadcast_object_list(content, src=0)
    if content[0] is None:
        return args.resume and sys.exit(f"--resume: there is no checkpoint {args.checkpoint}")
    state = torch.load(io.BytesIO(content[0]), weights_only=True)
    return state if args.resume or state.get("job") == JOB != "none" else None


def report(epoch, losses, correct, elapsed_s):
    tell(
        f"epoch {epoch:2}/{args.epochs}  loss {sum(losses) / len(losses):.4f}  "
        f"held-out accuracy {correct:.2%}  "
        f"{len(losses) * args.batch_size / elapsed_s:,.0f} images/s"
    )


def summary(correct):
    """Return a line with ranks, accuracy and checkpoint."""
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    emulated = "HCCL_NODE_ID" in os.environ
    ranks_here = WORLD_SIZE if emulated else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cores = len(os.sched_getaffinity(0))
    shared = f" ({ranks_here} ranks shared {cores} cores)" if ranks_here > cores else ""
    where = "1 node" if nodes == 1 else f"{nodes} {'emulated ' * emulated}nodes"
    return (
        f"{WORLD_SIZE} rank{'s' * (WORLD_SIZE > 1)} on {where} reached {correct:.2%} held-out "
        f"accuracy{shared}; the checkpoint is {args.checkpoint}"
    )


def write_losses(epoch, losses):
    """Append to the log; it has an epoch twice if a crash came before the epoch's checkpoint."""
    with open(args.loss_log, "w" if epoch == 1 else "a") as log:
        for step, loss in enumerate(losses):
            print(json.dumps({"epoch": epoch, "step": step, "loss": loss}), file=log)


def main():
    torch.set_num_threads(1)  # the ranks are the parallelism
    tell(f"connecting by {args.backend}")
    dist.init_process_group(args.backend)
    training, held_out = load_images()
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    shuffle = torch.Generator().manual_seed(args.seed)  # the same order of images on every rank
    done, state = 0, load()
    if state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        shuffle.set_state(state["shuffle"])
        done = state["epoch"]
        tell(f"resumed from {args.checkpoint} after epoch {done}")
    parallel_model = DistributedDataParallel(model)
    correct = accuracy(model, *held_out)
    tell(f"training {args.epochs - done} epochs")
    for epoch in range(done + 1, args.epochs + 1):
        start = time.perf_counter()
        order = torch.randperm(TRAINING_IMAGES, generator=shuffle)
        losses = train_epoch(parallel_model, optimizer, *training, order)
        elapsed_s = time.perf_counter() - start
        correct = accuracy(model, *held_out)
        if RANK == 0:
            if args.loss_log:
                write_losses(epoch, losses)
            weights = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save({**weights, "shuffle": shuffle.get_state(), "epoch": epoch, "job": JOB})
            report(epoch, losses, correct, elapsed_s)
    tell(summary(correct))
    dist.destroy_process_group()
    gc.freeze()  # else Python collects torch's objects at exit: a second of CPU on each rank


if __name__ == "__main__":
    main()
