// The order in which tasks start, fair by tasks: turns of users with weights, and the lanes urgent, normal and bulk, on one shard.
// docs/contributing/ring.md and docs/guides/lanes.md describe the rule. tests/browser/test_playground.py compares each start with the engine.
"use strict";

const LANES = ["urgent", "normal", "bulk"];
const LEAST_SHARE = { normal: 0.5, bulk: 0.05 }; // of the starts, while the lane has tasks
const COST = 1e6; // of a task, in millionths, as the engine counts it
const AHEAD = 10 * COST; // urgent tasks may be this far ahead of their user's share; also the most that a lane is owed
const ROUNDING = 1e-5;

class FairOrder {
  constructor() {
    this.users = new Map();
    this.virtualTime = 0;
    this.lastArrival = 0;
    this.lead = 0;
    this.newest = 0;
    this.hasStarted = false;
    this.owed = { normal: 0, bulk: 0 };
    this.running = { urgent: 0, normal: 0, bulk: 0 };
    this.queued = { urgent: 0, normal: 0, bulk: 0 };
  }

  addUser(name, weight = 1) {
    this.users.set(name, {
      name,
      weight,
      tag: -Infinity,
      urgentTag: -Infinity,
      came: 0, // the number of the newcomer, or 0
      running: 0,
      queued: { urgent: 0, normal: 0, bulk: 0 },
      had: { urgent: false, normal: false, bulk: false }, // the lanes with tasks after the last call
    });
  }

  /** Add tasks of a user to a lane. */
  push(name, lane, tasks = 1) {
    const user = this.users.get(name);
    user.queued[lane] += tasks;
    this.queued[lane] += tasks;
    this.#place(user);
  }

  /** Start the next task. Return its user and lane, or null if none waits. */
  start() {
    const lane = this.#nextLane();
    if (lane === null) return null;
    const user = this.#firstIn(lane);
    const movesTime = lane === "normal" || this.#firstOther() === null;
    user.queued[lane]--;
    this.queued[lane]--;
    this.#charge(user, lane, movesTime);
    this.#changeOwed(lane);
    this.running[lane]++;
    this.#place(user);
    return { user: user.name, lane };
  }

  /** Report the end of a task that `start` returned. */
  finish({ user: name, lane }) {
    const user = this.users.get(name);
    user.running--;
    this.running[lane]--;
    this.#place(user);
  }

  /** Return the waiting user with the lowest value, the first name if values are equal; null if nobody waits. */
  #lowest(lane, valueOf, isIncluded = () => true) {
    let lowest = null;
    for (const user of this.users.values()) {
      if (!user.queued[lane] || !isIncluded(user)) continue;
      const difference = lowest === null ? -1 : valueOf(user) - valueOf(lowest);
      if (difference < 0 || (difference === 0 && user.name < lowest.name)) lowest = user;
    }
    return lowest;
  }

  /** Return the first user in lane normal who is no newcomer. */
  #firstOther(except = null) {
    return this.#lowest("normal", (user) => user.tag, (user) => !user.came && user !== except);
  }

  /** Return the user who is next in a lane. In lane normal newcomers go first, unless they delay the first of the others by more than a task. */
  #firstIn(lane) {
    if (lane === "urgent") return this.#lowest(lane, (user) => user.urgentTag);
    if (lane === "bulk") return this.#lowest(lane, (user) => user.tag);
    const newcomer = this.#lowest(lane, (user) => user.came, (user) => user.came > 0);
    const other = this.#firstOther();
    const turn = this.virtualTime + this.lead - (1 + ROUNDING) * COST;
    return newcomer === null || (turn > this.virtualTime && other !== null && other.tag < turn) ? other : newcomer;
  }

  #nextLane() {
    const { urgent, normal, bulk } = this.queued;
    if (!urgent && !normal) return bulk ? "bulk" : null;
    if (this.#isDue("bulk")) return "bulk";
    const mayLead = urgent && ((!normal && !bulk) || this.#firstIn("urgent").urgentTag <= this.virtualTime + AHEAD);
    if (mayLead) return this.#isDue("normal") ? "normal" : "urgent";
    return normal ? "normal" : bulk ? "bulk" : "urgent";
  }

  /** Return whether a lane is owed a task and runs less than its least share. */
  #isDue(lane) {
    const running = this.running.urgent + this.running.normal + this.running.bulk;
    return this.queued[lane] > 0 && this.owed[lane] >= COST && this.running[lane] < LEAST_SHARE[lane] * (running + 1);
  }

  /** Count a start for the least shares of the lanes. */
  #changeOwed(lane) {
    if (lane === "normal" && !this.queued.urgent && !this.queued.bulk) return;
    for (const [other, share] of Object.entries(LEAST_SHARE)) {
      const change = other === lane ? -(1 - share) * COST : this.queued[other] ? share * COST : 0;
      this.owed[other] = Math.max(-AHEAD, Math.min(AHEAD, this.owed[other] + change));
    }
  }

  /** Charge a start to the user. Turns of newcomers count in `lead`, other turns move the virtual time. */
  #charge(user, lane, movesTime) {
    if (lane === "normal" && user.came) {
      user.came = 0;
      if (this.#firstOther(user) !== null) this.lead += (COST * 1e6) / this.#activeWeights(user);
    } else if (movesTime && user.tag > this.virtualTime) {
      this.lead = Math.max(0, this.lead - (user.tag - this.virtualTime));
      this.virtualTime = user.tag;
    }
    user.tag += COST / user.weight;
    if (lane === "urgent") user.urgentTag = Math.max(user.urgentTag, this.virtualTime) + COST / user.weight;
    user.running++;
    this.hasStarted = true;
  }

  /** Return the sum of the weights of all users with tasks, and of this user, in millionths. */
  #activeWeights(started) {
    let sum = 0;
    for (const user of this.users.values())
      if (user === started || user.running || LANES.some((lane) => user.queued[lane])) sum += Math.floor(user.weight * 1e6 + 0.5);
    return sum;
  }

  /** Place a user after a change. A user who returns with a tag behind the virtual time is a newcomer and begins there. */
  #place(user) {
    const has = Object.fromEntries(LANES.map((lane) => [lane, user.queued[lane] > 0]));
    const hadAny = LANES.some((lane) => user.had[lane]);
    if (has.normal && !user.had.normal) {
      if (user.came || user.tag < this.virtualTime) {
        if (!user.came && this.hasStarted) user.came = ++this.newest;
        user.tag = Math.max(user.tag, this.#arrive());
      }
    } else if (!hadAny && LANES.some((lane) => has[lane]) && user.tag < this.virtualTime) {
      user.tag = this.#arrive();
    }
    if (has.urgent && !user.had.urgent) user.urgentTag = Math.max(user.urgentTag, this.virtualTime);
    user.had = has;
  }

  /** Return the tag of a user who arrives now: a tiny step after the virtual time and the last arrival, so that no two are equal. */
  #arrive() {
    const last = Math.max(this.lastArrival, this.virtualTime);
    this.lastArrival = last + 2 ** (Math.floor(Math.log2(Math.max(last, 2 ** 38))) - 49);
    return this.lastArrival;
  }
}

/** First come, first served: the order of most queues. */
class ArrivalOrder {
  constructor() {
    this.waiting = [];
    this.next = 0;
  }

  addUser() {}

  push(user, lane) {
    this.waiting.push({ user, lane });
  }

  start() {
    return this.next < this.waiting.length ? this.waiting[this.next++] : null;
  }

  finish() {}
}
