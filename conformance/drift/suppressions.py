"""Findings that somebody has looked at and left out: where, why, and until when.

A file of tables::

    [[suppression]]
    rule = "ADDED"
    attribute = "torch.cuda.cudart"
    path = "vllm/v1/hisparse/runtime.py"
    versions = "==0.33.*"                 # of the new vLLM
    reason = "hierarchical sparse attention is not served here"
    expires = 2027-03-31

It leaves out the sites of that rule and attribute in that file, and no others.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.drift.files import is_in
from conformance.drift.model import Drift, Finding, Site, Suppressed
from conformance.drift.rules import BY_ID
from conformance.target import WrongUse

_KEYS = {"rule", "attribute", "path", "versions", "reason", "expires"}


@dataclass(frozen=True, slots=True)
class Suppression:
    """One table of the file."""

    rule: str
    attribute: str
    path: str
    versions: str
    reason: str
    expires: datetime.date

    @property
    def text(self) -> str:
        """What a warning calls it."""
        return f"{self.rule} of {self.attribute} in {self.path} ({self.versions})"

    def speaks_of(self, version: str) -> bool:
        """Whether it is for this vLLM."""
        return is_in(version, self.versions)

    def leaves(self, finding: Finding) -> Finding | None:
        """The finding without the sites that are left out; None if none is left."""
        if (finding.rule, finding.attribute) != (self.rule, self.attribute):
            return finding

        def kept(sites: Iterable[Site]) -> tuple[Site, ...]:
            return tuple(site for site in sites if site.path != self.path)

        if finding.after:
            after = kept(finding.after)
            return replace(finding, after=after) if after else None
        before = kept(finding.before)
        return replace(finding, before=before) if before else None


def load(path: Path) -> tuple[Suppression, ...]:
    """Read a file.

    Raises:
        WrongUse: it cannot be read, or has anything but what the module says.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WrongUse(f"--suppressions {path} cannot be read as TOML: {error}.") from error
    items = data.get("suppression", [])
    if set(data) - {"suppression"} or not isinstance(items, list):
        raise WrongUse(f"{path} holds tables [[suppression]], and nothing else.")
    return tuple(_read(path, number, item) for number, item in enumerate(items, 1))


def _read(path: Path, number: int, item: object) -> Suppression:
    where = f"{path}, suppression {number}"
    if not isinstance(item, dict):
        raise WrongUse(f"{where}: it is no table with the keys {', '.join(sorted(_KEYS))}.")
    unknown, missing = sorted(set(item) - _KEYS), sorted(_KEYS - set(item))
    if unknown or missing:
        parts = [f"unknown: {', '.join(unknown)}"] if unknown else []
        parts += [f"missing: {', '.join(missing)}"] if missing else []
        raise WrongUse(f"{where}: its keys are {', '.join(sorted(_KEYS))}; {'; '.join(parts)}.")
    texts = {key: item[key] for key in _KEYS - {"expires"}}
    for key, value in texts.items():
        if not isinstance(value, str) or not value.strip():
            raise WrongUse(f"{where}: {key} is a text that says something.")
    if item["rule"] not in BY_ID:
        raise WrongUse(f"{where}: {item['rule']!r} is no rule; they are {', '.join(BY_ID)}.")
    expires = item["expires"]
    if not isinstance(expires, datetime.date) or isinstance(expires, datetime.datetime):
        raise WrongUse(f"{where}: expires is a date, written 2027-03-31 without quotes.")
    try:
        SpecifierSet(item["versions"])
    except InvalidSpecifier as error:
        raise WrongUse(
            f"{where}: {item['versions']!r} are no versions: write such as ==0.33.*."
        ) from error
    return Suppression(**texts, expires=expires)


def apply(
    drift: Drift, suppressions: Iterable[Suppression], today: datetime.date | None = None
) -> Drift:
    """Leave out what the suppressions name, and say which of them are expired or match nothing."""
    today = today or datetime.date.today()
    findings = list(drift.findings)
    left_out: list[Suppressed] = []
    warnings: list[str] = []
    for suppression in suppressions:
        if not suppression.speaks_of(drift.new):
            continue
        if suppression.expires < today:
            warnings.append(
                f"The suppression of {suppression.text} expired on {suppression.expires}, and its "
                "findings count again: look at them, and give it another date or drop it."
            )
            continue
        kept: list[Finding] = []
        matched = False
        for finding in findings:
            rest = suppression.leaves(finding)
            if rest is not finding:
                matched |= rest is None or rest != finding
            if rest is None:
                expires = suppression.expires.isoformat()
                left_out.append(Suppressed(finding, suppression.reason, expires))
            else:
                kept.append(rest)
        findings = kept
        if not matched:
            warnings.append(
                f"The suppression of {suppression.text} matches no finding of vLLM {drift.new}: "
                "drop it."
            )
    return replace(
        drift,
        findings=tuple(findings),
        suppressed=(*drift.suppressed, *left_out),
        warnings=(*drift.warnings, *warnings),
    )
