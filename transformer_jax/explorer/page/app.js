// The page: asks the server for what the state says, and draws it.

import { element } from "./drawing.js";
import { modelPanels } from "./panels.js";
import { DEFAULTS, fromAddress, offered, toAddress, toggled } from "./state.js";
import { saveJson, savePage, saveSvg } from "./export.js";

const byId = (id) => document.getElementById(id);
const saved = byId("saved") ? JSON.parse(byId("saved").textContent) : null;
const token = new URLSearchParams(location.search).get("token");
const HEADERS = token ? { "X-Token": token } : {};
const ASKED = ["induction", "effects"];
const CHOICES = [["measure", "measure"], ["order", "order"], ["form-of", "form"], ["by", "by"]];
const OPTIONS = Object.fromEntries(CHOICES.map(([id, name]) => [name, [...byId(id).options].map(({ value }) => value)]));
let state = offered(saved ? { ...DEFAULTS, ...saved.state } : fromAddress(location.hash), OPTIONS);
let models = saved ? saved.models : [];
let asking = null, timer = null;

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json", ...HEADERS };
  const response = await fetch(path, { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body) });
  const found = await response.json();
  if (!response.ok) throw new Error(found.error || response.statusText);
  return found;
}

function say(text, isError = false) {
  byId("status").textContent = text;
  byId("status").className = isError ? "error" : "";
}

// A newer question cancels the one that waits.
async function look() {
  if (saved) return draw();
  asking?.abort();
  const mine = (asking = new AbortController()), { text, ablated, by } = state;
  say("computing");
  try {
    const found = [];
    for (const [number, { about }] of models.entries()) {
      const own = ablated.filter(([layer, head]) => layer < about.layers && head < about.heads);
      const asked = { model: number, text };
      const look = await ask("api/look", { ...asked, ablated: own, by_mean: by === "mean" }, mine.signal);
      const base = own.length ? await ask("api/look", asked, mine.signal) : null;
      found.push({ about, look, base });
    }
    await measure(found, mine.signal);
    models = found; // at once, so that what is drawn fits together
    say("");
    draw();
  } catch (error) {
    if (error.name !== "AbortError") say(error instanceof TypeError ? "the server does not answer; is it still running?" : error.message, true);
  }
}

// Numbers of heads that need further passes are asked for when they are shown.
async function measure(found, signal) {
  if (!ASKED.includes(state.measure)) return;
  for (const [number, model] of found.entries()) {
    const { attention } = model.look;
    if (attention[state.measure] || !attention.layers.length || model.look.tokens.length < 2) continue;
    const asked = { model: number, text: state.text, by_mean: state.by === "mean" };
    attention[state.measure] = (await ask(`api/${state.measure}`, asked, signal)).numbers;
  }
}

function set(changes) {
  const before = state;
  state = { ...state, ...changes };
  if (!saved) history.replaceState(null, "", toAddress(state));
  const asks = ["text", "by", "measure"].some((name) => before[name] !== state[name]) || before.ablated !== state.ablated;
  if (asks) look(); else draw();
}

// The buttons of the model whose button has the focus, which drawing makes anew.
function focuser() {
  const sections = () => [...document.querySelectorAll(".model")];
  const number = sections().indexOf(document.activeElement?.closest(".model"));
  const { place, head } = document.activeElement?.dataset ?? {};
  const wanted = () => (place !== undefined ? `[data-place="${state.place}"]` : `[data-head="${state.layer}.${state.head}"]`);
  if (number < 0 || (place === undefined && head === undefined)) return () => {};
  return () => sections()[number]?.querySelector(wanted())?.focus();
}

const act = {
  place: (place) => place !== state.place && set({ place }),
  head: (layer, head) => set({ layer, head }),
  toggle: (layer, head) => (saved ? say("a saved page cannot compute; start the explorer", true) : set({ ...toggled(state, layer, head), layer, head })),
};

function draw() {
  if (!models.length || !models.every((model) => model.look)) return;
  const focus = focuser();
  byId("main").className = models.length > 1 ? "two" : "";
  byId("main").replaceChildren(...compared(), ...models.map((model) => modelPanels(model, state, act)));
  focus();
  for (const [id, name] of CHOICES) byId(id).value = state[name];
}

// The differences of two models at the chosen token; only if their tokens are the same.
function compared() {
  if (models.length < 2) return [];
  const [one, other] = models;
  if (one.about.tokenizer !== other.about.tokenizer) {
    return [element("p", { class: "compared" }, "The two models have different tokenizers, so their tokens cannot be compared one by one.")];
  }
  const change = one.look.losses.map((loss, index) => other.look.losses[index] - loss);
  const total = change.reduce((a, b) => a + b, 0);
  const strongest = change.map((value, index) => [Math.abs(value), index]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  const said = strongest.map(([, index]) => `“${one.look.tokens[index + 1]}” ${change[index] > 0 ? "+" : ""}${change[index].toFixed(3)}`).join(", ");
  return [element("p", { class: "compared" }, change.length ? `${other.about.label} less ${one.about.label}: ${total > 0 ? "+" : ""}${(total / change.length).toFixed(3)} nats per token; most at ${said}.` : "Type a text to compare the models.")];
}

// Listens before anything is asked for, so that no typing is lost.
function listen() {
  const text = byId("text");
  if (text.value && !saved) state.text = text.value; else text.value = state.text;
  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => set({ text: text.value, place: 0 }), 250);
  });
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  for (const [id, name] of CHOICES) byId(id).addEventListener("change", (event) => set({ [name]: event.target.value }));
  byId("restore").addEventListener("click", () => set({ ablated: [] }));
  byId("save-svg").addEventListener("click", () => {
    const picture = document.querySelector(".picture svg");
    if (picture) saveSvg(picture);
  });
  byId("save-json").addEventListener("click", () => saveJson(models, state));
  byId("save-page").addEventListener("click", () => savePage(models, state, HEADERS).catch((error) => say(error.message, true)));
  addEventListener("hashchange", () => {
    state = offered(fromAddress(location.hash), OPTIONS);
    text.value = state.text;
    look();
  });
}

async function start() {
  listen();
  if (saved) {
    byId("text").disabled = byId("by").disabled = true;
    for (const option of byId("measure").options) option.disabled = !models.every(({ look }) => look.attention[option.value]);
    byId("save-page").hidden = byId("restore").hidden = true;
    say("A saved page: it shows what was computed, and computes nothing.");
  } else {
    models = (await ask("api/about")).models.map((about) => ({ about, look: null, base: null }));
  }
  byId("models").textContent = models.map(({ about }) => `${about.label}: ${about.stacks}`).join(" · ");
  await look();
}

start().catch((error) => say(error.message, true));
