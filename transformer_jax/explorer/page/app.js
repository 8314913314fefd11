// The page: asks the server for what the state says, and draws it.

import { compared } from "./comparison.js";
import { element } from "./drawing.js";
import { masksOf } from "./encoders.js";
import { modelPanels } from "./panels.js";
import { DEFAULTS, chosenAttention, fromAddress, offered, questionOf, toAddress, toggled, unitAt } from "./state.js";
import { saveJson, savePage, saveSvg } from "./export.js";

const byId = (id) => document.getElementById(id);
const saved = byId("saved") ? JSON.parse(byId("saved").textContent) : null;
const token = new URLSearchParams(location.search).get("token");
const HEADERS = token ? { "X-Token": token } : {};
const CHOICES = [["measure", "measure"], ["order", "order"], ["form-of", "form"], ["by", "by"]];
const BOXES = ["text", "target", "second", "other"];
const ANSWERS = { patch: "api/patch", generation: "api/generate", attributions: "api/attributions" };
const OPTIONS = Object.fromEntries(CHOICES.map(([id, name]) => [name, [...byId(id).options].map(({ value }) => value)]));
let state = offered(saved ? { ...DEFAULTS, ...saved.state } : fromAddress(location.hash), OPTIONS);
let models = saved ? saved.models : [];
let asking = null, timer = null, isNew = !saved && hasNoPlace();
let picture = "", pictures = 0; // a file in base64, which is not in the address, and the number of those so far

function hasNoPlace() {
  return !new URLSearchParams(location.hash.slice(1)).has("place");
}

class NoAnswer extends Error {}

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json", ...HEADERS };
  const asked = { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body) };
  const response = await fetch(path, asked).catch((error) => {
    throw error instanceof TypeError ? new NoAnswer("the server does not answer; is it still running?") : error;
  });
  const found = await response.json();
  if (!response.ok) throw new Error(found.error || response.statusText);
  return found;
}

function say(text, isError = false) {
  byId("status").textContent = text;
  byId("status").className = isError ? "error" : "";
}

const questionTo = (about, number) => questionOf(about, number, { ...state, picture });
const keyOf = (question) => JSON.stringify({ ...question, ...(question.picture ? { picture: pictures } : {}) });

// A newer question cancels the one that waits. Returns false if there was an error. With `anew` false, what was looked
// at stays, if it is whole, and only questions about the chosen prediction are asked.
async function look(anew = true) {
  if (saved) {
    draw();
    return true;
  }
  const stays = !anew && asking === null;
  asking?.abort();
  const mine = (asking = new AbortController());
  say("computing");
  try {
    const found = stays ? models.map((model) => ({ ...model })) : await looked(mine.signal);
    if (isNew) {
      state = { ...state, place: found.flatMap((model) => (model.look ? firstPlaces(model) : []))[0] ?? 0 };
      keep();
    }
    isNew = false;
    await measure(found, mine.signal);
    const missing = unanswered(found, models);
    models = found; // at once, so that what is drawn fits together
    draw();
    for (const question of missing) await answer(question, mine.signal);
    if (missing.length) draw();
    say("");
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
    return error.name === "AbortError";
  }
  asking = null;
  return true;
}

async function looked(signal) {
  const found = [], { ablated, by } = state;
  for (const [number, { about }] of models.entries()) {
    const has = ([of, layer, head]) => about.attentions.some(({ name, layers, heads }) => name === of && layers.includes(layer) && head < heads);
    const own = ablated.filter(has), asked = questionTo(about, number);
    if (!asked) {
      found.push({ about, look: null, base: null });
      continue;
    }
    const look = await ask("api/look", { ...asked, ablated: own, by_mean: by === "mean" }, signal);
    const base = own.length ? await ask("api/look", asked, signal) : null;
    found.push({ about, look, base });
  }
  return found;
}

// Numbers of heads that need further passes are asked for when they are shown.
async function measure(found, signal) {
  for (const [number, { about, look }] of found.entries()) {
    if (!look || !about.measures.includes(state.measure) || look.losses?.length === 0) continue;
    const unit = look.units ? { unit: unitAt(look, state.place) } : {};
    const asked = { ...questionTo(about, number), by_mean: state.by === "mean", ...unit };
    const { numbers } = await ask(`api/${state.measure}`, asked, signal);
    look.measured = unit.unit;
    for (const [name, values] of Object.entries(numbers)) look.attention[name][state.measure] = values;
  }
}

// Questions beside the look that have no answer yet. They do not depend on heads, so an answer to the same one stays.
function unanswered(found, before) {
  const [width, steps] = state.generate.split(".").map(Number);
  return found.flatMap((model, number) => {
    if (!model.look) return [];
    const { units } = model.look, asked = { model: number, text: state.text };
    const questions = {
      ...(state.other && model.about.kind === "language" ? { patch: { ...asked, other: state.other } } : {}),
      ...(state.generate && !units ? { generation: { ...asked, width, steps } } : {}),
      ...(units ? { attributions: { ...questionTo(model.about, number), unit: unitAt(model.look, state.place) } } : {}),
    };
    return Object.entries(questions).flatMap(([name, question]) => {
      const known = before[number][name];
      if (known?.asked !== keyOf(question)) return [{ model, name, question }];
      model[name] = known;
      return [];
    });
  });
}

// A question that has no answer says why in its panel, and all else is shown.
async function answer({ model, name, question }, signal) {
  try {
    model[name] = await ask(ANSWERS[name], question, signal);
  } catch (error) {
    if (error.name === "AbortError" || error instanceof NoAnswer) throw error;
    model[name] = { error: error.message };
  }
  model[name].asked = keyOf(question);
}

// Of a new text: the last token of a language model, which has seen the others, or the masks.
function firstPlaces(model) {
  const { about, look } = model;
  return about.kind === "language" ? [look.tokens[look.predicted].length - 1] : masksOf(model);
}

function keep() {
  if (!saved) history.replaceState(null, "", toAddress(state));
}

function set(changes) {
  const before = state;
  state = { ...state, ...changes };
  keep();
  const asks = [...BOXES, "generate", "by", "measure", "ablated"].some((name) => before[name] !== state[name]);
  if (!asks) draw();
  if (asks || models.some(({ look }) => look?.units && unitAt(look, before.place) !== unitAt(look, state.place))) look(asks);
}

// The buttons of the model whose button has the focus, which drawing makes anew.
function focuser() {
  const sections = () => [...document.querySelectorAll(".model")];
  const number = sections().indexOf(document.activeElement?.closest(".model"));
  const { place, source, head, patch, node, unit, map } = document.activeElement?.dataset ?? {};
  const wanted = () => (unit !== undefined ? "[data-unit][aria-pressed=true]" : map !== undefined ? `[data-map="${state.head}"]` : node !== undefined ? ".node.here" : patch !== undefined ? `[data-patch="${patch}"]` : place !== undefined ? `[data-place="${state.place}"]` : source !== undefined ? `[data-source="${state.source}"]` : `[data-head="${state.layer}.${state.head}"]`);
  if (number < 0 || [place, source, head, patch, node, unit, map].every((part) => part === undefined)) return () => {};
  return () => sections()[number]?.querySelector(wanted())?.focus();
}

const act = {
  place: (place) => {
    isNew = false;
    if (place !== state.place) set({ place });
  },
  source: (place) => place !== state.source && set({ source: place }),
  head: (layer, head) => set({ layer, head }),
  patched: (cell) => set({ patched: cell }),
  generate: (asked) => (saved ? say("a saved page cannot compute; start the explorer", true) : set({ generate: asked, node: "" })),
  node: (node) => set({ node }),
  toggle: (of, layer, head) => (saved ? say("a saved page cannot compute; start the explorer", true) : set({ ...toggled(state, of, layer, head), layer, head })),
};

function draw() {
  if (!models.length || models.some(({ look }) => look === undefined)) return;
  const focus = focuser();
  byId("main").className = models.length > 1 ? "two" : "";
  byId("main").replaceChildren(...compared(models), ...models.map((model) => modelPanels(model, state, act)));
  for (const tree of document.querySelectorAll(".tree")) {
    const node = tree.querySelector(".node.here rect");
    tree.scrollLeft = Number(node.getAttribute("x")) + Number(node.getAttribute("width")) + 16 - tree.clientWidth;
  }
  focus();
  for (const [id, name] of CHOICES) byId(id).value = state[name];
  byId("attention").value = chosenAttention(models[0].about, state)?.name ?? "";
}

async function choose(file) {
  const most = Math.min(...models.map(({ about }) => about.most_bytes ?? Infinity));
  if (!file) return;
  if (file.size > most) throw new Error(`the picture has ${file.size.toLocaleString("en")} bytes; expected at most ${most.toLocaleString("en")}`);
  const mine = ++pictures;
  const address = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("the picture cannot be read"));
    reader.readAsDataURL(file);
  });
  if (mine !== pictures) return; // another one was chosen meanwhile
  const before = picture;
  picture = address.slice(address.indexOf(",") + 1);
  if (!(await look()) && mine === pictures) {
    picture = before;
    byId("picture").value = "";
  }
}

// Listens before anything is asked for, so that no typing is lost.
function listen() {
  const boxes = BOXES.map((name) => [name, byId(name)]);
  const typed = () => {
    isNew = true;
    set({ ...Object.fromEntries(boxes.map(([name, box]) => [name, box.value])), place: 0, source: 0 });
  };
  if (!saved && byId("text").value) state.text = byId("text").value;
  for (const [name, box] of boxes) {
    box.value = state[name];
    box.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(typed, 250);
    });
  }
  byId("picture").addEventListener("change", (event) => choose(event.target.files[0]).catch((error) => say(error.message, true)));
  byId("attention").addEventListener("change", (event) => set({ attention: event.target.value }));
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  for (const [id, name] of CHOICES) byId(id).addEventListener("change", (event) => set({ [name]: event.target.value }));
  byId("restore").addEventListener("click", () => set({ ablated: [] }));
  byId("save-svg").addEventListener("click", () => {
    const picture = document.querySelector(".picture svg");
    if (picture) saveSvg(picture); else say("there is no picture of attention to save", true);
  });
  byId("save-json").addEventListener("click", () => saveJson(models, state));
  byId("save-page").addEventListener("click", () => savePage(models, state, HEADERS).catch((error) => say(error.message, true)));
  addEventListener("hashchange", () => {
    state = offered(fromAddress(location.hash), OPTIONS);
    isNew = hasNoPlace();
    for (const [name, box] of boxes) box.value = state[name];
    look();
  });
}

async function start() {
  listen();
  if (saved) {
    for (const id of [...BOXES, "by"]) byId(id).disabled = true;
    const has = ({ about, look }, value) => !look || !about.attentions.length || value in Object.values(look.attention)[0];
    for (const option of byId("measure").options) option.disabled = !models.every((model) => has(model, option.value));
    byId("save-page").hidden = byId("restore").hidden = true;
    say("A saved page: it shows what was computed, and computes nothing.");
  } else {
    models = (await ask("api/about")).models.map((about) => ({ about }));
  }
  const attentions = new Map(models.flatMap(({ about }) => about.attentions.map(({ name, title }) => [name, title])));
  byId("attention").replaceChildren(...[...attentions].map(([value, title]) => element("option", { value }, title)));
  byId("of-attention").hidden = attentions.size < 2;
  byId("of-other").hidden = !models.some(({ about }) => about.kind === "language");
  byId("of-other").open = state.other !== "";
  for (const name of ["target", "second"]) byId(`of-${name}`).hidden = !models.some(({ about }) => about.reads.includes(name));
  byId("of-text").hidden = !models.some(({ about }) => about.reads.includes("text"));
  byId("of-picture").hidden = Boolean(saved) || !models.some(({ about }) => about.kind === "image");
  if (models.every(({ about }) => about.kind === "image")) {
    byId("form-of").parentElement.hidden = true;
    for (const value of ["previous", "first"]) byId("measure").querySelector(`[value=${value}]`).hidden = true;
  }
  if (models.every(({ about }) => about.needs_text)) document.querySelector("[value=effects]").textContent = "fall of log P of the prediction without it, nats";
  if (!saved) for (const option of byId("measure").options) option.hidden = option.value === "induction" && !models.some(({ about }) => about.measures.includes("induction"));
  byId("models").textContent = models.map(({ about }) => `${about.label}: ${about.stacks}`).join(" · ");
  await look();
}

start().catch((error) => say(error.message, true));
