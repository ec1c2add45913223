"""Whether a film or sound file is all there.

A decoder gives what is left of a file that was cut short, often without complaint. Three containers say how long they are: RIFF
(WAV, AVI) and MP4 by sizes in their headers, Ogg by the lengths of each page.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO

from omnirecall.protocol.items import MediaRef

LARGEST_OGG_PAGE = 65307
UNKNOWN_LENGTHS = (0, 0xFFFFFFFF)
"""What a RIFF file that was written as a stream says of its length."""


def is_cut_short(ref: MediaRef) -> bool:
    """Whether the file ends before its own headers say; False for containers that do not say."""
    with ref.open("rb") if isinstance(ref, Path) else io.BytesIO(ref) as file:
        head = file.read(12)
        size = file.seek(0, io.SEEK_END)
        if head[:4] == b"RIFF":
            stated = int.from_bytes(head[4:8], "little")
            return stated not in UNKNOWN_LENGTHS and 8 + stated > size + 1
        if head[:4] == b"OggS":
            return _last_page_is_cut(file, size)
        return head[4:8] == b"ftyp" and _last_box_is_cut(file, size)


def _last_page_is_cut(file: BinaryIO, size: int) -> bool:
    file.seek(max(0, size - LARGEST_OGG_PAGE))
    tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    if len(page) < 27:
        return True
    lengths = page[27 : 27 + page[26]]
    return len(page) < 27 + page[26] + sum(lengths)


def _last_box_is_cut(file: BinaryIO, size: int) -> bool:
    start = 0
    while start < size:
        file.seek(start)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:  # the length follows the type, in 64 bits
            length = int.from_bytes(head[8:], "big")
        if len(head) < 8 or length == 0:  # a few bytes more than boxes, or a box that goes on to the end
            return False
        if length < 8:  # no box: damaged otherwise, which the decoder says
            return False
        start += length
    return start > size
