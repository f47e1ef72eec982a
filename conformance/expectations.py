"""Known failures: exact checks, the versions they hold for, why, and where it is told.

They are strict: a check that is expected to fail and passes is a failure.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.target import WrongUse

_KEYS = {"checks", "versions", "reason", "link"}


@dataclass(frozen=True)
class Expectation:
    """Checks that fail for one subject, all for one reason."""

    subject: str
    checks: tuple[str, ...]
    versions: str
    reason: str
    link: str

    def speaks_of(self, version: str) -> bool:
        """Whether it holds for this version of vLLM."""
        return SpecifierSet(self.versions).contains(version, prereleases=True)


def load(directory: Path) -> tuple[Expectation, ...]:
    """Read ``<subject>.toml`` files; a missing directory holds none.

    Raises:
        WrongUse: a file is not what it should be; unknown and missing keys count.
    """
    found: list[Expectation] = []
    for path in sorted(directory.glob("*.toml")):
        try:
            data = tomllib.loads(path.read_text())
        except tomllib.TOMLDecodeError as error:
            raise WrongUse(f"{path.name} is no TOML: {error}.") from error
        if set(data) - {"expectation"}:
            raise WrongUse(f"{path.name}: unknown keys {sorted(set(data) - {'expectation'})}.")
        found.extend(_read(path, item) for item in data.get("expectation", []))
    return tuple(found)


def _read(path: Path, item: dict[str, object]) -> Expectation:
    if set(item) != _KEYS:
        raise WrongUse(f"{path.name}: an expectation has the keys {sorted(_KEYS)}: {sorted(item)}.")
    checks, versions = item["checks"], str(item["versions"])
    if not isinstance(checks, list) or not checks or not str(item["reason"]).strip():
        raise WrongUse(f"{path.name}: an expectation names its checks and its reason.")
    try:
        SpecifierSet(versions)
    except InvalidSpecifier as error:
        raise WrongUse(f"{path.name}: {versions!r} are no versions.") from error
    return Expectation(
        path.stem, tuple(map(str, checks)), versions, str(item["reason"]), str(item["link"])
    )
