// What is shown, as it stands in the address behind "#".

export const DEFAULTS = {
  text: "", target: "", second: "", other: "", patched: "", generate: "", node: "", attention: "", layer: 0, head: 0, place: 0, source: 0, ablated: [], measure: "entropy", order: "layer",
  form: "lines", by: "zero",
};
const NUMBERS = ["layer", "head", "place", "source"];
const HEAD = /^([\w/]+)\.(\d+)\.(\d+)$/;

export function fromAddress(hash) {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  const state = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) {
    const value = fields.get(name);
    if (value === null) continue;
    if (NUMBERS.includes(name)) state[name] = Math.max(0, Number.parseInt(value, 10) || 0);
    else if (name === "ablated") state.ablated = value.split(" ").map((head) => HEAD.exec(head)).filter(Boolean).map(([, of, layer, head]) => [of, Number(layer), Number(head)]);
    else state[name] = value;
  }
  return state;
}

// Choices that the page does not offer become the usual ones.
export function offered(state, options) {
  const known = Object.entries(options).filter(([name, values]) => !values.includes(state[name]));
  return { ...state, ...Object.fromEntries(known.map(([name]) => [name, DEFAULTS[name]])) };
}

export function toAddress(state) {
  const fields = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const text = name === "ablated" ? value.map((head) => head.join(".")).join(" ") : String(value);
    const usual = name === "ablated" ? "" : String(DEFAULTS[name]);
    if (text !== usual || name === "place") fields.set(name, text); // without a place, the page chooses one
  }
  return `#${fields}`;
}

export function isOut(state, of, layer, head) {
  return state.ablated.some(([o, l, h]) => o === of && l === layer && h === head);
}

export function toggled(state, of, layer, head) {
  const others = state.ablated.filter(([o, l, h]) => o !== of || l !== layer || h !== head);
  return { ...state, ablated: others.length < state.ablated.length ? others : [...state.ablated, [of, layer, head]] };
}

// The number of the prediction at a place: of its token, of the word that the token is part of, or of the whole text.
export function unitAt(look, place) {
  if (!look.units) return Math.min(place, look.tokens[look.predicted].length - 1);
  return Math.max(0, look.units.findLastIndex((unit) => unit.place === null || unit.place <= place));
}

// What a model is asked for; null if a text that it needs is missing.
export function questionOf(about, number, state) {
  const isMissing = about.needs_text && about.reads.some((name) => !state[name].trim());
  return isMissing ? null : { model: number, ...Object.fromEntries(about.reads.map((name) => [name, state[name]])) };
}

// The attention that is shown of a model; the first one if it does not have the chosen one.
export function chosenAttention(about, state) {
  return about.attentions.find(({ name }) => name === state.attention) ?? about.attentions[0];
}
