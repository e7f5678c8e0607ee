// Keeps an open page up to date: when the server says that something is new, the same address is fetched
// again and its view takes the place of the one that is shown. Without this script every page works, still.
"use strict";
(() => {
  const LEAST = 1500; // milliseconds between two fetches
  let timer = null, fetched = 0, busy = false, again = false;
  const view = () => document.getElementById("view");
  const say = (words) => { document.getElementById("live").textContent = words; };

  const toTheEnd = () => {
    for (const chart of document.querySelectorAll("[data-end]")) chart.scrollLeft = chart.scrollWidth;
  };

  // What a person is doing now is not taken away.
  const inUse = () => {
    const selection = document.getSelection();
    const at = document.activeElement;
    const fields = [...view().querySelectorAll("input")];
    return (selection && !selection.isCollapsed) || fields.some((one) => one.value !== one.defaultValue)
      || (at && at.matches("#view input, #view button, #view select"));
  };

  const swap = (fresh) => {
    const old = view();
    if (old.innerHTML === fresh.innerHTML) return;
    const scrolled = [...old.querySelectorAll(".chart, .wide")].map(
      (one) => [one.scrollLeft, one.scrollLeft + one.clientWidth >= one.scrollWidth - 4]);
    const opened = [...old.querySelectorAll("details")].map((one) => one.open);
    const at = old.contains(document.activeElement) ? document.activeElement : null;
    const place = at && [...old.querySelectorAll("a, summary, [tabindex]")].indexOf(at);
    const href = at && at.getAttribute("href");
    old.replaceWith(document.adoptNode(fresh));
    view().querySelectorAll(".chart, .wide").forEach((one, i) => {
      if (scrolled[i]) one.scrollLeft = scrolled[i][1] && one.matches("[data-end]") ? one.scrollWidth : scrolled[i][0];
    });
    view().querySelectorAll("details").forEach((one, i) => { one.open = Boolean(opened[i]); });
    if (at) {
      const same = href && [...view().querySelectorAll("a")].find((one) => one.getAttribute("href") === href);
      const target = same || view().querySelectorAll("a, summary, [tabindex]")[place];
      if (target) target.focus({ preventScroll: true });
    }
  };

  const refresh = async () => {
    timer = null;
    if (document.hidden || inUse()) { again = true; return; }
    if (busy) { again = true; return; }
    busy = true; again = false; fetched = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("view");
      if (fresh) swap(fresh);
    } catch { /* the next event tries again */ }
    busy = false;
    if (again) soon();
  };
  const soon = () => {
    if (timer === null) timer = setTimeout(refresh, Math.max(0, fetched + LEAST - Date.now()));
  };

  toTheEnd();
  const live = view() && view().dataset.live;
  if (live === undefined) return;
  // A browser opens few connections to one server: a page that nobody sees gives its own back.
  let events = null;
  const listen = () => {
    if (document.hidden) {
      if (events) events.close();
      events = null;
    } else if (!events) {
      events = new EventSource("/live?id=" + encodeURIComponent(live));
      events.onopen = () => say("live");
      events.onmessage = () => soon();
      events.onerror = () => say("not live: the server does not answer");
    }
  };
  listen();
  setInterval(soon, 10000); // ages and lags grow where nothing else happens
  document.addEventListener("visibilitychange", listen);
  document.addEventListener("focusout", () => { if (again) setTimeout(soon, 200); });
})();
