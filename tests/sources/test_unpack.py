"""Archives: parts in order, nothing out of the folder, nothing that does not fit, and whole or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from omnirecall.errors import RunError
from omnirecall.sources import unpack as room
from omnirecall.sources.unpack import ARCHIVE, archives, move_into, unpack

FILES = {"set/a.txt": b"one", "set/deep/b.bin": bytes(range(256)) * 40, "c.txt": b""}


def tarred(
    files: dict[str, bytes] | None = None, extra: tuple[tarfile.TarInfo, ...] = (), zipped: bool = True
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if zipped else "w") as tar:
        for name, content in (FILES if files is None else files).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in extra:
            tar.addfile(info)
    return out.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(files: dict[str, bytes], *infos: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
        for info, content in infos:
            file.writestr(info, content)
    return out.getvalue()


def zip_mode(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


def parts(folder: Path, content: bytes, count: int = 1, name: str = "x.tar.gz") -> list[Path]:
    folder.mkdir(exist_ok=True)
    size = -(-len(content) // count)
    paths = []
    for number in range(count):
        paths.append(folder / (f"{name}.part{number:02}" if count > 1 else name))
        paths[-1].write_bytes(content[number * size : (number + 1) * size])
    return paths


def held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(tmp_path: Path, content: bytes, *said: str, name: str = "x.tar.gz") -> None:
    """Assert that an archive is refused in one sentence, and leaves nothing behind, inside or outside."""
    target = tmp_path / "data" / "staging"
    with pytest.raises(RunError) as caught:
        unpack(name, parts(tmp_path / "got", content, name=name), target)
    for words in (name, *said):
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [path for path in held(tmp_path) if not path.startswith("got/")]


@pytest.mark.parametrize(
    ("name", "archive", "part"),
    [
        ("UVRB/MSRVTT.tar.gz.part00", "UVRB/MSRVTT.tar.gz", ".part00"),
        ("mbeir_images.tar.gz.part-03", "mbeir_images.tar.gz", ".part-03"),
        ("video_qa.tar.gz-04", "video_qa.tar.gz", "-04"),
        ("x.tar.gz.partaa", "x.tar.gz", ".partaa"),
        ("media.zip", "media.zip", None),
        ("a.b.tar", "a.b.tar", None),
        ("a.tgz.001", "a.tgz", ".001"),
    ],
)
def test_names_of_archives(name: str, archive: str, part: str | None) -> None:
    match = ARCHIVE.fullmatch(name)
    assert match
    assert (match["name"], match["part"]) == (archive, part)


def test_names_of_none() -> None:
    for name in ("x.parquet", "tar.gz", "x.tar.gz.txt", "x.zip.md5", "part00", "x.gz"):
        assert not ARCHIVE.fullmatch(name)


def test_parts_are_in_order_and_none_is_missing() -> None:
    names = [f"x.tar.gz.part{number}" for number in (10, 9, 2, 1, 0, 3, 4, 5, 6, 7, 8)]
    assert archives([*names, "y.zip", "z.jsonl"]) == {
        "x.tar.gz": [f"x.tar.gz.part{number}" for number in range(11)],
        "y.zip": ["y.zip"],
    }
    assert archives(["x.zip.001", "x.zip.002"]) == {"x.zip": ["x.zip.001", "x.zip.002"]}
    with pytest.raises(RunError, match=r"x\.tar\.gz: there is a part 2 and no part 1"):
        archives(["x.tar.gz.part00", "x.tar.gz.part02"])
    with pytest.raises(RunError, match=r"there is a part 2 and no part 1"):
        archives(["x.tar.gz.part02", "x.tar.gz.part03"])


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("compressed", [True, False])
def test_a_tar_in_parts(tmp_path: Path, count: int, compressed: bool) -> None:
    read: list[int] = []
    content = tarred(zipped=compressed)
    made = unpack("x.tar.gz", parts(tmp_path / "got", content, count), tmp_path / "out", advance=read.append)
    assert held(tmp_path / "out") == FILES
    assert (made.files, made.bytes, made.tops) == (3, sum(map(len, FILES.values())), ("c.txt", "set"))
    assert sum(read) == len(content)


def test_gzip_in_several_members(tmp_path: Path) -> None:
    """As pigz and `cat a.gz b.gz` write it."""
    plain = tarred(zipped=False)
    content = gzip.compress(plain[:700]) + gzip.compress(plain[700:])
    unpack("x.tar.gz", parts(tmp_path / "got", content, 3), tmp_path / "out")
    assert held(tmp_path / "out") == FILES


def test_a_zip(tmp_path: Path) -> None:
    made = unpack("x.zip", parts(tmp_path / "got", zipped({**FILES, "empty/": b""}), name="x.zip"), tmp_path / "out")
    assert held(tmp_path / "out") == FILES
    assert made.files == 3
    with pytest.raises(RunError, match=r"x\.zip: refused: a zip in parts"):
        unpack("x.zip", parts(tmp_path / "got", zipped(FILES), 2, name="x.zip"), tmp_path / "out")


def test_leading_folders_are_dropped(tmp_path: Path) -> None:
    files = {"UVRB/S/jsonl/q": b"1", "./S/UVRB/S/videos/S": b"2", "videos/UVRB/v": b"3"}
    links = (special("UVRB/S/link", tarfile.LNKTYPE, "UVRB/S/jsonl/q"), special("S", tarfile.DIRTYPE))
    unpack("x.tar", parts(tmp_path / "got", tarred(files, links)), tmp_path / "out", drop=("UVRB", "S"))
    assert held(tmp_path / "out") == {"jsonl/q": b"1", "videos/S": b"2", "videos/UVRB/v": b"3", "link": b"1"}


def test_parts_are_asked_for_as_they_are_needed(tmp_path: Path) -> None:
    """So that a part may go before the next one comes, and nothing but one part is held."""
    paths = parts(tmp_path / "got", tarred({f"{n}": bytes([n]) * 5000 for n in range(50)}, zipped=False), 5)
    seen = []

    def given() -> Iterator[Path]:
        for path in paths:
            seen.append(len(held(tmp_path / "out")))
            yield path
            path.unlink()

    unpack("x.tar", given(), tmp_path / "out")
    assert len(held(tmp_path / "out")) == 50
    assert not any(path.exists() for path in paths)
    assert seen == sorted(seen)


def test_members_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tar with hundreds of thousands of frames is not listed in memory."""
    kept = []
    following = tarfile.TarFile.next

    def counted(self: tarfile.TarFile) -> tarfile.TarInfo | None:
        kept.append(len(self.members))
        return following(self)

    monkeypatch.setattr(tarfile.TarFile, "next", counted)
    unpack("x.tar", parts(tmp_path / "got", tarred({f"{number}": b"" for number in range(30)})), tmp_path / "out")
    assert len(kept) > 30
    assert max(kept) < 3


BAD_NAMES = ["../out.txt", "/tmp/out.txt", "set/../../out.txt", "set/.."]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_leaves_the_folder(tmp_path: Path, name: str) -> None:
    refused(tmp_path, tarred({"good": b"1", name: b"2"}), repr(name), "leads out of the folder")
    refused(tmp_path, zipped({"good": b"1", name: b"2"}), repr(name), "leads out of the folder", name="x.zip")


@pytest.mark.parametrize(
    ("name", "kind", "target", "said"),
    [
        ("set/l", tarfile.SYMTYPE, "../../secret", "leads out of the folder"),
        ("set/l", tarfile.SYMTYPE, "/etc/passwd", "leads out of the folder"),
        ("set/l", tarfile.LNKTYPE, "../secret", "leads out of the folder"),
        ("set/l", tarfile.LNKTYPE, "/etc/passwd", "leads out of the folder"),
        ("set/l", tarfile.SYMTYPE, "nothing", "no file in it"),
        ("set/l", tarfile.SYMTYPE, ".", "no file in it"),
        ("set/l", tarfile.SYMTYPE, "l", "no file in it"),
        ("../l", tarfile.SYMTYPE, "set/a.txt", "leads out of the folder"),
        ("../d", tarfile.DIRTYPE, "", "leads out of the folder"),
        ("set/f", tarfile.FIFOTYPE, "", "a device or a pipe"),
        ("set/f", tarfile.CHRTYPE, "", "a device or a pipe"),
        ("set/f", tarfile.BLKTYPE, "", "a device or a pipe"),
    ],
)
def test_a_member_that_is_no_honest_file(tmp_path: Path, name: str, kind: bytes, target: str, said: str) -> None:
    refused(tmp_path, tarred(extra=(special(name, kind, target),)), name, said)


def test_a_file_written_through_a_link(tmp_path: Path) -> None:
    """A link to a folder, and then a file below it: the link is never made, so the file stays inside, and the link is refused."""
    (tmp_path / "aim").mkdir()
    extra = (special("set/l", tarfile.SYMTYPE, str(tmp_path / "aim")), special("set/l/x", tarfile.REGTYPE))
    refused(tmp_path, tarred(extra=extra), "set/l")
    assert not list((tmp_path / "aim").iterdir())


def test_links_within_are_names_of_their_files(tmp_path: Path) -> None:
    extra = (
        special("set/first", tarfile.SYMTYPE, "second"),
        special("set/second", tarfile.SYMTYPE, "../set/a.txt"),
        special("hard", tarfile.LNKTYPE, "set/a.txt"),
    )
    unpack("x.tar.gz", parts(tmp_path / "got", tarred(extra=extra)), tmp_path / "out")
    assert held(tmp_path / "out") == FILES | dict.fromkeys(("set/first", "set/second", "hard"), b"one")
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


def test_zips_with_links_devices_and_passwords(tmp_path: Path) -> None:
    link = (zip_mode("set/l", 0o120777), b"a.txt")
    unpack("x.zip", parts(tmp_path / "got", zipped(FILES, link), name="x.zip"), tmp_path / "out")
    assert held(tmp_path / "out") == FILES | {"set/l": b"one"}
    shutil.rmtree(tmp_path / "out")
    refused(tmp_path, zipped(FILES, (zip_mode("l", 0o120777), b"../../x")), "leads out of the folder", name="x.zip")
    refused(tmp_path, zipped(FILES, (zip_mode("f", 0o010644), b"")), "a device or a pipe", name="x.zip")
    content = bytearray(zipped({"a": b"secret"}))
    content[content.index(b"PK\x01\x02") + 8] |= 1
    refused(tmp_path, bytes(content), "'a' is encrypted", name="x.zip")


class Usage:
    """A disk with so many bytes free, whatever is written."""

    def __init__(self, free: int) -> None:
        self.free = free


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that its header says is larger than the disk is refused before a byte is written; a zip by the sum of its files."""
    big = bytes(3_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(room.RESERVE + 2_000_000))
    refused(
        tmp_path, tarred({"good": b"1", "big": big}), "'big' unpacks to 3.0 MB", "is free in", str(tmp_path / "data")
    )
    refused(tmp_path, zipped({f"{n}": big[:1_000_000] for n in range(3)}), "unpacks to 3.0 MB", name="x.zip")


def test_a_bomb_of_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free is asked again for each member."""
    free = iter([Usage(room.RESERVE + left) for left in (30_000, 20_000, 9_000)])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: next(free))
    refused(tmp_path, tarred({f"{n}": bytes(10_000) for n in range(5)}), "'2' unpacks to 10.0 kB")


def test_a_declared_size_of_terabytes(tmp_path: Path) -> None:
    info = tarfile.TarInfo("big")
    info.size = 1 << 50
    content = gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    refused(tmp_path, content, "'big' unpacks to 1125.9 TB")


@pytest.mark.parametrize("name", ["x.tar.gz", "x.zip"])
def test_damaged_archives(tmp_path: Path, name: str) -> None:
    """Cut anywhere, or with one byte changed, it is refused or gives the right bytes, and never something else."""
    whole = zipped(FILES) if name == "x.zip" else tarred()
    for cut in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        refused(tmp_path, whole[:cut], "not a whole archive", "fetch it again", name=name)
    damaged = bytearray(whole)
    for place in range(len(whole) - 9, 0, -max(1, len(whole) // 50)):
        damaged[place] ^= 0x55
        try:
            unpack(name, parts(tmp_path / "got", bytes(damaged), name=name), tmp_path / "out")
        except RunError:
            assert not (tmp_path / "out").exists()
        else:
            for path, content in held(tmp_path / "out").items():
                assert content in FILES.values(), (place, path)
        damaged[place] ^= 0x55


def test_a_plain_tar_whose_last_part_is_missing(tmp_path: Path) -> None:
    """Even where the cut is between two members, which a tar reader takes for the end."""
    content = tarred({"a": b"1" * 512, "b": b"2" * 512}, zipped=False)
    refused(tmp_path, content[:1024], "it ends before its last block", name="x.tar")
    refused(tmp_path, content[:1300], "not a whole archive", name="x.tar")
    unpack("x.tar", parts(tmp_path / "got", content, name="x.tar"), tmp_path / "out")
    assert len(held(tmp_path / "out")) == 2


def test_the_checksum_is_read_though_the_tar_ended_before(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(tarred(zipped=False) + bytes(3 * room.BLOCK)))
    content[-8] ^= 1
    refused(tmp_path, bytes(content), "not a whole archive", "CRC")


def test_something_else_than_an_archive(tmp_path: Path) -> None:
    refused(tmp_path, b"<html>not here</html>" * 100, "not a whole archive")
    refused(tmp_path, b"<html>not here</html>" * 100, "not a whole archive", name="x.zip")


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^x\.tar: .*/out/a: File exists"):
        unpack("x.tar", parts(tmp_path / "got", tarred({"a": b"1", "a/b": b"2"})), tmp_path / "out")


def full(source: IO[bytes], target: IO[bytes], length: int = 0) -> Any:
    target.write(source.read(2))
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, and what was written makes room again."""
    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(RunError, match=r"the disk of .* is full: make room, and the same command goes on"):
        unpack("x.tar", parts(tmp_path / "got", tarred()), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RunError])
def test_an_interrupted_unpacking_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def given() -> Iterator[Path]:
        yield parts(tmp_path / "got", tarred(), 2)[0]
        raise error

    with pytest.raises(error):
        unpack("x.tar.gz", given(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_an_earlier_try_left_goes(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_bytes(b"half")
    unpack("x.tar.gz", parts(tmp_path / "got", tarred()), tmp_path / "out")
    assert held(tmp_path / "out") == FILES


def test_moving_into_place_may_be_stopped_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack("x.tar.gz", parts(tmp_path / "got", tarred()), tmp_path / "out")
    (tmp_path / "data" / "set").mkdir(parents=True)
    (tmp_path / "data" / "set" / "mine").write_bytes(b"mine")
    replace: Callable[..., Path] = Path.replace
    moved = []

    def stopping(self: Path, target: Path) -> Path:
        if len(moved) == 1:
            raise KeyboardInterrupt
        moved.append(target)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", stopping)
    with pytest.raises(KeyboardInterrupt):
        move_into(tmp_path / "out", tmp_path / "data")
    monkeypatch.undo()
    move_into(tmp_path / "out", tmp_path / "data")
    assert held(tmp_path / "data") == FILES | {"set/mine": b"mine"}
