// The parts of the page for models that read a whole text: attributions of tokens, tags of words, and masked tokens.

import { element, move, percent, signed } from "./drawing.js";
import { unitAt } from "./state.js";

// What each kind of model predicts, as headings say it.
export const PREDICTED = {
  labels: { class: "label", title: (unit) => `Label of ${unit.name}` },
  tags: { class: "tag", title: (unit) => `Tag of “${unit.name}”` },
  image: { class: "label", title: (unit) => `Label of ${unit.name}` },
  masked: { class: "token", title: (unit) => `In the place of “${unit.name}”` },
};

// The tokens, coloured by what they add to the chosen prediction.
export function attributed(model, state, act) {
  const { look, attributions } = model, all = look.tokens[look.predicted], here = Math.min(state.place, all.length - 1);
  const found = attributions?.unit === unitAt(look, state.place) && !attributions.error ? attributions : null;
  const most = found ? Math.max(...found.by_token.map(Math.abs), 1e-9) : 1;
  const row = element("div", { class: "tokens", role: "group", "aria-label": "tokens; colour: attribution" });
  all.forEach((token, index) => {
    const number = found?.by_token[index];
    row.append(element("button", {
      type: "button", class: number < 0 ? "token less" : "token more", "aria-pressed": String(index === here), "data-place": index,
      share: found ? Math.abs(number) / most : 0, tabindex: index === here ? 0 : -1,
      onclick: () => act.place(index),
      onkeydown: (event) => move(event, { ArrowRight: 1, ArrowLeft: -1 }, index, all.length, act.place),
    }, token, ...(found ? [element("small", {}, signed(number))] : [])));
  });
  const said = found
    ? `Colour and number: what each token adds to log P of “${found.of}”, by integrated gradients. They sum to ${signed(found.sum)}; log P less that of embeddings of zero is ${signed(found.difference)}. All heads take part.`
    : attributions?.error ?? "Attributions of this prediction are not computed.";
  return element("div", {}, row, element("p", { class: "hint" }, said));
}

// The words with their tags, as buttons.
export function tagged({ look, base }, state, act) {
  const here = unitAt(look, state.place);
  const row = element("div", { class: "tokens", role: "group", "aria-label": "words with their tags" });
  const go = (unit) => act.place(look.units[unit].place);
  look.units.forEach(({ name }, unit) => {
    const [tag, p] = look.predictions[unit][0], before = base?.predictions[unit][0][0] ?? tag;
    row.append(element("button", {
      type: "button", class: "token", "aria-pressed": String(unit === here), "data-unit": unit, tabindex: unit === here ? 0 : -1, title: percent(p),
      onclick: () => go(unit),
      onkeydown: (event) => move(event, { ArrowRight: 1, ArrowLeft: -1 }, unit, look.units.length, go),
    }, name, element("small", {}, tag === before ? tag : `${tag}, ${before} with all heads`)));
  });
  return element("div", {}, element("h2", {}, "Tags"), row);
}

// The places of masks.
export function masksOf({ look, about }) {
  return about.mask ? look.units.flatMap(({ name }, unit) => (name === about.mask ? [unit] : [])) : [];
}

// The likeliest tokens at every mask.
export function masked(model, state, act) {
  const { look, about } = model, places = masksOf(model);
  if (!places.length) return element("p", { class: "hint" }, `Write ${about.mask} where a token is to be predicted.`);
  const table = element("table", { class: "lens masks" }), here = unitAt(look, state.place);
  for (const [index, unit] of places.entries()) {
    const button = element("button", {
      type: "button", "aria-pressed": String(unit === here), "data-unit": unit, tabindex: unit === here || (index === 0 && !places.includes(here)) ? 0 : -1,
      onclick: () => act.place(unit),
      onkeydown: (event) => move(event, { ArrowDown: 1, ArrowUp: -1 }, index, places.length, (to) => act.place(places[to])),
    }, `token ${unit}`);
    const cells = look.predictions[unit].map(([token, p]) => element("td", { share: p }, `${token} ${percent(p)}`));
    table.append(element("tr", {}, element("th", { scope: "row" }, button), ...cells));
  }
  return element("div", {}, element("h2", {}, `In the place of each ${about.mask}`), element("div", { class: "scroll" }, table));
}
