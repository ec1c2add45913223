"""MMEB-V2's video tasks: rows of a repository, and a folder of stored frames for each video."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from omnirecall.errors import UserError
from omnirecall.protocol.items import Item, TaskData
from omnirecall.protocol.suites import Task
from omnirecall.sources.mmeb import IMAGE, VIDEO, Gathered, row_files, spoken
from omnirecall.sources.tables import first_folder, key, media_root, table_rows, under

LABELS = Path(__file__).with_name("mmeb_labels.json")
"""Each data set's class names in its own order, a fact of the data; as VLM2Vec 6e1e1d4 lists them."""
SSV2_ROWS = 1000
"""VLM2Vec's video.yaml: num_sample_per_subset."""

MVBENCH = (
    "episodic_reasoning", "action_sequence", "action_prediction", "action_antonym", "fine_grained_action", "unexpected_action",
    "object_existence", "object_interaction", "object_shuffle", "moving_direction", "action_localization", "scene_transition",
    "action_count", "moving_count", "moving_attribute", "state_change", "fine_grained_pose", "character_order",
    "egocentric_navigation", "counterfactual_inference",
)  # fmt: skip
MOMENTSEEKER = {
    "": "Find the clip that corresponds to the given text:",
    ".jpg": "Select the video clip that aligns with the given text and image:",
    ".mp4": "Find the clip that corresponds to the given sentence and video segment:",
}
"""By the suffix of what the query shows (VLM2Vec's momentseeker_dataset.py:12-15)."""

Entry = tuple[Item, Sequence[Item], Sequence[str]]
"""A query, its candidates, and the ids of those that are relevant."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What the parsers need: the task and the folder of its frames."""

    task: Task
    frames: Path

    def clip(self, name: object, place: str) -> Path:
        """The folder of a video's frames; where only the video itself is there, its file."""
        folder = under(self.frames, str(name), place)
        video = Path(str(self.frames).replace("/frames/", "/videos/")) / f"{name}.mp4"
        return video if not folder.is_dir() and video.is_file() else folder

    def query(self, row: int, text: str, name: object, place: str) -> Item:
        """A video query. The instruction of questions ends in a blank, so that two stand before the text."""
        literal = spoken(self.task.instruction, text, VIDEO)
        return Item(str(row), text or None, video=self.clip(name, place), cluster=self.cluster(name), literal=literal)

    def target(self, name: str, place: str, folder: str = "") -> Item:
        """A video candidate."""
        literal = spoken(self.task.candidate_instruction, medium=VIDEO)
        return Item(name, video=self.clip(folder + name, place), literal=literal)

    def cluster(self, name: object) -> str:
        return f"{self.task.dataset or self.task.name}/{name}"


def read_task(root: Path, task: Task) -> TaskData:
    """The rows of a video task, by the parser that the card names."""
    parser = key(task, "parser")
    if parser not in PARSERS:
        raise UserError(f"task {task.name}: unknown parser {parser}; there are {', '.join(sorted(PARSERS))}")
    parse, columns = PARSERS[parser]
    frames = media_root(root, task) / key(task, "frames")
    first_folder([frames, Path(str(frames).replace("/frames/", "/videos/"))], task)
    source, gathered = _Source(task, frames), Gathered()
    limit = task.data.get("limit", SSV2_ROWS if parser == "ssv2" else None)
    seen: set[str] = set()
    for subset in MVBENCH if parser == "mvbench" else (None,):
        files = row_files(root, task, subset)
        for number, row in enumerate(table_rows(files, columns)):
            if limit is not None and number >= limit:
                break
            place = f"{files[0].parent}: row {number}"
            if parser == "momentseeker" and _repeated(row, seen):
                gathered.defects["duplicate-row"] += 1
                if task.version != "1800":
                    continue
            gathered.add(*parse(source, {**row, "subset": subset}, len(gathered.queries), place))
    if parser == "video_classification":
        for label in msgspec.json.decode(LABELS.read_bytes())[key(task, "name")]:
            gathered.candidates.setdefault(label, Item(label, text=label, instruction=""))
    return gathered.data(task)


def _repeated(row: Mapping[str, Any], seen: set[str]) -> bool:
    """Whether an earlier row has the same query and the same positives."""
    pair = repr((row["query"], row["input_frames"], _paths(row["positive_frames"])))
    if pair in seen:
        return True
    seen.add(pair)
    return False


def _paths(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [entry["output_path"] for entry in entries]


def _texts(options: Sequence[str], names: Sequence[str] | None = None) -> list[Item]:
    names = options if names is None else names
    return [Item(name, text=option, instruction="") for name, option in zip(names, options, strict=True)]


def _label(source: _Source, row: Mapping[str, Any], number: int, place: str) -> Entry:
    return source.query(number, "", row["video_id"], place), _texts([row["pos_text"]]), [row["pos_text"]]


def _label_list(source: _Source, row: Mapping[str, Any], number: int, place: str) -> Entry:
    return source.query(number, "", row["video_id"], place), _texts(row["neg_text"]), [row["pos_text"]]


def _lettered(options: Sequence[str]) -> list[str]:
    return [f"({chr(ord('A') + place)}) {option}" for place, option in enumerate(options)]


def _mvbench(source: _Source, row: Mapping[str, Any], number: int, place: str) -> Entry:
    options = _lettered(row["candidates"])
    right = [option for option, plain in zip(options, row["candidates"], strict=True) if plain == row["answer"]][-1:]
    if not right:
        raise UserError(f"{place}: the answer {row['answer']!r} is not among the candidates; fetch the file again")
    text = f"{row['question']}\nOptions:\n" + "\n".join(options)
    return source.query(number, text.rstrip(), f"{row['subset']}/{row['video']}", place), _texts(options), right


def _nextqa(source: _Source, row: Mapping[str, Any], number: int, place: str) -> Entry:
    options = [row[f"a{number}"] for number in range(5)]
    text = f"{row['question']}\nOptions:\n" + "\n".join(_lettered(options))
    query = source.query(number, text.rstrip(), row["video"], place)
    return query, _texts(options), [options[int(row["answer"])]]


def _shortened(options: Sequence[str]) -> list[str]:
    """Options without their letters; one without ". " shrinks to its last character, as in the authors' code."""
    return [option[option.find(". ") :].strip(". ") for option in options]


def _videomme(source: _Source, row: Mapping[str, Any], number: int, place: str) -> Entry:
    options = row["options"]
    query = source.query(number, "\n".join([row["question"], *options]), row["videoID"], place)
    return query, _texts(_shortened(options), options), [options["ABCD".index(row["answer"])]]


def _egoschema(source: _Source, row: Mapping[str, Any], number: int, place: str) -> Entry:
    options = row["option"]
    query = source.query(number, row["question"] + " ".join(options), row["video_idx"], place)
    return query, _texts(_shortened(options), options), [options[int(row["answer"])]]


def _activitynetqa(source: _Source, row: Mapping[str, Any], number: int, place: str) -> Entry:
    query = source.query(number, f"{row['question']}? (A) yes; (B) no.", f"v_{row['video_name']}", place)
    return query, _texts(["yes", "no"]), [row["answer"]]


def _retrieval(name: str, caption: str) -> Callable[[_Source, Mapping[str, Any], int, str], Entry]:
    """Text to video: the first caption, and the video as the only candidate of its row."""

    def parse(source: _Source, row: Mapping[str, Any], number: int, place: str) -> Entry:
        text = row[caption] if isinstance(row[caption], str) else row[caption][0]
        video = PurePosixPath(row[name]).stem if name == "video" else str(row[name])
        literal = spoken(source.task.instruction, text)
        query = Item(str(number), text, cluster=source.cluster(video), literal=literal)
        return query, [source.target(video, place)], [video]

    return parse


def _moment(source: _Source, row: Mapping[str, Any], number: int, place: str) -> Entry:
    """One moment of a video among the clips of its folder: ``positive*`` and ``negative*`` beside ``query``."""
    name = PurePosixPath(row["video_path"]).stem
    folder = under(source.frames, name, place)
    if not folder.is_dir():  # whoever looks at the media finds that these are missing
        clips = ["positive"]
    else:
        clips = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != "query")
    listed = [source.target(f"{name}/{clip}", place) for clip in clips]
    right = [item.id for item in listed if item.id.split("/")[-1].startswith("positive")]
    if not right:
        raise UserError(f"{place}: no folder whose name starts with positive in {folder}; fetch it again")
    query = source.query(number, row["query"], f"{name}/query", place)
    return query, listed, right


def _momentseeker(source: _Source, row: Mapping[str, Any], number: int, place: str) -> Entry:
    """A clip among the row's positives and negatives, asked for by text alone or with an image or a clip."""
    shown = row["input_frames"] or ""
    kind = next((suffix for suffix in (".mp4", ".jpg") if shown.endswith(suffix)), "")
    instruction = MOMENTSEEKER[kind]
    literal = spoken(instruction, row["query"], {".mp4": VIDEO, ".jpg": IMAGE}.get(kind, ""))
    query = Item(
        str(number),
        row["query"] or None,
        image=under(source.frames, f"query_{shown}", place) if kind == ".jpg" else None,
        video=source.clip(f"video_frames/{_clip_name(shown)}", place) if kind == ".mp4" else None,
        instruction=instruction,
        cluster=source.cluster(shown) if kind else None,
        literal=literal,
    )
    positives, negatives = (
        [_clip_name(path) for path in _paths(row[f"{sign}_frames"])] for sign in ("positive", "negative")
    )
    return query, [source.target(name, place, "video_frames/") for name in positives + negatives], positives


def _clip_name(path: str) -> str:
    return path.replace("/", "_").split(".mp4")[0]


PARSERS: dict[str, tuple[Callable[[_Source, Mapping[str, Any], int, str], Entry], tuple[str, ...]]] = {
    "video_classification": (_label, ("video_id", "pos_text")),
    "ssv2": (_label_list, ("video_id", "pos_text", "neg_text")),
    "mvbench": (_mvbench, ("question", "video", "candidates", "answer")),
    "videomme": (_videomme, ("question", "videoID", "options", "answer")),
    "nextqa": (_nextqa, ("video", "question", "answer", "a0", "a1", "a2", "a3", "a4")),
    "egoschema": (_egoschema, ("video_idx", "question", "answer", "option")),
    "activitynetqa": (_activitynetqa, ("video_name", "question", "answer")),
    "msrvtt": (_retrieval("video_id", "caption"), ("video_id", "caption")),
    "msvd": (_retrieval("video_id", "caption"), ("video_id", "caption")),
    "didemo": (_retrieval("video", "caption"), ("video", "caption")),
    "youcook2": (_retrieval("id", "sentence"), ("id", "sentence")),
    "vatex": (_retrieval("videoID", "enCap"), ("videoID", "enCap")),
    "moment_retrieval": (_moment, ("query", "video_path")),
    "momentseeker": (_momentseeker, ("query", "positive_frames", "negative_frames", "input_frames")),
}
