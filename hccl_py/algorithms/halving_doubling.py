"""Recursive halving, then doubling: least traffic in log2 n steps."""

from typing import NamedTuple

from hccl_py.plan.language import Chunk, PlanBuilder, data


class _Step(NamedTuple):
    """Of the chunks that a rank still reduces, the ones it gives away and the ones it keeps."""

    target: int  # reduces the given chunks
    given: list[Chunk]
    source: int  # gives its part of the kept chunks
    kept: list[Chunk]


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Every rank passes on half of its chunks until one is left, then gathers in reverse.

    With n a power of two, partners swap halves. With another n, a rank keeps the chunks from its
    own on, and passes the later ones to the rank at their beginning. A range that wraps round
    behind the last chunk takes two messages.

    Cost: 2 log2 n steps, rounded up; 2(n-1)/n of the data sent.
    Source: R. Rabenseifner, Optimization of collective reduction operations, 2004; for any n,
        J. L. Traeff, Optimal, non-pipelined reduce-scatter and allreduce algorithms, 2024.
    """
    steps = _swaps(me, n) if n & (n - 1) == 0 else _skips(me, n)
    for target, given, source, kept in steps:
        for chunk in given:
            plan.send([target], chunk)
        for chunk in kept:
            plan.recv_reduce([source], chunk)
    for target, given, source, kept in reversed(steps):
        for chunk in kept:
            plan.send([source], chunk)
        for chunk in given:
            plan.recv(target, chunk)


def _swaps(me: int, n: int) -> list[_Step]:
    # With `length` chunks left, I own the chunks whose number differs from mine in the low bits
    # only.
    def owned(rank: int, length: int) -> list[Chunk]:
        begin = rank - rank % length
        return [data[begin : begin + length]]

    lengths = [n >> step for step in range(1, n.bit_length())]
    partners = [(me ^ length, length) for length in lengths]
    return [_Step(rank, owned(rank, left), rank, owned(me, left)) for rank, left in partners]


def _skips(me: int, n: int) -> list[_Step]:
    steps, left = [], n  # the chunks me .. me + left - 1, modulo n
    while left > 1:
        skip = (left + 1) // 2
        target, source = (me + skip) % n, (me - skip) % n
        steps.append(_Step(target, _row(target, left - skip, n), source, _row(me, left - skip, n)))
        left = skip
    return steps


def _row(begin: int, length: int, n: int) -> list[Chunk]:
    end = begin + length
    return [data[begin:end]] if end <= n else [data[begin:n], data[0 : end - n]]
