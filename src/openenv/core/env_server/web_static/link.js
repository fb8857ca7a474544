// The page's end of openenv.v1: one session, its calls one after another, and what becomes of it when its socket goes.
// Nothing here knows the document. The clauses that the comments cite are those of docs/SPEC-env-link.md.

const SUBPROTOCOL = "openenv.v1";
const FEATURES = ["seq", "cancel", "resume"];
const REPLY_TYPE = { reset: "observation", step: "observation", state: "state", mcp: "mcp" };
const FINAL_CODES = { 1013: "capacity", 4000: "replaced", 4001: "idle", 4002: "draining", 4003: "protocol" };
const OPENING_MS = 10_000;
const CANCEL_MS = 5_000;
const FIRST_DELAY_MS = 100;
const LAST_DELAY_MS = 5_000;

/** The session is gone: only a reset goes on. `reason` is a word of the protocol; `unknown` says that the call that
 * was in flight may have been applied. */
export class SessionLost extends Error {
  constructor(reason, unknown = false) {
    super(`the session was lost: ${reason}`);
    this.reason = reason;
    this.unknown = unknown;
  }
}

/** The server answered with an error; the session goes on. */
export class CallFailed extends Error {
  constructor(data) {
    super(data.message ?? data.code);
    this.code = data.code;
    this.data = data;
  }
}

// ------------------------------------------------------------------ values (E29)

const NOT_FINITE = { NaN, Infinity, "-Infinity": -Infinity };

/** A whole number that a float would round stays what it is, where the browser tells its digits. */
const exact = (value, digits) => (Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(digits ?? "") ? BigInt(digits) : value);

/** JSON as Python reads and writes it: with the tokens NaN, Infinity and -Infinity, and integers of any size. */
export function parse(text) {
  try {
    return /\d{16}/.test(text) ? JSON.parse(text, (_, value, context) => exact(value, context?.source)) : JSON.parse(text);
  } catch {
    const marked = text.replace(/"(?:[^"\\]|\\.)*"|-?Infinity|NaN/g, (found) =>
      found in NOT_FINITE ? `{"$float":"${found}"}` : found);
    return JSON.parse(marked, (_, value, context) => (value?.$float in NOT_FINITE ? NOT_FINITE[value.$float] : exact(value, context?.source)));
  }
}

/** The same, written. */
export function write(value) {
  const text = JSON.stringify(value, (_, one) => {
    if (typeof one === "bigint") return JSON.rawJSON(String(one));
    return typeof one === "number" && !Number.isFinite(one) ? { $float: String(one) } : one;
  });
  return text.replace(/\{"\$float":"(NaN|-?Infinity)"\}/g, "$1");
}

/** The whole number that digits stand for. Throws if it could only be sent rounded. */
export function whole(digits) {
  const number = exact(Number(digits), JSON.rawJSON && digits);
  if (typeof number === "number" && !Number.isSafeInteger(number)) throw new Error(`At most ${Number.MAX_SAFE_INTEGER}: this browser rounds what is larger.`);
  return number;
}

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

// ------------------------------------------------------------------ one socket

/** A WebSocket whose frames are awaited up to the end of the first words, and then handed to `onframe`. */
class Socket {
  constructor(ws) {
    this.ws = ws;
    this.frames = [];
    this.onframe = null;
    this.ended = new Promise((done) => { ws.onclose = done; });
    ws.onmessage = (event) => { this.frames.push(event.data); this.hand(); };
  }

  static async dial(url) {
    const socket = new Socket(new WebSocket(url, [SUBPROTOCOL]));
    await atMost(OPENING_MS, Promise.race([new Promise((done) => { socket.ws.onopen = done; }), socket.ended]));
    if (socket.ws.readyState === WebSocket.OPEN) return socket;
    socket.ws.close(); // a handshake that nobody answers
    return null;
  }

  hand() {
    while (this.onframe && this.frames.length) this.onframe(parse(this.frames.shift()));
  }

  /** The next frame; null if the socket ends before, or it takes too long. */
  async next() {
    const frame = await atMost(OPENING_MS, Promise.race([new Promise((done) => {
      this.onframe = (one) => { this.onframe = null; done(one); };
      this.hand();
    }), this.ended.then(() => null)]));
    this.onframe = null;
    return frame ?? null;
  }

  listen(onframe) {
    this.onframe = onframe;
    this.hand();
  }

  send(frame) {
    if (this.ws.readyState === WebSocket.OPEN) this.ws.send(typeof frame === "string" ? frame : JSON.stringify(frame));
  }

  /** Why the session is over with this socket, if it is (E24). */
  async final() {
    const end = await atMost(0, this.ended);
    if (!end) return undefined;
    if (end.code === 1013 && end.reason === "gave way") return "evicted";
    return end.code === 1000 && end.reason === "closed" ? "closed" : FINAL_CODES[end.code];
  }
}

// ------------------------------------------------------------------ the session

/** One session at a time. `onstate(state, detail)` is told "connecting", "connected", "resuming", "resumed", "lost". */
export class Link {
  #url; #onstate; #socket = null; #alive = false; #uses = new Set(); #limit = Infinity;
  #lease = null; #releases = []; #seq = 0; #lastReply = 0; #sent = null; #turn = Promise.resolve(); #up = [];

  constructor(url, onstate) {
    this.#url = url;
    this.#onstate = onstate;
  }

  /** Counts sessions; what is shown belongs to the one that it came from. */
  session = 0;

  reset(data) { return this.#inTurn(() => this.#reset(data)); }
  step(action) { return this.#inTurn(() => this.#call("step", action)); }
  state() { return this.#inTurn(() => this.#call("state")); }
  rpc(method, params = {}) {
    return this.#inTurn(() => this.#call("mcp", { jsonrpc: "2.0", id: this.#seq + 1, method, params }));
  }

  /** Ask for the running call to end early; its caller is told by its own answer (E13). A connection on which nothing
   * comes back is given up; so is a session that cannot be reached. */
  cancel() {
    const socket = this.#socket;
    const sent = this.#sent;
    if (this.#alive && !socket) return this.#lose("unreachable");
    if (!sent) return;
    sent.cancelled = true;
    sent.heard = false;
    if (this.#uses.has("cancel")) socket.send({ type: "cancel", seq: sent.seq });
    setTimeout(() => { if (this.#sent === sent && !sent.heard && this.#socket === socket) this.drop(); }, CANCEL_MS);
  }

  /** Give the session up, without waiting for an answer. */
  close() {
    if (!this.#alive) return;
    this.#socket?.send({ type: "close" });
    this.#lose("closed");
  }

  /** The network says that it is gone: do not wait for the socket to notice. */
  drop() {
    const socket = this.#socket;
    socket?.ws.close();
    if (socket) this.#dropped(socket);
  }

  #inTurn(call) {
    const turn = this.#turn.then(call);
    this.#turn = turn.catch(() => {});
    return turn;
  }

  // A reset whose session is lost under it may be sent again, in a new one; nothing else may.
  async #reset(data) {
    if (this.#alive && !this.#socket) {
      await atMost(OPENING_MS, new Promise((done) => this.#up.push(done))); // E25: first back to the old one
      if (this.#alive && !this.#socket) this.#lose("unreachable");
    }
    if (this.#alive) {
      try {
        return await this.#call("reset", data);
      } catch (error) {
        if (!(error instanceof SessionLost)) throw error;
      }
    }
    await this.#open();
    return await this.#call("reset", data);
  }

  async #call(kind, data) {
    while (this.#alive && !this.#socket) await new Promise((done) => this.#up.push(done));
    if (!this.#alive) throw new SessionLost("gone");
    const seq = this.#seq + 1;
    const text = write({ type: kind, seq, ...(data === undefined ? {} : { data }) });
    const size = new TextEncoder().encode(text).length;
    if (size > this.#limit) throw new RangeError(`This request has ${size} bytes; the server reads ${this.#limit}.`); // E10
    const sent = { seq, kind, text };
    const answer = new Promise((done, fail) => Object.assign(sent, { done, fail }));
    this.#seq = seq;
    this.#sent = sent;
    this.#socket.send(text);
    const reply = await answer;
    if (reply.type === "error") throw new CallFailed(reply.data);
    return reply.data;
  }

  // A reply is given to its own request only (E7); any other frame ends the session.
  #received({ type, seq, data = {} }) {
    const sent = this.#sent;
    if (type === "running") {
      if (sent) sent.heard = true; // it cannot be ended early
      return;
    }
    const mixedUp = ["SEQ_MISMATCH", "SEQ_OUT_OF_ORDER"].includes(data.code);
    if (!sent || seq !== sent.seq || mixedUp || (type !== "error" && type !== REPLY_TYPE[sent.kind])) {
      this.#lose("protocol");
      return;
    }
    this.#sent = null;
    this.#lastReply = seq;
    sent.done({ type, data });
  }

  // -------------------------------------------------------------- opening (E1 to E4)

  async #open() {
    this.#onstate("connecting");
    const until = Date.now() + OPENING_MS;
    let socket;
    for (let delay = FIRST_DELAY_MS; !(socket = await Socket.dial(this.#url)); delay = Math.min(2 * delay, LAST_DELAY_MS)) {
      if (Date.now() + delay > until) return this.#refuse(new SessionLost("unreachable"));
      await sleep(delay * (0.5 + Math.random() / 2));
    }
    const welcome = (await socket.next())?.data;
    if (welcome?.protocol !== 1 || !welcome.features.includes("seq")) return this.#refuse(new SessionLost("protocol"), socket);
    const uses = FEATURES.filter((one) => welcome.features.includes(one));
    for (const { session, token, epoch } of this.#releases) {
      if (epoch === welcome.epoch) socket.send({ type: "release", data: { session, token } });
    }
    socket.send({ type: "open", data: { uses } });
    const opened = await socket.next();
    if (opened?.type === "error") return this.#refuse(new CallFailed(opened.data), socket);
    if (opened?.type !== "opened") return this.#refuse(new SessionLost((await socket.final()) ?? "unreachable"), socket);
    this.#uses = new Set(uses);
    this.#limit = welcome.limits?.max_message_bytes ?? Infinity;
    this.#lease = { ...opened.data, epoch: welcome.epoch, attempt: 0 };
    this.#releases = [];
    this.#sent = null;
    this.#seq = this.#lastReply = 0;
    this.#alive = true;
    this.session += 1;
    this.#attach(socket);
    this.#onstate("connected");
  }

  #refuse(error, socket) {
    socket?.ws.close();
    this.#onstate("lost", error instanceof CallFailed ? error.code : error.reason);
    throw error;
  }

  #attach(socket) {
    this.#socket = socket;
    socket.listen((frame) => { if (socket === this.#socket) this.#received(frame); });
    socket.ended.then(() => this.#dropped(socket));
    for (const done of this.#up.splice(0)) done();
  }

  // -------------------------------------------------------------- losing and resuming (E17 to E25)

  async #dropped(socket) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    const final = await socket.final();
    if (final || !this.#uses.has("resume") || this.#seq === 0) return this.#lose(final ?? "connection");
    this.#onstate("resuming");
    for (let delay = FIRST_DELAY_MS; this.#alive; delay = Math.min(2 * delay, LAST_DELAY_MS)) {
      const next = await Socket.dial(this.#url);
      if (next && this.#alive && await this.#comeBack(next)) return;
      next?.ws.close();
      await sleep(delay * (0.5 + Math.random() / 2));
    }
  }

  /** One try (E20, E21). Returns whether it is over, with the session back or gone. */
  async #comeBack(socket) {
    const lease = this.#lease;
    const welcome = (await socket.next())?.data;
    if (!welcome || !this.#alive) return !this.#alive;
    if (welcome.epoch !== lease.epoch) return this.#gone("epoch", socket);
    lease.attempt += 1;
    const { session, token, epoch, attempt } = lease;
    socket.send({ type: "resume", data: { session, token, epoch, last_reply: this.#lastReply, attempt } });
    const answer = await socket.next();
    if (!this.#alive) return true;
    if (!answer) {
      const final = await socket.final();
      return final ? this.#gone(final, socket) : false;
    }
    if (answer.type !== "resumed") return this.#gone(answer.data?.reason ?? "protocol", socket);
    const { last_seq: at, token: fresh } = answer.data;
    Object.assign(lease, { token: fresh, attempt: 0 });
    const sent = this.#sent;
    if (!(sent ? [sent.seq - 1, sent.seq] : [this.#lastReply]).includes(at)) return this.#gone("protocol", socket);
    this.#onstate("resumed");
    this.#attach(socket);
    if (!sent || this.#sent !== sent) return true; // nothing was asked, or its reply was pushed already
    if (sent.cancelled) this.cancel(); // again (E13)
    else if (at < sent.seq) socket.send(sent.text); // the server never had it: the same bytes again (E9)
    return true;
  }

  #gone(reason, socket) {
    socket.ws.close();
    this.#lose(reason);
    return true;
  }

  #lose(reason) {
    if (!this.#alive) return;
    const socket = this.#socket;
    const sent = this.#sent;
    this.#alive = false;
    this.#socket = this.#sent = null;
    socket?.ws.close();
    if (reason !== "replaced") this.#releases = [...this.#releases, this.#lease].slice(-8); // E25
    this.#lease = null;
    this.#onstate("lost", reason);
    sent?.fail(new SessionLost(reason, reason !== "never_called"));
    for (const done of this.#up.splice(0)) done();
  }
}
