"""What there is to choose from: suites and models, legibly and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from omnirecall.models.load import FAMILIES, load_model
from omnirecall.protocol.cards import shipped_cards
from omnirecall.protocol.items import MODALITIES
from omnirecall.protocol.suites import Suite
from omnirecall.results.record import pretty_json
from omnirecall.sources.load import load_suite

ABOUT = {
    "starter": "MiniLM, ConSE over EfficientNet-Lite0, Whisper: text, image, video, audio",
    "random": "random:D, a random vector per content: a chance floor",
    "constant": "constant:D, one vector for all: a chance floor",
    "py": "py:module:attribute or py:path.py:attribute, your own class with encode",
}


def _summary(suite: Suite) -> dict[str, Any]:
    certainty = Counter(fact.certainty for _, _, fact in suite.facts())
    return {
        "name": suite.name,
        "title": suite.title,
        "tasks": len(suite.tasks),
        "means": len(suite.means),
        "certainty": certainty,
    }


def suites_json() -> str:
    """Every shipped suite: tasks, means, and how many facts are of which certainty."""
    return pretty_json([_summary(load_suite(name)) for name in shipped_cards()])


def suites_text() -> str:
    """A line for each shipped suite."""
    lines = []
    for name in shipped_cards():
        one = _summary(load_suite(name))
        assumed = one["certainty"]["assumed"] + one["certainty"]["unknown"]
        lines.append(f"{name:<20} {one['tasks']:>3} tasks, {assumed} facts assumed or unknown   {one['title']}")
    return "\n".join(lines) + "\n"


def suite_json(name: str) -> str:
    """A suite's tasks, means and facts."""
    suite = load_suite(name)
    return pretty_json(msgspec.to_builtins(suite, enc_hook=str))


def suite_text(name: str) -> str:
    """A suite's tasks with sizes and measures, its means, and every fact with its certainty."""
    suite = load_suite(name)
    lines = [f"{suite.name}: {suite.title}".rstrip(": ")]
    lines += [f"{label}: {text}" for label, text in (("source", suite.source), ("licence", suite.licence)) if text]
    lines += ["", f"{'task':<36} {'direction':<12} {'queries':>8} {'pool':>9}  measure (and beside it)"]
    for task in suite.tasks:
        sizes = [f"{count:,}" if count is not None else "" for count in (task.query_count, task.candidate_count)]
        beside = ", ".join(str(measure) for measure in task.all_measures()[1:])
        lines.append(
            f"{task.name:<36} {task.direction:<12} {sizes[0]:>8} {sizes[1]:>9}  {task.measure}"
            + (f" ({beside})" if beside else "")
        )
        if task.instruction:
            lines.append(f"    instruction: {task.instruction}")
    lines += ["", *(f"mean {mean.name} = mean of {', '.join(mean.of)}" for mean in suite.means)]
    facts = [
        f"{place}: {key}: {fact.certainty}" + (f", {fact.source}" if fact.source else "")
        for place, key, fact in suite.facts()
    ]
    lines += ["", *facts] if facts else []
    return "\n".join(lines).rstrip() + "\n"


def models_json() -> str:
    """Every family with what it is."""
    return pretty_json([{"family": family, "about": ABOUT[family]} for family in FAMILIES])


def models_text() -> str:
    """A line for each family."""
    return "".join(f"{family:<10} {ABOUT[family]}\n" for family in FAMILIES)


def _model(name: str) -> dict[str, Any]:
    model = load_model(name)
    return {
        "name": model.name,
        "fingerprint": model.fingerprint,
        "dimension": model.dimension,
        "modalities": [part for part in MODALITIES if model.supports({part})],
        "composed": model.supports({"image", "text"}),
        "notes": list(model.notes),
    }


def model_json(name: str) -> str:
    """One model: name, fingerprint, dimension, modalities, notes."""
    return pretty_json(_model(name))


def model_text(name: str) -> str:
    """One model, a line a fact."""
    return "".join(
        f"{key:<12} {', '.join(value) if isinstance(value, list) else value}\n" for key, value in _model(name).items()
    )
