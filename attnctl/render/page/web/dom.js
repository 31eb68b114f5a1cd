// Small helpers: the page's data, elements whose text is never markup, tables, and readable numbers.
"use strict";

const byId = (id) => document.getElementById(id);
const PAGE = JSON.parse(byId("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

/** Make an element, named tag.class. Parts that are objects are attributes, others are children: nodes or text, never markup. */
function el(name, ...parts) {
  const [tag, ...classes] = name.split(".");
  return put(document.createElement(tag), classes.length ? { class: classes.join(" ") } : null, parts);
}

const svgEl = (tag, ...parts) => put(document.createElementNS(SVG, tag), parts);

/** Put attributes ("on…": listeners) and children into a node; null, undefined and false are ignored. */
function put(node, ...parts) {
  for (const part of parts.flat(Infinity)) {
    if (part?.constructor === Object) for (const [name, value] of Object.entries(part)) setOne(node, name, value);
    else if (part !== null && part !== undefined && part !== false) node.append(part);
  }
  return node;
}

/** Empty a node, and put attributes and children into it. */
function refill(node, ...parts) {
  node.replaceChildren();
  return put(node, parts);
}

function setOne(node, name, value) {
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (name === "vars") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
  else if (value !== null && value !== undefined && value !== false)
    node.setAttribute(name, value === true ? "" : value);
}

const on = (id, type, act) => byId(id).addEventListener(type, act);

function say(text) {
  byId("say").textContent = text;
}

/** Return the step [down, across] of an arrow key; undefined for other keys. */
const arrowStep = (event) =>
  ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] })[event.key];

// --- tables ----------------------------------------------------------------------------------------------------

const isCell = (part) => part instanceof HTMLTableCellElement;

/** Make a row: its class, its name, and its cells; parts that are not cells become cells. */
const tableRow = (kind, name, ...cells) =>
  el(
    "tr",
    { class: kind },
    el("th", { scope: "row", title: typeof name === "string" && name }, name),
    cells.flat().map((cell) => (isCell(cell) ? cell : el("td", cell))),
  );

function table(kind, headings, rows) {
  const cells = headings.map((text) => (isCell(text) ? text : el("th", { scope: "col" }, text)));
  return el(`table.${kind}`, el("thead", el("tr", cells)), el("tbody", rows));
}

function scrolling(name, ...children) {
  return el("div.scroll", { tabindex: 0, role: "region", "aria-label": name }, children);
}

// --- numbers and words -----------------------------------------------------------------------------------------

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const range = (first, past) => Array.from({ length: past - first }, (_, at) => first + at);
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const trueMinus = (text) => text.replaceAll("-", "−");

/** Return a number with a true minus sign and no negative zero. */
const fixed = (x, digits = 2) => trueMinus((Number(x.toFixed(digits)) === 0 ? 0 : x).toFixed(digits));

const signed = (x, digits = 3) => `${Number(x.toFixed(digits)) > 0 ? "+" : ""}${fixed(x, digits)}`;

/** Return a weight as text with two digits; a weight that is not 0 is never written as 0.00. */
function weightText(w, digits = 2) {
  if (w === 0) return "0";
  return Math.abs(w) < 0.5 * 10 ** -digits ? trueMinus(w.toPrecision(2)) : fixed(w, digits);
}

/** Return a weight for a table: a fixed number of digits, with "<" before numbers that are too small for them. */
function cellText(w, digits = 3) {
  return w !== 0 && Math.abs(w) < 0.5 * 10 ** -digits ? `< ${(10 ** -digits).toFixed(digits)}` : fixed(w, digits);
}

/** Return a number that may be very small or very large. */
function short(x) {
  if (x === 0) return "0";
  return x >= 0.005 && x < 100000 ? fixed(x, x >= 1000 ? 0 : 2) : trueMinus(x.toExponential(1));
}

/** Return a share for a sentence: 94 %, 0.4 %, less than 0.1 %. */
function percent(w) {
  const p = 100 * w;
  if (p < 0.1) return "less than 0.1 %";
  return `${p >= 9.95 ? Math.round(p) : p.toFixed(1).replace(/\.0$/, "")} %`;
}

/** Return text with subscripts and superscripts: W_Q, d_k, a^(2k/d). */
function indexed(text) {
  const parts = text.split(/(?<=\b[A-Za-z])_([A-Za-z]+)|\^\(([^)]*)\)/);
  return parts.map((part, at) => part && (at % 3 === 0 ? part : el(at % 3 === 1 ? "sub" : "sup", part)));
}

const formula = (text) =>
  el(
    "span",
    text.split(/ {2,}/).map((equation) => [el("span.formula", indexed(equation)), " "]),
  );

/** Join parts: a, b and c. */
const listed = (parts) => parts.map((part, at) => [at === 0 ? "" : at === parts.length - 1 ? " and " : ", ", part]);
