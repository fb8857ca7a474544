// One episode as it is shown: its entries, the one that is looked at, the rewards and the state.

import { chart } from "./chart.js";
import { byId, compact, el, pretty, shown } from "./dom.js";
import { toolView, view } from "./views.js";

export class Episode {
  constructor() {
    this.entries = [];
    this.at = -1;
    for (const one of document.querySelectorAll("input[name=shown]")) one.addEventListener("change", () => this.#observe());
  }

  get done() { return this.entries.at(-1)?.done ?? false; }
  get steps() { return this.entries.filter((one) => one.kind !== "reset").length; }
  get total() { return this.entries.reduce((sum, one) => sum + (Number.isFinite(one.reward) ? one.reward : 0), 0); }

  /** Begin anew with what a reset answered. */
  begin(data, parameters) {
    this.entries = [];
    this.add("reset", parameters, data);
  }

  /** @param kind "reset", "step" or "tool"; @param asked what was sent; @param data the reply's */
  add(kind, asked, data) {
    const reward = data.reward === true || data.reward === false ? Number(data.reward) : data.reward ?? null;
    this.entries.push({ kind, asked, observation: data.observation, reward, done: Boolean(data.done), truncated: Boolean(data.truncated) });
    this.at = this.entries.length - 1;
    this.#render();
  }

  /** Look at an earlier observation of this episode. */
  look(at) {
    this.at = at;
    this.#render();
  }

  #render() {
    this.#observe();
    const acts = this.entries.filter((one) => one.kind !== "reset");
    byId("chart").replaceChildren(chart(acts.map((one) => one.reward)));
    const last = acts.at(-1)?.reward;
    byId("reward-last").textContent = last === null || last === undefined ? "–" : shown(last);
    byId("reward-total").textContent = acts.length ? shown(this.total) : "–";
    byId("step-count").textContent = String(this.steps);
    byId("history").replaceChildren(...this.entries.map((one, at) => this.#row(one, at)).reverse());
  }

  #row(entry, at) {
    const what = entry.kind === "reset" ? `reset ${compact(entry.asked)}` : entry.kind === "tool" ? `${entry.asked.tool_name} ${compact(entry.asked.arguments)}` : compact(entry.asked);
    return el("li", {}, el("button", { type: "button", "aria-current": at === this.at ? "true" : null, onclick: () => this.look(at) },
      el("span", { class: "at" }, String(at)),
      el("span", { class: "what" }, what.trim() || "{}"),
      entry.done && el("span", { class: "chip" }, entry.truncated ? "truncated" : "done"),
      entry.reward !== null && at > 0 && el("span", { class: `reward${entry.reward > 0 ? " good" : entry.reward < 0 ? " bad" : ""}` }, (entry.reward > 0 ? "+" : "") + shown(entry.reward))));
  }

  #observe() {
    const entry = this.entries[this.at];
    if (!entry) return;
    const last = this.at === this.entries.length - 1;
    const note = this.at === 0 ? "after reset" : `after step ${this.at}`;
    byId("observation-of").replaceChildren(note, ...(last ? [] : [" · ", el("button", { class: "link", type: "button", onclick: () => this.look(this.entries.length - 1) }, "back to the latest")]));
    const json = document.querySelector("input[name=shown]:checked").value === "json";
    const { observation } = entry;
    const plain = () => [el("pre", { class: "json" }, pretty(observation))];
    byId("observation").replaceChildren(...(json ? plain() : this.#drawn(entry) ?? plain()));
  }

  /** What an observation looks like; null for one of no shape that is known: the call that it answers went well all the same. */
  #drawn({ kind, observation }) {
    try {
      return kind === "tool" && observation && ("result" in observation || observation.error) ? toolView(observation) : view(observation);
    } catch {
      return null;
    }
  }
}
