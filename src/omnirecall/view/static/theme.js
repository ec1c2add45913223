"use strict";
// Read before the page is drawn, so that a chosen theme does not flash.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* a browser may keep nothing */ }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
