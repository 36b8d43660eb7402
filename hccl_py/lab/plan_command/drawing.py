"""A plan as a page: the data that `page.html` shows, from the run that proves the plan.

The page is one file that needs no server and no network. Its script reads the keys used here.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hccl_py.lab.simulation.events import Events, events_of
from hccl_py.lab.simulation.recorded import MeasuredCall
from hccl_py.lab.simulation.run import Simulated
from hccl_py.lab.simulation.topology import Topology
from hccl_py.plan.contracts import Contract, Contribution
from hccl_py.plan.history import Event, History
from hccl_py.plan.language import Buffer, Nodes, Plan
from hccl_py.plan.memory import Place, Value

_MOST_COLUMNS = 16
_LONGEST_TEXT = 300
_MOST_DRAWN = 20_000
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288")
"""Those of M. Okabe and K. Ito (2008), which colour-blind people tell apart, and an indigo."""
_BY_RANK = ("all_gather", "gather", "all_to_all")
"""Collectives whose output block i comes from rank i, whose number is the colour."""


class Drawing:
    """The content of a page."""

    def __init__(
        self,
        plans: Sequence[Plan],
        contract: Contract,
        nodes: Nodes,
        simulated: Simulated | None = None,
    ) -> None:
        """Run the plans, which are proved; times are steps, or those of a simulation."""
        self._plans, self._contract, self._nodes = plans, contract, nodes
        self._simulated = simulated
        self._history = History(plans, contract)
        # The memory before the run.
        self._places = self._all_places()
        self._numbers: dict[int, int] = {}  # of values, by id: equal values are one object
        self._values: list[dict[str, object]] = []
        self._first = [self._initial(rank) for rank in range(len(plans))]
        self._history.run()

    def content(
        self, title: str, about: str, measured: MeasuredCall | None = None
    ) -> dict[str, Any]:
        """Return the data for the script, ready for JSON."""
        events, happened = self._history.events, self._happened()
        ends = self._ends(happened)
        messages = self._messages(happened)
        is_work = (happened.peer < 0) & (happened.end_us > happened.begin_us)
        works = {int(row): at for at, row in enumerate(np.flatnonzero(is_work))}
        place_of = {row: at for at, (rows, _) in enumerate(messages) for row in rows}
        critical = happened.critical()
        node_of = {rank: index for index, node in enumerate(self._nodes) for rank in node}
        return {
            "title": title,
            "about": about,
            "n": len(self._plans),
            "unit": "us" if self._simulated else "steps",
            "end": self._end(happened),
            "colours": COLOURS,
            "links": [
                [name, float(us) / (self._end(happened) or 1.0)]
                for name, us in zip(happened.links, happened.busy_us(), strict=True)
            ],
            "works": [
                [int(happened.rank[row]), int(happened.op[row]), int(happened.tile[row])]
                + [float(happened.begin_us[row]), float(happened.end_us[row])]
                for row in list(works)[:_MOST_DRAWN]
            ],
            "critical": [
                ["message", place_of[row]] if row in place_of else ["work", works[row]]
                for row in critical
                if row in place_of or works.get(row, _MOST_DRAWN) < _MOST_DRAWN
            ],
            "groups": self._groups(),
            "places": [_label(place) for place in self._places],
            "placeHue": list(map(self._hue_of_place, self._places)),
            "nodeOf": [node_of[rank] for rank in range(len(self._plans))],
            "hues": self._plans[0].shape.data_chunks or len(self._plans),
            "most": len(self._plans) if self._reduces() else 1,
            "ranks": [self._rank(plan) for plan in self._plans],
            "events": [self._event(event, ends) for event in events if self._writes(event)],
            "messages": [message for _, message in messages],
            "values": self._values,
            "measured": None if measured is None else measured._asdict(),
        }

    def _all_places(self) -> list[Place]:
        found: dict[Place, None] = {}
        for plan in self._plans:
            for buffer in (Buffer.DATA, Buffer.OUTPUT):
                found |= dict.fromkeys((buffer, block) for block in range(plan.shape[buffer]))
        slots = [
            chunk.scratch + chunk.slots
            for plan in self._plans
            for op in plan.ops
            for chunk in (op.dst, op.src)
            if chunk is not None and chunk.scratch is not None
        ]
        return [*found, *((None, slot) for slot in range(max(slots, default=0)))]

    def _initial(self, rank: int) -> list[int | None]:
        """Return the initial value of each place of a rank."""
        memory = self._history.memories[rank]
        first: list[int | None] = []
        for buffer, block in self._places:
            is_input = buffer is Buffer.DATA and block < self._plans[rank].shape.data_chunks
            value = memory.read(Buffer.DATA[block])[0] if is_input else None
            first.append(None if value is None else self._number(value))
        return first

    def _rank(self, plan: Plan) -> dict[str, object]:
        has = [buffer is None or block < plan.shape[buffer] for buffer, block in self._places]
        return {"ops": [str(op) for op in plan.ops], "first": self._first[plan.rank], "has": has}

    def _happened(self) -> Events:
        if self._simulated is not None:
            assert self._simulated.events is not None
            return self._simulated.events
        rows = list[tuple[float, ...]]()
        for event in self._history.events:
            key = event.rank, event.op_index
            rows.append((event.end, event.end, event.end, *key, 0, -1, -1))
            for peer in self._plans[event.rank].ops[event.op_index].peers:
                if (at := self._history.arrives.get((key, peer))) is not None:
                    rows.append((at - 1, at, at, *key, 0, peer, 0))
        return events_of(rows, self._plans, Topology(self._nodes))

    def _end(self, happened: Events) -> float:
        if self._simulated is not None:
            return self._simulated.us
        return float(happened.arrives_us.max(initial=0.0))

    def _ends(self, happened: Events) -> dict[tuple[int, int], float]:
        """Return when each op has ended in all tiles, which is no earlier than the op before."""
        ends = dict[tuple[int, int], float]()
        for rank, op, end in zip(happened.rank, happened.op, happened.end_us, strict=True):
            key = int(rank), int(op)
            ends[key] = max(ends.get(key, 0.0), float(end))
        for plan in self._plans:
            for op in range(1, len(plan.ops)):
                ends[plan.rank, op] = max(
                    ends.get((plan.rank, op), 0.0), ends.get((plan.rank, op - 1), 0.0)
                )
        return ends

    def _messages(self, happened: Events) -> list[tuple[list[int], dict[str, object]]]:
        """Return the rows and the content of each message, up to a number, in order of time."""
        pairs = {}
        for event in self._history.events:
            for rank, op in event.received:
                pairs[rank, op, event.rank] = event
        sends = {(event.rank, event.op_index): event for event in self._history.events}
        rows: dict[tuple[int, ...], list[int]] = {}
        for row in np.flatnonzero(happened.peer >= 0):
            of = happened.rank[row], happened.op[row], happened.peer[row], happened.tile[row]
            rows.setdefault(tuple(map(int, of)), []).append(int(row))
        found = []
        for (rank, op, peer, tile), its in list(rows.items())[:_MOST_DRAWN]:
            numbers = [self._number(value) for value in sends[rank, op].values]
            message: dict[str, object] = {
                "from": rank,
                "to": peer,
                "sent": op,
                "received": pairs[rank, op, peer].op_index,
                "tile": tile,
                "begin": float(happened.begin_us[its[0]]),
                "end": float(happened.arrives_us[its[0]]),
                "values": numbers,
                "hues": [self._values[number]["hue"] for number in numbers],
            }
            found.append((its, message))
        return found

    def _event(self, event: Event, ends: Mapping[tuple[int, int], float]) -> dict[str, object]:
        return {
            "rank": event.rank,
            "op": event.op_index,
            "end": ends[event.rank, event.op_index],
            "from": event.received,
            "writes": self._writes(event),
        }

    def _writes(self, event: Event) -> list[tuple[int, int]]:
        op = self._plans[event.rank].ops[event.op_index]
        if op.written is None:
            return []
        places = self._history.memories[event.rank].places(op.written)
        # A range of `data` in scratch is one slot with several values: the first stands for all.
        return [
            (self._places.index(place), self._number(value))
            for place, value in zip(places, event.values, strict=False)
        ]

    def _number(self, value: Value) -> int:
        number = self._numbers.setdefault(id(value), len(self._values))
        if number == len(self._values):
            text = str(value) if value.ranks.bit_count() <= _MOST_COLUMNS else ""
            short = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
            self._values.append(
                {"ranks": f"{value.ranks:x}", "text": short, "hue": self._hue(value)}
            )
        return number

    def _hue(self, value: Value) -> int:
        is_by_rank = self._contract.name in _BY_RANK
        return value.ranks.bit_length() - 1 if is_by_rank else value.block

    def _hue_of_place(self, place: Place) -> int | None:
        buffer, block = place
        is_known = buffer is Buffer.DATA or (buffer and self._contract.name in _BY_RANK)
        return block if is_known else None

    def _reduces(self) -> bool:
        rank = self._plans[0].root or 0
        return not isinstance(self._contract.promise(self._plans[rank], 0), Contribution)

    def _groups(self) -> list[list[int]]:
        """Return the columns of a summary: nodes, or eight parts of all ranks."""
        n = len(self._plans)
        if n <= _MOST_COLUMNS:
            return [[rank] for rank in range(n)]
        if 1 < len(self._nodes) <= _MOST_COLUMNS:
            return [list(node) for node in self._nodes]
        return [list(range(n * part // 8, n * (part + 1) // 8)) for part in range(8)]


def page(content: Mapping[str, Any]) -> str:
    """Return the whole page."""
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return template.replace("/*PLAN*/", text)


def _label(place: Place) -> str:
    buffer, block = place
    return f"scratch {block}" if buffer is None else f"{buffer.name.lower()}[{block}]"
