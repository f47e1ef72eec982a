"""What a function takes, and whether a call fits: signatures as data, read from source."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from conformance.surface.model import Call


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of a function; ``self`` is left out of a method's.

    ``names`` can be given by position and by keyword, the first ``required`` of them must be given.
    ``only`` are keyword-only ones, those in ``needed`` without a default. ``rest`` and ``others``
    say whether it takes ``*args`` and ``**kwargs``.
    """

    names: tuple[str, ...] = ()
    required: int = 0
    only: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    rest: bool = False
    others: bool = False
    by_position: int = 0
    """How many of the first names cannot be given by keyword."""

    @classmethod
    def of(cls, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, *, bound: bool) -> Shape:
        """Read a signature; of a ``bound`` one the first parameter is left out."""
        arguments = node.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        skip = 1 if bound and names else 0
        return cls(
            names=tuple(names[skip:]),
            required=max(0, len(names) - len(arguments.defaults) - skip),
            only=tuple(argument.arg for argument in arguments.kwonlyargs),
            needed=tuple(
                argument.arg
                for argument, default in zip(
                    arguments.kwonlyargs, arguments.kw_defaults, strict=True
                )
                if default is None
            ),
            rest=arguments.vararg is not None,
            others=arguments.kwarg is not None,
            by_position=max(0, len(arguments.posonlyargs) - skip),
        )

    @property
    def all_names(self) -> tuple[str, ...]:
        """Every name that a keyword can have."""
        return (*self.names[self.by_position :], *self.only)

    def refuses(self, call: Call | None) -> str | None:
        """Say why a call does not fit, None if it does, or if its stars hide whether it does."""
        if call is None:
            return None
        positional = [text for text in call.positional if not text.startswith("*")]
        keywords = [text.partition("=")[0] for text in call.keywords if not text.startswith("**")]
        starred = len(positional) < len(call.positional)
        double = len(keywords) < len(call.keywords)
        if len(positional) > len(self.names) and not self.rest:
            return f"it takes {len(self.names)} arguments, and is given {len(positional)}"
        if not self.others:
            unknown = [name for name in keywords if name not in self.all_names]
            if unknown:
                return f"it does not take {', '.join(unknown)}"
        if not starred and not double:
            given = {*self.names[: len(positional)], *keywords}
            missing = [n for n in (*self.names[: self.required], *self.needed) if n not in given]
            if missing:
                return f"it needs {', '.join(missing)}"
        return None

    @property
    def text(self) -> str:
        """As one would write it."""
        parts = [
            name if index < self.required else f"{name}=..."
            for index, name in enumerate(self.names)
        ]
        if self.by_position:
            parts.insert(self.by_position, "/")
        if self.rest:
            parts.append("*args")
        elif self.only:
            parts.append("*")
        parts += [name if name in self.needed else f"{name}=..." for name in self.only]
        if self.others:
            parts.append("**kwargs")
        return f"({', '.join(parts)})"

    def to_json(self) -> dict[str, Any]:
        """Only what is not the default."""
        found = {
            "names": list(self.names),
            "required": self.required,
            "only": list(self.only),
            "needed": list(self.needed),
            "rest": self.rest,
            "others": self.others,
            "by_position": self.by_position,
        }
        return {key: value for key, value in found.items() if value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Shape:
        """Read what `to_json` gave; TypeError for anything else."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        return cls(**values)


def differences(before: Shape, after: Shape) -> tuple[str, ...]:
    """Say what changed between two signatures of one function; empty if nothing did."""
    found = []
    gone = [name for name in before.all_names if name not in after.all_names]
    new = [name for name in after.all_names if name not in before.all_names]
    if new:
        found.append(f"it takes {_listed(new)} now")
    if gone:
        found.append(f"it no longer takes {_listed(gone)}")
    if not found and before != after:
        found.append(f"it was {before.text} and is {after.text}")
    return tuple(found)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
