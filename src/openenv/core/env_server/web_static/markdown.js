// The part of Markdown that READMEs use, as elements. HTML in it is shown as the text that it is.

import { el } from "./dom.js";

const SAFE_LINK = /^(https?:\/\/|mailto:|#)/i;
const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|!\[([^\]]*)\]\(\s*<?([^\s)>]*)>?[^)]*\)|\[((?:[^[\]]|\[[^\]]*\])+)\]\(\s*<?([^\s)>]*)>?[^)]*\)|\*\*([\s\S]+?)\*\*|(?<![\w*])\*([^*\s](?:[^*]*[^*\s])?)\*(?!\w)|(?<!\w)_([^_\s](?:[^_]*[^_\s])?)_(?!\w)|~~([\s\S]+?)~~|<(https?:\/\/[^>\s]+)>|(?<![\w/])(https?:\/\/[^\s<>)\]]*[^\s<>)\].,;:!?'"])/g;

const link = (url, ...text) => (SAFE_LINK.test(url)
  ? el("a", { href: url, rel: "noopener noreferrer", target: url.startsWith("#") ? null : "_blank" }, ...text)
  : el("span", {}, ...text));

function inline(text) {
  const out = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, , code, alt, image, label, url, bold, star, under, gone, angle, bare] = found;
    out.push(text.slice(at, found.index));
    at = found.index + whole.length;
    if (code !== undefined) out.push(el("code", {}, code.replace(/^ (.*) $/s, "$1")));
    else if (alt !== undefined) out.push(link(image, alt || "image")); // nothing is loaded from elsewhere
    else if (label !== undefined) out.push(link(url, ...inline(label)));
    else if (bold !== undefined) out.push(el("strong", {}, ...inline(bold)));
    else if (star !== undefined || under !== undefined) out.push(el("em", {}, ...inline(star ?? under)));
    else if (gone !== undefined) out.push(el("s", {}, ...inline(gone)));
    else out.push(link(angle ?? bare, angle ?? bare));
  }
  out.push(text.slice(at));
  return out.filter((one) => one !== "");
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((one) => one.trim().replace(/\\\|/g, "|"));
const isRule = (line) => /^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$/.test(line ?? "") && line.includes("-");
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const starts = (line) => /^(#{1,6}\s|\s*(```|~~~)|>|\s*([-*+]|\d{1,9}[.)])\s+)/.test(line);

/** @param text Markdown; @returns elements */
export function markdown(text) {
  const lines = text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").replace(/<!--[\s\S]*?-->/g, "").split("\n");
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    const fence = /^\s*(`{3,}|~{3,})\s*([\w+-]*)/.exec(line);
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      const code = [];
      for (at += 1; at < lines.length && !lines[at].trim().startsWith(fence[1]); at++) code.push(lines[at]);
      at += 1;
      out.push(el("pre", { class: "code" }, el("code", {}, code.join("\n"))));
    } else if (heading) {
      out.push(el(`h${Math.min(6, heading[1].length + 1)}`, {}, ...inline(heading[2])));
      at += 1;
    } else if (/^\s*([-*_])\s*(\1\s*){2,}$/.test(line)) {
      out.push(el("hr"));
      at += 1;
    } else if (line.includes("|") && isRule(lines[at + 1])) {
      const head = cells(line);
      const rows = [];
      for (at += 2; at < lines.length && lines[at].includes("|") && lines[at].trim(); at++) rows.push(cells(lines[at]));
      out.push(el("div", { class: "scroll" }, el("table", { class: "records" },
        el("thead", {}, el("tr", {}, head.map((one) => el("th", { scope: "col" }, ...inline(one))))),
        el("tbody", {}, rows.map((row) => el("tr", {}, head.map((_, i) => el("td", {}, ...inline(row[i] ?? "")))))))));
    } else if (line.startsWith(">")) {
      const quoted = [];
      for (; at < lines.length && lines[at].trim() && (lines[at].startsWith(">") || quoted.length); at++) quoted.push(lines[at].replace(/^>\s?/, ""));
      out.push(el("blockquote", {}, ...markdown(quoted.join("\n"))));
    } else if (ITEM.test(line)) {
      const [items, next] = list(lines, at);
      out.push(items);
      at = next;
    } else {
      const words = [line];
      for (at += 1; at < lines.length && lines[at].trim() && !starts(lines[at]); at++) words.push(lines[at]);
      out.push(el("p", {}, ...inline(words.map((one) => one.trim()).join("\n"))));
    }
  }
  return out;
}

function list(lines, from) {
  const [, indent, mark] = ITEM.exec(lines[from]);
  const items = [];
  let at = from;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length !== indent.length) break;
    const body = [item[3]];
    const inner = indent.length + item[2].length + 1;
    for (at += 1; at < lines.length; at++) {
      const deep = lines[at].length - lines[at].trimStart().length;
      if (!lines[at].trim()) {
        if (!/^\s{2,}\S/.test(lines[at + 1] ?? "") || (lines[at + 1].length - lines[at + 1].trimStart().length) < inner) break;
        body.push("");
      } else if (deep >= inner || (deep > indent.length && ITEM.test(lines[at]))) {
        body.push(lines[at].slice(Math.min(deep, inner)));
      } else if (ITEM.test(lines[at]) || starts(lines[at])) {
        break;
      } else {
        body.push(lines[at].trim());
      }
    }
    while (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
    const made = markdown(body.join("\n"));
    const single = made.length && made[0].tagName === "P";
    items.push(el("li", {}, ...(single ? [...made[0].childNodes, ...made.slice(1)] : made)));
  }
  return [el(/\d/.test(mark) ? "ol" : "ul", {}, items), at];
}
