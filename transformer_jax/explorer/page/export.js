// Files of what is shown: the picture of attention as SVG, the data as JSON, and the page with them, which needs no server.

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

const STYLED = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "font", "text-anchor", "image-rendering", "filter"];

export function saveSvg(picture) {
  const copy = picture.cloneNode(true), before = picture.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((part, index) => {
    const style = getComputedStyle(before[index]);
    for (const name of STYLED) part.style.setProperty(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  save("attention.svg", "image/svg+xml", new XMLSerializer().serializeToString(copy));
}

const plain = (key, value) => (key === "values" ? undefined : value);

export function saveJson(models, state) {
  save("explorer.json", "application/json", JSON.stringify({ state, models }, plain, 1));
}

// The scripts become one, so that the file can be opened from a disk, where modules cannot be loaded.
export async function savePage(models, state, headers) {
  const text = async (name) => {
    const response = await fetch(name, { headers });
    if (!response.ok) throw new Error(`${name}: ${response.statusText}`);
    return response.text();
  };
  const page = await text("./"), css = await text("app.css"), names = ["state", "drawing", "comparison", "patching", "generation", "encoders", "images", "panels", "export", "app"];
  const scripts = await Promise.all(names.map((name) => text(`${name}.js`)));
  const joined = scripts.map((script) => script.replace(/^import .*$/gm, "").replace(/^export /gm, "")).join("\n").replaceAll("</script", "<\\/script");
  const data = JSON.stringify({ state, models }, plain).replaceAll("<", "\\u003c");
  const csp = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
  const whole = page
    .replace('<link rel="stylesheet" href="app.css">', () => `<meta http-equiv="Content-Security-Policy" content="${csp}">\n<style>\n${css}</style>`)
    .replace('<script type="module" src="app.js"></script>', () => `<script type="application/json" id="saved">${data}</script>\n<script type="module">\n${joined}</script>`);
  save("explorer.html", "text/html", whole);
}
