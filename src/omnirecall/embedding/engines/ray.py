"""Batch after batch on the actors of a Ray cluster, each of which holds the model (Moritz et al., OSDI 2018)."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from threadpoolctl import threadpool_info, threadpool_limits

from omnirecall.embedding.engines.local import decoded
from omnirecall.embedding.pipeline import Done, Engine, Results, Sizes, encoded
from omnirecall.embedding.plan import Distinct, Job
from omnirecall.errors import RunError, UserError, require
from omnirecall.media.ahead import HELD_BYTES, ahead
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import Embedder, ModelOptions, Role
from omnirecall.models.load import load_model

HELD_BATCHES = 2
"""Batches that an actor has at once: one with the model, one that is decoded meanwhile."""

DEATHS = 3
"""Actors that may die over a batch, or in a row while they load the model."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a dead actor is replaced: doubled with each loss since the last batch that was done."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
LOGS = "what it last said is in Ray's logs, by default in /tmp/ray/session_latest/logs on its machine"

Coming = Generator[DecodedItem, None, None]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Workers:
    """Who embeds. ``address``: of a running cluster, ``HOST:PORT`` or ``auto``; None starts Ray on this machine and ends it.

    ``actors``: None takes as many as the GPUs allow if ``gpus_per_actor`` is above 0, else one for each machine.
    """

    address: str | None = None
    actors: int | None = None
    gpus_per_actor: float = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """What makes an actor embed as the process that started it would.

    ``folder``: where relative paths begin. ``search``: where modules are found. ``variables``: THREAD_VARIABLES, None where unset.
    ``torch_threads``, ``blas_threads``: 0 leaves them.
    """

    spec: str
    options: ModelOptions
    name: str
    fingerprint: str
    dimension: int
    folder: Path
    search: Sequence[str]
    variables: dict[str, str | None]
    torch_threads: int
    blas_threads: int


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in an actor; such an error is the run's, where a dead actor is not."""

    error: UserError | RunError


def engine(spec: str, options: ModelOptions, workers: Workers) -> Engine:
    """The engine whose actors load the model by ``spec`` and ``options``. Ray is imported when there is a batch to do.

    The seconds that models waited are the mean over the actors, so that they compare with the time of the run.
    UserError for a number of actors or GPUs that cannot be, and for a cluster that cannot be reached. RunError where actors die
    over and over.
    """
    _check(workers)

    def on_actors(distinct: Distinct, todo: Sequence[range]) -> Results:
        if todo:
            setup = _setup(spec, options, distinct.plan.model)
            with _cluster(workers.address, workers.actors) as ray:
                actors = min(_number_of_actors(ray.nodes(), workers), len(todo))
                with closing(_Fleet(ray, setup, workers.gpus_per_actor, distinct, todo)) as fleet:
                    for rows, done, waited in fleet.results(actors):
                        yield rows, done, waited / actors

    return on_actors


def _check(workers: Workers) -> None:
    if workers.actors is not None and workers.actors < 1:
        raise UserError(f"--actors {workers.actors}: give a number of 1 or more")
    gpus = workers.gpus_per_actor
    if not 0 <= gpus < float("inf") or (gpus > 1 and gpus != int(gpus)):
        raise UserError(f"--gpus-per-actor {gpus:g}: give a part of one GPU, such as 0.5, or a whole number of them")
    if workers.address is not None and "://" in workers.address:
        raise UserError(
            f"--address {workers.address}: run omnirecall on a machine of the cluster, and give HOST:PORT or auto"
        )


def _setup(spec: str, options: ModelOptions, model: Embedder) -> Setup:
    torch = sys.modules.get("torch")
    blas = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
    return Setup(
        spec=spec,
        options=ModelOptions(options.device, options.dtype, options.revision, dict(options.args)),
        name=model.name,
        fingerprint=model.fingerprint,
        dimension=model.dimension,
        folder=Path.cwd(),
        search=tuple(str(Path(entry).absolute()) for entry in sys.path),
        variables={name: os.environ.get(name) for name in THREAD_VARIABLES},
        torch_threads=torch.get_num_threads() if torch is not None else 0,
        blas_threads=max(blas, default=0),
    )


@contextmanager
def _cluster(address: str | None, actors: int | None) -> Iterator[Any]:
    """Ray, connected; what was begun here is ended here. A connection that the caller has made is used and left."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address is not None:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")  # else it tries for a quarter of an hour
    ray = require("ray", "ray")
    if ray.is_initialized():
        connected = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", connected):
            raise UserError(f"--address {address}: Ray is connected to {connected} already; call ray.shutdown() first")
        yield ray
        return
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.CRITICAL}
    inner = ray._private.worker
    inner._worker_logs_enabled = False  # it tells of dead workers on standard output, whatever its options say
    try:
        if address is None:
            _start_ray(ray, actors, quiet)
        else:
            _join_cluster(ray, address, quiet)
        yield ray
    finally:
        ray.shutdown()
        inner._worker_logs_enabled = True


def _start_ray(ray: Any, actors: int | None, choices: dict[str, Any]) -> None:
    try:
        ray.init(address="local", num_cpus=actors or 1, **choices)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise RunError(f"Ray cannot be started on this machine: {_first_line(error)}") from error


def _join_cluster(ray: Any, address: str, choices: dict[str, Any]) -> None:
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            with socket.create_connection((host.strip("[]"), int(port)), timeout=10):
                pass
        ray.init(address=address, **choices)
    except (OSError, ValueError, OverflowError, RuntimeError, ray.exceptions.RayError) as error:
        raise UserError(
            f"--address {address}: no Ray cluster can be joined there ({_first_line(error)}); give the HOST:PORT that"
            f" `ray start --head` prints, or auto on a machine of the cluster"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _number_of_actors(nodes: Sequence[dict[str, Any]], workers: Workers) -> int:
    """How many actors to start on Ray's ``nodes``; UserError where there is no room for as many."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    share = workers.gpus_per_actor
    if not share:
        return workers.actors or max(1, sum(resources.get("CPU", 0) >= 1 for resources in alive))
    gpus = [int(resources.get("GPU", 0)) for resources in alive]
    room = sum(count * int(1 / share) if share <= 1 else count // int(share) for count in gpus)
    if room < (workers.actors or 1):
        raise UserError(
            f"--actors {workers.actors or 1} --gpus-per-actor {share:g}: the {sum(gpus)} GPUs that Ray finds have room for"
            f" {room} such actors; ask for less"
        )
    return workers.actors or room


@dataclass(slots=True)
class _Lot:
    """A batch to do, and how many actors have died over it."""

    rows: range
    deaths: int = 0


@dataclass(slots=True)
class _Fleet:
    """The actors and what each of them does; batches of an actor that dies go back to those to do.

    Which of an actor's batches killed it cannot be seen, so those batches are done alone from then on.
    """

    ray: Any
    setup: Setup
    gpus: float
    distinct: Distinct
    batches: Sequence[range]
    todo: deque[_Lot] = field(default_factory=deque)
    lots: dict[Any, list[_Lot]] = field(default_factory=dict)
    calls: dict[Any, tuple[Any, _Lot | None]] = field(default_factory=dict)
    due: list[float] = field(default_factory=list)
    losses: int = 0
    stillborn: int = 0

    def results(self, actors: int) -> Results:
        """The batches as they are done."""
        self.todo.extend(_Lot(rows) for rows in self.batches)
        for _ in range(actors):
            self._start()
        while self.todo or any(self.lots.values()):
            self._start_those_due()
            for call in self._returned():
                if call not in self.calls:  # of an actor whose loss is known
                    continue
                actor, lot = self.calls.pop(call)
                try:
                    outcome = self.ray.get(call)
                except self.ray.exceptions.RayTaskError as error:
                    raise RunError(f"model {self.setup.name}: {error.cause or error}") from error
                except self.ray.exceptions.RayError as error:
                    self._replace(actor, lot, error)
                    continue
                if isinstance(outcome, Failure):
                    raise outcome.error
                if lot is None:
                    self.stillborn = 0
                    self._feed(actor)
                    continue
                self.losses = 0
                self.lots[actor].remove(lot)
                self._feed(actor)
                yield lot.rows, *outcome

    def close(self) -> None:
        """End the actors."""
        for actor in self.lots:
            with suppress(Exception):
                self.ray.kill(actor)

    def _start(self) -> None:
        resources = {"num_cpus": 0, "num_gpus": self.gpus} if self.gpus else {}
        kind = self.ray.remote(Worker).options(
            max_concurrency=HELD_BATCHES, max_restarts=0, scheduling_strategy="SPREAD", **resources
        )
        actor = kind.remote(self.setup)
        self.lots[actor] = []
        self.calls[actor.load.remote()] = actor, None

    def _start_those_due(self) -> None:
        now = time.monotonic()
        late = [due for due in self.due if due <= now]
        self.due = [due for due in self.due if due > now]
        for _ in late:
            self._start()

    def _returned(self) -> list[Any]:
        """Calls that have returned; none where a replacement is due before one does."""
        pause = max(0.0, min(self.due) - time.monotonic()) if self.due else None
        if not self.calls:
            time.sleep(pause or 0)
            return []
        done, _ = self.ray.wait(list(self.calls), num_returns=1, timeout=pause)
        return list(done)

    def _feed(self, actor: Any) -> None:
        """Give a loaded actor as many batches as it may hold."""
        mine = self.lots[actor]
        while self.todo and len(mine) < HELD_BATCHES and not (mine and (mine[0].deaths or self.todo[0].deaths)):
            lot = self.todo.popleft()
            mine.append(lot)
            self.calls[actor.embed.remote(list(self.distinct.jobs(lot.rows)))] = actor, lot

    def _replace(self, actor: Any, lot: _Lot | None, error: Exception) -> None:
        """Take back the batches of a lost actor; another is started after a pause if there is work for it."""
        with suppress(Exception):  # it may be alive where this process no longer reaches it
            self.ray.kill(actor)
        lost = self.lots.pop(actor)
        self.calls = {call: (who, what) for call, (who, what) in self.calls.items() if who != actor}
        self.stillborn += lot is None
        if self.stillborn == DEATHS:
            raise RunError(
                f"model {self.setup.name}: {DEATHS} Ray actors in a row died while they loaded it{_cause(error)}; {LOGS}"
            ) from error
        for one in lost:
            one.deaths += 1
            if one.deaths == DEATHS:
                first = self.distinct.job(one.rows.start).planned.id
                raise RunError(
                    f"model {self.setup.name}: {DEATHS} Ray actors died over the {len(one.rows)} items beginning with"
                    f" {first}{_cause(error)}; {LOGS}"
                ) from error
        self.todo.extendleft(reversed(lost))
        loading = {who for who, what in self.calls.values() if what is None}
        for other in self.lots:
            if other not in loading:
                self._feed(other)
        self.due.append(time.monotonic() + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.losses, 10)))
        self.losses += 1


def _cause(error: Exception) -> str:
    """What Ray says of a death, where it says more than that there was one."""
    said = str(error).strip()
    if "running low on memory" in said:
        return " because their machine ran low on memory"
    return f" ({said.splitlines()[-1].strip()})" if "creation task" in said else ""


class Worker:
    """An actor: it holds the model, and decodes one batch while the model has another.

    Ray calls it on HELD_BATCHES threads; the model is loaded and called on one thread of its own.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.sizes = Sizes()
        self.free = 0.0
        self.one = ThreadPoolExecutor(1, thread_name_prefix="model")

    def load(self) -> Failure | None:
        """Load the model as the process that started this one did."""
        return self._attempt(lambda: self.one.submit(self._load).result())

    def embed(self, jobs: Sequence[Job]) -> tuple[Done, float] | Failure:
        """A batch's vectors, and the seconds for which the model waited for it to be decoded."""
        return self._attempt(lambda: self._embed(jobs, time.perf_counter()))

    @cached_property
    def model(self) -> Embedder:
        """The model."""
        return load_model(self.setup.spec, self.setup.options)

    def _attempt(self, work: Callable[[], Value]) -> Value | Failure:
        try:
            return work()
        except Exception as error:  # a model's own error may be anything, and of a class that only this process knows
            text = str(error) or type(error).__name__
            known = UserError(text) if isinstance(error, UserError) else RunError(text)
            if not isinstance(error, UserError | RunError):
                known = RunError(f"{type(error).__name__}: {error}")
            known.add_note(f"in a Ray actor on {socket.gethostname()}:\n{traceback.format_exc()}")
            return Failure(known)

    def _load(self) -> None:
        setup = self.setup
        _like_the_starting_process(setup)
        if (self.model.fingerprint, self.model.dimension) != (setup.fingerprint, setup.dimension):
            raise UserError(
                f"model {setup.name}: has another fingerprint on {socket.gethostname()} than where the run was started; the same"
                f" files, versions and kind of device must be on every machine"
            )
        self.free = time.perf_counter()

    def _embed(self, jobs: Sequence[Job], arrived: float) -> tuple[Done, float]:
        half = HELD_BYTES // 2
        with closing(self._coming(jobs, half)) as coming:
            items = _first_within(coming, half)
            return self.one.submit(self._encoded, items, coming, jobs[0].role, arrived).result()

    def _coming(self, jobs: Sequence[Job], held_bytes: int) -> Coming:
        """The items of a batch. Texts are ready at once: handing them to threads would take longer."""
        if jobs[0].planned.modalities == {"text"}:
            yield from map(self._decoded, jobs)
            return
        with closing(ahead(jobs, self._decoded, lambda item: item.nbytes, held_bytes=held_bytes)) as pairs:
            for _, future in pairs:
                yield future.result()

    def _decoded(self, job: Job) -> DecodedItem:
        return decoded(job, self.model)

    def _encoded(self, items: Sequence[DecodedItem], rest: Coming, role: Role, arrived: float) -> tuple[Done, float]:
        batch = [*items, *rest]
        waited = time.perf_counter() - max(self.free, arrived)
        try:
            return encoded(self.model, batch, role, self.sizes), waited
        finally:
            self.free = time.perf_counter()


def _first_within(coming: Coming, size: int) -> list[DecodedItem]:
    """The first items, until they take ``size`` bytes or more."""
    items, held = [], 0
    for item in coming:
        items.append(item)
        held += item.nbytes
        if held >= size:
            break
    return items


def _like_the_starting_process(setup: Setup) -> None:
    """Paths, modules and threads as they were there: Ray gives a worker one thread, and sums then round otherwise."""
    try:
        os.chdir(setup.folder)
    except OSError:
        raise UserError(
            f"{setup.folder}: the folder in which the run was started is not on {socket.gethostname()}; start it in one that every"
            f" machine of the cluster sees"
        ) from None
    sys.path += [entry for entry in setup.search if entry not in sys.path]
    for name, value in setup.variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if setup.blas_threads:
        threadpool_limits(setup.blas_threads, user_api="blas")
    if setup.torch_threads:
        require("torch", "models").set_num_threads(setup.torch_threads)
