"use strict";
// Lets the reader sort and filter tables, and switch between light and dark. Without it the page shows all rows, in the system's colours.
const MOST = 200, STEP = 2000, FEWEST = 8, MOST_CHOICES = 40;

function bytesText(amount) {
  const power = amount < 1000 ? 0 : Math.min(6, Math.floor(Math.log10(amount) / 3));
  return `${Number((amount / 1000 ** power).toPrecision(4))} ${["", "k", "M", "G", "T", "P", "E"][power]}B`;
}

// layers_2 before layers_10.
function word(text) {
  return text.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(12, "0"));
}

function made(tag, properties, ...children) {
  const one = Object.assign(document.createElement(tag), properties);
  one.append(...children);
  return one;
}

// A row is its texts and values by column, and its elements. Of those that the page was made with:
function builtRow(row) {
  // Below a row stands what it opens into, if anything.
  const nodes = row.nextElementSibling?.classList.contains("detail") ? [row, row.nextElementSibling] : [row];
  return {
    text: (column) => row.cells[column].textContent,
    value: (column) => (row.cells[column].dataset.value || "") === "" ? -Infinity : Number(row.cells[column].dataset.value),
    texts: () => nodes.map((one) => one.textContent).join(" "),
    nodes: () => nodes,
  };
}

// Of those that are built when they are first shown:
function laterRows(data) {
  const { columns, details } = data;
  const cell = (column, number) => column.words[column.at ? column.at[number] : number];
  const text = (column, number) => [cell(column, number)].flat()[0].replace(/<[^>]*>/g, "");

  function filled(tag, column, number, isFirst) {
    const one = document.createElement(tag);
    const content = cell(column, number);
    if (tag === "th") one.scope = "row";
    one.className = column.values ? "number" : column.class;
    if (Array.isArray(content)) one.innerHTML = content[0];
    else if (isFirst && details.length) one.append(made("details", {}, made("summary", {}, content)));
    else if (column.class === "path") content.split("/").forEach((part, at) => at ? one.append("/", document.createElement("wbr"), part) : one.append(part));
    else one.append(content);
    if (column.shares) one.append(made("i", {})), one.lastChild.style.width = `${100 * column.shares[number]}%`;
    return one;
  }

  function build(number) {
    const row = made("tr", {}, ...columns.map((column, at) => filled(at ? "td" : "th", column, number, at === 0)));
    if (!details.length) return [row];
    const list = made("ul", {}, ...details[number].map((line) => made("li", {}, line)));
    return [row, made("tr", { className: "detail" }, made("td", { colSpan: columns.length }, list))];
  }

  return Array.from({ length: (columns[0].at || columns[0].words).length }, (_, number) => {
    let nodes;
    return {
      text: (column) => text(columns[column], number),
      value: (column) => columns[column].values?.[number] ?? -Infinity,
      texts: () => [...columns.map((column) => text(column, number)), ...(details[number] || [])].join(" "),
      nodes: () => nodes ??= build(number),
    };
  });
}

// A search and a choice for each column of few words.
function filters(grid, heads, rows) {
  const form = made("form", { className: "filters", role: "search", ariaLabel: `Filter: ${grid.querySelector("caption").textContent}` });
  form.append(made("label", {}, "Find ", made("input", { type: "search", autocomplete: "off", spellcheck: false })));
  for (const head of heads.filter((one) => "choice" in one.dataset)) {
    const choices = [...new Set(rows.map((row) => row.text(head.cellIndex)))].filter(Boolean).sort();
    if (choices.length < 2 || choices.length > MOST_CHOICES) continue;
    const select = made("select", {}, made("option", { value: "" }, "all"), ...choices.map((choice) => made("option", {}, choice)));
    select.dataset.column = head.cellIndex;
    form.append(made("label", {}, `${head.textContent} `, select));
  }
  form.append(made("output", { ariaLive: "polite" }));
  return form;
}

function live(grid) {
  const body = grid.querySelector("tbody");
  const heads = [...grid.querySelectorAll("thead th")];
  const later = grid.querySelector("script[type='application/json']");
  let rows = [...body.rows].filter((row) => !row.classList.contains("detail")).map(builtRow);
  if (later) rows = rows.concat(laterRows(JSON.parse(later.textContent)));
  const form = rows.length < FEWEST ? null : filters(grid, heads, rows);
  const more = made("button", { type: "button", className: "more" });
  let most = form ? MOST : Infinity;

  function matches(row, wanted, picked) {
    if (picked.some(([column, choice]) => row.text(column) !== choice)) return false;
    if (!wanted.length) return true;
    row.found ??= row.texts().toLowerCase();
    return wanted.every((word) => row.found.includes(word));
  }

  function show() {
    const wanted = form ? form.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    const picked = form ? [...form.querySelectorAll("select")].filter((one) => one.value).map((one) => [one.dataset.column, one.value]) : [];
    const found = wanted.length || picked.length ? rows.filter((row) => matches(row, wanted, picked)) : rows;
    const shown = found.slice(0, most);
    body.replaceChildren(...shown.flatMap((row) => row.nodes()));
    if (form) tell(found, shown.length);
  }

  function tell(found, shown) {
    const of = found.length < rows.length ? ` of ${rows.length.toLocaleString("en")}` : "";
    const sums = heads.filter((head) => "sum" in head.dataset).map((head) => {
      const sum = found.reduce((total, row) => total + Math.max(0, row.value(head.cellIndex)), 0);
      return `, ${head.textContent} ${bytesText(sum)}`;
    });
    form.querySelector("output").textContent = `${found.length.toLocaleString("en")}${of} rows${sums.join("")}`;
    const left = found.length - shown;
    more.hidden = !left;
    more.textContent = left <= STEP ? `Show all ${found.length.toLocaleString("en")} rows` : `Show ${STEP.toLocaleString("en")} more of ${found.length.toLocaleString("en")} rows`;
  }

  function sort(head) {
    const isNumber = head.classList.contains("number");
    const first = isNumber ? "descending" : "ascending";
    const order = head.ariaSort === first ? (isNumber ? "ascending" : "descending") : first;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const keyed = rows.map((row) => [isNumber ? row.value(head.cellIndex) : word(row.text(head.cellIndex)), row]);
    const sign = order === "ascending" ? 1 : -1;
    keyed.sort(([a], [b]) => (a < b ? -sign : a > b ? sign : 0));
    rows = keyed.map(([, row]) => row);
    show();
  }

  for (const head of heads) {
    const button = made("button", { type: "button" }, ...head.childNodes);
    button.addEventListener("click", () => sort(head));
    head.append(button);
  }
  if (form) {
    grid.prepend(form);
    grid.append(more);
    form.addEventListener("input", show);
    form.addEventListener("submit", (event) => event.preventDefault());
    more.addEventListener("click", () => { most += STEP; show(); });
    show();
  }
}

function themes(button) {
  const root = document.documentElement;
  const stored = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  let isDark = stored ? stored === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  function apply() {
    button.textContent = isDark ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark ? "light" : "dark"} colours`);
  }
  function choose() {
    isDark = !isDark;
    root.style.colorScheme = isDark ? "dark" : "light";
    try { localStorage.setItem("theme", isDark ? "dark" : "light"); } catch { /* A page from a file may have no storage. */ }
    apply();
  }
  if (stored) root.style.colorScheme = stored;
  button.hidden = false;
  button.addEventListener("click", choose);
  apply();
}

document.querySelectorAll("[data-sortable]").forEach(live);
themes(document.getElementById("theme"));

// A link into a folded part unfolds it.
function unfold() {
  const part = location.hash && document.getElementById(location.hash.slice(1))?.closest("details");
  if (part) part.open = true;
}
addEventListener("hashchange", unfold);
unfold();
