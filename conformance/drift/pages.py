"""Drift over the known releases: a page for each step from one to the next, with judgements.

    python -m conformance.drift.pages [DIR]

writes the pages anew, by default into ``docs/drift``. What people found when they read the sources
is data of its own, ``judgements.toml`` in that folder, so that pages can be made again and again::

    [[step]]
    step = "0.19.1..0.20.0"
    text = "What it came to, in Markdown."

    [[judgement]]
    step = "0.19.1..0.20.0"
    rule = "CONTEXT"
    attribute = "torch.accelerator.synchronize"
    path = "vllm/v1/worker/gpu_model_runner.py"
    verdict = true
    why = "what was read, and what follows"
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from packaging.version import Version

from conformance.drift.command import Options, drift_of
from conformance.drift.files import write_whole
from conformance.drift.model import Drift, Finding
from conformance.report.findings_markdown import cell, finding_lines
from conformance.report.findings_text import by_rule, heading, many, place, sums
from conformance.surface.inventory import INVENTORIES
from conformance.target import WrongUse

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "drift"
JUDGEMENTS = "judgements.toml"

_JUDGEMENT = {"step", "rule", "attribute", "path", "verdict", "why"}
_MARK = "<!-- made by `python -m conformance.drift.pages`; edit judgements.toml instead -->"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What reading the source said about one error-level finding."""

    step: str
    rule: str
    attribute: str
    path: str
    verdict: bool
    why: str

    def speaks_of(self, finding: Finding) -> bool:
        """Whether it is about a finding: one of its sites is in the file that was read."""
        return (finding.rule, finding.attribute) == (self.rule, self.attribute) and any(
            site.path == self.path for site in finding.sites
        )


@dataclass(frozen=True, slots=True)
class Judgements:
    """The file's content."""

    texts: dict[str, str]
    found: tuple[Judgement, ...]

    def of(self, step: str, finding: Finding) -> Judgement | None:
        """The judgement of a finding in a step."""
        for judgement in self.found:
            if judgement.step == step and judgement.speaks_of(finding):
                return judgement
        return None


def load(path: Path) -> Judgements:
    """Read a file of judgements; there are none where there is no file.

    Raises:
        WrongUse: it is not what the module says.
    """
    if not path.exists():
        return Judgements({}, ())
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WrongUse(f"{path} cannot be read as TOML: {error}.") from error
    if set(data) - {"step", "judgement"}:
        raise WrongUse(f"{path} holds tables [[step]] and [[judgement]], and nothing else.")
    texts: dict[str, str] = {}
    for item in data.get("step", []):
        _require(path, item, {"step", "text"})
        texts[item["step"]] = item["text"]
    found = []
    for item in data.get("judgement", []):
        _require(path, item, _JUDGEMENT)
        if not isinstance(item["verdict"], bool) or not str(item["why"]).strip():
            raise WrongUse(f"{path}: a judgement is true or false, and says why: {item}.")
        found.append(Judgement(**item))
    return Judgements(texts, tuple(found))


def _require(path: Path, item: Any, keys: set[str]) -> None:
    if not isinstance(item, dict) or set(item) != keys:
        raise WrongUse(f"{path}: a table has the keys {', '.join(sorted(keys))}: {item}.")


def steps() -> list[tuple[str, str]]:
    """Each known release with the next one."""
    versions = sorted((path.stem for path in INVENTORIES.glob("*.json")), key=Version)
    return list(pairwise(versions))


def write(directory: Path = DIRECTORY, wanted: Iterable[tuple[str, str]] | None = None) -> None:
    """Write the pages of all steps and the table of them, or the pages of some.

    Raises:
        WrongUse: a judgement is of no finding, or the folder cannot be written to.
    """
    judgements = load(directory / JUDGEMENTS)
    drifts = [drift_of(Options(old, new)) for old, new in wanted or steps()]
    if wanted is None:
        _require_findings(judgements, drifts, directory / JUDGEMENTS)
    for drift in drifts:
        write_whole(directory / _name(drift), page(drift, judgements))
    if wanted is None:
        write_whole(directory / "README.md", overview(drifts, judgements))


def _require_findings(judgements: Judgements, drifts: list[Drift], path: Path) -> None:
    errors = {_step(drift): _errors(drift) for drift in drifts}
    lost = [
        f"{judgement.rule} {judgement.attribute} ({judgement.step})"
        for judgement in judgements.found
        if not any(judgement.speaks_of(finding) for finding in errors.get(judgement.step, ()))
    ]
    if lost:
        raise WrongUse(
            f"{path} judges what is no error any more: {', '.join(lost)}; read the source again, "
            "and drop or change these."
        )


def page(drift: Drift, judgements: Judgements) -> str:
    """Return the page of one step."""
    return "\n".join(_page(drift, judgements)) + "\n"


def _page(drift: Drift, judgements: Judgements) -> Iterator[str]:
    step = _step(drift)
    yield _MARK
    yield ""
    yield f"# {heading(drift)}"
    yield ""
    yield f"{sums(drift)}."
    if step in judgements.texts:
        yield ""
        yield judgements.texts[step].strip()
    errors = _errors(drift)
    if errors:
        yield from ("", "## Errors")
    for finding in errors:
        yield from ("", f"### {finding.rule}: `{finding.attribute}`", "")
        judgement = judgements.of(step, finding)
        if judgement is None:
            yield "**Not judged yet.**"
        else:
            yield f"**Judged {'true' if judgement.verdict else 'false'}**: {judgement.why.strip()}"
        yield ""
        yield from finding_lines(finding, drift)
    warnings = [finding for finding in drift.findings if finding.severity == "warning"]
    if warnings:
        yield from ("", "## Warnings", "")
        yield "| rule | attribute | generation | upstream | ours | first site |"
        yield "| --- | --- | --- | --- | --- | --- |"
        yield from map(_line, warnings)
    handled = [f for f in drift.findings if f.was_upstream and f.upstream.handled]
    if handled:
        yield from ("", "## What upstream's CPU side came to handle", "")
        yield from (f"- `{f.attribute}`: {cell(f.upstream.text)}" for f in handled)
    notes = [finding for finding in drift.findings if finding.severity == "note"]
    if notes:
        yield from ("", "## Notes", "", f"{by_rule(notes)}; `vllm-conformance drift {drift.old} "
                    f"{drift.new} --format markdown` tells each.")  # fmt: skip
    if drift.not_checked:
        yield from ("", "## Not checked", "")
        yield from (f"- {cell(text)}" for text in drift.not_checked)


def _line(finding: Finding) -> str:
    cells = (
        finding.rule,
        f"`{finding.attribute}`",
        finding.generation,
        finding.upstream.state,
        finding.ours.state,
        f"`{place(finding.site)}`",
    )
    return f"| {' | '.join(cells)} |"


def overview(drifts: list[Drift], judgements: Judgements) -> str:
    """Return the table of all steps."""
    lines = [
        _MARK,
        "",
        "# Drift, release by release",
        "",
        "What each release of vLLM reaches of the device that the one before it did not, and what "
        "vLLM's own CPU runner and this project's do about it. An error is what surely breaks "
        "upstream's CPU runner, by the source alone; each was judged by reading the source on the "
        "way to it. `judgements.toml` holds what was read; `python -m conformance.drift.pages` "
        "makes the pages anew. [how-to.md](how-to.md) says what rules, severities and states are.",
        "",
        "| step | errors | judged true | judged false | not judged | warnings | notes |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    totals = [0] * 6
    for drift in drifts:
        counts = _counts(drift, judgements)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        name = f"[{drift.old} to {drift.new}]({_name(drift)})"
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    lines.append(f"| all | {' | '.join(map(str, totals))} |")
    judged = totals[1] + totals[2]
    if judged:
        lines += ["", f"Of {many(judged, 'judged error')} {totals[2]} were false."]
    return "\n".join(lines) + "\n"


def _counts(drift: Drift, judgements: Judgements) -> list[int]:
    errors = _errors(drift)
    judged = [judgements.of(_step(drift), finding) for finding in errors]
    true = sum(1 for judgement in judged if judgement is not None and judgement.verdict)
    false = sum(1 for judgement in judged if judgement is not None and not judgement.verdict)
    return [
        len(errors),
        true,
        false,
        len(errors) - true - false,
        drift.count("warning"),
        drift.count("note"),
    ]


def _errors(drift: Drift) -> list[Finding]:
    return [finding for finding in drift.findings if finding.severity == "error"]


def _step(drift: Drift) -> str:
    return f"{drift.old}..{drift.new}"


def _name(drift: Drift) -> str:
    return f"{drift.old}-{drift.new}.md"


def main(arguments: list[str]) -> int:
    """Write the pages."""
    try:
        write(Path(arguments[0]) if arguments else DIRECTORY)
    except WrongUse as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
