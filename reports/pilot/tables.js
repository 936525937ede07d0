// Sort and filter tables, and link sections and rows. Pages are whole without it.
"use strict";
{
  const value = (row, place) => {
    const text = (row.cells[place]?.textContent ?? "").trim();
    const number = parseFloat(text.replace(/[\u202f,]/g, "").replace("\u2212", "-").replace(/^[<[]/, ""));
    return [Number.isNaN(number) ? null : number, text];
  };
  const compare = (a, b) =>
    a[0] !== null && b[0] !== null ? a[0] - b[0] : (a[0] === null) - (b[0] === null) || a[1].localeCompare(b[1]);
  const movable = body => [...body.rows].filter(row => !row.classList.contains("context"));

  const sort = (table, head, place) => {
    const falling = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    for (const body of table.tBodies) {
      const rows = movable(body).sort((a, b) => compare(value(a, place), value(b, place)) * (falling ? -1 : 1));
      body.append(...rows);
    }
  };

  const linkTo = (id, name, what) => {
    const link = document.createElement("a");
    link.href = "#" + id;
    link.className = name;
    link.textContent = "#";
    link.setAttribute("aria-label", `Link to this ${what}`);
    return link;
  };
  for (const head of document.querySelectorAll("h2[id], h3[id]")) head.append(linkTo(head.id, "anchor", "section"));

  // A row of scores is named by its table, method, context and budget, so that it can be linked.
  const plain = text => text.trim().replace(/,/g, "").toLowerCase().replace(/[^a-z0-9.]+/g, "-").replace(/-$/, "");
  for (const table of document.querySelectorAll("table[data-rows]")) {
    for (const body of table.tBodies) {
      const context = parseInt(body.rows[0].textContent.replace(/,/g, ""));
      for (const row of movable(body)) {
        const label = row.querySelector("a") ?? row.cells[0];
        row.id = [table.dataset.rows, plain(label.textContent), context, plain(row.cells[1].textContent)].join(".");
      }
    }
  }
  if (location.hash && !document.querySelector(":target")) location.replace(location.hash);

  for (const table of document.querySelectorAll(".scroll table")) {
    if (!table.tHead) continue;
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      head.setAttribute("aria-sort", "none");
      head.tabIndex = 0;
      head.addEventListener("click", () => sort(table, head, place));
      head.addEventListener("keydown", event => { if (event.key === "Enter") sort(table, head, place); });
    });
    const rows = [...table.tBodies].flatMap(movable);
    for (const row of rows.filter(row => row.id)) {
      row.cells[0].append(linkTo(row.id, "row-link", "row"));
    }
    if (rows.length <= 12) continue;
    const field = document.createElement("input");
    field.type = "search";
    field.className = "filter";
    field.placeholder = "Filter rows";
    field.setAttribute("aria-label", "Filter rows of this table");
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !wanted.every(word => row.textContent.toLowerCase().includes(word));
    });
    table.parentElement.before(field);
  }
}
