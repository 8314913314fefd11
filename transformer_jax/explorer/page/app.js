// The page: asks the server for what the state says, and draws it.

import { element } from "./drawing.js";
import { modelPanels } from "./panels.js";
import { DEFAULTS, chosenAttention, fromAddress, offered, toAddress, toggled } from "./state.js";
import { saveJson, savePage, saveSvg } from "./export.js";

const byId = (id) => document.getElementById(id);
const saved = byId("saved") ? JSON.parse(byId("saved").textContent) : null;
const token = new URLSearchParams(location.search).get("token");
const HEADERS = token ? { "X-Token": token } : {};
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
  const mine = (asking = new AbortController()), { text, target, ablated, by } = state;
  say("computing");
  try {
    const found = [];
    for (const [number, { about }] of models.entries()) {
      const has = ([of, layer, head]) => about.attentions.some(({ name, layers, heads }) => name === of && layers.includes(layer) && head < heads);
      const own = ablated.filter(has);
      const asked = { model: number, text, ...(about.kind === "translation" ? { target } : {}) };
      const look = await ask("api/look", { ...asked, ablated: own, by_mean: by === "mean" }, mine.signal);
      const base = own.length ? await ask("api/look", asked, mine.signal) : null;
      found.push({ about, look, base, patch: null, generation: null });
    }
    await measure(found, mine.signal);
    const missing = unanswered(found, models);
    models = found; // at once, so that what is drawn fits together
    draw();
    for (const question of missing) await answer(question, mine.signal);
    if (missing.length) draw();
    say("");
  } catch (error) {
    if (error.name !== "AbortError") say(error instanceof TypeError ? "the server does not answer; is it still running?" : error.message, true);
  }
}

// Numbers of heads that need further passes are asked for when they are shown.
async function measure(found, signal) {
  for (const [number, { about, look }] of found.entries()) {
    if (!about.measures.includes(state.measure) || look.tokens[look.predicted].length < 2) continue;
    const target = about.kind === "translation" ? { target: state.target } : {};
    const asked = { model: number, text: state.text, by_mean: state.by === "mean", ...target };
    const { numbers } = await ask(`api/${state.measure}`, asked, signal);
    for (const [name, values] of Object.entries(numbers)) look.attention[name][state.measure] = values;
  }
}

// Questions beside the look that have no answer yet. They depend on the texts alone, so an answer to the same one stays.
function unanswered(found, before) {
  const [width, steps] = state.generate.split(".").map(Number);
  return found.flatMap((model, number) => {
    const asked = { model: number, text: state.text };
    const questions = {
      ...(state.other && model.about.kind === "language" ? { patch: { ...asked, other: state.other } } : {}),
      ...(state.generate ? { generation: { ...asked, width, steps } } : {}),
    };
    return Object.entries(questions).flatMap(([name, question]) => {
      const known = before[number][name];
      if (known?.asked !== JSON.stringify(question)) return [{ model, name, question }];
      model[name] = known;
      return [];
    });
  });
}

// A question that has no answer says why in its panel, and all else is shown.
async function answer({ model, name, question }, signal) {
  try {
    model[name] = await ask(name === "patch" ? "api/patch" : "api/generate", question, signal);
  } catch (error) {
    if (error.name === "AbortError" || error instanceof TypeError) throw error;
    model[name] = { error: error.message };
  }
  model[name].asked = JSON.stringify(question);
}

function set(changes) {
  const before = state;
  state = { ...state, ...changes };
  if (!saved) history.replaceState(null, "", toAddress(state));
  const asks = ["text", "target", "other", "generate", "by", "measure"].some((name) => before[name] !== state[name]) || before.ablated !== state.ablated;
  if (asks) look(); else draw();
}

// The buttons of the model whose button has the focus, which drawing makes anew.
function focuser() {
  const sections = () => [...document.querySelectorAll(".model")];
  const number = sections().indexOf(document.activeElement?.closest(".model"));
  const { place, source, head, patch, node } = document.activeElement?.dataset ?? {};
  const wanted = () => (node !== undefined ? ".node.here" : patch !== undefined ? `[data-patch="${patch}"]` : place !== undefined ? `[data-place="${state.place}"]` : source !== undefined ? `[data-source="${state.source}"]` : `[data-head="${state.layer}.${state.head}"]`);
  if (number < 0 || [place, source, head, patch, node].every((part) => part === undefined)) return () => {};
  return () => sections()[number]?.querySelector(wanted())?.focus();
}

const act = {
  place: (place) => place !== state.place && set({ place }),
  at: (stack, place) => (models[0].look.predicted === stack ? act.place(place) : place !== state.source && set({ source: place })),
  head: (layer, head) => set({ layer, head }),
  patched: (cell) => set({ patched: cell }),
  generate: (asked) => (saved ? say("a saved page cannot compute; start the explorer", true) : set({ generate: asked, node: "" })),
  node: (node) => set({ node }),
  toggle: (of, layer, head) => (saved ? say("a saved page cannot compute; start the explorer", true) : set({ ...toggled(state, of, layer, head), layer, head })),
};

function draw() {
  if (!models.length || !models.every((model) => model.look)) return;
  const focus = focuser();
  byId("main").className = models.length > 1 ? "two" : "";
  byId("main").replaceChildren(...compared(), ...models.map((model) => modelPanels(model, state, act)));
  for (const tree of document.querySelectorAll(".tree")) {
    const node = tree.querySelector(".node.here rect");
    tree.scrollLeft = Number(node.getAttribute("x")) + Number(node.getAttribute("width")) + 16 - tree.clientWidth;
  }
  focus();
  for (const [id, name] of CHOICES) byId(id).value = state[name];
  byId("attention").value = chosenAttention(models[0].about, state)?.name ?? "";
}

// The differences of two models at the chosen token; only if their tokens are the same.
function compared() {
  if (models.length < 2) return [];
  const [one, other] = models;
  if (one.about.kind !== other.about.kind) return [element("p", { class: "compared" }, "The two models are of different kinds, so their numbers cannot be compared.")];
  if (one.about.tokenizer !== other.about.tokenizer) {
    return [element("p", { class: "compared" }, "The two models have different tokenizers, so their tokens cannot be compared one by one.")];
  }
  if (one.look.target !== other.look.target) return [element("p", { class: "compared" }, "The two outputs differ. Type a target, so that both models read the same.")];
  const change = one.look.losses.map((loss, index) => other.look.losses[index] - loss);
  const total = change.reduce((a, b) => a + b, 0);
  const strongest = change.map((value, index) => [Math.abs(value), index]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  const said = strongest.map(([, index]) => `“${one.look.tokens[one.look.predicted][index + 1]}” ${change[index] > 0 ? "+" : ""}${change[index].toFixed(3)}`).join(", ");
  return [element("p", { class: "compared" }, change.length ? `${other.about.label} less ${one.about.label}: ${total > 0 ? "+" : ""}${(total / change.length).toFixed(3)} nats per token; most at ${said}.` : "Type a text to compare the models.")];
}

// Listens before anything is asked for, so that no typing is lost.
function listen() {
  const boxes = ["text", "target", "other"].map((name) => [name, byId(name)]);
  const typed = () => set({ ...Object.fromEntries(boxes.map(([name, box]) => [name, box.value])), place: 0, source: 0 });
  if (!saved && byId("text").value) state.text = byId("text").value;
  for (const [name, box] of boxes) {
    box.value = state[name];
    box.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(typed, 250);
    });
  }
  byId("attention").addEventListener("change", (event) => set({ attention: event.target.value }));
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
    for (const [name, box] of boxes) box.value = state[name];
    look();
  });
}

async function start() {
  listen();
  if (saved) {
    for (const id of ["text", "target", "other", "by"]) byId(id).disabled = true;
    const has = ({ about, look }, value) => value in Object.values(look.attention)[0] || !about.attentions.length;
    for (const option of byId("measure").options) option.disabled = !models.every((model) => has(model, option.value));
    byId("save-page").hidden = byId("restore").hidden = true;
    say("A saved page: it shows what was computed, and computes nothing.");
  } else {
    models = (await ask("api/about")).models.map((about) => ({ about, look: null, base: null }));
  }
  const attentions = new Map(models.flatMap(({ about }) => about.attentions.map(({ name, title }) => [name, title])));
  byId("attention").replaceChildren(...[...attentions].map(([value, title]) => element("option", { value }, title)));
  byId("of-attention").hidden = attentions.size < 2;
  byId("of-other").hidden = !models.some(({ about }) => about.kind === "language");
  byId("of-other").open = state.other !== "";
  byId("of-target").hidden = !models.some(({ about }) => about.kind === "translation");
  if (!saved) for (const option of byId("measure").options) option.hidden = option.value === "induction" && !models.some(({ about }) => about.measures.includes("induction"));
  byId("models").textContent = models.map(({ about }) => `${about.label}: ${about.stacks}`).join(" · ");
  await look();
}

start().catch((error) => say(error.message, true));
