"""Fetching from a hub on loopback: whole and verified files, interruptions, failures, and the layouts of the benchmarks."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import random
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hub_server import Hub, git_digest, serving
from huggingface_hub import constants, file_download
from miniatures import assert_meant, write

from omnirecall.errors import RunError, UserError
from omnirecall.protocol.cards import read_card
from omnirecall.protocol.suites import Suite
from omnirecall.sources import hub as room
from omnirecall.sources import unpack as unpacking
from omnirecall.sources.hub import Options, Plan, fetch, plan_fetch
from omnirecall.sources.load import load_suite, read_task

REPO = "org/mini"
SMALL, LARGE = b'{"id": 1}\n', random.Random(0).randbytes(30_000)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub, in blocks small enough to be cut; what the library would cache is looked for in ``tmp_path / "cache"``."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with serving(monkeypatch) as served:
        yield served
    assert not (tmp_path / "cache").exists()


def card(folder: Path, *tasks: str, licence: str = "CC0-1.0") -> Suite:
    """A suite whose tasks are the lines given; each is called one, two, and so on."""
    text = f'[suite]\nname = "mini"\nlicence = "{licence}"\n'
    for name, lines in zip(("one", "two", "three"), tasks, strict=False):
        text += f'[[task]]\nname = "{name}"\nmeasure = "hit@1"\nsplit = "test"\ndata.name = "{name}"\n{lines}\n'
    (folder / "mini.toml").write_text(text)
    return read_card(folder / "mini.toml")


def wants(files: Sequence[str], revision: str = "", repo: str = REPO, more: str = "") -> str:
    lines = f'data.root = "MINI"\ndata.hub.repo = "{repo}"\ndata.hub.files = {json.dumps(list(files))}\n{more}'
    return lines + (f'\ndata.hub.revision = "{revision}"' if revision else "")


def plan(suite: Suite, data: Path) -> Plan:
    return plan_fetch(suite, suite.tasks, data)


def held(folder: Path) -> dict[str, bytes]:
    """Every file below a folder that is not fetch's own."""
    own = (room.RECORD, room.LOCK)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in own
    }


def record(data: Path) -> Any:
    return json.loads((data / room.RECORD).read_text())


def tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return out.getvalue()


def parts(name: str, content: bytes, count: int = 3, form: str = "{}.part{:02}") -> dict[str, bytes]:
    size = -(-len(content) // count)
    return {form.format(name, part): content[part * size : (part + 1) * size] for part in range(count)}


def loose(hub: Hub, tmp_path: Path, **files: bytes) -> Suite:
    """A suite of one task that wants these files, pinned."""
    named = {
        name.replace("_", "."): content for name, content in (files or {"rows_jsonl": SMALL, "big_bin": LARGE}).items()
    }
    return card(tmp_path, wants(list(named), hub.add(REPO, {**named, "other.bin": LARGE, ".gitattributes": b"x"})))


def packed(hub: Hub, tmp_path: Path, files: dict[str, bytes] | None = None) -> tuple[Suite, dict[str, bytes]]:
    """A suite of one task whose archive is in three parts, and what is in it."""
    inside = files or {f"MINI/one/videos/{number}.mp4": random.Random(number).randbytes(3000) for number in range(9)}
    commit = hub.add(REPO, parts("one.tar.gz", tar(inside)))
    there = {f"MINI/one/{name.removeprefix('MINI/one/')}": content for name, content in inside.items()}
    return card(tmp_path, wants(["{name}.tar.gz.part*"], commit)), there


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, after: int, error: BaseException | None = None) -> Iterator[None]:
    """An interruption as soon as so many bytes came."""
    seen = 0
    write_block = room._Counted.write

    def write_some(self: Any, block: bytes) -> int:
        nonlocal seen
        seen += len(block)
        if seen > after:
            raise error or KeyboardInterrupt
        return write_block(self, block)

    with monkeypatch.context() as patch:
        patch.setattr(room._Counted, "write", write_some)
        yield


def test_files_land_whole_and_are_recorded(hub: Hub, tmp_path: Path) -> None:
    """Those that are wanted and no others, once, with what the hub says of them."""
    suite, data = loose(hub, tmp_path), tmp_path / "data"
    fetch(plan(suite, data), Options())
    assert held(data) == {"MINI/rows.jsonl": SMALL, "MINI/big.bin": LARGE}
    kept = record(data)["repositories"][REPO]
    assert kept["revision"] == hub.repos[REPO].newest
    assert (kept["pinned"], kept["licence"]) == (True, "mit")
    assert {name: (one["size"], one["digest"]) for name, one in kept["files"].items()} == {
        "MINI/rows.jsonl": (len(SMALL), f"git:{git_digest(SMALL)}"),
        "MINI/big.bin": (len(LARGE), f"sha256:{hashlib.sha256(LARGE).hexdigest()}"),
    }
    assert len(hub.got("*/resolve/*")) == 2
    assert len(hub.got("*/tree/*")) == 2, "the list has two pages"
    again = plan(suite, data)
    assert (again.left, again.repositories[0].there) == (0, 2)
    fetch(again, Options())
    assert len(hub.got("*/resolve/*")) == 2


def test_files_that_are_there_are_looked_at_not_got(hub: Hub, tmp_path: Path) -> None:
    """By digest: those that differ are got again."""
    suite, data = loose(hub, tmp_path), tmp_path / "data"
    (data / "MINI").mkdir(parents=True)
    (data / "MINI" / "rows.jsonl").write_bytes(SMALL)
    (data / "MINI" / "big.bin").write_bytes(LARGE[:-1] + b"?")
    fetch(plan(suite, data), Options())
    assert held(data) == {"MINI/rows.jsonl": SMALL, "MINI/big.bin": LARGE}
    assert [one.path.rsplit("/", 1)[1] for one in hub.got("*/resolve/*")] == ["big.bin"]
    (data / "MINI" / "big.bin").write_bytes(LARGE[::-1])
    fetch(plan(suite, data), Options())
    assert held(data)["MINI/big.bin"] == LARGE


def test_the_store_gets_no_token_and_the_disk_neither(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    suite, data = loose(hub, tmp_path), tmp_path / "data"
    hub.repos[REPO].token = "hf_secret"
    with pytest.raises(
        UserError, match=rf"{REPO} asks for a login: .*{hub.url}/datasets/{REPO}, and give a token .* HF_TOKEN"
    ):
        plan(suite, data)
    (tmp_path / "token").write_text("hf_secret")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(UserError, match="asks for a login"):
        plan(suite, data)
    assert not [one for one in hub.asked if "authorization" in one.headers], "a stored token is not used"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch(plan(suite, data), Options())
    assert {one.server for one in hub.asked} == {"hub", "store"}
    assert [one for one in hub.asked if one.server == "hub"][-1].headers["authorization"] == "Bearer hf_secret"
    assert not [one for one in hub.asked if one.server == "store" and "authorization" in one.headers]
    assert not [path for path in data.rglob("*") if path.is_file() and b"hf_secret" in path.read_bytes()]
    assert "hf_secret" not in "".join(capfd.readouterr())


def test_an_interrupted_file_goes_on(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, data = loose(hub, tmp_path, big_bin=LARGE), tmp_path / "data"
    with interrupted(monkeypatch, 12_000), pytest.raises(KeyboardInterrupt):
        fetch(plan(suite, data), Options())
    assert not (data / "MINI/big.bin").exists()
    assert list(held(data).values()) == [LARGE[:12_000]]
    assert plan(suite, data).left == len(LARGE) - 12_000
    fetch(plan(suite, data), Options())
    assert held(data) == {"MINI/big.bin": LARGE}
    assert [one.headers.get("range") for one in hub.got("/blob/*")] == [None, "bytes=12000-"]


def test_a_broken_line_goes_on_at_once(hub: Hub, tmp_path: Path) -> None:
    suite, data = loose(hub, tmp_path, big_bin=LARGE), tmp_path / "data"
    hub.fail("/blob/*", 3, cut=5500)
    fetch(plan(suite, data), Options())
    assert held(data) == {"MINI/big.bin": LARGE}
    assert [one.headers.get("range") for one in hub.got("/blob/*")] == [None, *(f"bytes={n}000-" for n in (5, 10, 15))]


def test_a_server_that_ignores_ranges(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, data = loose(hub, tmp_path, big_bin=LARGE), tmp_path / "data"
    with interrupted(monkeypatch, 12_000), pytest.raises(KeyboardInterrupt):
        fetch(plan(suite, data), Options())
    hub.fail("/blob/*", whole=True)
    fetch(plan(suite, data), Options())
    assert held(data) == {"MINI/big.bin": LARGE}


def test_a_damaged_part_of_a_file_is_thrown_away(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was cut off is continued, found wrong, and got again whole; so is one that is too long."""
    suite, data = loose(hub, tmp_path, big_bin=LARGE), tmp_path / "data"
    for spoilt in (b"?" * 9000, b"?" * 40_000):
        with interrupted(monkeypatch, 12_000), pytest.raises(KeyboardInterrupt):
            fetch(plan(suite, data), Options())
        next((data / "MINI").glob(".big.bin*")).write_bytes(spoilt)
        fetch(plan(suite, data), Options())
        assert held(data) == {"MINI/big.bin": LARGE}
        shutil.rmtree(data)


@pytest.mark.parametrize(("name", "content"), [("rows_jsonl", SMALL), ("big_bin", LARGE)])
def test_a_file_that_comes_damaged(hub: Hub, tmp_path: Path, name: str, content: bytes) -> None:
    """Once: it is got again. Always: it is refused by name, and nothing of it stays."""
    suite, data = loose(hub, tmp_path, **{name: content}), tmp_path / "data"
    place = "/blob/*" if content is LARGE else "*/resolve/*"
    hub.fail(place, 1, change=lambda body: body[:-1] + b"?")
    fetch(plan(suite, data), Options())
    assert list(held(data).values()) == [content]
    shutil.rmtree(data)
    hub.fail(place, change=lambda body: body[:-1] + b"?")
    before = len(hub.got(place))
    with pytest.raises(RunError, match=rf"{name.replace('_', '.')} of {REPO} comes damaged"):
        fetch(plan(suite, data), Options())
    assert len(hub.got(place)) - before == 2
    assert not held(data)


def test_a_file_that_comes_short(hub: Hub, tmp_path: Path) -> None:
    """With a length that agrees with what comes: it is asked for again, a few times."""
    suite, data = loose(hub, tmp_path, big_bin=LARGE), tmp_path / "data"
    hub.fail("/blob/*", 1, change=lambda body: body[:-10])
    fetch(plan(suite, data), Options())
    assert held(data) == {"MINI/big.bin": LARGE}
    shutil.rmtree(data)
    hub.fail("/blob/*", change=lambda _: b"")
    before = len(hub.got("/blob/*"))
    with pytest.raises(RunError, match=r"big\.bin of org/mini cannot be got from"):
        fetch(plan(suite, data), Options())
    assert len(hub.got("/blob/*")) - before == len(room.WAITS) + 1


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("place", ["/blob/*", "*/resolve/*", "*/tree/*", "*/revision/*"])
def test_a_hub_that_is_busy(hub: Hub, tmp_path: Path, status: int, place: str) -> None:
    """It is asked again, a bounded number of times, and then the user."""
    suite, data = loose(hub, tmp_path), tmp_path / "data"
    hub.fail(place, 2, status=status)
    fetch(plan(suite, data), Options())
    assert held(data) == {"MINI/rows.jsonl": SMALL, "MINI/big.bin": LARGE}
    shutil.rmtree(data)
    hub.fail(place, status=status)
    before = len(hub.got(place))
    with pytest.raises(
        RunError, match=rf"{hub.url} answers {status} when asked for .*what was fetched is kept"
    ) as caught:
        fetch(plan(suite, data), Options())
    assert "\n" not in str(caught.value)
    assert 3 < len(hub.got(place)) - before <= 6 * (len(room.WAITS) + 1)


def test_a_hub_that_is_not_there(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = loose(hub, tmp_path)
    planned = plan(suite, tmp_path / "data")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for ask in (lambda: plan(suite, tmp_path / "data"), lambda: fetch(planned, Options())):
        with pytest.raises(RunError, match=r"cannot be got from http://127\.0\.0\.1:1 \(.*refused"):
            ask()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        plan(suite, tmp_path / "data")


def test_something_else_than_a_hub(hub: Hub, tmp_path: Path) -> None:
    suite = loose(hub, tmp_path)
    hub.fail("*/revision/*", status=200, body=b"<html>Please log in to this network</html>")
    with pytest.raises(RunError, match=f"{REPO} cannot be got from {hub.url}"):
        plan(suite, tmp_path / "data")


def test_what_is_not_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    commit = hub.add(REPO, {"a.bin": LARGE})
    data = tmp_path / "data"
    with pytest.raises(UserError, match=rf"task one: {REPO} at revision {commit[:12]} has no file b\*"):
        plan(card(tmp_path, wants(["a*", "b*"], commit)), data)
    with pytest.raises(UserError, match=rf"{REPO} has no revision {'e' * 40}; correct the card"):
        plan(card(tmp_path, wants(["a*"], "e" * 40)), data)
    with pytest.raises(UserError, match=rf"{hub.url} has no data set org/none"):
        plan(card(tmp_path, wants(["a*"], repo="org/none")), data)
    with pytest.raises(UserError, match=r"'a b' is no name of a repository"):
        plan(card(tmp_path, wants(["a*"], repo="a b")), data)
    with pytest.raises(UserError, match=r"task one: data\.hub: 'nme' in braces; there are name, split, config"):
        plan(card(tmp_path, wants(["{nme}*"])), data)
    with pytest.raises(UserError, match=r"task one: data\.hub must be a table"):
        plan(card(tmp_path, 'data.hub = "org/mini"'), data)
    suite = card(tmp_path, wants(["a*"], commit))
    planned = plan(suite, data)
    hub.fail("*/resolve/*", status=404, headers={"X-Error-Code": "EntryNotFound"})
    with pytest.raises(RunError, match=rf"{REPO} has no file a\.bin at revision {commit[:12]}, though it lists it"):
        fetch(planned, Options())
    assert len(hub.got("*/resolve/*")) == 1, "what is not there is not asked for again"


def test_a_hub_that_gives_another_revision(hub: Hub, tmp_path: Path) -> None:
    suite = loose(hub, tmp_path)
    hub.fail("*/revision/*", status=200, body=json.dumps({"id": REPO, "sha": "f" * 40, "tags": []}).encode())
    with pytest.raises(RunError, match=f"revision {hub.repos[REPO].newest} was asked for and .* gives {'f' * 40}"):
        plan(suite, tmp_path / "data")


def test_without_a_pinned_revision(hub: Hub, tmp_path: Path) -> None:
    """The newest, which is said and recorded; this folder stays with it, also when it is half fetched, and a new one does not."""
    suite = card(tmp_path, wants(["*.bin"]))
    first = hub.add(REPO, {"a.bin": LARGE})
    planned = plan(suite, tmp_path / "data")
    assert "the card pins none" in planned.text(Options())
    fetch(planned, Options())
    kept = record(tmp_path / "data")["repositories"][REPO]
    assert (kept["revision"], kept["pinned"]) == (first, False)
    second = hub.add(REPO, {"a.bin": LARGE[::-1]})
    assert plan(suite, tmp_path / "data").repositories[0].revision == first
    assert plan(suite, tmp_path / "data").left == 0
    assert plan(suite, tmp_path / "other").repositories[0].revision == second


def test_another_pinned_revision_replaces_what_differs(hub: Hub, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for content in (LARGE, LARGE[::-1]):
        commit = hub.add(REPO, {"a.bin": content, "same.bin": LARGE + LARGE})
        fetch(plan(card(tmp_path, wants(["*.bin"], commit)), data), Options())
        assert held(data) == {"MINI/a.bin": content, "MINI/same.bin": LARGE + LARGE}
        assert record(data)["repositories"][REPO]["revision"] == commit
    assert len(hub.got("*/same.bin")) == 1


def test_an_archive_in_parts(hub: Hub, tmp_path: Path) -> None:
    """Unpacked into the folder of its task, its parts removed, its leading folders dropped; nothing is got again."""
    suite, there = packed(hub, tmp_path)
    data = tmp_path / "data"
    fetch(plan(suite, data), Options())
    assert held(data) == there
    kept = record(data)["repositories"][REPO]
    assert kept["files"] == {}
    assert kept["archives"]["one.tar.gz"]["files"] == 9
    again = plan(suite, data)
    assert (again.left, again.repositories[0].there, again.repositories[0].archives) == (0, 3, ())
    shutil.rmtree(data / "MINI" / "one" / "videos")
    assert plan(suite, data).left > 0


def test_archives_may_be_kept(hub: Hub, tmp_path: Path) -> None:
    suite, there = packed(hub, tmp_path)
    data = tmp_path / "data"
    fetch(plan(suite, data), Options(keep_archives=True))
    names = {f"MINI/{name}": content for name, content in hub.repos[REPO].commits[hub.repos[REPO].newest].items()}
    assert held(data) == there | names
    asked = len(hub.got("*/resolve/*"))
    fetch(plan(suite, data), Options(keep_archives=True))
    assert len(hub.got("*/resolve/*")) == asked


def test_parts_may_go_as_they_are_read(hub: Hub, tmp_path: Path) -> None:
    """When a part is asked for, those before it are read and gone."""
    suite, there = packed(hub, tmp_path)
    data = tmp_path / "data"
    seen: list[list[str]] = []

    def look(body: bytes) -> bytes:
        seen.append(sorted(path.name for path in (data / "MINI").glob("one.tar.gz.*")))
        return body

    hub.fail("/blob/*", change=look)
    fetch(plan(suite, data), Options(save_space=True))
    assert seen == [[], [], []]
    assert held(data) == there


@pytest.mark.parametrize("save_space", [False, True])
def test_an_interrupted_unpacking_is_done_again(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_space: bool
) -> None:
    """From the parts that are there; those that were removed as they were read are got again."""
    suite, there = packed(hub, tmp_path)
    data = tmp_path / "data"
    add = unpacking._Writer.add

    def stop(self: Any, member: Any) -> None:
        add(self, member)
        if self.files == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(unpacking._Writer, "add", stop)
    with pytest.raises(KeyboardInterrupt):
        fetch(plan(suite, data), Options(save_space=save_space))
    monkeypatch.setattr(unpacking._Writer, "add", add)
    assert not (data / "MINI" / "one" / "videos").exists()
    asked = len(hub.got("*/resolve/*"))
    fetch(plan(suite, data), Options(save_space=save_space))
    assert held(data) == there
    assert (len(hub.got("*/resolve/*")) > asked) == save_space


def test_stopped_while_moving_into_place(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was unpacked whole is not unpacked again, even if its parts are gone."""
    suite, there = packed(hub, tmp_path)
    data = tmp_path / "data"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(room, "move_into", stop)
    with pytest.raises(KeyboardInterrupt):
        fetch(plan(suite, data), Options(save_space=True))
    monkeypatch.setattr(room, "move_into", unpacking.move_into)
    asked = len(hub.got("*/resolve/*"))
    assert plan(suite, data).left == 0
    fetch(plan(suite, data), Options(save_space=True))
    assert held(data) == there
    assert len(hub.got("*/resolve/*")) == asked


def test_a_malicious_archive(hub: Hub, tmp_path: Path) -> None:
    suite, _ = packed(hub, tmp_path, {"good": b"1" * 3000, "../../../evil": b"2"})
    with pytest.raises(RunError, match=r"one\.tar\.gz: refused: '\.\./\.\./\.\./evil' leads out of the folder"):
        fetch(plan(suite, tmp_path / "data"), Options())
    assert not list(tmp_path.rglob("evil*"))
    assert not list(tmp_path.rglob("good"))


def test_a_part_is_missing_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    files = parts("one.tar.gz", tar({"a": LARGE}))
    del files["one.tar.gz.part01"]
    suite = card(tmp_path, wants(["{name}.tar.gz.part*"], hub.add(REPO, files)))
    with pytest.raises(RunError, match=r"one\.tar\.gz: there is a part 2 and no part 1"):
        plan(suite, tmp_path / "data")


def test_a_list_with_a_path_that_leaves_the_folder(hub: Hub, tmp_path: Path) -> None:
    commit = hub.add(REPO, {"../../evil.bin": LARGE})
    with pytest.raises(UserError, match=r"org/mini: one of its files: '\.\./\.\./evil\.bin' leads outside"):
        plan(card(tmp_path, wants(["*.bin"], commit)), tmp_path / "data")


def test_what_does_not_fit_is_not_begun(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 10 kB, 30 kB in all: as much again is unpacked, so 60 kB, or 40 kB if parts go as they are read."""
    suite, _ = packed(hub, tmp_path)
    data = tmp_path / "data"
    total = plan(suite, data).left
    part = max(len(content) for content in hub.repos[REPO].commits[hub.repos[REPO].newest].values())
    needed = {
        Options(): 2 * total,
        Options(keep_archives=True): 2 * total,
        Options(save_space=True): total + part,
    }
    for options, wanted in needed.items():
        assert plan(suite, data).needed(options) == wanted
        disk = type("Usage", (), {"free": wanted - 1})
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _, disk=disk: disk)
            with pytest.raises(UserError, match=r"this needs about .* is free") as caught:
                fetch(plan(suite, data), options)
        assert ("--save-space" in str(caught.value)) == (not options.save_space)
    assert not data.exists()
    assert not hub.got("*/resolve/*")


def test_the_disk_that_several_archives_need(hub: Hub, tmp_path: Path) -> None:
    """One after another: what was unpacked stays, archives go."""
    commit = hub.add(REPO, {"a.bin": bytes(100), "one.zip": bytes(1000), "two.zip": bytes(700)})
    planned = plan(card(tmp_path, wants(["*"], commit)), tmp_path / "data")
    assert planned.needed(Options()) == 100 + 1000 + 2 * 700
    assert planned.needed(Options(keep_archives=True)) == 100 + 2 * 1000 + 2 * 700
    assert planned.needed(Options(save_space=True)) == 100 + 1000 + 2 * 700, "a zip is read from its end"


def test_a_disk_that_fills_up(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, data = loose(hub, tmp_path, big_bin=LARGE), tmp_path / "data"
    error = OSError(errno.ENOSPC, "No space left on device")
    with (
        interrupted(monkeypatch, 12_000, error),
        pytest.raises(RunError, match=r"the disk of .*MINI is full: make room, and the same command goes on"),
    ):
        fetch(plan(suite, data), Options())
    assert len(hub.got("/blob/*")) == 1, "a full disk is not tried again"
    fetch(plan(suite, data), Options())
    assert [one.headers.get("range") for one in hub.got("/blob/*")] == [None, "bytes=12000-"]
    assert held(data) == {"MINI/big.bin": LARGE}


def test_very_large_files_go_by_the_library(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LARGEST", 20_000)
    suite, data = loose(hub, tmp_path), tmp_path / "data"
    fetch(plan(suite, data), Options())
    assert held(data) == {"MINI/rows.jsonl": SMALL, "MINI/big.bin": LARGE}
    assert [one.path.rsplit("/", 1)[1] for one in hub.got("*/resolve/*", "HEAD")] == ["big.bin"]


def test_what_may_not_be_passed_on(hub: Hub, tmp_path: Path) -> None:
    """Its task says where to get it, and the hub is not asked about it."""
    commit = hub.add(REPO, {"a.bin": LARGE})
    where = "ask its authors at example.org, and put it into MINI/two"
    own = wants(["a*"], repo="org/forbidden", more=f'data.obtain = "{where}"')
    suite = card(tmp_path, wants(["a*"], commit), own, 'data.layout = "folder"')
    planned = plan(suite, tmp_path / "data")
    assert f"not fetched: two: {where}" in planned.text(Options())
    assert "not fetched: three: its card names no repository" in planned.text(Options())
    assert planned.json(Options())["obtain"] == {"two": where}
    fetch(planned, Options())
    assert held(tmp_path / "data") == {"MINI/a.bin": LARGE}
    assert not [one for one in hub.asked if "forbidden" in one.path]
    alone = plan_fetch(suite, [suite.task("two")], tmp_path / "data")
    assert (alone.left, alone.obtain) == (0, {"two": where})
    with pytest.raises(UserError, match=r"mini: its card names no repository"):
        plan_fetch(suite, [suite.task("three")], tmp_path / "data")
    with pytest.raises(UserError, match="starter: its data comes with it"):
        plan(load_suite("starter"), tmp_path / "data")


def test_the_plan_says_licence_and_size(hub: Hub, tmp_path: Path) -> None:
    commit = hub.add(REPO, {"a.bin": LARGE}, licence="cc-by-4.0")
    text = wants(["a*"], commit)
    planned = plan(card(tmp_path, text, f'{text}\nlicence = "CC-BY-NC-4.0"', licence="varies"), tmp_path / "data")
    said = planned.text(Options())
    for words in (
        "mini: 2 of 2 tasks",
        "licence: varies\n",
        "licence: CC-BY-NC-4.0 [two]",
        f"{REPO}, revision {commit[:12]} (pinned), licence on the hub: cc-by-4.0",
        "1 files to get, 30.0 kB",
        "to get 30.0 kB; the disk needs about 30.0 kB and has",
    ):
        assert words in said
    told = planned.json(Options())
    assert told["licences"] == {"varies": [], "CC-BY-NC-4.0": ["two"]}
    assert (told["bytes_left"], told["bytes_needed"]) == (30_000, 30_000)
    assert told["bytes_free"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)


TREE = {
    ".gitattributes": SMALL,
    "README.md": SMALL,
    "data/train-00000-of-00001.parquet": SMALL,
    "data/test-00000-of-00002.parquet": SMALL,
    "data/test-00001-of-00002.parquet": SMALL,
    "corpus/corpus-00000-of-00001.parquet": SMALL,
    "qrels/train.jsonl": SMALL,
    "qrels/test.jsonl": SMALL,
    "videos.zip": SMALL,
}


def chosen(hub: Hub, tmp_path: Path, layout: str, more: str = "", tree: dict[str, bytes] | None = None) -> set[str]:
    hub.add(REPO, tree or TREE)
    suite = card(tmp_path, f'data.layout = "{layout}"\ndata.hub.repo = "{REPO}"\n{more}')
    return {str(file.target.relative_to(tmp_path)) for file in plan(suite, tmp_path).repositories[0].wanted()}


def test_files_of_a_split(hub: Hub, tmp_path: Path) -> None:
    """Without patterns: tables of other splits stay where there are some of the task's, and archives stay; by repository."""
    assert chosen(hub, tmp_path, "beir-parquet") == {
        f"{REPO}/{name}"
        for name in ("README.md", "data/test-00000-of-00002.parquet", "data/test-00001-of-00002.parquet",
                     "corpus/corpus-00000-of-00001.parquet", "qrels/test.jsonl")
    }  # fmt: skip
    assert f"{REPO}/data/train-00000-of-00001.parquet" in chosen(
        hub, tmp_path, "beir-parquet", 'data.hub.split = "train"'
    )


def test_files_of_a_config(hub: Hub, tmp_path: Path) -> None:
    tree = {f"{name}/test-00000-of-00001.parquet": SMALL for name in ("A", "AB", "one")}
    assert chosen(hub, tmp_path, "mmeb-image", 'data.hub.config = "A"', tree) == {
        f"{REPO}/A/test-00000-of-00001.parquet"
    }
    assert chosen(hub, tmp_path, "mmeb-image", "", tree) == {f"{REPO}/one/test-00000-of-00001.parquet"}
    assert len(chosen(hub, tmp_path, "mmeb-video", "", tree)) == 3


def test_one_fetch_at_a_time(hub: Hub, tmp_path: Path) -> None:
    suite, data = loose(hub, tmp_path), tmp_path / "data"
    planned = plan(suite, data)
    data.mkdir()
    with room._alone(data), pytest.raises(UserError, match="another fetch is at work in this folder"):
        fetch(planned, Options())
    fetch(planned, Options())


def test_folders_that_are_none(hub: Hub, tmp_path: Path) -> None:
    suite = loose(hub, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--data .*file: this is a file; name a folder"):
        plan(suite, tmp_path / "file")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / room.RECORD).write_text('{"repositories": 3}')
    with pytest.raises(UserError, match=r"fetched\.json: .*; remove it"):
        plan(suite, tmp_path / "data")


def test_progress_counts_the_bytes(hub: Hub, tmp_path: Path) -> None:
    """In megabytes, also when they come in pieces smaller than one."""
    told = []

    @contextmanager
    def progress(what: str, total: int) -> Iterator[Any]:
        told.append((what, total))
        yield lambda steps: told.append(("steps", steps))

    with room._megabytes(progress, "MB", 2_600_000) as advance:
        for _ in range(26):
            advance(100_000)
    assert told[0] == ("MB", 2)
    assert sum(steps for _, steps in told[1:]) == 2


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"huggingface_hub is not installed: run `pip install 'omnirecall\[hub\]'`"):
        plan(load_suite("acm"), tmp_path)


def test_the_library_still_takes_what_it_is_given() -> None:
    """``http_get`` is called directly, since it alone continues a file that is there in part."""
    import inspect

    known = inspect.signature(file_download.http_get).parameters
    assert {"url", "temp_file", "resume_size", "headers", "expected_size", "tqdm_class"} <= set(known)


# The benchmarks' own cards: what the writers of miniatures make, put on the hub as its owners did, comes to where the readers look.


def below(folder: Path, *without: str) -> dict[str, bytes]:
    return {name: content for name, content in held(folder).items() if name.split("/")[0] not in without}


def packed_folder(folder: Path, prefix: str = "") -> bytes:
    return tar({f"{prefix}{name}": content for name, content in held(folder).items()})


def put_uvrb(hub: Hub, made: Path, commit: str) -> None:
    files: dict[str, bytes] = {}
    for folder in sorted((made / "UVRB").iterdir()):
        form = "UVRB/" if folder.name == "CRB-G" else ""  # members from UVRB on, or from the folder above it
        content = packed_folder(folder / "UVRB" if form else made / "UVRB" / folder.name, form)
        files |= parts(f"{folder.name}.tar.gz", content, 2)
    hub.add("Alibaba-NLP/UVRB", files, commit)


def put_mbeir(hub: Hub, made: Path) -> None:
    files = below(made / "M-BEIR", "mbeir_images")
    images = packed_folder(made / "M-BEIR" / "mbeir_images", "mbeir_images/")
    files |= parts("mbeir_images.tar.gz", images, 3, "{}.part-{:02}")
    hub.add("TIGER-Lab/M-BEIR", files | {"query/train/mbeir_webqa_task1_train.jsonl": SMALL})


def put_acm(hub: Hub, made: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in held(made / "ACM" / "media").items():
            file.writestr(f"media/{name}", content)
    tables = {f"data/{name}": content for name, content in below(made / "ACM", "media").items()}
    hub.add("chuonghm/ACM", tables | {"media.zip": out.getvalue(), "README.md": SMALL})


def put_mmeb(hub: Hub, made: Path, commit: str) -> None:
    media, frames = made / "MMEB-V2", made / "MMEB-V2" / "video-tasks" / "frames"
    files = {"image-tasks/mmeb_v1.tar.gz": packed_folder(media / "image-tasks", "MMEB/")}
    for name in ("video_cls", "video_ret"):
        files[f"video-tasks/frames/{name}.tar.gz"] = packed_folder(frames / name)
    files["video-tasks/frames/video_mret.tar.gz"] = packed_folder(frames / "video_mret", "video_mret/")
    asked = packed_folder(frames / "video_qa", "video_qa/")
    files |= parts("video-tasks/frames/video_qa.tar.gz", asked, 5, "{}-{:02}")
    hub.add("TIGER-Lab/MMEB-V2", files, commit)


def put_repositories(hub: Hub, made: Path, suite: Suite, tasks: Sequence[str]) -> None:
    """Every repository that is a folder of rows."""
    for name in tasks:
        table = suite.task(name).data["hub"]
        if (made / table["repo"]).is_dir() and table["repo"] not in hub.repos:
            hub.add(table["repo"], held(made / table["repo"]), table.get("revision", ""))


TASKS = {
    "uvrb": ("MSRVTT", "CRB-G", "MS-TI", "MSRVTT-I2V"),
    "mbeir": ("mscoco_task0", "webqa_task1", "cirr_task7", "oven_task8"),
    "mbeir-union": ("webqa_task1", "nights_task4"),
    "acm": ("A,T->A", "V->A"),
    "mmeb-v2": (
        "ImageNet-1K", "WebQA", "RefCOCO", "K700", "MVBench", "EgoSchema", "MSR-VTT", "QVHighlight", "MomentSeeker",
        "ViDoRe_arxivqa", "ViDoRe_esg_reports_v2_multilingual", "VisRAG_ChartQA",
    ),
    "omniret": ("audiocaps_a2t", "clotho_t2a", "msrvtt_v2t", "youcook2_t2v"),
}  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_what_is_fetched_is_what_the_readers_look_for(hub: Hub, tmp_path: Path, name: str) -> None:
    suite, made, data = load_suite(name), tmp_path / "made", tmp_path / "data"
    tasks = [suite.task(task) for task in TASKS[name]]
    meant = write(made, tasks)
    put_repositories(hub, made, suite, TASKS[name])
    if name == "uvrb":
        put_uvrb(hub, made, tasks[0].data["hub"]["revision"])
    elif name.startswith("mbeir"):
        put_mbeir(hub, made)
    elif name == "acm":
        put_acm(hub, made)
    elif name == "mmeb-v2":
        put_mmeb(hub, made, tasks[0].data["archive"]["revision"])
    fetch(plan_fetch(suite, tasks, data), Options())
    for task in tasks:
        rows = read_task(data, task)
        assert_meant(rows, meant[task.name], task.name)
        for item in (*rows.queries, *rows.candidates):
            for medium in (item.image, item.video, item.audio):
                assert not isinstance(medium, Path) or medium.exists(), (task.name, medium)
    assert not [path for path in data.rglob("*") if path.name.endswith((".part", ".whole", ".zip", ".gz"))]
