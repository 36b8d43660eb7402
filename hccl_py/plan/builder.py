"""What an algorithm gets as `plan`: it appends ops, and knows root and nodes."""

from collections.abc import Iterable
from dataclasses import replace

from hccl_py.plan.chunks import OPEN_END, Chunk
from hccl_py.plan.errors import PlanError
from hccl_py.plan.ops import Op, OpKind, Plan

Nodes = tuple[tuple[int, ...], ...]
"""The ranks of every node, in order of local rank."""


class PlanBuilder:
    """Collects the ops of one rank.

    Ops without peers are dropped, so that an algorithm need not treat one rank, or a node of one
    rank, apart.
    """

    def __init__(self, header: Plan, nodes: Nodes) -> None:
        """Start an empty plan.

        Args:
            header: a plan without ops: who writes, for what, on buffers cut how.
            nodes: the ranks of every node.
        """
        self._header = header
        self._nodes = nodes
        self._ops: list[Op] = []

    @property
    def root(self) -> int:
        """The root of a rooted collective."""
        if self._header.root is None:
            raise PlanError(self._header.rank, None, f"{self._header.collective} has no root")
        return self._header.root

    @property
    def nodes(self) -> Nodes:
        """The ranks of every node, in order of local rank."""
        return self._nodes

    def send(self, peers: Iterable[int], chunk: Chunk) -> None:
        """Send `chunk` to each peer: one work request, which completes in the background."""
        if everyone := tuple(peers):
            self._ops.append(Op(OpKind.SEND, everyone, None, self._closed(chunk)))

    def recv(self, peer: int, chunk: Chunk) -> None:
        """Put the next message of `peer` into `chunk`."""
        self._ops.append(Op(OpKind.RECV, (peer,), self._closed(chunk)))

    def recv_reduce(self, peers: Iterable[int], chunk: Chunk) -> None:
        """Make `chunk` the reduction, in rank order, of itself and the peers' next messages."""
        if everyone := tuple(sorted(peers)):
            self._ops.append(Op(OpKind.RECV_REDUCE, everyone, self._closed(chunk)))

    def copy(self, dst: Chunk, src: Chunk) -> None:
        """Copy `src` to `dst` on this rank."""
        self._ops.append(Op(OpKind.COPY, (), self._closed(dst), self._closed(src)))

    def scratch(self, index: int, like: Chunk) -> Chunk:
        """Name temporary memory of the engine.

        Args:
            index: slot number, from 0; a slot is reused by naming it again.
            like: the slot gets the length of this chunk.
        """
        return self._closed(like).in_scratch(index)

    def finish(self) -> Plan:
        """Return the plan."""
        return replace(self._header, ops=tuple(self._ops))

    def _closed(self, chunk: Chunk) -> Chunk:
        if chunk.end != OPEN_END:
            return chunk
        return chunk._replace(end=self._header.shape.parts(chunk.buffer))
