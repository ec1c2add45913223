"""How large a frame is when a model sees it."""

from __future__ import annotations

import math
from fractions import Fraction

from omnirecall.protocol.suites import MediaPolicy

MAX_PIXELS = 1 << 27
"""Pixels of the largest picture that is opened; a header that claims more is damaged or hostile."""

MAX_ASPECT = 16
"""The widest or narrowest pixel that is believed."""


def square_pixels(width: int, height: int, aspect: Fraction | None) -> tuple[int, int]:
    """The size after pixels of ``aspect`` (width over height) are made square: the height stays, the width follows."""
    if not aspect or aspect == 1 or not 1 / MAX_ASPECT <= aspect <= MAX_ASPECT:
        return width, height
    return max(1, round(width * aspect)), height


def within_budget(width: int, height: int, policy: MediaPolicy) -> tuple[int, int]:
    """The size that the policy gives a frame: aspect kept, sides multiples of ``patch``, area within the budget.

    Sides go to the nearest multiple; where the area then lies outside the bounds, both are scaled by the square root of the
    excess, down for a frame too large and up for one too small. This is the rule of Qwen2-VL's ``smart_resize``. A frame is never
    thinner than one patch; one so long that this breaks the budget loses length instead.
    """
    patch = policy.patch
    most = min(bound for bound in (policy.max_pixels, policy.max_tokens * patch**2, math.inf) if bound)
    wide, high = max(patch, round(width / patch) * patch), max(patch, round(height / patch) * patch)
    if wide * high > most:
        shrink = math.sqrt(width * height / most)
        wide = max(patch, math.floor(width / shrink / patch) * patch)
        high = max(patch, math.floor(height / shrink / patch) * patch)
        wide = max(patch, min(wide, math.floor(most / high / patch) * patch))
        high = max(patch, min(high, math.floor(most / wide / patch) * patch))
    elif wide * high < policy.min_pixels:
        grow = math.sqrt(policy.min_pixels / (width * height))
        wide, high = math.ceil(width * grow / patch) * patch, math.ceil(height * grow / patch) * patch
    return wide, high
