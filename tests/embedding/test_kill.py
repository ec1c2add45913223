"""Killed anywhere, on a full disk, beside another run: the next run goes on and ends as an undisturbed one does."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from omnirecall import digests
from omnirecall.evaluation import evaluate

MODEL = '''
"""Vectors that depend on the batch they were made in, as padding makes them; every batch is written to a log."""

import hashlib
import os
import time

import numpy as np


class Model:
    name = "slow"
    fingerprint = os.environ.get("FINGERPRINT", "slow-1")
    dimension = int(os.environ.get("DIMENSION", 4))
    symmetric = False

    def supports(self, modalities):
        return True

    def encode(self, items, *, role):
        said = [f"{role} {item.instruction} {item.text} {self.seen(item)}" for item in items]
        handle = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, ("|".join(said) + "\\n").encode())
        os.close(handle)
        time.sleep(float(os.environ.get("WAIT", 0)))
        batch = sum(map(len, said))
        return np.stack([self.one(text) + np.float32(batch / 1000) for text in said])

    def seen(self, item):
        if item.video is not None:
            return item.video.pixels.mean((1, 2, 3)).tolist()
        return "" if item.image is None else np.asarray(item.image).mean()

    def one(self, text):
        digest = hashlib.shake_128((self.fingerprint + text).encode()).digest(2 * self.dimension)
        return np.frombuffer(digest, np.uint16).astype(np.float32) - 30000
'''

HOST = """
import importlib.metadata, json, os, signal, sys, tempfile
from pathlib import Path

import pyarrow

import omnirecall.models.python
from omnirecall.embedding import segments
from omnirecall.errors import RunError, UserError
from omnirecall.evaluation import evaluate

pyarrow.array([1])  # which imports what each run would else import for itself
events = 0

def die_at(number):
    def event():
        global events
        if events == number:
            os.kill(os.getpid(), signal.SIGKILL)
        events += 1

    def before(function):
        def wrapped(*arguments, **options):
            event()
            return function(*arguments, **options)
        return wrapped

    write = segments._write_all
    def in_halves(file, data):
        event()
        write(file, data[: len(data) // 2])
        event()
        write(file, data[len(data) // 2 :])

    segments._write_all = in_halves
    os.fsync = before(lambda handle: None)  # what a kill leaves does not depend on it, and it takes its time
    Path.replace = before(Path.replace)
    tempfile.mkstemp = before(tempfile.mkstemp)

print("ready", flush=True)
for line in sys.stdin:
    arguments = json.loads(line)
    child = os.fork()
    if not child:
        code = 3
        try:
            os.environ.update(arguments.pop("environment"))
            die_at(arguments.pop("die_at"))
            out, suite = Path(arguments.pop("out")), arguments.pop("suite")
            store_folder = Path(arguments.pop("store", out / ".store"))
            evaluate(arguments.pop("model"), suite, out=out, store=store_folder, **arguments)
            code = 0
        except (UserError, RunError) as error:
            code = 2 if isinstance(error, UserError) else 1
        finally:
            os._exit(code)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Host:
    """A process that has imported everything and forks one run at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def start(self, folder: Path, out: Path, *, die_at: int = -1, wait: float = 0, **choices: Any) -> int:
        """Begin a run of the model beside ``folder``; returns the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        environment = {"CALLS": str(out.parent / "calls"), "WAIT": str(wait)}
        model = f"py:{folder.parent / 'slow.py'}:Model"
        arguments = {
            "model": model,
            "suite": str(folder),
            "out": str(out),
            "die_at": die_at,
            "environment": environment,
        }
        self.process.stdin.write(json.dumps({**arguments, **choices}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> int:
        """How the run ended: its code, or minus the signal."""
        assert self.process.stdout is not None
        return os.waitstatus_to_exitcode(int(self.process.stdout.readline()))

    def run(self, folder: Path, out: Path, **choices: Any) -> int:
        self.start(folder, out, **choices)
        return self.end()

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    one = Host()
    yield one
    one.close()


TEXTS = 24


@pytest.fixture
def folder(tmp_path: Path, own_data: Callable) -> Path:
    """Texts of several lengths; half of the queries stand among the candidates."""
    (tmp_path / "slow.py").write_text(MODEL)
    rng = random.Random(0)
    lines = ["".join(rng.choices("abc", k=rng.randint(1, 9))) + str(row) for row in range(2 * TEXTS)]
    queries = [{"id": f"q{row}", "text": lines[row]} for row in range(TEXTS)]
    candidates = [{"id": f"c{row}", "text": lines[row + TEXTS // 2]} for row in range(TEXTS)]
    qrels = [(f"q{row}", f"c{rng.randrange(TEXTS)}", 1) for row in range(TEXTS)]
    return own_data(tmp_path / "data", queries, candidates, qrels, 'name = "mine"\nmeasure = "hit@3"\n')


def outcome(out: Path) -> tuple[Any, Any]:
    """What a run came to: its record without times and places, and every query's scores."""
    (path,) = out.rglob("run.json")
    record = json.loads(path.read_text())
    for name in ("embedded", "folder"):
        record.pop(name, None)
    return record, pq.read_table(path.parent / "tasks" / "mine.parquet").to_pylist()


def calls(out: Path) -> list[str]:
    """The batches that were embedded for ``out``, in order."""
    path = out.parent / "calls"
    return path.read_text().splitlines() if path.exists() else []


def left_behind(out: Path) -> list[Path]:
    """Files under a temporary name."""
    return [path for path in out.rglob("*") if path.name.endswith(".tmp")]


@pytest.fixture
def undisturbed(host: Host, folder: Path, tmp_path: Path) -> tuple[tuple[Any, Any], list[str]]:
    """What a run comes to, and its batches."""
    out = tmp_path / "undisturbed" / "runs"
    out.mkdir(parents=True)
    assert host.run(folder, out, batch=4) == 0
    assert len(calls(out)) == 12
    return outcome(out), calls(out)


def test_killed_at_random_moments(
    host: Host, folder: Path, tmp_path: Path, undisturbed: tuple[tuple[Any, Any], list[str]]
) -> None:
    """Two dozen times, in runs that are killed again and again until one gets through."""
    expected, batches = undisturbed
    rng, kills, lives = random.Random(7), 0, 0
    until = time.monotonic() + 300
    while kills < 24:
        lives += 1
        out = tmp_path / f"life {lives}" / "runs"
        out.mkdir(parents=True)
        died, ended = 0, None
        while ended != 0:
            assert time.monotonic() < until
            assert died < 24  # each time something is kept
            before = len(calls(out))
            process = host.start(folder, out, wait=0.02, batch=4)
            wanted = before + rng.randint(
                1, 4
            )  # a moment in the middle of embedding, whatever the machine is busy with
            while (
                len(calls(out)) < wanted and len(calls(out)) < len(batches) + died and not list(out.rglob("run.json"))
            ):
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.04))
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            ended = host.end()
            assert ended in (0, -signal.SIGKILL)
            died += ended != 0
        kills += died
        assert outcome(out) == expected
        done = Counter(calls(out))
        assert set(done) == set(batches)  # never another batch than those of the plan
        assert sum(done.values()) - len(batches) <= died
        assert not left_behind(out)
        assert host.run(folder, out, batch=4) == 0
        assert sum(Counter(calls(out)).values()) == sum(done.values())
    assert lives > 1


def test_killed_at_every_write(host: Host, folder: Path, tmp_path: Path) -> None:
    """Before each write, sync and rename of a run, which is after the one before it, and in the middle of each write; in turn."""
    whole = tmp_path / "undisturbed" / "runs"
    whole.mkdir(parents=True)
    assert host.run(folder, whole, batch=24) == 0
    number, ended = 0, -1
    while ended != 0:
        out = tmp_path / f"event {number}" / "runs"
        out.mkdir(parents=True)
        ended = host.run(folder, out, batch=24, die_at=number)
        assert ended in (0, -signal.SIGKILL)
        if ended:
            assert host.run(folder, out, batch=24) == 0
        assert outcome(out) == outcome(whole)
        assert set(calls(out)) == set(calls(whole))
        assert len(calls(out)) - len(calls(whole)) <= (ended != 0)
        assert not left_behind(out)
        number += 1
    assert number > 20


@pytest.mark.parametrize("shared", [False, True])
def test_two_runs_at_once(
    shared: bool, host: Host, folder: Path, tmp_path: Path, undisturbed: tuple[tuple[Any, Any], list[str]]
) -> None:
    """On one store, and even in one folder, both end right."""
    expected, batches = undisturbed
    other = Host()
    try:
        outs = [tmp_path / f"at once {number}" / "runs" for number in range(2)]
        store = outs[0] / ".store"
        for out in outs:
            out.mkdir(parents=True)
        if shared:
            outs[1] = outs[0]
        for one, out in zip((host, other), outs, strict=True):
            one.start(folder, out, wait=0.01, batch=4, store=str(store))
        assert [one.end() for one in (host, other)] == [0, 0]
        for out in outs:
            assert outcome(out) == expected
        assert set(calls(outs[0])) | set(calls(outs[1])) == set(batches)
        assert host.run(folder, outs[1], batch=4, store=str(store)) == 0
        assert outcome(outs[1]) == expected
    finally:
        other.close()


def test_two_runs_at_once_one_of_which_is_killed(
    host: Host, folder: Path, tmp_path: Path, undisturbed: tuple[tuple[Any, Any], list[str]]
) -> None:
    expected, _ = undisturbed
    other = Host()
    try:
        outs = [tmp_path / f"at once {number}" / "runs" for number in range(2)]
        for out in outs:
            out.mkdir(parents=True)
        processes = [
            one.start(folder, out, wait=0.05, batch=4, store=str(tmp_path / "store"))
            for one, out in zip((host, other), outs, strict=True)
        ]
        while len(calls(outs[0])) < 3:
            time.sleep(0.001)
        os.kill(processes[0], signal.SIGKILL)
        assert [one.end() for one in (host, other)] == [-signal.SIGKILL, 0]
        assert outcome(outs[1]) == expected
        before = len(calls(outs[0]))
        assert host.run(folder, outs[0], batch=4, store=str(tmp_path / "store")) == 0
        assert outcome(outs[0]) == expected
        assert len(calls(outs[0])) == before
    finally:
        other.close()


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A file system of its own on ``path``; what is given makes it larger. Skips where it cannot be mounted."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield lambda larger: subprocess.run(["mount", "-o", f"remount,size={larger}", str(path)], check=True) and None
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("size", ["64k", "96k", "100k"])
def test_a_full_disk(
    size: str,
    folder: Path,
    tmp_path: Path,
    command: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence and code 1; with room again, the next run goes on from what was stored."""
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("DIMENSION", "1000")
    arguments = ("run", folder, "--model", f"py:{tmp_path / 'slow.py'}:Model", "--batch", 4, "--json")
    with small_disk(tmp_path / "disk", size) as enlarge:
        result = command(*arguments, "--out", tmp_path / "runs", "--store", tmp_path / "disk" / "store")
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("omnirecall: ")
        assert result.err.count("\n") == 1
        assert "No space left on device" in result.err
        assert str(tmp_path / "disk" / "store") in result.err
        again = command(*arguments, "--out", tmp_path / "runs", "--store", tmp_path / "disk" / "store")
        assert again.code == 1
        before = len(calls(tmp_path / "runs"))
        assert 3 <= before < 12
        enlarge("8m")
        run = command(*arguments, "--out", tmp_path / "runs", "--store", tmp_path / "disk" / "store").json
        assert run["notes"] == []
        assert len(calls(tmp_path / "runs")) == 12 + 2  # the batch that did not fit, once for each run that it ended
        assert len(set(calls(tmp_path / "runs"))) == 12
        command(*arguments, "--out", tmp_path / "other" / "runs")
        assert outcome(tmp_path / "runs")[1] == outcome(tmp_path / "other")[1]


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
from omnirecall.cli import main
main()
"""


def test_a_file_that_may_not_grow(
    folder: Path, tmp_path: Path, command: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a quota: one sentence, code 1, and the next run goes on."""
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("DIMENSION", "1000")
    arguments = [
        "run",
        folder,
        "--model",
        f"py:{tmp_path / 'slow.py'}:Model",
        "--batch",
        "4",
        "--out",
        tmp_path / "runs",
    ]
    process = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.splitlines()[-1].startswith("omnirecall: ")
    assert "File too large" in process.stderr
    assert "Traceback" not in process.stderr
    assert len(calls(tmp_path / "runs")) == 7  # six batches of 16,000 bytes fit
    assert command(*arguments).code == 0
    assert len(calls(tmp_path / "runs")) == 13
    assert len(set(calls(tmp_path / "runs"))) == 12


def png(number: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), (number, 2 * number, 3 * number)).save(out, "PNG")
    return out.getvalue()


def test_an_unreadable_file_in_the_middle(
    tmp_path: Path, own_data: Callable, command: Callable, refused: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with its cure; mended, the next run goes on behind what was done."""
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    (tmp_path / "slow.py").write_text(MODEL)
    candidates = [{"id": f"c{row}", "image": f"{row}.png"} for row in range(9)]
    folder = own_data(tmp_path / "data", candidates=candidates)
    for row in range(9):
        (folder / f"{row}.png").write_bytes(png(row + 1))
    whole = (folder / "5.png").read_bytes()
    arguments = ("run", folder, "--model", f"py:{tmp_path / 'slow.py'}:Model", "--batch", 1, "--out", tmp_path / "runs")
    for broken in (whole[:40], b"no picture"):
        (folder / "5.png").write_bytes(broken)
        refused(command(*arguments, "--json"), "5.png", "item c5", "--on-missing skip")
        assert len(calls(tmp_path / "runs")) == 7  # two queries and five pictures, not again the second time
    (folder / "5.png").write_bytes(whole)
    assert command(*arguments).code == 0
    assert len(calls(tmp_path / "runs")) == len(set(calls(tmp_path / "runs"))) == 11
    command(*arguments[:-1], tmp_path / "other" / "runs")
    assert outcome(tmp_path / "runs")[1] == outcome(tmp_path / "other")[1]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


CHANGES: dict[str, Callable[[Path, pytest.MonkeyPatch], dict[str, Any] | None]] = {
    "a picture": lambda folder, patch: (folder / "1.png").write_bytes(png(77)) and None,
    "a picture of the same size and times": lambda folder, patch: in_place(folder / "1.png"),
    "a film": lambda folder, patch: film(folder / "film.mp4", 7),
    "a text": lambda folder, patch: edit(folder / "queries.jsonl", "ask", "beg"),
    "the task's prompt": lambda folder, patch: edit(folder / "task.toml", "find it", "seek it"),
    "an item's prompt": lambda folder, patch: edit(folder / "queries.jsonl", "own words", "other words"),
    "the prompt mode": lambda folder, patch: {"prompt": "none"},
    "the model": lambda folder, patch: patch.setenv("FINGERPRINT", "slow-2"),
    "the length of vectors": lambda folder, patch: patch.setenv("DIMENSION", "5"),
    "the number of frames": lambda folder, patch: edit(folder / "task.toml", "frames = 2", "frames = 3"),
    "the frame rule": lambda folder, patch: edit(folder / "task.toml", "linspace_round", "segment_start"),
}


def film(path: Path, grey: int) -> None:
    """Six frames, each darker than the one before it."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for number in range(6):
            pixels = np.full((32, 32, 3), 240 - 20 * number - grey, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        out.mux(stream.encode())


def in_place(path: Path) -> None:
    """Other pixels in as many bytes, under the old times."""
    times, old = path.stat(), path.read_bytes()
    new = next(content for number in range(78, 85) if len(content := png(number)) == len(old))
    path.write_bytes(new)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_never_meets_an_old_vector(
    change: str, tmp_path: Path, own_data: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a store that knows it as it was, a run comes to what it comes to on an empty one; changed back, nothing is embedded."""
    (tmp_path / "slow.py").write_text(MODEL)
    toml = 'name = "mine"\ninstruction = "find it"\n[media]\nframes = 2\nrule = "linspace_round"\n'
    folder = own_data(
        tmp_path / "data",
        [{"id": "q1", "text": "ask"}, {"id": "q2", "text": "two", "instruction": "own words"}],
        [{"id": "c1", "image": "1.png"}, {"id": "c2", "video": "film.mp4"}, {"id": "c3", "text": "tre"}],
        [("q1", "c1", 1), ("q2", "c2", 1)],
        toml,
    )
    film(folder / "film.mp4", 5)
    (folder / "1.png").write_bytes(png(1))
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))

    def run(name: str, **options: Any) -> Any:
        monkeypatch.setenv("CALLS", str(tmp_path / name / "calls"))
        (tmp_path / name).mkdir(exist_ok=True)
        return evaluate(f"py:{tmp_path / 'slow.py'}:Model", folder, out=tmp_path / name / "runs", **options)

    def ranks(one: Any) -> Any:
        return pq.read_table(Path(one.folder) / "tasks" / "mine.parquet").to_pylist()

    now = time.time_ns
    monkeypatch.setattr(digests.time, "time_ns", lambda: now() + 10**13)  # so that hashes are remembered at once
    with ExitStack() as stack:
        first = run("warm", batch=1)
        assert first.embedded["now"] == 5
        before = ranks(first)
        kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        options = CHANGES[change](folder, patch) or {}
        changed, cold = run("warm", batch=1, **options), run("cold", batch=1, **options)
        assert changed.embedded["now"] > 0
        assert msgspec.to_builtins(changed.tasks) == msgspec.to_builtins(cold.tasks)
        assert ranks(changed) == ranks(cold) != before
        for path, content in kept.items():
            path.write_bytes(content)
    back = run("warm", batch=1)
    assert back.embedded["now"] == 0
    assert ranks(back) == before
