"""A plan as a timeline in Chrome's trace format, which ui.perfetto.dev opens.

A thread for each rank has its work, one for each pair of ranks its messages, with an arrow from the
send and to the receive.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

_RANKS, _MESSAGES = 0, 1


def timeline(content: Mapping[str, Any]) -> str:
    """Return the timeline of a `Drawing.content`; a step counts as a microsecond."""
    about = {"title": content["title"], "about": content["about"]}
    return json.dumps({"traceEvents": list(_events(content)), "metadata": about})


def _events(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    names = {(_RANKS, rank): f"rank {rank}" for rank in range(content["n"])}
    works: dict[tuple[int, int, int], float] = {}
    for rank, op, tile, begin, end in content["works"]:
        works.setdefault((rank, op, tile), begin)
        args = {"op": op, "tile": tile}
        yield _span(_RANKS, rank, content["ranks"][rank]["ops"][op], begin, end) | {"args": args}
    numbers = count()
    lines: dict[tuple[int, int], int] = {}
    for one in content["messages"]:
        pair = one["from"], one["to"]
        line = lines.setdefault(pair, len(lines))
        names[_MESSAGES, line] = f"rank {pair[0]} > rank {pair[1]}"
        op = content["ranks"][pair[0]]["ops"][one["sent"]]
        args = {"tile": one["tile"], "received by op": one["received"]}
        yield _span(_MESSAGES, line, op, one["begin"], one["end"]) | {"args": args}
        ends = [
            (pair[0], works.get((pair[0], one["sent"], one["tile"]), one["begin"]), "s"),
            (pair[1], works.get((pair[1], one["received"], one["tile"]), one["end"]), "f"),
        ]
        number = next(numbers)
        for rank, at, phase in ends:
            arrow = {"ph": phase, "cat": "message", "name": "message", "id": number, "bp": "e"}
            yield arrow | {"pid": _RANKS, "tid": rank, "ts": at}
    for pid, name in ((_RANKS, "ranks"), (_MESSAGES, "messages")):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    for (pid, tid), name in names.items():
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def _span(pid: int, tid: int, name: str, begin: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": begin, "dur": end - begin}
