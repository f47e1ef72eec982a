"""Parsing a module without the bodies of its functions, which are parsed when they are asked for.

Most functions of a large package are never walked, and their bodies are most of its text. The cut
is made on lines, by indentation; where that could be wrong (a string that reaches to the left of
its function, say), the module is parsed as a whole.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

_DEF = re.compile(r"\n([ \t]*)(?:async[ \t]+)?def[ \t]+\w+")
_FIRST_DEF = re.compile(_DEF.pattern.removeprefix(r"\n"))
_HEADER = re.compile(r"""[()\[\]{}:]|\#[^\n]*|\"\"\"|'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""")

Span = tuple[int, int]
"""First and last line of a body, counted from 1."""


def parse(text: str, path: str) -> tuple[ast.Module, dict[int, Span]]:
    """Parse a source; functions of the returned spans, by the line of their ``def``, lack bodies.

    Raises:
        SyntaxError, ValueError: as ``ast.parse``.
    """
    cut = _cut(text)
    if cut is not None:
        outline, spans = cut
        try:
            tree = ast.parse(outline, path)
        except SyntaxError:
            pass
        else:
            if spans.keys() <= {node.lineno for node in _functions(tree.body)}:
                return tree, spans
    return ast.parse(text, path), {}


def parse_body(lines: list[str], span: Span, path: str) -> list[ast.stmt]:
    """Parse a body that was left out, with the line numbers that it has in its module."""
    first, last = span
    text = "\n" * (first - 2) + "if 1:\n" + "\n".join(lines[first - 1 : last]) + "\n"
    block = ast.parse(text, path).body[0]
    assert isinstance(block, ast.If)
    return block.body


def _cut(text: str) -> tuple[str, dict[int, Span]] | None:
    """The text with each function's body replaced by ``pass``, and the bodies' lines."""
    if "\f" in text or "\r" in text or ("\\\n" in text and '"""' not in text):
        return None
    lines = text.split("\n")
    starts = _line_starts(lines)
    spans: dict[int, Span] = {}
    position = line = 0
    pieces: list[str] = []
    kept = 0
    match = _FIRST_DEF.match(text) or _DEF.search(text)
    while match is not None:
        position = match.end()
        end = _header_end(text, position)
        if end is None:
            return None
        number = bisect_right(starts, match.start(1), line) - 1
        line = bisect_right(starts, end, number) - 1
        rest = text[end + 1 : starts[line] + len(lines[line])].strip()
        if not rest or rest.startswith("#"):  # else a body on the line of its header
            first = line + 1
            last = _last_line(lines, first, len(match[1].expandtabs()))
            if last < first:
                return None
            position = starts[last] + len(lines[last])
            body = text[starts[first] : position]
            if body.count('"""') % 2 or body.count("'''") % 2:
                return None
            pieces.append(text[kept : starts[first]])
            pieces.append(match[1] + " pass" + "\n" * (last - first))
            kept = position
            spans[number + 1] = (first + 1, last + 1)
            line = last
        match = _DEF.search(text, position)
    pieces.append(text[kept:])
    return "".join(pieces), spans


def _line_starts(lines: list[str]) -> list[int]:
    return [0, *accumulate(len(line) + 1 for line in lines)][:-1]


def _header_end(text: str, position: int) -> int | None:
    """Where the colon stands that ends a function's header."""
    depth = 0
    for match in _HEADER.finditer(text, position):
        token = match[0]
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
        elif token == ":" and depth == 0:
            return match.start()
        elif token in ('"""', "'''"):
            return None
    return None


def _last_line(lines: list[str], first: int, indent: int) -> int:
    """The last line of a block that is indented deeper than ``indent``, counted from 0."""
    last = first - 1
    for number in range(first, len(lines)):
        line = lines[number]
        text = line.lstrip()
        if not text:
            continue
        if len(line) - len(text) <= indent and len(_expanded(line, text)) <= indent:
            if text[0] == "#":
                continue  # a comment can stand anywhere
            break
        last = number
    return last


def _expanded(line: str, text: str) -> str:
    """A line's indentation, tabs as spaces."""
    return line[: len(line) - len(text)].expandtabs()


def _functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
            continue
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(statement, name, None)
            if isinstance(inner, list):
                yield from _functions(inner)
        for handler in getattr(statement, "handlers", ()):
            yield from _functions(handler.body)
        for case in getattr(statement, "cases", ()):
            yield from _functions(case.body)
