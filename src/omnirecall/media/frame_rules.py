"""Which frames of a video a policy asks for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnirecall.protocol.suites import MediaPolicy


def wanted_frames(policy: MediaPolicy, decodable: int) -> NDArray[np.int64]:
    """Indices of the wanted frames among ``decodable`` ones, in time order; int64, shape (frames,).

    linspace_round: ``round(linspace(0, n - 1, k))`` with halves to even; linspace_floor: the same, truncated;
    segment_start: ``floor(i * n / k)``; all: every frame. With fewer than ``k`` frames, ``repeat`` keeps the rule, so that frames
    repeat, and ``keep`` gives each frame once.
    """
    n, k = decodable, policy.frames
    if policy.rule == "all" or (policy.shortage == "keep" and n <= k):
        return np.arange(n)
    if policy.rule == "segment_start":
        return np.arange(k, dtype=np.int64) * n // k
    if policy.rule == "fps":
        raise ValueError("the rule fps needs the frames' times")
    spaced = np.linspace(0, n - 1, k)
    return (np.round(spaced) if policy.rule == "linspace_round" else spaced).astype(np.int64)
