// What differs between two models.

import { element, percent } from "./drawing.js";

// A paragraph about two models; nothing for one, or before both have a text.
export function compared(models) {
  const said = models.length < 2 || models.some(({ look }) => !look) ? "" : difference(...models);
  return said ? [element("p", { class: "compared" }, said)] : [];
}

function difference(one, other) {
  if (one.about.kind !== other.about.kind) return "The two models are of different kinds, so their numbers cannot be compared.";
  if (one.about.tokenizer !== other.about.tokenizer) return "The two models have different tokenizers, so their tokens cannot be compared one by one.";
  if (one.look.units) return ofPredictions(one, other);
  if (one.look.target !== other.look.target) return "The two outputs differ. Type a target, so that both models read the same.";
  const change = one.look.losses.map((loss, index) => other.look.losses[index] - loss);
  if (!change.length) return "Type a text to compare the models.";
  const total = change.reduce((a, b) => a + b, 0), plus = (x) => (x > 0 ? "+" : "");
  const strongest = change.map((value, index) => [Math.abs(value), index]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  const said = strongest.map(([, index]) => `“${one.look.tokens[one.look.predicted][index + 1]}” ${plus(change[index])}${change[index].toFixed(3)}`).join(", ");
  return `${other.about.label} less ${one.about.label}: ${plus(total)}${(total / change.length).toFixed(3)} nats per token; most at ${said}.`;
}

// The places at which the likeliest labels, tags or tokens differ.
function ofPredictions(one, other) {
  const best = one.look.units.map(({ name }, unit) => ({ name, likeliest: [one, other].map(({ look }) => look.predictions[unit][0]) }));
  const said = ({ likeliest }) => likeliest.map(([name, p]) => `“${name}” (${percent(p)})`).join(" and ");
  if (best.length === 1) return `${one.about.label} and ${other.about.label} say ${said(best[0])}.`;
  const differ = best.filter(({ likeliest: [a, b] }) => a[0] !== b[0]);
  const first = differ.slice(0, 3).map((unit) => `${unit.name}: ${said(unit)}`).join("; ");
  return `The likeliest predictions differ at ${differ.length} of ${best.length} places${first ? `. ${first}` : ""}.`;
}
