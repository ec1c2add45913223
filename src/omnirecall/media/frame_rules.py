"""Which frames of a video a policy asks for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnirecall.protocol.suites import MediaPolicy


def wanted_frames(
    policy: MediaPolicy, decodable: int, times: NDArray[np.float64] | None = None, *, stored: bool = False
) -> NDArray[np.int64]:
    """Indices of the wanted frames among ``decodable`` ones, in time order; int64, shape (frames,).

    linspace_round: ``round(linspace(0, n - 1, k))`` with halves to even; linspace_floor: the same, truncated;
    segment_start: ``floor(i * n / k)``; all: every frame; fps: see ``frames_at_rate``, which needs ``times``, the frames'
    times in seconds, float64, shape (decodable,). With fewer than ``k`` frames, ``repeat`` keeps the rule, so that frames
    repeat, and ``keep`` gives each frame once. ``stored`` says that the frames are already those an earlier step kept, so that
    ``policy.stored`` has done its work. ValueError for the rule fps without times.
    """
    if policy.stored and not stored:
        kept = stored_frames(decodable, policy.stored)
        return kept[wanted_frames(policy, len(kept), None if times is None else times[kept], stored=True)]
    n, k = decodable, policy.frames
    if policy.rule == "fps":
        if times is None:
            raise ValueError("the rule fps needs the frames' times")
        return frames_at_rate(times, policy.fps, k)
    if policy.rule == "all" or (policy.shortage == "keep" and n <= k):
        return np.arange(n, dtype=np.int64)
    if policy.rule == "segment_start":
        return np.arange(k, dtype=np.int64) * n // k
    spaced = np.linspace(0, n - 1, k)
    return (np.round(spaced) if policy.rule == "linspace_round" else spaced).astype(np.int64)


def stored_frames(decodable: int, kept: int) -> NDArray[np.int64]:
    """The frames that a step which stores at most ``kept`` keeps, each once; int64, increasing.

    ``floor(i * n / kept)``, as VLM2Vec saves the frames of MMEB-V2 (``save_frames`` of its vision_utils.py).
    """
    return np.unique(np.arange(kept, dtype=np.int64) * decodable // kept)


def frames_at_rate(times: NDArray[np.float64], rate: float, at_most: int) -> NDArray[np.int64]:
    """The frame on the screen at each tick of ``rate`` a second, from the first frame on; int64, shape (ticks,).

    ``times``: seconds, increasing. Of more than ``at_most`` ticks, ``at_most`` are kept, evenly spaced with both ends.
    """
    times = np.maximum.accumulate(times)
    # A frame's own time may be rounded to the container's clock: a tick that falls a hair before it belongs to it.
    hair = 1e-6
    last = int((times[-1] - times[0] + hair) * rate)
    ticks = np.arange(last + 1) if last < at_most else np.round(np.linspace(0, last, at_most))
    shown = np.searchsorted(times, times[0] + ticks / rate + hair, side="right") - 1
    return np.asarray(shown, np.int64)
