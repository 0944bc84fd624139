"use strict";
// Asks the service and draws what it says. No host but our own is ever asked.

const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const KINDS = {
  smiles: {
    name: "molecules",
    label: "SMILES, one a line",
    hint: "Enter asks; Shift+Enter begins another line.",
    example: "CC(=O)Oc1ccccc1C(=O)O",
  },
  code: {
    name: "Python code",
    label: "Python source",
    hint: "Every function in it gets names. Ctrl+Enter asks.",
    example: "def f(xs):\n    total = 0\n    for x in xs:\n        total += x\n    return total / len(xs)",
  },
  graphs: {
    name: "graphs",
    label: "A graph as JSON, or a list of them",
    hint: "",
    example: "",
  },
};
const state = { about: null, kind: null, asked: null, shown: null };

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

async function call(path, question) {
  const headers = { "Content-Type": "application/json" };
  if (at("token").value) headers.Authorization = `Bearer ${at("token").value}`;
  const how = question === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(question) };
  let answer;
  try {
    answer = await fetch(path, how);
  } catch {
    throw new Error("the service does not answer; is it still running?");
  }
  if (answer.status === 401) at("token-row").hidden = false;
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.detail);
  return told;
}

function complain(error) {
  at("error").textContent = error.message;
  at("error").hidden = false;
}

// What can be asked

async function begin() {
  try {
    state.about = await call("/model");
  } catch (error) {
    complain(error);
    return;
  }
  const { model, trained_on: data, task, reads, version } = state.about;
  at("title").textContent = data ? `${model} on ${data}` : model;
  document.title = at("title").textContent;
  const asked = { "single-label": "tells the class of", "multi-label": "answers questions about", regression: "tells numbers of", "sub-tokens": "names" };
  at("about").textContent = `A graph model that ${asked[task.kind] ?? "answers questions about"} ${task.kind === "sub-tokens" ? "functions" : KINDS[reads[0]].name}.`;
  at("version").textContent = `mnagt ${version}`;
  KINDS.graphs.example = exampleGraph(state.about.features);
  KINDS.graphs.hint = `${columns(state.about.features)} Ctrl+Enter asks.`;
  at("kinds").replaceChildren(at("kinds").firstElementChild);
  for (const kind of reads) {
    const radio = make("input", { type: "radio", name: "kind", value: kind });
    radio.addEventListener("change", () => choose(kind));
    at("kinds").append(make("label", {}, radio, ` ${KINDS[kind].name}`));
  }
  at("kinds").hidden = reads.length < 2;
  choose(reads[0]);
}

function choose(kind) {
  state.kind = kind;
  for (const radio of document.getElementsByName("kind")) radio.checked = radio.value === kind;
  at("text-label").textContent = KINDS[kind].label;
  at("hint").textContent = KINDS[kind].hint;
  at("text").rows = kind === "smiles" ? 2 : 8;
}

function columns({ nodes, edges }) {
  const told = [];
  for (const [of, { labels, values }] of [["node", nodes], ["edge", edges]]) {
    if (labels.length) told.push(`${of}_labels: ${labels.length} a row`);
    if (values) told.push(`${of}_values: ${values} a row`);
  }
  return told.length ? `The model reads ${told.join("; ")}.` : "The model reads nodes and edges only.";
}

function exampleGraph({ nodes, edges }) {
  const ring = { nodes: 6, edges: [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0]] };
  for (const [of, { labels, values }] of [["node", nodes], ["edge", edges]]) {
    if (labels.length) ring[`${of}_labels`] = ring.edges.map(() => labels.map(() => 0));
    if (values) ring[`${of}_values`] = ring.edges.map(() => Array(values).fill(0));
  }
  return JSON.stringify(ring);
}

function question() {
  const text = at("text").value;
  if (!text.trim()) throw new Error("type or paste something first, or take the example");
  if (state.kind === "smiles") return { smiles: text.split("\n").map((line) => line.trim()).filter(Boolean) };
  if (state.kind === "code") return { code: text };
  let graphs;
  try {
    graphs = JSON.parse(text);
  } catch (error) {
    throw new Error(`not JSON: ${error.message}`);
  }
  return { graphs: Array.isArray(graphs) ? graphs : [graphs] };
}

// What is answered

async function ask(event) {
  event.preventDefault();
  at("error").hidden = true;
  at("go").disabled = true;
  at("status").textContent = "asking …";
  try {
    if (!state.about) await begin();
    const level = state.about?.is_calibrated ? { level: 0.9 } : {};
    state.asked = { ...question(), ...level };
    const { answers } = await call("/predict", state.asked);
    list(answers);
    await show(0);
    at("status").textContent = "";
  } catch (error) {
    at("answers").hidden = at("result").hidden = true;
    at("status").textContent = "";
    complain(error);
  }
  at("go").disabled = false;
}

function called(row) {
  const { smiles, graphs } = state.asked;
  return smiles ? smiles[row] : graphs ? `graph ${row}` : null;
}

const told = (value) =>
  typeof value === "number" ? (Number.isInteger(value) ? String(value) : value.toFixed(3))
  : Array.isArray(value) ? value.map((each) => (each && each.name ? `${each.name} (${told(each.p)})` : told(each))).join(", ")
  : String(value);

function list(answers) {
  at("answers").hidden = answers.length < 2;
  const names = Object.keys(answers[0]).slice(0, 9);
  const [head, body] = [at("answers").querySelector("thead"), at("answers").querySelector("tbody")];
  const input = called(0) !== null;
  head.replaceChildren(make("tr", {}, ...(input ? [make("th", { scope: "col" }, "asked about")] : []), ...names.map((name) => make("th", { scope: "col" }, name)), make("th", {})));
  body.replaceChildren(...answers.map((answer, row) => {
    const button = make("button", { type: "button", class: "plain", "aria-label": `Show ${called(row) ?? told(answer.function)}` }, "show");
    button.addEventListener("click", () => show(row).catch(complain));
    const cells = names.map((name) => make("td", {}, told(answer[name])));
    return make("tr", {}, ...(input ? [make("td", { class: "input", title: called(row) }, called(row))] : []), ...cells, make("td", {}, button));
  }));
}

async function show(row) {
  const { smiles, graphs, code, level } = state.asked;
  const one = smiles ? { smiles: [smiles[row]] } : graphs ? { graphs: [graphs[row]] } : { code, which: row };
  state.shown = await call("/explain", level ? { ...one, level } : one);
  const { said, kernel_weights: weights } = state.shown;
  at("result").hidden = false;
  at("said").textContent = heading(said);
  chances(said);
  const layers = weights.length;
  at("sliders").hidden = !layers;
  document.querySelector('[name="colour"][value="alpha"]').disabled = !layers;
  if (!layers) document.querySelector('[name="colour"][value="attribution"]').checked = true;
  at("layer").max = Math.max(1, layers);
  at("kernel").max = layers ? weights[0][0].length - 1 : 0;
  draw();
  paint();
  numbers();
}

function heading(said) {
  if (said.prediction !== undefined) return said.prediction || "(no name)";
  if (said.names) return `${said.function}: ${said.names[0].name}`;
  return called(0) && state.asked.smiles?.length === 1 ? "Answers" : `Answers for ${called(0) ?? "it"}`;
}

function chances(said) {
  const box = make("div", { class: "chance" });
  const rows = said.names ? said.names.map(({ name, p }) => [name, p]) : [];
  for (const [key, value] of Object.entries(said)) {
    const of = /^p\((.*)\)$/s.exec(key);
    if (of) rows.push([of[1], value]);
  }
  rows.sort((a, b) => b[1] - a[1]);
  for (const [name, p] of rows.slice(0, 12)) {
    box.append(make("span", {}, name), make("meter", { min: 0, max: 1, value: p, "aria-label": name }), make("span", {}, `${(100 * p).toFixed(1)} %`));
  }
  const rest = Object.entries(said).filter(([key]) => !/^p\(/.test(key) && !["prediction", "names"].includes(key));
  const lines = rest.map(([key, value]) => make("p", { class: "note" }, `${key}: ${told(value)}`));
  if (rows.length > 12) lines.push(make("p", { class: "note" }, `and ${rows.length - 12} more`));
  at("chances").replaceChildren(box, ...lines);
}

// The picture

function draw() {
  const { nodes, edges } = state.shown.drawing;
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
  at("picture").replaceChildren(svg);
}

const mixed = (a, b, t) => `rgb(${a.map((from, i) => Math.round(from + (b[i] - from) * t)).join(",")})`;
const [AGAINST, NEUTRAL, FOR, FULL] = [[201, 90, 0], [240, 238, 233], [0, 105, 173], [0, 114, 90]]; // as in reports
const diverging = (share) => (share < 0 ? mixed(NEUTRAL, AGAINST, -share) : mixed(NEUTRAL, FOR, share));
const sequential = (share) => mixed(NEUTRAL, FULL, share);

function chosen() {
  return document.querySelector('[name="colour"]:checked').value;
}

function paint() {
  const { attribution, kernel_weights: weights, explained, drawing } = state.shown;
  const [layer, kernel] = [Number(at("layer").value), Number(at("kernel").value)];
  at("layer-told").textContent = `${layer} of ${weights.length}`;
  at("kernel-told").textContent = weights.length ? `${kernel} of 0 to ${weights[0][0].length - 1}` : "";
  const isAlpha = chosen() === "alpha";
  const values = isAlpha ? weights[layer - 1].map((row) => row[kernel]) : attribution;
  const most = Math.max(...(isAlpha ? weights.flat(2) : attribution.map(Math.abs)), 1e-12);
  const colour = isAlpha ? sequential : diverging;
  for (const circle of at("picture").querySelectorAll("circle")) {
    const value = values[Number(circle.dataset.node)];
    circle.setAttribute("fill", colour(value / most));
    circle.setAttribute("data-value", value);
    circle.firstElementChild.textContent = `node ${circle.dataset.node} ${drawing.nodes[circle.dataset.node].label}: ${value.toFixed(4)}`;
  }
  at("legend").textContent = isAlpha
    ? `How much each node weighs what it sees through kernel ${kernel} in layer ${layer}; over the kernels it adds up to 1.`
    : `How much of “${explained.answer}” is due to each node, in ${explained.unit}.`;
  const bar = Array.from({ length: 40 }, (_, i) => shape("rect", { x: 5 * i, y: 0, width: 5.2, height: 10, fill: colour(isAlpha ? i / 39 : (i / 39) * 2 - 1) }));
  const [low, high] = [isAlpha ? "0" : (-most).toPrecision(2), most.toPrecision(2)];
  at("scale").replaceChildren(...bar, shape("text", { x: 0, y: 22 }, low), shape("text", { x: 200, y: 22, "text-anchor": "end" }, high));
}

function numbers() {
  const { attribution, kernel_weights: weights, drawing } = state.shown;
  const head = ["node", "", "attribution", ...weights.flatMap((layer, l) => layer[0].map((_, k) => `α layer ${l + 1} kernel ${k}`))];
  at("numbers").tHead.replaceChildren(make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name))));
  at("numbers").tBodies[0].replaceChildren(...attribution.map((value, node) => {
    const cells = [node, drawing.nodes[node].label, value.toFixed(4), ...weights.flatMap((layer) => layer[node].map((alpha) => alpha.toFixed(3)))];
    return make("tr", {}, ...cells.map((cell) => make("td", {}, String(cell))));
  }));
}

at("ask").addEventListener("submit", ask);
at("example").addEventListener("click", () => {
  if (state.kind) at("text").value = KINDS[state.kind].example;
  at("text").focus();
});
at("text").addEventListener("keydown", (event) => {
  const isAsking = event.key === "Enter" && (event.ctrlKey || event.metaKey || (state.kind === "smiles" && !event.shiftKey));
  if (isAsking) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});
at("token").addEventListener("change", () => {
  at("error").hidden = true;
  begin();
});
for (const name of ["layer", "kernel"]) {
  at(name).addEventListener("input", () => {
    document.querySelector('[name="colour"][value="alpha"]').checked = true;
    paint();
  });
}
for (const radio of document.getElementsByName("colour")) radio.addEventListener("change", paint);
begin();
