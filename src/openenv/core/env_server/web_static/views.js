// An observation as people read it: boards in monospace, images, tables, messages; the rest by name and value.

import { compact, el, pretty, shown } from "./dom.js";

const MAX_SIDE = 64;
const MAX_ROWS = 200;
const MAX_DEPTH = 2;
const LEAD_NAMES = /^(message|text|prompt|feedback|question|info|description|hint|output|response|result)$/i;
const RASTER = { iVBORw0KGgo: "png", "/9j/": "jpeg", R0lGOD: "gif", UklGR: "webp" };

const isPlain = (value) => value === null || typeof value !== "object";
const isId = (value) => typeof value === "string" && /^[0-9a-f-]{16,}$/i.test(value);
const isNumber = (value) => typeof value === "number";

function isGrid(value) {
  return Array.isArray(value) && value.length > 1 && value.length <= MAX_SIDE && value.every((row) =>
    Array.isArray(row) && row.length > 1 && row.length === value[0].length && row.length <= MAX_SIDE && row.every(isPlain));
}

const isRecords = (value) => Array.isArray(value) && value.length > 0 && value.every((one) =>
  one && typeof one === "object" && !Array.isArray(one) && Object.keys(one).length <= 12);

const isMessages = (value) => isRecords(value) && value.every((one) =>
  typeof one.content === "string" && ("role" in one || "category" in one || "sender_id" in one));

/** Height and width of nested lists that are an image: rows of pixels of 1, 3 or 4 channels, or large rows of numbers. */
function imageShape(value) {
  if (!Array.isArray(value) || value.length < 2 || !Array.isArray(value[0])) return null;
  const [height, width] = [value.length, value[0].length];
  const channels = Array.isArray(value[0][0]) ? value[0][0].length : 1;
  if (![1, 3, 4].includes(channels) || height * width < 16 || height * width > 4_000_000) return null;
  if (!Array.isArray(value[0][0]) && (height <= MAX_SIDE || width <= MAX_SIDE)) return null;
  const good = (pixel) => (Array.isArray(pixel) ? pixel.length === channels && pixel.every(isNumber) : channels === 1 && isNumber(pixel));
  return value.every((row) => Array.isArray(row) && row.length === width && row.every(good)) ? { height, width, channels } : null;
}

function imageSource(text) {
  if (/^data:image\/(png|jpeg|gif|webp);base64,/.test(text)) return text;
  if (text.length < 64 || !/^[A-Za-z0-9+/\s]+=*$/.test(text.slice(0, 200))) return null;
  const kind = Object.entries(RASTER).find(([start]) => text.startsWith(start))?.[1];
  return kind ? `data:image/${kind};base64,${text}` : null;
}

function drawn(value, { height, width, channels }, name) {
  const canvas = el("canvas", { class: "image", width, height, role: "img", "aria-label": `${name}: image of ${width} by ${height}` });
  let top = 0;
  for (const row of value) for (const pixel of row) for (const one of [pixel].flat()) top = Math.max(top, one);
  const scale = top <= 1 ? 255 : 1;
  const image = new ImageData(width, height);
  value.forEach((row, y) => row.forEach((pixel, x) => {
    const [r, g = r, b = r, a = 255 / scale] = [pixel].flat();
    image.data.set([r * scale, g * scale, b * scale, a * scale], 4 * (y * width + x));
  }));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function grid(rows) {
  return el("div", { class: "scroll" }, el("table", { class: `grid${rows.length > 16 ? " small" : ""}` }, el("tbody", {}, rows.map((row) =>
    el("tr", {}, row.map((cell) => {
      const blank = cell === null || cell === 0 || cell === "" || cell === false;
      return el("td", { class: blank ? "blank" : null }, cell === null ? "" : isNumber(cell) ? shown(cell) : String(cell));
    }))))));
}

function records(rows) {
  const names = [...new Set(rows.flatMap(Object.keys))];
  return el("div", { class: "scroll" }, el("table", { class: "records" },
    el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows.slice(0, MAX_ROWS).map((row) => el("tr", {}, names.map((name) =>
      el("td", {}, row[name] === undefined ? "" : typeof row[name] === "string" ? row[name] : compact(row[name]))))))),
    rows.length > MAX_ROWS && el("p", { class: "quiet" }, `… and ${rows.length - MAX_ROWS} more rows, in JSON`));
}

const messages = (all) => el("ol", { class: "messages" }, all.map((one) =>
  el("li", { class: /user|human/i.test(one.role ?? "") ? "mine" : null },
    el("span", { class: "role" }, String(one.role ?? one.category ?? one.sender_id)), el("p", {}, one.content))));

const block = (name, view) => el("figure", { class: "block" }, el("figcaption", {}, name.replace(/_/g, " ")), view);

/** The view of one field that is more than a word: null for what belongs into the list of small things. */
function large(name, value, depth = 0) {
  if (typeof value === "string") {
    const source = imageSource(value);
    if (source) return el("img", { class: "image", src: source, alt: name });
    if (value.includes("\n")) return el("pre", { class: "board" }, value.replace(/\n+$/, ""));
    return null;
  }
  if (isPlain(value)) return null;
  const shape = imageShape(value);
  if (shape) return drawn(value, shape, name);
  if (isGrid(value)) return grid(value);
  if (isMessages(value)) return messages(value);
  if (isRecords(value) && value.some((one) => Object.values(one).every(isPlain))) return records(value);
  if (!Array.isArray(value) && depth < MAX_DEPTH && Object.values(value).some((one) => large("", one, depth + 1))) {
    return el("div", { class: "nested" }, view(value, depth + 1));
  }
  const text = pretty(value);
  if (text.length <= 60 && !text.includes("\n")) return null;
  return el("pre", { class: "json" }, text.length > 20_000 ? `${text.slice(0, 20_000)}\n…` : text);
}

const small = (value) => (value === null ? el("span", { class: "quiet" }, "none") : isNumber(value) ? shown(value)
  : typeof value === "boolean" ? (value ? "yes" : "no") : typeof value === "string" ? value || el("span", { class: "quiet" }, "empty") : pretty(value));

/** What a tool or an environment answered, as elements. */
export function view(observation, depth = 0) {
  if (observation === null || typeof observation !== "object" || Array.isArray(observation)) {
    const shownLarge = large("value", observation);
    return [shownLarge ?? el("p", { class: "lead" }, small(observation))];
  }
  const lead = [];
  const blocks = [];
  const list = [];
  for (const [name, value] of Object.entries(observation)) {
    if (name === "metadata" && value && Object.keys(value).length === 0) continue;
    const one = large(name, value, depth);
    if (one) blocks.push(block(name, one));
    else if (typeof value === "string" && LEAD_NAMES.test(name) && value) lead.push(el("p", { class: "lead" }, value));
    else list.push(el("div", {}, el("dt", {}, name.replace(/_/g, " ")), el("dd", { class: isId(value) ? "id" : null }, small(value))));
  }
  return [
    ...lead,
    blocks.length > 0 && el("div", { class: "blocks" }, blocks),
    list.length > 0 && el("dl", { class: "facts" }, list),
  ].filter(Boolean);
}

/** The answer of a tool: its text where that is all it is. */
export function toolView({ result, error }) {
  if (error) return [el("p", { class: "lead bad" }, `${error.error_type ?? "error"}: ${error.message ?? ""}`)];
  const content = result?.content;
  if (result && typeof result === "object" && "data" in result && result.data !== null) return view(isPlain(result.data) ? result.data : { ...result.data });
  if (Array.isArray(content) && content.every((one) => one.type === "text")) return content.map((one) => large("text", one.text) ?? el("p", { class: "lead" }, one.text));
  if (Array.isArray(content)) return content.map((one) => (one.type === "image" ? large("image", one.data) : el("pre", { class: "json" }, one.text ?? pretty(one))));
  return view(result ?? null);
}
