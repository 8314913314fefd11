// Elements of the page, and pictures of attention as SVG.

const SVG = "http://www.w3.org/2000/svg";
const ONE = 65535;

export const signed = (x) => (x > 0 ? "+" : "−") + Math.abs(x).toFixed(3);
export const percent = (p) => `${(100 * p).toFixed(p < 0.1 ? 2 : 1)} %`;

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "share") made.style.setProperty("--share", value);
    else if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// Goes to the neighbour of a button that the key names: `keys` has the steps by key.
export function move(event, keys, index, count, go) {
  const step = keys[event.key];
  if (step === undefined) return;
  event.preventDefault();
  go(Math.min(count - 1, Math.max(0, index + step)));
}

export function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// An attention of a look as a picture needs it: tokens of queries and keys, and the weight of head `head` in row `row`.
export function drawn(look, name, row, head) {
  const found = look.attention[name], queries = look.tokens[found.queries], keys = look.tokens[found.keys];
  if (!found.values) {
    const bytes = Uint8Array.from(atob(found.weights), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    found.values = Uint16Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true));
  }
  const T = queries.length, S = keys.length, first = (row * found.heads + head) * T * S;
  return { queries, keys, weight: (query, key) => found.values[first + query * S + key] / ONE, last: (query) => (found.causal ? query : S - 1) };
}

const ROW = 22, COLUMN = 130, MOST = 26;
const LETTER = 8, SIN_60 = Math.sqrt(3) / 2; // the width of most letters, in pixels
const label = (token) => (token.length > 14 ? `${token.slice(0, 13)}…` : token);

// Two columns of tokens; lines from the query at `place`, as strong as its weights.
export function lines({ queries, keys, weight, last }, place, onPlace) {
  const gap = 160, width = 2 * COLUMN + gap, height = Math.max(queries.length, keys.length) * ROW + 6;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "attention from each token (left) to others (right)" });
  const middle = (index) => index * ROW + ROW / 2 + 3;
  for (let key = 0; key <= last(place); key++) {
    const w = weight(place, key);
    if (w < 0.01) continue;
    const line = { x1: COLUMN, y1: middle(place), x2: COLUMN + gap, y2: middle(key), "stroke-opacity": w, "stroke-width": 1 + 3 * w };
    svg.append(shape("line", { class: "edge", ...line }, shape("title", {}, `${queries[place]} to ${keys[key]}: ${w.toFixed(4)}`)));
  }
  queries.forEach((token, index) => {
    const here = index === place ? "here" : "";
    const left = shape("text", { x: COLUMN - 6, y: middle(index) + 4, "text-anchor": "end", class: here }, label(token));
    left.addEventListener("click", () => onPlace(index));
    svg.append(left);
  });
  keys.forEach((token, index) => svg.append(shape("text", { x: COLUMN + gap + 6, y: middle(index) + 4 }, label(token))));
  return svg;
}

export function matrix({ queries, keys, weight, last }, place, onPlace) {
  const T = queries.length, S = keys.length, cell = Math.max(8, Math.min(MOST, Math.floor(620 / Math.max(T, S))));
  const named = cell >= 12, lengths = named ? keys.map((token) => label(token).length * LETTER) : [0];
  const wide = S * cell, high = T * cell, top = 16 + SIN_60 * Math.max(...lengths), left = 110;
  const beyond = Math.max(...lengths.map((length, key) => (key + 0.5) * cell + length / 2 + 8)); // the keys' slanted labels
  const width = left + Math.max(wide, beyond) + 4, height = top + high + 4;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "attention weights: a row for each query, a column for each key" });
  for (let query = 0; query < T; query++) {
    for (let key = 0; key <= last(query); key++) {
      const at = { x: left + key * cell, y: top + query * cell, width: cell, height: cell };
      const w = weight(query, key);
      const drawn = shape("rect", { ...at, class: "cell", "fill-opacity": w }, shape("title", {}, `${queries[query]} to ${keys[key]}: ${w.toFixed(4)}`));
      drawn.addEventListener("click", () => onPlace(query));
      svg.append(drawn);
    }
  }
  if (named) {
    queries.forEach((token, query) => svg.append(shape("text", { x: left - 6, y: top + query * cell + cell / 2 + 4, "text-anchor": "end" }, label(token))));
    keys.forEach((token, key) => {
      const x = left + key * cell + cell / 2;
      svg.append(shape("text", { x, y: top - 6, transform: `rotate(-60 ${x} ${top - 6})` }, label(token)));
    });
  }
  if (last(0) === 0 && S > 1) {
    const steps = Array.from({ length: T - 1 }, (_, row) => `V${top + row * cell + cell}H${left + (row + 2) * cell}`).join("");
    svg.append(shape("path", { class: "hidden", d: `M${left + wide} ${top}H${left + cell}${steps}Z` }));
  }
  svg.append(shape("rect", { class: "frame", x: left, y: top, width: wide, height: high }));
  svg.append(shape("rect", { x: left, y: top + place * cell, width: wide, height: cell, fill: "none", stroke: "currentColor" }));
  return svg;
}
