"""``omnirecall frames``."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from omnirecall.cli.common import as_json, path
from omnirecall.protocol.suites import FrameRule, MediaPolicy


@click.command("frames", epilog="Example: omnirecall frames clip.mp4 --count 8 --out frames")
@click.argument("video", type=path())
@click.option(
    "--count", type=click.IntRange(1), default=MediaPolicy().frames, show_default=True, help="How many frames."
)
@click.option(
    "--rule",
    type=click.Choice(get_args(FrameRule)),
    default=MediaPolicy().rule,
    show_default=True,
    help="Which frames.",
)
@click.option(
    "--shortage",
    type=click.Choice(["repeat", "keep"]),
    default="repeat",
    show_default=True,
    help="A video with fewer frames than asked for repeats some, or gives those it has.",
)
@click.option(
    "--fps", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="For the rule fps."
)
@click.option(
    "--max-pixels", type=click.IntRange(0), default=0, help="The most pixels a frame may have.  [default: no bound]"
)
@click.option("--patch", type=click.IntRange(1), default=1, show_default=True, help="Sides are multiples of this.")
@click.option("--out", type=path(), metavar="DIR", help="Write the frames here as PNG.")
@as_json
def command(
    video: Path,
    count: int,
    rule: FrameRule,
    shortage: str,
    fps: float,
    max_pixels: int,
    patch: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """The frames of VIDEO that a model would see: a film, an animated picture, or a folder of frames."""
    from omnirecall.media.shown import shown_frames

    policy = MediaPolicy(
        frames=count,
        rule=rule,
        shortage="keep" if shortage == "keep" else "repeat",
        fps=fps,
        max_pixels=max_pixels,
        patch=patch,
    )
    shown = shown_frames(video, policy, out)
    click.echo(shown.as_json() if as_json else shown.as_text(), nl=False)
