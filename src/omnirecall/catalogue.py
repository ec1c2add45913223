"""What there is to choose from: suites and models, legibly and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import msgspec

from omnirecall.files import pretty_json
from omnirecall.models.base import ModelOptions
from omnirecall.models.load import FAMILIES, load_model
from omnirecall.models.presets import presets
from omnirecall.protocol.cards import shipped_cards
from omnirecall.protocol.items import MODALITIES
from omnirecall.protocol.suites import Certainty, Fact, Mean, Suite, Task
from omnirecall.sources.load import load_suite

ABOUT = {
    "starter": "MiniLM, ConSE over EfficientNet-Lite0, Whisper: text, image, video, audio",
    "st": "st:PATH or st:owner/name, a sentence-transformers model",
    "hf": "hf:PATH or hf:owner/name, a dual encoder of transformers (CLIP, SigLIP, ALIGN, CLAP, X-CLIP and relatives)",
    "vlm": "vlm:PATH or vlm:owner/name, embeddings through a vision-language or omni model",
    "mteb": "mteb:owner/name, a model of mteb's registry",
    "http": "http:MODEL, an OpenAI-compatible embeddings endpoint (vLLM, Infinity, TEI and hosted ones)",
    "vectors": "vectors:PATH, vectors that are computed already, by id",
    "random": "random:D, a random vector per content: a chance floor",
    "constant": "constant:D, one vector for all: a chance floor",
    "py": "py:module:attribute or py:path.py:attribute, your own class with encode",
}


def _summary(suite: Suite) -> dict[str, Any]:
    return {
        "name": suite.name,
        "title": suite.title,
        "tasks": len(suite.tasks),
        "means": len(suite.means),
        "departs": suite.departs,
        "facts": _certainties(suite),
        "unknown_tasks": _unknown_tasks(suite),
    }


@dataclass(frozen=True, slots=True)
class Statement:
    """One fact, with every task and mean that it holds for."""

    key: str
    fact: Fact
    value: str
    names: tuple[str, ...]


def statements(suite: Suite) -> list[Statement]:
    """The suite's facts, each once, the least sure first; ``value`` is empty where the tasks' values differ."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, key, fact in suite.facts():
        found.setdefault((key, fact.certainty, fact.source), []).append(name)
    entries: dict[str, Task | Mean] = {task.name: task for task in suite.tasks}
    entries |= {mean.name: mean for mean in suite.means}
    order = list(reversed(get_args(Certainty)))
    made = []
    for (key, certainty, source), names in found.items():
        values = {_shown(entries[name], key) for name in names}
        fact = Fact(cast("Certainty", certainty), source)
        made.append(Statement(key, fact, values.pop() if len(values) == 1 else "", tuple(names)))
    return sorted(made, key=lambda one: order.index(one.fact.certainty))


def _shown(entry: Task | Mean, key: str) -> str:
    """The value of a dotted key, as text; "" for a mean's parts and where there is none."""
    value: Any = entry
    for step in key.split("."):
        value = value.get(step) if isinstance(value, Mapping) else getattr(value, step, None)
    if value is None or isinstance(value, tuple):
        return ""
    return repr(value) if isinstance(value, str) and (not value or " " in value) else str(value)


def _certainties(suite: Suite) -> dict[str, int]:
    counted = Counter(one.fact.certainty for one in statements(suite))
    return {certainty: counted[certainty] for certainty in get_args(Certainty) if counted[certainty]}


def _unknown_tasks(suite: Suite) -> list[str]:
    return [task.name for task in suite.tasks if suite.unknown_below(task.name)]


def suites_json() -> str:
    """Every shipped suite: tasks, means, and how many facts are of which certainty; a fact that tasks share counts once."""
    return pretty_json([_summary(load_suite(name)) for name in shipped_cards()])


def suites_text() -> str:
    """A line for each shipped suite."""
    suites = [load_suite(name) for name in shipped_cards()]
    width = max(len(suite.name) for suite in suites)
    lines = [f"{'suite':<{width}} {'tasks':>6} {'facts':>6} {'assumed':>8} {'unknown':>8}  title"]
    for suite in suites:
        sure = _certainties(suite)
        counts = f"{sum(sure.values()):>6} {sure.get('assumed', 0):>8} {sure.get('unknown', 0):>8}"
        lines.append(f"{suite.name:<{width}} {len(suite.tasks):>6} {counts}  {suite.title}")
    return "\n".join(lines) + "\n"


def suite_json(name: str) -> str:
    """A suite's tasks, means and facts."""
    suite = load_suite(name)
    table = msgspec.to_builtins(suite)
    for entry, task in zip(table["tasks"], suite.tasks, strict=True):
        entry |= {"measure": str(task.measure), "measures": [str(measure) for measure in task.measures]}
    return pretty_json({**table, "certainty": _certainties(suite)})


def suite_text(name: str) -> str:
    """A suite's tasks with sizes and measures, instructions, means, known defects, and every fact with its certainty."""
    suite = load_suite(name)
    sure = _certainties(suite)
    counted = ", ".join(f"{count} {certainty}" for certainty, count in sure.items())
    head = [f"{suite.name}: {suite.title}".rstrip(": ")]
    head += [
        f"{label}: {text}"
        for label, text in (
            ("source", suite.source),
            ("licence", suite.licence),
            ("notes", suite.notes),
            ("departs from the protocol", suite.departs),
            ("includes", ", ".join(suite.included)),
        )
        if text
    ]
    head += [
        f"{len(suite.tasks)} tasks, {len(suite.means)} means, {sum(sure.values())} facts" + f": {counted}" * bool(sure)
    ]
    parts = [
        head,
        _task_lines(suite),
        _instruction_lines(suite),
        _mean_lines(suite),
        _note_lines(suite),
        _defect_lines(suite),
        _fact_lines(suite),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _task_lines(suite: Suite) -> list[str]:
    rows = [("task", "direction", "queries", "pool", "measure (and beside it)")]
    for task in suite.tasks:
        pool = "" if task.candidate_count is None else f"{task.candidate_count:,}"
        if task.pool == "per-query":
            pool = "own pools" if task.pool_size is None else f"{task.pool_size:,} a query"
        printed = f"{task.printed} = " if task.printed else ""
        beside = ", ".join(str(measure) for measure in task.all_measures()[1:])
        measure = f"{printed}{task.measure}" + (f" ({beside})" if beside else "")
        queries = "" if task.query_count is None else f"{task.query_count:,}"
        rows.append((task.name, task.direction, queries, pool, measure))
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{row[0]:<{wide[0]}}  {row[1]:<{wide[1]}}  {row[2]:>{wide[2]}}  {row[3]:>{wide[3]}}  {row[4]}" for row in rows
    ]


def _instruction_lines(suite: Suite) -> list[str]:
    said: dict[str, list[str]] = {}
    for task in suite.tasks:
        text = "(in each row of the data)" if task.instruction_per_row else repr(task.instruction)
        said.setdefault(text, []).append(task.name)
    if set(said) == {"''"}:
        return []
    return ["instructions of queries", *(f"  {text}: {_names(names, suite)}" for text, names in said.items())]


def _mean_lines(suite: Suite) -> list[str]:
    return [f"{mean.name} = mean of {'all tasks of ' * mean.flat}{', '.join(mean.of)}" for mean in suite.means]


def _note_lines(suite: Suite) -> list[str]:
    lines = []
    for task in suite.tasks:
        said = [f"version {task.version}"] * bool(task.version) + [task.notes] * bool(task.notes)
        said += [f"older tables call it {name}, {what}" for name, what in task.old_names.items()]
        if said:
            lines.append(f"  {task.name}: {'; '.join(text.rstrip('.') for text in said)}")
    return ["notes on tasks", *lines] if lines else []


def _defect_lines(suite: Suite) -> list[str]:
    lines = []
    for task in suite.tasks:
        for defect in task.known_defects:
            count = "" if defect.count is None else f" {defect.count:,}"
            source = f" ({defect.certainty}, {defect.source})"
            lines.append(f"  {task.name}:{count} {defect.kind}{source}" + (f": {defect.note}" if defect.note else ""))
    return ["known defects of the data", *lines] if lines else []


def _fact_lines(suite: Suite) -> list[str]:
    lines = []
    for one in statements(suite):
        value = f" = {one.value}" if one.value else ""
        source = f", {one.fact.source}" if one.fact.source else ""
        lines.append(f"  {one.fact.certainty}: {one.key}{value}{source} [{_names(one.names, suite)}]")
    legend = "facts (stated: the paper; code: its authors'; derived: from published figures; peer: others' code; assumed: ours)"
    return [legend, *lines] if lines else []


def _names(names: Sequence[str], suite: Suite) -> str:
    if len(names) > 4:
        every = "all" if set(suite.task_names()) <= set(names) else str(len(names))
        return f"{every} tasks" if set(names) & set(suite.task_names()) else f"{len(names)} means"
    return ", ".join(names)


def models_json() -> str:
    """Every family with what it is, and every preset with all that it sets."""
    families = [{"family": family, "about": ABOUT[family]} for family in FAMILIES]
    return pretty_json({"families": families, "presets": dict(presets())})


def models_text() -> str:
    """A line for each family and each preset."""
    wide = max(map(len, presets()))
    lines = [f"{family:<{wide}} {ABOUT[family]}" for family in FAMILIES]
    lines += ["", *(f"{name:<{wide}} {one.about} ({one.family}:{one.name})" for name, one in presets().items())]
    return "\n".join(lines) + "\n"


def _model(name: str, options: ModelOptions) -> dict[str, Any]:
    if (preset := presets().get(name)) is not None:  # loading it might fetch it
        shown = msgspec.to_builtins(preset)
        shown["args"] = [f"{key}={value!r}" for key, value in preset.args.items()]
        return {"preset": name, "repository": shown.pop("name"), **shown}
    model = load_model(name, options)
    return {
        "name": model.name,
        "fingerprint": model.fingerprint,
        "dimension": model.dimension,
        "modalities": [part for part in MODALITIES if model.supports({part})],
        "composed": model.supports({"image", "text"}),
        "notes": list(model.notes),
    }


def model_json(name: str, options: ModelOptions) -> str:
    """One model: name, fingerprint, dimension, modalities, notes; of a preset, what it sets."""
    return pretty_json(_model(name, options))


def model_text(name: str, options: ModelOptions) -> str:
    """One model, a line a fact."""
    return "".join(
        f"{key:<12} {', '.join(value) if isinstance(value, list) else value}\n"
        for key, value in _model(name, options).items()
    )
