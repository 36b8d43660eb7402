"""`hccl-bench --tune [FILE]`, on ranks of its own or as a rank of a launcher's job: its file, and
the table that compares chosen algorithms with the best.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hccl_py.algorithms.choice.cost import NUMBERS
from hccl_py.algorithms.choice.tuner import Cores, choose
from hccl_py.algorithms.choice.tuning import FORMAT, Tuning, parse
from hccl_py.bench.collective.analysis.trust import Load, load_doubts
from hccl_py.bench.collective.contenders import Api
from hccl_py.bench.collective.job_ranks import is_rank, rank_of_job
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.output.document import facts
from hccl_py.bench.collective.output.text import text_lines
from hccl_py.bench.collective.ranks import Ranks, open_hosts
from hccl_py.bench.tuning.fit import Numbers, errors, fit
from hccl_py.bench.tuning.sweep import PING_PONG, Measurement, Swept, sweep
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.quantities import read_size

_BUDGET_S = 45.0  # with start and end of the ranks at most 60 s
_NEAR = 1.1
_MOST_ERROR = 0.3
_UNITS = {
    "latency_us": "us for each round of messages that waits for the one before it",
    "message_us": "us for each message sent or received by a rank",
    "us_per_mib": "us for each MiB (2^20 bytes) sent or received by a rank",
    "reduce_us_per_mib": "us for each MiB of messages that a rank reduces, or that it copies",
    "us": "of a call, or of a round trip: median of rounds_us, each the mean over calls and ranks",
    "bytes": "of a rank's larger buffer",
    "machines": "for each node, the first node whose cores it shares",
    "cache_bytes": "of the largest cache of a core of rank 0",
}


def tune(options: Options, command: str) -> int:
    """Measure and write the file; with --tune_check measure again. Return the exit code.

    Raises:
        RankFailure: a rank raised, died or did not answer in time.
        NamespaceError: the hosts of --veth could not be made.
    """
    path = options.tune_path
    assert path is not None
    with ExitStack() as opened:
        run, pids = _sweeping(options, opened)
        before = Load.now(pids)
        swept = run(options.sizes, _BUDGET_S)
        doubts = load_doubts(before, Load.now(pids))
        twice = [2 * size for size in options.sizes]
        checked = run(twice, _BUDGET_S) if options.tune_check else None
    if is_rank() and os.environ["RANK"] != "0":
        return 0
    numbers = fit(swept)
    doubts += fit_doubts(swept, numbers)
    text = text_of(document(swept, numbers, command, facts()) | {"doubts": doubts})
    path.write_text(text)
    print("\n".join(introduction(swept, numbers) + [f"# doubtful: {one}" for one in doubts]))
    if checked is not None:
        print("\n".join(chosen_against_best(checked, tuning_from(text))))
    use = f"use it with HCCL_TUNING={Path.absolute(path)}"
    if doubts:
        use = "measure again on an idle machine before you use it"
    print(f"# wrote {path}; {use}")
    return 0


def fit_doubts(swept: Swept, numbers: Numbers) -> list[str]:
    """Return doubts because the numbers do not predict what they were fitted to."""
    median, p90 = _percentiles(swept, numbers)
    if median <= _MOST_ERROR:
        return []
    return [
        f"the numbers are {median:.0%} off (median; 90 of 100 within {p90:.0%}), expected at most "
        f"{_MOST_ERROR:.0%}: layouts that were not measured get a wrong choice"
    ]


Sweep = Callable[[Sequence[int], float], Swept]


def _sweeping(options: Options, opened: ExitStack) -> tuple[Sweep, Sequence[int]]:
    """Return a function that sweeps, and the ranks' processes on this host.

    It sweeps as a rank of a job, or on ranks that the stack ends.
    """
    if is_rank():
        return partial(sweep, opened.enter_context(rank_of_job())), [os.getpid()]
    hosts = open_hosts(options, opened)
    ranks = opened.enter_context(Ranks(options, [Api("communicator")], hosts))

    def run(sizes: Sequence[int], budget_s: float) -> Swept:
        swept: Swept = ranks.ask(sweep, sizes, budget_s, what="measuring algorithms")[0]
        return swept

    return run, ranks.pids


def document(
    swept: Swept, numbers: Numbers, command: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Make the content of a tuning file.

    Args:
        swept: the measurements.
        numbers: fitted to them, in the order of `cost.NUMBERS`.
        command: for the record.
        facts: machine, versions and date, for the record.
    """
    median, p90 = _percentiles(swept, numbers)
    return {
        "format": FORMAT,
        "command": command,
        **facts,
        "units": _UNITS,
        "layout": [len(node) for node in swept.nodes],
        "cores_per_node": swept.cores_per_node,
        "machines": swept.machines,
        "cache_bytes": _cache_bytes(),
        "numbers": {
            name: None if number is None else float(f"{number:.6g}")
            for name, number in zip(NUMBERS, numbers, strict=True)
        },
        "error_of_the_numbers": {"median": median, "p90": p90},
        "measurements": [
            one._asdict()
            | {"us": round(one.us, 4), "rounds_us": [round(x, 4) for x in one.rounds_us]}
            for one in swept.measurements
        ],
    }


def _cache_bytes() -> int:
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((read_size(size.read_text().strip()) for size in sizes), default=0)


def text_of(document: Mapping[str, Any]) -> str:
    """Write a tuning file's content, one measurement a line."""
    lines = ",\n".join(f"    {json.dumps(one)}" for one in document["measurements"])
    head = json.dumps({**document, "measurements": []}, indent=2)
    return head.replace('"measurements": []', f'"measurements": [\n{lines}\n  ]') + "\n"


def tuning_from(text: str) -> Tuning:
    """Read a tuning file's content as a communicator does."""
    return parse(json.loads(text))


def chosen_against_best(swept: Swept, tuning: Tuning) -> list[str]:
    """Make the lines: each collective and size, then how often a choice is within 10 % of the best.

    The choices are those with the tuning, with its numbers alone, and without tuning.
    """
    sizes: dict[tuple[str, int], dict[str, Measurement]] = {}
    for one in swept.measurements:
        if one.collective != PING_PONG:
            sizes.setdefault((one.collective, one.bytes), {})[one.algorithm] = one
    ways = {
        "HCCL_TUNING": tuning,
        "its numbers alone": Tuning(tuning.layout, tuning.cores_per_node, tuning.numbers, {}),
        "no tuning": None,
    }
    near = dict.fromkeys(ways, 0)
    per_node = tuning.cores_per_node
    cores = Cores(int(per_node), max(map(len, swept.nodes)) > per_node)
    table = [["collective", "bytes", "chosen", "us", "best", "us", "ratio"]]
    for (collective, num_bytes), times in sizes.items():
        root = 0 if COLLECTIVES[collective].rooted else None
        for way, given in ways.items():
            chosen = choose(
                collective, num_bytes, swept.nodes, {}, root=root, cores=cores, tuning=given
            ).algorithm
            ratios = {name: _ratio(times[chosen], one) for name, one in times.items()}
            best = max(ratios, key=lambda name: ratios[name])
            near[way] += ratios[best] <= _NEAR
            if way == "HCCL_TUNING":
                both = [chosen, f"{times[chosen].us:.2f}", best, f"{times[best].us:.2f}"]
                table.append([collective, str(num_bytes), *both, f"{ratios[best]:.2f}"])
    shares = {way: f"{number} of {len(sizes)} sizes" for way, number in near.items()}
    return text_lines(table) + [
        f"# chosen within 10 % of the best by {way}: {share}, {near[way] / max(1, len(sizes)):.0%}"
        for way, share in shares.items()
    ]


def _ratio(one: Measurement, other: Measurement) -> float:
    """Compare two algorithms round by round: neighbouring rounds have the same disturbance."""
    pairs = zip(one.rounds_us, other.rounds_us, strict=False)  # one may have fewer rounds
    return float(np.median([first / second for first, second in pairs]))


def introduction(swept: Swept, numbers: Numbers) -> list[str]:
    """Make the lines on what was measured and fitted."""
    layout = " + ".join(str(len(node)) for node in swept.nodes)
    median, p90 = _percentiles(swept, numbers)
    lines = [f"# {len(swept.measurements)} measurements on nodes of {layout} ranks"]
    if swept.left_out:
        lines.append(f"# {swept.left_out} collectives and sizes left out: time was up")
    lines += [
        f"# {name}: {'not measured' if number is None else f'{number:.4g}'}"
        for name, number in zip(NUMBERS, numbers, strict=True)
    ]
    return [*lines, f"# predicted by them within {median:.0%} (median), {p90:.0%} (90 of 100)"]


def _percentiles(swept: Swept, numbers: Numbers) -> tuple[float, float]:
    median, p90 = np.percentile(np.abs(errors(swept, numbers)), (50, 90))
    return round(float(median), 3), round(float(p90), 3)
