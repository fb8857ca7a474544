// Plays what the conformance server tells, with the link of the web page: node page_driver.mjs LINK_MODULE URL

import { pathToFileURL } from "node:url";

const { Link } = await import(pathToFileURL(process.argv[2]));
const url = `${process.argv[3].replace(/^http/, "ws").replace(/\/$/, "")}/ws`;
const link = new Link(url, (state, detail) => console.error(state, detail ?? ""));
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** Make a call, and return what to do next. */
async function make(call) {
  await sleep(1000 * (call.wait_s ?? 0));
  if (call.call === "together") {
    const found = (await Promise.allSettled(call.calls.map(make))).find((one) => one.value);
    if (!found) throw new Error("none was answered");
    return found.value;
  }
  const calls = { reset: () => link.reset(call.data ?? {}), step: () => link.step(call.action), state: () => link.state() };
  const answer = calls[call.call]();
  const timer = call.timeout_s === undefined ? null : setTimeout(() => link.cancel(), 1000 * call.timeout_s);
  try {
    const data = await answer;
    return call.call === "state" ? data.next : data.observation.next;
  } finally {
    clearTimeout(timer);
  }
}

async function reset() {
  for (let i = 0; i < 100; i++) {
    try {
      return await make({ call: "reset" });
    } catch (error) {
      console.error("reset", String(error));
      await sleep(100);
    }
  }
  throw new Error("no reset succeeded");
}

/** The same call again; a step says so. */
function onceMore({ timeout_s, wait_s, ...call }) {
  return call.action ? { ...call, action: { ...call.action, retry: true } } : call;
}

let call = await reset();
while (call && call.call !== "close") {
  let made = false;
  for (const attempt of [call, call.else ?? onceMore(call)]) {
    try {
      call = await make(attempt);
      made = true;
      break;
    } catch (error) {
      console.error(attempt.call, String(error));
    }
  }
  if (!made) call = await reset();
}
link.close();
