"""Plain text tables."""

from __future__ import annotations

from collections.abc import Sequence

from client.bench.distribution import Distribution

GAP = "  "


def render(header: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need; the first one and the header's groups left, all else right.

    header  one or two lines; in a first line of two, "" continues the group to the left of it
    rows    as many cells as the last line of the header

    Raises ValueError for a row of another length.
    """
    names = header[-1]
    for row in rows:
        if len(row) != len(names):
            raise ValueError(f"a row has {len(row)} cells, the header {len(names)}")
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    lines = [_groups(header[0], widths)] if len(header) > 1 else []
    lines += [_line(names, widths), *(_line(row, widths) for row in rows)]
    return "\n".join(line.rstrip() for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.rjust(width) if column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return GAP.join([first, *others])


def _groups(cells: Sequence[str], widths: list[int]) -> str:
    """The line of groups. A group that is wider than its columns widens the last of them."""
    starts = [column for column, cell in enumerate(cells) if cell or column == 0]
    parts = []
    for start, end in zip(starts, [*starts[1:], len(widths)], strict=True):
        room = sum(widths[start:end]) + len(GAP) * (end - start - 1)
        if len(cells[start]) > room:
            widths[end - 1] += len(cells[start]) - room
            room = len(cells[start])
        parts.append(cells[start].center(room, "-") if cells[start] else " " * room)
    return GAP.join(parts)


def fixed(value: float | None, digits: int = 0, scale: float = 1.0) -> str:
    """``value`` times ``scale`` with so many digits after the point; ``-`` for None."""
    return "-" if value is None else f"{value * scale:.{digits}f}"


def whole(value: float | None) -> str:
    """A count; ``-`` for None."""
    return "-" if value is None else f"{value:.0f}"


def per(amount: float | None, count: float | None) -> float | None:
    """``amount`` over ``count``; None where there is nothing to divide."""
    return amount / count if amount is not None and count else None


def three(found: Distribution, digits: int, scale: float = 1.0) -> list[str]:
    """The cells p50, p95 and p99."""
    return [fixed(value, digits, scale) for value in (found.p50, found.p95, found.p99)]
