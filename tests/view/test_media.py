"""Media come from the data folders only, as they lie there, and frames as the model saw them."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from omnirecall.errors import UserError
from omnirecall.evaluation import evaluate
from omnirecall.media.video import load_frames
from omnirecall.protocol.items import Packed
from omnirecall.protocol.suites import MediaPolicy
from omnirecall.sources.load import PACKAGE, load_suite
from omnirecall.view.media import OutsideError, allowed, ending, kind_of
from omnirecall.view.pages import Page, Pages

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "media"))
import clips
import miniatures

VIDEOS = sorted((PACKAGE / "starter" / "media" / "video").iterdir())
SOUNDS = sorted((PACKAGE / "starter" / "media" / "audio").iterdir())
IMAGES = sorted((PACKAGE / "starter" / "media" / "image").iterdir())
ODD = (
    "a b.png",
    "a#b.png",
    "a?b=c&d.png",
    "100%25.png",
    "é\u202e.png",
    "new\nline.png",
    "'\"<b>.png",
    "-rf.png",
    ";ls.png",
    "..png",
)


def sources(page: str) -> list[str]:
    """The media that a page leads to, relative to the root."""
    found = re.findall(r'(?:src|data-moving|data-poster|data-frames)="([^"]+)"', page)
    return [link.replace("../", "") for link in found if "m/" in link and "static/" not in link]


def body(page: Page) -> bytes:
    """What is sent."""
    from omnirecall.sources.packed import unpacked

    assert page.status == 200, page.body
    if page.ref is None:
        return page.body
    content = unpacked(page.ref)
    return content.read_bytes() if isinstance(content, Path) else content


@pytest.fixture
def shown(
    tmp_path: Path, own_data: Callable[..., Path], pages_of: Callable[..., Pages]
) -> Callable[..., tuple[Pages, str]]:
    """Run candidates with media, and give the pages and the page of the first query."""

    def make(candidates: list[dict[str, str]], **more: object) -> tuple[Pages, str]:
        data = own_data(
            tmp_path / "data",
            queries=[{"id": "q", "text": "q"}],
            candidates=candidates,
            qrels=[("q", candidates[0]["id"], 1)],
            **more,
        )
        run = Path(evaluate("random:8", data, out=tmp_path / "runs", top_k=30).folder)
        pages = pages_of(tmp_path / "runs")
        return pages, pages.answer(f"r/{run.name}/t/mine/n/0/").body.decode()

    return make


def test_every_medium_is_the_file_itself(tmp_path: Path, shown: Callable[..., tuple[Pages, str]]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    files = (
        {f"i{n}.webp": IMAGES[n] for n in range(3)}
        | {f"s{n}{SOUNDS[n].suffix}": SOUNDS[n] for n in range(2)}
        | {f"v{VIDEOS[0].suffix}": VIDEOS[0]}
    )
    for name, source in files.items():
        (data / name).write_bytes(source.read_bytes())
    kinds = {"i": "image", "s": "audio", "v": "video"}
    pages, page = shown([{"id": name, kinds[name[0]]: name} for name in files])
    sent = {body(pages.answer(link)) for link in sources(page) if not link.endswith(("frames.json", "/0.png"))}
    assert sent == {source.read_bytes() for source in files.values()}


def test_odd_names(tmp_path: Path, shown: Callable[..., tuple[Pages, str]]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for place, name in enumerate(ODD):
        Image.new("RGB", (8, 8), (place, 0, 0)).save(data / name, "PNG")
    pages, page = shown([{"id": f"c{place}", "image": name} for place, name in enumerate(ODD)])
    assert {body(pages.answer(link)) for link in sources(page)} == {(data / name).read_bytes() for name in ODD}
    for link in sources(page):
        assert re.fullmatch(r"m/[0-9a-f]+/[0-9a-f]+\.png", link)


def test_links_out_of_the_data_folder_are_not_followed(tmp_path: Path, shown: Callable[..., tuple[Pages, str]]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    secret = tmp_path / "secret.png"
    Image.new("RGB", (8, 8), "red").save(secret)
    for name in ("a", "b", "c"):
        Image.new("RGB", (8, 8), "blue").save(data / f"{name}.png")
    (data / "inside.png").symlink_to(data / "c.png")
    pages, page = shown([{"id": name, "image": f"{name}.png"} for name in ("a", "b", "inside")])
    before = sources(page)
    assert len({body(pages.answer(link)) for link in before}) == 1
    (data / "a.png").unlink()
    (data / "a.png").symlink_to(secret)
    (data / "b.png").unlink()
    answers = [pages.answer(link) for link in before]
    assert sorted({answer.status for answer in answers}) == [200, 404]
    assert all(secret.read_bytes() not in answer.body and answer.ref != secret for answer in answers)
    run = next(iter(pages.site.runs()))
    again = pages.answer(f"r/{run}/t/mine/n/0/").body.decode()
    assert "outside the data folder" in again
    assert "No such file" in again
    assert str(secret) not in again


def test_allowed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (root / "in" / "file").write_bytes(b"x")
    (tmp_path / "out").write_bytes(b"x")
    (root / "folder").symlink_to(tmp_path)
    assert allowed(root / "in" / ".." / "in" / "file", root) == (root / "in" / "file").resolve()
    for bad in (root / ".." / "out", tmp_path / "out", Path("/etc/passwd"), root / "folder" / "out", root / "folder"):
        with pytest.raises(OutsideError):
            allowed(bad, root)
        with pytest.raises(OutsideError):
            allowed(Packed.at(bad, 0, "image"), root)
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    for bad in (root / "loop", root / "pipe", root / "nothing", root / ("x" * 5000)):
        with pytest.raises(UserError):
            allowed(bad, root)


def test_addresses_of_media_hold_no_path(starter_runs: Path, pages_of: Callable[..., Pages]) -> None:
    pages = pages_of(starter_runs)
    run = next(iter(pages.site.runs()))
    links = sources(pages.answer(f"r/{run}/t/image-to-text/").body.decode())
    root, name = links[0].split("/")[1:3]
    name = name.split(".")[0]
    for bad in (
        f"m/{root}/../../etc/passwd",
        f"m/{root}//etc/passwd",
        f"m/{root}/%2e%2e%2fpasswd",
        f"m/{root}/{name}/../x.png",
        f"m/{root}/{'0' * 20}",
        f"m/{'0' * 12}/{name}",
        f"m/{root}/{name}.png/..",
        f"m/{root}/{name}/00/0.png",
        f"m/{root}/{name}\0.png",
        "m/etc/passwd",
    ):
        page = pages.answer(bad)
        assert page.status == 404, bad
        assert page.ref is None


# --- frames


@pytest.mark.parametrize(
    "policy",
    [
        MediaPolicy(),
        MediaPolicy(frames=5, rule="linspace_floor"),
        MediaPolicy(rule="fps", fps=4),
        MediaPolicy(max_pixels=2048, patch=16),
    ],
)
def test_frames_are_those_of_the_policy(
    policy: MediaPolicy, tmp_path: Path, shown: Callable[..., tuple[Pages, str]]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    clip = clips.make_clip(data / "clip.mp4", 60)
    fields = "\n".join(f"{key} = {json.dumps(value)}" for key, value in msgspec.to_builtins(policy).items())
    pages, page = shown(
        [{"id": "v", "video": "clip.mp4"}], toml=f'name = "mine"\nmeasure = "hit@1"\n[media]\n{fields}\n'
    )
    (about,) = {link for link in sources(page) if link.endswith("frames.json")}
    told = json.loads(body(pages.answer(about)))
    meant = load_frames(clip, policy, "")
    assert [frame["index"] for frame in told["frames"]] == meant.indices.tolist()
    assert [frame["time"] for frame in told["frames"]] == meant.times.tolist()
    assert told["decodable"] == meant.decodable == 60
    for frame, pixels in zip(told["frames"], meant.pixels, strict=True):
        png = body(pages.answer(about.replace("frames.json", frame["source"])))
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), pixels)
    assert pages.answer(about.replace("frames.json", f"{len(meant.indices)}.png")).status == 404


def test_the_policy_is_that_of_the_run(
    tmp_path: Path, shown: Callable[..., tuple[Pages, str]], rewritten: Callable[..., None]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    clips.make_clip(data / "clip.mp4", 30)
    pages, _ = shown([{"id": "v", "video": "clip.mp4"}])
    run = next(iter(pages.site.runs().values()))
    rewritten(run.folder, lambda record: record["tasks"]["mine"]["media"].update(frames=3))
    pages.site._runs = (-1e9, {})
    links = sources(pages.answer(f"r/{run.key}/t/mine/n/0/").body.decode())
    about = next(link for link in links if link.endswith("frames.json"))
    assert len(json.loads(body(pages.answer(about)))["frames"]) == 3


def test_a_folder_of_frames_and_an_animation(
    tmp_path: Path, pages_of: Callable[..., Pages], own_data: Callable[..., Path]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    frames = [Image.new("RGB", (16, 16), (40 * n, 0, 0)) for n in range(4)]
    frames[0].save(data / "moving.webp", save_all=True, append_images=frames[1:], duration=100, lossless=True)
    own_data(
        data,
        queries=[{"id": "q", "text": "q"}],
        candidates=[{"id": "v", "video": "moving.webp"}],
        qrels=[("q", "v", 1)],
    )
    run = Path(evaluate("random:8", data, out=tmp_path / "runs").folder)
    pages = pages_of(tmp_path / "runs")
    page = pages.answer(f"r/{run.name}/t/mine/n/0/").body.decode()
    assert 'class="animation"' in page
    moving = re.search(r'data-moving="(?:\.\./)*([^"]+)"', page)
    assert moving is not None
    assert body(pages.answer(moving[1])) == (data / "moving.webp").read_bytes()


def test_a_damaged_video_says_so(tmp_path: Path, shown: Callable[..., tuple[Pages, str]]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    clips.make_clip(data / "clip.mp4", 30)
    pages, page = shown([{"id": "v", "video": "clip.mp4"}])
    (about,) = {link for link in sources(page) if link.endswith("frames.json")}
    (data / "clip.mp4").write_bytes(b"no video at all, and never was" * 9)
    answer = pages.answer(about)
    assert answer.status == 404
    assert answer.body


# --- media in tables


def test_media_in_tables(tmp_path: Path, pages_of: Callable[..., Pages]) -> None:
    suite = load_suite("mmeb-v2")
    task = next(task for task in suite.tasks if task.data["layout"] == "mmeb-visdoc")
    miniatures.write(tmp_path / "data", [task])
    run = Path(evaluate("random:8", suite, data=tmp_path / "data", tasks=(task.name,), out=tmp_path / "runs").folder)
    for static in (True, False):
        pages = pages_of(tmp_path / "runs", static=static)
        key = next(iter(pages.site.runs()))
        pages.site.jobs.wait(pages.site.index_name(pages.site.runs()[key], task.name), 30)
        links = sources(pages.answer(f"r/{run.name}/t/{task.name}/").body.decode())
        assert links
        for link in links:
            page = pages.answer(link)
            assert page.kind == "image/jpeg"
            Image.open(io.BytesIO(body(page))).load()


# --- types


def test_kinds(tmp_path: Path) -> None:
    for path in (*IMAGES[:3], *SOUNDS[:3], *VIDEOS[:3]):
        assert ending(path) == {"opus": ".ogg"}.get(path.suffix[1:], path.suffix)
    for content in (b"", b"<html>", b"<svg xmlns=", b"<?xml", b"%PDF-1.4", b"GIF", b"RIFF....XXXX", b"\x00" * 64):
        assert kind_of(content) == ""
    page = tmp_path / "page.png"
    page.write_bytes(b"<html><script>alert(1)</script>")
    assert ending(page) == ""


def test_what_is_no_medium_is_never_shown_as_a_page(tmp_path: Path, shown: Callable[..., tuple[Pages, str]]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    Image.new("RGB", (8, 8)).save(data / "a.png")
    pages, page = shown([{"id": "a", "image": "a.png"}])
    (link,) = set(sources(page))
    (data / "a.png").write_bytes(b"<html><script>alert(1)</script></html>")
    answer = pages.answer(link.removesuffix(".png"))
    assert answer.kind == "application/octet-stream"
    assert answer.download
    assert pages.answer(link).status == 404


def test_pictures_that_browsers_do_not_show(tmp_path: Path, shown: Callable[..., tuple[Pages, str]]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    pixels = np.arange(8 * 9 * 3, dtype=np.uint8).reshape(8, 9, 3)
    Image.fromarray(pixels).save(data / "a.tif")
    pages, page = shown([{"id": "a", "image": "a.tif"}])
    (link,) = set(sources(page))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(body(pages.answer(link))))), pixels)
