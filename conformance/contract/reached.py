"""What of the surface a CPU path gets to: each attribute, in each context, in each call shape.

Rows of the contract come from here, and so from the inventory: nothing is listed by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from conformance.surface.model import Call, Inventory, Row

NO_ATTRIBUTES = ("device='cuda'", "pin_memory=True", "non_blocking=True")
"""What is on the surface as an argument: it has no object that could be looked up or called."""

COMPILER_OPTIONS = {
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "launch_cooperative_grid",
    "launch_pdl",
    "debug",
    "enable_fp_fusion",
    "waves_per_eu",
    "matrix_instr_nonkdim",
    "kpack",
    "sanitize_overflow",
    "instrumentation_mode",
}
"""Keywords of a launch that Triton's compilers for CUDA and HIP take (3.9), and no kernel."""


@dataclass(frozen=True, order=True)
class Shape:
    """How a site calls: the number of positional arguments, and the names of the keywords.

    What a site unpacks (``*args``, ``**options``) is left out: its length is not written there.
    """

    positional: int = 0
    keywords: tuple[str, ...] = ()

    @classmethod
    def of(cls, call: Call) -> Shape:
        """The shape of a site's call."""
        names = (keyword.partition("=") for keyword in call.keywords)
        return cls(
            sum(1 for argument in call.positional if not argument.startswith("*")),
            tuple(sorted(name for name, equals, _ in names if equals)),
        )

    def __str__(self) -> str:
        return f"({', '.join(['_'] * self.positional + [f'{name}=' for name in self.keywords])})"


@dataclass(frozen=True)
class Use:
    """An attribute in one context: the sites that use it there, and how they call it."""

    attribute: str
    context: str
    sites: tuple[Row, ...]
    shapes: tuple[Shape, ...] = field(default=())

    def is_certain(
        self,
        cut: frozenset[str] = frozenset(),
        kinds: frozenset[str] | None = None,
        shape: Shape | None = None,
    ) -> bool:
        """Whether a CPU surely gets here: a proven chain to a site, of these kinds, this shape.

        ``cut`` holds steps of chains (``Worker.sleep``, ``module:function``) that the subject
        replaces outright, so that nothing behind them is reached through them.
        """
        return any(
            site.on_cpu == "true"
            and (kinds is None or site.kind in kinds)
            and (shape is None or (site.call is not None and Shape.of(site.call) == shape))
            and (self.context != "import" or _runs_at_import(site))
            and not cut.intersection(_steps(site))
            for site in self.sites
        )

    @property
    def kinds(self) -> frozenset[str]:
        """How the sites use it: call, read, annotation, ..."""
        return frozenset(site.kind for site in self.sites)

    @property
    def where(self) -> str:
        """A few of the sites, those that a CPU surely reaches first."""
        order = sorted(self.sites, key=lambda site: (site.on_cpu != "true", site.key))
        shown = [f"{site.module}:{site.line}" for site in order[:3]]
        more = [f"and {len(order) - 3} more"] if len(order) > 3 else []
        return ", ".join((*shown, *more))

    @property
    def chain(self) -> tuple[str, ...]:
        """How the runner gets to the first of these sites."""
        return min(self.sites, key=lambda site: (site.on_cpu != "true", site.key)).chain


def uses(inventory: Inventory, generation: str) -> tuple[Use, ...]:
    """All that a runner generation reaches on a CPU, or may reach, by attribute and context."""
    sites: dict[tuple[str, str], list[Row]] = {}
    for row in inventory.generation(generation):
        if row.on_cpu == "false" or row.kind == "write":
            continue
        for context in row.contexts:
            sites.setdefault((row.attribute, context), []).append(row)
    return tuple(
        Use(attribute, context, tuple(rows), _shapes(attribute, rows))
        for (attribute, context), rows in sorted(sites.items())
    )


def _shapes(attribute: str, rows: Iterable[Row]) -> tuple[Shape, ...]:
    if attribute in NO_ATTRIBUTES:
        return ()
    called = (row.call for row in rows if row.kind in ("call", "launch", "predicate"))
    return tuple(sorted({Shape.of(call) for call in called if call is not None}))


def _runs_at_import(site: Row) -> bool:
    """Whether it is written where importing the module executes it."""
    return site.function == "<module>" or site.kind in ("annotation", "import", "class")


def _steps(site: Row) -> Iterator[str]:
    """Each step of a chain by the names that it may be cut at."""
    for step in site.chain:
        module, _, rest = step.partition(":")
        function = rest.rpartition(":")[0]
        yield function
        yield f"{module}:{function}"
