"""Symbolic values: a contribution, or a reduction of values as a tree.

Every distinct tree gets one number (hash consing), so that comparing, sending and hashing a value
costs the same whether it is a leaf or the reduction of all ranks. Two values with the same number
have the same bits for any dtype and reduce op; two trees over the same leaves need not.
"""

from collections.abc import Sequence

from hccl_py.plan.contract import Contribution


class Values:
    """The values of one simulation."""

    def __init__(self) -> None:
        """Know no value yet."""
        self._numbers: dict[Contribution | tuple[int, ...], int] = {}
        self._trees: list[Contribution | tuple[int, ...]] = []
        self._blocks: list[int] = []
        self._ranks: list[int] = []

    def leaf(self, contribution: Contribution) -> int:
        """Return the number of a contribution."""
        return self._number(contribution, contribution.block, 1 << contribution.rank)

    def reduced(self, operands: Sequence[int]) -> int:
        """Return the number of the reduction of `operands`, in this order.

        Raises:
            ValueError: if they reduce different blocks, or a rank would count twice.
        """
        block, ranks = self._blocks[operands[0]], 0
        for operand in operands:
            if self._blocks[operand] != block:
                other = self._blocks[operand]
                raise ValueError(f"reduces block {block} together with block {other}")
            if ranks & self._ranks[operand]:
                twice = self._listed(ranks & self._ranks[operand])
                raise ValueError(f"counts the contribution of rank {twice} twice")
            ranks |= self._ranks[operand]
        return self._number(tuple(operands), block, ranks)

    def block(self, value: int) -> int:
        """Return which block a value is (a reduction of)."""
        return self._blocks[value]

    def missing(self, value: int, world_size: int) -> str:
        """List the ranks whose contribution is not in `value`; empty where all are."""
        return self._listed(~self._ranks[value] & ((1 << world_size) - 1))

    def describe(self, value: int) -> str:
        """Spell a value: `2.0` is block 0 of rank 2, `(0.0 + 1.0)` a reduction."""
        tree = self._trees[value]
        if isinstance(tree, Contribution):
            return f"{tree.rank}.{tree.block}"
        return f"({' + '.join(self.describe(operand) for operand in tree)})"

    def _number(self, tree: Contribution | tuple[int, ...], block: int, ranks: int) -> int:
        number = self._numbers.setdefault(tree, len(self._trees))
        if number == len(self._trees):
            self._trees.append(tree)
            self._blocks.append(block)
            self._ranks.append(ranks)
        return number

    @staticmethod
    def _listed(ranks: int) -> str:
        return ", ".join(str(rank) for rank in range(ranks.bit_length()) if ranks >> rank & 1)
