"""Parsing a module without the bodies of its functions, which are parsed when they are asked for.

Most functions of a large package are never walked, and their bodies are most of its text. The cut
is made on lines, by indentation; where that could be wrong (a string that reaches to the left of
its function, say), the module is parsed as a whole.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

_DEF = re.compile(r"\n([ \t]*)(?:async[ \t]+)?def[ \t]+\w+")
_FIRST_DEF = re.compile(_DEF.pattern.removeprefix(r"\n"))
_HEADER = re.compile(r"""[()\[\]{}:]|\#[^\n]*|\"\"\"|'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""")
_PLAIN_HEADER = re.compile(r"""\([^()"'#]*\)[ ]*(?:->[^:()"'#]*)?:""")

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


def parse_body(body: str, first: int, path: str) -> list[ast.stmt]:
    """Parse a body that was left out; its first line has the number that it has in its module."""
    block = ast.parse("\n" * (first - 2) + "if 1:\n" + body + "\n", path).body[0]
    assert isinstance(block, ast.If)
    return block.body


def _cut(text: str) -> tuple[str, dict[int, Span]] | None:
    """The text with each function's body replaced by ``pass``, and the bodies' lines."""
    if "\f" in text or "\r" in text or "\t" in text:
        return None
    if "\\\n" in text and '"""' not in text:
        return None
    spans: dict[int, Span] = {}
    pieces: list[str] = []
    kept = position = 0
    line = 1  # that of the position
    match = _FIRST_DEF.match(text) or _DEF.search(text)
    while match is not None:
        end = _header_end(text, match.end())
        if end is None:
            return None
        line += text.count("\n", position, match.start(1))
        start = text.find("\n", end) + 1 or len(text)
        rest = text[end + 1 : start].strip()
        position = match.start(1)
        if not rest or rest.startswith("#"):  # else a body on the line of its header
            body = _body(text, start, len(match[1]))
            if not body or body.count('"""') % 2 or body.count("'''") % 2:
                return None
            first, count = line + text.count("\n", position, start), body.count("\n")
            spans[line] = (first, first + count)
            pieces += text[kept:start], match[1] + " pass" + "\n" * count
            kept = position = start + len(body)
            line = first + count
        match = _DEF.search(text, position)
    pieces.append(text[kept:])
    return "".join(pieces), spans


def _header_end(text: str, position: int) -> int | None:
    """Where the colon stands that ends a function's header."""
    plain = _PLAIN_HEADER.match(text, position)
    if plain is not None:
        return plain.end() - 1
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


def _body(text: str, start: int, indent: int) -> str:
    """The block that begins at a position and is indented deeper than ``indent``.

    Comments can stand anywhere; those that are not indented deeper belong to it only if more of it
    comes after them.
    """
    end = _shallow(indent).search(text, start - 1)
    body = text[start : end.start() if end is not None else len(text)].rstrip()
    while True:
        before, _, last = body.rpartition("\n")
        comment = last.lstrip()
        if not comment.startswith("#") or len(last) - len(comment) > indent:
            return body
        body = before.rstrip()


@cache
def _shallow(indent: int) -> re.Pattern[str]:
    """Finds the next line of code that is indented by so many spaces at most."""
    return re.compile(rf"\n {{0,{indent}}}+(?=[^\s#])")


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
