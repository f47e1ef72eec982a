"""The sources of one revision of a git repository, read with the ``git`` command.

Nothing is checked out. A repository's configuration can name programs; the commands used here run
none of them: hooks, filters and pagers belong to other commands, and a fetch of missing objects,
which would start one, is forbidden.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from conformance.surface.archives import (
    MAX_FILE,
    Kind,
    Listing,
    Members,
    find_version,
    refuse,
    shown,
    valid_version,
)
from conformance.target import WrongUse

_KINDS: dict[bytes, Kind] = {
    b"040000": "folder",
    b"100644": "file",
    b"100664": "file",  # written by old versions of git
    b"100755": "file",
    b"120000": "link",
    b"160000": "folder",  # another repository's commit, of which nothing is there
}
_TAG = re.compile(r"(?:refs/tags/)?v(\d+\.\d+\.\d+(?:\.?(?:rc|post)\d+)?)")


def is_bare(path: Path) -> bool:
    """Whether the folder is a git directory itself."""
    return (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir()


def open_git(path: Path, revision: str, *, label: str, package: str) -> Listing:
    """List the sources of a revision; ``git cat-file`` stays open, to read them one by one.

    Raises:
        WrongUse: there is no git here, no such repository or revision, or no vLLM in it.
    """
    arguments = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{tree}}"]
    answer = _git(path, arguments)
    tree = answer.stdout.decode("ascii", "replace").strip()
    if answer.returncode or not re.fullmatch("[0-9a-f]{40,64}", tree):
        reason = answer.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise WrongUse(
            f"{label} cannot be read: {reason or f'{path} has no revision {shown(revision)}'}. "
            f"`git -C {path} tag` lists tags."
        )
    members = Members(label, package)
    objects: dict[str, tuple[str, int]] = {}
    blobs = _Blobs(path, label)
    try:
        for mode, oid, size, name in _entries(path, tree, label, package):
            kind = _KINDS.get(mode, "other")
            target = ""
            if kind == "link":
                target = blobs.read(oid, name).decode("utf-8", "replace")
                target = os.path.join(os.path.dirname(name), target)
            members.take(name, kind, size, target)
            objects[name] = (oid, size)
        _, sources = members.settled()
        version_py = f"{package}/_version.py"
        code = (
            blobs.read(objects[sources[version_py]][0], version_py)
            if version_py in sources
            else None
        )
    except BaseException:
        blobs.close()
        raise

    def read(source: str) -> bytes:
        return blobs.read(objects[sources[source]][0], source)

    tag = _TAG.fullmatch(revision)
    version = find_version(package, (), code) or (valid_version(tag[1]) if tag else None)
    return Listing(tuple(sources), read, tree, version)


class _Blobs:
    """One ``git cat-file --batch``, started at the first read."""

    def __init__(self, path: Path, label: str) -> None:
        self._path = path
        self._label = label
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., _Blobs] | None = None

    def read(self, oid: str, name: str) -> bytes:
        """Return a blob's content; raises WrongUse if it is not there."""
        try:
            if self._process is None:
                self._process = _start(self._path, ["cat-file", "--batch"], subprocess.PIPE)
                self._finalizer = weakref.finalize(self, _end, self._process)
            sent, got = self._process.stdin, self._process.stdout
            assert sent is not None and got is not None
            sent.write(oid.encode() + b"\n")
            sent.flush()
            fields = got.readline(1024).split()
            if len(fields) == 3 and fields[1] == b"blob" and int(fields[2]) <= MAX_FILE:
                data = got.read(int(fields[2]) + 1)
                if len(data) == int(fields[2]) + 1:
                    return data[:-1]
        except OSError:
            pass
        self.close()
        refuse(self._label, f"git cannot read {shown(name)}, which a partial clone may lack")

    def close(self) -> None:
        """End the process."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None


def _entries(
    path: Path, tree: str, label: str, package: str
) -> Iterator[tuple[bytes, str, int, str]]:
    # Trees can hold the same tree many times over, ten levels deep: with -t each folder is listed,
    # and counted, even if there is no file in it.
    process = _start(
        path, ["ls-tree", "-r", "-t", "-z", "--long", "--full-tree", tree, f"{package}/"]
    )
    try:
        assert process.stdout is not None
        for entry in _split(process.stdout, label):
            head, _, name = entry.partition(b"\t")
            fields = head.split()
            if len(fields) != 4:
                refuse(label, "git lists it in a way that is not known here")
            mode, _, oid, size = fields
            try:
                yield mode, oid.decode(), int(size) if size.isdigit() else 0, name.decode()
            except UnicodeError:
                refuse(label, f"the name {name[:80]!r} is not in UTF-8")
        process.stdout.close()
        if process.wait():
            refuse(label, "git cannot list it")
    finally:
        process.kill()
        _end(process)


def _split(stream: IO[bytes], label: str) -> Iterator[bytes]:
    rest = b""
    while chunk := stream.read(1 << 16):
        *entries, rest = (rest + chunk).split(b"\0")
        yield from entries
        if len(rest) > 1 << 16:
            refuse(label, "a name in it has no end")


def _git(path: Path, arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    process = _start(path, arguments, stderr=subprocess.PIPE)
    with process:
        stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def _start(
    path: Path,
    arguments: list[str],
    stdin: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment.update(
        GIT_ALLOW_PROTOCOL="",  # no fetch of objects that a partial clone lacks
        GIT_CEILING_DIRECTORIES=str(path.resolve().parent),  # this repository, none above it
        GIT_NO_LAZY_FETCH="1",  # the same again, for a git that knows it
        GIT_NO_REPLACE_OBJECTS="1",  # the tree's id says what is read
        GIT_OPTIONAL_LOCKS="0",
        GIT_TERMINAL_PROMPT="0",
        LC_ALL="C",
    )
    try:
        return subprocess.Popen(
            ["git", "--no-pager", "-C", str(path), *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
        )
    except OSError as error:
        raise WrongUse(
            f"git cannot be started ({error.strerror}): install it, or give a directory."
        ) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # it ended with something still to write
                stream.close()
    process.wait()
