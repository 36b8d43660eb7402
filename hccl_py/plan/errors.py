"""The one error of this package: an algorithm wrote a plan that does not hold."""


class PlanError(ValueError):
    """A plan that cannot run or does not do what its collective promises.

    Attributes:
        rank: whose plan it is.
        op_index: the op at fault, counted from 0; None where no single op is.
    """

    def __init__(self, rank: int, op_index: int | None, message: str) -> None:
        """Keep the place and put it in front of the message."""
        place = f"rank {rank}" if op_index is None else f"rank {rank}, op {op_index}"
        super().__init__(f"{place}: {message}")
        self.rank = rank
        self.op_index = op_index
