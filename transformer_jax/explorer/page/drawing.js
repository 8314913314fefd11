// Elements of the page, and pictures of attention as SVG.

const SVG = "http://www.w3.org/2000/svg";
const ONE = 65535;

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

export function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Weights of a head as a function of query and key.
export function weightsOf(look, row, head) {
  const { heads } = look.attention, T = look.tokens.length;
  if (!look.attention.values) {
    const bytes = Uint8Array.from(atob(look.attention.weights), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    look.attention.values = Uint16Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true));
  }
  const first = (row * heads + head) * T * T;
  return (query, key) => look.attention.values[first + query * T + key] / ONE;
}

const ROW = 22, COLUMN = 130, MOST = 26;
const label = (token) => (token.length > 14 ? `${token.slice(0, 13)}…` : token);

// Two columns of tokens; lines from the query at `place`, as strong as its weights.
export function lines(look, row, head, place, onPlace) {
  const weight = weightsOf(look, row, head), T = look.tokens.length, gap = 160;
  const svg = shape("svg", { viewBox: `0 0 ${2 * COLUMN + gap} ${T * ROW + 6}`, width: 2 * COLUMN + gap, height: T * ROW + 6, role: "img", "aria-label": `attention from each token (left) to those before it (right)` });
  const middle = (index) => index * ROW + ROW / 2 + 3;
  for (let key = 0; key <= place; key++) {
    const w = weight(place, key);
    if (w < 0.01) continue;
    const line = { x1: COLUMN, y1: middle(place), x2: COLUMN + gap, y2: middle(key), "stroke-opacity": w, "stroke-width": 1 + 3 * w };
    svg.append(shape("line", { class: "edge", ...line }, shape("title", {}, `${look.tokens[place]} to ${look.tokens[key]}: ${w.toFixed(4)}`)));
  }
  look.tokens.forEach((token, index) => {
    const here = index === place ? "here" : "";
    const left = shape("text", { x: COLUMN - 6, y: middle(index) + 4, "text-anchor": "end", class: here }, label(token));
    left.addEventListener("click", () => onPlace(index));
    svg.append(left, shape("text", { x: COLUMN + gap + 6, y: middle(index) + 4 }, label(token)));
  });
  return svg;
}

export function matrix(look, row, head, place, onPlace) {
  const weight = weightsOf(look, row, head), T = look.tokens.length, cell = Math.max(8, Math.min(MOST, Math.floor(620 / T)));
  const size = T * cell, top = 110, left = 110;
  const svg = shape("svg", { viewBox: `0 0 ${left + size + 4} ${top + size + 4}`, width: left + size + 4, height: top + size + 4, role: "img", "aria-label": "attention weights: a row for each query, a column for each key" });
  for (let query = 0; query < T; query++) {
    for (let key = 0; key <= query; key++) {
      const at = { x: left + key * cell, y: top + query * cell, width: cell, height: cell };
      const w = weight(query, key);
      const drawn = shape("rect", { ...at, class: "cell", "fill-opacity": w }, shape("title", {}, `${look.tokens[query]} to ${look.tokens[key]}: ${w.toFixed(4)}`));
      drawn.addEventListener("click", () => onPlace(query));
      svg.append(drawn);
    }
    const y = top + query * cell + cell / 2 + 4, x = left + query * cell + cell / 2;
    if (cell >= 12) svg.append(shape("text", { x: left - 6, y, "text-anchor": "end" }, label(look.tokens[query])), shape("text", { x, y: top - 6, transform: `rotate(-60 ${x} ${top - 6})` }, label(look.tokens[query])));
  }
  const steps = Array.from({ length: T - 1 }, (_, row) => `V${top + row * cell + cell}H${left + (row + 2) * cell}`).join("");
  svg.append(shape("path", { class: "hidden", d: `M${left + size} ${top}H${left + cell}${steps}Z` }));
  svg.append(shape("rect", { class: "frame", x: left, y: top, width: size, height: size }));
  svg.append(shape("rect", { x: left, y: top + place * cell, width: size, height: cell, fill: "none", stroke: "currentColor" }));
  return svg;
}
