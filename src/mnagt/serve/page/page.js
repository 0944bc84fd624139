"use strict";
// Sends requests to the service and draws its responses. No other host is contacted.

const element = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const KINDS = {
  smiles: {
    name: "molecules",
    label: "SMILES, one per line",
    hint: "Press Enter to predict, Shift+Enter for a new line.",
    example: "CC(=O)Oc1ccccc1C(=O)O",
  },
  code: {
    name: "Python code",
    label: "Python source",
    hint: "Names are suggested for every function. Press Ctrl+Enter to predict.",
    example: "def f(xs):\n    total = 0\n    for x in xs:\n        total += x\n    return total / len(xs)",
  },
  graphs: {
    name: "graphs",
    label: "A graph as JSON, or a list of them",
    hint: "",
    example: "",
  },
};
const chosen = new URLSearchParams(location.search).get("model");
const prefix = chosen ? `/models/${encodeURIComponent(chosen)}` : "";
const state = { model: null, kind: null, request: null, response: null };

function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

async function call(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (element("token").value) headers.Authorization = `Bearer ${element("token").value}`;
  const options = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("the service does not respond; is it still running?");
  }
  if (response.status === 401) element("token-row").hidden = false;
  const content = await response.json();
  if (!response.ok) throw new Error(content.detail);
  return content;
}

function showError(error) {
  element("error").textContent = error.message;
  element("error").hidden = false;
}

// Input

async function describeModel() {
  try {
    const names = chosen ? [chosen] : Object.keys(await call("/models"));
    if (names.length > 1) {
      element("title").textContent = "Models";
      const links = names.map((name) => make("a", { href: `?model=${encodeURIComponent(name)}` }, name));
      element("about").replaceChildren(...links.flatMap((link) => [link, " "]));
      element("input").hidden = true;
      return;
    }
    state.model = await call(`${prefix}/model`);
  } catch (error) {
    showError(error);
    return;
  }
  const { model, trained_on: data, predicts, reads, version } = state.model;
  element("title").textContent = data ? `${model} on ${data}` : model;
  document.title = element("title").textContent;
  const isCode = reads.includes("code");
  element("about").textContent = isCode ? "Suggests names for functions." : `Predictions for ${KINDS[reads[0]].name}. Task: ${predicts}.`;
  element("version").textContent = `mnagt ${version}`;
  if (state.model.components > 1) KINDS.smiles.example += ",O".repeat(state.model.components - 1);
  KINDS.graphs.example = exampleGraph(state.model.features);
  KINDS.graphs.hint = `${describeColumns(state.model.features)} Press Ctrl+Enter to predict.`;
  element("kinds").replaceChildren(element("kinds").firstElementChild);
  for (const kind of reads) {
    const radio = make("input", { type: "radio", name: "kind", value: kind });
    radio.addEventListener("change", () => chooseKind(kind));
    element("kinds").append(make("label", {}, radio, ` ${KINDS[kind].name}`));
  }
  element("kinds").hidden = reads.length < 2;
  chooseKind(reads[0]);
}

function chooseKind(kind) {
  state.kind = kind;
  for (const radio of document.getElementsByName("kind")) radio.checked = radio.value === kind;
  const components = kind === "smiles" ? state.model.components : 1;
  element("text-label").textContent = components > 1 ? `${components} SMILES with commas between them, one row per line` : KINDS[kind].label;
  element("hint").textContent = KINDS[kind].hint;
  element("text").rows = kind === "smiles" ? 2 : 8;
}

function describeColumns({ nodes, edges }) {
  const tables = [];
  for (const [of, { labels, values }] of [["node", nodes], ["edge", edges]]) {
    if (labels.length) tables.push(`${of}_labels (${labels.length} per row)`);
    if (values) tables.push(`${of}_values (${values} per row)`);
  }
  return tables.length ? `The model reads ${tables.join(", ")}.` : "The model reads nodes and edges only.";
}

function exampleGraph({ nodes, edges }) {
  const ring = { nodes: 6, edges: [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0]] };
  for (const [of, { labels, values }] of [["node", nodes], ["edge", edges]]) {
    if (labels.length) ring[`${of}_labels`] = ring.edges.map(() => labels.map(() => 0));
    if (values) ring[`${of}_values`] = ring.edges.map(() => Array(values).fill(0));
  }
  return JSON.stringify(ring);
}

function splitComponents(line) {
  return state.model.components > 1 ? line.split(",").map((each) => each.trim()) : line;
}

function readInput() {
  const text = element("text").value;
  if (!text.trim()) throw new Error("type or paste an input first, or use the example");
  if (state.kind === "smiles") return { smiles: text.split("\n").map((line) => line.trim()).filter(Boolean).map(splitComponents) };
  if (state.kind === "code") return { code: text };
  let graphs;
  try {
    graphs = JSON.parse(text);
  } catch (error) {
    throw new Error(`not JSON: ${error.message}`);
  }
  return { graphs: Array.isArray(graphs) ? graphs : [graphs] };
}

// Predictions

async function predict(event) {
  event.preventDefault();
  element("error").hidden = true;
  element("go").disabled = true;
  element("status").textContent = "computing …";
  try {
    if (!state.model) await describeModel();
    const level = state.model?.is_calibrated ? { level: 0.9 } : {};
    state.request = { ...readInput(), ...level };
    const { predictions } = await call(`${prefix}/predict`, state.request);
    listPredictions(predictions);
    if (explains()) await explain(predictions.findIndex((prediction) => !isUnread(prediction)));
    else element("result").hidden = true;
    element("status").textContent = "";
  } catch (error) {
    element("predictions").hidden = element("result").hidden = true;
    element("status").textContent = "";
    showError(error);
  }
  element("go").disabled = false;
}

function inputName(row) {
  const { smiles, graphs } = state.request;
  return smiles ? [smiles[row]].flat().join(", ") : graphs ? `graph ${row}` : null;
}

// A molecule that cannot be read has only the reason in place of a prediction; the model may predict a column of that name.
const isUnread = (prediction) => Object.keys(prediction).length === 1 && typeof prediction.error === "string";

const format = (value) =>
  typeof value === "number" ? (Number.isInteger(value) ? String(value) : value.toFixed(3))
  : Array.isArray(value) ? value.map((each) => (each && each.name ? `${each.name} (${format(each.p)})` : format(each))).join(", ")
  : String(value);

// Predictions of nodes are listed and not explained.
const explains = () => state.model?.explains !== false;

function listPredictions(predictions) {
  element("predictions").hidden = predictions.length < 2 && explains();
  const names = Object.keys(predictions.find((prediction) => !isUnread(prediction))).slice(0, 9);
  const [head, body] = [element("predictions").querySelector("thead"), element("predictions").querySelector("tbody")];
  const input = inputName(0) !== null;
  head.replaceChildren(make("tr", {}, ...(input ? [make("th", { scope: "col" }, "input")] : []), ...names.map((name) => make("th", { scope: "col" }, name)), make("th", {})));
  body.replaceChildren(...predictions.map((prediction, row) => {
    if (isUnread(prediction)) {
      const cells = [make("td", { class: "input", title: inputName(row) }, inputName(row)), make("td", { colspan: names.length + 1, class: "unread" }, prediction.error)];
      return make("tr", {}, ...cells);
    }
    const button = make("button", { type: "button", class: "plain", "aria-label": `Show ${inputName(row) ?? format(prediction.function)}` }, "show");
    button.addEventListener("click", () => explain(row).catch(showError));
    const cells = names.map((name) => make("td", {}, format(prediction[name])));
    return make("tr", {}, ...(input ? [make("td", { class: "input", title: inputName(row) }, inputName(row))] : []), ...cells, make("td", {}, ...(explains() ? [button] : [])));
  }));
}

async function explain(row) {
  const { smiles, graphs, code, level } = state.request;
  const one = smiles ? { smiles: [smiles[row]] } : graphs ? { graphs: [graphs[row]] } : { code, which: row };
  state.response = await call(`${prefix}/explain`, level ? { ...one, level } : one);
  const { prediction, kernel_weights: weights } = state.response;
  element("result").hidden = false;
  element("prediction").textContent = heading(prediction);
  showProbabilities(prediction);
  const layers = weights.length;
  element("sliders").hidden = !layers;
  document.querySelector('[name="colour"][value="alpha"]').disabled = !layers;
  if (!layers) document.querySelector('[name="colour"][value="attribution"]').checked = true;
  element("layer").max = Math.max(1, layers);
  element("kernel").max = layers ? weights[0][0].length - 1 : 0;
  draw();
  paint();
  listNodes();
}

function heading(prediction) {
  if (prediction.prediction !== undefined) return prediction.prediction || "(no name)";
  if (prediction.names) return `${prediction.function}: ${prediction.names[0].name}`;
  return inputName(0) && state.request.smiles?.length === 1 ? "Prediction" : `Prediction for ${inputName(0) ?? "the input"}`;
}

function showProbabilities(prediction) {
  const box = make("div", { class: "probabilities" });
  const rows = prediction.names ? prediction.names.map(({ name, p }) => [name, p]) : [];
  for (const [key, value] of Object.entries(prediction)) {
    const of = /^p\((.*)\)$/s.exec(key);
    if (of) rows.push([of[1], value]);
  }
  rows.sort((a, b) => b[1] - a[1]);
  for (const [name, p] of rows.slice(0, 12)) {
    box.append(make("span", {}, name), make("meter", { min: 0, max: 1, value: p, "aria-label": name }), make("span", {}, `${(100 * p).toFixed(1)} %`));
  }
  const rest = Object.entries(prediction).filter(([key]) => !/^p\(/.test(key) && !["prediction", "names"].includes(key));
  const remark = prediction.distance > 1 ? ": this input is unlike the graphs that the model was trained on" : "";
  const lines = rest.map(([key, value]) => make("p", { class: "note" }, `${key}: ${format(value)}${key === "distance" ? remark : ""}`));
  if (rows.length > 12) lines.push(make("p", { class: "note" }, `and ${rows.length - 12} more`));
  element("probabilities").replaceChildren(box, ...lines);
}

// The picture

function draw() {
  const { nodes, edges } = state.response.drawing;
  const xs = nodes.map((node) => node.x), ys = nodes.map((node) => node.y);
  const [left, top] = [Math.min(...xs) - 0.8, Math.min(...ys) - 0.8];
  const [wide, high] = [Math.max(Math.max(...xs) + 0.8 - left, 4), Math.max(Math.max(...ys) + 0.8 - top, 3)];
  const [x, y] = [(Math.min(...xs) + Math.max(...xs) - wide) / 2, (Math.min(...ys) + Math.max(...ys) - high) / 2];
  const svg = shape("svg", { viewBox: `${x} ${y} ${wide} ${high}`, role: "img", "aria-label": "The graph, coloured as chosen" });
  for (const [i, j, order] of edges) {
    const [a, b] = [nodes[i], nodes[j]];
    const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
    const [across, down] = [-(b.y - a.y) / length, (b.x - a.x) / length];
    for (let line = 0; line < order; line += 1) {
      const aside = (line - (order - 1) / 2) * 0.16;
      svg.append(shape("line", { class: "bond", x1: a.x + across * aside, y1: a.y + down * aside, x2: b.x + across * aside, y2: b.y + down * aside }));
    }
  }
  const size = Math.min(1, Math.max(0.55, wide / 16));
  nodes.forEach((node, i) => {
    const circle = shape("circle", { cx: node.x, cy: node.y, r: 0.3, "data-node": i });
    circle.append(shape("title", {}));
    svg.append(circle);
  });
  nodes.forEach((node) => {
    if (node.label) svg.append(shape("text", { x: node.x, y: node.y + 0.13 * size, "font-size": 0.38 * size }, node.label.slice(0, 11)));
  });
  element("picture").replaceChildren(svg);
}

const mix = (a, b, t) => `rgb(${a.map((from, i) => Math.round(from + (b[i] - from) * t)).join(",")})`;
const [AGAINST, NEUTRAL, FOR, FULL] = [[201, 90, 0], [240, 238, 233], [0, 105, 173], [0, 114, 90]]; // as in reports
const diverging = (share) => (share < 0 ? mix(NEUTRAL, AGAINST, -share) : mix(NEUTRAL, FOR, share));
const sequential = (share) => mix(NEUTRAL, FULL, share);

function chosenColour() {
  return document.querySelector('[name="colour"]:checked').value;
}

function paint() {
  const { attribution, kernel_weights: weights, explained, drawing } = state.response;
  const [layer, kernel] = [Number(element("layer").value), Number(element("kernel").value)];
  element("layer-value").textContent = `${layer} of ${weights.length}`;
  element("kernel-value").textContent = weights.length ? `${kernel} of 0 to ${weights[0][0].length - 1}` : "";
  const isAlpha = chosenColour() === "alpha";
  const values = isAlpha ? weights[layer - 1].map((row) => row[kernel]) : attribution;
  const most = Math.max(...(isAlpha ? weights.flat(2) : attribution.map(Math.abs)), 1e-12);
  const colour = isAlpha ? sequential : diverging;
  for (const circle of element("picture").querySelectorAll("circle")) {
    const value = values[Number(circle.dataset.node)];
    circle.setAttribute("fill", colour(value / most));
    circle.setAttribute("data-value", value);
    circle.firstElementChild.textContent = `node ${circle.dataset.node} ${drawing.nodes[circle.dataset.node].label}: ${value.toFixed(4)}`;
  }
  element("legend").textContent = isAlpha
    ? `The weight of kernel ${kernel} for each node in layer ${layer}; the weights of a node sum to 1.`
    : `The contribution of each node to “${explained.output}”, in ${explained.unit}.`;
  const bar = Array.from({ length: 40 }, (_, i) => shape("rect", { x: 5 * i, y: 0, width: 5.2, height: 10, fill: colour(isAlpha ? i / 39 : (i / 39) * 2 - 1) }));
  const [low, high] = [isAlpha ? "0" : (-most).toPrecision(2), most.toPrecision(2)];
  element("scale").replaceChildren(...bar, shape("text", { x: 0, y: 22 }, low), shape("text", { x: 200, y: 22, "text-anchor": "end" }, high));
}

function listNodes() {
  const { attribution, kernel_weights: weights, drawing } = state.response;
  const head = ["node", "", "attribution", ...weights.flatMap((layer, l) => layer[0].map((_, k) => `α layer ${l + 1} kernel ${k}`))];
  element("numbers").tHead.replaceChildren(make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name))));
  element("numbers").tBodies[0].replaceChildren(...attribution.map((value, node) => {
    const cells = [node, drawing.nodes[node].label, value.toFixed(4), ...weights.flatMap((layer) => layer[node].map((alpha) => alpha.toFixed(3)))];
    return make("tr", {}, ...cells.map((cell) => make("td", {}, String(cell))));
  }));
}

element("input").addEventListener("submit", predict);
element("example").addEventListener("click", () => {
  if (state.kind) element("text").value = KINDS[state.kind].example;
  element("text").focus();
});
element("text").addEventListener("keydown", (event) => {
  const isSubmit = event.key === "Enter" && (event.ctrlKey || event.metaKey || (state.kind === "smiles" && !event.shiftKey));
  if (isSubmit) {
    event.preventDefault();
    element("input").requestSubmit();
  }
});
element("token").addEventListener("change", () => {
  element("error").hidden = true;
  describeModel();
});
for (const name of ["layer", "kernel"]) {
  element(name).addEventListener("input", () => {
    document.querySelector('[name="colour"][value="alpha"]').checked = true;
    paint();
  });
}
for (const radio of document.getElementsByName("colour")) radio.addEventListener("change", paint);
describeModel();
