"""Exact ranks against what else could be used, side by side in one process, in turn.

    python benchmarks/ranking.py                              every size, data and peer that is installed
    python benchmarks/ranking.py --size main --data a --peers ours,faiss.knn,product-float32 --repeat 7
    python benchmarks/ranking.py --size main --memory         extra peak memory, each peer in a process of its own

Sizes: main 2,000 x 100,000 x 512; large 10,000 x 100,000 x 768; pools 1,000 queries with 1,000 candidates each out of
200,000 x 512; stream 1,000 x 2,000,000 x 256 from a memory map; curve 1,000 x 25,000 to 200,000 x 512.
Data: (a) positives near the top, as a good model has them; (b) random positives; (c) a narrow cone, mean cosine 0.9,
positives near the top; (d) one constant vector. Every time includes hit@1, recall@5, recall@10, ndcg@10 and MRR.
A ratio is a peer's time over that of `ours` in the same round; the table gives its median, least and most. Products
have no measures to give: they are the floor. Peers that are not installed are named and left out.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omnirecall.ranking import BFloat16, Ranks, rank

Array = npt.NDArray[Any]
SIZES = {
    "main": (2_000, 100_000, 512),
    "large": (10_000, 100_000, 768),
    "pools": (1_000, 200_000, 512),
    "stream": (1_000, 2_000_000, 256),
    "curve": (1_000, 200_000, 512),
}
POOL = 1_000
BLOCK = 4_096


@dataclass
class Case:
    """Normalised float32 vectors, one positive per query, and a pool per query where the size has them."""

    queries: Array
    candidates: Array
    positives: Array
    pool: Array | None = None
    bits: tuple[BFloat16, BFloat16] | None = None

    def small(self) -> Case:
        """A few queries, and 5,000 candidates where the pool is shared: enough to load and set up whatever it takes."""
        n, m = (8, len(self.candidates)) if self.pool is not None else (64, 5_000)
        bits = None
        if self.bits is not None:
            bits = (BFloat16(self.bits[0].bits[:n]), BFloat16(self.bits[1].bits[:m]))
        pool = None if self.pool is None else self.pool[:n]
        return Case(self.queries[:n], self.candidates[:m], self.positives[:n] % m, pool, bits)


def make(size: str, data: str, folder: Path, candidates: int | None = None) -> Case:
    """A case from a fixed seed; the candidates of `stream` lie in a file."""
    n, m, d = SIZES[size]
    m = candidates or m
    rng = np.random.default_rng(0)
    table: Any
    if size == "stream":
        table = np.lib.format.open_memmap(folder / "candidates.npy", "w+", np.float32, (m, d))
    else:
        table = np.empty((m, d), np.float32)
    axis = rng.standard_normal(d, dtype=np.float32)
    near, far = np.float32(0.9**0.5), np.float32(0.1**0.5)
    for start in range(0, m, 50_000):
        part = rng.standard_normal((min(50_000, m - start), d), dtype=np.float32)
        if data == "c":
            part = near * axis + far * part
        table[start : start + len(part)] = normal(part) if data != "d" else normal(axis[None])
    positives = rng.choice(m, n, replace=False)
    noise = rng.standard_normal((n, d), dtype=np.float32)
    if data == "a":
        queries = normal(normal(table[positives]) + normal(noise))
    elif data == "b":
        queries = normal(noise)
    elif data == "c":
        own = normal(table[positives] - near * normal(axis[None]))
        queries = normal(near * normal(axis[None]) + far * normal(own + normal(noise)))
    else:
        queries = np.repeat(normal(axis[None]), n, axis=0)
    case = Case(queries, table, positives)
    if size == "pools":
        case.pool = np.array([rng.choice(m, POOL, replace=False) for _ in range(n)])
        case.pool[:, 0] = positives
        for row in case.pool:
            twice = np.flatnonzero(row[1:] == row[0]) + 1
            row[twice] = (row[twice] + 1) % m if len(np.unique(row)) == POOL else next(_unused(row, m))
    if size == "stream":
        table.flush()
        case.candidates = np.load(folder / "candidates.npy", mmap_mode="r")
    else:
        bits = [BFloat16((x.view(np.uint32) >> 16).astype(np.uint16)) for x in (queries, table)]
        case.bits = (bits[0], bits[1])
    return case


def _unused(row: Array, m: int) -> Iterator[int]:
    taken = set(row.tolist())
    return (i for i in range(m) if i not in taken)


def normal(x: Array) -> Array:
    """Rows over their norms."""
    scaled: Array = x / np.linalg.norm(x, axis=1, keepdims=True)
    return scaled


def measures_of_places(place: Array) -> dict[str, float]:
    """The five measures from each query's place of its one relevant candidate (0 is best; large where not found)."""
    return {
        "hit@1": float((place < 1).mean()),
        "recall@5": float((place < 5).mean()),
        "recall@10": float((place < 10).mean()),
        "ndcg@10": float(np.where(place < 10, 1 / np.log2(place + 2.0), 0.0).mean()),
        "mrr": float((1 / (place + 1.0)).mean()),
    }


def from_ranks(ranks: Ranks) -> dict[str, float]:
    """Measures from counts; the middle of a tied group stands for it here."""
    return measures_of_places(ranks.greater + ranks.tied / 2)


def from_lists(case: Case, ids: Array) -> dict[str, float]:
    """Measures from top-k lists."""
    hit = ids == case.positives[:, None]
    return measures_of_places(np.where(hit.any(axis=1), hit.argmax(axis=1), 10**9))


def lists(case: Case) -> list[list[int]]:
    """Positives as `rank` takes them."""
    return [[int(p)] for p in case.positives]


def ours(case: Case) -> dict[str, float]:
    """What this project gives as it comes: top 10 listed too."""
    return from_ranks(rank(case.queries, case.candidates, lists(case), pool=_pool(case)))


def ours_measures(case: Case) -> dict[str, float]:
    """The same, counts alone: no list of the best."""
    return from_ranks(rank(case.queries, case.candidates, lists(case), pool=_pool(case), top_k=0))


def ours_numpy(case: Case) -> dict[str, float]:
    """The same without torch."""
    return from_ranks(rank(case.queries, case.candidates, lists(case), pool=_pool(case), device="numpy"))


def ours_bfloat16(case: Case) -> dict[str, float]:
    """The same on bfloat16 vectors."""
    assert case.bits is not None
    return from_ranks(rank(case.bits[0], case.bits[1], lists(case), pool=_pool(case)))


def _pool(case: Case) -> Any:
    if case.pool is None:
        return None
    return np.arange(0, case.pool.size + 1, POOL), case.pool.ravel()


def faiss_knn(case: Case) -> dict[str, float]:
    """Call faiss.knn, k = 100."""
    import faiss

    _, ids = faiss.knn(case.queries, np.asarray(case.candidates), 100, metric=faiss.METRIC_INNER_PRODUCT)
    return from_lists(case, ids)


def faiss_flat(case: Case) -> dict[str, float]:
    """Use faiss IndexFlatIP, k = 100; filling the index counts."""
    import faiss

    index = faiss.IndexFlatIP(case.candidates.shape[1])
    index.add(np.asarray(case.candidates))
    return from_lists(case, index.search(case.queries, 100)[1])


def torch_topk(case: Case) -> dict[str, float]:
    """Multiply by blocks in torch, topk of each block and of the blocks' best."""
    import torch

    q = torch.from_numpy(case.queries)
    best, ids = [], []
    for start in range(0, len(case.candidates), 20_000):
        scores = q @ torch.from_numpy(np.asarray(case.candidates[start : start + 20_000])).T
        values, places = scores.topk(100)
        best.append(values)
        ids.append(places + start)
    order = torch.cat(best, 1).topk(100).indices
    return from_lists(case, torch.cat(ids, 1).gather(1, order).numpy())


def numpy_partition(case: Case) -> dict[str, float]:
    """Multiply by blocks in numpy, argpartition of each block, a sort at the end."""
    best, ids = [], []
    for start in range(0, len(case.candidates), 20_000):
        scores = case.queries @ case.candidates[start : start + 20_000].T
        places = np.argpartition(-scores, 100, axis=1)[:, :100]
        best.append(np.take_along_axis(scores, places, 1))
        ids.append(places + start)
    order = np.argsort(-np.concatenate(best, 1), axis=1)[:, :100]
    return from_lists(case, np.take_along_axis(np.concatenate(ids, 1), order, 1))


def numpy_argsort(case: Case) -> dict[str, float]:
    """Sort, with numpy, the rows of the full matrix, as some evaluation scripts do; a few queries at a time to fit memory."""
    ids = []
    for start in range(0, len(case.queries), 500):
        ids.append(np.argsort(-(case.queries[start : start + 500] @ case.candidates.T), axis=1)[:, :100])
    return from_lists(case, np.concatenate(ids))


def usearch_exact(case: Case) -> dict[str, float]:
    """Call usearch, exact search, k = 100."""
    from usearch import index

    found: Any = index.search(np.asarray(case.candidates), case.queries, 100, index.MetricKind.IP, exact=True)  # type: ignore[attr-defined, unused-ignore]
    return from_lists(case, np.asarray(found.keys).reshape(len(case.queries), -1).astype(np.int64))


class _Corpus:
    """As much of a dataset as mteb's search asks of its corpus."""

    def __init__(self, rows: range) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> list[str]:
        return [str(row) for row in self.rows]

    def select(self, rows: range) -> _Corpus:
        """Some rows."""
        return _Corpus(self.rows[rows.start : rows.stop])


def mteb_search(case: Case) -> dict[str, float]:
    """Search and scoring as mteb does them (chunks, top 1000 heaps, pytrec_eval), on vectors that are ready."""
    import torch
    from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores
    from mteb.models import search_wrappers as module

    search_wrappers: Any = module

    loader, search_wrappers.create_dataloader = search_wrappers.create_dataloader, lambda corpus, **_: corpus
    try:
        heaps = search_wrappers.chunked_full_corpus_search(
            task_corpus=_Corpus(range(len(case.candidates))),
            corpus_chunk_size=50_000,
            query_idx_to_id={i: str(i) for i in range(len(case.queries))},
            query_embeddings=torch.from_numpy(case.queries),
            task_metadata=None,
            hf_subset="",
            hf_split="",
            top_k=1000,
            encode_kwargs={"show_progress_bar": False},
            encode_fn=lambda corpus, **_: torch.from_numpy(case.candidates[corpus.rows.start : corpus.rows.stop]),
            similarity_fn=lambda q, c: q @ c.T,
            search_k_offset=1,
        )
    finally:
        search_wrappers.create_dataloader = loader
    results = {query: {row: score for score, row in heap} for query, heap in heaps.items()}
    relevant = {str(i): {str(row): 1} for i, row in enumerate(case.positives.tolist())}
    scores = calculate_retrieval_scores(results, relevant, [1, 5, 10])
    return {
        "hit@1": scores.recall["Recall@1"],
        "recall@5": scores.recall["Recall@5"],
        "recall@10": scores.recall["Recall@10"],
        "ndcg@10": scores.ndcg["NDCG@10"],
        "mrr": scores.mrr["MRR@10"],
    }


def numpy_pools(case: Case) -> dict[str, float]:
    """Gather each pool, product, sort."""
    assert case.pool is not None
    ids = np.empty((len(case.queries), 100), np.int64)
    for i, pool in enumerate(case.pool):
        scores = case.candidates[pool] @ case.queries[i]
        ids[i] = pool[np.argsort(-scores)[:100]]
    return from_lists(case, ids)


def torch_pools(case: Case) -> dict[str, float]:
    """Gather each pool, product, topk in torch."""
    import torch

    assert case.pool is not None
    table, queries, pools = (torch.from_numpy(x) for x in (np.asarray(case.candidates), case.queries, case.pool))
    ids = np.empty((len(queries), 100), np.int64)
    for i, pool in enumerate(pools):
        ids[i] = pool[torch.mv(table.index_select(0, pool), queries[i]).topk(100).indices].numpy()
    return from_lists(case, ids)


def product_float32(case: Case) -> None:
    """The bare float32 product by numpy, into one buffer."""
    out = np.empty((BLOCK, len(case.queries)), np.float32)
    for start in range(0, len(case.candidates), BLOCK):
        part = case.candidates[start : start + BLOCK]
        np.matmul(part, case.queries.T, out=out[: len(part)])


def product_bfloat16(case: Case) -> None:
    """The bare bfloat16 product by torch, of bfloat16 vectors that are ready, into one buffer."""
    import torch

    assert case.bits is not None
    q, c = (torch.from_numpy(x.bits.view(np.int16)).view(torch.bfloat16) for x in case.bits)
    out = torch.empty((BLOCK, len(q)), dtype=torch.bfloat16)
    for start in range(0, len(c), BLOCK):
        part = c[start : start + BLOCK]
        torch.mm(part, q.T, out=out[: len(part)])


def product_int8(case: Case) -> None:
    """The bare int8 product by torch, of int8 vectors that are ready (here: zeros)."""
    import torch

    q = torch.zeros(case.queries.shape, dtype=torch.int8)
    c = torch.zeros((BLOCK, case.queries.shape[1]), dtype=torch.int8)
    for _ in range(0, len(case.candidates), BLOCK):
        torch._int_mm(c, q.T)


Peer = Callable[[Case], Any]
WHOLE: dict[str, Peer] = {
    "ours": ours,
    "ours-measures": ours_measures,
    "ours-numpy": ours_numpy,
    "ours-bfloat16": ours_bfloat16,
    "faiss.knn": faiss_knn,
    "faiss-flat": faiss_flat,
    "torch-topk": torch_topk,
    "numpy-partition": numpy_partition,
    "numpy-argsort": numpy_argsort,
    "usearch": usearch_exact,
    "mteb": mteb_search,
    "product-float32": product_float32,
    "product-bfloat16": product_bfloat16,
    "product-int8": product_int8,
}
POOLS: dict[str, Peer] = {
    "ours": ours,
    "ours-measures": ours_measures,
    "ours-bfloat16": ours_bfloat16,
    "numpy": numpy_pools,
    "torch": torch_pools,
}
STREAM = ("ours", "ours-measures", "ours-numpy", "faiss.knn", "torch-topk", "numpy-partition", "product-float32")
SLOW = ("usearch", "numpy-argsort", "mteb", "numpy-partition")


def peers_of(size: str, wanted: list[str] | None) -> dict[str, Peer]:
    """The peers that a size has, or those of them that were asked for."""
    peers = POOLS if size == "pools" else {k: v for k, v in WHOLE.items() if size != "stream" or k in STREAM}
    if size == "large":
        peers = {k: v for k, v in peers.items() if k not in SLOW}
    return {k: v for k, v in peers.items() if not wanted or k in wanted}


def timed(peer: Peer, case: Case) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    peer(case)
    return time.perf_counter() - begin


def compare(size: str, data: str, peers: dict[str, Peer], repeat: int, folder: Path) -> None:
    """Print the table of one size and kind of data."""
    case = make(size, data, folder)
    warm = case.small()
    found: dict[str, Any] = {}
    for name, peer in list(peers.items()):
        try:
            peer(warm)
        except ImportError as error:
            print(f"  {name}: left out ({error})")
            del peers[name]
    times: dict[str, list[float]] = {name: [] for name in peers}
    for turn in range(repeat):
        for name, peer in peers.items():
            if name in SLOW and turn >= 2:
                continue
            begin = time.perf_counter()
            found[name] = peer(case)
            times[name].append(time.perf_counter() - begin)
    shape = " x ".join(f"{x:,}" for x in (*case.candidates.shape[::-1], len(case.queries))[::-1])
    print(f"\n{size} ({data}): {shape}")
    print(
        f"  {'peer':18} {'seconds':>9} {'over ours':>10} {'least':>7} {'most':>7}   hit@1 recall@5 recall@10 ndcg@10 mrr"
    )
    base = times.get("ours") or next(iter(times.values()))
    for name, taken in times.items():
        ratios = [t / b for t, b in zip(taken, base, strict=False)]
        values = "  ".join(f"{x:.4f}" for x in found[name].values()) if found[name] else ""
        middle = statistics.median(ratios)
        print(
            f"  {name:18} {statistics.median(taken):9.3f} {middle:10.2f} {min(ratios):7.2f} {max(ratios):7.2f}   {values}",
            flush=True,
        )


def curve(data: str, repeat: int, folder: Path) -> None:
    """Time over three doublings of the candidates: a doubling should double it."""
    print(f"\ncurve ({data}): 1,000 queries, 512 dimensions")
    rows = [25_000, 50_000, 100_000, 200_000]
    cases = [make("curve", data, folder, m) for m in rows]
    ours(cases[0])
    taken = [[timed(ours, case) for case in cases] for _ in range(repeat)]
    before = None
    for i, m in enumerate(rows):
        middle = statistics.median(turn[i] for turn in taken)
        grown = "" if before is None else f"  {middle / before:.2f} times the half"
        print(f"  {m:>8,} candidates {middle:8.3f} s  {middle / m * 1e6:6.2f} us per candidate{grown}", flush=True)
        before = middle


def peak_memory(size: str, data: str, name: str, folder: Path) -> None:
    """Print the peer's extra peak memory over a warm-up call, in MB (Linux: the high-water mark is reset)."""
    case = make(size, data, folder)
    peer = peers_of(size, [name])[name]
    peer(case.small())
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    peer(case)
    print(f"  {size} ({data}) {name:18} {(_status('VmHWM') - before) / 1024:8.1f} MB extra", flush=True)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), action="append")
    parser.add_argument("--data", default="abcd", help="any of the letters a, b, c, d")
    parser.add_argument("--peers", help="names, comma-separated")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    wanted = chosen.peers.split(",") if chosen.peers else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if chosen.one:
            peak_memory(chosen.size[0], chosen.data, chosen.one, folder)
            return
        print(
            f"python {platform.python_version()}, numpy {np.__version__}, {cores} cores, load {os.getloadavg()[0]:.1f}"
        )
        for size in chosen.size or list(SIZES):
            for data in chosen.data if size in ("main", "pools") else chosen.data[:1]:
                if chosen.memory:
                    for peer in peers_of(size, wanted):
                        command = [sys.executable, __file__, "--size", size, "--data", data, "--one", peer]
                        subprocess.run(command, check=False)
                elif size == "curve":
                    curve(data, chosen.repeat, folder)
                else:
                    compare(size, data, peers_of(size, wanted), chosen.repeat, folder)


if __name__ == "__main__":
    main()
