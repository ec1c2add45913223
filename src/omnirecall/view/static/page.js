"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // --- light and dark
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; theme.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`); };
  theme.hidden = false;
  nameTheme();
  system.addEventListener("change", nameTheme);
  theme.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("theme", next); } catch { /* not kept then */ }
    nameTheme();
  });

  // --- tables: sorting
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.value !== undefined) return cell.dataset.value === "" ? null : Number(cell.dataset.value);
    return cell.textContent.trim().toLowerCase();
  };
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  };
  for (const button of all("table.sortable button.sort")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const table = head.closest("table");
      const body = table.tBodies[0];
      const numeric = [...body.rows].some((row) => row.cells[head.cellIndex].dataset.value);
      const down = head.getAttribute("aria-sort") === "none" ? numeric : head.getAttribute("aria-sort") === "ascending";
      for (const other of all("th[aria-sort]", table)) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => compare(valueOf(a, head.cellIndex), valueOf(b, head.cellIndex), down ? -1 : 1));
      body.append(...rows);
    });
  }

  // --- leaderboard: groups and published rows
  const board = document.getElementById("board");
  if (board) {
    const heads = all("th[data-column]", board);
    const cellsOf = (key) => all(`[data-column="${key}"]`, board);
    const show = (parent, shown) => {
      for (const head of heads.filter((one) => one.dataset.parent === parent)) {
        for (const cell of cellsOf(head.dataset.column)) cell.hidden = !shown;
        const toggle = head.querySelector("button.open");
        if (toggle) show(head.dataset.column, shown && toggle.getAttribute("aria-expanded") === "true");
      }
    };
    for (const toggle of all("button.open", board)) {
      toggle.addEventListener("click", () => {
        const open = toggle.getAttribute("aria-expanded") !== "true";
        toggle.setAttribute("aria-expanded", String(open));
        show(toggle.closest("th").dataset.column, open);
      });
    }
    const published = document.getElementById("published");
    if (published) {
      const set = () => { for (const row of all("tr.published", board)) row.hidden = !published.checked; };
      published.addEventListener("change", set);
      set();
    }
  }

  // --- media
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      if (entry.target.dataset.poster) entry.target.poster = entry.target.dataset.poster;
      if (entry.target.dataset.frames && entry.target.open) fill(entry.target);
    }
  }, { rootMargin: "200px" });
  const fill = async (details) => {
    if (details.dataset.filled) return;
    details.dataset.filled = "1";
    const strip = details.querySelector(".strip");
    const say = (sentence) => { const p = document.createElement("p"); p.className = "quiet"; p.textContent = sentence; strip.append(p); };
    try {
      const address = new URL(details.dataset.frames, location.href);
      const answer = await fetch(address);
      if (!answer.ok) { say(await answer.text()); return; }
      const about = await answer.json();
      for (const frame of about.frames) {
        const figure = document.createElement("figure");
        const image = document.createElement("img");
        image.src = new URL(frame.source, address).href;
        image.width = about.width;
        image.height = about.height;
        const when = frame.time === null ? "" : ` at ${frame.time.toFixed(2)} s`;
        image.alt = `frame ${frame.index}${when}`;
        image.loading = "lazy";
        const caption = document.createElement("figcaption");
        caption.textContent = frame.time === null ? `${frame.index}` : `${frame.index} · ${frame.time.toFixed(2)} s`;
        figure.append(image, caption);
        strip.append(figure);
      }
      say(`${about.frames.length + about.left_out} of ${about.decodable} frames, ${about.width}×${about.height}${about.left_out ? `; the first ${about.frames.length} are shown` : ""}`);
      for (const warning of about.warnings) say(warning);
    } catch { say("The frames cannot be had."); }
  };
  for (const details of all("details.frames")) {
    seen.observe(details);
    details.addEventListener("toggle", () => { if (details.open) fill(details); });
  }
  for (const video of all("video[data-poster]")) {
    seen.observe(video);
    video.addEventListener("error", () => {
      const p = document.createElement("p");
      p.className = "quiet";
      p.textContent = "This browser cannot play the file; its frames are below.";
      video.after(p);
    }, { once: true });
  }
  for (const button of all(".ranked button.start")) {
    // A list of small videos is calmer without ten sets of controls; they come with the first play.
    const video = button.previousElementSibling;
    video.controls = false;
    button.hidden = false;
    button.addEventListener("click", () => { button.hidden = true; video.controls = true; video.play().catch(() => {}); video.focus(); });
  }
  for (const button of all("button.play")) {
    const image = button.previousElementSibling;
    const still = image.getAttribute("src");
    button.hidden = false;
    button.addEventListener("click", () => {
      const moving = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(moving));
      button.textContent = moving ? "■" : "▶";
      image.src = moving ? image.dataset.moving : still;
    });
  }

  // --- keys
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, audio, video")) return;
    const rel = { j: "next", k: "prev" }[event.key];
    const link = rel && document.querySelector(`a[rel="${rel}"]`);
    if (link) link.click();
  });
})();
