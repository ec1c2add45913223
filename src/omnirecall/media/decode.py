"""One item from files to pixels and samples."""

from __future__ import annotations

from dataclasses import replace

from omnirecall.media.audio import has_sound, load_samples
from omnirecall.media.image import load_image, named
from omnirecall.media.types import DecodedItem, Frames, Samples
from omnirecall.media.video import load_frames
from omnirecall.protocol.items import Item, MediaRef
from omnirecall.protocol.suites import MediaPolicy


def decode_item(item: Item, policy: MediaPolicy, sampling_rate: int, instruction: str) -> DecodedItem:
    """The item as a model takes it; UserError names the item and the file.

    Where the policy has the audio track on, a video's sound becomes the item's audio, unless the item has its own.
    """
    place = f"item {item.id}"
    video = None if item.video is None else load_frames(item.video, policy, place)
    audio = None if item.audio is None else load_samples(item.audio, sampling_rate, place, policy)
    if item.video is not None and video is not None and audio is None and policy.audio_track:
        video, audio = _with_track(item.video, video, policy, sampling_rate, place)
    return DecodedItem(
        id=item.id,
        text=item.text,
        image=None if item.image is None else load_image(item.image, place),
        video=video,
        audio=audio,
        instruction=instruction,
    )


def _with_track(
    ref: MediaRef, video: Frames, policy: MediaPolicy, rate: int, place: str
) -> tuple[Frames, Samples | None]:
    """The frames and the film's sound, or the frames with a warning where it has none."""
    if has_sound(ref, place):
        return video, load_samples(ref, rate, place, policy)
    return replace(video, warnings=(*video.warnings, f"{named(ref)}: the video has no sound")), None
