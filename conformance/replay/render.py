"""A replay for a terminal, as a page, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.replay.model import STATES, Checked, Looked, Replay, Replayed
from conformance.report.findings_text import many

_WIDTH = 1000  # columns; no line is that long, so none is folded
_LONGEST = 110
_COLUMNS = ("id", "versions", "shown by", "had it", "fixed", "what it says")
_SUMS = {
    "fails": "other than it has to be",
    "shown": "shown",
    "its kind": "shown by another of its kind",
    "not checked": "not checked",
    "not here": "not to be seen here",
}


def to_table(replay: Replay) -> str:
    """Return the text, which ends with a line feed."""
    grid = Table(box=None, pad_edge=False, show_edge=False)
    for name in _COLUMNS:
        grid.add_column(name, no_wrap=True)
    for cells in _rows(replay):
        grid.add_row(*(Text(cell) for cell in cells))
    console = Console(width=_WIDTH, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(grid)
    table = "\n".join(line.rstrip() for line in capture.get().splitlines())
    parts = [table, sums(replay)]
    for title, lines in _lists(replay):
        parts.append("\n".join((title, *(f"  {line}" for line in lines))))
    return "\n\n".join(parts) + "\n"


def to_markdown(replay: Replay) -> str:
    """Return the table and the lists as Markdown, without a heading."""
    lines = [f"| {' | '.join(_COLUMNS)} |", f"| {' | '.join(['---'] * len(_COLUMNS))} |"]
    links = {item.fault.id: item.fault.link for item in replay.faults}
    for name, *cells in _rows(replay):
        first = f"[{name}]({links[name]})" if name in links else ""
        lines.append(f"| {' | '.join((first, *map(_cell, cells)))} |")
    lines += ["", f"{sums(replay)}"]
    for title, items in _lists(replay):
        lines += ["", f"{title[0].upper()}{title[1:]}:", ""]
        lines += [f"- {_cell(item)}" for item in items]
    return "\n".join(lines) + "\n"


def to_json(replay: Replay) -> str:
    """Return the text; a fault on a line."""
    data = replay.to_json()
    faults = data.pop("faults")
    lines = ",\n".join(json.dumps(item) for item in faults)
    return f'{json.dumps(data)[:-1]}, "faults": [\n{lines}\n]}}\n'


RENDERERS: dict[str, Callable[[Replay], str]] = {
    "table": to_table,
    "json": to_json,
    "markdown": to_markdown,
}


def sums(replay: Replay) -> str:
    """How many faults came to what."""
    counts = replay.counts
    parts = [f"{counts[state]} {_SUMS[state]}" for state in STATES if counts[state]]
    return f"{many(len(replay.faults), 'fault')}: {', '.join(parts) or 'nothing to look at'}."


def _rows(replay: Replay) -> Iterator[tuple[str, ...]]:
    """A row for each look; a fault's name is in the first of them only."""
    for item in replay.faults:
        if not item.looks:
            yield (item.fault.id, item.fault.reported, "not here", "-", "-", "-")
        for number, look in enumerate(item.looks):
            name = "" if number else item.fault.id
            yield (name, _versions(look), _by(look), _found(look.red), _fixed(look), _says(look))


def _versions(look: Looked) -> str:
    had = look.shown.had
    span = had[0] if len(had) == 1 else f"{had[0]} to {had[-1]}"
    if look.shown.fixed:
        return f"{span}; fixed {look.shown.fixed}"
    return f"{span}; not in {look.shown.before}" if look.shown.before else span


def _by(look: Looked) -> str:
    return look.shown.by if look.shown.of == "fault" else f"{look.shown.by}, its kind"


def _found(checked: Sequence[Checked]) -> str:
    """One colour if they have one, else the colour of each version."""
    colours = list(dict.fromkeys(item.answer.colour for item in checked))
    if len(colours) == 1:
        return colours[0]
    return ", ".join(f"{item.answer.colour} {item.version}" for item in checked)


def _fixed(look: Looked) -> str:
    return _found(look.green) if look.green else "unfixed"


def _says(look: Looked) -> str:
    """What was said of the first version that is red, as far as it is one line."""
    red = [item.answer for item in look.red if item.answer.colour == "red"]
    if not red:
        return f"has to say: {look.shown.says}"
    texts = (red[0].text, *red[0].also)
    said = next((text for text in texts if look.shown.says in text), texts[0])
    line = next((s for s in said.splitlines() if look.shown.says in s), said)
    return _short(line, look.shown.says)


def _short(text: str, wanted: str) -> str:
    """A line that is not too long, cut so that what is wanted of it stays."""
    line = " ".join(text.split())
    end = line.find(wanted) + len(wanted)
    if len(line) > _LONGEST and end > _LONGEST - 3:
        start = line.rfind(" ", 0, max(0, min(end - len(wanted), end - _LONGEST // 2))) + 1
        line = f"...{line[start:]}"
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _lists(replay: Replay) -> Iterator[tuple[str, list[str]]]:
    for title, lines in (
        ("other than it has to be", _problems(replay.faults)),
        ("not checked", _open(replay.faults)),
        ("unfixed", _unfixed(replay.faults)),
        ("the fault itself is not to be seen here", _not_here(replay.faults)),
    ):
        found = list(lines)
        if found:
            yield title, found


def _problems(faults: Iterable[Replayed]) -> Iterator[str]:
    for item in faults:
        for look in item.looks:
            for problem in look.problems:
                yield f"{item.fault.id}, {look.shown.look.text}: {problem}"


def _open(faults: Iterable[Replayed]) -> Iterator[str]:
    """What was not checked, with what to run; faults for which that is the same are together."""
    by_text: dict[str, dict[str, None]] = {}
    for item in faults:
        for look in item.looks:
            for checked in (*look.red, *look.green):
                if checked.answer.colour == "not checked":
                    by_text.setdefault(checked.answer.text, {})[item.fault.id] = None
    for text, ids in sorted(by_text.items()):
        yield f"{', '.join(ids)}: {text}"


def _unfixed(faults: Iterable[Replayed]) -> Iterator[str]:
    for item in faults:
        for text in dict.fromkeys(look.shown.unfixed for look in item.looks):
            if text:
                yield f"{item.fault.id}: {text}"


def _not_here(faults: Iterable[Replayed]) -> Iterator[str]:
    for item in faults:
        if item.fault.not_here:
            yield f"{item.fault.id} ({item.fault.reported}): {item.fault.not_here}"


def _cell(text: str) -> str:
    if text.count("`") % 2:  # the line was cut within a name
        text = text.replace("`", "")
    return text.replace("|", "\\|") if "`" in text else text.replace("_", "\\_")
