"""The collectives, each as the contract that every algorithm for it has to keep.

`all_reduce`, `broadcast`, `reduce` and `barrier` work on `data`, in place. The others read `input`
and write `output`, blocks that are never cut. What a non-root rank holds in `data` before a
broadcast is its own contribution too: no algorithm may let it through.
"""

from hccl_py.plan import Contract, Contribution, Seat, Total


def _at_root(seat: Seat, blocks: int) -> int:
    return blocks if seat.rank == seat.root else 0


def _root(seat: Seat) -> int:
    assert seat.root is not None
    return seat.root


def _one(_seat: Seat) -> int:
    return 1


def _per_rank(seat: Seat) -> int:
    return seat.world_size


COLLECTIVES: dict[str, Contract] = {
    contract.name: contract
    for contract in (
        Contract(
            "all_reduce",
            promise=lambda _seat, chunk: Total(chunk),
            one_length=True,
        ),
        Contract(
            "broadcast",
            promise=lambda seat, chunk: Contribution(_root(seat), chunk),
            rooted=True,
            one_length=True,
        ),
        Contract(
            "reduce",
            promise=lambda seat, chunk: (
                Total(chunk) if seat.rank == seat.root else Contribution(seat.rank, chunk)
            ),
            rooted=True,
            one_length=True,
        ),
        Contract(
            "all_gather",
            input_blocks=_one,
            output_blocks=_per_rank,
            promise=lambda _seat, block: Contribution(block, 0),
            shared_block=lambda seat: (0, seat.rank),
        ),
        Contract(
            "reduce_scatter",
            input_blocks=_per_rank,
            output_blocks=_one,
            promise=lambda seat, _block: Total(seat.rank),
            shared_block=lambda seat: (seat.rank, 0),
            one_length=True,
        ),
        Contract(
            "all_to_all",
            input_blocks=_per_rank,
            output_blocks=_per_rank,
            promise=lambda seat, block: Contribution(block, seat.rank),
        ),
        Contract(
            "gather",
            input_blocks=_one,
            output_blocks=lambda seat: _at_root(seat, seat.world_size),
            promise=lambda _seat, block: Contribution(block, 0),
            shared_block=lambda seat: (0, seat.rank) if seat.rank == seat.root else None,
            rooted=True,
        ),
        Contract(
            "scatter",
            input_blocks=lambda seat: _at_root(seat, seat.world_size),
            output_blocks=_one,
            promise=lambda seat, _block: Contribution(_root(seat), seat.rank),
            shared_block=lambda seat: (seat.rank, 0) if seat.rank == seat.root else None,
            rooted=True,
        ),
        Contract(
            "barrier",
            promise=lambda _seat, _chunk: None,
            one_length=True,
            meets=True,
        ),
    )
}
"""Every collective by name."""
