"""The soak: reproducible, well for some seconds, and not blind to what it looks for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from thread_ranks import ThreadRanks

from hccl_py.bench.soak import main
from hccl_py.bench.soak_calls import Caller, WrongResult
from hccl_py.bench.soak_plan import (
    KINDS,
    WORLD,
    Call,
    Fault,
    Generation,
    GroupOpens,
    Limits,
    draw,
)
from hccl_py.bench.soak_rank import Outcome, Story
from hccl_py.bench.soak_report import Totals, judge

LIMITS = Limits(5, 1 << 20, 120, ("kill", "abort", "reset"))
CALL = Call(1, WORLD, "all_reduce", "int32", "SUM", 1000, 0, "plain", False, False, 0)


def test_draw_same_seed_gives_the_same_generation() -> None:
    assert draw(7, 3, LIMITS) == draw(7, 3, LIMITS)
    assert draw(7, 3, LIMITS) != draw(7, 4, LIMITS) != draw(8, 4, LIMITS)


def test_draw_thirty_generations_have_every_kind_groups_and_faults() -> None:
    drawn = [draw(1, index, LIMITS) for index in range(30)]
    events = [event for generation in drawn for event in generation.events]
    assert {event.kind for event in events if isinstance(event, Call)} == {*KINDS, "barrier"}
    assert any(isinstance(event, GroupOpens) for event in events)
    assert {one.fault.kind for one in drawn if one.fault} == {"kill", "abort", "reset"}


@pytest.mark.parametrize("kind", KINDS)
def test_caller_finds_one_wrong_bit_in_any_kind_of_call(kind: str) -> None:
    with ThreadRanks("aab") as ranks:

        def spoil(communicator: object) -> None:
            running = Caller(communicator, seed=1, index=2).start(replace(CALL, kind=kind))
            running.finish()
            running._buffers[0].inside[3999] ^= 1
            with pytest.raises(WrongResult, match="the first at 3999"):
                running.finish()
            running._buffers[0].inside[3999] ^= 1
            running._buffers[0]._raw[-1] ^= 1
            with pytest.raises(WrongResult, match="beside its buffer"):
                running.finish()

        ranks.run(spoil)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint64"])
def test_caller_average_and_sum_agree_with_the_engine(dtype: str) -> None:
    with ThreadRanks("abb") as ranks:
        for op in ("SUM", "AVG", "PRODUCT", "MAX"):
            call = replace(CALL, dtype=dtype, op=op, tensor=True)
            ranks.run(lambda communicator, c=call: Caller(communicator, 1, 2).start(c).finish())


def dead(text: str = "rank 1 died", rank: int = 1, at_s: float = 10.5) -> Story:
    told = (rank, "host", 1, "died", "all_reduce()", 1)
    return Story(WORLD, "PeerLostError", text, told, at_s)


def killed() -> Generation:
    fault = Fault("kill", 5, 1, WORLD, 0.0)
    return replace(draw(1, 0, LIMITS), order=(0, 1, 2), nodes=("a", "a", "b"), fault=fault)


@pytest.mark.parametrize(
    ("stories", "expected"),
    [
        ([dead(), dead()], None),
        ([dead(), dead("rank 1 left")], "different stories"),
        ([dead(rank=0), dead(rank=0)], "was blamed on"),
        ([dead(), dead(at_s=13.0)], "raised 3.00 s after"),
        ([dead(), None], "raised nothing"),
    ],
)
def test_judge_one_story_in_time_or_a_complaint(
    stories: list[Story | None], expected: str | None
) -> None:
    outcomes = {
        rank: Outcome(rank, stories=[story] if story else [])
        for rank, story in zip((0, 2), stories, strict=True)
    }
    complaint = judge(killed(), outcomes, 10.0, 2.0)
    assert complaint is None if expected is None else expected in str(complaint)


def test_totals_a_process_that_grows_is_a_leak() -> None:
    totals = Totals()
    held = dict.fromkeys(("descriptors", "threads", "mappings", "memory"), 100)
    assert [totals.leak(1, held) for _ in range(20)] == [None] * 20
    assert "150 descriptors, it had 100" in str(totals.leak(1, {**held, "descriptors": 150}))


def test_main_some_seconds_find_nothing_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    faults = "kill,exit,exception,abort,leave,mismatch,reset,noise"
    arguments = ["--seed", "3", "--ranks", "4", "--events", "30", "--faults", faults]
    # How fast a busy machine can raise is nothing to fail for here.
    code = main([*arguments, "--seconds", "4", "--raise-within", "20"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert printed.startswith("hccl-soak: seed 3, 4 s, 4 processes")
    assert "no byte wrong, nobody hung" in printed
    assert any(f"  {kind} " in printed for kind in KINDS)
