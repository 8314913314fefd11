// The parts of the page for models of images: the picture with weights of its patches over it.

import { element, move, shape, signed } from "./drawing.js";
import { chosenAttention } from "./state.js";

const SIDE = 240;

// The picture with the chosen head, with rollout and with attributions, and the other heads of the layer.
export function pictured({ look, about, attributions }, state, act) {
  const { title, layers, heads } = chosenAttention(about, state), { patches } = Object.values(look.attention)[0];
  const layer = layers.indexOf(state.layer), count = look.rollout.length ** 2;
  const figures = [figure("Picture", over(look.picture, "the picture"))];
  if (layer >= 0 && state.head < heads) {
    figures.push(figure(`Layer ${state.layer}, head ${state.head}`, over(look.picture, `weights of ${title}`, patches[layer][state.head]), "picture"));
  }
  figures.push(figure("Rollout of all layers", over(look.picture, "attention rollout", look.rollout)));
  if (attributions && !attributions.error) {
    const numbers = attributions.by_token.slice(-count), side = look.rollout.length;
    const grid = look.rollout.map((_, row) => numbers.slice(row * side, (row + 1) * side));
    figures.push(figure(`Attributions of “${attributions.of}”`, over(look.picture, "attributions", grid)));
  }
  const ofLayer = layer < 0 ? [] : patches[layer].map((weights, head) => element("button", {
    type: "button", class: "map", "aria-pressed": String(head === state.head), "data-map": head, "aria-label": `layer ${state.layer} head ${head}`, tabindex: head === Math.min(state.head, heads - 1) ? 0 : -1,
    onclick: () => act.head(state.layer, head),
    onkeydown: (event) => move(event, { ArrowRight: 1, ArrowLeft: -1 }, head, heads, (to) => act.head(state.layer, to)),
  }, over(look.picture, `layer ${state.layer}, head ${head}`, weights), `${state.layer}.${head}`));
  const said = attributions?.error ?? (attributions
    ? `Attributions: what each patch adds to log P of “${attributions.of}”, by integrated gradients. ${look.tokens[look.predicted].length > count ? "With the class token they" : "They"} sum to ${signed(attributions.sum)}; log P less that of embeddings of zero is ${signed(attributions.difference)}. All heads take part.`
    : "Attributions are not computed.");
  return element("div", {}, element("div", { class: "figures" }, ...figures),
    element("p", { class: "hint" }, `Colour over a patch: its weight; of attributions, yellow adds and blue takes away. ${said}`),
    element("h2", {}, `All heads of layer ${state.layer}`), element("div", { class: "maps", role: "group", "aria-label": "maps of heads" }, ...ofLayer));
}

function figure(caption, picture, name = "") {
  return element("figure", { class: name }, picture, element("figcaption", {}, caption));
}

// A picture; if there are numbers [G][G], in grey, with a colour for each number over its patch.
function over(address, said, numbers = []) {
  const side = SIDE / Math.max(1, numbers.length), most = Math.max(...numbers.flat().map(Math.abs), 1e-9);
  const svg = shape("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", "aria-label": said });
  svg.append(shape("image", { class: numbers.length ? "grey" : "", href: address, width: SIDE, height: SIDE, preserveAspectRatio: "none" }));
  numbers.forEach((row, y) => row.forEach((number, x) => {
    const at = { x: x * side, y: y * side, width: side, height: side };
    svg.append(shape("rect", { ...at, class: number < 0 ? "heat less" : "heat", "fill-opacity": 0.8 * Math.abs(number) / most },
      shape("title", {}, `row ${y}, column ${x}: ${number < 0 ? signed(number) : number.toFixed(4)}`)));
  }));
  return svg;
}
