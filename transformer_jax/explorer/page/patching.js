// Activation patching: what one value of the run on a second text changes in the run on the first.

import { element, percent } from "./drawing.js";

// found: the answer of api/patch, or {error}.
export function patching(found, state, act) {
  if (!found) return "";
  const title = element("h2", {}, "Patching: the share of the difference between the texts that one value makes");
  if (found.error) return element("div", {}, title, element("p", { class: "hint" }, found.error));
  const number = found.against === null ? `The number is the log-probability of “${found.of}” next.` : `The number is the log-probability of “${found.of}” next, less that of “${found.against}”.`;
  const said = `${number} It is ${found.value.toFixed(3)} for the text and ${found.other_value.toFixed(3)} for the second text.`;
  const table = element("table", { class: "lens patching" }), head = element("tr", {}, element("th", { scope: "col" }, "stream after"));
  found.tokens.forEach((token, place) => {
    const other = found.other_tokens[place];
    head.append(element("th", { scope: "col" }, token === other ? token : `${token} ← ${other}`));
  });
  table.append(head);
  found.shares.forEach((row, stream) => {
    const line = element("tr", {}, element("th", { scope: "row" }, stream ? `layer ${stream - 1}` : "embedding"));
    row.forEach((share, place) => {
      const likely = found.likely[stream][place].map(([token, p]) => `“${token}” ${percent(p)}`).join(", ");
      line.append(element("td", { share: Math.min(1, Math.abs(share)), class: share < 0 ? "less" : "" },
        element("button", { type: "button", class: "patch", title: likely, "data-patch": `${stream}.${place}`,
          "aria-pressed": String(state.patched === `${stream}.${place}`), "aria-label": `share ${share.toFixed(2)}; then ${likely}`,
          onclick: () => act.patched(`${stream}.${place}`) }, share.toFixed(2))));
    });
    table.append(line);
  });
  const [stream, place] = state.patched.split(".").map(Number), likely = found.likely[stream]?.[place];
  const chosen = likely ? [element("p", { class: "then" }, `With this value of the second text, the next token is ${likely.map(([token, p]) => `“${token}” (${percent(p)})`).join(", ")}.`)] : [];
  return element("div", {}, title, element("p", { class: "hint" }, said), element("div", { class: "scroll" }, table), ...chosen);
}
