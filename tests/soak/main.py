"""Random calls and random failures for as long as told, each round a job of its own.

    python tests/soak/main.py --seconds 600 --seed 7
    python tests/soak/main.py --seed 7 --first 120 --rounds 1      # one of them again

A round is an `Injection` of `tests/faults`: ranks on one to three nodes make random collectives,
messages and subgroups, compare every byte with numpy's, and at a random moment one of them fails.
All must raise the same error within two seconds and leave nothing behind; after a death they go on
with what `shrink` leaves. Exit code 1, and the command that repeats the round, where not so.
"""

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))

import harness_path  # noqa: E402, F401
from injected_ranks import be_rank  # noqa: E402
from injections import FATAL, HARMLESS, SPOKEN, Injection, Layout, Result, play  # noqa: E402
from ranks import RanksFailed  # noqa: E402

KINDS = (*FATAL, *HARMLESS, *SPOKEN, "sigstop")
LAYOUTS = tuple(
    Layout(f"{size} on {nodes}", size, nodes)
    for size, nodes in ((2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2), (5, 2), (5, 3), (8, 2))
)
BETWEEN_NODES = {"cut_off", *HARMLESS} - {"coordinator_closed"}
INSIDE_A_NODE = {"control_closed", "control_garbage"}


def draw(seed: int, number: int) -> Injection:
    """Return a round: it depends on the seed and its number alone."""
    chance = random.Random(f"{seed}/{number}")
    kind = chance.choice(KINDS)
    fitting = [
        layout
        for layout in LAYOUTS
        if (layout.num_nodes > 1 or kind not in BETWEEN_NODES)
        and (layout.num_nodes == 1 or kind not in INSIDE_A_NODE)
        and (layout.world_size > 2 or kind not in SPOKEN)
    ]
    api = "native" if kind in SPOKEN else chance.choice(("native", "native", "torch"))
    return Injection(kind, chance.choice(fitting), seed * 1_000_003 + number, api, extended=True)


def table(results: list[Result]) -> str:
    """Render what was played."""
    calls = sum(story.num_checked for result in results for story in result.stories)
    rounds = Counter(result.injection.kind for result in results)
    lines = ["| failure | rounds | worst, s |", "|---|---|---|"]
    for kind, count in sorted(rounds.items()):
        worst_s = max(result.worst_s for result in results if result.injection.kind == kind)
        lines.append(f"| {kind} | {count} | {'none raises' if kind in HARMLESS else worst_s:.11} |")
    return "\n".join([*lines, f"{len(results)} rounds, {calls:,} calls, not a wrong byte"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 20))
    parser.add_argument("--first", type=int, default=0, help="round to begin with")
    parser.add_argument("--rounds", type=int, help="at most so many")
    args = parser.parse_args()
    print(f"soak: seed {args.seed}, {args.seconds:g} s", flush=True)
    results: list[Result] = []
    began_s, number = time.monotonic(), args.first
    while time.monotonic() - began_s < args.seconds and len(results) != args.rounds:
        injection = draw(args.seed, number)
        try:
            results.append(play(be_rank, injection))
            results[-1].judge()
        except (AssertionError, RanksFailed) as failure:
            print(f"{table(results[:-1])}\nround {number}: {injection}\n{failure}")
            print(f"again: python {sys.argv[0]} --seed {args.seed} --first {number} --rounds 1")
            return 1
        number += 1
        if number % 50 == 0:
            print(f"{time.monotonic() - began_s:6.0f} s  {number} rounds, all well", flush=True)
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
