"""`hccl-bench --tune [FILE]`, on ranks of its own or as a rank of a launcher's job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from hccl_py.bench.collective.contenders import APIS
from hccl_py.bench.collective.job_ranks import is_rank, rank_of_job
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.output.document import facts
from hccl_py.bench.collective.ranks import Ranks, open_hosts
from hccl_py.bench.tuning.fit import fit
from hccl_py.bench.tuning.report import (
    chosen_against_best,
    document,
    introduction,
    text_of,
    tuning_from,
)
from hccl_py.bench.tuning.sweep import Swept

_BUDGET_S = 45.0  # start and end of the ranks come on top: 60 s in all

Sweep = Callable[[Sequence[int], float], Swept]


def tune(options: Options, argv: Sequence[str]) -> int:
    """Measure and write the file; with --tune_check measure again. Return the exit code.

    Raises:
        RankFailure: a rank raised, died or did not answer in time.
        NamespaceError: --veth could not have its two hosts.
    """
    assert options.tune_path is not None
    with ExitStack() as opened:
        run = _in_this_rank(opened) if is_rank() else _on_own_ranks(options, opened)
        swept = run(options.sizes, _BUDGET_S)
        checked = (
            run([2 * size for size in options.sizes], _BUDGET_S) if options.tune_check else None
        )
    if is_rank() and os.environ["RANK"] != "0":
        return 0
    numbers = fit(swept)
    text = text_of(document(swept, numbers, shlex.join(["hccl-bench", *argv]), facts()))
    options.tune_path.write_text(text)
    print("\n".join(introduction(swept, numbers)))
    if checked is not None:
        print("\n".join(chosen_against_best(checked, tuning_from(text))))
    print(
        f"# wrote {options.tune_path}; use it with HCCL_TUNING={Path.absolute(options.tune_path)}"
    )
    return 0


def _on_own_ranks(options: Options, opened: ExitStack) -> Sweep:
    hosts = open_hosts(options, opened)
    ranks = opened.enter_context(Ranks(options, [APIS["communicator"]], hosts))

    def run(sizes: Sequence[int], budget_s: float) -> Swept:
        swept: Swept = ranks.ask("sweep", sizes, budget_s, what="measuring algorithms")[0]
        return swept

    return run


def _in_this_rank(opened: ExitStack) -> Sweep:
    rank, _ = opened.enter_context(rank_of_job())
    return rank.sweep
