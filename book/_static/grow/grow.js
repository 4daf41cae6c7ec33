// The page "Grow one" (book_build/pages/grow.py): train.js trains in a worker, this draws. The worker is asked for a
// few steps at a time, and for the next ones when these are drawn.
(() => {
  const root = document.getElementById("grow");
  const { make, svg, clamp, percent } = dom;
  const thresholds = JSON.parse(root.dataset.thresholds);
  const NAMES = Array.from("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+=");
  // numbered as their colors are in grow.css
  const ROLES = ["", "", "previous-token head", "induction head", "removed"];
  const JUMP = 0.5, STEPS = 10; // right guesses, from which on they have jumped; steps between two drawings
  const FIXED = { d_model: 64, d_vocab: 64, n_ctx: 32, rows: 64 };
  const SHARP = { 1: 16, 2: 16, 4: 16, 8: 8 }; // dimensions of a head
  // Every setting: its label, its values with their names, and whether it belongs to a new model. The first value is
  // the default; a value may have a name of its own.
  const SETTINGS = {
    layers: { label: "Layers", values: [["2", "two"], ["1", "one"]], fresh: true },
    heads: { label: "Heads per layer", values: ["4", "1", "2", "8"], fresh: true },
    seed: { label: "Seed", values: ["0", "1", "2", "3", "4"], fresh: true },
    cut: { label: "Second layer reads the first with its",
      values: [["", "queries, keys, values"], ["K", "queries, values"], ["Q", "keys, values"]] },
    positions: { label: "Positions", values: ["on", "off"] },
    repeats: { label: "A segment occurs twice", values: [["all", "in every row"], ["half", "in half of the rows"],
      ["same", "always 16 tokens apart"], ["none", "never"]] }, };
  const value = (pair) => [pair].flat()[0];
  const defaults = () => Object.fromEntries(Object.entries(SETTINGS).map(([name, { values }]) =>
    [name, value(values[0])]));

  const state = { settings: defaults(), removed: [], running: false, head: 0, follows: true, place: 0 };
  let ask, looks = {}, history = {}; // by run: "chosen", and "one layer" to compare with
  const ui = {};
  const [status, app] = ["status", "app"].map((part) => root.querySelector(`.grow-${part}`));
  const say = (text, trouble = false) => {
    status.textContent = text;
    status.classList.toggle("grow-trouble", trouble);
  };

  const number = (name, settings = state.settings) => Number(settings[name]);
  const asks = ({ cut, positions, repeats, seed } = state.settings) =>
    ({ cut, positions: positions === "on", repeats, lr: 0.02, seed: Number(seed) });
  const shape = (layers, heads) => ({ ...FIXED, layers, heads, d_head: SHARP[heads] });

  async function begin(changed = {}) {
    const settings = { ...state.settings, ...changed };
    state.running = false;
    // in place, with what changed, only when both are whole: a click or another theme draws at any time
    const fresh = {}, past = {};
    const runs = number("layers", settings) === 1 ? { chosen: 1 } : { chosen: 2, "one layer": 1 };
    for (const [name, layers] of Object.entries(runs)) {
      fresh[name] = (await ask("start", { name, shape: shape(layers, number("heads", settings)),
        settings: asks(settings) })).look;
      past[name] = [];
    }
    Object.assign(state.settings, changed), state.removed = [], state.follows = true, looks = fresh, history = past;
    // The best place to look from: in the middle of the second copy.
    const second = looks.chosen.target.flatMap((target, i) => (target >= 0 ? [i] : []));
    state.place = second[Math.floor(second.length / 2)],
      state.head = Math.min(state.head, number("layers") * number("heads") - 1);
    build();
    draw();
  }

  let busy = Promise.resolve(); // one thing at a time
  const inTurn = (work) => (busy = busy.then(work).catch((error) => {
    state.running = false;
    say(`The training stopped: ${error.message}`, true);
  }));

  async function advance() {
    if (!state.running) return;
    const names = Object.keys(history), found = await ask("advance", { names, steps: STEPS, side: "K" });
    for (const name of names) history[name].push(...found.history[name]), (looks[name] = found.looks[name]);
    root.dataset.milliseconds = found.milliseconds.toFixed(0);
    if (looks.chosen.step >= 5000) state.running = false;
    draw();
    setTimeout(() => state.running && inTurn(advance)); // the page answers in between
  }

  function run() {
    state.running = !state.running;
    draw();
    if (state.running) inTurn(advance);
  }

  const change = () => inTurn(async () => {
    for (const name of Object.keys(history)) {
      const removed = name === "chosen" ? state.removed : [];
      looks[name] = (await ask("change", { name, settings: asks(), removed, side: "K" })).look;
    }
    draw();
  });

  function set(name, to) {
    SETTINGS[name].fresh ? inTurn(() => begin({ [name]: to })) : ((state.settings[name] = to), change());
  }

  function remove(head) {
    state.removed = state.removed.includes(head) ? state.removed.filter((other) => other !== head) :
      [...state.removed, head];
    change();
  }

  const roleOf = (h) => {
    const { induction, previous } = looks.chosen.scores[h];
    return looks.chosen.removed.includes(h) ? 4 : induction >= thresholds.induction ? 3 :
      previous >= thresholds.previous ? 2 : 0;
  };

  // The head that is shown until the reader chooses one: the best induction head, or the best previous-token head of a
  // model that has none.
  function best() {
    const of = (key) => looks.chosen.scores.map((score) => score[key]), key = Math.max(...of("induction")) > 0.1 ?
      "induction" : "previous";
    return of(key).indexOf(Math.max(...of(key)));
  }

  function drawNews() {
    const jumped = smoothed(history.chosen.map(({ right }) => right)).findIndex((x) => x > JUMP);
    const back = looks.chosen.scores.findIndex((_, h) => roleOf(h) === 2), head = heads.name(back, number("heads"));
    const news = !looks.chosen.step ? "Press Train. Now each head attends to all tokens alike: its square is pale."
      : jumped >= 0 ? `The jump: from step ${jumped + 1} on, more than half of the first guesses are right.`
      : back >= 0 ? `Head ${head} attends to the previous token now.` : "No head looks back yet.";
    const words = (state.follows && looks.chosen.step ? "The picture follows the best head. " : "") + news;
    if (ui.news.textContent !== words) ui.news.textContent = words;
  }

  function draw() {
    if (state.follows) state.head = best();
    drawNews();
    ui.play.textContent = state.running ? "❚❚ Pause" : looks.chosen.step ? "▶ Continue" : "▶ Train";
    ui.now.textContent = `step ${looks.chosen.step}`;
    drawCurves(), drawHeads(), drawAttention();
    Object.assign(root.dataset, { step: looks.chosen.step, right: looks.chosen.right,
      removed: looks.chosen.removed.join(" ") });
  }

  // A line as wide as a composition ratio is above chance, colored from a threshold on.
  function drawLine(line, ratio) {
    const wide = 5 * (ratio - 1);
    line.style.strokeWidth = wide > 0.15 ? wide.toFixed(2) : 0;
    line.classList.toggle("grow-composes", ratio >= thresholds.composes);
  }

  // The list of tokens, of which one is chosen, by a click or by arrow keys.
  function strip() {
    const label = "Tokens: arrow keys choose the one to look from";
    const list = make("div", { className: "grow-strip", role: "listbox", tabIndex: 0, "aria-label": label },
      ...ui.tokens);
    list.addEventListener("click", (event) => {
      const i = /** @type {any} */ (event.target).closest?.("[data-i]")?.dataset.i;
      if (i !== undefined) choosePlace(Number(i));
    });
    list.addEventListener("keydown", (event) => {
      const { place } = state, last = FIXED.n_ctx - 1;
      const i = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: last }[event.key];
      if (i === undefined) return;
      event.preventDefault();
      choosePlace(clamp(i, 0, last));
    });
    return list;
  }

  const token = (id, i) => make("span", { className: "grow-token", role: "option", id: `grow-token-${i}`, data: { i } },
    make("span", {}, NAMES[id]), make("small"));

  // Tokens colored by the attention from the one at i; a dashed frame around the token at `next`.
  function attend(values, i, next) {
    ui.tokens.forEach((each, j) => {
      const a = j <= i ? values[j] : 0;
      each.style.setProperty("--a", a.toFixed(3));
      for (const [name, on] of [["ahead", j > i], ["lasttime", j === next]])
        each.classList.toggle(`grow-${name}`, on);
      each.setAttribute("aria-selected", j === i);
    });
    ui.strip.setAttribute("aria-activedescendant", ui.tokens[i].id);
  }

  // A pattern, with rings around tokens that followed last time, and a frame around the chosen row.
  function pattern() {
    const canvas = make("canvas", { role: "img", "aria-label": "Attention pattern: rows attend to columns" });
    const n = FIXED.n_ctx, rings = svg("g"), row = svg("rect", { x: 0, height: 1 });
    const over = svg("svg", { viewBox: `0 0 ${n} ${n}`, preserveAspectRatio: "none", "aria-hidden": "true" }, rings,
      row);
    const square = make("div", { className: "grow-square" }, canvas, over);
    square.addEventListener("click", (event) => {
      const box = square.getBoundingClientRect();
      choosePlace(clamp(Math.floor(((event.clientY - box.top) / box.height) * n), 0, n - 1));
    });
    function draw(ids, alpha, ink, chosen) {
      const places = ids.map((_, i) => [i, heads.lastTime(ids, i)]).filter(([, k]) => k >= 0);
      heads.paint(canvas, n, alpha, ink);
      rings.replaceChildren(...places.map(([i, k]) => svg("circle", { cx: k + 0.5, cy: i + 0.5, r: 0.7 })));
      row.setAttribute("y", chosen), row.setAttribute("width", chosen + 1);
    }
    return { square, draw };
  }

  // The bar of buttons stays in view, below the theme's header, if that does.
  function belowHeader() {
    const header = document.querySelector(".bd-header-article");
    if (header && getComputedStyle(header).position === "sticky") root.style.setProperty("--grow-top",
      `${header.offsetHeight}px`);
  }

  // Means over a few steps, so that a line is read and not a cloud.
  function smoothed(values, n = 10) {
    return values.map((_, i) => {
      const part = values.slice(Math.max(0, i - n + 1), i + 1).filter((x) => !Number.isNaN(x));
      return part.reduce((a, b) => a + b, 0) / part.length;
    });
  }

  function drawCurves() {
    const length = Math.max(500, looks.chosen.step);
    for (const { key, most, least, format, lines, values, end, hint } of ui.curves) {
      hint.hidden = looks.chosen.step > 0;
      end.textContent = `step ${length}`;
      for (const [name, line] of Object.entries(lines)) {
        const all = smoothed(history[name].map((row) => row[key])), every = Math.ceil(all.length / 500);
        const y = (value) => (100 * (most - Math.max(least, Math.min(most, value)))) / (most - least);
        line.setAttribute("points", all.flatMap((value, i) => (i % every || Number.isNaN(value) ? [] :
          [`${((1000 * i) / length).toFixed(1)},${y(value).toFixed(1)}`])).join(" "));
        values[name].textContent = all.length ? format(all.at(-1)) : "–";
      }
    }
  }

  function drawHeads() {
    const { scores, composition, patterns } = looks.chosen, H = number("heads"), n = FIXED.n_ctx;
    root.dataset.layer = String(Math.floor(state.head / H));
    ui.heads.forEach((button, h) => {
      const role = roleOf(h), from = (h % H) * n * n, pattern = patterns[Math.floor(h / H)];
      heads.mark(button, h === state.head, role, `Head ${heads.name(h, H)}${role ? `, ${ROLES[role]}` : ""}`);
      heads.paint(ui.tiles[h], n, (i, j) => 255 * pattern[from + i * n + j],
        heads.ink(root, h < H ? "--tc-first" : "--tc-second"));
    });
    ui.lines.forEach((line, pair) => drawLine(line, composition[pair]));
    const { previous, induction } = scores[state.head], off = looks.chosen.removed.includes(state.head),
      name = heads.name(state.head, H), role = roleOf(state.head);
    const reads = state.head < H ? [] : composition.slice((state.head - H) * H, (state.head - H + 1) * H),
      best = reads.indexOf(Math.max(...reads));
    ui.about.replaceChildren(make("b", {}, `Head ${name}${role ? `: ${ROLES[role]}` : ""}. `),
      `Attention to the previous token ${percent(previous)}; induction score ${percent(induction)}.` +
      (reads.length ? ` Its keys read head 0.${best} most, at ${reads[best].toFixed(1)} times chance.` : ""));
    ui.remove.textContent = off ? `Put head ${name} back` : `Remove head ${name}`;
  }

  function drawAttention() {
    const { ids, guesses, chance, patterns, target } = looks.chosen, H = number("heads"), n = FIXED.n_ctx;
    const pattern = patterns[Math.floor(state.head / H)], from = (state.head % H) * n * n, i = state.place;
    const of = (row) => pattern.subarray(from + row * n, from + (row + 1) * n);
    const next = heads.lastTime(ids, i), values = of(i);
    const word = (id) => make("code", { className: "grow-word" }, NAMES[id]);
    attend(values, i, next);
    ui.tokens.forEach((token, j) => {
      token.lastChild.textContent = j + 1 < n ? NAMES[guesses[j]] : "";
      token.classList.toggle("grow-right", j + 1 < n && guesses[j] === ids[j + 1]);
      token.classList.toggle("grow-known", target[j] >= 0);
    });
    ui.attentionTitle.textContent = `Attention of head ${heads.name(state.head, H)} in one row`;
    ui.where.replaceChildren(make("b", {}, "From "), word(ids[i]), ": ",
      ...(next < 0 ? ["this token is new in the row. "] : [`${percent(values[next])} on `, word(ids[next]),
        ", which followed last time. "]),
      ...(i + 1 < n ? ["The model’s guess is ", word(guesses[i]), "; next comes ", word(ids[i + 1]),
        `, to which it gives ${percent(chance[i])}.`] : ["The row ends here."]));
    ui.pattern.draw(ids, (row, j) => 255 * of(row)[j], heads.ink(root, "--grow-ink"), i);
  }

  function chooseHead(h) {
    state.head = h, state.follows = false;
    drawHeads(), drawAttention();
  }

  function choosePlace(i) {
    state.place = i;
    drawAttention();
  }

  const address = () => new URLSearchParams(Object.entries(state.settings).filter(([name, value]) =>
    value !== defaults()[name]));

  function fromAddress() {
    const settings = defaults();
    for (const [name, asked] of new URLSearchParams(location.hash.slice(1))) {
      if (Object.hasOwn(SETTINGS, name) && SETTINGS[name].values.map(value).includes(asked)) settings[name] = asked;
    }
    return settings;
  }

  function curve(title, key, least, most, format, threshold, words) {
    const lines = {}, values = {}, label = [], hint = make("p", { className: "grow-hint" }, words);
    for (const name of Object.keys(history)) {
      const kind = name === "chosen" ? "grow-chosen" : "grow-compared";
      lines[name] = svg("polyline", { class: kind }), values[name] = make("b");
      const words = name === "chosen" && state.settings.layers === "2" ? "two layers " : "one layer ";
      label.push(make("span", { className: kind }, words, values[name]));
    }
    const chart = svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" },
      ...threshold, ...Object.values(lines)), end = make("span");
    ui.curves.push({ key, least, most, format, lines, values, end, hint });
    const axis = make("div", { className: "grow-axis" }, make("span", {}, "step 0"), end);
    const scale = make("div", { className: "grow-scale" }, ...[most, (most + least) / 2, least].map((x) =>
      make("span", {}, format(x))));
    return make("div", { className: "grow-curve" }, make("p", {}, `${title}: `, ...label),
      make("div", { className: "grow-plot" }, scale, make("div", { className: "grow-chart" }, chart, hint), axis));
  }

  function settings() {
    const select = ([name, { label, values }]) => {
      const options = values.map((pair) =>
        make("option", { value: value(pair), selected: value(pair) === state.settings[name] }, [pair].flat().at(-1)));
      return make("label", {}, `${label} `,
        make("select", { name, onchange: ({ target }) => set(name, /** @type {HTMLSelectElement} */ (target).value) },
          ...options));
    };
    const group = (legend, fresh) => make("fieldset", {}, make("legend", {}, legend),
      ...Object.entries(SETTINGS).filter(([, each]) => Boolean(each.fresh) === fresh).map(select));
    return make("div", { className: "grow-settings" }, group("A change starts a new model", true),
      group("A change holds from the next step on", false));
  }

  function build() {
    const H = number("heads"), L = number("layers");
    ui.play = make("button", { type: "button", className: "grow-play", onclick: run });
    ui.now = make("b", { className: "grow-now" });
    const again = make("button", { type: "button", name: "again", onclick: () => inTurn(() => begin()) }, "Start over");
    const bar = make("div", { className: "grow-bar" }, make("div", { className: "grow-row" }, ui.play, ui.now,
      again));
    ui.curves = [], ui.news = make("p", { className: "grow-news", role: "status" });
    const line = (share) => svg("line", { x1: 0, x2: 1000, y1: 100 - 100 * share, y2: 100 - 100 * share,
      class: "grow-threshold" });
    const curves = make("section", { className: "grow-curves" },
      curve("Right first guesses in second copies", "right", 0, 1, percent, [line(0.5)],
        "Here two layers should jump, and one layer stay at about a fifth."),
      curve("Loss, nats per token", "loss", 3, 4.4, (x) => x.toFixed(1), [],
        "Here both should fall a little, and two layers again when they jump."));
    ui.tiles = Array.from({ length: L * H }, () => make("canvas", { "aria-hidden": "true" }));
    const graph = heads.graph(L, H, chooseHead, { content: (h) => [heads.name(h, H), ui.tiles[h]] });
    ui.heads = graph.buttons, ui.lines = graph.lines, ui.about = make("p", { className: "grow-about" });
    ui.remove = make("button", { type: "button", onclick: () => remove(state.head) });
    const key = make("p", { className: "grow-key" },
      ...[2, 3, 4].map((role) => make("span", { data: { role } }, ROLES[role])));
    const wide = "A line is as wide as the keys of a head of the second layer read one of the first above chance: " +
      `colored from ${thresholds.composes} times chance on.`;
    const lined = L > 1 ? [make("p", { className: "grow-small" }, wide)] : [];
    const circuits = make("section", {}, make("h2", {}, L > 1 ? "Who reads whom" : "Heads"), graph.box, key, ...lined,
      ui.about, ui.remove);
    ui.tokens = looks.chosen.ids.map(token), ui.strip = strip();
    ui.attentionTitle = make("h2"), ui.where = make("p"), ui.pattern = pattern();
    const attention = make("section", { className: "grow-attention" }, ui.attentionTitle, ui.strip,
      make("p", { className: "grow-small" },
        "Below each token: the model’s guess of the next one. Underlined: the second copy. Bold and framed: right."),
      ui.where, ui.pattern.square, make("p", { className: "grow-small" },
        "Rows attend to columns. Rings: the token that followed last time."));
    const name = document.activeElement.getAttribute("name"); // the focus stays on the successor of what had it
    const door = make("details", { className: "grow-door", open: app.querySelector("details")?.open ?? false },
      make("summary", {}, "Settings: experiments to try"), settings(), heads.link("Link to these settings", address));
    app.replaceChildren(bar, ui.news, curves, make("div", { className: "grow-panels" }, circuits, attention), door);
    app.querySelector(`[name="${name}"]`)?.focus();
    belowHeader();
  }

  async function open() {
    try {
      ask = dom.worker([forwardMemory, forwardPlaces, forwardPass, growRandom, growRows, growTrainer], growServer);
    } catch (error) {
      return say(error.message, true);
    }
    const linked = () => inTurn(() => begin(fromAddress()));
    await linked();
    if (!looks.chosen) return; // what went wrong has been said
    new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    heads.linked(linked);
    root.dataset.ready = "yes";
    // For tests: loss, gradients and update of given weights; the first-layer head that attends most to the previous
    // token; when all is done.
    const previous = () => looks.chosen.scores.slice(0, number("heads")).map((score) => score.previous);
    window.grow = { check: (rest) => ask("check", rest), previous: () => previous().indexOf(Math.max(...previous())),
      settled: () => busy };
  }

  open();
})();
