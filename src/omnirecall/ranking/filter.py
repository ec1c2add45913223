"""Fast products that decide most comparisons, each with a certified bound on its error.

Let q be a query's unit vector and c a candidate's vector over its norm (cosine), or over the largest norm of its
block (dot product), so |q| = 1 and |c| <= 1. A fixed vector m, about the mean of c, is taken out of the candidates:
q.c = q.m + q.(c - m); q.m is one float64 number per query, and real embeddings, which crowd in a cone, leave a
short c - m. A product works on rounded copies q' of q and c' of c - m. Then (Cauchy-Schwarz)

    |q.(c - m) - q'.c'| = |q.(c - m - c') + (q - q').c'| <= |c - m - c'| + |q - q'| |c'|,

with both residuals measured on the vectors at hand, not assumed. The product itself adds at most gamma(d) |q'| |c'|,
gamma(d) = d u / (1 - d u), whatever the order of its sums and whether or not it fuses multiply and add (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1); int8 products summed in int32 add nothing.
u is 2^-53, 2^-24, and 2^-22 where accelerators accumulate, as these may truncate (Fasi, Higham, Mikaitis and
Pranesh, Numerical behavior of NVIDIA tensor cores, 2021). A result rounded to bfloat16 costs nothing: rounding is
monotone, so a comparison with a number that bfloat16 can hold has the same outcome before and after it.
To this comes what preparing c - m in float32 costs (`preparation_error`) and `exact.definition_error`.

The products, coarsest first: int8 and bfloat16 through torch on processors that have them, float32 and float64
through numpy; bfloat16 and float64 through torch on another device, whose results are counted here.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from omnirecall.ranking import exact
from omnirecall.ranking.inputs import Array, Floats, Ints, RankingError

U64, U32, U16 = 2.0**-53, 2.0**-24, 2.0**-9
U_DEVICE = 2.0**-22
TINY = 1e-30  # covers what underflows in float32
_FARTHEST = 1e38  # beyond any score, short of the mark of a pair that is left out
_CHUNK = 1024
_FAR = 1.2  # below this bound on |c - m|, measuring it is not worth a pass
_WORTH_A_TRY = 3e9  # multiplications: below, float32 is done before torch has begun
_WORTH_LOADING = 2e12


def gamma(n: int, u: float) -> float:
    """Higham's bound on n accumulated roundings of size u; infinite where it says nothing."""
    return n * u / (1 - n * u) if n * u < 0.5 else np.inf


@dataclass
class Queries:
    """Unit query rows and what the products need of them. `rows` is what was stored, float32 or float64 (n, d)."""

    rows: Array
    norms: Floats

    def unit(self, start: int, stop: int) -> Floats:
        """Rows start to stop over their norms, float64; a zero row stays zero."""
        scale = np.where(self.norms[start:stop] > 0, self.norms[start:stop], 1.0)
        return self.rows[start:stop] / scale[:, None]

    def chunks(self) -> Iterator[tuple[slice, Floats]]:
        """The unit rows in pieces, to bound memory."""
        for start in range(0, len(self.rows), _CHUNK):
            stop = min(start + _CHUNK, len(self.rows))
            yield slice(start, stop), self.unit(start, stop)

    def dot(self, vector: Floats) -> Floats:
        """q.m for every query."""
        out = np.zeros(len(self.rows))
        for part, unit in self.chunks():
            out[part] = exact.pair_dots(unit, vector[None])
        return out


@dataclass
class Block:
    """Some candidate rows at work.

    `ids` (b,): their row numbers, rising. `rows` (b, d): as stored, float32 or float64. `inverse` (b,): one over each
    row's norm under cosine, one over `unit` else; float64 where some norm does not suit float32 arithmetic.
    `unit`: 1 under cosine, else at least the largest norm in the block.
    """

    ids: Ints
    rows: Array
    inverse: Array
    unit: float
    cosine: bool
    prepared: dict[str, Any] = field(default_factory=dict)

    def pick(self, where: Ints) -> Block:
        """The block of the rows at `where` alone."""
        return Block(self.ids[where], self.rows[where], self.inverse[where], self.unit, self.cosine)

    def like(self, other: Block) -> bool:
        """Whether both can be joined."""
        return self.unit == other.unit and self.inverse.dtype == other.inverse.dtype

    @staticmethod
    def join(blocks: list[Block]) -> Block:
        """One block of several that are alike, in the order given."""
        ids, rows, inverse = (
            np.concatenate(x) for x in zip(*((b.ids, b.rows, b.inverse) for b in blocks), strict=True)
        )
        return Block(ids, rows, inverse, blocks[0].unit, blocks[0].cosine)


@dataclass(frozen=True)
class Center:
    """The vector m, float64 (d,), its norm, and q.m of every query (n,)."""

    vector: Floats
    norm: float
    dots: Floats

    def over(self, unit: float) -> Center:
        """The same in a block's unit; zero where that makes it long, as it then helps no more and costs precision."""
        if self.norm > 2 * unit:
            return Center(np.zeros_like(self.vector), 0.0, np.zeros_like(self.dots))
        return Center(self.vector / unit, self.norm / unit, self.dots / unit)


class Product(Protocol):
    """One way to multiply. `scores` returns a (b, n) array; times `unit` it is q'.c', within `error` of q.(c - m)."""

    name: str
    coarse: bool  # whether what it leaves open is worth a float32 score before the exact one
    lowest: Any  # marks a pair that is left out: below every threshold

    def prepare(self, block: Block) -> Any:
        """The rounded copy of a block's candidates, with its bounds."""
        ...

    def scores(self, ready: Any, queries: Ints | slice, scratch: Scratch) -> Array:
        """Products of all prepared candidates with the queries named; valid until `scratch` is used again."""
        ...

    def unit(self, queries: Ints | slice) -> Floats:
        """What one step of the result is worth, per query."""
        ...

    def error(self, ready: Any, queries: Ints | slice) -> Floats:
        """The certified bound, per query."""
        ...

    def at_most(self, x: Floats) -> Array:
        """The largest value a result can hold that is not above x."""
        ...

    def at_least(self, x: Floats) -> Array:
        """The smallest value a result can hold that is not below x."""
        ...

    def values(self, scores: Array) -> Floats:
        """Results as numbers."""
        ...


class Scratch:
    """Buffers that a worker uses again and again: fresh memory costs more than filling it."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, Any], Any] = {}

    def numpy(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised array of this shape."""
        size = math.prod(shape)
        held = self._held.get((name, dtype))
        if held is None or held.size < size:
            held = self._held[(name, dtype)] = np.empty(size, dtype)
        view: Array = held[:size].reshape(shape)
        return view


@dataclass
class Ready:
    """A prepared block: rounded rows, the largest |c'|, the largest |c - m - c'|, rows too coarse to use, and the
    error of preparing and of the definition.
    """

    rows: Any
    length: float
    residual: float
    left_over: Ints
    slack: float = 0.0


_NONE = np.zeros(0, np.int64)


def _lengths(x: Array) -> Floats:
    """Norms of rows, rounded up: float32 or float64 sums of squares, with their own bound added."""
    slack = 1 + gamma(x.shape[1] + 8, U32 if x.dtype == np.float32 else U64)
    lengths: Floats = np.sqrt(np.einsum("ij,ij->i", x, x), dtype=np.float64) * slack + TINY
    return lengths


def _longest(x: Array) -> float:
    return float(_lengths(x).max(initial=0.0))


def centered(block: Block, center: Center) -> Array:
    """A block's rows over their norms, less a center in its unit, float32 (b, d)."""
    if block.inverse.dtype == np.float32 and block.rows.dtype == np.float32:
        rows = block.rows * block.inverse[:, None]
        rows -= center.vector.astype(np.float32)
        return rows
    wide: Array = block.rows * block.inverse.astype(np.float64)[:, None] - center.vector
    return wide.astype(np.float32)


def preparation_error(dimension: int, center_norm: float) -> float:
    """|fl(c * inverse - m) - (c / norm - m)|: gamma(d) / 2 and two roundings from a float32 norm, then five more."""
    return gamma(dimension + 8, U32) / 2 + 6 * U32 * (1 + center_norm) + TINY


def _slack(dimension: int, center_norm: float) -> float:
    return preparation_error(dimension, center_norm) + exact.definition_error(dimension)


class Float32:
    """numpy's float32 product."""

    name = "float32"
    coarse = False
    lowest = np.float32(-np.inf)

    def __init__(self, queries: Queries, center: Center) -> None:
        n, self.dimension = queries.rows.shape
        self.center = center
        self.rows = np.empty((n, self.dimension), np.float32)
        self.residual = np.empty(n)
        for part, unit in queries.chunks():
            self.rows[part] = unit
            self.residual[part] = _lengths(unit - self.rows[part])
        self.accumulation = gamma(self.dimension, U32)

    def prepare(self, block: Block) -> Ready:
        center = self.center.over(block.unit)
        rows = centered(block, center)
        return Ready(rows, _longest(rows), 0.0, _NONE, _slack(self.dimension, center.norm))

    def scores(self, ready: Ready, queries: Ints | slice, scratch: Scratch) -> Array:
        right = self.rows[queries]
        return np.matmul(ready.rows, right.T, out=scratch.numpy("scores", (len(ready.rows), len(right)), np.float32))

    def unit(self, queries: Ints | slice) -> Floats:
        return np.ones(len(self.residual[queries]))

    def error(self, ready: Ready, queries: Ints | slice) -> Floats:
        residual = self.residual[queries]
        return residual * ready.length + (self.accumulation * ready.length * (1 + residual) + ready.slack)

    def at_most(self, x: Floats) -> Array:
        y = np.clip(x, -_FARTHEST, _FARTHEST).astype(np.float32)
        return np.where(y > x, np.nextafter(y, np.float32(-np.inf)), y)

    def at_least(self, x: Floats) -> Array:
        return -self.at_most(-x)

    def values(self, scores: Array) -> Floats:
        return scores.astype(np.float64)


class Float64:
    """numpy's float64 product, for what float32 cannot part: its bound is below the width of a tie."""

    name = "float64"
    coarse = False
    lowest = -np.inf

    def __init__(self, queries: Queries, center: Center) -> None:
        self.queries, self.center = queries, center
        self.dimension = queries.rows.shape[1]
        self.accumulation = gamma(self.dimension, U64)
        self.slack = 2 * exact.definition_error(self.dimension)

    def prepare(self, block: Block) -> Ready:
        scale = exact.norms(block.rows)[:, None] if block.cosine else np.float64(block.unit)
        center = self.center.over(block.unit)
        rows = np.divide(block.rows, scale, dtype=np.float64) - center.vector
        return Ready(rows, _longest(rows), 0.0, _NONE, self.slack * (2 + center.norm))

    def scores(self, ready: Ready, queries: Ints | slice, scratch: Scratch) -> Array:
        scale = self.queries.norms[queries]
        right = self.queries.rows[queries] / np.where(scale > 0, scale, 1.0)[:, None]
        scores: Array = np.matmul(ready.rows, right.T)
        return scores

    def unit(self, queries: Ints | slice) -> Floats:
        return np.ones(len(self.queries.norms[queries]))

    def error(self, ready: Ready, queries: Ints | slice) -> Floats:
        return np.full(len(self.queries.norms[queries]), self.accumulation * ready.length + ready.slack)

    def at_most(self, x: Floats) -> Array:
        return np.clip(x, -_FARTHEST, _FARTHEST)

    def at_least(self, x: Floats) -> Array:
        return np.clip(x, -_FARTHEST, _FARTHEST)

    def values(self, scores: Array) -> Floats:
        return scores


def torch_here() -> Any:
    """torch, where it is loaded already; loading it takes longer than most rankings."""
    return sys.modules.get("torch")


class Int8:
    """torch's int8 product with int32 sums, which has no error of its own; the rounding of the inputs is the bound.

    Queries have a scale each; candidates share one, so that one number per query decides a comparison. Rows that
    this scale suits badly are left over for a finer product.
    """

    name = "int8"
    coarse = True
    lowest = np.int32(-(2**31))

    def __init__(self, queries: Queries, center: Center, sample: Block) -> None:
        import torch

        self.torch = torch
        n, self.dimension = queries.rows.shape
        self.center = center
        rows = np.empty((n, self.dimension), np.int8)
        self.scale, self.residual, self.length = np.empty(n), np.empty(n), np.empty(n)
        for part, unit in queries.chunks():
            scale = np.abs(unit).max(axis=1, initial=0.0) / 127
            scale[scale == 0] = 1.0
            rounded = np.rint(unit / scale[:, None])
            rows[part], self.scale[part] = rounded, scale
            self.residual[part] = _lengths(unit - rounded * scale[:, None])
        self.rows = torch.from_numpy(rows)
        self.step = self._best_step(centered(sample, center.over(sample.unit)))

    @staticmethod
    def _best_step(rows: Array) -> float:
        """The candidates' scale: the least residual, for all but a few rows, over some clipping points."""
        spread = float(np.sqrt(np.mean(np.square(rows), dtype=np.float64)))
        largest = float(np.abs(rows).max(initial=0.0))
        if not spread > 0:
            return 1.0
        steps = [min(width * spread, largest) / 127 for width in (3.5, 4.0, 4.5, 5.0, 6.0, 8.0, 12.0, 20.0, np.inf)]
        worst = []
        for step in steps:
            scaled = rows[:: max(1, len(rows) // 256)] / np.float32(step)
            lengths = _lengths(scaled - np.clip(np.rint(scaled), -127, 127))
            worst.append(float(np.quantile(lengths, 0.98)) * step)
        return steps[int(np.argmin(worst))]

    def prepare(self, block: Block) -> Ready:
        torch, step, center = self.torch, self.step, self.center.over(block.unit)
        if block.rows.dtype == np.float32 and block.inverse.dtype == np.float32:
            shift = torch.from_numpy((center.vector / -step).astype(np.float32))
            inverse = torch.from_numpy((block.inverse / np.float32(step))[:, None])
            scaled = torch.addcmul(shift, torch.from_numpy(block.rows), inverse)
        else:
            scaled = torch.from_numpy(centered(block, center) / np.float32(step))
        worth = step * (1 + gamma(self.dimension + 8, U32))
        length = 1 + center.norm
        if length > _FAR:
            length = worth * float(torch.linalg.vector_norm(scaled, dim=1).max())
        rounded = scaled.round().clamp_(-127, 127)
        rows = rounded.to(torch.int8)
        residuals = torch.linalg.vector_norm(scaled.sub_(rounded), dim=1).numpy()
        limit = 1.3 * float(np.median(residuals)) + 1e-6
        left_over = np.flatnonzero(~(residuals <= limit))
        if len(left_over) * 8 > len(residuals):
            left_over, limit = _NONE, np.inf
        residual = worth * float(residuals[residuals <= limit].max(initial=0.0))
        return Ready(rows, length + residual, residual, left_over, _slack(self.dimension, center.norm))

    def scores(self, ready: Ready, queries: Ints | slice, scratch: Scratch) -> Array:
        right = self.rows[queries]
        out = self.torch.from_numpy(scratch.numpy("scores", (len(ready.rows), len(right)), np.int32))
        scores: Array = self.torch._int_mm(ready.rows, right.t(), out=out).numpy()
        return scores

    def unit(self, queries: Ints | slice) -> Floats:
        return self.scale[queries] * self.step

    def error(self, ready: Ready, queries: Ints | slice) -> Floats:
        return self.residual[queries] * ready.length + (ready.residual + ready.slack)

    def at_most(self, x: Floats) -> Array:
        return np.clip(np.floor(x), -(2**31) + 1, 2**31 - 1).astype(np.int32)

    def at_least(self, x: Floats) -> Array:
        return np.clip(np.ceil(x), -(2**31) + 1, 2**31 - 1).astype(np.int32)

    def values(self, scores: Array) -> Floats:
        return scores.astype(np.float64)


class BFloat16Product:
    """torch's bfloat16 product, here or on a device. Results are compared as int16 in the order of their values."""

    name = "bfloat16"
    coarse = True
    lowest = np.int16(-(2**15))

    def __init__(self, queries: Queries, center: Center, device: str = "cpu") -> None:
        import torch

        self.torch, self.device = torch, device
        n, self.dimension = queries.rows.shape
        self.center = center
        self.rows = torch.empty((n, self.dimension), dtype=torch.bfloat16)
        self.residual = np.empty(n)
        for part, unit in queries.chunks():
            self.rows[part] = torch.from_numpy(unit).to(torch.bfloat16)
            self.residual[part] = _lengths(unit - self.rows[part].double().numpy())
        self.rows = self.rows.to(device)
        self.accumulation = gamma(self.dimension, 2 * U32 if device == "cpu" else U_DEVICE)

    def prepare(self, block: Block) -> Ready:
        center = self.center.over(block.unit)
        exactly = self.torch.from_numpy(centered(block, center))
        rows = exactly.to(self.torch.bfloat16)
        length = _longest(exactly.numpy())
        residual = _longest(exactly.sub_(rows).numpy())
        return Ready(rows.to(self.device), length + residual, residual, _NONE, _slack(self.dimension, center.norm))

    def scores(self, ready: Ready, queries: Ints | slice, scratch: Scratch) -> Array:
        right = self.rows[queries]
        bits = scratch.numpy("scores", (len(ready.rows), len(right)), np.int16)
        out = self.torch.from_numpy(bits).view(self.torch.bfloat16)
        if self.device == "cpu":
            self.torch.mm(ready.rows, right.t(), out=out)
        else:
            out.copy_(self.torch.mm(ready.rows, right.t()))
        return _in_order(bits, scratch.numpy("signs", bits.shape, np.int16))

    def unit(self, queries: Ints | slice) -> Floats:
        return np.ones(len(self.residual[queries]))

    def error(self, ready: Ready, queries: Ints | slice) -> Floats:
        residual = self.residual[queries]
        return residual * ready.length + (
            ready.residual + self.accumulation * ready.length * (1 + residual) + ready.slack
        )

    def at_most(self, x: Floats) -> Array:
        return -1 - self.at_least(-x)

    def at_least(self, x: Floats) -> Array:
        # Cutting the lower half off a float32 rounds toward zero: up for negative numbers, else one step more.
        y = np.clip(x, -_FARTHEST, _FARTHEST).astype(np.float32)
        bits = (y.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        steps = _in_order(bits.view(np.int16), np.empty(bits.shape, np.int16))
        return steps + (self.values(steps) < x)

    def values(self, scores: Array) -> Floats:
        bits = _in_order(scores.copy(), np.empty(scores.shape, np.int16)).view(np.uint16)
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


class DeviceFloat64(Float32):
    """torch's float64 product on a device, rounded to float32 (which is monotone): no TF32 can enter it."""

    name = "device float64"

    def __init__(self, queries: Queries, center: Center, device: str) -> None:
        import torch

        super().__init__(queries, center)
        self.torch, self.device = torch, device
        self.wide = torch.from_numpy(self.rows).to(device).double()
        self.accumulation = gamma(self.dimension, U64)

    def prepare(self, block: Block) -> Ready:
        ready = super().prepare(block)
        ready.rows = self.torch.from_numpy(ready.rows).to(self.device).double()
        return ready

    def scores(self, ready: Ready, queries: Ints | slice, scratch: Scratch) -> Array:
        right = self.wide[queries]
        out = scratch.numpy("scores", (len(ready.rows), len(right)), np.float32)
        self.torch.from_numpy(out).copy_(self.torch.mm(ready.rows, right.t()))
        return out


def _in_order(bits: Array, room: Array) -> Array:
    """bfloat16 bit patterns as int16 numbers in the order of their values; its own inverse. Overwrites `bits`."""
    np.right_shift(bits, 15, out=room)
    room &= np.int16(0x7FFF)
    bits ^= room
    return bits


def fast_products(queries: Queries, center: Center, sample: Block, device: str | None, work: float) -> list[Product]:
    """What torch has to offer where it can pay: torch loaded already or much work, and a fit processor or device."""
    if device == "numpy" or (device is None and work < _WORTH_A_TRY):
        return []
    if device is None and torch_here() is None and work < _WORTH_LOADING:
        return []
    try:
        import torch
    except ImportError:
        if device in (None, "cpu"):
            return []
        raise RankingError(f"device {device!r} needs torch, which is not installed.") from None
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device != "cpu":
        return [BFloat16Product(queries, center, device), DeviceFloat64(queries, center, device)]
    products: list[Product] = []
    if hasattr(torch, "_int_mm") and queries.rows.shape[1] < 1 << 16 and _cpu_has("avx512_vnni", "avx_vnni"):
        products.append(Int8(queries, center, sample))
    if _cpu_has("avx512_bf16", "amx_bf16"):
        products.append(BFloat16Product(queries, center))
    return products


@contextlib.contextmanager
def full_sums() -> Iterator[None]:
    """Keep CUDA from adding up parts of a bfloat16 product in bfloat16, as it may by default."""
    torch = torch_here()
    if torch is None or not torch.cuda.is_available():
        yield
        return
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before


def _cpu_has(*any_of: str) -> bool:
    import torch

    if hasattr(torch.cpu, "get_capabilities"):
        found = torch.cpu.get_capabilities()
        return any(found.get(name, False) for name in any_of)
    return str(torch.backends.cpu.get_cpu_capability()).startswith("AVX512")
