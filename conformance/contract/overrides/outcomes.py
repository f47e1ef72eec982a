"""What is wrong with a subject's overrides: one child checks all, one more after each crash."""

from __future__ import annotations

from dataclasses import dataclass, field

from conformance.contract.overrides.names import OTHERS, methods_of
from conformance.scenarios.host import Host
from conformance.target import Subject

_ENTRY = "conformance.contract.overrides.run:run"


@dataclass(frozen=True)
class Outcome:
    """What a row shows: nothing wrong, what is wrong, or why it does not apply."""

    wrong: str | None = None
    not_applicable: str | None = None


@dataclass
class Overrides:
    """A subject's overrides as the child found them: outcomes by ``tier/role.method``."""

    found: tuple[str, ...] = ()
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failure: str | None = None

    def of(self, subject: Subject, tier: str, row: str) -> Outcome:
        """Return what a row shows. The row `OTHERS` is about all that no row names."""
        named = {method.name for method in methods_of(subject)}
        if row == OTHERS:
            return self._others(tier, named)
        method = row.partition("/")[0]
        if method in self.found:
            return self.outcomes.get(f"{tier}/{row}") or Outcome(self.failure or "it was not run")
        if method not in named:
            return Outcome(not_applicable=f"{subject.name} does not define {method}")
        return Outcome(
            self.failure
            or f"its source defines {method}, and the class has the base's: see what takes it out"
        )

    def _others(self, tier: str, named: set[str]) -> Outcome:
        rest = [name for name in self.found if name not in named]
        wrong = [
            outcome.wrong
            for name in rest
            for key, outcome in self.outcomes.items()
            if (key == f"{tier}/{name}" or key.startswith(f"{tier}/{name}/")) and outcome.wrong
        ]
        if self.failure and not wrong:
            wrong = [self.failure]
        if wrong:
            return Outcome("\n".join(wrong))
        if not rest:
            return Outcome(not_applicable="every method that the classes define has rows")
        return Outcome()


def check(
    host: Host,
    subject: Subject,
    model: str,
    *,
    only: list[str] | None = None,
    fault: str | None = None,
) -> Overrides:
    """Check a subject's overrides; one whose check ends the process is wrong, the rest go on.

    ``only`` names the rows to check, ``tier/role.method``. ``fault`` names a function,
    ``module:function``, that the child calls before it looks.
    """
    seen = Overrides()
    while True:
        run = host.run(
            _ENTRY,
            {
                "subject": subject.name,
                "worker_cls": subject.worker_cls,
                "model": model,
                "done": sorted(seen.outcomes),
                "only": only,
                "fault": fault,
            },
            label=f"{subject.name}, overrides",
        )
        results = dict(run.results)
        seen.found = tuple(results.pop("found", seen.found))
        seen.outcomes.update(
            (name, Outcome(**(result or {}))) for name, result in results.items() if "/" in name
        )
        if run.failure is None:
            return seen
        culprit = next((p.name for p in run.phases if not p.ended and "/" in p.name), None)
        if culprit is None or culprit in seen.outcomes:
            seen.failure = run.failure
            return seen
        seen.outcomes[culprit] = Outcome(run.failure)
