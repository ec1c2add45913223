"""The media room beside its peers: are the frames and samples right, and what do they cost?

    python benchmarks/media.py                          everything: some twenty minutes on two cores
    python benchmarks/media.py video --clips cut vfr    one part, some clips
    python benchmarks/media.py --seconds 10 --rounds 3  shorter clips, fewer rounds

Clips are made here, with each frame's number drawn in its pixels. Every method runs in a process of its own and takes its turn in
every round; a ratio is ours over the peer's in the same round, and the table gives the median of the ratios and their range. A peer
that is not installed is named and left out: eva-decord, torchcodec, opencv-python-headless, soundfile, and the ffmpeg command
(found on the path or in imageio-ffmpeg), which also makes one clip that PyAV alone cannot.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "media")]

import numpy as np  # noqa: E402

COUNT = 8
SIZE = (1280, 720)
RATE = 48000


# What is measured: from a path to the numbers drawn in the frames, by the rule that each method has.


def ours(path: Path) -> np.ndarray:
    """The media room of this project."""
    from omnirecall.media.video import load_frames
    from omnirecall.protocol.suites import MediaPolicy

    return load_frames(path, MediaPolicy(frames=COUNT), path.name).pixels


def everything(path: Path) -> np.ndarray:
    """PyAV, every frame in order; told beforehand how many there are, so that it needs one pass and holds eight frames."""
    import av

    wanted = set(rounded(json.loads(path.with_suffix(".json").read_text())["frames"]))
    with av.open(str(path)) as container:
        frames = enumerate(container.decode(container.streams.video[0]))
        kept = (
            np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
            for index, frame in frames
            if index in wanted
        )
        return np.stack(list(kept))


def decord(path: Path) -> np.ndarray:
    """The get_batch of decord."""
    import decord as library

    reader = library.VideoReader(str(path))
    return reader.get_batch(rounded(len(reader))).asnumpy()


def torchcodec_exact(path: Path) -> np.ndarray:
    """torchcodec, seek_mode exact, its default."""
    return _torchcodec(path, "exact", rounded)


def torchcodec_approximate(path: Path) -> np.ndarray:
    """torchcodec, seek_mode approximate."""
    return _torchcodec(path, "approximate", rounded)


def mteb(path: Path) -> np.ndarray:
    """What mteb does: torchcodec, every (n // 8)-th frame, the first eight of them."""
    return _torchcodec(path, "exact", stepped)


def _torchcodec(path: Path, mode: str, rule: Callable[[int], list[int]]) -> np.ndarray:
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(str(path), seek_mode=mode, dimension_order="NHWC")
    return decoder.get_frames_at(indices=rule(len(decoder))).data.numpy()


def opencv(path: Path) -> np.ndarray:
    """OpenCV, setting the position."""
    import cv2

    film = cv2.VideoCapture(str(path))
    found = []
    for index in rounded(int(film.get(cv2.CAP_PROP_FRAME_COUNT))):
        film.set(cv2.CAP_PROP_POS_FRAMES, index)
        good, picture = film.read()
        if good:
            found.append(picture[..., ::-1])
    return np.stack(found)


def vlm2vec(path: Path) -> np.ndarray:
    """What VLM2Vec does: OpenCV reads on, every (n // 64)-th frame is stored, n as the container says, and eight are taken."""
    import cv2

    film = cv2.VideoCapture(str(path))
    step = max(1, int(film.get(cv2.CAP_PROP_FRAME_COUNT)) // 64)
    stored: list[np.ndarray] = []
    index = 0
    while film.grab():
        if index % step == 0:
            stored.append(film.retrieve()[1][..., ::-1])
        index += 1
    return np.stack([stored[place] for place in np.linspace(0, len(stored) - 1, COUNT, dtype=int)])


def rounded(n: int) -> list[int]:
    """The default rule: round(linspace(0, n - 1, 8))."""
    return np.round(np.linspace(0, n - 1, COUNT)).astype(int).tolist()


def stepped(n: int) -> list[int]:
    """The rule of mteb."""
    return list(range(0, n, max(1, n // COUNT)))[:COUNT]


def stored(n: int) -> list[int]:
    """The rule of VLM2Vec."""
    kept = np.arange(0, n, max(1, n // 64))
    return kept[np.linspace(0, len(kept) - 1, COUNT, dtype=int)].tolist()


METHODS: dict[str, tuple[Callable[[Path], np.ndarray], Callable[[int], list[int]]]] = {
    "ours": (ours, rounded),
    "everything": (everything, rounded),
    "decord": (decord, rounded),
    "torchcodec exact": (torchcodec_exact, rounded),
    "torchcodec approximate": (torchcodec_approximate, rounded),
    "opencv": (opencv, rounded),
    "mteb": (mteb, stepped),
    "vlm2vec": (vlm2vec, stored),
}
NEEDS = {
    "decord": "decord",
    "torchcodec exact": "torchcodec",
    "torchcodec approximate": "torchcodec",
    "mteb": "torchcodec",
    "opencv": "cv2",
    "vlm2vec": "cv2",
}


# The clips.


def make_clips(folder: Path, names: list[str], seconds: int, ffmpeg: str | None) -> dict[str, Path]:
    """Clip by name, with the true number of frames beside it as json; made once for a folder."""
    import clips

    made: dict[str, Path] = {}
    for name in names:
        path = folder / f"{name}-{seconds}.{CLIPS[name][0]}"
        if not path.exists():
            said = time.perf_counter()
            draft = path.with_stem(f"draft-{path.stem}")
            if not CLIPS[name][1](clips, draft, seconds, ffmpeg):
                print(f"clip {name}: left out, since the ffmpeg command is not installed")
                continue
            path.with_suffix(".json").write_text(json.dumps({"frames": len(numbers_in_order(draft))}))
            draft.rename(path)
            print(
                f"clip {name}: made in {time.perf_counter() - said:.0f} s, {path.stat().st_size / 1e6:.1f} MB",
                flush=True,
            )
        made[name] = path
    return made


def numbers_in_order(path: Path) -> list[int]:
    """The number drawn in each frame that the decoder outputs."""
    import av
    import clips

    with av.open(str(path)) as container:
        frames = container.decode(container.streams.video[0])
        return [clips.number_of(clips_upright(frame)) for frame in frames]


def clips_upright(frame: Any) -> np.ndarray:
    """The frame turned as the file asks, small: enough to read its number."""
    small = frame.reformat(frame.width // 8, frame.height // 8, "rgb24").to_ndarray()
    return np.rot90(small, frame.rotation // 90)


def textured(number: int, width: int, height: int) -> np.ndarray:
    """A barcode over a moving texture, so that decoding has something to do."""
    import clips

    picture = clips.barcode(number, width, height)
    noise = _noise(width * 2, height)
    picture[height // 2 :] = picture[height // 2 :] // 2 + noise[height // 2 :, number * 3 % width :][:, :width] // 2
    return picture


def _noise(width: int, height: int, made: dict[tuple[int, int], np.ndarray] = {}) -> np.ndarray:  # noqa: B006
    if (width, height) not in made:
        coarse = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3)).astype(np.uint8)
        made[width, height] = coarse.repeat(8, 0).repeat(8, 1)
    return made[width, height]


def _x264(gop: int, **more: Any) -> Callable[..., bool]:
    def make(clips: Any, path: Path, seconds: int, _: str | None) -> bool:
        options = {"preset": "veryfast", "bf": "3", "x264-params": "scenecut=0"}
        clips.make_clip(path, seconds * 30, gop=gop, size=SIZE, draw=textured, options=options, **more)
        return True

    return make


def _vfr(clips: Any, path: Path, seconds: int, _: str | None) -> bool:
    times = clips.variable_times(seconds * 15)
    clips.make_clip(path, len(times), gop=250, size=SIZE, draw=textured, pts=times, options={"preset": "veryfast"})
    return True


def _cut(clips: Any, path: Path, seconds: int, ffmpeg: str | None) -> bool:
    whole = path.with_stem(f"{path.stem}-whole")
    _x264(250)(clips, whole, seconds * 2 // 3, None)
    start = seconds / 8 + 0.01
    if ffmpeg:
        copy = [ffmpeg, "-v", "error", "-ss", f"{start}", "-i", whole, "-c", "copy", "-y", path]
        subprocess.run(copy, check=True)
    else:
        clips.cut(whole, path, start)
    whole.unlink()
    return True


def _vp9(clips: Any, path: Path, seconds: int, _: str | None) -> bool:
    options = {"deadline": "realtime", "cpu-used": "8", "b": "1M"}
    clips.make_clip(path, seconds * 15, "libvpx-vp9", gop=128, size=SIZE, draw=textured, options=options)
    return True


def _vp8_two_pass(clips: Any, path: Path, seconds: int, ffmpeg: str | None) -> bool:
    if not ffmpeg:
        return False
    whole = path.with_name(f"{path.stem}-whole.mp4")
    _x264(250)(clips, whole, seconds * 2 // 3, None)
    with tempfile.TemporaryDirectory() as notes:
        for step in ("1", "2"):
            goal = ["-f", "null", "-"] if step == "1" else ["-y", str(path)]
            encode = ["-c:v", "libvpx", "-b:v", "1M", "-auto-alt-ref", "1", "-lag-in-frames", "25"]
            encode += ["-deadline", "good", "-cpu-used", "5", "-threads", "2", "-pass"]
            log = ["-passlogfile", f"{notes}/log"]
            subprocess.run([ffmpeg, "-v", "error", "-i", str(whole), *encode, step, *log, *goal], check=True)
    whole.unlink()
    return True


def _hevc_ten_bit(clips: Any, path: Path, seconds: int, _: str | None) -> bool:
    options = {"preset": "ultrafast", "x265-params": "log-level=none"}
    clips.make_clip(
        path, seconds * 10, "libx265", gop=60, size=SIZE, draw=textured, pixel_format="yuv420p10le", options=options
    )
    return True


def _rotated(clips: Any, path: Path, seconds: int, _: str | None) -> bool:
    def on_its_side(number: int, width: int, height: int) -> np.ndarray:
        return np.ascontiguousarray(np.rot90(textured(number, height, width), -1))

    options = {"preset": "veryfast"}
    turn = (90.0, False, False)
    clips.make_clip(path, seconds * 15, gop=60, size=SIZE, draw=on_its_side, rotation=turn, options=options)
    return True


CLIPS: dict[str, tuple[str, Callable[..., bool]]] = {
    "gop30": ("mp4", _x264(30)),
    "gop250": ("mp4", _x264(250)),
    "vfr": ("mp4", _vfr),
    "cut": ("mp4", _cut),
    "29.97": ("mp4", _x264(120, rate=Fraction(30000, 1001))),
    "vp9": ("webm", _vp9),
    "vp8-altref": ("webm", _vp8_two_pass),
    "rotated": ("mp4", _rotated),
    "hevc10": ("mp4", _hevc_ten_bit),
}


# One process a method.


def serve(method: str) -> None:
    """Answer paths on standard input with frames found and costs, one JSON line each, until the input ends."""
    import clips

    pick = METHODS[method][0]
    for line in sys.stdin:
        path = Path(line.strip())
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak of memory starts anew
            before = _memory("VmRSS")
            wall, cpu = time.perf_counter(), time.process_time()
            frames = pick(path)
            cost = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            answer = {"found": clips.numbers_of(frames), "memory": _memory("VmHWM") - before, **cost}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:200]}
        print("answer " + json.dumps(answer), flush=True)


def _memory(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


class Worker:
    """A process that runs one method."""

    def __init__(self, method: str) -> None:
        command = [sys.executable, __file__, "--serve", method]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, path: Path) -> dict[str, Any]:
        """One run of the method."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(path, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("answer "):
                answer: dict[str, Any] = json.loads(line.removeprefix("answer "))
                return answer
        return {"error": f"the process ended with code {self.process.wait()}"}


def video(paths: dict[str, Path], methods: list[str], rounds: int) -> list[dict[str, Any]]:
    """A row for each clip and method."""
    rows = []
    for clip, path in paths.items():
        true = numbers_in_order(path)
        workers = {method: Worker(method) for method in methods}
        answers: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
        for number in range(rounds + 1):
            for method, worker in workers.items():
                answer = worker.ask(path)
                if number or "error" in answer:  # the first round warms imports and the file cache
                    answers[method].append(answer)
        for method, worker in workers.items():
            assert worker.process.stdin is not None
            worker.process.stdin.close()
            worker.process.wait()
            rows.append({"clip": clip, "frames": len(true), "method": method, **summary(method, answers, true)})
        print(video_table(rows[-len(workers) :], header=clip == next(iter(paths))), flush=True)
    return rows


def summary(method: str, answers: dict[str, list[dict[str, Any]]], true: list[int]) -> dict[str, Any]:
    """Right frames, and medians over the rounds; ratios are of ours to this method, round by round."""
    mine = answers[method]
    if any("error" in answer for answer in mine):
        return {"error": next(answer["error"] for answer in mine if "error" in answer)}
    expected = [true[index] for index in METHODS[method][1](len(true))]
    right = min(sum(a == b for a, b in zip(answer["found"], expected, strict=False)) for answer in mine)
    pairs = [(ours, its) for ours, its in zip(answers["ours"], mine, strict=True) if "wall" in ours]
    ratios = [ours["wall"] / its["wall"] for ours, its in pairs]
    return {
        "right": right,
        "wall": statistics.median(answer["wall"] for answer in mine),
        "cpu": statistics.median(answer["cpu"] for answer in mine),
        "memory": max(answer["memory"] for answer in mine),
        "cpu ratio": statistics.median(ours["cpu"] / its["cpu"] for ours, its in pairs),
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
    }


def video_table(rows: list[dict[str, Any]], header: bool) -> str:
    """The rows as markdown."""
    lines = []
    if header:
        lines += [
            f"| clip | method | right of {COUNT} | wall ms | CPU ms | peak MiB | ours / its wall (range) | ours / its CPU |",
            "|---|---|---|---|---|---|---|---|",
        ]
    for row in rows:
        start = f"| {row['clip']} ({row['frames']} frames) | {row['method']} | "
        if "error" in row:
            lines.append(f"{start}0: {row['error']} | | | | | |")
        else:
            costs = f"{1000 * row['wall']:.0f} | {1000 * row['cpu']:.0f} | {row['memory']:.0f}"
            ratio = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f}) | {row['cpu ratio']:.2f}"
            lines.append(f"{start}{row['right']} | {costs} | {ratio} |")
    return "\n".join(lines)


# Sound: against what ffmpeg's own command writes.

SOUNDS = {
    "wav": ("pcm_s16le", "wav"),
    "wav 24 bit": ("pcm_s24le", "wav"),
    "flac": ("flac", "flac"),
    "mp3": ("libmp3lame", "mp3"),
    "ogg": ("libvorbis", "ogg"),
    "opus": ("libopus", "opus"),
    "m4a": ("aac", "m4a"),
    "aac": ("aac", "aac"),
    "mp4 film": ("aac", "mp4"),
    "webm film": ("libopus", "webm"),
}


def audio(folder: Path, seconds: int, ffmpeg: str | None, rounds: int) -> None:
    """For each format: samples here and from ffmpeg, the largest difference, the shift, and what decoding costs."""
    if not ffmpeg:
        print("audio: left out, since the ffmpeg command is not installed")
        return
    version = subprocess.run([ffmpeg, "-version"], capture_output=True, text=True, check=True).stdout.split()[2]
    print(f"\nSound against ffmpeg {version}, native rate, {seconds} s, two channels\n")
    print("| format | samples | ffmpeg's | shift | largest difference | soundfile's samples | torchcodec's | "
          "ours to 16 kHz mono, ms | ffmpeg process, ms | peak MiB |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, (codec, suffix) in SOUNDS.items():
        path = folder / f"sound-{seconds}-{codec}.{suffix}"
        if not path.exists() and not _make_sound(ffmpeg, path, codec, seconds):
            print(f"| {name} | this ffmpeg has no encoder {codec} | | | | | | | | |")
            continue
        mine = _native(path)
        theirs = _ffmpeg_samples(ffmpeg, path, len(mine))
        common = min(mine.shape[1], theirs.shape[1])
        difference = float(np.abs(mine[:, :common] - theirs[:, :common]).max())
        walls = [_timed(lambda p=path: _load(p)) for _ in range(rounds)]
        other = [_timed(lambda p=path: _ffmpeg_mono(ffmpeg, p)) for _ in range(rounds)]
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
        _load(path)
        memory = _memory("VmHWM") - before
        print(
            f"| {name} | {mine.shape[1]} | {theirs.shape[1]} | {shift(mine[0], theirs[0])} | {difference:.1e} |"
            f" {_soundfile(path)} | {_torchcodec_sound(path)} | {1000 * statistics.median(walls):.0f} |"
            f" {1000 * statistics.median(other):.0f} | {memory:.0f} |",
            flush=True,
        )


def shift(mine: np.ndarray, theirs: np.ndarray) -> int:
    """By how many samples ours lags behind theirs, by their cross-correlation over the first five seconds."""
    a, b = mine[: 5 * RATE].astype(float), theirs[: 5 * RATE].astype(float)
    size = 1 << (len(a) + len(b)).bit_length()
    correlation = np.fft.irfft(np.fft.rfft(a, size) * np.conj(np.fft.rfft(b, size)))
    lag = int(correlation.argmax())
    return lag if lag < size // 2 else lag - size


def _make_sound(ffmpeg: str, path: Path, codec: str, seconds: int) -> bool:
    voice = f"sine=f=330:r={RATE}:d={seconds},volume=0.5[a];anoisesrc=r={RATE}:d={seconds}:a=0.1:s=7[b];[a][b]amerge=inputs=2"
    film = (
        ["-f", "lavfi", "-i", f"testsrc=s=64x64:d={seconds}", "-shortest"] if path.suffix in {".mp4", ".webm"} else []
    )
    command = [ffmpeg, "-v", "error", "-f", "lavfi", "-i", voice, *film, "-c:a", codec, "-y", str(path)]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def _native(path: Path) -> np.ndarray:
    from omnirecall.media.audio import Amiss, native_samples

    return np.concatenate([samples for samples, _ in native_samples(path, path.name, Amiss())], 1)


def _load(path: Path) -> np.ndarray:
    from omnirecall.media.audio import load_samples

    return load_samples(path, 16000, path.name).values


def _ffmpeg_samples(ffmpeg: str, path: Path, channels: int) -> np.ndarray:
    command = [ffmpeg, "-v", "error", "-i", str(path), "-vn", "-f", "f32le", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.float32).reshape(-1, channels).T


def _ffmpeg_mono(ffmpeg: str, path: Path) -> None:
    command = [ffmpeg, "-v", "error", "-i", str(path), "-vn", "-ac", "1", "-ar", "16000", "-f", "f32le", "-"]
    subprocess.run(command, capture_output=True, check=True)


def _soundfile(path: Path) -> str:
    try:
        import soundfile

        return str(len(soundfile.read(str(path))[0]))
    except ImportError:
        return "not installed"
    except Exception:
        return "not read"


def _torchcodec_sound(path: Path) -> str:
    try:
        from torchcodec.decoders import AudioDecoder

        return str(AudioDecoder(str(path)).get_all_samples().data.shape[1])
    except ImportError:
        return "not installed"
    except Exception:
        return "not read"


# Pictures.


def images(rounds: int) -> None:
    """Pictures decoded a second, to RGB."""
    from PIL import Image

    from omnirecall.media.image import load_image

    print("\nPictures of 1280x720 decoded a second, one thread: median (range)\n")
    print("| format | ours | Pillow alone | OpenCV |")
    print("|---|---|---|---|")
    picture = Image.fromarray(textured(1234, *SIZE))
    for form in ("JPEG", "PNG", "WEBP"):
        out = io.BytesIO()
        picture.save(out, form)
        data = out.getvalue()
        readers: dict[str, Callable[[], Any]] = {
            "ours": lambda d=data: load_image(d, "x"),
            "Pillow": lambda d=data: Image.open(io.BytesIO(d)).convert("RGB"),
        }
        try:
            import cv2

            readers["OpenCV"] = lambda d=data: cv2.imdecode(np.frombuffer(d, np.uint8), cv2.IMREAD_COLOR)
        except ImportError:
            pass
        speeds: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(rounds):
            for name, reader in readers.items():
                speeds[name].append(10 / _timed(lambda r=reader: [r() for _ in range(10)]))
        cells = [
            f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})" for values in speeds.values()
        ]
        print(f"| {form} | {' | '.join([*cells, *['not installed'] * (3 - len(cells))])} |", flush=True)


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# The command.


def find_ffmpeg() -> str | None:
    """The newest ffmpeg command there is: imageio-ffmpeg's, else the one on the path."""
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        return shutil.which("ffmpeg")


def installed(methods: list[str]) -> Iterator[str]:
    """Those whose library imports; the others are named."""
    for method in methods:
        library = NEEDS.get(method)
        tried = library and subprocess.run(
            [sys.executable, "-c", f"import {library}"], capture_output=True, check=False
        )
        if tried and tried.returncode:
            print(f"{method}: left out, since {library} does not import")
        else:
            yield method


def main() -> None:
    """Parse the command line and run what it asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["video", "audio", "images"], help="video, audio, images")
    parser.add_argument("--clips", nargs="+", choices=list(CLIPS), default=list(CLIPS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="keep the clips here, and use those that are")
    parser.add_argument("--json", type=Path, help="write the rows about video here too")
    parser.add_argument("--ffmpeg", default=find_ffmpeg(), help="the ffmpeg command")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if "video" in options.parts:
            paths = make_clips(folder, options.clips, options.seconds, options.ffmpeg)
            methods = list(installed(list(dict.fromkeys(["ours", *options.methods]))))
            rows = video(paths, methods, options.rounds)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
        if "audio" in options.parts:
            audio(folder, options.seconds, options.ffmpeg, options.rounds)
        if "images" in options.parts:
            images(options.rounds)


if __name__ == "__main__":
    main()
