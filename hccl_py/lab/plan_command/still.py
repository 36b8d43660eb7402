"""A plan as a still picture: a row for each rank, a line for each message.

The picture is a list of shapes, which become SVG here, or PNG by matplotlib. `hccl-plan predict
--plot` needs matplotlib too, and unlike converters of SVG it needs no library of the system.
"""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

_LEFT, _TOP, _WIDTH, _ROW, _DPI = 90, 70, 900, 34, 100
_DASHES = ("", "6 3", "2 2", "8 3 2 3")
"""Of chunks that share a colour."""


class _Shape(NamedTuple):
    kind: str  # line, bar, dot or text
    at: tuple[float, float]
    to: tuple[float, float] = (0, 0)  # of a bar its width and height
    colour: str = "#222222"
    size: float = 12  # of text, a line's width, a dot's radius
    text: str = ""  # of a line its dashes


def svg(content: Mapping[str, Any]) -> str:
    """Return the picture of a `Drawing.content`: time to the right, colours by block or rank."""
    width, height = _size(content)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    white = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, white, *map(_element, _shapes(content)), "</svg>\n"])


def write_png(content: Mapping[str, Any], path: Path) -> None:
    """Write the picture as PNG."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle, Rectangle

    width, height = _size(content)
    figure = Figure(figsize=(width / _DPI, height / _DPI))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    points = 72 / _DPI  # of a pixel
    for one in _shapes(content):
        if one.kind == "line":
            dashes = (0, [float(x) for x in one.text.split()]) if one.text else "-"
            ends = [one.at[0], one.to[0]], [one.at[1], one.to[1]]
            axes.plot(*ends, color=one.colour, lw=one.size * points, ls=dashes)
        elif one.kind == "text":
            axes.text(*one.at, one.text, color=one.colour, fontsize=one.size * points)
        elif one.kind == "dot":
            axes.add_patch(Circle(one.at, one.size, color=one.colour))
        else:
            axes.add_patch(Rectangle(one.at, *one.to, color=one.colour, lw=0))
    figure.savefig(path, dpi=2 * _DPI)


def _size(content: Mapping[str, Any]) -> tuple[int, int]:
    return _LEFT + _WIDTH + 30, _TOP + _ROW * content["n"] + 36


def _shapes(content: Mapping[str, Any]) -> Iterator[_Shape]:
    call, colours = content["measured"], content["colours"]
    end = max(content["end"], call["end"] if call and content["unit"] == "us" else 0, 1e-9)
    of_call = 1.0 if call is None or content["unit"] == "us" else end / call["end"]

    def x(time: float) -> float:
        return round(_LEFT + _WIDTH * time / float(end), 1)

    def y(rank: int) -> float:
        return _TOP + _ROW * (rank + 0.5)

    yield _Shape("text", (_LEFT, 24), size=16, text=content["title"])
    for at, line in enumerate(wrap(content["about"], _WIDTH // 6)):
        yield _Shape("text", (_LEFT, 40 + 13 * at), size=11, text=line)
    for rank in range(content["n"]):
        yield _Shape("text", (12, y(rank) + 4), text=f"rank {rank}")
        yield _Shape("line", (_LEFT, y(rank)), (_LEFT + _WIDTH, y(rank)), "#bbbbbb", 1)
        times = call["ranks"][rank] if call else None
        for begin, last, colour in (
            ("begin", "waited", "#cccccc"),
            ("waited", "end", "#88bbdd"),
        ):
            if times:
                left, right = (x(times[key] * of_call) for key in (begin, last))
                yield _Shape("bar", (left, y(rank) - 8), (right - left, 16), colour)
    critical = {at for what, at in content["critical"] if what == "message"}
    for at, one in enumerate(content["messages"]):
        chunk = one["hues"][0] if one["hues"] else 0
        colour, dash = colours[chunk % len(colours)], _DASHES[chunk // len(colours) % len(_DASHES)]
        ends = (x(one["begin"]), y(one["from"])), (x(one["end"]), y(one["to"]))
        yield _Shape("line", *ends, colour, 3.5 if at in critical else 1.5, dash)
        yield _Shape("dot", ends[1], colour=colour, size=4)
    for what, at in content["critical"]:
        if what == "work":
            rank, _, _, begin, until = content["works"][at]
            yield _Shape("line", (x(begin), y(rank)), (x(until), y(rank)), size=3.5)
    bottom = _TOP + _ROW * content["n"] + 20
    yield _Shape("text", (_LEFT, bottom), text="0")
    yield _Shape("text", (_LEFT + _WIDTH - 40, bottom), text=f"{end:.4g} {content['unit']}")
    yield _Shape(
        "text",
        (_LEFT + 40, bottom),
        size=11,
        text="thick: the critical path, black where a rank works",
    )


def _element(one: _Shape) -> str:
    (x, y), (right, below) = one.at, one.to
    if one.kind == "text":
        where = f'x="{x}" y="{y}" font-size="{one.size}"'
        return f'<text {where} fill="{one.colour}">{escape(one.text)}</text>'
    if one.kind == "dot":
        return f'<circle cx="{x}" cy="{y}" r="{one.size}" fill="{one.colour}"/>'
    if one.kind == "bar":
        where = f'x="{x}" y="{y}" width="{right}" height="{below}"'
        return f'<rect {where} fill="{one.colour}"/>'
    dash = f' stroke-dasharray="{one.text}"' if one.text else ""
    where = f'x1="{x}" y1="{y}" x2="{right}" y2="{below}"'
    return f'<line {where} stroke="{one.colour}" stroke-width="{one.size}"{dash}/>'
