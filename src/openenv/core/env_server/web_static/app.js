// The page: what the server tells of the environment becomes forms, what its reader does becomes calls of one session.

import { byId, el, pretty, shown } from "./dom.js";
import { Episode } from "./episode.js";
import { SchemaForm } from "./forms.js";
import { CallFailed, Link, SessionLost, parse } from "./link.js";
import { markdown } from "./markdown.js";

const BADGE = {
  none: "No session yet", connecting: "Connecting…", connected: "Connected",
  resuming: "Resuming…", resumed: "Resumed", lost: "Session lost", refused: "No session",
};
const WHY = {
  CAPACITY_REACHED: ["No place is free", "All places for visitors are taken, or a training client uses the only environment. Try again in a moment."],
  evicted: ["Your session made way", "A training client needed this environment; it goes first. Begin a new episode when it is free."],
  idle: ["Your session ended", "Nothing was played for a while."],
  draining: ["The server stops", "It ended all sessions. Begin a new episode when it is back."],
  epoch: ["Session lost", "The server was restarted; what was played before is gone."],
  replaced: ["Session lost", "It goes on elsewhere."],
  unreachable: ["The server cannot be reached", "Check the connection, then try again."],
  closed: ["Session closed", "It was given up."],
  expired: ["Session lost", "The connection was away for too long."],
};
const LOST = ["Session lost", "The connection broke, and the session could not be resumed. Nothing more is played in it."];
const SHOW_CANCEL_MS = 1_000;

const episode = new Episode();
const link = new Link(new URL("ws", location.href.replace(/^http/, "ws").replace(/[?#].*$/, "")), onState);
let page = null;
let resetForm = null;
let actionForm = null;
let tools = null;
let busy = false;

// ------------------------------------------------------------------ what is shown of the connection

function onState(state, detail) {
  const badge = byId("badge");
  const refused = state === "lost" && (detail === "CAPACITY_REACHED" || detail === "unreachable");
  badge.dataset.state = refused ? "refused" : state;
  byId("badge-text").textContent = BADGE[badge.dataset.state];
  if (state === "lost") {
    document.body.dataset.phase = "lost";
    const [title, text] = WHY[detail] ?? LOST;
    alertWith(title, text, true);
  }
  enable();
}

function enable() {
  const phase = document.body.dataset.phase;
  byId("action-set").disabled = busy || !["playing", "done"].includes(phase);
  byId("state-refresh").disabled = busy || !["playing", "done"].includes(phase);
  byId("reset").disabled = busy;
  byId("alert-reset").disabled = busy;
  document.body.classList.toggle("busy", busy);
}

function alertWith(title, text, offer = false) {
  byId("alert-title").textContent = title;
  byId("alert-text").textContent = text;
  byId("alert-reset").hidden = !offer;
  byId("alert").hidden = false;
}

/** Run one call; what goes wrong is told. Returns whether it was answered. */
async function call(work, form) {
  if (busy) return false;
  busy = true;
  enable();
  const timer = setTimeout(() => { byId("cancel").hidden = false; }, SHOW_CANCEL_MS);
  try {
    await work();
    if (byId("badge").dataset.state === "resumed") onState("connected");
    return true;
  } catch (error) {
    tell(error, form);
    return false;
  } finally {
    clearTimeout(timer);
    byId("cancel").hidden = true;
    busy = false;
    enable();
  }
}

function tell(error, form) {
  if (error instanceof SessionLost) {
    if (error.unknown) byId("alert-text").textContent += " Whether your last call was applied is unknown.";
  } else if (error instanceof CallFailed && error.code !== "CAPACITY_REACHED") {
    const rest = form && Array.isArray(error.data.errors) ? form.refuse(error.data.errors) : [error.message];
    if (error.code === "CANCELLED") alertWith("Cancelled", error.data.applied === false ? "The call was not applied." : "Whether the call was applied is unknown.");
    else if (rest.length) alertWith(error.data.applied === false || error.code === "VALIDATION_ERROR" ? "Not accepted" : "The environment failed", rest.join(" "));
  } else if (!(error instanceof CallFailed)) {
    alertWith("Not sent", error.message);
  }
}

// ------------------------------------------------------------------ playing

async function reset() {
  const parameters = resetForm.read();
  if (!parameters) {
    byId("reset-more").open = true;
    resetForm.read();
    return;
  }
  const done = await call(async () => {
    const data = await link.reset(parameters);
    document.body.dataset.phase = data.done ? "done" : "playing";
    episode.begin(data, parameters);
    byId("alert").hidden = true;
    byId("state").textContent = "Press Refresh to read the state.";
    if (page.tools) await listTools();
  }, resetForm);
  if (!done) return;
  if (byId("state-card").open) await readState();
  byId("reset-more").open = false;
  actionForm?.clear();
  focusAction();
}

async function step() {
  const value = actionForm.read();
  if (!value) return;
  const tool = page.tools ? byId("tool").value : null;
  const action = tool ? { type: "call_tool", tool_name: tool, arguments: value } : value;
  const done = await call(async () => {
    const data = await link.step(action);
    byId("alert").hidden = true;
    episode.add(tool ? "tool" : "step", tool ? { tool_name: tool, arguments: value } : value, data);
    document.body.dataset.phase = data.done ? "done" : "playing";
    if (data.done) alertWith(data.truncated ? "The episode was cut short" : "The episode is over", `${episode.steps} steps, total reward ${shown(episode.total)}.`, true);
  }, actionForm);
  if (!done) return;
  if (byId("state-card").open) await readState();
  if (episode.done) byId("alert-reset").focus();
  else focusAction();
}

/** In a text area Enter is a new line. */
function showKey() {
  const long = actionForm.fields.some((one) => one.kind === "long");
  byId("step").querySelector("kbd").textContent = long ? "Ctrl ↵" : "↵";
}

function focusAction() {
  if (!actionForm?.focus()) byId("step").focus();
}

async function readState() {
  await call(async () => { byId("state").textContent = pretty(await link.state()); });
}

async function listTools() {
  const { result, error } = await link.rpc("tools/list");
  if (error) throw new CallFailed({ code: "TOOLS", message: error.message });
  const chosen = byId("tool").value;
  tools = new Map(result.tools.map((one) => [one.name, one]));
  byId("tool").replaceChildren(...[...tools.keys()].map((name) => el("option", { value: name, selected: name === chosen }, name)));
  byId("tool-field").hidden = tools.size === 0;
  showTool();
}

function showTool() {
  const tool = tools?.get(byId("tool").value);
  byId("action-about").textContent = tool ? "" : "This environment has no tools.";
  if (!tool) return;
  byId("tool-about").textContent = tool.description ?? "";
  actionForm = new SchemaForm(byId("action-fields"), tool.inputSchema ?? tool.input_schema ?? {}, "tool-in");
  showKey();
}

// ------------------------------------------------------------------ the page itself

function showTabs() {
  const tabs = [["play", "Play"], page.readme.trim() && ["readme", "README"], page.custom && ["custom", page.custom.name]]
    .filter(Boolean).filter(([id]) => !(id === "play" && page.custom?.alone));
  const buttons = tabs.map(([id, name]) => el("button", {
    role: "tab", type: "button", id: `tab-${id}`, "aria-controls": `panel-${id}`, onclick: () => choose(id),
  }, name));
  byId("tabs").replaceChildren(...buttons);
  byId("tabs").hidden = tabs.length < 2;
  byId("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = buttons[(buttons.indexOf(document.activeElement) + by + buttons.length) % buttons.length];
    next.focus();
    next.click();
  });
  const choose = (id) => {
    for (const [one] of tabs) {
      byId(`tab-${one}`).setAttribute("aria-selected", String(one === id));
      byId(`tab-${one}`).tabIndex = one === id ? 0 : -1;
    }
    for (const one of ["play", "readme", "custom"]) byId(`panel-${one}`).hidden = one !== id;
    if (id === "custom" && !byId("panel-custom").firstChild) {
      byId("panel-custom").append(el("iframe", { src: page.custom.path, title: page.custom.name }));
    }
  };
  choose(page.custom && (page.custom.primary || page.custom.alone) ? "custom" : "play");
}

function show() {
  document.title = page.title;
  byId("title").textContent = page.title;
  byId("emoji").textContent = page.emoji;
  byId("description").textContent = page.description;
  byId("server").textContent = [page.version && `${page.name} ${page.version}`, page.server].filter(Boolean).join(" · ");
  byId("idle").textContent = `A session ends after ${shown(page.idle_s / 60)} min without a call.`;
  const parameters = Object.keys(page.reset.properties ?? {});
  resetForm = new SchemaForm(byId("reset-fields"), page.reset, "reset-in", { more: page.reset.additionalProperties === true });
  byId("reset-summary").textContent = parameters.slice(0, 4).join(", ") + (parameters.length > 4 ? " …" : "");
  byId("reset-more").hidden = resetForm.fields.length === 0;
  byId("reset-more").open = (page.reset.required ?? []).length > 0;
  if (page.tools) {
    byId("action-heading").textContent = "Tools";
    byId("step-text").textContent = "Call the tool";
    byId("action-about").textContent = "A new episode lists the tools of this environment.";
  } else {
    byId("action-about").textContent = (page.action.description ?? "").split("\n\n")[0];
    actionForm = new SchemaForm(byId("action-fields"), page.action, "action-in");
    showKey();
  }
  byId("panel-readme").replaceChildren(...markdown(page.readme));
  showTabs();
  episode.entries = [];
  byId("chart").replaceChildren(el("p", { class: "quiet empty" }, "Rewards appear here, step by step."));
  document.body.dataset.ready = "true";
}

function listen() {
  const submitting = (id, work) => byId(id).addEventListener("submit", (event) => { event.preventDefault(); work(); });
  submitting("reset-form", reset);
  submitting("action-form", step);
  byId("alert-reset").addEventListener("click", reset);
  byId("state-refresh").addEventListener("click", (event) => { event.preventDefault(); byId("state-card").open = true; readState(); });
  byId("tool").addEventListener("change", showTool);
  byId("cancel").addEventListener("click", () => link.cancel());
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest("input, textarea, select, iframe");
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && field?.form) {
      event.preventDefault();
      field.form.requestSubmit();
    } else if (!field || (field.type === "radio")) {
      if (event.ctrlKey || event.metaKey || event.altKey || byId("panel-play").hidden) return;
      if (event.key === "n") byId("reset-form").requestSubmit();
      else if (event.key === "a") focusAction();
      else return;
      event.preventDefault();
    }
  });
  addEventListener("offline", () => link.drop());
  addEventListener("pagehide", () => link.close());
}

async function start() {
  const theme = new URLSearchParams(location.search).get("__theme"); // how the Hub tells which of the two it shows
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  try {
    const answer = await fetch("page", { headers: { Accept: "application/json" } });
    const told = parse(await answer.text());
    if (!answer.ok) throw new Error(told.message ?? told.detail ?? `HTTP ${answer.status}`);
    page = told;
  } catch (error) {
    byId("trouble").textContent = `This environment could not be shown: ${error.message}`;
    byId("trouble").hidden = false;
    return;
  }
  show();
  listen();
}

start();
