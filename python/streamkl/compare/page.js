/* SPDX-License-Identifier: Apache-2.0 */
"use strict";
(() => {
  const root = document.documentElement, tip = document.getElementById("tip");

  // Light or dark: the system's wish, until the reader has one.
  const button = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Show in ${dark() ? "light" : "dark"} colours`); };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();

  // What a mark says: text only, never markup.
  let shown = null;
  function hide() { if (shown) shown.classList.remove("on"); shown = null; tip.hidden = true; }
  function show(mark) {
    hide();
    shown = mark; mark.classList.add("on");
    const [title, ...rest] = mark.dataset.tip.split("\n");
    const bold = document.createElement("b");
    bold.textContent = title;
    tip.replaceChildren(bold, rest.join("\n"));
    tip.hidden = false;
    const at = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const x = Math.min(Math.max(8, at.left + at.width / 2 - own.width / 2), innerWidth - own.width - 8);
    const above = at.top - own.height - 10;
    tip.style.left = `${x}px`; tip.style.top = `${above > 8 ? above : at.bottom + 10}px`;
  }
  document.addEventListener("pointerover", (e) => { const m = e.target.closest && e.target.closest("[data-tip]"); m ? show(m) : hide(); });
  document.addEventListener("scroll", hide, { passive: true });

  // One stop of the tab key for each plot; arrows go from mark to mark.
  for (const plot of document.querySelectorAll("svg.plot[tabindex]")) {
    const marks = [...plot.querySelectorAll("[data-tip]")], across = Number(plot.dataset.columns) || 1;
    let at = -1;
    plot.addEventListener("keydown", (e) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[e.key];
      if (e.key === "Escape") { hide(); return; }
      if (e.key === "Home") at = 0; else if (e.key === "End") at = marks.length - 1;
      else if (step) at = at < 0 ? 0 : Math.min(Math.max(at + step, 0), marks.length - 1); else return;
      e.preventDefault();
      show(marks[at]);
    });
    plot.addEventListener("blur", hide);
  }

  // Candidates as tabs. Without this script all of them are shown, one below the other.
  const tabs = [...document.querySelectorAll("[role=tab]")];
  function choose(tab, focus) {
    for (const t of tabs) {
      const on = t === tab;
      t.setAttribute("aria-selected", on); t.tabIndex = on ? 0 : -1;
      document.getElementById(t.getAttribute("aria-controls")).hidden = !on;
    }
    if (focus) tab.focus();
    hide();
  }
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (e) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[e.key];
      if (to !== undefined) { e.preventDefault(); choose(tabs[(to + tabs.length) % tabs.length], true); }
    });
  });
  if (tabs.length) { tabs[0].parentElement.hidden = false; choose(tabs.find((t) => t.getAttribute("aria-selected") === "true") || tabs[0]); }
})();
