"""A matrix as a page: environments, sums, findings, and what differs between versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from conformance.report.findings_markdown import cell, escaped
from conformance.report.matrix import ABSENT, LETTERS, Column, Matrix
from conformance.report.model import State

_MARKS = {
    LETTERS[State.OK]: "ok",
    LETTERS[State.RED]: "**RED**",
    LETTERS[State.EXPECTED_RED]: "red",
    LETTERS[State.NOT_CHECKED]: "-",
    LETTERS[State.NOT_APPLICABLE]: "n/a",
    ABSENT: "",
}
_SAYS_NOTHING = {ABSENT, LETTERS[State.NOT_APPLICABLE]}
_MOST_NAMES = 5

_HEAD = """\
# The matrix

<!-- made by `vllm-conformance matrix`; with results after it, fixtures/matrix.json as well -->

What every check came to, for each vLLM version and subject. `fixtures/matrix.json` has all of them:
attribute and context, or scenario. [versions.md](versions.md) says how the environments are made.

`ok` holds; **RED** is a finding; `red` fails, and is known to; `-` was not checked, as the run that
it looks at did not complete; `n/a` does not apply. Where a cell is empty there is no such check:
nothing of the kind is reached in that version, or only a part of the checks was run there."""


@dataclass(frozen=True, slots=True)
class _Check:
    """A check's name in its parts: what is asked, of what, and where."""

    kind: str
    name: str
    place: str

    @classmethod
    def of(cls, check: str) -> _Check:
        """Take an id apart; a row of the contract says its context, another check its scenario."""
        kind, _, parameters = check.partition("[")
        if not parameters:
            return cls(kind, "", "")
        parameters = parameters.removesuffix("]")
        if not kind.startswith("contract::"):
            return cls(kind, "", parameters)
        name, _, context = parameters.rpartition("@")
        return cls(kind, name, context)


def to_markdown(matrix: Matrix) -> str:
    """Return the page, which ends with a line feed."""
    lines: list[str] = []
    for line in _page(matrix):
        if line or (lines and lines[-1]):  # one empty line between two parts is enough
            lines.append(line)
    while not lines[-1]:
        lines.pop()
    return "\n".join(lines) + "\n"


def _page(matrix: Matrix) -> Iterator[str]:
    yield _HEAD
    yield from ("", "## Environments", "")
    yield from _environments(matrix)
    yield from ("", "## Sums", "")
    yield from _sums(matrix)
    yield from ("", "## Findings", "")
    yield from _findings(matrix)
    yield from ("", "## What differs between versions", "")
    yield from _differences(matrix)
    yield from _variants(matrix)
    yield from _steps(matrix)


def _environments(matrix: Matrix) -> Iterator[str]:
    yield "| environment | torch | triton | transformers | Python | cores | checks | minutes |"
    yield "| --- | --- | --- | --- | --- | ---: | --- | ---: |"
    for column in matrix.columns:
        yield _row(
            column.label,
            column.torch,
            column.triton or "none",
            column.transformers,
            column.python,
            column.cpus,
            _selected(column),
            f"{column.seconds / 60:.1f}",
        )


def _selected(column: Column) -> str:
    if column.is_whole:
        return "all"
    return f"`{column.selected}`" if column.selected else "not recorded"


def _sums(matrix: Matrix) -> Iterator[str]:
    yield _row("environment", *matrix.subjects)
    yield _row(*["---"] * (len(matrix.subjects) + 1))
    for index, column in enumerate(matrix.columns):
        cells = []
        for subject in matrix.subjects:
            counts = matrix.count(index, subject)
            found = [
                f"{count:,} {_MARKS[LETTERS[state]]}" for state, count in counts.items() if count
            ]
            cells.append(", ".join(found))
        yield _row(column.label, *cells)


def _findings(matrix: Matrix) -> Iterator[str]:
    everywhere = tuple(range(len(matrix.columns)))
    for subject in matrix.subjects:
        red = LETTERS[State.RED]
        found = [
            (check, states[subject])
            for check, states in matrix.checks.items()
            if red in states.get(subject, "")
        ]
        if not found:
            columns = [
                column.label
                for index, column in enumerate(matrix.columns)
                if any(
                    states.get(subject, ABSENT * (index + 1))[index] != ABSENT
                    for states in matrix.checks.values()
                )
            ]
            yield f"- `{subject}`: none, in {', '.join(columns)}."
            continue
        yield from (f"- `{subject}`:", "")
        yield from _table(matrix, found, everywhere)
        yield ""


def _differences(matrix: Matrix) -> Iterator[str]:
    versions = matrix.versions
    if len(versions) < 2:
        yield "There is one version."
        return
    yield from _confounded(matrix)
    for subject in matrix.subjects:
        found = _differing(matrix, subject, versions)
        yield from ("", f"### `{subject}`", "")
        if not found:
            yield "Nothing: each check came to the same wherever it applies."
            continue
        yield f"{len(found):,} of the {_known(matrix, subject):,} checks."
        yield ""
        yield from _table(matrix, found, versions)


def _known(matrix: Matrix, subject: str) -> int:
    return sum(subject in states for states in matrix.checks.values())


def _confounded(matrix: Matrix) -> Iterator[str]:
    """Where not vLLM alone differs from one version to the next."""
    for old, new in pairwise(matrix.versions):
        before, after = matrix.columns[old], matrix.columns[new]
        if (before.torch, before.triton is None) != (after.torch, after.triton is None):
            yield (
                f"From {before.vllm} to {after.vllm} torch and triton differ too (see above), and "
                "what differs can be due to them."
            )


def _variants(matrix: Matrix) -> Iterator[str]:
    """What comes out otherwise for one vLLM, installed in another way."""
    for index, column in enumerate(matrix.columns):
        if index in matrix.versions:
            continue
        usual = next(i for i in matrix.versions if matrix.columns[i].vllm == column.vllm)
        yield from ("", f"## What differs with {column.label}", "")
        nothing = True
        for subject in matrix.subjects:
            found = _differing(matrix, subject, (usual, index))
            if found:
                nothing = False
                yield from (f"### `{subject}`, {column.label}", "")
                yield from _table(matrix, found, (usual, index))
                yield ""
        if nothing:
            yield f"Nothing, beside {matrix.columns[usual].label}."


def _differing(matrix: Matrix, subject: str, columns: tuple[int, ...]) -> list[tuple[str, str]]:
    """The checks that came to more than one state in some columns, with all their letters."""
    return [
        (check, states[subject])
        for check, states in matrix.checks.items()
        if subject in states
        and len({states[subject][index] for index in columns} - _SAYS_NOTHING) > 1
    ]


def _steps(matrix: Matrix) -> Iterator[str]:
    """How the set of checks changes, where all were run."""
    whole = [index for index in matrix.versions if matrix.columns[index].is_whole]
    if len(whole) < 2:
        return
    yield from ("", "## How the checks change", "")
    yield "Rows of the contract come from what a release reaches: each step brings and ends some."
    yield ""
    yield "| from | to | checks | new | gone |"
    yield "| --- | --- | ---: | ---: | ---: |"
    there = {
        index: {
            check
            for check, states in matrix.checks.items()
            if any(row[index] != ABSENT for row in states.values())
        }
        for index in whole
    }
    for old, new in pairwise(whole):
        yield _row(
            matrix.columns[old].label,
            matrix.columns[new].label,
            f"{len(there[new]):,}",
            f"{len(there[new] - there[old]):,}",
            f"{len(there[old] - there[new]):,}",
        )


def _table(
    matrix: Matrix, found: Iterable[tuple[str, str]], columns: tuple[int, ...]
) -> Iterator[str]:
    """A row for all checks that ask the same and came to the same in each of some columns."""
    groups: dict[tuple[str, str], list[_Check]] = {}
    for check, letters in found:
        parts = _Check.of(check)
        shown = "".join(letters[index] for index in columns)
        groups.setdefault((parts.kind, shown), []).append(parts)
    yield _row("check", "of", *(matrix.columns[index].label for index in columns))
    yield _row("---", "---", *["---"] * len(columns))
    for (kind, shown), checks in groups.items():
        yield _row(f"`{kind}`", _named(checks), *(_MARKS[letter] for letter in shown))


def _named(checks: list[_Check]) -> str:
    """What some checks are of: names with their contexts, or scenarios; not more than a few."""
    places: dict[str, list[str]] = {}
    for check in checks:
        places.setdefault(check.name, []).append(check.place)
    told = []
    for name, where in places.items():
        inside = ", ".join(sorted(set(where) - {""}))
        if not name:
            told += [cell(place) for place in sorted(set(where) - {""})]
        else:
            told.append(f"`{name.replace('|', chr(92) + '|')}` ({escaped(inside)})")
    rest = len(told) - _MOST_NAMES
    return "; ".join(told[:_MOST_NAMES]) + (f"; and {rest:,} more" if rest > 0 else "")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
