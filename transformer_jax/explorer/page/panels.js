// The parts of the page for one model: tokens, predictions, heads, attention, logit lens.

import { drawn, element, lines, matrix, move, percent, signed } from "./drawing.js";
import { PREDICTED, attributed, masked, tagged } from "./encoders.js";
import { pictured } from "./images.js";
import { generation } from "./generation.js";
import { patching } from "./patching.js";
import { chosenAttention, isOut, unitAt } from "./state.js";

// model: {about, look, base}; look is null before there is a text, and base the look with all heads if some are left
// out. act: functions that change the state.
export function modelPanels(model, state, act) {
  const { look, about } = model;
  const parts = !look ? [element("p", { class: "hint" }, missing(about))] : [
    ...(look.units ? ofEncoder(model, state, act) : ofGenerator(model, state, act)),
    heads(look, about, state, act),
    about.kind === "image" ? pictured(model, state, act) : attention(look, about, state, act),
    lens(look, about, state, act),
    ...(look.units ? [] : [patching(model.patch, state, act), generation(model.generation ?? null, state, act)]),
  ];
  return element("section", { class: "model", "aria-label": about.label }, element("h2", {}, about.label), ...parts);
}

function missing({ kind, reads }) {
  if (kind === "image") return "Choose a picture.";
  return reads.length > 1 ? "Type both texts." : "Type a text.";
}

function ofGenerator({ look, base, about }, state, act) {
  const others = Object.keys(look.tokens).filter((stack) => stack !== look.predicted);
  return [...others.map((stack) => read(look, stack, state, act)), tokens(look, base, state, act), predictions(look, base, about, state)];
}

function ofEncoder(model, state, act) {
  const { look, base, about } = model;
  const of = { tags: tagged, masked };
  if (about.kind === "image") return [predictions(look, base, about, state)];
  return [attributed(model, state, act), ...(about.kind in of ? [of[about.kind](model, state, act)] : []), predictions(look, base, about, state)];
}

// The tokens that an encoder reads.
function read(look, stack, state, act) {
  const all = look.tokens[stack], here = Math.min(state.source, all.length - 1);
  const row = element("div", { class: "tokens", role: "group", "aria-label": "tokens of the source" });
  all.forEach((token, index) => row.append(element("button", {
    type: "button", class: "token", "aria-pressed": String(index === here), "data-source": index, tabindex: index === here ? 0 : -1,
    onclick: () => act.source(index),
    onkeydown: (event) => move(event, { ArrowRight: 1, ArrowLeft: -1 }, index, all.length, act.source),
  }, token)));
  return element("div", {}, element("h2", {}, "Source"), row);
}

function tokens(look, base, state, act) {
  const most = 8, all = look.tokens[look.predicted];
  const row = element("div", { class: "tokens", role: "group", "aria-label": "tokens; colour: loss" });
  const here = Math.min(state.place, all.length - 1);
  all.forEach((token, index) => {
    const loss = index ? look.losses[index - 1] : null;
    const change = base && index ? `, ${signed(loss - base.losses[index - 1])} by the heads that are left out` : "";
    row.append(element("button", {
      type: "button", class: "token", "aria-pressed": String(index === here), "data-place": index,
      share: loss === null ? 0 : Math.min(1, loss / most), tabindex: index === here ? 0 : -1,
      title: loss === null ? "start" : `loss ${loss.toFixed(3)} nats${change}`,
      onclick: () => act.place(index),
      onkeydown: (event) => move(event, { ArrowRight: 1, ArrowLeft: -1 }, index, all.length, act.place),
    }, token));
  });
  const total = look.losses.reduce((a, b) => a + b, 0);
  const sum = look.losses.length ? `Loss ${(total / look.losses.length).toFixed(3)} nats per token` : "No token to predict";
  const before = base && base.losses.length ? ` (${(base.losses.reduce((a, b) => a + b, 0) / base.losses.length).toFixed(3)} with all heads)` : "";
  const title = Object.keys(look.tokens).length > 1 ? [element("h2", {}, "Target")] : [];
  return element("div", {}, ...title, row, element("p", { class: "hint" }, `${sum}${before}. Colour: loss of the token.`));
}

function predictions(look, base, about, state) {
  const at = unitAt(look, state.place), of = PREDICTED[about.kind];
  const table = element("table", { class: "predictions" });
  table.append(element("tr", {}, element("th", { scope: "col" }, of ? of.class : "next token"), element("th", { scope: "col" }, "probability"), element("th")));
  for (const [token, p] of look.predictions[at]) {
    const before = base ? (base.predictions[at].find(([other]) => other === token) || [null, null])[1] : null;
    const change = before === null ? "" : element("span", { class: p >= before ? "up" : "down" }, ` (${percent(before)} with all heads)`);
    table.append(element("tr", {}, element("td", {}, token), element("td", { class: "number" }, percent(p), change),
      element("td", {}, bar(p))));
  }
  const title = of ? of.title(look.units[at]) : `After “${look.tokens[look.predicted][at]}”`;
  return element("div", {}, element("h2", {}, title), element("div", { class: "scroll" }, table));
}

function bar(p) {
  const drawn = element("span", { class: "bar" });
  drawn.style.width = `${Math.round(160 * p)}px`;
  return drawn;
}

function heads(look, about, state, act) {
  const of = chosenAttention(about, state);
  if (!of) return element("p", { class: "hint" }, "No layer of this model has attention.");
  const { name, layers, heads: count } = of, isOther = state.measure === "effects" && look.units && look.measured !== unitAt(look, state.place);
  const computed = isOther ? undefined : look.attention[name][state.measure], values = computed || layers.map(() => Array(count).fill(0));
  const most = Math.max(...values.flat().map(Math.abs), 1e-9);
  const all = layers.flatMap((layer, row) => Array.from({ length: count }, (_, head) => ({ layer, head, value: values[row][head] })));
  if (state.order === "number") all.sort((a, b) => b.value - a.value);
  const grid = element("div", { class: "heads", role: "group", "aria-label": "heads" });
  grid.style.gridTemplateColumns = `repeat(${Math.min(count, 16)}, minmax(3.4rem, max-content))`;
  const isChosen = ({ layer, head }) => layer === state.layer && head === state.head;
  const reached = Math.max(0, all.findIndex(isChosen));
  all.forEach(({ layer, head, value }, index) => {
    const chosen = isChosen({ layer, head }), out = isOut(state, name, layer, head);
    const number = computed ? value.toFixed(4) : "not computed";
    grid.append(element("button", {
      type: "button", class: out ? "head out" : "head", "aria-pressed": String(chosen), "data-head": `${layer}.${head}`,
      "aria-label": `layer ${layer} head ${head}, ${number}${out ? ", left out" : ""}`,
      share: Math.abs(value) / most, tabindex: index === reached ? 0 : -1, title: `layer ${layer}, head ${head}: ${number}`,
      onclick: () => act.head(layer, head),
      onkeydown: (event) => {
        if (event.key.toLowerCase() === "a" && !event.ctrlKey && !event.metaKey && !event.altKey) return act.toggle(name, layer, head);
        move(event, { ArrowRight: 1, ArrowLeft: -1, ArrowDown: count, ArrowUp: -count }, index, all.length, (to) => act.head(all[to].layer, all[to].head));
      },
    }, `${layer}.${head}`));
  });
  const out = isOut(state, name, state.layer, state.head);
  const button = element("button", { type: "button", class: "toggle", onclick: () => act.toggle(name, state.layer, state.head) },
    `${out ? "Restore" : "Leave out"} head ${state.layer}.${state.head}`);
  return element("div", {}, element("h2", {}, `Heads of ${of.title}, as layer.head from 0`), element("div", { class: "scroll" }, grid),
    element("p", {}, button, computed ? "" : element("span", { class: "hint" }, " There is no such number for these heads, or for what is chosen.")));
}

function attention(look, about, state, act) {
  const of = chosenAttention(about, state);
  if (!of) return "";
  const row = of.layers.indexOf(state.layer);
  if (row < 0 || state.head >= of.heads) return element("p", { class: "hint" }, `There is no head ${state.layer}.${state.head} of ${of.title}.`);
  const stack = look.attention[of.name].queries, count = look.tokens[stack].length;
  const place = Math.min(stack === look.predicted ? state.place : state.source, count - 1);
  const draw = state.form === "matrix" ? matrix : lines;
  return element("div", {}, element("h2", {}, `${of.title[0].toUpperCase()}${of.title.slice(1)}, layer ${state.layer}, head ${state.head}`),
    element("div", { class: "scroll picture" }, draw(drawn(look, of.name, row, state.head), place, stack === look.predicted ? act.place : act.source)));
}

function lens(look, about, state, act) {
  const here = unitAt(look, state.place), units = look.units ?? look.tokens[look.predicted].map((name, place) => ({ name, place }));
  const table = element("table", { class: "lens" });
  const head = element("tr", {}, element("th", { scope: "col" }, look.units ? "" : "after"));
  units.forEach(({ name }) => head.append(element("th", { scope: "col" }, name)));
  table.append(head);
  look.lens.forEach((row, stream) => {
    const line = element("tr", {}, element("th", { scope: "row" }, stream ? `layer ${stream - 1}` : "embedding"));
    row.forEach((likely, unit) => {
      const [token, p] = likely[0];
      line.append(element("td", { share: p, class: unit === here ? "here" : "", onclick: () => act.place(units[unit].place ?? state.place),
        title: likely.map(([other, q]) => `${other} ${percent(q)}`).join("\n") }, token));
    });
    table.append(line);
  });
  return element("div", {}, element("h2", {}, `Logit lens: the likeliest ${PREDICTED[about.kind]?.class ?? "next token"}, if the model ended here`),
    element("div", { class: "scroll" }, table));
}
