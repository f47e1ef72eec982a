"""The table of docs/replay.md, as the committed data show it with no vLLM installed.

    python -m conformance.replay.page

writes it anew; what is around it stays.
"""

from __future__ import annotations

import sys
from pathlib import Path

from conformance.drift.files import write_whole
from conformance.replay.command import replay_of
from conformance.replay.history import load
from conformance.replay.render import to_markdown
from conformance.target import WrongUse

PAGE = Path(__file__).resolve().parents[2] / "docs" / "replay.md"

_START, _END = "<!-- table -->\n", "<!-- end of table -->"


def main(page: Path = PAGE) -> int:
    """Write the table, and say where."""
    try:
        before, start, rest = page.read_text(encoding="utf-8").partition(_START)
        _, end, after = rest.partition(_END)
        if not (start and end):
            raise WrongUse(f"{page} has no marks around a table: {_START.strip()}, {_END}.")
        write_whole(page, before + start + to_markdown(replay_of(load())) + end + after)
    except (OSError, WrongUse) as error:
        print(error, file=sys.stderr)
        return 2
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
