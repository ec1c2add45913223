"use strict";
// Items are being read by another process: ask again until they are there, a bounded number of times.
(() => {
  if (!document.querySelector("[data-waiting]")) return;
  let asked = 0;
  const ask = async () => {
    asked += 1;
    try {
      const text = await (await fetch(location.href)).text();
      if (!text.includes("data-waiting")) { location.reload(); return; }
    } catch { /* the server may be gone */ }
    if (asked < 300) setTimeout(ask, 1000);
  };
  setTimeout(ask, 400);
})();
