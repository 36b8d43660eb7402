"""Ring attention: each rank has a part of a sequence; keys and values travel round."""

import math

import torch
import torch.distributed as dist
from features import feature
from torch import nn

SECTION = "Pipelines and ring attention"
LENGTH = 12  # divisible by 2, 3 and 4


def queries_keys_values() -> tuple[torch.Tensor, ...]:
    """Return what attention is given: (batch, heads, length, width), the same on every rank."""
    random = torch.Generator().manual_seed(1)
    return tuple(torch.randn(2, 2, LENGTH, 4, generator=random) for _ in range(3))


def passed_on(tensors: list[torch.Tensor], rank: int, world_size: int) -> list[torch.Tensor]:
    """Give these to the next rank, and return what the previous one gave."""
    there, back = (rank + 1) % world_size, (rank - 1) % world_size
    got = [torch.empty_like(tensor) for tensor in tensors]
    ops = [dist.P2POp(dist.isend, tensor, there) for tensor in tensors]
    ops += [dist.P2POp(dist.irecv, tensor, back) for tensor in got]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return got


class RingAttention(torch.autograd.Function):
    """Causal attention of this rank's queries to the keys and values of all."""

    @staticmethod
    def forward(ctx, queries, keys, values):  # type: ignore[no-untyped-def]
        rank, world_size = dist.get_rank(), dist.get_world_size()
        total = torch.zeros_like(queries)
        norm = queries.new_full((*queries.shape[:-1], 1), -math.inf)  # log of the sum so far
        block = [keys, values]
        for step in range(world_size):
            scores = masked_scores(queries, block[0], rank, (rank - step) % world_size)
            ours = torch.logsumexp(scores, -1, keepdim=True)
            both = torch.logaddexp(norm, ours)
            total = total * (norm - both).exp() + (scores - both).exp() @ block[1]
            norm = both
            if step + 1 < world_size:
                block = passed_on(block, rank, world_size)
        ctx.save_for_backward(queries, keys, values, total, norm)
        return total

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        queries, keys, values, total, norm = ctx.saved_tensors
        rank, world_size = dist.get_rank(), dist.get_world_size()
        of_queries = torch.zeros_like(queries)
        along = (gradient * total).sum(-1, keepdim=True)
        # Keys and values go round with their gradients, and are at home again in the end.
        block = [keys, values, torch.zeros_like(keys), torch.zeros_like(values)]
        for step in range(world_size):
            keys, values, of_keys, of_values = block
            weights = (masked_scores(queries, keys, rank, (rank - step) % world_size) - norm).exp()
            of_scores = weights * (gradient @ values.mT - along) / math.sqrt(queries.shape[-1])
            of_queries += of_scores @ keys
            of_keys += of_scores.mT @ queries
            of_values += weights.mT @ gradient
            block = passed_on(block, rank, world_size)
        return of_queries, block[2], block[3]


def masked_scores(queries: torch.Tensor, keys: torch.Tensor, rank: int, owner: int) -> torch.Tensor:
    """Return the scores of `owner`'s keys; minus infinity where they come after the query."""
    scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
    length = queries.shape[-2]
    later = torch.arange(length) + owner * length > torch.arange(length)[:, None] + rank * length
    # Not every row of a block has a key to look at, but the first block of each does.
    return scores.masked_fill(later, -math.inf)


def attention_alone(world_size: int) -> list[list[torch.Tensor]]:
    inputs = [tensor.requires_grad_() for tensor in queries_keys_values()]
    outputs = nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
    outputs.pow(3).sum().backward()
    whole = [outputs.detach(), *(tensor.grad for tensor in inputs)]
    parts = [tensor.chunk(world_size, dim=2) for tensor in whole]
    return [[part[rank] for part in parts] for rank in range(world_size)]


def attend(rank: int, world_size: int) -> list[torch.Tensor]:
    mine = [
        tensor.chunk(world_size, dim=2)[rank].clone().requires_grad_()
        for tensor in queries_keys_values()
    ]
    outputs = RingAttention.apply(*mine)
    outputs.pow(3).sum().backward()
    return [outputs.detach(), *(tensor.grad for tensor in mine)]


@feature(
    SECTION, "ring attention over batch_isend_irecv, 4 ranks", world_size=4, alone=attention_alone
)
def test_ring_attention_of_four(rank: int, world_size: int) -> list[torch.Tensor]:
    return attend(rank, world_size)
