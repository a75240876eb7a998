// The page of the playground: fair turns with lanes (fair_order.js) and first come, first served, with the same tasks.
// The values of the inputs are in the address, after "#", so that a simulation can be shared.
"use strict";

const SECONDS_OF_ARRIVALS = 120;
const NIGHTLY_AT = 20; // seconds
const SINGLE_TASKS_LOAD = 0.3; // of all slots
const MAIL_SECONDS = 0.2; // run time; a mail is sent every second
const INPUTS = [
  { name: "customers", label: "Customers", min: 2, max: 300, value: 40 },
  { name: "tasks", label: "Tasks that one customer sends at once", min: 0, max: 1000, value: 300 },
  { name: "slots", label: "Slots of the workers", min: 1, max: 32, value: 4 },
  { name: "nightly", label: "Tasks of the nightly job for each customer", min: 0, max: 10, value: 5 },
  { name: "seed", label: "Seed of the random numbers", min: 1, max: 99, value: 1 },
  { name: "lanes", label: "Use lanes: mails are urgent, the nightly job is bulk", value: 1 },
];
const KINDS = { backlog: "tasks sent at once", nightly: "nightly job", single: "single tasks", mail: "mails" };

/** Return a function that returns random numbers from 0 to 1, the same ones for the same seed (the generator mulberry32). */
function makeRandom(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** Return the tasks of a simulation by the second in which they arrive. Customer 0 sends many tasks at once. */
function makeTasks({ customers, tasks, slots, nightly, seed, lanes }) {
  const random = makeRandom(seed);
  const made = [];
  const add = (kind, customer, at, length) => {
    const lane = !lanes ? "normal" : kind === "mail" ? "urgent" : kind === "nightly" ? "bulk" : "normal";
    made.push({ kind, customer, at, length, lane });
  };
  const addAtRandom = (kind, rate, firstCustomer, length) => {
    for (let at = -Math.log(1 - random()) / rate; at < SECONDS_OF_ARRIVALS; at -= Math.log(1 - random()) / rate)
      add(kind, firstCustomer + Math.floor(random() * (customers - firstCustomer)), at, length());
  };
  const length = () => 0.5 + random();
  for (let number = 0; number < tasks; number++) add("backlog", 0, 0, length());
  for (let customer = 0; customer < customers; customer++)
    for (let number = 0; number < nightly; number++) add("nightly", customer, NIGHTLY_AT, length());
  addAtRandom("single", SINGLE_TASKS_LOAD * slots, 1, length);
  addAtRandom("mail", 1, 0, () => MAIL_SECONDS);
  return made.sort((a, b) => a.at - b.at);
}

/** Run tasks in slots, in an order. Return them in the order of their starts, each with the second of its start. */
function simulate(order, tasks, slots, customers) {
  for (let customer = 0; customer < customers; customer++) order.addUser(customer);
  const waiting = new Map();
  const running = [];
  const started = [];
  let arrived = 0;
  while (started.length < tasks.length) {
    const ends = Math.min(...running.map((run) => run.end));
    const now = Math.min(ends, arrived < tasks.length ? tasks[arrived].at : Infinity);
    for (let index = running.length - 1; index >= 0; index--)
      if (running[index].end <= now) order.finish(running.splice(index, 1)[0].start);
    for (; arrived < tasks.length && tasks[arrived].at <= now; arrived++) {
      const { customer, lane } = tasks[arrived];
      const key = `${customer} ${lane}`;
      if (!waiting.has(key)) waiting.set(key, { tasks: [], next: 0 });
      waiting.get(key).tasks.push(tasks[arrived]);
      order.push(customer, lane);
    }
    while (running.length < slots) {
      const start = order.start();
      if (start === null) break;
      const line = waiting.get(`${start.user} ${start.lane}`);
      const task = line.tasks[line.next++];
      started.push({ ...task, start: now });
      running.push({ start, end: now + task.length });
    }
  }
  return started;
}

/** Return the wait, in seconds, that a part of the tasks of a kind do not exceed; null if there are none. */
function waitOf(started, kind, part) {
  const waits = started.filter((task) => task.kind === kind).map((task) => task.start - task.at);
  return waits.length ? waits.sort((a, b) => a - b)[Math.ceil(part * waits.length) - 1] : null;
}

function formatSeconds(seconds) {
  if (seconds === null) return "–";
  return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
}

/** Return the values in an address; values that are missing or wrong are the default ones. */
function readAddress(hash) {
  const given = new URLSearchParams(hash.slice(1));
  return Object.fromEntries(
    INPUTS.map(({ name, min = 0, max = 1, value }) => {
      const number = /^\d+$/.test(given.get(name) || "") ? Number(given.get(name)) : value;
      return [name, Math.min(max, Math.max(min, number))];
    }),
  );
}

function formMarkup() {
  const inputs = INPUTS.map(({ name, label, min, max }) =>
    max
      ? `<label for="play-${name}">${label}</label>
        <input type="range" id="play-${name}" name="${name}" min="${min}" max="${max}"><span aria-hidden="true"></span>`
      : `<label class="play-check"><input type="checkbox" id="play-${name}" name="${name}">${label}</label>`,
  );
  const charts = ["fair", "arrival"].map(
    (name) => `<figure id="play-${name}"><figcaption></figcaption><svg role="img" preserveAspectRatio="none"></svg>
      <div class="play-axis"><span>0 s</span><span></span></div></figure>`,
  );
  const legend = Object.entries(KINDS).map(([kind, text]) => `<span class="play-${kind}">${text}</span>`);
  return `<div class="play-values">${inputs.join("")}</div><p id="play-result" role="status"></p>
    <p class="play-legend">${legend.join("")}</p><div class="play-charts">${charts.join("")}</div>
    <table><caption>Wait until the start</caption><thead></thead><tbody></tbody></table>
    <p><a id="play-address">Address of this simulation</a> <button type="button" id="play-reset">Default values</button></p>`;
}

/** Draw a line for each task, from its start to its end, in the row of its customer. */
function drawChart(figure, title, started, customers, seconds) {
  const paths = Object.keys(KINDS).map((kind) => {
    const lines = started.filter((task) => task.kind === kind);
    const path = lines.map((task) => `M${task.start.toFixed(2)} ${task.customer + 0.5}h${task.length.toFixed(2)}`);
    return `<path class="play-${kind}" d="${path.join("")}"/>`;
  });
  const svg = figure.querySelector("svg");
  svg.setAttribute("viewBox", `0 0 ${seconds} ${customers}`);
  svg.setAttribute("aria-label", `${title}: the running tasks of each customer over time`);
  svg.style.setProperty("--play-row", `${Math.min(8, Math.max(2, 220 / customers))}px`);
  svg.innerHTML = paths.join("");
  figure.querySelector("figcaption").textContent = title;
  figure.querySelector(".play-axis span:last-child").textContent = `${Math.ceil(seconds)} s`;
}

function showResult(page, values) {
  const { customers, slots, lanes } = values;
  const tasks = makeTasks(values);
  const runs = [
    { id: "fair", title: lanes ? "Fair turns and lanes" : "Fair turns", order: new FairOrder() },
    { id: "arrival", title: "First come, first served", order: new ArrivalOrder() },
  ].map((run) => ({ ...run, started: simulate(run.order, tasks, slots, customers) }));
  const seconds = Math.max(...runs.flatMap((run) => run.started.map((task) => task.start + task.length)));
  for (const { id, title, started } of runs) drawChart(page.querySelector(`#play-${id}`), title, started, customers, seconds);
  const [fair, arrival] = runs.map((run) => formatSeconds(waitOf(run.started, "mail", 0.99)));
  page.querySelector("#play-result").textContent =
    `99 % of the mails start within ${fair} with ${runs[0].title.toLowerCase()}, and within ${arrival} first come, first served.`;
  const rows = Object.entries(KINDS).map(([kind, text]) => [
    `<th scope="row">${text}</th>`,
    ...runs.flatMap(({ started }) => [0.5, 0.99].map((part) => `<td>${formatSeconds(waitOf(started, kind, part))}</td>`)),
  ]);
  const groups = runs.map(({ title }) => `<th scope="colgroup" colspan="2">${title}</th>`);
  const columns = runs.map(() => `<th scope="col">half within</th><th scope="col">99 % within</th>`);
  page.querySelector("thead").innerHTML = `<tr><td rowspan="2"></td>${groups.join("")}</tr><tr>${columns.join("")}</tr>`;
  page.querySelector("tbody").innerHTML = rows.map((cells) => `<tr>${cells.join("")}</tr>`).join("");
}

function startPage(page) {
  page.innerHTML = formMarkup();
  const fields = INPUTS.map(({ name }) => page.querySelector(`#play-${name}`));
  const show = (values) => {
    for (const field of fields) {
      const value = values[field.name];
      if (field.type === "checkbox") field.checked = Boolean(value);
      else field.value = field.nextElementSibling.textContent = value;
    }
    page.querySelector("#play-address").href = `#${new URLSearchParams(values)}`;
    showResult(page, values);
  };
  const showAndShare = (values) => {
    history.replaceState(null, "", `#${new URLSearchParams(values)}`);
    show(values);
  };
  let isDrawing = false;
  page.addEventListener("input", () => {
    if (isDrawing) return;
    isDrawing = true; // one drawing for all changes until then
    requestAnimationFrame(() => {
      isDrawing = false;
      showAndShare(Object.fromEntries(fields.map((field) => [field.name, Number(field.type === "checkbox" ? field.checked : field.value)])));
    });
  });
  page.querySelector("#play-reset").addEventListener("click", () => showAndShare(readAddress("")));
  window.addEventListener("hashchange", () => location.hash.includes("=") && show(readAddress(location.hash)));
  show(readAddress(location.hash));
}

const playground = document.getElementById("playground-form");
if (playground) startPage(playground);
