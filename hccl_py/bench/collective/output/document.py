"""What --json writes, and the facts about the machine that every form of output begins with."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hccl_py.bench.collective.measure import Row
from hccl_py.bench.collective.options import Options


def document(
    measured: Sequence[tuple[Options, Sequence[Row]]], argv: Sequence[str], facts: dict[str, Any]
) -> dict[str, Any]:
    """Make what --json writes.

    Args:
        measured: each collective with its rows.
        argv: the command line, for the record.
        facts: machine, versions and date.
    """
    options = measured[0][0]
    return {
        "schema": 3,
        "command": shlex.join(["hccl-bench", *argv]),
        **facts,
        "method": "time_us: over rounds, of the mean over a round's calls and over the ranks (-a); "
        "calls_us: of single calls on all ranks; ranks_us: of each rank, null where it takes no "
        "part; limit_share: of memcpy_gb_per_s inside a node, of wire_gb_per_s between nodes",
        "world_size": options.world_size,
        "collectives": [
            {"options": _settings(each), "sizes": [_size_document(row) for row in rows]}
            for each, rows in measured
        ],
    }


def _settings(options: Options) -> dict[str, Any]:
    """The options that were given or have a default."""
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(options).items()
    }
    return {name: value for name, value in settings.items() if value is not None}


def _size_document(row: Row) -> dict[str, Any]:
    """One size with everything that was measured there."""
    return {
        "size": row.size,
        "count": row.count,
        "busbw_factor": row.busbw_factor,
        "memcpy_gb_per_s": row.copy_gb_per_s,
        "wire_gb_per_s": row.limits.wire_gb_per_s,
        "doubts": row.doubts,
        "contenders": {
            result.contender: {
                "time_us": asdict(result.time_us),
                "calls_us": asdict(calls_us) if (calls_us := result.calls_us) else None,
                "ranks_us": [None if time != time else time for time in result.ranks_us],
                "algbw_gb_per_s": row.algbw(result),
                "busbw_gb_per_s": row.busbw(result),
                "limit_share": row.share(result),
                "wrong": result.wrong,
                "rounds": len(result.round_us),
                "calls_per_round": result.calls_per_round,
            }
            for result in row.results
        },
        **({"profile_us": [asdict(one) for one in row.profiles]} if row.profiles else {}),
        "ratio": {result.contender: asdict(row.ratio(result)) for result in row.results[1:]},
    }


def facts() -> dict[str, Any]:
    """Find out machine, versions and date; asks nothing of torch, only of the system."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu_model(),
            "usable_cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(pages / 2**30, 1),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {
            "hccl-py": version("hccl-py"),
            "torch": version("torch"),
            "numpy": version("numpy"),
            "python": platform.python_version(),
        },
    }


def _cpu_model() -> str:
    """The processor's name as Linux gives it, else its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    lines = (line.partition(":") for line in text.splitlines())
    names = [value.strip() for name, _, value in lines if name.strip() == "model name"]
    return names[0] if names else platform.machine()
