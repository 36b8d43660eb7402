"""The document of --json, and the facts about the machine at the start of every output."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.results import Row
from hccl_py.installation import PACKAGE, version_of
from hccl_py.transport.network.system_calls import usable_cores


def document(
    measured: Sequence[tuple[Options, Sequence[Row]]], command: str, facts: dict[str, Any]
) -> dict[str, Any]:
    """Return the document of --json.

    Args:
        measured: each case with its rows.
        command: the command line, for the record.
        facts: machine, versions and date.
    """
    return {
        "schema": 3,
        "command": command,
        **facts,
        "method": "time_us: over rounds, of the mean over a round's calls and over the ranks (-a); "
        "calls_us: of single calls on all ranks; ranks_us: of each rank, null where it takes no "
        "part; limit_share: of memcpy_gb_per_s inside a node, of wire_gb_per_s between nodes",
        "world_size": measured[0][0].world_size,
        "collectives": [
            {"options": _settings(each), "sizes": [_size_document(row) for row in rows]}
            for each, rows in measured
        ],
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a document as JSON."""
    path.write_text(json.dumps(document, indent=2, default=str) + "\n")


def _settings(options: Options) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if value is not None}


def _size_document(row: Row) -> dict[str, Any]:
    return {
        "size": row.size,
        "count": row.count,
        "busbw_factor": row.busbw_factor,
        "memcpy_gb_per_s": row.copy_gb_per_s,
        "wire_gb_per_s": row.wire_gb_per_s,
        "doubts": row.doubts,
        "contenders": {
            result.contender: {
                "time_us": asdict(result.time_us),
                "calls_us": result.calls_us or None,
                "ranks_us": [None if time != time else time for time in result.ranks_us],
                "cpu_us": result.rank_cpu_us,
                "algbw_gb_per_s": row.algbw(result),
                "busbw_gb_per_s": row.busbw(result),
                "limit_share": row.share(result),
                "wrong": result.wrong,
                "rounds": len(result.round_us),
                "calls_per_round": result.calls_per_round,
            }
            for result in row.results
        },
        **({"profile_us": row.profiles} if row.profiles else {}),
        "ratio": {result.contender: asdict(row.ratio(result)) for result in row.results[1:]},
    }


def facts() -> dict[str, Any]:
    """Return machine, versions and date, without importing torch."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu_model(),
            "usable_cores": len(usable_cores()),
            "memory_gib": round(pages / 2**30, 1),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {
            **{name: version_of(name) for name in (PACKAGE, "torch", "numpy")},
            "python": platform.python_version(),
        },
    }


def _cpu_model() -> str:
    """Return the processor's name from the kernel, else its architecture."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    names = (value.strip() for name, _, value in lines if name.strip() == "model name")
    return next(names, platform.machine())
