"use strict";
// Lets the reader sort and filter tables, and switch between light and dark. Without it the page shows all rows, in the system's colours.
const MOST = 200, FEWEST = 8, MOST_CHOICES = 40;

function bytesText(amount) {
  const power = amount < 1000 ? 0 : Math.min(6, Math.floor(Math.log10(amount) / 3));
  return `${Number((amount / 1000 ** power).toPrecision(4))} ${["", "k", "M", "G", "T", "P", "E"][power]}B`;
}

function number(cell) {
  return cell.dataset.value === "" ? -Infinity : Number(cell.dataset.value);
}

// layers_2 before layers_10.
function word(cell) {
  return cell.textContent.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(12, "0"));
}

function made(tag, properties, ...children) {
  const one = Object.assign(document.createElement(tag), properties);
  one.append(...children);
  return one;
}

// A search and a choice for each column of few words.
function filters(grid, heads, rows) {
  const form = made("form", { className: "filters", role: "search", ariaLabel: `Filter: ${grid.querySelector("caption").textContent}` });
  form.append(made("label", {}, "Find ", made("input", { type: "search", autocomplete: "off", spellcheck: false })));
  for (const head of heads.filter((one) => "choice" in one.dataset)) {
    const choices = [...new Set(rows.map((row) => row.cells[head.cellIndex].textContent))].filter(Boolean).sort();
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
  let rows = [...body.rows].filter((row) => !row.classList.contains("detail"));
  // Below a row stands what it opens into, if anything.
  const withDetail = new Map(rows.map((row) => [row, row.nextElementSibling?.classList.contains("detail") ? [row, row.nextElementSibling] : [row]]));
  const form = rows.length < FEWEST ? null : filters(grid, heads, rows);
  const more = made("button", { type: "button", className: "more" });
  const texts = new Map();
  let isWhole = !form;

  function matches(row, wanted, picked) {
    if (picked.some(([column, choice]) => row.cells[column].textContent !== choice)) return false;
    if (!wanted.length) return true;
    if (!texts.has(row)) texts.set(row, withDetail.get(row).map((one) => one.textContent.toLowerCase()).join(" "));
    return wanted.every((word) => texts.get(row).includes(word));
  }

  function show() {
    const wanted = form ? form.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    const picked = form ? [...form.querySelectorAll("select")].filter((one) => one.value).map((one) => [one.dataset.column, one.value]) : [];
    const found = rows.filter((row) => matches(row, wanted, picked));
    const shown = isWhole ? found : found.slice(0, MOST);
    body.replaceChildren(...shown.flatMap((row) => withDetail.get(row)));
    if (form) tell(found, shown.length);
  }

  function tell(found, shown) {
    const of = found.length < rows.length ? ` of ${rows.length.toLocaleString("en")}` : "";
    const sums = heads.filter((head) => "sum" in head.dataset).map((head) => {
      const sum = found.reduce((total, row) => total + Math.max(0, number(row.cells[head.cellIndex])), 0);
      return `, ${head.textContent} ${bytesText(sum)}`;
    });
    form.querySelector("output").textContent = `${found.length.toLocaleString("en")}${of} rows${sums.join("")}`;
    more.hidden = shown === found.length;
    more.textContent = `Show all ${found.length.toLocaleString("en")} rows`;
  }

  function sort(head) {
    const isNumber = head.classList.contains("number");
    const first = isNumber ? "descending" : "ascending";
    const order = head.ariaSort === first ? (isNumber ? "ascending" : "descending") : first;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const keyed = rows.map((row) => [(isNumber ? number : word)(row.cells[head.cellIndex]), row]);
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
    more.addEventListener("click", () => { isWhole = true; show(); });
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
