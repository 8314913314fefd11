// A beam search as a tree: a column for each token, a node for each hypothesis that is kept.

import { element, percent, shape } from "./drawing.js";

const STEP = 142, LINE = 30, NODE = 120;
const short = (token) => (token.length > 9 ? `${token.slice(0, 8)}…` : token);

// found: the answer of api/generate, {error}, or null if nothing was asked for.
export function generation(found, state, act) {
  const [beams, tokens] = state.generate ? state.generate.split(".") : ["4", "12"];
  const number = (name, value, most) => element("input", { type: "number", min: 1, max: most, value, required: true, "aria-label": name, "data-of": name });
  const form = element("form", {
    class: "generate",
    onsubmit: (event) => {
      event.preventDefault();
      const [width, steps] = ["beams", "tokens"].map((name) => event.target.querySelector(`[data-of=${name}]`).value);
      act.generate(`${width}.${steps}`);
    },
  }, element("label", {}, "Beams ", number("beams", beams, 8)), element("label", {}, "Tokens ", number("tokens", tokens, 40)),
  element("button", { type: "submit" }, "Generate"));
  const parts = [element("h2", {}, "Generation, step by step"), form];
  if (found?.error) parts.push(element("p", { class: "hint" }, found.error));
  else if (found) parts.push(...grown(found, state, act));
  return element("div", {}, ...parts);
}

function grown(found, state, act) {
  if (!found.steps.length) return [element("p", { class: "hint" }, "The model writes nothing.")];
  const { steps, best } = found, most = Math.max(...steps.map((step) => step.length));
  const [column, row] = chosen(found, state), width = steps.length * STEP + 8, height = most * LINE + 8;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "hypotheses; right and left arrow keys go to a child and to the parent, up and down to others of the same length" });
  const at = (step, number) => [4 + step * STEP, 4 + number * LINE];
  steps.forEach((step, index) => step.forEach((node, place) => {
    if (node.parent === null) return;
    const [x, y] = at(index, place), [from, height] = at(index - 1, node.parent);
    const isBest = best.path[index] === place && best.path[index - 1] === node.parent;
    svg.append(shape("line", { class: isBest ? "branch best" : "branch", x1: from + NODE, y1: height + LINE / 2 - 3, x2: x, y2: y + LINE / 2 - 3 }));
  }));
  steps.forEach((step, index) => step.forEach((node, place) => {
    const [x, y] = at(index, place), isChosen = index === column && place === row, isBest = best.path[index] === place;
    const go = (to, next) => act.node(`${to}.${Math.min(next, steps[to].length - 1)}`);
    const group = shape("g", {
      class: ["node", isBest ? "best" : "", isChosen ? "here" : ""].join(" "), role: "button", tabindex: isChosen ? 0 : -1, "data-node": `${index}.${place}`,
      "aria-pressed": String(isChosen), "aria-label": `token ${index + 1}: ${node.token}, ${percent(Math.exp(node.log_prob))}${node.finished ? ", ends here" : ""}${isBest ? ", of the output" : ""}`,
    },
    shape("title", {}, `${node.text}\nlog P ${node.log_prob.toFixed(3)}, score ${node.score.toFixed(3)}`),
    shape("rect", { x, y, width: NODE, height: LINE - 6, rx: 4 }),
    shape("text", { x: x + 5, y: y + 17 }, short(node.token)),
    shape("text", { class: "share", x: x + NODE - 4, y: y + 17, "text-anchor": "end" }, `${Math.round(100 * Math.exp(node.log_prob))} %`));
    group.addEventListener("click", () => go(index, place));
    group.addEventListener("keydown", (event) => {
      const child = (steps[index + 1] ?? []).findIndex(({ parent }) => parent === place);
      const moves = {
        ArrowRight: child < 0 ? [index, place] : [index + 1, child], ArrowLeft: index ? [index - 1, node.parent] : [index, place],
        ArrowDown: [index, place + 1], ArrowUp: [index, Math.max(0, place - 1)], Enter: [index, place], " ": [index, place],
      };
      if (!(event.key in moves)) return;
      event.preventDefault();
      go(...moves[event.key]);
    });
    svg.append(group);
  }));
  const node = steps[column][row];
  return [
    element("p", { class: "hint" }, `Output: “${best.text}”${best.finished ? "" : ", cut"}. Score: log P of the tokens, ${found.penalty === "none" ? "summed" : `with the length penalty “${found.penalty}”`}. All heads take part, also those that are left out above.`),
    element("div", { class: "scroll tree" }, svg),
    element("p", { class: "said" }, `“${node.text}”: log P ${node.log_prob.toFixed(3)} of the last token, score ${node.score.toFixed(3)}${node.finished ? ", ended" : ""}.`),
  ];
}

// The step and number of the chosen hypothesis; the end of the output if it does not exist.
function chosen({ steps, best }, state) {
  const [column, row] = state.node.split(".").map(Number);
  if (steps[column]?.[row]) return [column, row];
  const last = Math.max(0, best.path.length - 1);
  return [last, best.path[last] ?? 0];
}
