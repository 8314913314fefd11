"use strict";
// Sorts and filters the tables of a report, and keeps the names of rows in view. Without it, all rows are there.

const MOST_FIXED = 2 / 3; // of the width of the box

const make = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

const headsOf = (table) => {
  const [first, second] = table.tHead.rows;
  const heads = [];
  const grouped = [];
  for (const cell of first.cells) {
    const isGroup = second !== undefined && cell.rowSpan === 1;
    for (let i = 0; i < cell.colSpan; i++) {
      if (isGroup) grouped.push({ at: heads.length, group: cell.textContent });
      heads.push({ cell, name: cell.textContent });
    }
  }
  grouped.forEach(({ at, group }, i) => {
    const cell = second.cells[i];
    heads[at] = { cell, name: `${group}, ${cell.textContent}` };
  });
  return heads;
};

const labelOf = (cell) => cell.dataset.label ?? cell.textContent;

const valueOf = (cell) => {
  const { value } = cell.dataset;
  if (value !== undefined) return value === "" ? null : Number(value);
  return ["", "\u2013"].includes(labelOf(cell)) ? null : labelOf(cell);
};

// Missing values are last in both directions.
const compare = (one, other, sign) => {
  if (one === null || other === null) return (one === null) - (other === null);
  return one < other ? -sign : one > other ? sign : 0;
};

const filterOf = ({ cell, name }, column, rows, changed) => {
  const values = new Map(rows.map((row) => [labelOf(row.cells[column]), valueOf(row.cells[column])]));
  if (!("filter" in cell.dataset) || values.size < 2) return null;
  const select = make("select", { onchange: changed }, make("option", { value: "", textContent: `${name}: all` }));
  select.setAttribute("aria-label", `Filter by ${name}`);
  [...values.keys()].forEach((value, i) =>
    select.append(make("option", { value: String(i), textContent: `${name}: ${value}` })),
  );
  const wanted = () => [...values.keys()][Number(select.value)];
  return { select, shows: (row) => select.value === "" || labelOf(row.cells[column]) === wanted() };
};

const enhance = (box, table) => {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = headsOf(table);
  if (rows.length < 2) return;
  rows.forEach((row, place) => (row.dataset.place = place));

  let sorted = null;
  const update = () => {
    rows.forEach((row) => (row.hidden = !filters.every(({ shows }) => shows(row))));
    const order = [...rows];
    heads.forEach(({ cell }) => cell.removeAttribute("aria-sort"));
    let by = "";
    if (sorted !== null) {
      const { column, sign } = sorted;
      const direction = sign > 0 ? "ascending" : "descending";
      order.sort((a, b) => compare(valueOf(a.cells[column]), valueOf(b.cells[column]), sign));
      heads[column].cell.setAttribute("aria-sort", direction);
      by = `, sorted by ${heads[column].name}, ${direction}`;
    }
    body.append(...order);
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
    count.append(make("span", { className: "hidden", textContent: by }));
    reset.hidden = sorted === null && filters.every(({ select }) => select.value === "");
  };

  const filters = heads.map((head, column) => filterOf(head, column, rows, update)).filter((of) => of !== null);
  const count = make("span", { className: "count" });
  count.setAttribute("role", "status");
  const reset = make("button", { type: "button", textContent: "Reset" });
  const tools = make("div", { className: "tools" }, ...filters.map(({ select }) => select), reset, count);
  tools.setAttribute("role", "group");
  tools.setAttribute("aria-label", `Rows of the table: ${box.getAttribute("aria-label")}`);
  box.before(tools);

  heads.forEach(({ cell, name }, column) => {
    const button = make("button", { type: "button" }, make("span", {}, ...cell.childNodes));
    button.setAttribute("aria-label", name);
    button.onclick = () => {
      sorted = { column, sign: sorted?.column === column ? -sorted.sign : 1 };
      update();
    };
    cell.append(button);
  });
  reset.onclick = () => {
    sorted = null;
    filters.forEach(({ select }) => (select.value = ""));
    update();
    (filters[0]?.select ?? heads[0].cell.firstChild).focus();
  };
  update();
};

// Fixes as many of the columns that name a row as leave room for the others; at least the first.
const fix = (box, table) => {
  const rows = [...table.tBodies[0].rows];
  const names = [...rows[0].cells].findIndex((cell) => cell.tagName !== "TH");
  const heads = headsOf(table);
  let left = 0;
  for (let column = 0; column < names; column++) {
    const width = heads[column].cell.offsetWidth;
    const isFixed = column === 0 || (left !== null && left + width <= MOST_FIXED * box.clientWidth);
    for (const cell of [heads[column].cell, ...rows.map((row) => row.cells[column])]) {
      cell.classList.toggle("fixed", isFixed);
      cell.style.left = isFixed ? `${left}px` : "";
    }
    left = isFixed ? left + width : null;
  }
};

for (const box of document.querySelectorAll(".scroll")) {
  const table = box.querySelector("table");
  if (!table?.tHead || table.tBodies[0].rows.length === 0) continue;
  enhance(box, table);
  const observer = new ResizeObserver(() => fix(box, table));
  observer.observe(box);
  observer.observe(table);
}
