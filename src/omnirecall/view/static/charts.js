"use strict";
(() => {
  const color = (domain) => ({ domain, range: domain.map((_, place) => `var(--series-${place % 8})`) });
  const named = (runs) => runs.map((run, place) => (runs.indexOf(run) === place ? run : `${run} (${runs.slice(0, place + 1).filter((one) => one === run).length})`));
  const percent = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)}%`;
  const flat = (runs, series) => series.flatMap((points, place) => points.map((point) => ({ run: runs[place], ...point })));
  const wide = (node) => Math.max(300, Math.min(1100, node.clientWidth || 640));
  const short = (text) => (text.length > 30 ? `${text.slice(0, 29)}…` : text);

  const legend = (names) => {
    // Plot's own legend brings a style sheet of its own, which the page's policy does not allow.
    const list = document.createElement("ul");
    list.className = "legend";
    names.forEach((name, place) => {
      const entry = document.createElement("li");
      entry.className = `series-${place % 8}`;
      entry.textContent = name;
      list.append(entry);
    });
    return list;
  };

  const draw = {
    abilities: (data, width) => {
      const keys = [...new Map(data.points.map((point) => [point.key, point.run])).entries()];
      const names = named(keys.map(([, run]) => run));
      const points = data.points.map((point) => ({ ...point, run: names[keys.findIndex(([key]) => key === point.key)] }));
      const abilities = [...new Set(points.map((point) => point.name))];
      const step = Math.min(7, 22 / Math.max(1, names.length));
      const mine = (name) => points.filter((point) => point.run === name);
      const shift = (name) => (names.indexOf(name) - (names.length - 1) / 2) * step;
      return Plot.plot({
        width, height: 56 + abilities.length * 34, marginLeft: Math.min(260, 24 + 7 * Math.max(...abilities.map((name) => short(name).length))),
        x: { label: "value", tickFormat: percent, grid: true, zero: true },
        y: { domain: abilities, label: null, tickFormat: short },
        color: color(names),
        marks: [
          Plot.ruleY(abilities, { y: (name) => name, stroke: "currentColor", strokeOpacity: 0.12 }),
          ...names.map((name) => Plot.ruleY(mine(name).filter((point) => point.low != null), { y: "name", x1: "low", x2: "high", stroke: "run", strokeWidth: 2, strokeOpacity: 0.5, dy: shift(name) })),
          ...names.map((name) => Plot.dot(mine(name), { x: "value", y: "name", fill: "run", r: 4.5, dy: shift(name) })),
          Plot.tip(points, Plot.pointer({ x: "value", y: "name", title: (point) => `${point.run}\n${point.name}: ${(100 * point.value).toFixed(2)}%${point.low == null ? "" : ` (${(100 * point.low).toFixed(2)} to ${(100 * point.high).toFixed(2)})`}` })),
        ],
      });
    },
    ranks: (data, width) => {
      const runs = named(data.runs);
      const points = flat(runs, data.series.map((bins) => { const n = bins.reduce((sum, bin) => sum + bin.queries, 0) || 1; return bins.map((bin) => ({ ...bin, share: bin.queries / n })); }));
      const bins = data.series.reduce((longest, one) => (one.length > longest.length ? one : longest), []).map((bin) => bin.bin);
      return Plot.plot({
        width, height: 320, marginBottom: 46,
        x: { axis: null, domain: runs }, fx: { domain: bins, label: "rank", tickRotate: bins.length > 8 ? -35 : 0, padding: 0.15 },
        y: { label: "queries", tickFormat: percent, grid: true },
        color: { ...color(runs) },
        marks: [Plot.barY(points, { x: "run", fx: "bin", y: "share", fill: "run", tip: { format: { fx: true, x: false, y: percent } } }), Plot.ruleY([0])],
      });
    },
    curves: (data, width) => {
      const runs = named(data.runs);
      const points = flat(runs, data.series).flatMap((point) => [{ ...point, what: "hit@k", value: point.hit }, { ...point, what: "recall@k", value: point.recall }]);
      return Plot.plot({
        width, height: 320,
        x: { type: "log", label: "k", grid: true, tickFormat: "~s", ticks: 5 }, y: { label: "value", domain: [0, 1], tickFormat: percent, grid: true },
        color: { ...color(runs) },
        marks: [
          Plot.line(points.filter((one) => one.what === "hit@k"), { x: "k", y: "value", z: "run", stroke: "run", strokeDasharray: "4 3", strokeWidth: 1.5 }),
          Plot.line(points.filter((one) => one.what === "recall@k"), { x: "k", y: "value", z: "run", stroke: "run", strokeWidth: 2 }),
          Plot.tip(points, Plot.pointer({ x: "k", y: "value", stroke: "run", title: (one) => `${one.run}\n${one.what.replace("k", one.k)}: ${(100 * one.value).toFixed(2)}%` })),
        ],
        caption: "Solid: recall@k. Dashed: hit@k.",
      });
    },
    scores: (data, width) => Plot.plot({
      width, height: 240,
      x: { label: "score" }, y: { label: "share", tickFormat: percent, grid: true },
      color: { ...color(["relevant", "others in the top list"]) },
      marks: [
        Plot.rectY(data.bins, { x1: "low", x2: "high", y: "share", fill: "what", fillOpacity: 0.55, mixBlendMode: "normal", y2: "share", y1: () => 0 }),
        Plot.ruleY([0]),
      ],
    }),
    directions: (data, width) => {
      const runs = named(data.runs);
      const points = flat(runs, data.series);
      const names = [...new Set(points.map((point) => point.direction))];
      return Plot.plot({
        width, height: 60 + names.length * (14 + 12 * runs.length), marginLeft: 30, marginRight: 40,
        x: { label: "value", tickFormat: percent, grid: true }, y: { axis: null, domain: runs },
        fy: { domain: names, label: null, padding: 0.25, axis: "left" }, marginLeft: 40 + 7 * Math.max(...names.map((name) => name.length)),
        color: { ...color(runs) },
        marks: [
          Plot.barX(points, { x: "value", y: "run", fy: "direction", fill: "run", fillOpacity: (point) => (!data.here || point.direction === data.here ? 1 : 0.45), tip: { format: { x: percent } } }),
          Plot.ruleX([0]),
        ],
      });
    },
    bars: (data, width) => draw.directions({ runs: ["value"], series: [data.points] }, width),
  };

  const place = (node) => {
    const data = JSON.parse(document.getElementById(node.dataset.chart).textContent);
    const width = wide(node);
    if (node.dataset.width === String(width)) return;
    node.dataset.width = width;
    const picture = draw[data.chart](data, width);
    for (const svg of picture.matches("svg") ? [picture] : picture.querySelectorAll("svg")) svg.setAttribute("aria-hidden", "true"); // the box around it is labelled
    const names = picture.scale("color")?.domain ?? [];
    node.replaceChildren(...(names.length > 1 ? [legend(names)] : []), picture);
  };
  const nodes = [...document.querySelectorAll("[data-chart]")];
  nodes.forEach(place);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => nodes.forEach(place), 150); });
})();
