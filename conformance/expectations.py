"""Known failures: exact checks, the versions they hold for, why, and where it is told.

They are strict: a check that is expected to fail and passes is a failure.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.target import WrongUse, parse_subject

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
    """Read ``<subject>.toml``, and the files of directories ``<subject>``, one for each fault.

    In a subject's name ``__`` stands for a class's colon.

    Raises:
        WrongUse: a file is not what it should be; unknown and missing keys count.
    """
    found: list[Expectation] = []
    for path in sorted((*directory.glob("*.toml"), *directory.glob("*/*.toml"))):
        subject = path.stem if path.parent == directory else path.parent.name
        try:
            data = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise WrongUse(f"{path.name} cannot be read as TOML: {error}.") from error
        items = data.get("expectation", [])
        if set(data) - {"expectation"} or not isinstance(items, list):
            raise WrongUse(f"{path.name} holds tables [[expectation]], and nothing else.")
        parse_subject(subject.replace("__", ":"))
        found.extend(_read(path, subject.replace("__", ":"), item) for item in items)
    return tuple(found)


def _read(path: Path, subject: str, item: object) -> Expectation:
    if not isinstance(item, dict) or set(item) != _KEYS:
        raise WrongUse(f"{path.name}: an expectation has the keys {sorted(_KEYS)}: {item}.")
    checks, versions = item["checks"], str(item["versions"])
    if not isinstance(checks, list) or not checks or not str(item["reason"]).strip():
        raise WrongUse(f"{path.name}: an expectation names its checks and its reason.")
    try:
        SpecifierSet(versions)
    except InvalidSpecifier as error:
        raise WrongUse(f"{path.name}: {versions!r} are no versions.") from error
    return Expectation(
        subject,
        tuple(map(str, checks)),
        versions,
        str(item["reason"]),
        str(item["link"]),
    )
