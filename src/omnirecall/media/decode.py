"""One item from files to pixels and samples."""

from __future__ import annotations

from omnirecall.media.audio import load_samples
from omnirecall.media.image import load_image
from omnirecall.media.types import DecodedItem
from omnirecall.media.video import load_frames
from omnirecall.protocol.items import Item
from omnirecall.protocol.suites import MediaPolicy


def decode_item(item: Item, policy: MediaPolicy, sampling_rate: int, instruction: str) -> DecodedItem:
    """The item as a model takes it; UserError names the item and the file."""
    place = f"item {item.id}"
    return DecodedItem(
        id=item.id,
        text=item.text,
        image=None if item.image is None else load_image(item.image, place),
        video=None if item.video is None else load_frames(item.video, policy, place),
        audio=None if item.audio is None else load_samples(item.audio, sampling_rate, place),
        instruction=instruction,
    )
