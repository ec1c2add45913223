"""The server over the network: whom it answers, what it never serves, and how."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from omnirecall.evaluation import evaluate
from omnirecall.sources.load import PACKAGE

VIDEOS = sorted((PACKAGE / "starter" / "media" / "video").iterdir())
NASTY = '</script><script>alert("x")</script><img src=x onerror=alert(1)>{{ 7 * 7 }}\u202e\x1b[31m'


def ask(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One request with the path as it is; status, headers with lower-case names, body."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, own_data: Callable[..., Path], serve: Callable[..., Any]
) -> tuple[str, Path, Path]:
    """A server of one run with hostile text and a video: its address, the run and the data folder."""
    tmp = tmp_path_factory.mktemp("served")
    data = tmp / "data"
    data.mkdir()
    (data / "clip").write_bytes(VIDEOS[0].read_bytes())
    (data / "private.txt").write_text("top secret")
    (tmp / "outside.txt").write_text("top secret")
    own_data(
        data,
        queries=[{"id": f"q{NASTY}", "text": NASTY, "instruction": NASTY}, {"id": "plain", "text": "plain"}],
        candidates=[{"id": f"c{NASTY}", "text": NASTY}, {"id": "v", "video": "clip"}],
        qrels=[],
        toml=f"name = \"mine\"\nmeasure = \"hit@1\"\ninstruction = '''{NASTY[:40]}'''\n",
    )
    (data / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\nq{NASTY}\tv\t1\nplain\tc{NASTY}\t1\n")
    run = Path(evaluate("random:8", data, out=tmp / "runs").folder)
    record = json.loads((run / "run.json").read_text())
    record["model"]["name"] = NASTY
    record["notes"] = [NASTY]
    record["deviations"] = [NASTY]
    (run / "run.json").write_text(json.dumps(record))
    return serve(tmp / "runs").url, run, data


def pages(served: tuple[str, Path, Path]) -> list[str]:
    """The addresses of every kind of page."""
    base = f"/r/{served[1].name}/"
    return [
        "/",
        "/s/mine/",
        "/s/mine/t/mine/",
        base,
        f"{base}t/mine/",
        f"{base}t/mine/missed/",
        f"{base}t/mine/n/0/",
        f"{base}t/mine/duplicates/",
        "/nothing/",
    ]


def test_hostile_text_is_text(served: tuple[str, Path, Path]) -> None:
    for path in pages(served):
        for _ in range(50):
            status, headers, content = ask(served[0], path)
            if b"data-waiting" not in content:
                break
        text = content.decode()
        assert status in (200, 404)
        assert headers["content-type"] == "text/html; charset=utf-8"
        assert "alert(1)>" not in text
        assert "<script>" not in text
        for block in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S):
            json.loads(block)
            assert not set(block) & set("<>&")
    shown = ask(served[0], f"/r/{served[1].name}/t/mine/n/0/")[2]
    assert b"&lt;img src=x onerror=alert(1)&gt;" in shown
    assert b"{{ 7 * 7 }}" in shown


def test_headers(served: tuple[str, Path, Path]) -> None:
    for path in (*pages(served), "/static/page.js", "/static/vendor/d3-7.9.2.min.js", "/m/00/00"):
        _, headers, _ = ask(served[0], path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example:1",
        "",
        "127.0.0.2",
        "[::1].x",
    ],
)
def test_other_names_of_this_machine_are_refused(host: str, served: tuple[str, Path, Path]) -> None:
    for path in ("/", "/static/page.js", "/m/00/00"):
        status, _, content = ask(served[0], path, Host=host)
        assert status in (400, 421)
        assert b"OmniRecall" not in content


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1", "[::1]:{port}"])
def test_its_own_names(host: str, served: tuple[str, Path, Path]) -> None:
    assert ask(served[0], "/", Host=host.format(port=urlsplit(served[0]).port))[0] == 200


def test_bound_to_loopback(served: tuple[str, Path, Path]) -> None:
    port = urlsplit(served[0]).port
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            own = probe.getsockname()[0]
        except OSError:
            pytest.skip("this machine has no other address")
    if own.startswith("127."):
        pytest.skip("this machine has no other address")
    with pytest.raises(ConnectionRefusedError), socket.create_connection((own, port), timeout=2):
        pass


@pytest.mark.parametrize(
    "path",
    [
        "/../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/etc/passwd",
        "/static/../pages.py",
        "/static/..%2fpages.py",
        "/static/vendor/../../pages.py",
        "/static//etc/passwd",
        "/static/%00",
        "/m/../../private.txt",
        "/private.txt",
        "/data/private.txt",
        "/r/..%2f..%2f/",
        "/r/../../t/mine/",
        "/r/.%00/t/mine/",
        "/s/%2e%2e/",
        "/\\..\\..\\etc\\passwd",
        "/run.json",
        "/%ff%fe",
        "/" + "a" * 3000,
        "/r/" + "%2e%2e%2f" * 40,
    ],
)
def test_paths_that_lead_elsewhere(path: str, served: tuple[str, Path, Path]) -> None:
    status, _, content = ask(served[0], path)
    assert status in (404, 400), path
    assert b"root:" not in content
    assert b"top secret" not in content
    assert b"import " not in content


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_reads_only(method: str, served: tuple[str, Path, Path]) -> None:
    assert ask(served[0], "/", method)[0] == 405


def test_ranges_of_a_video(served: tuple[str, Path, Path]) -> None:
    path = f"/r/{served[1].name}/t/mine/n/0/"
    for _ in range(100):
        page = ask(served[0], path)[2].decode()
        if "data-waiting" not in page:
            break
    found = re.search(r'<video[^>]* src="(?:\.\./)*([^"]+)"', page)
    assert found is not None
    whole = VIDEOS[0].read_bytes()
    status, headers, content = ask(served[0], f"/{found[1]}")
    assert (status, content) == (200, whole)
    assert headers["accept-ranges"] == "bytes"
    assert headers["content-type"] == f"video/{VIDEOS[0].suffix[1:]}"
    for span, part in (("0-99", whole[:100]), ("100-", whole[100:]), ("-50", whole[-50:])):
        status, headers, content = ask(served[0], f"/{found[1]}", Range=f"bytes={span}")
        assert (status, content) == (206, part)
        assert headers["content-range"].endswith(f"/{len(whole)}")
    assert ask(served[0], f"/{found[1]}", Range=f"bytes={len(whole)}-")[0] == 416


def test_ranges_of_a_cell() -> None:
    from starlette import responses

    from omnirecall.view.pages import Page
    from omnirecall.view.server import _part

    content = bytes(range(100))
    for asked, meant in (
        ("bytes=0-9", (206, content[:10])),
        ("bytes=90-", (206, content[90:])),
        ("bytes=90-1000", (206, content[90:])),
        ("bytes=-5", (206, content[-5:])),
        ("bytes=-500", (206, content)),
        ("", (200, content)),
        ("bytes=1-2,4-5", (200, content)),
        ("bytes=x-y", (200, content)),
        ("lines=1-2", (200, content)),
        ("bytes=100-", (416, b"")),
        ("bytes=9-3", (416, b"")),
        ("bytes=²-", (200, content)),
    ):
        answer = _part(responses, content, Page(kind="video/mp4"), {"range": asked}, {})
        assert (answer.status_code, answer.body) == meant, asked


def test_a_port_that_is_taken(
    served: tuple[str, Path, Path], command: Callable[..., Any], refused: Callable[..., None]
) -> None:
    port = urlsplit(served[0]).port
    refused(command("view", served[1], "--port", port, "--no-browser"), f"--port {port}")


def test_mistakes(tmp_path: Path, command: Callable[..., Any], refused: Callable[..., None]) -> None:
    refused(command("view", tmp_path / "nothing", "--no-browser"), tmp_path / "nothing")
    refused(command("view", tmp_path, "--data", tmp_path / "gone", "--no-browser"), "--data")
    refused(command("view", tmp_path, "--card", tmp_path / "gone.toml", "--no-browser"), "--card")
    refused(command("view"))
