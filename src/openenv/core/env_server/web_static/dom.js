// Making elements. Text is always text: nothing on this page parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

/** A number as people read it. */
export function shown(number) {
  if (!Number.isFinite(number)) return String(number).replace("Infinity", "∞");
  return String(Number(number.toFixed(Math.abs(number) < 10 ? 3 : 2)));
}

/** JSON with NaN and the infinities, indented; short arrays of plain values stay on one line. */
export function pretty(value, indent = "") {
  if (typeof value === "number" || typeof value === "bigint") return String(value);
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const list = Array.isArray(value);
  const entries = list ? value.map((one) => ["", one]) : Object.entries(value);
  if (!entries.length) return list ? "[]" : "{}";
  const plain = list && value.every((one) => one === null || typeof one !== "object");
  const inner = `${indent}  `;
  const parts = entries.map(([key, one]) => (list ? "" : `${JSON.stringify(key)}: `) + pretty(one, inner));
  if (plain && parts.join(", ").length < 72) return `[${parts.join(", ")}]`;
  return `${list ? "[" : "{"}\n${parts.map((part) => inner + part).join(",\n")}\n${indent}${list ? "]" : "}"}`;
}

/** JSON on one line, as short as a list row needs it. */
export function compact(value) {
  if (typeof value === "number") return shown(value);
  if (typeof value === "bigint") return String(value);
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "";
  if (Array.isArray(value)) return `[${value.map(compact).join(", ")}]`;
  return Object.entries(value).map(([key, one]) => `${key} ${compact(one)}`).join(" · ");
}
