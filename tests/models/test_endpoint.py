"""Embeddings endpoints against a server on loopback: what is sent, what comes back, and every way to fail."""

from __future__ import annotations

import base64
import email.utils
import io
import json
import logging
import subprocess
import sys
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from endpoint_server import DIMENSION, Fault, Server, serving, vector_of
from PIL import Image

from omnirecall.errors import RunError, UserError
from omnirecall.media.types import DecodedItem, Frames, Samples
from omnirecall.models.base import Embedder, ModelOptions
from omnirecall.models.endpoint import EndpointModel, load
from omnirecall.models.load import load_model

KEY = "sk-live-0123456789abcdef"


@pytest.fixture(autouse=True)
def _loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "OMNIRECALL_API_KEY",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


@pytest.fixture
def waits() -> list[float]:
    """Seconds that a model of ``model_at`` would have waited."""
    return []


@pytest.fixture
def model_at(server: Server, waits: list[float]) -> Callable[..., EndpointModel]:
    def make(name: str = "acme/embed-1", **args: Any) -> EndpointModel:
        given = {"url": server.url, "dimension": str(DIMENSION), **{key: str(value) for key, value in args.items()}}
        model = load(name, ModelOptions(args=given))
        model.pause = waits.append
        return model

    return make


def texts(count: int, instruction: str = "") -> list[DecodedItem]:
    return [DecodedItem(id=f"t{row}", text=f"text number {row}", instruction=instruction) for row in range(count)]


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8))


def expected(sent: list[Any]) -> np.ndarray:
    return np.stack([vector_of(one) for one in sent])


# What is known before anything is asked


def test_facts_need_neither_the_library_nor_the_network() -> None:
    program = (
        "import sys; from omnirecall.models.base import ModelOptions; from omnirecall.models.load import load_model;"
        "m = load_model('http:acme/embed-1', ModelOptions(args={'url': 'http://nowhere.invalid/v1', 'dimension': '6'}));"
        "print(m.name, m.dimension, m.symmetric, m.late_interaction, m.sampling_rate, m.default_prompt, len(m.fingerprint));"
        "print(m.supports({'text'}), m.supports({'image'}), m.supports(set()), [x for x in ('httpx', 'PIL') if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["embed-1 6 True False 16000 card 32", "True False False []"]


def test_what_each_form_supports(model_at: Callable[..., EndpointModel]) -> None:
    messages = model_at(modalities="text,image,video,audio")
    assert messages.endpoint.form == "messages"
    assert messages.supports({"text", "image", "video", "audio"})
    assert messages.supports({"video"})
    infinity = model_at(modalities="text,image", form="modality")
    assert infinity.supports({"image"})
    assert not infinity.supports({"image", "text"})
    assert not infinity.supports({"audio"})


def test_the_fingerprint_follows_what_decides_a_vector_and_nothing_else(
    model_at: Callable[..., EndpointModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = model_at().fingerprint
    assert model_at(batch=7, concurrency=1, timeout=3, attempts=2, max_requests=9, key_env="OTHER").fingerprint == plain
    monkeypatch.setenv("OMNIRECALL_API_KEY", KEY)
    assert model_at().fingerprint == plain
    changed = [
        model_at("acme/embed-2"),
        model_at(url="http://127.0.0.1:1/v1"),
        model_at(url="http://127.0.0.1:1/v2"),
        model_at(dimension=5),
        model_at(dimension=5, shorten="true"),
        model_at(template="Q: {instruction} {text}"),
        model_at(modalities="text,image"),
        model_at(modalities="text,image", picture="jpeg"),
        model_at(modalities="text,image", instruction="system"),
        model_at(modalities="text,image", form="modality"),
        model_at(encoding="base64"),
        model_at(extra='{"normalize": false}'),
        model_at(query_extra='{"input_type": "query"}'),
        model_at(rate=48000),
    ]
    assert len({plain, *(model.fingerprint for model in changed)}) == len(changed) + 1
    assert model_at(url="https://127.0.0.1:1/v1").fingerprint == model_at(url="http://127.0.0.1:1/v1/").fingerprint


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"url": ""}, "url: give the endpoint's address"),
        ({"url": "localhost:8000/v1"}, "url: give the endpoint's address"),
        ({"url": "http://[bad/v1"}, "url: give the endpoint's address"),
        ({"url": "http://me:hush@host/v1"}, "holds a user, a password"),
        ({"url": "http://host/v1?api-key=hush"}, "a query"),
        ({"api_key": "hush"}, "a key does not belong on the command line"),
        ({"Authorization": "hush"}, "a key does not belong on the command line"),
        ({"extra": '{"api_key": "hush"}'}, "looks like a key"),
        ({"extra": '{"input": []}'}, "input is set by the form"),
        ({"extra": "normalize"}, "must be a JSON object"),
        ({"extra": "[1]"}, "must be a JSON object"),
        ({"speed": "fast"}, "has no such argument"),
        ({"dimension": "many"}, "whole number"),
        ({"modalities": "text,smell"}, "smell is none of"),
        ({"form": "input", "modalities": "text,image"}, "cannot carry image"),
        ({"form": "modality", "modalities": "video"}, "cannot carry video"),
        ({"form": "soap"}, "write input or messages or modality"),
        ({"template": "{text}"}, "must hold {instruction}"),
        ({"instruction": "system"}, "form=messages only"),
        ({"shorten": "yes"}, "write true or false"),
    ],
)
def test_wrong_arguments_are_named_and_keys_are_not_repeated(args: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        load("m", ModelOptions(args={"url": "http://host/v1", "dimension": "4", **args}))
    assert sentence in str(error.value)
    assert "hush" not in str(error.value)


def test_a_name_and_a_dimension_are_needed() -> None:
    with pytest.raises(UserError, match="names no model"):
        load("", ModelOptions(args={"url": "http://host/v1", "dimension": "4"}))
    with pytest.raises(UserError, match="dimension=N"):
        load("m", ModelOptions(args={"url": "http://host/v1"}))
    with pytest.raises(UserError, match="no choice of dtype"):
        load("m", ModelOptions(dtype="float16", args={"url": "http://host/v1", "dimension": "4"}))


# What is sent


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_texts_in_batches_and_in_order(server: Server, model_at: Callable[..., EndpointModel], encoding: str) -> None:
    model: Embedder = model_at(batch=3, encoding=encoding)
    items = texts(8)
    vectors = np.asarray(model.encode(items, role="query"))
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, expected([item.text for item in items]))
    assert sorted(len(asked.body["input"]) for asked in server.asked) == [2, 3, 3]
    for asked in server.asked:
        assert asked.path == "/v1/embeddings"
        assert set(asked.body) == {"model", "input", "encoding_format"}
        assert asked.body["model"] == "acme/embed-1"
        assert asked.body["encoding_format"] == encoding
        assert "authorization" not in asked.headers


def test_the_template_places_the_instruction(server: Server, model_at: Callable[..., EndpointModel]) -> None:
    model = model_at(template=r"Instruct: {instruction}\nQuery: {text}")
    assert model.default_prompt == "model"
    model.encode([*texts(1, "find {text} it"), *texts(1)], role="query")
    assert server.asked[0].body["input"] == ["Instruct: find {text} it\nQuery: text number 0", "text number 0"]
    assert model_at().endpoint.text_of(texts(1, "find it")[0]) == "find it\ntext number 0"


def test_extras_by_role(server: Server, model_at: Callable[..., EndpointModel]) -> None:
    model = model_at(
        extra='{"normalize": false, "input_type": "document"}',
        query_extra='{"input_type": "query"}',
        shorten="true",
        dimension=4,
    )
    assert not model.symmetric
    assert model.encode(texts(1), role="query").shape == (1, 4)
    model.encode(texts(1), role="candidate")
    sent = [{key: asked.body[key] for key in ("normalize", "input_type", "dimensions")} for asked in server.asked]
    assert sent == [
        {"normalize": False, "input_type": "query", "dimensions": 4},
        {"normalize": False, "input_type": "document", "dimensions": 4},
    ]


def test_messages_hold_every_medium_exactly(server: Server, model_at: Callable[..., EndpointModel]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (3, 20, 30, 3), np.uint8)
    tone = np.round(np.sin(np.arange(400) / 9) * 20000).astype(np.int16)
    item = DecodedItem(
        id="all",
        text="what is it",
        image=picture(0),
        video=Frames(pixels, np.arange(3.0)),
        audio=Samples(tone.astype(np.float32) / 32768, 16000),
        instruction="find it",
    )
    model = model_at(modalities="text,image,video,audio", instruction="system")
    vectors = model.encode([item], role="query")
    (asked,) = server.asked
    system, user = asked.body["messages"]
    assert system == {"role": "system", "content": [{"type": "text", "text": "find it"}]}
    assert user["role"] == "user"
    kinds = [part["type"] for part in user["content"]]
    assert kinds == ["image_url", "image_url", "image_url", "image_url", "input_audio", "text"]
    shown = [part["image_url"]["url"].removeprefix("data:image/png;base64,") for part in user["content"][:4]]
    seen = [np.asarray(Image.open(io.BytesIO(base64.b64decode(one)))) for one in shown]
    np.testing.assert_array_equal(seen[0], np.asarray(picture(0)))
    np.testing.assert_array_equal(np.stack(seen[1:]), pixels)
    assert user["content"][4]["input_audio"]["format"] == "wav"
    with wave.open(io.BytesIO(base64.b64decode(user["content"][4]["input_audio"]["data"]))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
        np.testing.assert_array_equal(np.frombuffer(file.readframes(400), "<i2"), tone)
    assert user["content"][5] == {"type": "text", "text": "what is it"}
    np.testing.assert_array_equal(vectors[0], vector_of(asked.body["messages"]))
    assert any("its frames" in note for note in model.notes)


def test_messages_of_other_kinds(server: Server, model_at: Callable[..., EndpointModel]) -> None:
    pixels = np.full((2, 16, 16, 3), 77, np.uint8)
    loud = Samples(np.array([2.0, -2.0, 0.5], np.float32), 8000)
    model = model_at(modalities="text,image,video,audio", video="jpeg", picture="jpeg", concurrency=1)
    model.encode([DecodedItem(id="v", video=Frames(pixels, np.arange(2.0)), instruction="find it")], role="query")
    model.encode([DecodedItem(id="i", image=picture(2))], role="candidate")
    model.encode([DecodedItem(id="a", audio=loud)], role="candidate")
    model.encode(texts(2), role="candidate")
    contents = [asked.body["messages"][0]["content"] for asked in server.asked]
    assert [len(asked.body["messages"]) for asked in server.asked] == [1] * 5
    video = contents[0][0]["video_url"]["url"].removeprefix("data:video/jpeg;base64,").split(",")
    frames = [np.asarray(Image.open(io.BytesIO(base64.b64decode(frame)))) for frame in video]
    assert np.abs(np.stack(frames).astype(int) - pixels).max() <= 2
    assert contents[0][1] == {"type": "text", "text": "find it"}
    assert [part["type"] for part in contents[1]] == ["image_url"]
    assert contents[1][0]["image_url"]["url"].startswith("data:image/jpeg;base64,")
    with wave.open(io.BytesIO(base64.b64decode(contents[2][0]["input_audio"]["data"]))) as file:
        assert np.frombuffer(file.readframes(9), "<i2").tolist() == [32767, -32768, 16384]
    assert [content[0]["text"] for content in contents[3:]] == ["text number 0", "text number 1"]


def test_infinity_takes_many_pictures_a_request(server: Server, model_at: Callable[..., EndpointModel]) -> None:
    model = model_at(modalities="text,image,audio", form="modality", batch=100, concurrency=1)
    items = [DecodedItem(id=f"i{row}", image=picture(row)) for row in range(40)]
    vectors = model.encode(items, role="candidate")
    model.encode([DecodedItem(id="a", audio=Samples(np.zeros(4, np.float32), 16000))], role="candidate")
    model.encode(texts(50), role="candidate")
    assert [(asked.body["modality"], len(asked.body["input"])) for asked in server.asked] == [
        ("image", 32),
        ("image", 8),
        ("audio", 1),
        ("text", 50),
    ]
    sent = [one for asked in server.asked[:2] for one in asked.body["input"]]
    assert all(one.startswith("data:image/png;base64,") for one in sent)
    assert server.asked[2].body["input"][0].startswith("data:audio/wav;base64,")
    np.testing.assert_array_equal(vectors, expected(sent))


def test_no_more_requests_at_once_than_said(server: Server, model_at: Callable[..., EndpointModel]) -> None:
    server.always = Fault(seconds=0.05)
    model = model_at(batch=1, concurrency=3)
    items = texts(12)
    np.testing.assert_array_equal(model.encode(items, role="query"), expected([item.text for item in items]))
    assert server.most_busy == 3


# What comes back wrong, and is tried again


@pytest.mark.parametrize(
    "fault",
    [
        Fault(429),
        Fault(500, raw=b'{"error": {"message": "cuda went away"}}'),
        Fault(503),
        Fault(408),
        Fault(drop=True),
        Fault(cut=40),
        Fault(raw=b"<html>gateway</html>"),
        Fault(raw=b'{"data": 3}'),
        Fault(raw=b"[]"),
        Fault(raw=b""),
        Fault(raw=b'{"data": [{"index": 0, "embed'),
        Fault(raw=b"[" * 100_000),
        Fault(headers={"Content-Encoding": "gzip"}),
    ],
)
def test_a_passing_fault_is_tried_again(
    server: Server, model_at: Callable[..., EndpointModel], waits: list[float], fault: Fault
) -> None:
    server.faults = [fault, fault]
    items = texts(4)
    np.testing.assert_array_equal(model_at().encode(items, role="query"), expected([item.text for item in items]))
    assert len(server.asked) == 3
    assert 0.5 <= waits[0] <= 1
    assert 1 <= waits[1] <= 2


def test_waits_double_and_are_bounded(
    server: Server, model_at: Callable[..., EndpointModel], waits: list[float]
) -> None:
    server.always = Fault(502, raw=b"bad gateway")
    with pytest.raises(
        RunError, match=r"gave no usable answer in 9 attempts for item t0: 502 bad gateway; .* run again"
    ):
        model_at(attempts=9).encode(texts(1), role="query")
    assert len(server.asked) == 9
    most = [1, 2, 4, 8, 16, 32, 60, 60]
    assert all(most_now / 2 <= waited <= most_now for waited, most_now in zip(waits, most, strict=True))
    assert len(set(waits)) == len(waits)


def test_retry_after_is_honoured(server: Server, model_at: Callable[..., EndpointModel], waits: list[float]) -> None:
    date = email.utils.formatdate(time.time() + 90, usegmt=True)
    server.faults = [
        Fault(429, {"Retry-After": "37"}),
        Fault(503, {"Retry-After": date}),
        Fault(429, {"Retry-After": "soon"}),
    ]
    model_at().encode(texts(1), role="query")
    assert 37 <= waits[0] <= 39
    assert 85 <= waits[1] <= 93
    assert waits[2] <= 4
    server.always = Fault(429, {"Retry-After": "86400"})
    with pytest.raises(RunError, match="asks to wait 86400 seconds"):
        model_at().encode(texts(1), role="query")


def test_a_slow_answer_is_given_up(server: Server, model_at: Callable[..., EndpointModel]) -> None:
    server.faults = [Fault(seconds=1.5)]
    items = texts(1)
    np.testing.assert_array_equal(model_at(timeout=1).encode(items, role="query"), expected([items[0].text]))
    assert len(server.asked) == 2
    server.always = Fault(seconds=1.5)
    with pytest.raises(RunError, match="no answer within 1 seconds"):
        model_at(timeout=1, attempts=1).encode(items, role="query")


def test_nobody_listens(model_at: Callable[..., EndpointModel]) -> None:
    with pytest.raises(RunError, match="in 2 attempts for item t0: ConnectError"):
        model_at(url="http://127.0.0.1:9/v1", attempts=2).encode(texts(1), role="query")


def test_after_one_failure_the_others_stop(server: Server, model_at: Callable[..., EndpointModel]) -> None:
    server.always = Fault(400, raw=b'{"message": "no"}')
    with pytest.raises(UserError):
        model_at(batch=1, concurrency=2).encode(texts(60), role="query")
    assert len(server.asked) < 20


# What comes back wrong, and is named


def _shuffle(answer: dict[str, Any]) -> None:
    answer["data"] = [answer["data"][row] for row in (2, 0, 3, 1)]


def _without_index(answer: dict[str, Any]) -> None:
    for row in answer["data"]:
        del row["index"]


def _set(row: int, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(answer: dict[str, Any]) -> None:
        answer["data"][row][key] = value

    return change


@pytest.mark.parametrize("change", [_shuffle, _without_index])
def test_the_index_gives_the_order(
    server: Server, model_at: Callable[..., EndpointModel], change: Callable[[dict[str, Any]], None]
) -> None:
    server.always = Fault(change=change)
    items = texts(4)
    np.testing.assert_array_equal(model_at().encode(items, role="query"), expected([item.text for item in items]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda answer: answer["data"].pop(), "gave 3 vectors for 4 items, 4 items beginning with item t0"),
        (lambda answer: answer["data"].append(answer["data"][0]), "gave 5 vectors for 4 items"),
        (_set(2, "index", 1), "gave no vector with index 2, that of item t2"),
        (_set(2, "index", -1), "gave no vector with index 2, that of item t2"),
        (_set(1, "embedding", [1.0] * 5), "the vector of item t1 has 5 where 6 dimensions"),
        (_set(1, "embedding", [[1.0] * 6] * 2), "the vector of item t1 has the shape (2, 6) where 6 dimensions"),
        (_set(3, "embedding", [1.0] * 5 + [float("nan")]), "the vector of item t3 is NaN or infinite"),
        (_set(3, "embedding", [1.0] * 5 + [None]), "the vector of item t3 is NaN or infinite"),
        (_set(3, "embedding", [1e39] + [1.0] * 5), "the vector of item t3 is NaN or infinite"),
        (_set(0, "embedding", "not base64!"), "gave for item t0 is not a vector of numbers"),
        (_set(0, "embedding", base64.b64encode(b"abc").decode()), "gave for item t0 is not a vector of numbers"),
        (_set(0, "embedding", base64.b64encode(np.full(6, np.nan, "<f4").tobytes()).decode()), "of item t0 is NaN"),
        (_set(0, "embedding", {"a": 1}), "gave for item t0 is not a vector of numbers"),
        (_set(0, "embedding", [1.0, [2.0]]), "gave for item t0 is not a vector of numbers"),
        (lambda answer: answer["data"][0].pop("embedding"), "item t0"),
    ],
)
def test_wrong_vectors_are_named_and_not_asked_again(
    server: Server, model_at: Callable[..., EndpointModel], change: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    server.always = Fault(change=change)
    with pytest.raises((RunError, UserError)) as error:
        model_at().encode(texts(4), role="query")
    assert sentence in str(error.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (Fault(401), "answers 401: set OMNIRECALL_API_KEY to its key"),
        (Fault(403, raw=b'{"detail": "not you"}'), "answers 403: set OMNIRECALL_API_KEY to its key (not you)"),
        (Fault(404, raw=b'{"message": "The model does not exist."}'), "answers 404 (The model does not exist.)"),
        (
            Fault(400, raw=b'{"error": {"message": "too\\nlong\\u001b[31m"}}'),
            "refuses 2 items beginning with item t0 (400): too long [31m",
        ),
        (
            Fault(422, raw=b'{"detail": [{"loc": ["input"], "msg": "at most 1"}]}'),
            "(422): [{'loc': ['input'], 'msg': 'at most 1'}]",
        ),
    ],
)
def test_refusals_are_one_sentence_and_not_asked_again(
    server: Server, model_at: Callable[..., EndpointModel], fault: Fault, sentence: str
) -> None:
    server.always = fault
    with pytest.raises(UserError) as error:
        model_at().encode(texts(2), role="query")
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert len(server.asked) == 1


def test_an_endless_answer_is_cut_off(server: Server, model_at: Callable[..., EndpointModel]) -> None:
    server.always = Fault(raw=b" " * (3 << 20))
    with pytest.raises(RunError, match="answers with more than"):
        model_at().encode(texts(1), role="query")


def test_what_is_too_large_is_split(server: Server, model_at: Callable[..., EndpointModel]) -> None:
    server.most_items = 3
    items = texts(10)
    np.testing.assert_array_equal(
        model_at(batch=10).encode(items, role="query"), expected([item.text for item in items])
    )
    server.most_items = 0
    with pytest.raises(UserError, match=r"item t0 is larger than .* takes \(413\)"):
        model_at().encode(texts(1), role="query")


# The budget


def test_a_budget_stops_before_a_batch_that_it_cannot_pay(
    server: Server, model_at: Callable[..., EndpointModel]
) -> None:
    model = model_at(batch=2, max_requests=5)
    model.encode(texts(4), role="query")
    model.encode(texts(4), role="query")
    with pytest.raises(
        RunError, match=r"max_requests=5: 4 requests were sent, 8 items embedded and stored .* takes 2 more"
    ):
        model.encode(texts(4), role="query")
    assert len(server.asked) == 4


def test_a_budget_counts_retries(server: Server, model_at: Callable[..., EndpointModel]) -> None:
    server.always = Fault(500)
    with pytest.raises(RunError, match="max_requests=3: 3 requests were sent, 0 items embedded"):
        model_at(max_requests=3, concurrency=1).encode(texts(1), role="query")
    assert len(server.asked) == 3


def test_a_run_stops_at_its_budget_and_goes_on_from_there(
    server: Server, command: Callable[..., Any], own_data: Callable[..., Path], tmp_path: Path
) -> None:
    folder = own_data(
        tmp_path / "own",
        queries=[{"id": f"q{row}", "text": f"query {row}"} for row in range(3)],
        candidates=[{"id": f"c{row}", "text": f"candidate {row}"} for row in range(6)],
        qrels=[(f"q{row}", f"c{row}", 1) for row in range(3)],
    )
    words = ["run", folder, "--model", "http:acme/embed-1", "--batch", 2, "--out", tmp_path / "runs", "--json"]
    words += ["--model-arg", f"url={server.url}", "--model-arg", f"dimension={DIMENSION}"]
    stopped = command(*words, "--model-arg", "max_requests=3")
    assert stopped.code == 1, stopped.err
    assert "3 requests were sent, 6 items embedded and stored" in stopped.err
    done = command(*words)
    assert done.code == 0, done.err
    sent = [text for asked in server.asked for text in asked.body["input"]]
    assert len(sent) == len(set(sent)) == 9
    warm = command(*words)
    assert warm.code == 0
    assert len([text for asked in server.asked for text in asked.body["input"]]) == 9


# The key


def test_the_key_goes_to_the_endpoint_and_nowhere_else(
    server: Server,
    model_at: Callable[..., EndpointModel],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OMNIRECALL_API_KEY", "not-this-one")
    monkeypatch.setenv("ACME_KEY", f"{KEY}\n")
    model = model_at(key_env="ACME_KEY")
    model.encode(texts(1), role="query")
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    server.always = Fault(401, raw=json.dumps({"error": {"message": f"no such key {KEY}"}}).encode())
    with pytest.raises(UserError, match=r"the key in ACME_KEY is refused \(no such key \*\*\*\)"):
        model.encode(texts(1), role="query")
    server.always = Fault(500, raw=f"trouble with {KEY}".encode())
    with pytest.raises(RunError) as error:
        model_at(key_env="ACME_KEY", attempts=1).encode(texts(1), role="query")
    shown = [str(error.value), repr(model), model.fingerprint, json.dumps(model.endpoint.identity), str(model.notes)]
    shown += [record.getMessage() for record in caplog.records]
    assert not [text for text in shown if KEY in text]


def test_a_key_with_a_line_break_is_not_shown(
    model_at: Callable[..., EndpointModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIRECALL_API_KEY", f"{KEY}\nx\u00e9")
    with pytest.raises(UserError, match="OMNIRECALL_API_KEY: holds characters") as error:
        model_at().encode(texts(1), role="query")
    assert KEY not in str(error.value)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_is_followed(
    server: Server, model_at: Callable[..., EndpointModel], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("OMNIRECALL_API_KEY", KEY)
    with serving() as other:
        server.always = Fault(status, {"Location": f"{other.url}/embeddings"})
        with pytest.raises(UserError, match=f"redirects \\({status}\\) to 127.0.0.1:.*, which is not followed"):
            model_at().encode(texts(1), role="query")
        assert not other.asked


def test_the_family_is_registered(server: Server) -> None:
    options = ModelOptions(args={"url": f"{server.url}/embeddings/", "dimension": str(DIMENSION)})
    model = load_model("http:acme/embed-1", options)
    assert np.asarray(model.encode(texts(1), role="query")).shape == (1, DIMENSION)
    assert server.asked[0].path == "/v1/embeddings"
