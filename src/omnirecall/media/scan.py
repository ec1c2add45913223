"""What a container's packets say about its frames, without decoding one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

FRAME_A_PACKET = frozenset({"h264", "hevc", "vp8", "vp9", "libdav1d", "mpeg4", "mpeg2video", "mjpeg", "prores"})
"""Codecs of which each shown packet gives one frame with the packet's own timestamp."""

VP8_SHOWN = 0x10
"""The bit of a VP8 frame's first byte that is 0 for a frame never shown (RFC 6386, section 9.1)."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The packets of a stream in decoding order, and the frames they promise.

    ``times``: presentation timestamp of each packet, in the stream's clock; None if it shows nothing. ``keys``: places of the
    packets at which decoding can start. ``promised``: sorted timestamps of the packets that should give a frame.
    ``trusted``: whether packets and frames may be taken to correspond. ``end``: when the last frame leaves the screen.
    ``damage``: what went wrong in reading, one sentence each.
    """

    times: Sequence[int | None]
    keys: Sequence[int]
    promised: Sequence[int]
    trusted: bool
    end: int = 0
    damage: tuple[str, ...] = ()
    place_of: dict[int, int] = field(default_factory=dict)
    """Place in ``times`` of each timestamp; one to one only where ``trusted``."""

    def seconds(self, stream: Any) -> NDArray[np.float64]:
        """The promised timestamps in seconds; float64, increasing."""
        return np.array(self.promised, np.float64) * float(stream.time_base)

    def start_for(self, time: int) -> int | None:
        """The place of the key packet from which the frame shown at ``time`` decodes; None if there is none.

        It is the last one before the frame in decoding order that is also shown no later: the leading pictures of an open group
        follow its key packet in the file, come before it on the screen, and need the group before.
        """
        place = self.place_of[time]
        for key in reversed(self.keys[: bisect_right(self.keys, place)]):
            shown = self.times[key]
            if shown is not None and shown <= time:
                return key
        return None


def scan_packets(container: Any, stream: Any, corrupt_error: type[Exception]) -> Scan:
    """Read every packet of the stream from the container's start; a read error (``corrupt_error``) ends the scan with ``damage``.

    Packets marked discard, as an edit list marks what it cuts away, promise no frame, nor do VP8's alternate reference frames.
    """
    times: list[int | None] = []
    keys: list[int] = []
    promised: list[int] = []
    place_of: dict[int, int] = {}
    damage: list[str] = []
    codec = stream.codec_context.name
    trusted = codec in FRAME_A_PACKET
    cut_short = end = 0
    try:
        for packet in container.demux(stream):
            if not packet.size:
                continue
            hidden = codec == "vp8" and not memoryview(packet)[0] & VP8_SHOWN
            time = None if hidden else packet.pts  # a frame never shown may bear the time of one that is
            if packet.is_keyframe:
                keys.append(len(times))
            if time is not None:
                trusted = trusted and time not in place_of
                place_of[time] = len(times)
                if not packet.is_discard:
                    promised.append(time)
                    end = max(end, time + (packet.duration or 0))
            trusted = trusted and (hidden or time is not None)
            times.append(time)
            cut_short += packet.is_corrupt
    except corrupt_error as error:
        damage.append(f"reading stops after {len(times)} packets: {getattr(error, 'strerror', None) or error}")
    if cut_short:
        damage.append(f"{cut_short} of {len(times)} packets are cut short")
    trusted = trusted and not damage and len(keys) > 0
    return Scan(times, keys, sorted(promised), trusted, end, tuple(damage), place_of)


def shortfall(container: Any, stream: Any, scan: Scan) -> list[str]:
    """What the container promises beyond the packets that came, one sentence each: the mark of a file that was cut off."""
    if stream.frames > len(scan.times):
        return [f"the file is said to hold {stream.frames} frames, and {len(scan.times)} are there: it was cut off"]
    stated, came = _stated_end(container, stream), scan.end * float(stream.time_base)
    gaps = (later - earlier for earlier, later in pairwise(scan.promised))
    slack = 0.25 + max(gaps, default=0) * float(stream.time_base)
    if stated is not None and stated > came + slack:
        return [f"the file is said to last {stated:.2f} s, and its frames end at {came:.2f} s: it was cut off"]
    return []


def _stated_end(container: Any, stream: Any) -> float | None:
    """When the container says that the stream ends, in seconds; None where it does not say."""
    tag = stream.metadata.get("DURATION")  # Matroska's, written by most of its writers as 00:00:04.000000000
    if stream.duration is not None:
        return float((stream.start_time or 0) + stream.duration) * float(stream.time_base)
    if tag is not None:
        try:
            hours, minutes, seconds = tag.split(":")
            return 3600 * int(hours) + 60 * int(minutes) + float(seconds)
        except ValueError:
            return None
    if container.duration is not None and len(container.streams) == 1:
        return float((container.start_time or 0) + container.duration) / 1e6
    return None
