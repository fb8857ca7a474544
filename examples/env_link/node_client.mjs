// A client of openenv.v1 for Node, on Node's own WebSocket; it needs no package. Written from docs/SPEC-env-link.md,
// whose clauses the comments cite. Run as a program it plays a game of envs/sudoku_env to its end:
//
//     node node_client.mjs http://127.0.0.1:8000 [--size 4|9] [--seed N] [--ask]
//
// With --ask it waits for a line on standard input before each move.
// Before Node 22: node --experimental-websocket node_client.mjs ... A connection that breaks in mid-game is nothing but
// a line in the output: the client resumes its session, and no move is made twice.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const SUBPROTOCOL = "openenv.v1";
const FEATURES = ["seq", "cancel", "resume"];
const REPLY_TYPE = { reset: "observation", step: "observation", state: "state" };
const REFUSALS = ["CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"];
const FINAL_CODES = { 1013: "capacity", 4000: "replaced", 4001: "idle", 4002: "draining", 4003: "protocol" };
const CALL_MS = 60_000;
const OPENING_MS = 10_000;
const CLOSE_MS = 2_000;
const REDIAL_MS = 100;
const FIRST_DELAY_MS = 50;
const LAST_DELAY_MS = 2_000;

export class SessionLost extends Error {} // only reset() goes on
export class CallTimeout extends Error {} // its fate is learned before the next call
export class CallFailed extends Error {
  constructor(data) {
    super(`${data.code}: ${data.message}`);
    this.code = data.code;
    this.data = data;
  }
}
export class LateResult extends Error { // an earlier call was applied after all; nothing was sent now (E15)
  constructor(result) {
    super("an earlier call that was given up has been applied; settle() returns its result");
    this.result = result;
  }
}

// ------------------------------------------------------------------ values (E29)

const NOT_FINITE = { NaN, Infinity, "-Infinity": -Infinity };

function parse(text) {
  try {
    return JSON.parse(text);
  } catch { // JSON.parse does not know the tokens NaN, Infinity and -Infinity
    const marked = text.replace(/"(?:[^"\\]|\\.)*"|-?Infinity|NaN/g, (found) =>
      found in NOT_FINITE ? `{"$float":"${found}"}` : found);
    return JSON.parse(marked, (_, value) => value?.$float in NOT_FINITE ? NOT_FINITE[value.$float] : value);
  }
}

function stringify(frame) {
  const tokens = [];
  const text = JSON.stringify(frame, (_, value) =>
    typeof value === "number" && !Number.isFinite(value) ? `\u0000${tokens.push(String(value)) - 1}` : value);
  return text.replace(/"\\u0000(\d+)"/g, (_, at) => tokens[at]);
}

// ------------------------------------------------------------------ one socket

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** What a promise gives, or undefined if that takes longer; leaves no timer behind. */
async function atMost(ms, work) {
  let timer;
  try {
    return await Promise.race([work, new Promise((done) => { timer = setTimeout(done, ms); })]);
  } finally {
    clearTimeout(timer);
  }
}

/** A WebSocket whose frames are awaited, up to the end of the first words, and then handed to `onframe`. */
class Socket {
  constructor(ws) {
    this.ws = ws;
    this.frames = [];
    this.onframe = null;
    this.ended = new Promise((done) => { this.end = done; });
    ws.onmessage = (event) => { this.frames.push(event.data); this.hand(); };
    ws.onclose = (event) => this.end(event);
    ws.onerror = () => { // a close follows; not in Node 20, where the handshake failed
      if (ws.readyState === WebSocket.CONNECTING) this.end({ code: 1006, reason: "" });
    };
  }

  static async dial(url, offers) {
    const socket = new Socket(new WebSocket(url, offers));
    await Promise.race([new Promise((done) => { socket.ws.onopen = done; }), socket.ended]);
    return socket.ws.readyState === WebSocket.OPEN ? socket : null;
  }

  hand() {
    while (this.onframe && this.frames.length) this.onframe(parse(this.frames.shift()));
  }

  /** The next frame; null if the socket ends before. */
  async next() {
    const frame = await Promise.race([new Promise((done) => {
      this.onframe = (one) => { this.onframe = null; done(one); };
      this.hand();
    }), this.ended.then(() => null)]);
    this.onframe = null;
    return frame;
  }

  listen(onframe) {
    this.onframe = onframe;
    this.hand();
  }

  send(text) {
    if (this.ws.readyState === WebSocket.OPEN) this.ws.send(text);
  }
}

// ------------------------------------------------------------------ the client

export class EnvClient {
  #url; #log; #socket = null; #alive = false; #uses = new Set(); #limit = Infinity;
  #lease = null; #releases = []; #seq = 0; #lastReply = 0; #sent = null; #late = null;
  #resetBegun = false; #needsReset = false; #refusal = null; #turn = Promise.resolve(); #up = [];

  /** @param {string} url the server's, as http://127.0.0.1:8000; @param log told of losses and resumes, in words */
  constructor(url, log = () => {}) {
    this.#url = `${url.replace(/^http/, "ws").replace(/\/$/, "")}/ws`;
    this.#log = log;
  }

  get features() { return [...this.#uses]; }
  reset(data = {}, ms = CALL_MS) { return this.#inTurn("reset", data, ms); }
  step(action, ms = CALL_MS) { return this.#inTurn("step", action, ms); }
  state(ms = CALL_MS) { return this.#inTurn("state", undefined, ms); }

  /** Wait for the fate of a call that was given up. Returns its result, or null (E15). */
  async settle() {
    await this.#sent?.answer.catch(() => {});
    const late = this.#late;
    this.#late = null;
    return late?.result ?? null;
  }

  /** Say close, and wait a moment for the server's answer (E18). */
  async close() {
    const socket = this.#socket;
    this.#alive = false;
    this.#socket = null;
    if (!socket) return;
    socket.send(stringify({ type: "close" }));
    await atMost(CLOSE_MS, socket.ended);
    socket.ws.close();
  }

  // -------------------------------------------------------------- one call

  /** One call at a time, first come, first served (E12). */
  #inTurn(kind, data, ms) {
    const call = this.#turn.then(() => this.#call(kind, data, ms));
    this.#turn = call.catch(() => {});
    return call;
  }

  async #call(kind, data, ms) {
    const deadline = Date.now() + ms;
    if (kind === "reset") this.#resetBegun = this.#needsReset = true;
    if (this.#sent) await this.#within(deadline, this.#sent.answer.catch(() => {}), kind); // E14
    await this.#within(deadline, this.#reach(kind), kind);
    if (kind !== "reset" && this.#needsReset) throw new SessionLost("no reset has completed in this session"); // E15a
    const late = this.#late;
    this.#late = null;
    if (late && kind !== "reset") throw late;
    const sent = this.#prepare(kind, data);
    this.#socket?.send(sent.text);
    const reply = await this.#within(deadline, sent.answer, kind, () => this.#giveUp(sent));
    if (reply.type === "error") throw new CallFailed(reply.data);
    return reply.data;
  }

  async #within(deadline, work, kind, gaveUp = () => {}) {
    let timer;
    const over = new Promise((_, fail) => {
      timer = setTimeout(() => {
        gaveUp();
        fail(new CallTimeout(`no answer to ${kind} in time: call settle() before the next step`));
      }, Math.max(0, deadline - Date.now()));
    });
    try {
      return await Promise.race([work, over]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** A socket that is up: the session's own, which may have to be resumed first, or a new one's (E23, E25). */
  async #reach(kind) {
    if (this.#alive && !this.#socket) {
      const back = new Promise((done) => this.#up.push(done));
      await (kind === "reset" ? atMost(OPENING_MS, back) : back);
      if (this.#alive && !this.#socket && kind === "reset") this.#lose("unreachable");
    }
    if (this.#alive) return;
    if (kind !== "reset" && this.#resetBegun) throw this.#refusal ?? new SessionLost("the session is gone: call reset()");
    await this.#open();
  }

  #prepare(kind, data) {
    const seq = this.#seq + 1;
    const text = stringify({ type: kind, ...(this.#uses.has("seq") ? { seq } : {}), ...(data ? { data } : {}) });
    if (Buffer.byteLength(text) > this.#limit) throw new RangeError(`the request is over the limit of ${this.#limit}`); // E10
    const sent = { seq, kind, text, abandoned: false };
    sent.answer = new Promise((done, fail) => Object.assign(sent, { done, fail }));
    sent.answer.catch(() => {}); // nobody may be waiting for it
    this.#seq = seq;
    this.#sent = sent;
    return sent;
  }

  #giveUp(sent) {
    if (this.#sent !== sent) return;
    if (!this.#uses.has("seq")) return this.#lose("gave up"); // E16
    sent.abandoned = true;
    this.#cancel(sent);
  }

  #cancel(sent) {
    if (this.#uses.has("cancel")) this.#socket?.send(stringify({ type: "cancel", seq: sent.seq }));
  }

  // -------------------------------------------------------------- frames

  #received(frame) {
    const sent = this.#sent;
    const { type, data = {} } = frame;
    if (type === "running" && this.#uses.has("seq")) return;
    if (!this.#uses.has("seq") && type === "error" && REFUSALS.includes(data.code)) {
      this.#refusal = new CallFailed(data);
      return this.#lose(data.code);
    }
    const own = sent && (!this.#uses.has("seq") || frame.seq === sent.seq);
    const mixedUp = ["SEQ_MISMATCH", "SEQ_OUT_OF_ORDER"].includes(data.code);
    if (!own || mixedUp || (type !== "error" && type !== REPLY_TYPE[sent.kind])) return this.#lose("protocol");
    this.#sent = null;
    this.#lastReply = sent.seq;
    if (type !== "error" && sent.kind === "reset") this.#needsReset = false;
    if (sent.abandoned && sent.kind !== "state" && data.applied !== false) {
      this.#late = new LateResult(type === "error" ? null : data);
    }
    sent.done(frame);
  }

  // -------------------------------------------------------------- opening

  /** E1: a WHATWG WebSocket may fail when its offer is not echoed, so it is dialled once more without it. A plain server
   * has given the first dial a slot, so it is given a moment to take it back. */
  async #dial() {
    const socket = await Socket.dial(this.#url, [SUBPROTOCOL]);
    if (socket) return socket;
    await sleep(REDIAL_MS);
    return await Socket.dial(this.#url, []);
  }

  async #open() {
    const until = Date.now() + OPENING_MS;
    let socket;
    for (let delay = FIRST_DELAY_MS; !(socket = await this.#dial()); delay = Math.min(2 * delay, LAST_DELAY_MS)) {
      if (Date.now() + delay > until) throw new SessionLost(`cannot connect to ${this.#url}`);
      await sleep(delay * (0.5 + Math.random() / 2));
    }
    this.#uses = new Set();
    this.#lease = this.#refusal = this.#sent = null;
    this.#limit = Infinity;
    this.#seq = this.#lastReply = 0;
    if (socket.ws.protocol === SUBPROTOCOL) await this.#firstWords(socket);
    this.#alive = true;
    this.#needsReset = this.#resetBegun;
    this.#attach(socket);
  }

  /** E2 to E4: welcome, release, open, opened. */
  async #firstWords(socket) {
    const welcome = (await atMost(OPENING_MS, socket.next()))?.data;
    if (welcome?.protocol !== 1) throw new SessionLost("no welcome of protocol 1 came");
    const listed = welcome.features.includes("seq") ? welcome.features : [];
    const uses = FEATURES.filter((one) => listed.includes(one));
    for (const { session, token, epoch } of this.#releases) {
      if (epoch === welcome.epoch) socket.send(stringify({ type: "release", data: { session, token } }));
    }
    socket.send(stringify({ type: "open", data: { uses } }));
    const opened = await socket.next();
    if (opened?.type === "error") throw new CallFailed(opened.data);
    if (opened?.type !== "opened") throw new SessionLost("the session could not be opened");
    this.#uses = new Set(uses);
    this.#limit = welcome.limits?.max_message_bytes ?? Infinity;
    this.#lease = { ...opened.data, epoch: welcome.epoch, attempt: 0 };
    this.#releases = [];
  }

  #attach(socket) {
    this.#socket = socket;
    socket.listen((frame) => this.#received(frame));
    socket.ended.then((end) => this.#dropped(socket, end));
    for (const done of this.#up.splice(0)) done();
  }

  // -------------------------------------------------------------- losing and resuming

  /** E24: only some close codes end a session; 1000 only with the reason "closed". */
  #final(end) {
    return end.code === 1000 && end.reason === "closed" ? "closed" : FINAL_CODES[end.code];
  }

  #dropped(socket, end) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    const final = this.#final(end);
    if (final || !this.#uses.has("resume") || this.#seq === 0) return this.#lose(final ?? "connection");
    this.#log(`connection lost (${end.code})`);
    this.#resume();
  }

  /** E23: dial, with growing pauses, until the server says that the session is back, or gone. */
  async #resume() {
    for (let delay = FIRST_DELAY_MS; this.#alive; delay = Math.min(2 * delay, LAST_DELAY_MS)) {
      const socket = await Socket.dial(this.#url, [SUBPROTOCOL]);
      if (socket && this.#alive && await this.#comeBack(socket)) return;
      socket?.ws.close();
      await sleep(delay * (0.5 + Math.random() / 2));
    }
  }

  /** E20, E21: one try. Returns whether it is over, with the session back or gone. */
  async #comeBack(socket) {
    const lease = this.#lease;
    const welcome = (await atMost(OPENING_MS, socket.next()))?.data;
    if (!welcome) return this.#refused(socket);
    if (welcome.epoch !== lease.epoch) return this.#gone("epoch");
    lease.attempt += 1;
    const { session, token, epoch, attempt } = lease;
    socket.send(stringify({ type: "resume", data: { session, token, epoch, last_reply: this.#lastReply, attempt } }));
    const answer = await atMost(OPENING_MS, socket.next());
    if (!this.#alive) return true;
    if (!answer) return this.#refused(socket);
    if (answer.type !== "resumed") return this.#gone(answer.data?.reason ?? "protocol");
    const { last_seq: at, token: fresh } = answer.data;
    Object.assign(lease, { token: fresh, attempt: 0 });
    const sent = this.#sent;
    const expected = sent ? [sent.seq - 1, sent.seq] : [this.#lastReply];
    if (!expected.includes(at)) return this.#gone("protocol");
    this.#log(`resumed at call ${at}`);
    this.#attach(socket);
    if (this.#sent !== sent || !sent) return true; // its reply has been pushed already
    if (sent.abandoned) this.#cancel(sent);
    else if (at < sent.seq) socket.send(sent.text); // the server never had it; the same bytes (E9)
    return true;
  }

  async #refused(socket) {
    const end = await atMost(0, socket.ended);
    return end && this.#final(end) ? this.#gone(this.#final(end)) : false;
  }

  #gone(reason) {
    this.#lose(reason);
    return true;
  }

  #lose(reason) {
    const { ws } = this.#socket ?? {};
    this.#socket = null;
    this.#alive = false;
    ws?.close();
    if (this.#lease && reason !== "replaced") this.#releases = [...this.#releases, this.#lease].slice(-8); // E25
    this.#lease = null;
    this.#log(`session lost: ${reason}`);
    const sent = this.#sent;
    this.#sent = null;
    sent?.fail(this.#refusal ?? new SessionLost(`the session was lost: ${reason}`));
    for (const done of this.#up.splice(0)) done();
  }
}

// ------------------------------------------------------------------ Sudoku

/** Solve a board in place: the cell with the fewest candidates first. Returns whether it could be. */
export function solve(board) {
  const size = board.length;
  const side = Math.sqrt(size);
  let best = null;
  for (let row = 0; row < size; row++) {
    for (let col = 0; col < size; col++) {
      if (board[row][col]) continue;
      const used = new Set(board[row]);
      for (let i = 0; i < size; i++) {
        used.add(board[i][col]);
        used.add(board[row - row % side + Math.floor(i / side)][col - col % side + i % side]);
      }
      const values = Array.from({ length: size }, (_, i) => i + 1).filter((value) => !used.has(value));
      if (!best || values.length < best.values.length) best = { row, col, values };
    }
  }
  if (!best) return true;
  for (const value of best.values) {
    board[best.row][best.col] = value;
    if (solve(board)) return true;
  }
  board[best.row][best.col] = 0;
  return false;
}

/** Play one game to its end. Returns whether it was solved, all of it on one board. */
async function play(client, say, settings, asked) {
  let result = await client.reset(settings);
  const { board, board_id: id } = result.observation;
  say(`board ${id}, features ${client.features.join(" ") || "none: the plain dialect"}`);
  const solution = board.map((row) => [...row]);
  if (!solve(solution)) throw new Error("this board has no solution");
  let moves = 0;
  let total = 0;
  for (const [r, cells] of board.entries()) {
    for (const [c, given] of cells.entries()) {
      if (given) continue;
      await asked();
      result = await client.step({ row: r + 1, col: c + 1, value: solution[r][c] });
      total += result.reward ?? 0;
      moves += 1;
      say(`move ${moves}: ${result.observation.message} ${result.observation.remaining} left`);
      if (result.observation.board_id !== id) throw new Error("this is another board");
    }
  }
  const { step_count: counted } = await client.state();
  await client.close();
  const solved = result.done && result.observation.solved && counted === moves;
  say(`${solved ? "solved" : "not solved"}: ${moves} moves, reward ${total.toFixed(3)}`);
  return solved;
}

async function main() {
  const [url, ...options] = process.argv.slice(2);
  const option = (name, fallback) => Number(options[options.indexOf(name) + 1 || options.length] ?? fallback);
  const say = (line) => process.stdout.write(`${line}\n`);
  if (!url || typeof WebSocket === "undefined") {
    say(url ? "This Node has no WebSocket; run it with --experimental-websocket." : "usage: node_client.mjs URL [--size N] [--seed N] [--ask]");
    return 2;
  }
  const lines = options.includes("--ask") ? createInterface({ input: process.stdin })[Symbol.asyncIterator]() : null;
  const settings = { size: option("--size", 9), seed: option("--seed", 7) };
  const solved = await play(new EnvClient(url, say), say, settings, async () => { await lines?.next(); });
  if (lines) process.stdin.destroy();
  return solved ? 0 : 1;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) process.exitCode = await main();
