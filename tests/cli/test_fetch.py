"""``omnirecall fetch``: it says and asks first, in a terminal or not at all, and goes on after it was killed."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
from hub_server import Hub, environment, serving

LARGE = random.Random(1).randbytes(24_000_000)
"""Larger than two of the blocks in which the library writes, so that one is on the disk when the second is cut."""
MAIN = [sys.executable, "-c", "from omnirecall.cli import main; main()"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub on loopback."""
    with serving(monkeypatch) as served:
        yield served


@pytest.fixture
def card(hub: Hub, tmp_path: Path) -> Path:
    """A card whose two tasks want a file each."""
    commit = hub.add("org/mini", {"one.bin": b"1" * 2000, "two.bin": b"2" * 3000}, licence="cc-by-4.0")
    return write_card(tmp_path, commit, "one", "two")


def write_card(folder: Path, commit: str, *names: str) -> Path:
    tasks = "".join(
        f'[[task]]\nname = "{name}"\nmeasure = "hit@1"\ndata.name = "{name}"\ndata.root = "MINI"\n'
        f'data.hub.repo = "org/mini"\ndata.hub.revision = "{commit}"\ndata.hub.files = "{{name}}.bin"\n'
        for name in names
    )
    path = folder / "mini.toml"
    path.write_text(f'[suite]\nname = "mini"\nlicence = "CC0-1.0, our words"\n{tasks}')
    return path


def test_without_a_terminal_it_asks_for_yes(
    hub: Hub, card: Path, tmp_path: Path, command: Callable, refused: Callable
) -> None:
    """And asks the hub nothing."""
    refused(command("fetch", card, "--data", tmp_path / "data"), "no terminal", "--yes", "--dry-run")
    refused(command("fetch", card, "--data", tmp_path / "data", "--json"), "--yes")
    assert not hub.asked
    assert not (tmp_path / "data").exists()


def test_it_says_what_it_would_do(hub: Hub, card: Path, tmp_path: Path, command: Callable) -> None:
    done = command("fetch", card, "--data", tmp_path / "data", "--dry-run")
    assert (done.code, done.err) == (0, "")
    for words in ("CC0-1.0, our words", "cc-by-4.0", "2 files to get, 5.0 kB", "GB free", "pinned"):
        assert words in done.out
    told = command("fetch", card, "--data", tmp_path / "data", "--dry-run", "--json").json
    assert (told["suite"], told["bytes_left"], told["done"]) == ("mini", 5000, False)
    assert not hub.got("*/resolve/*")
    assert not (tmp_path / "data").exists()


def test_it_fetches(hub: Hub, card: Path, tmp_path: Path, command: Callable) -> None:
    data = tmp_path / "data"
    done = command("fetch", card, "--data", data, "--tasks", "o*", "--yes")
    assert (done.code, done.err) == (0, "")
    assert "licence" in done.out
    assert str(data / "fetched.json") in done.out
    assert (data / "MINI" / "one.bin").read_bytes() == b"1" * 2000
    assert not (data / "MINI" / "two.bin").exists()
    told = command("fetch", card, "--data", data, "-y", "--json")
    assert (told.code, told.err, told.json["done"], told.json["bytes_left"]) == (0, "", True, 3000)
    assert told.json["repositories"][0]["there"] == 1
    quiet = command("fetch", card, "--data", data, "-y", "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_mistakes_and_failures(hub: Hub, card: Path, tmp_path: Path, command: Callable, refused: Callable) -> None:
    """Code 2 for what the user can cure, 1 for what failed, and one sentence for either."""
    data = ("--data", tmp_path / "data", "--yes")
    refused(command("fetch", card, *data, "--keep-archives", "--save-space"), "--keep-archives", "--save-space")
    refused(command("fetch", card, *data, "--tasks", "x*"), "--tasks x*", "one, two")
    refused(command("fetch", "starter", *data), "starter", "comes with it")
    refused(command("fetch", "uvbr", *data), "uvrb")
    refused(command("fetch", card), "--data")
    hub.repos["org/mini"].token = "secret"
    refused(command("fetch", card, *data), "org/mini", "HF_TOKEN")
    hub.repos["org/mini"].token = ""
    hub.fail("/blob/*", status=500)
    failed = command("fetch", card, *data)
    assert failed.code == 1
    assert failed.err.startswith("omnirecall: the run failed: ")
    assert failed.err.count("\n") == 1
    assert "500" in failed.err


def in_terminal(hub: Hub, answer: bytes, *arguments: object) -> tuple[int, str]:
    """Code and what a terminal shows, of a fetch that is answered."""
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [*MAIN, "fetch", *map(str, arguments)],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **environment(hub), "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while True:
            block = os.read(ours, 4096)
            shown += block
            if b"fetch it?" in shown and answer:
                os.write(ours, answer)
                answer = b""
            if not block:
                break
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    return run.wait(60), shown.decode()


def test_a_terminal_is_asked(hub: Hub, card: Path, tmp_path: Path) -> None:
    """No is no; yes shows a bar. The licence and the size come before the question."""
    data = tmp_path / "data"
    code, shown = in_terminal(hub, b"n\n", card, "--data", data)
    assert code == 1
    assert (
        shown.index("CC0-1.0") < shown.index("5.0 kB") < shown.index("fetch it?") < shown.index("nothing was fetched")
    )
    assert not data.exists()
    code, shown = in_terminal(hub, b"y\n", card, "--data", data)
    assert code == 0
    assert "━" in shown
    assert (data / "MINI" / "two.bin").read_bytes() == b"2" * 3000


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_it_goes_on_after_it_was_stopped(hub: Hub, tmp_path: Path, command: Callable, end: signal.Signals) -> None:
    """In the middle of a file: what came is not asked for again."""
    card = write_card(tmp_path, hub.add("org/mini", {"one.bin": LARGE}), "one")
    data = tmp_path / "data"
    hub.fail("/blob/*", 1, cut=21_000_000, hold=True)
    run = subprocess.Popen(
        [*MAIN, "fetch", str(card), "--data", str(data), "--yes", "--quiet"],
        env={**os.environ, **environment(hub)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    part, pause = data / "MINI", Event()
    while run.poll() is None and not [
        path for path in part.glob(".one.bin*.part") if path.stat().st_size >= 20_000_000
    ]:
        pause.wait(0.02)
    run.send_signal(end)
    _, said = run.communicate(timeout=60)
    assert run.returncode == (-signal.SIGKILL if end == signal.SIGKILL else 130)
    assert said.count("\n") == (0 if end == signal.SIGKILL else 1)
    assert not (data / "MINI" / "one.bin").exists()
    done = command("fetch", card, "--data", data, "--yes", "--json")
    assert done.json["bytes_left"] == len(LARGE) - 20 * 1024 * 1024
    assert (data / "MINI" / "one.bin").read_bytes() == LARGE
    assert [one.headers.get("range") for one in hub.got("/blob/*")] == [None, f"bytes={20 * 1024 * 1024}-"]
    assert [path.name for path in part.iterdir()] == ["one.bin"]
    assert list(json.loads((data / "fetched.json").read_text())["repositories"]["org/mini"]["files"]) == [
        "MINI/one.bin"
    ]


def test_it_needs_the_library_only_when_it_is_used() -> None:
    script = (
        "import sys\nfrom omnirecall.cli import main\ntry: main()\nfinally: print('huggingface_hub' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, "fetch", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")
