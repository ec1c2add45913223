"""OpenAI-compatible embeddings endpoints: ``http:MODEL`` with ``url`` and ``dimension``; vLLM, Infinity, TEI and hosted ones.

Three forms of request, all to ``URL/embeddings``:
    ``input``: the API of OpenAI, a list of texts a request.
    ``messages``: vLLM's chat form, one item a request: pictures as ``image_url`` with a data URL, sound as ``input_audio`` (WAV),
    a video as its frames, each an ``image_url``, or as one ``video_url`` of JPEG frames.
    ``modality``: Infinity's form, items of one modality a request, pictures and sounds as data URLs.

A key comes from the environment alone and goes to the endpoint's own host alone: no redirect is followed.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import io
import json
import os
import random
import re
import threading
import time
import wave
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from omnirecall.errors import RunError, UserError, require
from omnirecall.models.base import ModelOptions, Role
from omnirecall.protocol.items import MODALITIES

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from omnirecall.media.types import DecodedItem, Samples

    Vectors = NDArray[np.float32]

ARGS = (
    "url",
    "dimension",
    "modalities",
    "form",
    "template",
    "instruction",
    "picture",
    "video",
    "rate",
    "encoding",
    "shorten",
    "extra",
    "query_extra",
    "candidate_extra",
    "batch",
    "concurrency",
    "timeout",
    "attempts",
    "max_requests",
    "key_env",
)
KEY_ENV = "OMNIRECALL_API_KEY"
SECRETS = frozenset(
    (
        "key",
        "api_key",
        "apikey",
        "api-key",
        "token",
        "access_token",
        "bearer",
        "authorization",
        "auth",
        "secret",
        "password",
    )
)
OURS = frozenset({"model", "input", "messages", "modality", "encoding_format", "dimensions"})
TRANSIENT = frozenset({408, 409, 425, 429})
JPEG_QUALITY = 95
INFINITY_MEDIA = 32
"""Pictures or sounds that Infinity takes in one request."""
FIRST_WAIT, LONGEST_WAIT, PATIENCE = 1.0, 60.0, 600.0
"""Seconds: the first back-off, the longest, and the longest wait that an endpoint may ask for."""
NUMBER_BYTES = 64
"""More bytes than a number of a vector takes in JSON; bounds how much of an answer is read."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What decides a vector: where the model is, and how an item is put to it."""

    url: str
    model: str
    dimension: int
    modalities: frozenset[str]
    form: str
    template: str
    instruction: str
    picture: str
    video: str
    rate: int
    encoding: str
    shorten: bool
    extra: Mapping[str, Mapping[str, Any]]

    @property
    def place(self) -> str:
        """Host, port and path, without the scheme."""
        parts = urlsplit(self.url)
        return f"{parts.netloc.lower()}{parts.path}"

    @property
    def identity(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("url", "extra")}
        return {
            **own,
            "modalities": sorted(self.modalities),
            "place": self.place,
            "extra": {role: dict(value) for role, value in self.extra.items()},
        }

    def body(self, items: Sequence[DecodedItem], role: Role) -> dict[str, Any]:
        """The JSON of a request for some items of one set of modalities."""
        body: dict[str, Any] = {"model": self.model, "encoding_format": self.encoding, **self.extra[role]}
        if self.shorten:
            body["dimensions"] = self.dimension
        if self.form == "messages":
            return body | {"messages": self._messages(items[0])}
        if self.form == "input":
            return body | {"input": [self.text_of(item) for item in items]}
        (part,) = items[0].modalities
        return body | {"modality": part, "input": [self._single(item, part) for item in items]}

    def text_of(self, item: DecodedItem) -> str:
        """The item's text with its instruction, by the template; the instruction alone where there is no text."""
        text = item.text or ""
        if not item.instruction or self.instruction == "system":
            return text
        if item.text is None:
            return item.instruction
        values = {"instruction": item.instruction, "text": text}
        return re.sub(r"\{(instruction|text)\}", lambda found: values[found[1]], self.template)

    def _single(self, item: DecodedItem, part: str) -> str:
        if item.image is not None:
            return picture_url(item.image, self.picture)
        if item.audio is not None:
            return "data:audio/wav;base64," + wav_base64(item.audio)
        return self.text_of(item)

    def _messages(self, item: DecodedItem) -> list[dict[str, Any]]:
        parts = self._media_parts(item)
        text = self.text_of(item)
        if text or not parts:
            parts.append({"type": "text", "text": text})
        said = [{"role": "user", "content": parts}]
        if item.instruction and self.instruction == "system":
            said.insert(0, {"role": "system", "content": [{"type": "text", "text": item.instruction}]})
        return said

    def _media_parts(self, item: DecodedItem) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        if item.image is not None:
            parts.append(_url_part("image_url", picture_url(item.image, self.picture)))
        if item.video is not None:
            from PIL import Image

            frames = [Image.fromarray(frame) for frame in item.video.pixels]
            if self.video == "frames":
                parts += [_url_part("image_url", picture_url(frame, self.picture)) for frame in frames]
            else:
                joined = ",".join(_picture_base64(frame, "jpeg") for frame in frames)
                parts.append(_url_part("video_url", f"data:video/jpeg;base64,{joined}"))
        if item.audio is not None:
            parts.append({"type": "input_audio", "input_audio": {"data": wav_base64(item.audio), "format": "wav"}})
        return parts


@dataclass(frozen=True, slots=True)
class Pace:
    """What decides no vector. ``timeout``: seconds for one answer. ``max_requests``: None for no budget."""

    batch: int = 32
    concurrency: int = 4
    timeout: int = 120
    attempts: int = 6
    max_requests: int | None = None
    key_env: str = KEY_ENV


class RefusedError(Exception):
    """An answer that another try may better: why, and how many seconds the endpoint asks to wait."""

    def __init__(self, why: str, seconds: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.seconds = seconds


class TooLargeError(Exception):
    """The endpoint takes no request of this size."""


@dataclass
class EndpointModel:
    """The model behind an endpoint, an ``Embedder``. ``pause``, if given, waits some seconds between attempts."""

    endpoint: Endpoint
    pace: Pace
    symmetric: bool
    default_prompt: str
    notes: tuple[str, ...]
    pause: Callable[[float], object] | None = None
    requests: int = 0
    embedded: int = 0
    late_interaction: bool = False
    media_tokens: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def name(self) -> str:
        """The model's name at the endpoint, without its owner."""
        return self.endpoint.model.rpartition("/")[2]

    @property
    def fingerprint(self) -> str:
        """The hash of host and path, model name, and all that shapes a request; the weights behind them cannot be seen."""
        return hashlib.blake2b(
            json.dumps(["http-1", self.endpoint.identity], sort_keys=True).encode(), digest_size=16
        ).hexdigest()

    @property
    def dimension(self) -> int:
        """As the user says."""
        return self.endpoint.dimension

    @property
    def sampling_rate(self) -> int:
        """As the user says; 16000 if they say nothing."""
        return self.endpoint.rate

    def supports(self, modalities: Set[str]) -> bool:
        """One modality at a time under ``input`` and ``modality``; any combination of those claimed under ``messages``."""
        alone = self.endpoint.form == "messages" or len(modalities) == 1
        return bool(modalities) and modalities <= self.endpoint.modalities and alone

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> Vectors:
        """The vectors, float32 of shape (len(items), dimension).

        RunError where the endpoint fails for good or the budget of requests is spent; UserError for what the user can cure.
        """
        chunks = self._chunks(items)
        self._refuse_overspending(len(chunks))
        self._stop.clear()
        _ = self._client  # made before the threads that share it
        with ThreadPoolExecutor(self.pace.concurrency) as pool:
            asked = [pool.submit(self._embed, chunk, role) for chunk in chunks]
            try:
                done, _ = wait(asked, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        self.embedded += len(items)
        return np.concatenate([future.result() for future in asked])

    def _chunks(self, items: Sequence[DecodedItem]) -> list[Sequence[DecodedItem]]:
        size = 1 if self.endpoint.form == "messages" else self.pace.batch
        if items[0].modalities != {"text"}:
            size = min(size, INFINITY_MEDIA)
        return [items[start : start + size] for start in range(0, len(items), size)]

    def _embed(self, items: Sequence[DecodedItem], role: Role) -> Vectors:
        try:
            return self._asked(items, role)
        except TooLargeError:
            if len(items) == 1:
                raise UserError(
                    f"{self._called}: item {items[0].id} is larger than {self.endpoint.url} takes (413): raise the server's limit,"
                    " or let the card or --model-arg picture=jpeg make it smaller"
                ) from None
        half = len(items) // 2
        return np.concatenate([self._embed(items[:half], role), self._embed(items[half:], role)])

    def _asked(self, items: Sequence[DecodedItem], role: Role) -> Vectors:
        """The vectors of one request, tried as often as the pace allows."""
        body = json.dumps(self.endpoint.body(items, role)).encode()
        why = ""
        for attempt in range(self.pace.attempts):
            if self._stop.is_set():
                break
            self._spend()
            try:
                return self._read(self._post(body, items), items)
            except RefusedError as refused:
                why = refused.why
                if attempt + 1 < self.pace.attempts:
                    (self.pause or self._stop.wait)(self._seconds(attempt, refused))
        raise RunError(
            f"{self._called}: {self.endpoint.url} gave no usable answer in {self.pace.attempts} attempts for {_first(items)}:"
            f" {why}; what is embedded stays stored: run again to go on"
        )

    def _seconds(self, attempt: int, refused: RefusedError) -> float:
        if refused.seconds > PATIENCE:
            raise RunError(
                f"{self._called}: {self.endpoint.url} asks to wait {refused.seconds:.0f} seconds: {refused.why}; what is"
                " embedded stays stored: run again then"
            )
        backed_off = min(LONGEST_WAIT, FIRST_WAIT * 2.0**attempt) * random.uniform(0.5, 1)
        return refused.seconds + backed_off

    @property
    def _called(self) -> str:
        return f"model {self.name}"

    def _refuse_overspending(self, more: int) -> None:
        most = self.pace.max_requests
        if most is not None and self.requests + more > most:
            raise RunError(self._spent(f"the next batch takes {more} more"))

    def _spend(self) -> None:
        with self._lock:
            if self.pace.max_requests is not None and self.requests >= self.pace.max_requests:
                raise RunError(self._spent("retries took the rest"))
            self.requests += 1

    def _spent(self, why: str) -> str:
        return (
            f"{self._called}: stopped by --model-arg max_requests={self.pace.max_requests}: {self.requests} requests were sent,"
            f" {self.embedded} items embedded and stored by them, and {why}; raise it, or run again to go on from here"
        )

    @cached_property
    def _key(self) -> str:
        key = os.environ.get(self.pace.key_env, "").strip()
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise UserError(f"{self.pace.key_env}: holds characters that no key has; set it to the key alone")
        return key

    @cached_property
    def _client(self) -> Any:
        httpx = require("httpx", "http")
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        limits = httpx.Limits(max_connections=self.pace.concurrency)
        return httpx.Client(headers=headers, timeout=self.pace.timeout, limits=limits, follow_redirects=False)

    def _post(self, body: bytes, items: Sequence[DecodedItem]) -> bytes:
        """The bytes of a good answer; RefusedError where another try may help."""
        httpx = require("httpx", "http")
        longest = (1 << 20) + self.pace.batch * self.dimension * NUMBER_BYTES
        ends = time.monotonic() + self.pace.timeout
        try:
            with self._client.stream("POST", f"{self.endpoint.url}/embeddings", content=body) as answer:
                content = bytearray()
                for piece in answer.iter_bytes():
                    content += piece
                    if len(content) > longest:
                        raise RunError(f"{self._called}: {self.endpoint.url} answers with more than {longest} bytes")
                    if time.monotonic() > ends:
                        raise RefusedError(f"no whole answer within {self.pace.timeout} seconds")
        except httpx.TimeoutException:
            raise RefusedError(f"no answer within {self.pace.timeout} seconds") from None
        except httpx.TransportError as error:
            raise RefusedError(self._told(f"{type(error).__name__}: {error}".encode())) from None
        except httpx.DecodingError:
            raise RefusedError("the answer is compressed wrongly") from None
        if answer.status_code == 200:
            return bytes(content)
        raise self._trouble(answer.status_code, answer.headers, bytes(content), items)

    def _trouble(
        self, status: int, headers: Mapping[str, str], content: bytes, items: Sequence[DecodedItem]
    ) -> Exception:
        url, told = self.endpoint.url, self._told(content)
        if status in TRANSIENT or status >= 500:
            return RefusedError(f"{status} {told}".strip(), _retry_after(headers.get("retry-after", "")))
        if status == 413:
            return TooLargeError()
        if 300 <= status < 400:
            host = urlsplit(headers.get("location", "")).netloc or "another address"
            return UserError(
                f"{self._called}: {url} redirects ({status}) to {host}, which is not followed; give the final address as url"
            )
        if status in (401, 403):
            cure = f"the key in {self.pace.key_env} is refused" if self._key else f"set {self.pace.key_env} to its key"
            return UserError(f"{self._called}: {url} answers {status}: {cure} ({told})")
        if status == 404:
            return UserError(
                f"{self._called}: {url}/embeddings answers 404 ({told}): there is no such address or no model"
                f" {self.endpoint.model}; url often ends in /v1"
            )
        return UserError(f"{self._called}: {url} refuses {_first(items)} ({status}): {told}")

    def _told(self, content: bytes) -> str:
        """What an endpoint says of an error, on one line, short, and without the key."""
        text = content[:2000].decode("utf-8", "replace")
        try:
            found = json.loads(content)
            found = found.get("error", found.get("detail", found.get("message", found)))
            text = str(found.get("message", found) if isinstance(found, dict) else found)
        except (ValueError, AttributeError, RecursionError):
            pass
        if self._key:
            text = text.replace(self._key, "***")
        return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:200]

    def _read(self, content: bytes, items: Sequence[DecodedItem]) -> Vectors:
        """The vectors of an answer in the order of the items; the ``index`` of each row says which item it is of."""
        try:
            rows = _rows(content)
        except (ValueError, RecursionError):
            raise RefusedError(f"the answer is not JSON with a list of data ({self._told(content[:80])})") from None
        vectors = np.full((len(items), self.dimension), np.nan, np.float32)
        if len(rows) != len(items):
            raise RunError(f"{self._called}: gave {len(rows)} vectors for {len(items)} items, {_first(items)}")
        given = [row.get("index", position) for position, row in enumerate(rows)]
        for position, item in enumerate(items):
            if position not in given:
                raise RunError(f"{self._called}: gave no vector with index {position}, that of item {item.id}")
        for index, row in zip(given, rows, strict=True):
            vectors[int(index)] = self._vector(row.get("embedding"), items[int(index)].id)
        return vectors

    def _vector(self, value: object, name: str) -> Vectors:
        try:
            raw = base64.b64decode(value, validate=True) if isinstance(value, str) else None
            with np.errstate(over="ignore"):
                vector = np.asarray(value, np.float32) if raw is None else np.frombuffer(raw, "<f4").astype(np.float32)
        except (ValueError, TypeError):
            raise RunError(f"{self._called}: what it gave for item {name} is not a vector of numbers") from None
        if vector.shape != (self.dimension,):
            shape = str(len(vector)) if vector.ndim == 1 else f"the shape {vector.shape}"
            raise UserError(
                f"{self._called}: the vector of item {name} has {shape} where {self.dimension} dimensions are expected;"
                " give the right --model-arg dimension"
            )
        if not np.isfinite(vector).all():
            raise RunError(f"{self._called}: the vector of item {name} is NaN or infinite; nothing can be ranked by it")
        return vector


def load(name: str, options: ModelOptions) -> EndpointModel:
    """``http:MODEL``; UserError for an argument that is missing or wrong."""
    _refuse_keys(options.args)
    options.only("http", *ARGS)
    if not name:
        raise UserError("http: names no model; write http:MODEL as the endpoint calls it")
    modalities = frozenset(part.strip() for part in options.args.get("modalities", "text").split(","))
    if unknown := sorted(modalities - set(MODALITIES)):
        raise UserError(f"--model-arg modalities: {unknown[0]} is none of {', '.join(MODALITIES)}")
    form = _choice(
        options, "form", ("input", "messages", "modality"), "input" if modalities == {"text"} else "messages"
    )
    taken = {"input": {"text"}, "modality": {"text", "image", "audio"}, "messages": set(MODALITIES)}[form]
    if outside := sorted(modalities - taken):
        raise UserError(f"--model-arg form={form}: cannot carry {outside[0]}; write form=messages")
    dimension = options.number("dimension")
    if dimension is None:
        raise UserError("http: says nothing of its vectors; pass --model-arg dimension=N, their length")
    both = _json(options, "extra")
    own = {"query": _json(options, "query_extra"), "candidate": _json(options, "candidate_extra")}
    endpoint = Endpoint(
        url=_url(options.args.get("url", "")),
        model=name,
        dimension=dimension,
        modalities=modalities,
        form=form,
        template=_template(options.args.get("template", r"{instruction}\n{text}")),
        instruction=_choice(options, "instruction", ("text", "system"), "text", needs=form == "messages"),
        picture=_choice(options, "picture", ("png", "jpeg"), "png"),
        video=_choice(options, "video", ("frames", "jpeg"), "frames"),
        rate=options.number("rate", 16000) or 16000,
        encoding=_choice(options, "encoding", ("float", "base64"), "float"),
        shorten=options.flag("shorten"),
        extra={role: {**both, **value} for role, value in own.items()},
    )
    usual = Pace()
    pace = Pace(
        batch=options.number("batch", usual.batch) or usual.batch,
        concurrency=options.number("concurrency", usual.concurrency) or usual.concurrency,
        timeout=options.number("timeout", usual.timeout) or usual.timeout,
        attempts=options.number("attempts", usual.attempts) or usual.attempts,
        max_requests=options.number("max_requests"),
        key_env=options.args.get("key_env", KEY_ENV),
    )
    return EndpointModel(
        endpoint,
        pace,
        symmetric=endpoint.extra["query"] == endpoint.extra["candidate"],
        default_prompt="model" if "template" in options.args or endpoint.instruction == "system" else "card",
        notes=_notes(endpoint),
    )


def _notes(endpoint: Endpoint) -> tuple[str, ...]:
    notes = [f"vectors come from {endpoint.place}; which weights it serves cannot be checked"]
    if "video" in endpoint.modalities:
        how = "its frames, each a picture" if endpoint.video == "frames" else "one video of JPEG frames"
        notes.append(f"a video is sent as {how}")
    if "image" in endpoint.modalities and endpoint.picture == "jpeg":
        notes.append(f"pictures are sent as JPEG of quality {JPEG_QUALITY}")
    return tuple(notes)


def _refuse_keys(args: Mapping[str, str]) -> None:
    for name in args:
        if name.lower() in SECRETS:
            raise UserError(
                f"--model-arg {name}: a key does not belong on the command line; set {KEY_ENV}, or name another"
                " variable with key_env"
            )


def _url(text: str) -> str:
    """The address without a final slash; the message never repeats what may hold a key."""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        raise UserError("--model-arg url: give the endpoint's address, such as url=http://localhost:8000/v1")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UserError(
            f"--model-arg url: holds a user, a password, a query or a fragment; give the plain address, and a key in {KEY_ENV}"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/embeddings')}"


def _template(text: str) -> str:
    if "{text}" not in text or "{instruction}" not in text:
        raise UserError(
            "--model-arg template: must hold {instruction} and {text}, as in 'Instruct: {instruction}\\nQuery: {text}'"
        )
    return text.replace("\\n", "\n")


def _choice(options: ModelOptions, name: str, values: Sequence[str], default: str, *, needs: bool = True) -> str:
    value = options.args.get(name, default)
    if value not in values:
        raise UserError(f"--model-arg {name}={value}: write {' or '.join(values)}")
    if value != default and not needs:
        raise UserError(f"--model-arg {name}={value}: goes with form=messages only")
    return value


def _json(options: ModelOptions, name: str) -> dict[str, Any]:
    text = options.args.get(name, "{}")
    try:
        value = msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f'--model-arg {name}: must be a JSON object, such as {name}={{"normalize": false}}')
    for key in value:
        if key.lower() in SECRETS:
            raise UserError(
                f"--model-arg {name}: {key} looks like a key; set {KEY_ENV}, or name a variable with key_env"
            )
        if key in OURS:
            raise UserError(f"--model-arg {name}: {key} is set by the form of the request, not by {name}")
    return value


def _rows(content: bytes) -> list[dict[str, Any]]:
    """The ``data`` of an answer; ValueError if it has none. Python's JSON reads NaN, which the fast reader refuses."""
    try:
        answer = msgspec.json.decode(content)
    except msgspec.DecodeError:
        answer = json.loads(content)
    rows = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("no data")
    return rows


def _retry_after(text: str) -> float:
    """Seconds that a Retry-After header asks for, as a number or as a date; 0 if it says nothing."""
    if text.strip().replace(".", "", 1).isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0


def _first(items: Sequence[DecodedItem]) -> str:
    return f"item {items[0].id}" if len(items) == 1 else f"{len(items)} items beginning with item {items[0].id}"


def _url_part(kind: str, url: str) -> dict[str, Any]:
    return {"type": kind, kind: {"url": url}}


def picture_url(image: Image, kind: str) -> str:
    """A picture as a data URL, ``png`` (exact) or ``jpeg`` (of quality JPEG_QUALITY, colours not subsampled)."""
    return f"data:image/{kind};base64,{_picture_base64(image, kind)}"


def _picture_base64(image: Image, kind: str) -> str:
    buffer = io.BytesIO()
    if kind == "png":
        image.save(buffer, "PNG", compress_level=1)
    else:
        image.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return base64.b64encode(buffer.getvalue()).decode()


def wav_base64(samples: Samples) -> str:
    """Sound as the base64 of a mono WAV file of 16 bits; what is beyond full scale is clipped."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(samples.rate)
        file.writeframes(np.clip(np.rint(samples.values * 32768.0), -32768, 32767).astype("<i2").tobytes())
    return base64.b64encode(buffer.getvalue()).decode()
