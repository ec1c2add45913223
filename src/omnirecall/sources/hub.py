"""The data of a suite from the Hugging Face hub: what is wanted, what it costs, and getting it whole.

A task's ``data.hub`` names the repository of its rows, its ``data.archive`` one of its media: ``repo``; ``revision``, or the
newest, which stays the one of this folder; ``files``, patterns with ``{name}``, ``{split}`` and ``{config}``, or all that the split
needs. Archives among ``files`` are unpacked: ``into`` a folder, without the leading folders of members that ``drop`` names.
``data.obtain`` says where to get what may not be passed on; such a task is not fetched.
"""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec

from omnirecall._version import __version__
from omnirecall.errors import RunError, UserError, require
from omnirecall.files import write_whole
from omnirecall.progress import Advance, Progress, silent
from omnirecall.protocol.suites import Suite, Task
from omnirecall.sources.tables import split_of, under
from omnirecall.sources.unpack import (
    ARCHIVE,
    BLOCK,
    archives,
    disk_error,
    in_bytes,
    move_into,
    streamable,
    unpack,
)

RECORD = "fetched.json"
LOCK = ".omnirecall-fetch.lock"
ENDPOINT = "https://huggingface.co"
BY_REPOSITORY = ("mmeb-image", "mmeb-video", "mmeb-visdoc", "beir-parquet")
"""Layouts whose rows are looked for in a folder of the repository's name; the others' are in the benchmark's folder."""
TABLES = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
WAITS = (1, 2, 4)
"""Seconds before a request that failed is made again, after what the library repeats itself."""
LARGEST = 50 * 1000**3
"""Bytes of a file from which on the hub gives it only through its own storage client, which does not continue a part."""
COMMIT = 40
"""Digits of a commit's name."""

T = TypeVar("T")


class FileRecord(msgspec.Struct, frozen=True):
    """A file that was verified: its size, digest and time of change then."""

    size: int
    digest: str
    modified: int


class ArchiveRecord(msgspec.Struct, frozen=True):
    """An archive that was unpacked: the digest of its parts, where, what came out, and names at the top of it."""

    digest: str
    into: str
    files: int
    bytes: int
    tops: tuple[str, ...]


class RepositoryRecord(msgspec.Struct):
    """What was got of a repository; paths are relative to the data folder."""

    revision: str
    pinned: bool
    licence: str
    files: dict[str, FileRecord] = {}
    archives: dict[str, ArchiveRecord] = {}


class Record(msgspec.Struct):
    """``DIR/fetched.json``."""

    repositories: dict[str, RepositoryRecord] = {}


@dataclass(frozen=True, slots=True)
class File:
    """A file of a repository: its size, its digest as the hub has it, and where it goes."""

    path: str
    size: int
    digest: str
    target: Path

    def partial(self) -> Path:
        """What is there of it until it is whole."""
        return self.target.with_name(f".{self.target.name}.{self.digest[-12:]}.part")

    def left(self) -> int:
        """Bytes that are not here yet."""
        if self.target.is_file() and self.target.stat().st_size == self.size:
            return 0
        have = self.partial().stat().st_size if self.partial().is_file() else 0
        return self.size - have if have <= self.size else self.size


@dataclass(frozen=True, slots=True)
class Archive:
    """Parts that make an archive, the folder that it is unpacked into, and the leading folders of its members that go."""

    name: str
    parts: tuple[File, ...]
    into: Path
    drop: tuple[str, ...]

    @property
    def digest(self) -> str:
        """What it is made of."""
        return hashlib.sha256(" ".join(part.digest for part in self.parts).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of its parts."""
        return sum(part.size for part in self.parts)

    def left(self) -> int:
        """Bytes that are not here yet."""
        return 0 if (self.unpacked() / RECORD).is_file() else sum(part.left() for part in self.parts)

    def unpacked(self) -> Path:
        """The folder that holds all that was in it, until this is moved into place."""
        return self.into / f".omnirecall-{self.digest[:16]}.whole"


@dataclass(frozen=True, slots=True)
class Repository:
    """What is wanted of a repository, without what is there already."""

    repo: str
    revision: str
    pinned: bool
    licence: str
    files: tuple[File, ...]
    archives: tuple[Archive, ...]
    there: int

    def wanted(self) -> list[File]:
        """Every file, those of archives too."""
        return [*self.files, *(part for archive in self.archives for part in archive.parts)]

    def left(self) -> int:
        """Bytes that are not here yet."""
        return sum(file.left() for file in self.files) + sum(archive.left() for archive in self.archives)


@dataclass(frozen=True, slots=True)
class Options:
    """Whether archives stay after they are unpacked, or go part by part while they are."""

    keep_archives: bool = False
    save_space: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What ``fetch`` would do."""

    suite: Suite
    tasks: tuple[Task, ...]
    data: Path
    repositories: tuple[Repository, ...]
    obtain: Mapping[str, str]
    nowhere: tuple[str, ...]
    free: int

    @property
    def left(self) -> int:
        """Bytes to be got."""
        return sum(repository.left() for repository in self.repositories)

    def needed(self, options: Options) -> int:
        """Bytes of the disk that are in use at most, beyond those now: an archive is taken to hold as much as it weighs."""
        used = sum(file.left() for repository in self.repositories for file in repository.files)
        peak = used
        for archive in (archive for repository in self.repositories for archive in repository.archives):
            left = archive.left()
            least = max(part.size for part in archive.parts)
            going = options.save_space and streamable(archive.name)
            peak = max(peak, used + archive.size + (min(left, least) if going else left))
            used += left + (archive.size if options.keep_archives else 0)
        return peak

    def json(self, options: Options) -> dict[str, Any]:
        """The plan for machines."""
        return {
            "suite": self.suite.name,
            "tasks": [task.name for task in self.tasks],
            "data": str(self.data),
            "licences": self.licences(),
            "repositories": [
                {
                    "repo": one.repo,
                    "revision": one.revision,
                    "pinned": one.pinned,
                    "licence": one.licence,
                    "files": len(one.wanted()),
                    "bytes": sum(file.size for file in one.wanted()),
                    "bytes_left": one.left(),
                    "archives": [archive.name for archive in one.archives],
                    "there": one.there,
                }
                for one in self.repositories
            ],
            "obtain": dict(self.obtain),
            "nowhere": list(self.nowhere),
            "bytes_left": self.left,
            "bytes_needed": self.needed(options),
            "bytes_free": self.free,
        }

    def licences(self) -> dict[str, list[str]]:
        """What the cards say of licences, with the tasks that each is said of; the suite's own comes first."""
        said: dict[str, list[str]] = {self.suite.licence or "not stated": []}
        for task in self.tasks:
            if task.licence and task.licence != self.suite.licence:
                said.setdefault(task.licence, []).append(task.name)
        return said

    def text(self, options: Options) -> str:
        """The plan for people: licences, sizes and the disk."""
        lines = [f"{self.suite.name}: {len(self.tasks)} of {len(self.suite.tasks)} tasks, into {self.data}"]
        lines += [
            f"licence: {licence}" + (f" [{', '.join(names)}]" if names else "")
            for licence, names in self.licences().items()
        ]
        for one in self.repositories:
            pinned = "pinned" if one.pinned else "the card pins none: the newest, or the one that this folder has"
            there = f", {one.there} are there" if one.there else ""
            lines += [
                f"{one.repo}, revision {one.revision[:12]} ({pinned}), licence on the hub: {one.licence or 'none given'}",
                f"  {len(one.wanted())} files to get, {in_bytes(one.left())}{there}"
                + "".join(f"\n  {archive.name} goes into {archive.into}" for archive in one.archives),
            ]
        lines += [f"not fetched: {name}: {where}" for name, where in self.obtain.items()]
        lines += [f"not fetched: {name}: its card names no repository" for name in self.nowhere]
        needed = in_bytes(self.needed(options))
        lines.append(f"to get {in_bytes(self.left)}; the disk needs about {needed} and has {in_bytes(self.free)} free")
        return "\n".join(lines) + "\n"


def plan_fetch(suite: Suite, tasks: Sequence[Task], data: Path) -> Plan:
    """Ask the hub what the tasks need. UserError if there is nothing that could be fetched, or the hub does not let us see it."""
    if suite.root is not None:
        raise UserError(f"{suite.name}: its data comes with it, in its own folder; there is nothing to fetch")
    if data.exists() and not data.is_dir():
        raise UserError(f"--data {data}: this is a file; name a folder")
    hub, record = _Hub(), _read_record(data)
    obtain = {task.name: str(task.data["obtain"]) for task in tasks if task.data.get("obtain")}
    wants: dict[tuple[str, str], list[_Want]] = {}
    nowhere = []
    for task in tasks:
        if task.name not in obtain:
            found = _wants(task, data)
            nowhere += [] if found else [task.name]
            for want in found:
                wants.setdefault((want.repo, want.revision), []).append(want)
    if not wants and not obtain:
        raise UserError(f"{suite.name}: its card names no repository (data.hub.repo): its data is not on the hub")
    repositories = tuple(_repository(hub, *place, each, record, data) for place, each in wants.items())
    above = next(folder for folder in (data.absolute(), *data.absolute().parents) if folder.is_dir())
    return Plan(suite, tuple(tasks), data, repositories, obtain, tuple(nowhere), shutil.disk_usage(above).free)


@dataclass(frozen=True, slots=True)
class _Want:
    """Files of a repository that a task needs, by patterns, or else by its config and split."""

    repo: str
    revision: str
    task: Task
    base: Path
    patterns: tuple[str, ...]
    into: str | None
    drop: tuple[str, ...]


def _wants(task: Task, data: Path) -> list[_Want]:
    """What a task's ``data.hub`` and ``data.archive`` ask for."""
    found = []
    for key in ("hub", "archive"):
        table = task.data.get(key, {})
        if not isinstance(table, Mapping) or not isinstance(table.get("repo", ""), str):
            raise UserError(f"task {task.name}: data.{key} must be a table with the name of a repository as `repo`")
        if not table.get("repo"):
            continue
        layout, root = (task.data.get(name, "") for name in ("layout", "root"))
        names = {"name": task.data.get("name", ""), "split": split_of(task), "config": table.get("config", "")}
        base = data / str(table["repo"] if layout in BY_REPOSITORY and key == "hub" else root)
        files, drop = _texts(table.get("files", ())), _texts(table.get("drop", ()))
        try:
            patterns = tuple(pattern.format_map(names) for pattern in files)
            into = str(table["into"]).format_map(names) if "into" in table else None
        except (KeyError, ValueError) as error:
            raise UserError(f"task {task.name}: data.{key}: {error} in braces; there are {', '.join(names)}") from None
        found.append(_Want(table["repo"], str(table.get("revision", "")), task, base, patterns, into, drop))
    return found


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _repository(hub: _Hub, repo: str, revision: str, wants: list[_Want], record: Record, data: Path) -> Repository:
    known = record.repositories.get(repo)
    commit, licence = hub.revision(repo, revision or (known.revision if known else ""))
    tree = hub.tree(repo, commit)
    files: dict[Path, File] = {}
    packed: dict[Path, Archive] = {}
    there = 0
    for want in wants:
        paths = _chosen(want, list(tree), commit)
        named = archives(paths) if want.patterns else {}
        parts = {path for names in named.values() for path in names}
        for path in paths:
            if path not in parts:
                file = tree[path].at(want.base, repo)
                files[file.target] = file
        for name, names in named.items():
            into = _folder(want, name)
            packed[want.base / name] = Archive(
                name,
                tuple(tree[path].at(want.base, repo) for path in names),
                into,
                (*want.drop, *into.relative_to(data).parts),
            )
    for target, file in list(files.items()):
        if known and _verified(known, file, data):
            there += 1
            del files[target]
    for place, archive in list(packed.items()):
        if known and _unpacked(known, archive, data):
            there += len(archive.parts)
            del packed[place]
    return Repository(repo, commit, bool(revision), licence, tuple(files.values()), tuple(packed.values()), there)


def _folder(want: _Want, archive: str) -> Path:
    """Where an archive is unpacked: where the card says; if only one task has it, in a folder of its name; else beside itself."""
    own = str(want.task.data.get("name", ""))
    into = want.into
    if into is None:
        into = own if own and PurePosixPath(archive).name.startswith(f"{own}.") else str(PurePosixPath(archive).parent)
    return under(want.base, into, f"task {want.task.name}: into")


def _chosen(want: _Want, paths: list[str], commit: str) -> list[str]:
    """The files of a repository that a task needs; UserError if a pattern finds none."""
    found: dict[str, None] = {}
    for pattern in want.patterns:
        matching = [path for path in paths if fnmatch.fnmatchcase(path, pattern)]
        if not matching:
            raise UserError(
                f"task {want.task.name}: {want.repo} at revision {commit[:12]} has no file {pattern}; see what"
                f" {_endpoint()}/datasets/{want.repo}/tree/{commit} has, and correct the card"
            )
        found.update(dict.fromkeys(matching))
    if want.patterns:
        return list(found)
    config, split = str(want.task.data.get("hub", {}).get("config") or ""), split_of(want.task)
    if str(want.task.data.get("layout")) == "mmeb-image":
        config = config or str(want.task.data.get("name", ""))
    for folder in (f"{config}/", f"data/{config}/") if config else ():
        if inside := [path for path in paths if path.startswith(folder)]:
            paths = inside
            break
    usual = [path for path in paths if not ARCHIVE.fullmatch(path) and not PurePosixPath(path).name.startswith(".")]
    return [path for path in usual if not _of_another_split(path, split, usual)]


def _of_another_split(path: str, split: str, paths: Iterable[str]) -> bool:
    """Whether a table belongs to another split than the one that its folder has tables of."""

    def is_ours(name: str) -> bool:
        return name.endswith(TABLES) and PurePosixPath(name).name.startswith((f"{split}-", f"{split}."))

    folder = PurePosixPath(path).parent
    beside = (other for other in paths if PurePosixPath(other).parent == folder)
    return path.endswith(TABLES) and not is_ours(path) and any(is_ours(other) for other in beside)


def _verified(known: RepositoryRecord, file: File, data: Path) -> bool:
    """Whether a file is as it was when its digest was found to be the hub's."""
    was = known.files.get(str(file.target.relative_to(data)))
    if was is None or was.digest != file.digest or not file.target.is_file():
        return False
    now = file.target.stat()
    return (now.st_size, now.st_mtime_ns) == (was.size, was.modified)


def _unpacked(known: RepositoryRecord, archive: Archive, data: Path) -> bool:
    """Whether the archive was unpacked, and what was at the top of it is still there."""
    was = known.archives.get(archive.name)
    return (
        was is not None
        and (was.digest, data / was.into) == (archive.digest, archive.into)
        and all((archive.into / name).exists() for name in was.tops)
    )


def _read_record(data: Path) -> Record:
    path = data / RECORD
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return Record()
    except msgspec.DecodeError as error:
        raise UserError(f"{path}: {error}; remove it, and what is there will be looked at again") from None


def fetch(plan: Plan, options: Options, progress: Progress = silent) -> Record:
    """Get what the plan names: every file whole and verified, archives unpacked. What is there is kept, whatever happens.

    UserError if it does not fit on the disk; RunError if the hub or the disk fails.
    """
    _refuse_if_too_large(plan, options)
    try:
        plan.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--data {plan.data}: {error.strerror}; name a folder that can be written to") from None
    with _alone(plan.data), _megabytes(progress, "MB", plan.left) as advance:
        fetcher = _Fetcher(_Hub(), plan.data, _read_record(plan.data), options, advance)
        for repository in plan.repositories:
            fetcher.get(repository)
        return fetcher.record


def _refuse_if_too_large(plan: Plan, options: Options) -> None:
    needed, least = plan.needed(options), plan.needed(Options(save_space=True))
    if needed > plan.free:
        smaller = f"; with --save-space it needs about {in_bytes(least)}" if least < needed else ""
        raise UserError(
            f"--data {plan.data}: this needs about {in_bytes(needed)} and {in_bytes(plan.free)} is free{smaller}: make room,"
            f" or choose fewer tasks with --tasks"
        )


@contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Hold the folder: no other fetch may work in it meanwhile."""
    with (data / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"--data {data}: another fetch is at work in this folder; wait until it ends") from None
        yield


@contextmanager
def _megabytes(progress: Progress, what: str, total: int) -> Iterator[Advance]:
    """Progress in megabytes, told bytes."""
    done = 0
    with progress(what, total // 1_000_000) as advance:

        def advanced(count: int) -> None:
            nonlocal done
            advance((done + count) // 1_000_000 - done // 1_000_000)
            done += count

        yield advanced


@dataclass
class _Fetcher:
    hub: _Hub
    data: Path
    record: Record
    options: Options
    advance: Advance
    known: RepositoryRecord = field(init=False)

    def get(self, repository: Repository) -> None:
        """All that is wanted of a repository."""
        known = self.record.repositories.get(repository.repo)
        if known is None:
            known = RepositoryRecord(repository.revision, repository.pinned, repository.licence)
            self.record.repositories[repository.repo] = known
        known.revision, known.pinned, known.licence = repository.revision, repository.pinned, repository.licence
        self.known = known
        self.write()
        for file in repository.files:
            self.file(repository, file)
        for archive in repository.archives:
            self.archive(repository, archive)

    def write(self) -> None:
        write_whole(self.data / RECORD, msgspec.json.format(msgspec.json.encode(self.record), indent=1) + b"\n")

    def file(self, repository: Repository, file: File) -> Path:
        """A file, whole and with the digest that the hub has for it."""
        if not _verified(self.known, file, self.data):
            if not _is(file.target, file):
                self.hub.download(repository.repo, repository.revision, file, self.advance)
            now = file.target.stat()
            place = str(file.target.relative_to(self.data))
            self.known.files[place] = FileRecord(now.st_size, file.digest, now.st_mtime_ns)
            self.write()
        return file.target

    def archive(self, repository: Repository, archive: Archive) -> None:
        """What an archive holds, in place; its parts go afterwards, or as they are read, or stay."""
        whole = archive.unpacked()
        staging = whole.with_suffix(".part")
        going = self.options.save_space and streamable(archive.name)

        def parts() -> Iterator[Path]:
            for part in archive.parts:
                yield self.file(repository, part)
                if going:
                    self.forget(part)

        if not (whole / RECORD).is_file():
            shutil.rmtree(whole, ignore_errors=True)
            made = unpack(archive.name, parts() if going else list(parts()), staging / "all", drop=archive.drop)
            place = str(archive.into.relative_to(self.data))
            record = ArchiveRecord(archive.digest, place, made.files, made.bytes, made.tops)
            os.sync()
            write_whole(staging / RECORD, msgspec.json.encode(record))
            staging.rename(whole)
        record = msgspec.json.decode((whole / RECORD).read_bytes(), type=ArchiveRecord)
        try:
            move_into(whole / "all", archive.into)
        except OSError as error:
            raise disk_error(error, archive.into) from None
        if not self.options.keep_archives:
            for part in archive.parts:
                self.forget(part)
        self.known.archives[archive.name] = record
        self.write()
        shutil.rmtree(whole)

    def forget(self, part: File) -> None:
        """Remove a part of an archive."""
        part.target.unlink(missing_ok=True)
        self.known.files.pop(str(part.target.relative_to(self.data)), None)


def _is(path: Path, file: File) -> bool:
    """Whether there is a file at the path with the size and the digest."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    kind, wanted = file.digest.split(":")
    found = hashlib.sha256() if kind == "sha256" else hashlib.sha1(f"blob {file.size}\0".encode())  # as git names it
    with path.open("rb") as content:
        while block := content.read(BLOCK):
            found.update(block)
    return found.hexdigest() == wanted


@dataclass(frozen=True, slots=True)
class _Remote:
    """A file as the hub lists it."""

    path: str
    size: int
    digest: str

    def at(self, base: Path, repo: str) -> File:
        return File(self.path, self.size, self.digest, under(base, self.path, f"{repo}: one of its files"))


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")


class _Hub:
    """The hub, by its own library. A token comes from the environment alone, and goes nowhere but to the hub."""

    def __init__(self) -> None:
        self.library = require("huggingface_hub", "hub")
        self.errors, self.listing, self.file_download, utils = (
            require(f"huggingface_hub.{name}", "hub") for name in ("errors", "hf_api", "file_download", "utils")
        )
        self.endpoint = _endpoint()
        self.token: str | bool = os.environ.get("HF_TOKEN") or False
        self.api = self.library.HfApi(
            endpoint=self.endpoint, token=self.token, library_name="omnirecall", library_version=__version__
        )
        utils.logging.set_verbosity_error()  # what it says of retries would run into the bars
        self.headers = utils.build_hf_headers(
            token=self.token,
            library_name="omnirecall",
            library_version=__version__,
            headers={"Accept-Encoding": "identity"},
        )
        # its transport is httpx or a successor by another name; every error of it is an HTTPError
        self.trouble = next(kind for kind in self.errors.HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")

    def revision(self, repo: str, revision: str) -> tuple[str, str]:
        """The commit of a revision, or the newest, and the repository's licence as the hub has it."""
        info = self.patiently(
            lambda: self.api.dataset_info(repo, revision=revision or None, timeout=30), repo, revision, (429,)
        )
        if not info.sha or (len(revision) == COMMIT and info.sha != revision):
            raise RunError(f"{repo}: revision {revision} was asked for and {self.endpoint} gives {info.sha}")
        tags = [tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")]
        return info.sha, ", ".join(tags)

    def tree(self, repo: str, commit: str) -> dict[str, _Remote]:
        """Every file of a repository at a commit."""
        listed = self.patiently(
            lambda: list(self.api.list_repo_tree(repo, recursive=True, revision=commit, repo_type="dataset")),
            repo,
            commit,
        )
        return {
            one.path: _Remote(one.path, one.size, f"sha256:{one.lfs.sha256}" if one.lfs else f"git:{one.blob_id}")
            for one in listed
            if isinstance(one, self.listing.RepoFile)
        }

    def download(self, repo: str, commit: str, file: File, advance: Advance) -> None:
        """A file to its place, verified; a part of it that is here is continued. RunError if it comes damaged twice."""
        file.target.parent.mkdir(parents=True, exist_ok=True)
        part = file.partial()
        for _ in range(2):
            try:
                self.patiently(lambda: self._continue(repo, commit, file, advance), repo, commit, what=file.path)
            except OSError as error:
                raise disk_error(error, part.parent) from None
            if _is(part, file):
                part.replace(file.target)
                return
            part.unlink()
        raise RunError(
            f"{file.path} of {repo} comes damaged: its digest is not the one that the hub lists; try again later"
        )

    def _continue(self, repo: str, commit: str, file: File, advance: Advance) -> None:
        part = file.partial()
        part.touch()
        have = part.stat().st_size
        if have > file.size:
            part.write_bytes(b"")
            have = 0
        if file.size > LARGEST and not have:
            given = self.library.hf_hub_download(
                repo, file.path, repo_type="dataset", revision=commit, endpoint=self.endpoint, token=self.token,
                local_dir=part.with_suffix(".large"), library_name="omnirecall", library_version=__version__,
            )  # fmt: skip
            Path(given).replace(part)
            shutil.rmtree(part.with_suffix(".large"))
            advance(file.size)
            return
        with part.open("r+b") as out:
            out.seek(have)
            self.file_download.http_get(
                self.library.hf_hub_url(repo, file.path, repo_type="dataset", revision=commit, endpoint=self.endpoint),
                _Counted(out, advance),
                resume_size=have,
                headers=dict(self.headers),
                expected_size=file.size,
                tqdm_class=_NoBar,
            )
            out.flush()
            os.fsync(out.fileno())

    def patiently(
        self, ask: Callable[[], T], repo: str, revision: str, also: tuple[int, ...] = (), what: str = ""
    ) -> T:
        """What the hub answers; asked again a few times if it fails, and then a sentence."""
        for wait in (*WAITS, None):
            try:
                return ask()
            except self.errors.OfflineModeIsEnabled:
                raise UserError("HF_HUB_OFFLINE is set, so nothing can be fetched: unset it") from None
            except self.errors.HFValidationError:
                raise UserError(f"data.hub.repo {repo!r} is no name of a repository; correct the card") from None
            except (self.trouble, OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the disk
                status = getattr(getattr(error, "response", None), "status_code", None)
                again = status is None or status >= 500 or status in also
                if wait is None or not again:
                    raise self.sentence(error, status, repo, revision, what) from None
                time.sleep(wait)
        raise AssertionError

    def sentence(
        self, error: Exception, status: int | None, repo: str, revision: str, what: str
    ) -> UserError | RunError:
        """What went wrong, and what cures it."""
        errors, place = self.errors, f"{self.endpoint}/datasets/{repo}"
        if isinstance(error, errors.RevisionNotFoundError):
            return UserError(f"{repo} has no revision {revision}; correct the card: {place}/commits/main lists them")
        if isinstance(error, errors.RemoteEntryNotFoundError):
            return RunError(
                f"{repo} has no file {what} at revision {revision[:12]}, though it lists it; try again later"
            )
        if isinstance(error, errors.GatedRepoError) or status in (401, 403):
            return UserError(
                f"{repo} asks for a login: accept its terms at {place}, and give a token of yours in the variable HF_TOKEN"
            )
        if isinstance(error, errors.RepositoryNotFoundError):
            return UserError(
                f"{self.endpoint} has no data set {repo}, or shows it to some only: correct the card, or give a token in HF_TOKEN"
            )
        asked = f"{what} of {repo}" if what else repo
        kept = "what was fetched is kept: try again later"
        if status is not None:
            return RunError(f"{self.endpoint} answers {status} when asked for {asked}; {kept}")
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return RunError(f"{asked} cannot be got from {self.endpoint} ({reason}); {kept}")


class _Counted:
    """A file that tells how many bytes are written to it."""

    def __init__(self, file: Any, advance: Advance) -> None:
        self.file, self.advance = file, advance

    def write(self, block: bytes) -> int:
        self.advance(len(block))
        return int(self.file.write(block))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _NoBar:
    """In place of the library's own progress bar."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, _: float | None = 1) -> None:
        pass
