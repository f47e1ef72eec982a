"""Files that are written whole or not at all, and versions that may be none."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from conformance.target import WrongUse


def is_in(version: str, specifier: str) -> bool:
    """Whether a specifier holds a version; a source that does not say its version is in none."""
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def write_whole(path: Path, text: str) -> None:
    """Write a text file by way of a temporary one beside it.

    Raises:
        WrongUse: the folder cannot be written to.
    """
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(prefix=".part-", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(part, 0o644)  # a temporary file is its owner's only
        os.replace(part, path)
    except OSError as error:
        raise WrongUse(
            f"{path} cannot be written ({error.strerror or error}): name another folder."
        ) from error
    finally:
        if part is not None:
            with suppress(OSError):
                os.unlink(part)
