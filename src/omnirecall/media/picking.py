"""Taking the wanted frames out of a video: by seeking where that is confirmed and cheaper, else in order."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnirecall.media.scan import Scan

Develop = Callable[[Any], NDArray[np.uint8]]

SEEK_COST = 6
"""Packets whose decoding takes about as long as a seek, with what the decoder has to read past its target to let it go."""

SKIPS_UNREFERENCED = frozenset({"h264"})
"""Codecs whose packets say for certain that no other frame refers to theirs (H.264: nal_ref_idc 0), so that libav may leave such a
frame undecoded. HEVC says so only of its own temporal layer."""

CHECKED, SETTLED = 4, 1
"""Frames before and after a target of which every one has to come as promised: a field or a hidden frame that was taken for a frame
would put all indices wrong without this showing in the target's own timestamp."""


class UnconfirmedError(Exception):
    """The decoder gave other frames than the packets promised, so that only decoding everything tells which frame is which."""


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch decoded without a break: from the key packet at place ``start`` on, for the frames ``targets``."""

    start: int
    targets: list[int]


@dataclass(slots=True)
class Decoded:
    """What decoding in order gave. ``times``: the timestamp of each frame, in seconds. ``kept``: pixels by index.

    ``complete``: whether decoding went on to the end, so that ``times`` has every frame. ``damage``: one sentence each.
    """

    times: list[float] = field(default_factory=list)
    kept: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    complete: bool = True
    damage: list[str] = field(default_factory=list)


def runs_for(scan: Scan, wanted: Sequence[int]) -> list[Run] | None:
    """The stretches that give the wanted frames (increasing indices), or None where decoding in order is as cheap."""
    runs: list[Run] = []
    reached = cost = 0
    for index in wanted:
        time = scan.promised[index]
        start = scan.start_for(time)
        if start is None:
            return None
        if runs and start - reached <= SEEK_COST:
            runs[-1].targets.append(index)
        else:
            runs.append(Run(start, [index]))
            reached = start
            cost += SEEK_COST
        place = scan.place_of[time]
        cost += max(0, place - reached)
        reached = max(reached, place)
    return runs if cost < reached + 1 else None


def by_seeking(
    container: Any, stream: Any, scan: Scan, runs: Iterable[Run], develop: Develop
) -> dict[int, NDArray[np.uint8]]:
    """The pixels of every target by index. UnconfirmedError unless each frame from a seek to its target is as promised."""
    return {index: develop(frame) for run in runs for index, frame in _confirmed(container, stream, scan, run)}


def _confirmed(container: Any, stream: Any, scan: Scan, run: Run) -> Iterator[tuple[int, Any]]:
    """(index, frame) of the targets; every frame on the way must have the timestamp that is due.

    Frames that no other frame refers to are left undecoded where the codec can tell, save the ``CHECKED`` before a target and
    the ``SETTLED`` after it: there each frame that was promised has to come.
    """
    packets, first = _packets_from(container, stream, scan, run)
    promised, may_skip = scan.promised, stream.codec_context.name in SKIPS_UNREFERENCED
    targets = iter(run.targets)
    target: int | None = next(targets)
    due = settled = bisect_left(promised, first)
    for packet in packets:
        checked = max(0, target - CHECKED) if may_skip and target is not None else 0
        if may_skip:
            far = packet.size and promised[settled] < packet.pts < promised[checked]
            stream.codec_context.skip_frame = "NONREF" if far else "DEFAULT"
        for frame in packet.decode():
            if frame.pts is None or frame.is_corrupt:
                raise UnconfirmedError
            if frame.pts < first:
                continue  # a leading picture of an open group: its references lie before the seek
            index = bisect_left(promised, frame.pts, due)
            is_due = index == due or settled < due < index <= checked
            if not is_due or index == len(promised) or promised[index] != frame.pts:
                raise UnconfirmedError
            due = index + 1
            if index == target:
                yield index, frame
                settled = min(index + SETTLED, len(promised) - 1)
                target = next(targets, None)
            if target is None and due > settled:
                return
    raise UnconfirmedError


def _packets_from(container: Any, stream: Any, scan: Scan, run: Run) -> tuple[Iterator[Any], int]:
    """The packets from the run's start on, and the timestamp of the first of them.

    Containers seek by decoding time, by presentation time or by guessing: the target's time mostly lands on the start, and the
    start's own time never after it, but at times a group too early. UnconfirmedError if neither leads to a known key packet at
    or before the start.
    """
    for time in (scan.promised[run.targets[0]], scan.times[run.start]):
        container.seek(time, stream=stream)
        packets = container.demux(stream)
        packet = next(packets)  # there is always one, if only that which ends the stream
        landed = scan.place_of.get(packet.pts, -1)
        if landed == run.start:
            break
    if landed > run.start or landed not in scan.keys:
        raise UnconfirmedError
    return chain([packet], packets), packet.pts


def in_order(
    container: Any,
    stream: Any,
    wanted: Sequence[int],
    scan: Scan,
    develop: Develop,
    decode_error: type[Exception],
    *,
    sure: bool = False,
) -> Decoded:
    """Decode from the start and keep the ``wanted`` indices (increasing).

    Stops after the last of them if every frame so far had the timestamp that a trusted scan promised, or if the caller is
    ``sure`` of them; else it goes on to the end, past packets that do not decode (``decode_error``).
    """
    result, wanted_now, last = Decoded(), set(wanted), wanted[-1] if wanted else -1
    confirmed, failed = scan.trusted, 0
    for packet in _until_damage(container, stream, decode_error):
        try:
            frames = packet.decode() if packet is not None else stream.codec_context.decode(None)
        except decode_error:
            failed += 1
            confirmed = False
            continue
        for frame in frames:
            index = len(result.times)
            result.times.append(_time_of(frame, result.times))
            confirmed = confirmed and index < len(scan.promised) and frame.pts == scan.promised[index]
            if index in wanted_now:
                result.kept[index] = develop(frame)
        if (confirmed or sure) and len(result.times) > last >= 0:
            result.complete = False
            return result
    if failed:
        result.damage.append(f"{failed} packets do not decode")
    return result


def _until_damage(container: Any, stream: Any, read_error: type[Exception]) -> Iterator[Any]:
    """The stream's packets; None, for the frames still in the decoder, once reading fails. The scan has told of the failure."""
    try:
        yield from container.demux(stream)
    except read_error:
        yield None


def _time_of(frame: Any, before: list[float]) -> float:
    """A frame's time in seconds; where the file gives none, that of the frame before."""
    if frame.time is not None and math.isfinite(frame.time):
        return float(frame.time)
    return before[-1] if before else 0.0
