"""The page in a real browser: Chromium without a window, driven by selenium; accessibility by axe-core."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from omnirecall.evaluation import evaluate
from omnirecall.protocol.cards import read_card, shipped_card
from omnirecall.results.record import read_run

sys.path.insert(0, str(Path(__file__).parent.parent))
import miniatures

NASTY = '</p><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'
OWN = ("data:", "blob:", "about:", "chrome:", "chrome-extension:", "devtools:")


@pytest.fixture(scope="module")
def url(starter_runs: Path, serve: Callable[..., Any]) -> str:
    """The address of a server of the starter runs."""
    return str(serve(starter_runs).url)


@pytest.fixture(scope="module")
def keys(starter_runs: Path) -> dict[str, str]:
    """Model to the folder name of its run."""
    return {read_run(path.parent).model.name: path.parent.name for path in starter_runs.rglob("run.json")}


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """The browser, light; after the test its console must be empty and every request must have gone to this machine's server."""
    emulate(browser, "light")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    yield browser
    console = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not console
    asked = [
        message["params"]["request"]["url"]
        for entry in browser.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    assert not [one for one in asked if not one.startswith(("http://127.0.0.1:", *OWN))]
    browser.get("about:blank")


def emulate(browser: Any, scheme: str) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )


def one(tab: Any, selector: str) -> Any:
    """The first element, which must come within ten seconds."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(tab, 10).until(
        lambda driver: next(iter(driver.find_elements(By.CSS_SELECTOR, selector)), None)
    )


def every(tab: Any, selector: str) -> list[Any]:
    from selenium.webdriver.common.by import By

    found: list[Any] = tab.find_elements(By.CSS_SELECTOR, selector)
    return found


def until(tab: Any, script: str, seconds: float = 15) -> None:
    """Wait until a script gives something true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(tab, seconds, 0.1).until(lambda driver: driver.execute_script(f"return {script}"), script)


def visit(tab: Any, address: str) -> None:
    """Open an address, and wait until what another process reads is there and the charts are drawn."""
    tab.get(address)
    until(tab, "document.readyState === 'complete' && !document.querySelector('[data-waiting]')")
    until(tab, "[...document.querySelectorAll('[data-chart]')].every(node => node.querySelector('svg'))")


def column(tab: Any, name: str) -> list[str]:
    """What stands in a column of the first table, from the top, without hidden rows."""
    found: list[str] = tab.execute_script(
        "const table = document.querySelector('table');"
        "const place = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent.trim().startsWith(arguments[0]));"
        "return [...table.tBodies[0].rows].filter(row => !row.hidden).map(row => row.cells[place].textContent.trim());",
        name,
    )
    return found


def press(tab: Any, *sequence: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(tab).send_keys(*sequence).perform()


# --- leaderboard


def test_open_sort_and_groups(tab: Any, url: str) -> None:
    visit(tab, url)
    assert "Leaderboard" in one(tab, "#board-title").text
    assert len(column(tab, "Model")) == 2
    assert one(tab, ".chart svg [aria-label='dot']")
    head = next(node for node in every(tab, "#board thead button.sort") if node.text == "average")
    orders = []
    for _ in range(2):
        head.click()
        orders.append([float(text.split("\n")[0][:4]) for text in column(tab, "average")])
        assert one(tab, "#board th[aria-sort='descending'], #board th[aria-sort='ascending']")
    assert sorted(orders[0], reverse=True) == orders[0] == orders[1][::-1]
    assert orders[0][0] > orders[0][1]
    hidden = "[...document.querySelectorAll('#board thead th')].filter(cell => cell.hidden).length"
    before = tab.execute_script(f"return {hidden}")
    one(tab, "#board button.open[aria-expanded='false']").click()
    assert tab.execute_script(f"return {hidden}") < before
    one(tab, "#board button.open[aria-expanded='true']").click()  # the average: closes all below
    assert tab.execute_script(f"return {hidden}") > before


def test_published_rows(tab: Any, tmp_path: Path, serve: Callable[..., Any]) -> None:
    suite = read_card(shipped_card("uvrb"))
    miniatures.write(tmp_path / "data", suite.tasks)
    evaluate("random:8", suite, data=tmp_path / "data", out=tmp_path / "runs", on_missing="skip")
    visit(tab, serve(tmp_path / "runs").url)
    assert column(tab, "Model")[0].startswith("random:8")
    assert len(column(tab, "Model")) == 1
    one(tab, "#published").click()
    names = column(tab, "Model")
    assert len(names) > 5
    assert any(name.startswith("CLIP4Clip") for name in names)
    assert "arXiv 2510.27571" in one(tab, "tr.published .note").text
    assert not axe(tab)


# --- a task and its queries


def test_a_task(tab: Any, url: str) -> None:
    visit(tab, f"{url}s/starter/t/text-to-image,video,audio/")
    kinds = tab.execute_script(
        "return [...document.querySelectorAll('[data-chart]')].map(node => node.querySelectorAll('svg rect, svg path').length)"
    )
    assert len(kinds) == 6
    assert all(kinds)
    assert {node.text for node in every(tab, "h2")} >= {
        "Rank of the first relevant candidate",
        "Recall at every k",
        "Ties",
        "Inside this task, by direction",
    }


def test_filter_search_and_links(tab: Any, url: str, keys: dict[str, str]) -> None:
    visit(tab, url)
    one(tab, f"#board tbody a[href*='{keys['random:16']}']").click()
    one(tab, "table a[href*='/t/text-to-image/']")
    next(node for node in every(tab, "td a") if node.text == "queries").click()
    until(tab, "document.querySelectorAll('article').length === 10")
    next(node for node in every(tab, ".tabs a") if node.text.startswith("Missed")).click()
    until(tab, "location.pathname.endsWith('/missed/') && !document.querySelector('[data-waiting]')")
    box = one(tab, "input[name='q']")
    box.send_keys("Clock")
    box.submit()
    until(tab, "location.search.includes('q=Clock') && document.querySelectorAll('article .query .text').length > 0")
    assert all("clock" in node.text.lower() for node in every(tab, "article .query .text"))
    here = tab.current_url
    heading = one(tab, "article h2 a")
    name = heading.text
    heading.click()
    until(tab, "location.pathname.includes('/n/')")
    assert name in one(tab, "h1").text
    there = tab.current_url
    visit(tab, here)
    assert one(tab, "article h2 a").text == name
    visit(tab, there)
    assert name in one(tab, "h1").text


def test_two_runs(tab: Any, url: str, keys: dict[str, str]) -> None:
    from selenium.webdriver.support.ui import Select

    visit(tab, f"{url}r/{keys['random:16']}/t/text-to-video/")
    choice = Select(one(tab, "select[name='vs']"))
    choice.select_by_value(keys["constant:8"])
    one(tab, ".filter button").click()
    until(tab, "location.search.includes('vs=') || location.pathname.includes('/vs/')")
    assert [node.text.split()[0] for node in every(tab, "article:first-of-type .answer .who")] == [
        "random:16",
        "constant:8",
    ]
    next(node for node in every(tab, ".tabs a") if node.text.startswith("Better here")).click()
    until(tab, "location.pathname.endsWith('/better/')")
    one(tab, "article h2 a").click()
    until(tab, "document.querySelectorAll('.side-by-side .answer').length === 2")
    assert one(tab, ".side-by-side .ranked.relevant .rank").text == "1"


def played(tab: Any, selector: str) -> None:
    until(tab, f"document.querySelector({selector!r}).currentTime > 0.15", 20)
    assert tab.execute_script(f"return document.querySelector({selector!r}).error") is None


def test_a_video_plays_beside_its_frames(tab: Any, url: str, keys: dict[str, str]) -> None:
    visit(tab, f"{url}r/{keys['random:16']}/t/video-to-text/n/0/")
    tab.execute_script(
        "document.querySelector('.query video').muted = true; document.querySelector('.query video').play()"
    )
    played(tab, ".query video")
    until(tab, "document.querySelectorAll('.query .strip img').length === 8")
    until(
        tab,
        "[...document.querySelectorAll('.query .strip img')].every(image => image.complete && image.naturalWidth > 0)",
    )
    assert "8 of" in one(tab, ".query .strip").text


def test_a_video_in_a_list_plays(tab: Any, url: str, keys: dict[str, str]) -> None:
    visit(tab, f"{url}r/{keys['random:16']}/t/text-to-video/n/0/")
    tab.execute_script("for (const video of document.querySelectorAll('video')) video.muted = true")
    one(tab, ".ranked button.start").click()
    played(tab, ".ranked video")


def test_a_sound_plays(tab: Any, url: str, keys: dict[str, str]) -> None:
    visit(tab, f"{url}r/{keys['random:16']}/t/speech-to-text/n/0/")
    tab.execute_script(
        "document.querySelector('.query audio').muted = true; document.querySelector('.query audio').play()"
    )
    played(tab, ".query audio")


def test_pictures_are_there(tab: Any, url: str, keys: dict[str, str]) -> None:
    visit(tab, f"{url}r/{keys['random:16']}/t/text-to-image/n/0/")
    until(
        tab,
        "[...document.querySelectorAll('img')].filter(image => image.complete && image.naturalWidth > 0).length >= 11",
    )


def test_false_negatives(tab: Any, url: str, keys: dict[str, str]) -> None:
    visit(tab, f"{url}r/{keys['random:16']}/t/image-to-text/duplicates/")
    assert "false negatives" in one(tab, "h1").text


# --- themes and keys


def test_dark_and_light(tab: Any, url: str) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    visit(tab, url)
    light = tab.execute_script(f"return {ground}")
    emulate(tab, "dark")
    dark = tab.execute_script(f"return {ground}")
    assert light != dark
    one(tab, "#theme").click()
    assert tab.execute_script(f"return {ground}") == light
    tab.refresh()
    assert tab.execute_script(f"return {ground}") == light
    emulate(tab, "light")
    one(tab, "#theme").click()
    assert tab.execute_script(f"return {ground}") == dark
    tab.execute_script("localStorage.clear()")
    tab.refresh()
    assert tab.execute_script(f"return {ground}") == light


def test_keys(tab: Any, url: str, keys: dict[str, str]) -> None:
    from selenium.webdriver.common.keys import Keys

    visit(tab, url)
    press(tab, Keys.TAB)
    assert tab.switch_to.active_element.text == "Skip to the content"
    press(tab, Keys.ENTER)
    until(tab, "document.activeElement.id === 'content'")
    sorts = one(tab, "#board button.sort")
    tab.execute_script("arguments[0].focus()", sorts)
    press(tab, Keys.SPACE)
    assert one(tab, "#board th").get_attribute("aria-sort") in ("ascending", "descending")
    visit(tab, f"{url}r/{keys['random:16']}/t/text-to-video/n/0/")
    first = one(tab, "h1").text
    press(tab, "j")
    until(tab, f"document.querySelector('h1') && document.querySelector('h1').textContent.trim() !== {first!r}")
    press(tab, "k")
    until(tab, f"document.querySelector('h1') && document.querySelector('h1').textContent.trim() === {first!r}")


# --- accessibility


def axe(tab: Any) -> list[tuple[str, str]]:
    """Serious and critical faults: (rule, the first element with it)."""
    tab.execute_script(resources.files("axe_core_python").joinpath("axe.min.js").read_text())
    found = tab.execute_async_script("const done = arguments[arguments.length - 1]; axe.run().then(done)")
    assert found["passes"]
    return [
        (fault["id"], fault["nodes"][0]["html"][:200] + fault["nodes"][0]["failureSummary"])
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault(scheme: str, tab: Any, url: str, keys: dict[str, str]) -> None:
    emulate(tab, scheme)
    one_, two = keys["random:16"], keys["constant:8"]
    for path in (
        "",
        "s/starter/t/text-to-image,video,audio/",
        f"r/{one_}/",
        f"r/{one_}/t/video-to-text/vs/{two}/",
        f"r/{one_}/t/text-to-speech/n/0/vs/{two}/",
        f"r/{one_}/t/text-to-video/n/0/",
        f"r/{one_}/t/text-to-image/duplicates/",
    ):
        visit(tab, url + path)
        assert not axe(tab), path


# --- hostile text, and the static copy


def test_hostile_text_does_nothing(
    tab: Any, tmp_path: Path, own_data: Callable[..., Path], serve: Callable[..., Any]
) -> None:
    data = own_data(
        tmp_path / "data",
        queries=[{"id": f"q{NASTY}", "text": NASTY, "instruction": NASTY}],
        candidates=[{"id": f"c{NASTY}", "text": NASTY}, {"id": "d", "text": "d"}],
        qrels=[(f"q{NASTY}", "d", 1)],
    )
    run = Path(evaluate("random:8", data, out=tmp_path / "runs").folder)
    record = json.loads((run / "run.json").read_text())
    record["model"]["name"] = NASTY
    (run / "run.json").write_text(json.dumps(record))
    url = serve(tmp_path / "runs").url
    for path in ("", "s/mine/t/mine/", f"r/{run.name}/", f"r/{run.name}/t/mine/", f"r/{run.name}/t/mine/n/0/"):
        visit(tab, url + path)
        assert tab.title != "owned"
        assert NASTY in tab.execute_script("return document.body.textContent")
        assert not every(tab, "img[src='x']")


def test_static_copy_in_the_browser(tab: Any, starter_runs: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    run = next(
        path.parent for path in starter_runs.rglob("run.json") if read_run(path.parent).model.name == "random:16"
    )
    run = Path(shutil.copytree(run, tmp_path / "runs" / run.name))
    record = json.loads((run / "run.json").read_text())
    record["tasks"] = {
        name: task for name, task in record["tasks"].items() if name in ("video-to-text", "text-to-text")
    }
    (run / "run.json").write_text(json.dumps(record))
    said = command("view", run, "--export", tmp_path / "below" / "copy", "--export-queries", 2, "--json")
    assert said.code == 0, said.err
    handler = functools.partial(Quiet, directory=str(tmp_path / "below"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            visit(tab, f"http://127.0.0.1:{server.server_address[1]}/copy/")
            next(node for node in every(tab, "a.to-task") if node.is_displayed()).click()
            until(tab, "document.querySelectorAll('.chart svg').length >= 4")
            visit(tab, f"http://127.0.0.1:{server.server_address[1]}/copy/r/{run.name}/t/video-to-text/")
            until(tab, "document.querySelectorAll('.query .strip img').length === 16")
            one(tab, "article h2 a").click()
            tab.execute_script(
                "document.querySelector('.query video').muted = true; document.querySelector('.query video').play()"
            )
            played(tab, ".query video")
        finally:
            server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A plain web server that writes no log."""

    def log_message(self, *_: object) -> None:
        pass
