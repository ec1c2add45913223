"""Opening what libav reads: films and sound."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omnirecall.errors import UserError, require
from omnirecall.media.image import named
from omnirecall.protocol.items import MediaRef

TEXT_ART = {"tty", "bin", "xbin", "adf", "idf"}
"""Formats by which libav draws any text file as a film of letters."""
READABLE_PROTOCOLS = "file"
"""A playlist or reference movie must not reach for the network."""


@contextmanager
def opened(ref: MediaRef, place: str, what: str) -> Iterator[Any]:
    """The file's container, closed at the end; whatever libav raises inside becomes UserError beginning with ``place``.

    ``what``: "video" or "sound", for the sentence.
    """
    av = require("av", "media")
    try:
        # The prefix keeps libav from taking a name such as "concat:a" or "http:b" for an address.
        source = f"file:{ref}" if isinstance(ref, Path) else io.BytesIO(ref)
        options = {"protocol_whitelist": READABLE_PROTOCOLS}
        with av.open(source, "r", options=options, metadata_errors="replace") as container:
            if container.format.name in TEXT_ART:
                raise UserError(f"{place}: {named(ref)} is text, not {what}")
            yield container
    except av.FFmpegError as error:
        raise UserError(f"{place}: the {what} {named(ref)} cannot be read: {error.strerror}") from None
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        # What PyAV raises for a damaged file: values that no frame can have, a stream that appears too late.
        raise UserError(f"{place}: the {what} {named(ref)} cannot be read: {error or 'out of memory'}") from None


def only(container: Any, stream: Any) -> Any:
    """The stream, decoded on one thread, with the container's other streams left unread; returns it.

    One thread a file: files are decoded side by side, and each further thread of libav holds more frames in memory.
    """
    discard = require("av.stream", "media").Discard
    for other in container.streams:
        if other.index != stream.index:
            other.discard = discard.all
    stream.codec_context.thread_count = 1
    return stream
