"""What a comparison of two vLLMs comes to: findings, and what was not checked. Plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from conformance.drift.side import Cover
from conformance.surface.model import Row

SCHEMA = "vllm-conformance/drift/1"

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""Worst first."""


def rank(severity: Severity) -> int:
    """0 for the worst."""
    return SEVERITIES.index(severity)


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of drift."""

    id: str
    title: str
    severity: Severity
    """The worst that a finding of it can be."""
    explanation: str
    """What it is, when it is an error, and what to do about one."""
    reference: str
    """A public case of it."""


@dataclass(frozen=True, slots=True)
class Site:
    """One place of a vLLM that a finding speaks of.

    ``path`` is POSIX and relative to the tree, empty where no file is meant. ``chain`` leads there
    from the runner, ``module:function:line`` each, empty where nothing is reached.
    """

    path: str
    line: int
    function: str
    contexts: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()
    on_cpu: str = ""
    tier: str = ""
    reason: str = ""
    arguments: str | None = None
    guards: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        return {
            "path": self.path,
            "line": self.line,
            "function": self.function,
            "contexts": list(self.contexts),
            "chain": list(self.chain),
            "on_cpu": self.on_cpu,
            "tier": self.tier,
            "reason": self.reason,
            "arguments": self.arguments,
            "guards": list(self.guards),
        }


def site_of(row: Row) -> Site:
    """The site of a row of an inventory."""
    return Site(
        path=path_of(row.module),
        line=row.line,
        function=row.function,
        contexts=row.contexts,
        chain=row.chain,
        on_cpu=row.on_cpu,
        tier=row.tier,
        reason=row.reason,
        arguments=None if row.call is None else row.call.text,
        guards=row.guards,
    )


def places(rows: Iterable[Row], first: Row | None = None) -> tuple[Site, ...]:
    """The sites of rows in their order, ``first`` in front, each place once."""
    ordered = sorted(rows, key=lambda row: row.key)
    found: dict[tuple[str, int, str], Site] = {}
    for row in [*([first] if first is not None else []), *ordered]:
        found.setdefault((row.module, row.line, row.attribute), site_of(row))
    return tuple(found.values())


def path_of(module: str) -> str:
    """A module's file, as far as its name tells; a package's is its ``__init__.py``."""
    return f"{module.replace('.', '/')}.py"


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between two vLLMs.

    ``before`` and ``after`` are the sites in either; ``sites`` of a report are those after, or,
    where nothing is left, those before. ``host`` says what a host without an accelerator does with
    the attribute. ``upstream`` and ``ours`` are what the two CPU sides do in the new version.
    """

    rule: str
    severity: Severity
    attribute: str
    message: str
    """One sentence: what changed, and what comes of it."""
    advice: str
    before: tuple[Site, ...] = ()
    after: tuple[Site, ...] = ()
    before_attribute: str = ""
    """What stood there before, where that is another attribute."""
    generation: str = "both"
    contexts: tuple[str, ...] = ()
    host: str = ""
    upstream: Cover = field(default=Cover("not checked", "nothing is known of it"))
    ours: Cover = field(default=Cover("not checked", "nothing is known of it"))
    was_upstream: str = ""
    """What upstream's side did in the old version, where that is known."""

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites to look at."""
        return self.after or self.before

    @property
    def site(self) -> Site | None:
        """The site to look at first."""
        return self.sites[0] if self.sites else None

    @property
    def key(self) -> tuple[Any, ...]:
        """What findings are sorted by."""
        first = self.site
        where = (first.path, first.line) if first else ("", 0)
        return (rank(self.severity), self.rule, self.attribute, self.generation, *where)

    @property
    def id(self) -> str:
        """What a finding is known by from one comparison to the next; lines are no part of it."""
        paths = sorted({site.path for site in self.sites})
        return "|".join((self.rule, self.attribute, self.generation, *paths))

    def to_json(self) -> dict[str, Any]:
        """The finding as in ``drift --format json``."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "attribute": self.attribute,
            "before": {
                "attribute": self.before_attribute or (self.attribute if self.before else None),
                "sites": [site.to_json() for site in self.before],
                "upstream": self.was_upstream or None,
            },
            "after": {
                "attribute": self.attribute if self.after else None,
                "sites": [site.to_json() for site in self.after],
            },
            "sites": [f"{site.path}:{site.line}" for site in self.sites],
            "generation": self.generation,
            "contexts": list(self.contexts),
            "host": self.host,
            "handled": {
                side: {"by": cover.state, "handled": cover.handled, "text": cover.text}
                for side, cover in (("upstream", self.upstream), ("ours", self.ours))
            },
            "message": self.message,
            "advice": self.advice,
            "id": self.id,
        }


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A finding that is left out, and why."""

    finding: Finding
    reason: str
    expires: str


@dataclass(frozen=True, slots=True)
class Uncovered:
    """An attribute that the new vLLM reaches and a runner leaves alone."""

    attribute: str
    cover: Cover
    sites: tuple[Site, ...]
    sure: int
    """At how many of the sites it is sure that a platform other than a GPU gets there."""
    new: bool
    """Whether the new version came to reach it, or reaches it otherwise."""

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        return {
            "attribute": self.attribute,
            "by": self.cover.state,
            "text": self.cover.text,
            "sites": [site.to_json() for site in self.sites],
            "sure": self.sure,
            "new": self.new,
        }


@dataclass(frozen=True, slots=True)
class Drift:
    """A comparison. ``not_checked`` are sentences, ``torch`` what either version pins."""

    old: str
    new: str
    torch: tuple[str | None, str | None]
    findings: tuple[Finding, ...]
    rules: tuple[Rule, ...]
    not_checked: tuple[str, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    warnings: tuple[str, ...] = ()
    """What is wrong with the suppressions."""
    runner: str = ""
    """Whose side ``ours`` is, if not this project's."""
    uncovered: tuple[Uncovered, ...] = ()
    """What that runner leaves alone of all that the new version reaches."""

    @classmethod
    def of(cls, old: str, new: str, findings: Iterable[Finding], **rest: Any) -> Drift:
        """Findings in their stable order."""
        return cls(old, new, findings=tuple(sorted(findings, key=lambda f: f.key)), **rest)

    def count(self, severity: Severity) -> int:
        """How many findings have a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def fails(self, fail_on: str) -> bool:
        """Whether a finding is as bad as ``error`` or ``warning``; never for ``never``."""
        if fail_on == "never":
            return False
        limit = SEVERITIES.index(fail_on)
        return any(rank(finding.severity) <= limit for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The comparison as in ``drift --format json``."""
        return {
            "schema": SCHEMA,
            "old": self.old,
            "new": self.new,
            "torch": {"old": self.torch[0], "new": self.torch[1]},
            "runner": self.runner or "runner_under_test",
            "counts": {severity: self.count(severity) for severity in SEVERITIES},
            "findings": [finding.to_json() for finding in self.findings],
            "not_checked": list(self.not_checked),
            "suppressed": [
                {
                    "rule": item.finding.rule,
                    "attribute": item.finding.attribute,
                    "reason": item.reason,
                    "expires": item.expires,
                }
                for item in self.suppressed
            ],
            "warnings": list(self.warnings),
            "uncovered": [item.to_json() for item in self.uncovered],
        }
