// The page "Watch it learn" (book_build/pages/watch.py): snapshots of a model's training, one at a time. Every number
// and every threshold comes from the build: films/NAME.js has the facts of one film and its arrays.
(() => {
  const root = document.getElementById("watch");
  const folder = new URL(".", document.currentScript.src);
  const { films } = JSON.parse(root.dataset.films), names = films.map(({ name }) => name);
  const { make, svg, fixed, percent } = dom, { choices, section } = heads;
  const scaled = (t, unit, letter) => `${+(t / unit).toPrecision(3)}${letter}`;
  const short = (t) => (t >= 1e6 ? scaled(t, 1e6, "M") : t >= 1e3 ? scaled(t, 1e3, "K") : `${t}`);
  const BEGIN = 1e6, SLOW = [2.9e6, 6.5e6]; // tokens: where the film begins, and where it slows down
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  let film = null; // facts and arrays of the model that is shown
  const state = { at: 0, head: 0, text: 0, place: [0, 0] };
  const ui = {};
  const { app, say } = heads.page(root, () => film && drawPattern(place()));

  const TYPES = { uint8: Uint8Array, uint16: Uint16Array, int16: Int16Array, float32: Float32Array };
  const known = new Map(); // by name: a promise of a film

  function load(name) {
    if (!known.has(name)) known.set(name, dom.load(`films/${name}.js`, folder).then(unpack));
    return known.get(name);
  }

  function unpack({ facts, bytes }) {
    for (const [name, { type, shape, offset }] of Object.entries(facts.arrays)) {
      facts[name] = new TYPES[type](bytes, offset, shape.reduce((a, b) => a * b, 1));
    }
    const { tokens } = facts, first = Math.log(tokens[1]), last = Math.log(tokens.at(-1));
    // Where a number of tokens is on the axis, 0 to 1: logarithmic from the second snapshot on.
    facts.x = (t) => (t < tokens[1] ? (0.04 * t) / tokens[1] : 0.04 + (0.96 * (Math.log(t) - first)) / (last - first));
    facts.heads = facts.n_layers * facts.n_heads;
    return facts;
  }

  const S = () => film.tokens.length;
  const text = () => film.texts[state.text];
  const place = () => state.place[state.text];
  const headName = (h) => heads.name(h, film.n_heads);
  const roleOf = (h) => film.role_names[film.roles[state.at * film.heads + h]];

  // The snapshot that is nearest to a place on the axis.
  function nearest(x) {
    const away = film.tokens.map((t) => Math.abs(film.x(t) - x));
    return away.indexOf(Math.min(...away));
  }

  // Attention of the chosen head: a row for each destination, sources up to it, 0 to 255.
  function row(i) {
    const n = text().names.length, size = (n * (n + 1)) / 2;
    const from = (state.at * film.heads + state.head) * size + (i * (i + 1)) / 2;
    return film[`pattern_${state.text}`].subarray(from, from + i + 1);
  }

  const lastTime = (i) => heads.lastTime(text().ids, i);

  function draw() {
    drawTime(), drawHeads(), drawAttention();
    root.dataset.at = String(state.at);
  }

  function drawTime() {
    const { at } = state, tokens = film.tokens[at], x = film.x(tokens);
    ui.slider.value = x;
    ui.slider.setAttribute("aria-valuetext", `${short(tokens)} tokens seen`);
    ui.now.textContent = `${short(tokens)} tokens seen`;
    ui.of.textContent = `moment ${at + 1} of ${S()}`;
    const { dot, value, values, y } = ui.curve;
    dot.style.left = `${100 * x}%`, dot.style.top = `${y(values[at])}%`;
    value.textContent = percent(values[at]);
    ui.cursor.style.left = `${100 * x}%`;
    for (const mark of ui.marks) mark.button.classList.toggle("watch-past", mark.at <= at);
  }

  function drawHeads() {
    const { n_heads, n_layers } = film, all = film.heads * state.at;
    root.dataset.layer = String(Math.floor(state.head / n_heads));
    ui.heads.forEach((button, h) => {
      const role = film.roles[all + h];
      heads.mark(button, h === state.head, role, `Head ${headName(h)}${role ? `, ${film.role_names[role]}` : ""}`);
    });
    if (n_layers > 1) {
      const pairs = n_heads * n_heads, from = state.at * pairs;
      ui.lines.forEach((line, pair) => {
        const ratio = film.composition[from + pair];
        const idle = [n_heads + Math.floor(pair / n_heads), pair % n_heads].some((h) =>
          film.roles[all + h] === film.idle);
        heads.width(line, ratio, film.widest, idle ? Infinity : film.composes);
        line.classList.toggle("watch-idle", idle);
      });
    }
    const of = (name) => film[name][all + state.head], role = roleOf(state.head);
    ui.about.replaceChildren(make("b", {}, `Head ${headName(state.head)}${role ? `: ${role}` : ""}. `),
      `Attention to the previous token ${percent(of("previous_token"))}, to the start token ${percent(of("rest"))}; ` +
      `induction score ${percent(of("induction"))}; direct positivity ${fixed(of("positivity"))}.`);
  }

  function drawAttention() {
    const i = place(), values = row(i), next = lastTime(i), { names, ids } = text();
    heads.attend(ui.tokens, (j) => values[j] / 255, i, next);
    ui.attentionTitle.textContent = `Attention of head ${headName(state.head)}`;
    ui.where.replaceChildren(make("b", {}, `From ${names[i]}: `), next < 0 ? "this token is new in the text."
      : `${percent(values[next] / 255)} on ${names[next]}, which followed ${names[i]} last time.`);
    drawPattern(i);
    const from = (state.at * names.length + i) * film.top;
    ui.nextTitle.replaceChildren("Next after ", make("code", { className: "watch-word" }, names[i]));
    ui.next.forEach(({ line, name, bar, share }, k) => {
      const id = film[`top_token_${state.text}`][from + k], p = film[`top_probability_${state.text}`][from + k] / 255;
      name.textContent = film.names[id];
      bar.setAttribute("width", 100 * p);
      share.textContent = p < 0.5 / 255 ? "<0.2%" : percent(p);
      line.classList.toggle("watch-comes", id === ids[i + 1]);
    });
    ui.comes.textContent = i + 1 < ids.length ? `Next in the text: ${names[i + 1]}.` : "The text ends here.";
  }

  function drawPattern(chosen) {
    const rows = text().ids.map((_, i) => row(i));
    ui.pattern.draw(text().ids, (i, j) => rows[i][j], heads.ink(root, "--watch-ink"), chosen);
  }

  function go(at) {
    state.at = at;
    draw();
  }

  // Milliseconds until the next moment: while the wire appears, there is time to look.
  function pace() {
    const tokens = film.tokens[state.at];
    return still.matches ? 1000 : tokens >= SLOW[0] && tokens < SLOW[1] ? 900 : 180;
  }
  const moving = { at: () => state.at, last: () => S() - 1, go, pace, className: "watch-play" };
  const steps = dom.stepper(moving);

  function chooseHead(h) {
    state.head = h;
    drawHeads(), drawAttention();
  }

  function chooseToken(i) {
    state.place[state.text] = i;
    drawAttention();
  }

  function address() {
    const { name, tokens } = film, t = short(tokens[state.at]), head = headName(state.head);
    return Object.entries({ t, head, model: name, text: state.text, at: place() }).map((pair) => pair.join("=")).join(
      "&");
  }
  const asked = () => new URLSearchParams(location.hash.slice(1));

  function fromAddress() {
    const values = asked(), head = /^(\d+)\.(\d+)$/.exec(values.get("head"));
    const t = /^(\d+\.?\d*)([KM]?)$/i.exec(values.get("t"));
    const h = head && Number(head[1]) * film.n_heads + Number(head[2]);
    if (head && Number(head[2]) < film.n_heads && h < film.heads) state.head = h;
    if (t) state.at = nearest(film.x(Number(t[1]) * { "": 1, K: 1e3, M: 1e6 }[t[2].toUpperCase()]));
    if (/^[01]$/.test(values.get("text"))) state.text = Number(values.get("text"));
    const at = values.get("at");
    if (/^\d+$/.test(at)) state.place[state.text] = Math.min(Number(at), text().names.length - 1);
  }

  function timeline() {
    ui.slider = make("input", { type: "range", min: 0, max: 1, step: "any", "aria-label": "Tokens seen",
      className: "watch-slider" });
    ui.slider.addEventListener("input", () => {
      steps.stop();
      go(nearest(ui.slider.value));
    });
    ui.slider.addEventListener("keydown", steps.keyed); // from snapshot to snapshot, whatever the distance on the axis
    ui.now = make("b", { className: "watch-now" }), ui.of = make("span", { className: "watch-small" });
    return make("div", { className: "watch-bar" },
      make("div", { className: "watch-row" }, steps.button, ui.now, ui.of), make("div", { className: "watch-track" },
        ui.slider));
  }

  // The best induction score, with the moments that are marked.
  function curves() {
    const ticks = [], { title, values, threshold } = film.curve, most = Math.max(...values, threshold);
    for (let t = 10 ** Math.ceil(Math.log10(film.tokens[1])); t <= film.tokens.at(-1); t *= 10) ticks.push(t);
    const y = (score) => 100 - (100 * score) / most, dot = make("i", { className: "watch-dot" }), value = make("b");
    const points = values.map((score, s) => `${(1000 * film.x(film.tokens[s])).toFixed(1)},${y(score).toFixed(1)}`);
    const dashed = { x1: 0, x2: 1000, y1: y(threshold), y2: y(threshold), class: "watch-threshold" };
    const chart = svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("line", dashed), svg("polyline", { points: points.join(" ") }));
    const small = make("span", { className: "watch-small" }, ` (dashed: ${percent(threshold)})`);
    const main = make("div", { className: "watch-curve" }, make("p", {}, `${title}: `, value, small),
      make("div", { className: "watch-chart" }, chart, dot));
    ui.curve = { dot, value, values, y };
    const at = (tokens) => `left: ${100 * film.x(tokens)}%`;
    const flag = ({ tokens, kind }) => make("i", { className: "watch-flag", style: at(tokens), data: { kind } });
    ui.cursor = make("div", { className: "watch-cursor" });
    const area = make("div", { className: "watch-area" }, main, ...film.marks.map(flag), ui.cursor);
    const axis = make("div", { className: "watch-axis" },
      ...ticks.map((t) => make("span", { style: at(t) }, short(t))));
    area.addEventListener("pointerdown", (event) => {
      const box = area.getBoundingClientRect();
      ui.slider.value = (event.clientX - box.left) / box.width;
      ui.slider.dispatchEvent(new Event("input"));
    });
    ui.marks = film.marks.map(({ at: moment, kind, text: words }) => {
      const button = make("button", { type: "button", onclick: () => (steps.stop(), go(moment)), data: { kind } },
        make("i"), words);
      return { at: moment, button };
    });
    const group = { className: "watch-marks", role: "group", "aria-label": "Moments to go to" };
    return make("section", {}, area, axis, make("div", group, ...ui.marks.map((mark) => mark.button),
      heads.link("Link to this moment", address, { className: "watch-link" })));
  }

  function graph() {
    const L = film.n_layers, { box, buttons, lines } = heads.graph(L, film.n_heads, chooseHead);
    ui.heads = buttons, ui.lines = lines;
    const roles = film.role_names.slice(1).map((name, k) => make("span", { data: { role: k + 1 } }, name));
    ui.about = make("p", { className: "watch-about" });
    const wide = "A line is as wide as the composition ratio of keys (weights as stored) is above chance. Colored: " +
      `from ${film.composes} times chance on. Pale: a head without effect.`;
    const lined = L > 1 ? [make("p", { className: "watch-small" }, wide)] : [];
    return section(L > 1 ? "Who reads whom" : "Heads", box, make("p", { className: "watch-key" }, ...roles), ...lined,
      ui.about);
  }

  function attention() {
    ui.strip = heads.strip(place, chooseToken);
    ui.where = make("p", { role: "status" }), ui.attentionTitle = make("h2"), ui.nextTitle = make("h2");
    ui.pattern = heads.pattern(chooseToken);
    ui.next = Array.from({ length: film.top }, () => {
      const name = make("code", { className: "watch-word" }), bar = svg("rect", { height: 10 }), share = make("td");
      const chart = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, bar);
      const line = make("tr", {}, make("th", { scope: "row" }, name), make("td", { className: "watch-bars" }, chart),
        share);
      return { line, name, bar, share };
    });
    ui.comes = make("p", { className: "watch-small" });
    const table = make("table", { className: "watch-next" }, make("tbody", {}, ...ui.next.map(({ line }) => line)));
    const rings = make("p", { className: "watch-small" },
      "Rows attend to columns. Rings: the token that followed last time.");
    return make("section", { className: "watch-attention" }, ui.attentionTitle, ui.strip, ui.where,
      make("div", { className: "watch-reading" }, make("div", {}, ui.pattern.square, rings),
        make("div", {}, ui.nextTitle, table, ui.comes)));
  }

  function drawTokens() {
    ui.tokens = text().names.map((name, i) => heads.token(i, name));
    ui.strip.replaceChildren(...ui.tokens);
  }

  // What is not needed to watch: other models, the other text.
  function door() {
    const model = choices("Model", films.map(({ label }) => label), names.indexOf(film.name), (k) => open(names[k]));
    const texts = film.texts.map(({ label }) => label);
    const ofText = choices("Text", texts, state.text, (k) => (state.text = k, drawTokens(), drawAttention()));
    return make("details", { className: "watch-door" }, make("summary", {}, "Other models and texts"),
      ...(films.length > 1 ? [model] : []), ofText);
  }

  function build() {
    const was = app.querySelector("details")?.open ?? false;
    app.replaceChildren(timeline(), curves(), make("div", { className: "watch-panels" }, graph(), attention()), door());
    app.querySelector("details").open = was;
    drawTokens();
    heads.belowHeader(root, "--watch-top");
  }

  let wanted; // the film that was chosen last

  async function open(name, linked = false) {
    wanted = name;
    steps.stop();
    say("Loading the film …");
    try {
      const found = await load(name);
      if (wanted !== name) return;
      film = found;
    } catch (error) {
      return say(error.message, true);
    }
    const plays = linked && !asked().has("t") && !still.matches;
    const at = plays ? nearest(film.x(BEGIN)) : S() - 1;
    Object.assign(state, { at: linked ? at : state.at, head: film.start.head, text: 0, place: [...film.start.place] });
    state.at = Math.min(state.at, S() - 1);
    if (linked) fromAddress();
    build();
    draw();
    if (plays) steps.play();
    if (!linked) app.querySelector("[aria-pressed=true]").focus(); // the button that was pressed is a new one
    say("");
    root.dataset.ready = film.name;
  }

  const first = () => (names.includes(asked().get("model")) ? asked().get("model") : names[0]);
  heads.linked(() => open(first(), true));
  open(first(), true);
})();
