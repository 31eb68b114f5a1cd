// Small helpers: elements whose text is always text, and numbers as a reader wants them.
"use strict";

/** An element. Attributes starting with "on" are listeners; children are nodes or text, never markup. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  setAll(node, attributes);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

function svgEl(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  setAll(node, attributes);
  node.append(...children);
  return node;
}

function setAll(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else node.setAttribute(name, value === true ? "" : value);
  }
}

const byId = (id) => document.getElementById(id);

/** A number with a true minus sign and no negative zero. */
function fixed(x, digits = 2) {
  const text = x.toFixed(digits);
  if (Number(text) === 0) return (0).toFixed(digits);
  return text.replace("-", "−");
}

/** A weight: two digits in a small grid, more where all are small; never 0.00 for what is not 0. */
function weightText(w, digits = 2) {
  if (w === 0) return "0";
  if (Math.abs(w) < 0.5 * 10 ** -digits) return w.toPrecision(2).replace("-", "−").replace("e−", "e−");
  return fixed(w, digits);
}

/** A weight in a table: a fixed number of digits, and "<" for what they cannot show. */
function cellText(w, digits = 3) {
  return w !== 0 && Math.abs(w) < 0.5 * 10 ** -digits ? `< ${(10 ** -digits).toFixed(digits)}` : fixed(w, digits);
}

/** A share for a sentence: 94 %, 0.4 %, less than 0.1 %. */
function percent(w) {
  const p = 100 * w;
  if (p >= 9.95) return `${Math.round(p)} %`;
  if (p >= 0.95) return `${Number(p.toFixed(0)) === p ? p : p.toFixed(1).replace(/\.0$/, "")} %`;
  return p < 0.1 ? "less than 0.1 %" : `${p.toFixed(1)} %`;
}

/** A term that stands after a sign or inside a product. */
const inProduct = (x, digits = 2) =>
  x < 0 && Number(x.toFixed(digits)) !== 0 ? `(${fixed(x, digits)})` : fixed(x, digits);

/** Text with its lower and upper indices set as such: W_Q, d_k, a^(2k/d). */
function indexed(text) {
  const parts = text.split(/(?<=\b[A-Za-z])_([A-Za-z]+)|\^\(([^)]*)\)/);
  return parts.map((part, at) =>
    part === undefined ? "" : at % 3 === 0 ? part : el(at % 3 === 1 ? "sub" : "sup", {}, part),
  );
}

function formula(text) {
  const one = (equation) => el("span", { class: "formula" }, ...indexed(equation));
  return el("span", {}, ...text.split(/ {2,}/).flatMap((equation) => [one(equation), " "]));
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

function say(text) {
  byId("say").textContent = text;
}
