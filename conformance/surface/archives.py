"""Which Python files an archive holds, judged member by member; nothing is unpacked to disk.

An archive is hostile input. A member's name is only ever a key: no file is created under it. What
real archives of vLLM look like was measured on the sdists and wheels of six releases, 0.19.1 to
0.32.0; each limit below names what it is to be compared with.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from conformance.target import WrongUse

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

MAX_FILE = 4 * MIB  # one source; the largest is 0.36 MB (gpu_model_runner.py of 0.28.0)
MAX_SOURCES = 512 * MIB  # all sources together; 39 MB in 0.32.0
MAX_MEMBERS = 100_000  # the sdist of 0.32.0 has 8,716, folders among them
MAX_ARCHIVE = 1 * GIB  # the file itself; the largest wheel has 433 MB (0.19.1 for CUDA)
MAX_UNPACKED = 4 * GIB  # all that the archive unpacks to; 0.48 GB for the CPU wheel of 0.32.0
MAX_RATIO = 50  # unpacked to packed; 2.8 for an sdist, 3.9 for a wheel. deflate can do 1,032
RATIO_FROM = 1 * MIB  # below it no ratio is a danger, and tiny sources of blanks have large ones
MAX_NAME = 1024  # characters; the longest name has 171
MAX_PART = 255  # characters between two slashes: what Linux allows
MAX_DEPTH = 32  # folders; the deepest source lies 9 deep
MAX_LINK = 4 * KIB  # a link's target: PATH_MAX
MAX_DIRECTORY = 32 * MIB  # a zip's table of contents, read at once; some 120 bytes a member
MAX_HEADER = 64 * KIB  # all headers of one member of a tar, read at once; 1.5 KB with a pax header

Kind = Literal["file", "folder", "link", "other"]

_METADATA = re.compile(r"(?:[^/]+/)?PKG-INFO|[^/]+\.dist-info/METADATA")
_VERSION_PY = re.compile(rb"^__version__\s*=\s*(?:version\s*=\s*)?['\"]([^'\"\n]+)['\"]", re.M)
_DAMAGE = (
    EOFError,
    IndexError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    UnicodeError,
    ValueError,
    gzip.BadGzipFile,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
)
"""What gzip, tarfile and zipfile raise on an archive that is not as it says."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The sources that one place holds: paths such as ``vllm/v1/utils.py``, and how to read one.

    ``read`` takes one of the paths and raises WrongUse if it cannot be read.
    """

    paths: tuple[str, ...]
    read: Callable[[str], bytes]
    digest: str
    version: str | None


def refuse(label: str, what: str) -> NoReturn:
    """Raise WrongUse: the place is not read, for one reason."""
    raise WrongUse(f"{label} is not read: {what}. Give a release of vLLM as it was published.")


def shown(name: str) -> str:
    """The name quoted, and cut where it is too long to print."""
    return repr(name if len(name) <= 80 else f"{name[:60]}...{name[-15:]}")


class Members:
    """Judges the members of one archive or tree, and keeps the names of the sources.

    A source is a ``*.py`` file below ``package/``, at the root or in the one folder that an sdist
    has there, with Python identifiers for names: nothing else can be imported.
    """

    def __init__(self, label: str, package: str) -> None:
        self.label = label
        self.package = package
        self.sources: dict[str, str] = {}  # name without "./" and "//": the name as it is written
        self.metadata: dict[str, str] = {}
        self._kinds: dict[str, Kind] = {}
        self._sources_size = 0
        self._count = 0

    def take(self, name: str, kind: Kind, size: int = 0, target: str = "") -> str | None:
        """Judge one member; return its name without ``./`` and ``//`` if it is to be kept.

        ``target`` is where a link leads, relative to the root of the archive.

        Raises:
            WrongUse: an archive with such a member is not read.
        """
        self._count += 1
        if self._count > MAX_MEMBERS:
            refuse(self.label, f"it has more than {MAX_MEMBERS:,} members")
        clean = self._clean(name)
        if kind == "other":
            refuse(
                self.label, f"its member {shown(name)} is neither a file nor a folder nor a link"
            )
        if kind == "link":
            self._judge_link(name, target)
        if clean in self._kinds and not kind == self._kinds[clean] == "folder":
            refuse(self.label, f"it holds {shown(name)} twice")
        self._kinds[clean] = kind
        if kind != "file":
            return None
        kept = self.sources if self._is_source(clean) else None
        if _METADATA.fullmatch(clean):
            kept = self.metadata
        if kept is None:
            return None
        if not 0 <= size <= MAX_FILE:
            refuse(self.label, f"{shown(name)} has {size:,} bytes, more than {MAX_FILE:,}")
        self._sources_size += size
        if self._sources_size > MAX_SOURCES:
            refuse(self.label, f"its sources have more than {MAX_SOURCES:,} bytes")
        kept[clean] = name
        return clean

    def settled(self) -> tuple[str, dict[str, str]]:
        """Where the package lies, ``""`` or ``folder/``, and its sources: path to member's name.

        Raises:
            WrongUse: the package is not there, or twice, or a file is also somebody's folder.
        """
        for clean in self._kinds:
            above = clean.rpartition("/")[0]
            while above:
                if self._kinds.get(above, "folder") != "folder":
                    refuse(self.label, f"{shown(clean)} lies in {shown(above)}, which is no folder")
                above = above.rpartition("/")[0]
        wanted = f"{self.package}/__init__.py"
        roots = {name[: -len(wanted)] for name in self.sources if f"/{name}".endswith(f"/{wanted}")}
        roots = {root for root in roots if root.count("/") <= 1}
        root = "" if "" in roots else min(roots, default=None)
        if root is None:
            raise WrongUse(
                f"{self.label} holds no sources of {self.package}: there is no {wanted} in it."
            )
        if root and len(roots) > 1:
            refuse(self.label, f"{wanted} is there {len(roots)} times")
        prefix = f"{root}{self.package}/"
        return root, {
            clean[len(root) :]: name
            for clean, name in sorted(self.sources.items())
            if clean.startswith(prefix)
        }

    def _clean(self, name: str) -> str:
        if len(name) > MAX_NAME:
            refuse(self.label, f"the name {shown(name)} has more than {MAX_NAME:,} characters")
        if "\0" in name or "\\" in name:
            refuse(self.label, f"the name {shown(name)} has a null byte or a backslash in it")
        if name.startswith("/") or re.match("[A-Za-z]:", name):
            refuse(self.label, f"the name {shown(name)} is absolute")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            refuse(self.label, f"the name {shown(name)} leaves the archive")
        if len(parts) > MAX_DEPTH:
            refuse(self.label, f"{shown(name)} lies more than {MAX_DEPTH} folders deep")
        if any(len(part) > MAX_PART for part in parts):
            refuse(self.label, f"{shown(name)} has a part with more than {MAX_PART} characters")
        return "/".join(parts)

    def _is_source(self, clean: str) -> bool:
        parts = clean.split("/")
        if parts[0] != self.package:
            parts = parts[1:]
        return len(parts) > 1 and parts[0] == self.package and is_source_name(parts)

    def _judge_link(self, name: str, target: str) -> None:
        path = os.path.normpath(target) if target else ".."
        if "\0" in target or path.startswith(("/", "..")):
            refuse(self.label, f"the link {shown(name)} leads out of it")
        if name.endswith(".py") or target.endswith(".py"):
            refuse(self.label, f"{shown(name)} is a link where a Python file is expected")


def is_source_name(parts: Iterable[str]) -> bool:
    """Whether ``("vllm", "v1", "utils.py")`` can be imported: identifiers throughout."""
    *folders, last = parts
    return (
        last.endswith(".py")
        and last[:-3].isidentifier()
        and all(folder.isidentifier() for folder in folders)
    )


def find_version(package: str, metadata: Iterable[bytes], version_py: bytes | None) -> str | None:
    """Return the version that METADATA or PKG-INFO files or ``_version.py`` give; runs nothing.

    Metadata of other distributions than the package and its CPU build do not count. Where both are
    there, the CPU build's does: what ``vllm-conformance doctor --mend`` writes is the other.
    """
    found: dict[str, str] = {}
    for text in metadata:
        fields: dict[str, str] = {}
        for line in text.decode("utf-8", "replace").splitlines():
            if not line.strip():
                break  # the description starts here
            key, _, value = line.partition(":")
            fields.setdefault(key.lower(), value.strip())
        version = valid_version(fields.get("version", ""))
        if version:
            found.setdefault(canonicalize_name(fields.get("name", "")), version)
    for name in (f"{package}-cpu", package):
        if name in found:
            return found[name]
    match = _VERSION_PY.search(version_py or b"")
    return valid_version(match[1].decode("utf-8", "replace")) if match else None


def valid_version(text: str) -> str | None:
    """Return the text if it is a version, else None."""
    try:
        Version(text)
    except InvalidVersion:
        return None
    return text


def file_digest(path: Path, label: str) -> str:
    """Return the sha256 of a regular file in hex.

    Raises:
        WrongUse: it cannot be read, is no regular file, or is larger than any release.
    """
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_ARCHIVE:
                refuse(label, f"it has more than {MAX_ARCHIVE:,} bytes")
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise WrongUse(f"{label} cannot be read ({error.strerror or error}).") from error


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading; a fifo or device raises OSError, where ``open`` would wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")


def open_zip(path: Path, *, label: str, package: str, digest: str) -> Listing:
    """List the sources of a wheel or zip; the file stays open, and is read member by member.

    Raises:
        WrongUse: it is damaged, or not what a release of vLLM is.
    """
    members = Members(label, package)
    try:
        _judge_directory(path, label)
        archive = zipfile.ZipFile(path)
        try:
            infos = _judge_zip(archive, members, path.stat().st_size)
            _, sources = members.settled()

            def read(source: str) -> bytes:
                return _read_member(archive, infos[sources[source]], label)

            metadata = [
                _read_member(archive, infos[name], label)
                for _, name in sorted(members.metadata.items())
            ]
            version_py = f"{package}/_version.py"
            code = read(version_py) if version_py in sources else None
        except BaseException:
            archive.close()
            raise
    except _DAMAGE as error:
        refuse(label, f"it is damaged ({error})")
    except OSError as error:
        raise WrongUse(f"{label} cannot be read ({error.strerror or error}).") from error
    return Listing(tuple(sources), read, digest, find_version(package, metadata, code))


def condense(path: Path, target: Path, *, label: str, package: str) -> None:
    """Write the sources and the metadata of an archive into ``target``, a small zip.

    A .tar.gz can only be read from its start, and its sources are too many to hold (39 MB in
    0.32.0), so it is read once, into this zip (level 1: 12 MB, 1 s), from which a walker then reads
    single modules. ``target`` is there whole, or not at all.

    Raises:
        WrongUse: the archive is damaged, or not what a release of vLLM is; or the folder of
            ``target`` cannot be written.
    """
    part: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(prefix=".part-", dir=target.parent)
        with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w") as small:

            def keep(name: str, data: bytes) -> None:
                small.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, compresslevel=1)

            if path.name.endswith((".tar.gz", ".tgz")):
                _condense_tar(path, Members(label, package), keep)
            else:
                _condense_zip(path, Members(label, package), keep)
        os.replace(part, target)
    except _DAMAGE as error:
        refuse(label, f"it is damaged ({error})")
    except OSError as error:
        raise WrongUse(
            f"{label} cannot be read, or {target.parent} not be written "
            f"({error.strerror or error}): VLLM_CONFORMANCE_CACHE names another folder."
        ) from error
    finally:
        if part is not None:
            Path(part).unlink(missing_ok=True)


def _condense_zip(path: Path, members: Members, keep: Callable[[str, bytes], None]) -> None:
    _judge_directory(path, members.label)
    with zipfile.ZipFile(path) as archive:
        infos = _judge_zip(archive, members, path.stat().st_size)
        members.settled()
        for clean, name in sorted((members.sources | members.metadata).items()):
            keep(clean, _read_member(archive, infos[name], members.label))


def _judge_directory(path: Path, label: str) -> None:
    # zipfile reads the central directory at once, however large it is said to be.
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_ARCHIVE:
            refuse(label, f"it has more than {MAX_ARCHIVE:,} bytes")
        file.seek(max(0, size - 64 * KIB - 22 - 20))
        tail = file.read()
    at = len(tail) - 22
    if at < 0 or tail[at : at + 4] != b"PK\5\6" or tail[-2:] != b"\0\0":
        at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + 22:
        refuse(label, "it is damaged, or no zip file")
    if at >= 20 and tail[at - 20 : at - 16] == b"PK\6\7":
        refuse(label, "it is a zip64 archive, which none below 4 GB needs to be")
    if int.from_bytes(tail[at + 12 : at + 16], "little") > MAX_DIRECTORY:
        refuse(label, f"its table of contents has more than {MAX_DIRECTORY:,} bytes")


def _judge_zip(
    archive: zipfile.ZipFile, members: Members, packed: int
) -> Mapping[str, zipfile.ZipInfo]:
    label = members.label
    infos: dict[str, zipfile.ZipInfo] = {}
    unpacked, end = 0, 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        name = info.orig_filename  # `filename` ends at a null byte
        if info.flag_bits & 0x1:
            refuse(label, f"{shown(name)} is encrypted")
        if not info.flag_bits & 0x800 and not name.isascii():
            refuse(label, f"the name {shown(name)} is not in UTF-8")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            refuse(label, f"{shown(name)} is compressed in a way that wheels do not use")
        # Members that share bytes are how a small zip unpacks to petabytes.
        if info.header_offset < end:
            refuse(label, f"{shown(name)} overlaps another member")
        end = info.header_offset + 30 + len(name) + info.compress_size
        unpacked += info.file_size
        _judge_size(label, unpacked, packed)
        kind = _zip_kind(info)
        target = _zip_link(archive, info, label) if kind == "link" else ""
        members.take(name, kind, info.file_size, target)
        infos[name] = info
    if end > archive.start_dir:
        refuse(label, "it is damaged: a member reaches into the table of contents")
    return infos


def _judge_size(label: str, unpacked: int, packed: int) -> None:
    if unpacked > MAX_UNPACKED:
        refuse(label, f"it unpacks to more than {MAX_UNPACKED:,} bytes")
    if unpacked > max(RATIO_FROM, MAX_RATIO * packed):
        refuse(label, f"it unpacks to more than {MAX_RATIO} times its size")


def _zip_kind(info: zipfile.ZipInfo) -> Kind:
    mode = info.external_attr >> 16
    if stat.S_ISLNK(mode):
        return "link"
    if info.orig_filename.endswith("/") or stat.S_ISDIR(mode):
        return "folder"
    return "file" if stat.S_IFMT(mode) in (0, stat.S_IFREG) else "other"


def _zip_link(archive: zipfile.ZipFile, info: zipfile.ZipInfo, label: str) -> str:
    if info.file_size > MAX_LINK:
        refuse(label, f"the link {shown(info.orig_filename)} is longer than {MAX_LINK:,} bytes")
    target = _read_member(archive, info, label).decode()
    return os.path.join(os.path.dirname(info.orig_filename), target)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, label: str) -> bytes:
    try:
        with archive.open(info) as member:
            # One byte more than it should have: what unpacks to more than it says is not read on.
            data = member.read(info.file_size + 1)
    except (*_DAMAGE, OSError) as error:
        refuse(label, f"{shown(info.orig_filename)} is damaged ({error})")
    if len(data) != info.file_size:
        refuse(label, f"{shown(info.orig_filename)} has not the size that the archive says")
    return data


class _Unpacked:
    """What a .tar.gz unpacks to, forwards only and in small reads, as tarfile wants to read it.

    tarfile reads as much as a header tells it to; ``allowance`` is what it may read.
    """

    def __init__(self, file: gzip.GzipFile, label: str, packed: int) -> None:
        self.allowance = 0
        self.last = b""
        self._file = file
        self._label = label
        self._packed = packed
        self._position = 0

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        if whence or position < self._position:
            refuse(self._label, "it is damaged: a header points back")
        while self._position < position and self._take(min(MIB, position - self._position)):
            pass
        return self._position

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self.allowance:
            refuse(self._label, f"a member's headers have more than {MAX_HEADER:,} bytes")
        self.allowance -= size
        self.last = self._take(size)
        return self.last

    def rest_is_empty(self) -> bool:
        """Whether only zeros follow; reading to the end also has gzip compare its checksums."""
        while chunk := self._take(MIB):
            if chunk.strip(b"\0"):
                return False
        return True

    def _take(self, size: int) -> bytes:
        data = self._file.read(size)
        self._position += len(data)
        _judge_size(self._label, self._position, self._packed)
        return data


def _condense_tar(path: Path, members: Members, keep: Callable[[str, bytes], None]) -> None:
    label = members.label
    with open_regular(path) as file, gzip.GzipFile(fileobj=file) as unzipped:
        packed = os.fstat(file.fileno()).st_size
        if packed > MAX_ARCHIVE:
            refuse(label, f"it has more than {MAX_ARCHIVE:,} bytes")
        stream = _Unpacked(unzipped, label, packed)
        stream.allowance = MAX_HEADER
        # Not `tarfile.open`: it looks for other formats, and its streams read without a limit.
        archive = tarfile.TarFile(
            fileobj=stream,  # type: ignore[arg-type]
            encoding="utf-8",
            errors="strict",
        )
        while (member := archive.next()) is not None:
            kind = _tar_kind(member)
            clean = members.take(member.name, kind, member.size, _tar_link(member))
            if clean is not None:
                stream.seek(member.offset_data)
                stream.allowance = member.size
                data = stream.read(member.size)
                if len(data) != member.size:
                    refuse(label, f"it is damaged: {shown(member.name)} is cut off")
                keep(clean, data)
            stream.allowance = MAX_HEADER
        # tarfile takes a header that it cannot read for the end of the archive.
        if stream.last != bytes(tarfile.BLOCKSIZE) or not stream.rest_is_empty():
            refuse(label, "it is damaged: it goes on, or breaks off, where its end should be")
    members.settled()


def _tar_kind(member: tarfile.TarInfo) -> Kind:
    if member.issym() or member.islnk():
        return "link"
    if member.isdir():
        return "folder"
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
    return "file" if plain else "other"


def _tar_link(member: tarfile.TarInfo) -> str:
    # A hard link's target is relative to the root, a symbolic link's to the link's folder.
    if member.issym():
        return os.path.join(os.path.dirname(member.name), member.linkname)
    return member.linkname
