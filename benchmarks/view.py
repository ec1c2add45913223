"""The page of a run with 50,000 queries: seconds to each page and the most memory that the server takes.

    python benchmarks/view.py               two runs of 50,000 queries over a pool of 20,000, made in a folder of its own
    python benchmarks/view.py --runs RUNS   runs of your own

Each page is asked for twice by one client, over the loopback: the first time nothing of it has been read. "whole" says whether the
page had its items, or promised them for when they are read. The last line is what the server's process took at most; the processes
that read items and compare media are not in it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "view"))


def main() -> None:
    """Make the runs, start the server, ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path)
    chosen = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        runs = chosen or _large(Path(folder))
        command = [sys.executable, "-m", "omnirecall", "view", str(runs), "--no-browser", "--port", "0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                _ask(server, [path.parent.name for path in sorted(runs.rglob("run.json"))], runs)
            finally:
                server.terminate()


def _large(folder: Path) -> Path:
    from test_large import write_large

    for seed in (1, 2):
        write_large(folder, seed)
    return folder / "runs"


def _ask(server: subprocess.Popen[str], names: list[str], runs: Path) -> None:
    assert server.stdout is not None
    said = ""
    while not said.endswith("}\n"):
        said += server.stdout.readline()
    address = urlsplit(json.loads(said)["url"]).netloc
    record = json.loads(next(path for path in runs.rglob("run.json") if path.parent.name == names[0]).read_text())
    task = next(iter(record["tasks"]))
    base = f"/r/{names[0]}/t/{task}/"
    pages = [
        base,
        "/",
        f"/s/{record['suite']}/t/{task}/",
        f"{base}missed/",
        f"{base}?q=amber+cloud",
        f"{base}?sort=id",
        f"{base}n/0/",
    ]
    pages += [f"{base}vs/{names[1]}/", f"{base}vs/{names[1]}/differs/"] if len(names) > 1 else []
    print(f"{'first s':>8} {'again s':>8} {'KiB':>6}  whole  page")
    for page in pages:
        first, size, whole = _timed(address, page)
        again, _, _ = _timed(address, page)
        print(f"{first:8.3f} {again:8.3f} {size / 1024:6.0f}  {'yes' if whole else 'no':<5}  {page}")
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            print(f"most memory of the server: {int(line.split()[1]) / 1024:.0f} MiB")


def _timed(address: str, page: str) -> tuple[float, int, bool]:
    connection = http.client.HTTPConnection(address, timeout=120)
    start = time.perf_counter()
    connection.request("GET", page)
    answer = connection.getresponse()
    content = answer.read()
    seconds = time.perf_counter() - start
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{page}: {answer.status}")
    return seconds, len(content), b"data-waiting" not in content


if __name__ == "__main__":
    main()
