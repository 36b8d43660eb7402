"""A plan as a still picture (SVG): a row for each rank, a line for each message."""

from collections.abc import Mapping
from html import escape
from typing import Any

_LEFT, _TOP, _WIDTH, _ROW = 90, 70, 900, 34


def svg(content: Mapping[str, Any]) -> str:
    """Return the picture of a `Drawing.content`: time to the right, colours by block or rank."""
    num_ranks, end = content["n"], max(content["end"], 1e-9)
    bottom = _TOP + _ROW * num_ranks

    def x(time: float) -> float:
        return round(_LEFT + _WIDTH * time / float(end), 1)

    def y(rank: int) -> float:
        return _TOP + _ROW * (rank + 0.5)

    parts = [_text(_LEFT, 24, content["title"], 16), _text(_LEFT, 46, content["about"], 11)]
    for rank in range(num_ranks):
        parts.append(_text(12, y(rank) + 4, f"rank {rank}", 12))
        parts.append(_line((_LEFT, y(rank)), (_LEFT + _WIDTH, y(rank)), "#bbb", 1))
    for one in content["messages"]:
        hue = 360 * (one["hues"][0] if one["hues"] else 0) // max(1, content["hues"])
        ends = (x(one["begin"]), y(one["from"])), (x(one["end"]), y(one["to"]))
        parts.append(_line(*ends, f"hsl({hue},65%,42%)", 2))
        (right, below) = ends[1]
        parts.append(f'<circle cx="{right}" cy="{below}" r="4" fill="hsl({hue},65%,42%)"/>')
    parts.append(_text(_LEFT, bottom + 20, "0", 12))
    parts.append(_text(_LEFT + _WIDTH - 40, bottom + 20, f"{end:.4g} {content['unit']}", 12))
    size = f'width="{_LEFT + _WIDTH + 30}" height="{bottom + 36}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _text(x: float, y: float, text: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="#222">{escape(text)}</text>'


def _line(begin: tuple[float, float], end: tuple[float, float], colour: str, width: int) -> str:
    where = f'x1="{begin[0]}" y1="{begin[1]}" x2="{end[0]}" y2="{end[1]}"'
    return f'<line {where} stroke="{colour}" stroke-width="{width}"/>'
