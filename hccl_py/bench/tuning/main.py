"""`hccl-bench --tune [FILE]`, on ranks of its own or as a rank of a launcher's job."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from hccl_py.bench.collective.contenders import Api
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
from hccl_py.bench.tuning.sweep import Swept, sweep

_BUDGET_S = 45.0  # start and end of the ranks come on top: 60 s in all


def tune(options: Options, command: str) -> int:
    """Measure and write the file; with --tune_check measure again. Return the exit code.

    Raises:
        RankFailure: a rank raised, died or did not answer in time.
        NamespaceError: --veth could not have its two hosts.
    """
    path = options.tune_path
    assert path is not None
    with ExitStack() as opened:
        run = _sweeping(options, opened)
        swept = run(options.sizes, _BUDGET_S)
        twice = [2 * size for size in options.sizes]
        checked = run(twice, _BUDGET_S) if options.tune_check else None
    if is_rank() and os.environ["RANK"] != "0":
        return 0
    numbers = fit(swept)
    text = text_of(document(swept, numbers, command, facts()))
    path.write_text(text)
    print("\n".join(introduction(swept, numbers)))
    if checked is not None:
        print("\n".join(chosen_against_best(checked, tuning_from(text))))
    print(f"# wrote {path}; use it with HCCL_TUNING={Path.absolute(path)}")
    return 0


def _sweeping(options: Options, opened: ExitStack) -> Callable[[Sequence[int], float], Swept]:
    """Return what sweeps: in this rank of a job, or on ranks that last as long as the stack."""
    if is_rank():
        return partial(sweep, opened.enter_context(rank_of_job()))
    hosts = open_hosts(options, opened)
    ranks = opened.enter_context(Ranks(options, [Api("communicator")], hosts))

    def run(sizes: Sequence[int], budget_s: float) -> Swept:
        swept: Swept = ranks.ask(sweep, sizes, budget_s, what="measuring algorithms")[0]
        return swept

    return run
