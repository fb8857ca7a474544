// The rewards of an episode: a bar for each step, a line for their sum.

import { el, shown, svg } from "./dom.js";

const [WIDTH, HEIGHT, PAD] = [640, 120, 8];

/** @param rewards one for each step, null where there was none */
export function chart(rewards) {
  if (!rewards.length) return el("p", { class: "quiet empty" }, "Rewards appear here, step by step.");
  const known = rewards.map((one) => (Number.isFinite(one) ? one : 0));
  let total = 0;
  const sums = known.map((one) => (total += one));
  const low = Math.min(0, ...known, ...sums);
  const high = Math.max(0, ...known, ...sums);
  const span = high - low || 1;
  const y = (value) => HEIGHT - PAD - ((value - low) / span) * (HEIGHT - 2 * PAD);
  const slots = Math.max(known.length, 12);
  const x = (at) => ((at + 0.5) * WIDTH) / slots;
  const bar = Math.min(18, (WIDTH / slots) * 0.6);
  const words = `Rewards of ${known.length} steps, ${shown(total)} in all; the last was ${shown(known.at(-1))}.`;
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words, preserveAspectRatio: "none" },
    svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: y(0), y2: y(0) }),
    known.map((one, at) => svg("rect", {
      class: one < 0 ? "bar bad" : "bar", x: x(at) - bar / 2, width: bar, rx: 1.5,
      y: Math.min(y(one), y(0)), height: Math.max(Math.abs(y(one) - y(0)), one ? 1.5 : 0),
    }, svg("title", {}, `Step ${at + 1}: ${rewards[at] === null ? "no reward" : shown(one)}`))),
    svg("polyline", { class: "sum", points: [[0, y(0)], ...sums.map((one, at) => [x(at), y(one)])].map((one) => one.join(",")).join(" ") }));
}
