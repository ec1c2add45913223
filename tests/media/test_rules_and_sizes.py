"""Which frames a rule names, and how large a frame becomes, against values worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirecall.media.frame_rules import frames_at_rate, stored_frames, wanted_frames
from omnirecall.media.sizing import square_pixels, within_budget
from omnirecall.protocol.suites import MediaPolicy


@pytest.mark.parametrize(
    ("n", "stored", "kept"),
    [
        (10, 4, [0, 2, 5, 7]),
        (130, 64, [index * 130 // 64 for index in range(64)]),
        (64, 64, list(range(64))),
        (5, 64, [0, 1, 2, 3, 4]),
    ],
)
def test_stored_frames(n: int, stored: int, kept: list[int]) -> None:
    assert stored_frames(n, stored).tolist() == kept


def test_a_rule_over_stored_frames() -> None:
    policy = MediaPolicy(frames=8, rule="linspace_floor", shortage="keep", stored=64)  # MMEB-V2
    kept = [index * 1000 // 64 for index in range(64)]
    assert wanted_frames(policy, 1000).tolist() == [kept[place] for place in (0, 9, 18, 27, 36, 45, 54, 63)]
    assert wanted_frames(policy, 5).tolist() == [0, 1, 2, 3, 4]
    assert wanted_frames(policy, 1000, stored=True).tolist() == [0, 142, 285, 428, 570, 713, 856, 999]


def test_frames_at_a_rate() -> None:
    times = np.array([5.0, 5.1, 5.5, 6.0, 6.999999, 9.0])
    assert frames_at_rate(times, 1.0, 99).tolist() == [0, 3, 4, 4, 5]  # at 5, 6, 7, 8 and 9 s
    assert frames_at_rate(times, 2.0, 3).tolist() == [0, 4, 5]  # of nine ticks the first, fifth and ninth
    assert frames_at_rate(np.array([3.0]), 1.0, 8).tolist() == [0]
    assert len(frames_at_rate(np.array([0.0, 1e12]), 30.0, 8)) == 8  # a damaged clock asks for no memory
    policy = MediaPolicy(rule="fps", fps=1.0, frames=99)
    assert wanted_frames(policy, 6, times).tolist() == [0, 3, 4, 4, 5]
    with pytest.raises(ValueError, match="times"):
        wanted_frames(policy, 6)


@pytest.mark.parametrize(
    ("size", "policy", "expected"),
    [
        ((1920, 1080), MediaPolicy(), (1920, 1080)),
        ((1921, 1081), MediaPolicy(patch=28), (1932, 1092)),
        # 200 tokens of 28 x 28: the sides shrink by sqrt(1920 * 1080 / 156800) = 3.6366 to 527.96 and 296.98
        ((1920, 1080), MediaPolicy(max_tokens=200, patch=28), (504, 280)),
        ((1920, 1080), MediaPolicy(max_pixels=200 * 28 * 28, patch=28), (504, 280)),
        # at least 128 tokens: 320 x 240 grows by sqrt(100352 / 76800) = 1.1431 to 365.8 and 274.3
        ((320, 240), MediaPolicy(min_pixels=128 * 28 * 28, max_tokens=200, patch=28), (392, 280)),
        ((1280, 720), MediaPolicy(max_pixels=230400), (640, 360)),
        ((10, 10), MediaPolicy(patch=28), (28, 28)),
        ((10000, 10), MediaPolicy(max_tokens=200, patch=28), (5600, 28)),
    ],
)
def test_within_budget(size: tuple[int, int], policy: MediaPolicy, expected: tuple[int, int]) -> None:
    assert within_budget(*size, policy) == expected
    assert within_budget(*size[::-1], policy) == expected[::-1]


@given(
    wide=st.integers(1, 8000),
    high=st.integers(1, 8000),
    patch=st.sampled_from([1, 14, 28]),
    tokens=st.integers(1, 2000),
)
def test_a_budget_is_never_broken(wide: int, high: int, patch: int, tokens: int) -> None:
    new_wide, new_high = within_budget(wide, high, MediaPolicy(max_tokens=tokens, patch=patch))
    assert new_wide * new_high <= tokens * patch**2
    assert new_wide % patch == new_high % patch == 0
    assert min(new_wide, new_high) >= patch


def test_square_pixels() -> None:
    assert square_pixels(720, 576, Fraction(16, 15)) == (768, 576)
    assert square_pixels(720, 576, None) == square_pixels(720, 576, Fraction(1, 100)) == (720, 576)
    assert square_pixels(1, 9, Fraction(1, 4)) == (1, 9)
