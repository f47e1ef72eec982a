"""Where releases come from: a package index, or a local folder of wheels and sdists."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from conformance.drift import facts
from conformance.surface import releases
from conformance.surface.inventory import known_path
from conformance.surface.releases import configured_index
from conformance.target import WrongUse
from conformance.watch.news import Release

_VARIABLE = (
    "UV_DEFAULT_INDEX"  # the first that `configured_index` looks at, and child processes too
)
_TIMEOUT = (10.0, 60.0)  # seconds, to connect and between two pieces of an answer


class Feed(Protocol):
    """What a watch asks of it. Whatever cannot be answered is a WrongUse with its reason."""

    links: tuple[str, ...]
    """Folders that an installer has to be told of."""

    def versions(self, package: str, *, pre: bool) -> list[str]:
        """A package's versions, oldest first; ``pre`` adds previews."""

    def spec(self, release: Release) -> str:
        """What `open_source` takes for a release."""

    def installable(self, release: Release) -> bool:
        """Whether there is a wheel for this Python on this machine."""


@contextmanager
def open_feed(index: str | None) -> Iterator[Feed]:
    """Use a folder, an index's address, or the index that pip or uv is configured with.

    Raises:
        WrongUse: it is neither a folder nor an address.
    """
    if index is None:
        yield _Index()
    elif Path(index).is_dir():
        yield _Folder(Path(index).resolve())
    elif index.startswith(("https://", "http://")):
        before = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = index
        try:
            yield _Index()
        finally:
            if before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = before
    else:
        raise WrongUse(
            "--index takes a folder of wheels and sdists that exists, or the address of a package "
            "index, which begins with https://."
        )


class _Index:
    links: tuple[str, ...] = ()

    def versions(self, package: str, *, pre: bool) -> list[str]:
        return releases.releases(package, pre=pre)

    def spec(self, release: Release) -> str:
        return f"{release.package}=={release.version}"

    def installable(self, release: Release) -> bool:
        from pypi_simple import PyPISimple

        url = configured_index()
        with PyPISimple(url) if url else PyPISimple() as index:
            certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
            if certificates and Path(certificates).is_file():
                index.s.verify = certificates
            try:
                files = index.get_project_page(release.package, timeout=_TIMEOUT).packages
            except Exception as error:
                # Neither the error's text nor the address: both may hold a password.
                raise WrongUse(
                    f"which wheels {release.label} has was not to be learnt from the package index "
                    f"({type(error).__name__})."
                ) from None
        return any(
            not file.is_yanked
            and _is_wheel_of(file.filename, release)
            and _takes_this_python(file.requires_python)
            for file in files
        )


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.links: tuple[str, ...] = (str(folder),)

    def versions(self, package: str, *, pre: bool) -> list[str]:
        found = {release.version for release, _ in self._files() if release.package == package}
        ordered = sorted(map(Version, found))
        return [str(version) for version in ordered if pre or not version.is_prerelease]

    def spec(self, release: Release) -> str:
        files = [path for found, path in self._files() if found == release]
        if files:
            # As from an index: the sdist, else the smallest wheel.
            return str(min(files, key=lambda p: (p.suffix == ".whl", p.stat().st_size, p.name)))
        version = release.version
        if known_path(version).is_file() and facts.known(version) is not None:
            return f"{release.package}=={version}"  # nothing of it has to be fetched
        raise WrongUse(f"the folder {self._folder} has no {release.label}.")

    def installable(self, release: Release) -> bool:
        return any(_is_wheel_of(path.name, release) for _, path in self._files())

    def _files(self) -> Iterator[tuple[Release, Path]]:
        """What lies in the folder, and in those within it, as an index's pages are laid out."""
        try:
            paths = sorted((*self._folder.iterdir(), *self._folder.glob("*/*")))
        except OSError as error:
            raise WrongUse(
                f"the folder {self._folder} cannot be listed ({error.strerror or error})."
            ) from error
        for path in paths:
            release = _named(path.name)
            if release is not None and path.is_file():
                yield release, path


def _named(filename: str) -> Release | None:
    try:
        if filename.endswith(".whl"):
            name, version, _, _ = parse_wheel_filename(filename)
        else:
            name, version = parse_sdist_filename(filename)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    return Release(canonicalize_name(name), str(version))


def _is_wheel_of(filename: str, release: Release) -> bool:
    """Whether it is a wheel of a release, for the Python that runs here."""
    if not filename.endswith(".whl") or _named(filename) != release:
        return False
    return not parse_wheel_filename(filename)[3].isdisjoint(sys_tags())


def _takes_this_python(specifier: str | None) -> bool:
    from platform import python_version

    try:
        return specifier is None or SpecifierSet(specifier).contains(python_version())
    except InvalidSpecifier:
        return True
