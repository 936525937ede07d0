"use strict";
// One script for all pages: it redraws charts, keeps filters in the address and sorts tables. Pages read without it.
const page = JSON.parse(document.getElementById("page-data").textContent);
const options = { actions: false, renderer: "svg", tooltip: { theme: "site" } };
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
document.documentElement.classList.add("has-js");

for (const box of all("[data-figure]")) vegaEmbed(box, page.figures[box.dataset.figure], options);
for (const table of all("table.sortable")) sortable(table);
if (page.overview || document.querySelector("[data-filters]")) filters();

// Filters: every control has a key; the address holds what differs from the page as it was written.
function filters() {
  const inputs = all("[data-key]");
  const value = (input) => (input.type === "checkbox" ? (input.checked ? "yes" : "no") : input.value);
  const defaults = Object.fromEntries(inputs.map((input) => [input.dataset.key, value(input)]));
  let state = { ...defaults };

  const read = () => {
    const hash = decodeURIComponent(location.hash.slice(1));
    if (hash.includes("=")) state = { ...defaults, ...Object.fromEntries(new URLSearchParams(hash)) };
    else if (hash && document.getElementById(hash)?.matches("tr[data-context]")) showRow(document.getElementById(hash));
    apply();
  };
  const write = () => {
    const changed = Object.entries(state).filter(([key, v]) => v !== defaults[key]);
    history.replaceState(null, "", changed.length ? "#" + new URLSearchParams(changed) : location.pathname + location.search);
  };
  const apply = (changed) => {
    if (page.overview) overview(state, changed);
    else rows(state, changed);
    for (const input of inputs) {
      if (input.type === "checkbox") input.checked = state[input.dataset.key] === "yes";
      else input.value = state[input.dataset.key];
    }
  };
  const showRow = (row) => {
    state = { ...defaults, model: row.closest("[data-model]").dataset.model };
    all("tr.target").forEach((other) => other.classList.remove("target"));
    row.classList.add("target");
    setTimeout(() => row.scrollIntoView({ block: "center" }));
  };
  document.addEventListener("change", (event) => {
    if (!event.target.dataset.key) return;
    state[event.target.dataset.key] = value(event.target);
    apply(event.target.dataset.key);
    write();
  });
  addEventListener("hashchange", read);
  if (page.overview) addEventListener("resize", debounce(() => overview(state), 150));
  read();
}

// Overview: the view of model, context, batch and task. Where a combination was not measured, what was chosen last stays
// and the others follow: any context can be chosen, with a model that has it.
function overview(state, changed) {
  const keys = ["model", "context", "batch", "task"].sort((a, b) => (b === changed) - (a === changed));
  const split = (key) => { const p = key.split("|"); return { model: p[0] + "|" + p[1], context: p[2], batch: p[3], task: p[4] }; };
  let left = Object.keys(page.overview.views).map((key) => ({ key, ...split(key) }));
  for (const key of keys) {
    const here = new Set(left.map((view) => view[key]));
    const opening = split(page.overview.first)[key];
    if (!here.has(state[key])) state[key] = here.has(opening) ? opening : [...here].at(key === "model" ? 0 : -1);
    if (key === "batch" || key === "task") {
      for (const option of all(`[data-key="${key}"] option`)) option.hidden = option.disabled = !here.has(option.value);
    }
    left = left.filter((view) => view[key] === state[key]);
  }
  const view = page.overview.views[left[0].key];
  const box = document.getElementById("view");
  const spec = structuredClone(page.overview.specs[view.unit]);
  spec.datasets = { ...view.data, labels: view.labels[box.clientWidth < 560 ? "narrow" : box.clientWidth < 860 ? "middle" : "wide"] };
  for (const layer of spec.layer) if (layer.encoding?.x?.scale) layer.encoding.x.scale.domain = view.x;
  document.getElementById("view-title").textContent = view.title;
  for (const card of all("[data-card]")) card.hidden = card.dataset.card !== left[0].key.split("|").slice(0, 4).join("|");
  vegaEmbed(box, spec, options);
}

// Compare: one table a model; rows by context, family and speed; columns by batch. A model without such rows gives way.
function rows(state, changed) {
  const sections = all("section[data-model]");
  const fits = (row) => (state.context === "all" || row.dataset.context === state.context)
    && (state.family === "all" || row.dataset.family === state.family)
    && (["all", undefined].includes(state.bytes) || +row.dataset.bytes <= +state.bytes)
    && (state.faster !== "yes" || +row.dataset.speed > 1);
  const filled = (section) => all("tbody tr", section).some(fits);
  if (!sections.some((section) => section.dataset.model === state.model && filled(section))) {
    if (changed === "model") state.context = state.family = state.bytes = "all";
    else state.model = sections.find(filled)?.dataset.model ?? state.model;
  }
  for (const section of sections) {
    section.hidden = section.dataset.model !== state.model;
    for (const row of all("tbody tr", section)) row.hidden = !fits(row);
    for (const cell of all("[data-batch]", section)) cell.hidden = state.batch !== "all" && cell.dataset.batch !== state.batch;
    for (const cell of all("[data-question]", section)) cell.hidden = !["all", undefined, cell.dataset.question].includes(state.question);
  }
}

// Click on a head sorts by its column; numbers stand in data-sort, empty cells stay last.
function sortable(table) {
  all("thead th", table).forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending" && head.classList.contains("num");
      const order = down || head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const key = (row) => { const cell = row.cells[column]; return cell.dataset.sort ?? cell.textContent.trim(); };
      const sign = order === "ascending" ? 1 : -1;
      const sorted = all("tbody tr", table).sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (!x || !y) return !x - !y;
        return sign * (isNaN(x) || isNaN(y) ? x.localeCompare(y, undefined, { numeric: true }) : x - y);
      });
      table.tBodies[0].append(...sorted);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}

function debounce(run, ms) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(run, ms); };
}
