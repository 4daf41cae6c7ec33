// The stage on its own page: the models run here (play/engine.js, in a worker), so any text can be taken apart. Until a
// reader touches it, and where they cannot run, it shows the sentences that the build computed. film.js shows what the
// model did at moments of its training, and address.js keeps all of it in a link.
(() => {
  "use strict";
  const root = document.getElementById("stage"), base = new URL("..", document.currentScript.src);
  const { make, signed } = dom, { say, code } = picture, SIDES = { Q: "queries", K: "keys", V: "values" };
  /** @type {Record<string, any>} */
  const ui = Object.fromEntries(Array.from(root.querySelectorAll("[data-ui]"), (element) =>
    [element.dataset.ui, element]));
  const none = () => ({ off: [], cut: [], mean: false, frozen: false });
  /** `ids`: tokens that no text gives; `moment`: a snapshot of training, or Infinity: the finished model. */
  const state = { text: "", ids: null, at: Infinity, low: "", high: "", layers: 2, edits: none(), moment: Infinity };
  let data, facts, ask = null, stageOf, result = null, loading = null, oneLoaded = null;
  const [number, name] = [(/** @type {string} */ head) => Number(head.split(".")[1]), (layer, head) =>
    `${layer}.${head}`];
  const status = (text, trouble = false) => { ui.status.textContent = text, ui.status.classList.toggle("tc-trouble",
    trouble); };
  const isOff = (head) => state.edits.off.includes(head);
  const isCut = (side) => state.edits.cut.some(([r, s, w]) =>
    s === side && (r < 0 || r === number(state.high)) && (w < 0 || w === number(state.low)));
  const alike = (cut, pair) => cut.join() === pair.join();
  const edited = () => Boolean(state.edits.off.length || state.edits.cut.length);
  const notes = () => [[number(state.high), "K", number(state.low)]];

  // ---- what the picture shows ---------------------------------------------------------------------------------------
  /** The view of a run of the model, as pages/follow.py writes it for the prepared sentences. */
  function view(found, { one = false } = {}) {
    const { n, at, followed, patterns, parts } = found, rowOf = (layer, h, i) =>
      patterns[layer].subarray((h * n + i) * n, (h * n + i + 1) * n);
    const names = ["start", ...found.names.slice(1)], last = patterns.length - 1;
    const seen = Array.from({ length: data.n_heads }, (_, h) => (followed < 0 ? 0 : rowOf(0, h, at)[followed]));
    const g = number(state.low), h = one ? seen.indexOf(Math.max(...seen)) : number(state.high);
    const common = { names, at, followed, answer: found.answer, low: state.low, high: name(last, h),
      row: rowOf(last, h, at), next: found.next, adds: found.adds[last][h] };
    if (one) return common;
    const back = names.map((_, i) => rowOf(0, g, i)), target = Math.max(0, followed),
      rest = parts.tokens.map((_, j) => parts.places[j]);
    const sizes = parts.notes.map((note, k) => (k === g ? -1 : Math.abs(picture.above(note, target)))),
      also = sizes.indexOf(Math.max(...sizes));
    parts.notes.forEach((note, k) => k !== g && k !== also && note.forEach((x, j) => (rest[j] += x)));
    const alsoSees = names.filter((_, j) => rowOf(0, also, target)[j] >= 0.15);
    const paths = [["", found.direct], ...found.adds[0].map((x, k) => [name(0, k), x])];
    found.moved.forEach((moved, k) => {
      if (!moved) return paths.push([name(1, k), found.adds[1][k]]);
      moved.forEach((x, w) => paths.push([w ? `${name(1, k)}·${name(0, w - 1)}` : name(1, k), x]));
    });
    paths.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    const others = [paths.length - 6, paths.slice(6).reduce((sum, [, x]) => sum + x, 0)];
    return { ...common, back, also: name(0, also), alsoSees, paths: paths.slice(0, 6), others,
      parts: { note: parts.notes[g], token: parts.tokens, also: parts.notes[also], rest } };
  }

  function kind() {
    if (state.layers === 1) return "one";
    const { off, cut, mean, frozen } = state.edits;
    if (!edited() && !frozen) return "intact";
    return !off.length && !mean && !frozen && alike(cut, notes()) ? "cut" : "own";
  }
  /** What is changed, as the beginning of a sentence. */
  function changes() {
    const { off, cut, frozen } = state.edits, parts = [];
    const layer = (l, h) => (h >= 0 ? `head ${l}.${h}` : l ? "the second layer" : "the first layer");
    if (off.length) parts.push(`head${off.length > 1 ? "s" : ""} ${off.join(", ")} off`);
    for (const [r, s, w] of cut) parts.push(`${layer(1, r)} without ${layer(0, w)} in its ${SIDES[s]}`);
    if (frozen && parts.length) parts.push("attention kept as it was");
    return parts.length ? `With ${parts.join(", ")}` : "";
  }

  const known = () => Object.values(data.sentences).find(({ text }) => text === state.text);
  const door = film.door(ui, state, { base, known, run, status }), { past } = door;
  const given = () => (Number.isFinite(state.at) ? null : known()?.runs[kind()]);
  function views() {
    if (past()) {
      const found = door.view();
      return { now: found, intact: found, run: state.layers === 1 ? "one" : "intact" };
    }
    const run = kind(), decorate = (v) =>
      ({ ...v, lowOff: isOff(state.low), highOff: isOff(state.high), cut: state.layers === 2 && isCut("K") });
    if (result) return { now: decorate(result.now), intact: result.intact, run, changed: changes() };
    return given() ? { now: given(), intact: known().runs.intact, run } : null;
  }

  // ---- running: at most one question at a time, and always the latest -----------------------------------------------
  let running = false, again = false, noted;
  async function run() {
    await door.follow();
    if (!ask && !past() && !given()) {
      if (!loading) status("Loading the model …"); // a touch loads it silently: a new line would move what is clicked
      await model();
    }
    if (past() || !ask) {
      await stageOf.draw();
      if (past()) drawDoor();
      return drawn();
    }
    if (running) return void (again = true);
    running = true;
    try {
      do {
        again = false;
        const { text, ids, at, high } = state, one = state.layers === 1,
          edits = { ...state.edits, off: state.edits.off.map((head) => head.split(".").map(Number)) };
        if (one) await oneLayer();
        const asked = (name, changed) => ask("run", { name, text, ids, at, head: number(high), edits: changed });
        const first = await asked("two", {}), now = one ? await asked("one", {}) : edited() || edits.frozen ?
          await asked("two", edits) : first;
        if (again || past()) continue;
        result = { now: view(now, { one }), intact: view(first), patterns: one ? null : now.patterns, adds: now.adds,
          n: now.n };
        await stageOf.draw();
        drawDoor();
        ui.long.hidden = !now.overlong;
        if (first.followed < 0) await explainNew(first);
        else ui.aside.replaceChildren();
        drawn();
      } while (again);
    } catch (error) {
      status(`The model stopped: ${error.message} Reload the page.`, true);
    }
    running = false;
  }

  function drawn() {
    root.dataset.runs = String(1 + Number(root.dataset.runs ?? 0));
    remember();
  }

  // ---- a last token that is new: does what was typed occur before, in other tokens? ---------------------------------
  const WORD = /[\p{L}\p{N}_]+$/u, FROM = /^[\p{L}\p{N}_]+/u;
  async function explainNew({ at, n, names }) {
    const { text } = state, tail = WORD.exec(text)?.[0] ?? "", found = tail ?
      text.lastIndexOf(tail, text.length - tail.length - 1) : -1;
    ui.aside.replaceChildren();
    if (at < n - 1 || at === 0) return;
    if (/\s$/.test(text)) return ui.aside.replaceChildren(
      "The text ends with a space or a line break, which is a token here. Without it, the last word is looked up.");
    if (found < 0 || (found && /[\p{L}\p{N}_]/u.test(text[found - 1]))) return;
    const word = FROM.exec(text.slice(found))[0], start = text.slice(0, -tail.length);
    const lengths = Array.from({ length: word.length - 1 }, (_, k) => k + 1).sort((a, b) =>
      Math.abs(a - tail.length) - Math.abs(b - tail.length) || b - a);
    const texts = [...lengths.map((k) => start + word.slice(0, k)), ...(found ? [] : [` ${text}`])];
    const { ids } = await ask("encode", { texts }),
      works = texts.find((_, k) => ids[k].lastIndexOf(ids[k].at(-1), ids[k].length - 2) > 0);
    if (text !== state.text) return;
    let place = 0;
    const ends = names.slice(1).map((token) => (place += token.length));
    const pieces = (from, to) => [names.slice(1).filter((token, i) => ends[i] > from &&
      ends[i] - token.length < to).join("|")];
    const there = pieces(found, found + word.length), here = pieces(text.length - tail.length, text.length);
    ui.aside.replaceChildren(...say`${[tail]} came before, but in other tokens: ${there} there, ${here} here. `,
      "So no token repeats, and the heads find nothing. ",
      ...(works ? [make("button", { type: "button", onclick: () => set({ text: works }) }, "Try ",
        code(`…${works.slice(-24)}`))] : []));
  }

  // ---- the door: every head, every connection -----------------------------------------------------------------------
  function edit(change) {
    state.layers = 2;
    Object.assign(state.edits, change);
    run();
  }
  const toggle = (head) => past() || edit({ off: isOff(head) ? state.edits.off.filter((other) => other !== head) :
    [...state.edits.off, head] });
  function choose(head) {
    state[head[0] === "0" ? "low" : "high"] = head;
    state.layers = 2;
    run();
  }
  function set({ text, at = Infinity }) {
    Object.assign(state, { text, at, ids: null });
    door.draw();
    ui.text.value = text;
    run();
  }
  function preset(run_) {
    Object.assign(state, { edits: { ...none(), cut: run_ === "cut" ? notes() : [] }, layers: run_ === "one" ? 1 : 2 });
    run();
  }

  function tile(layer, h, tiles) {
    const head = name(layer, h), role = facts.roles[head], canvas = make("canvas", { "aria-hidden": "true" }),
      adds = make("small");
    const pick = make("button", { type: "button", className: "tc-pick", role: "radio", onclick: () => choose(head),
      title: `Head ${head}: ${facts.scores[layer][h]}` },
      canvas, make("b", {}, head), make("small", { className: role === "no effect" ? "tc-idle" : "tc-role" },
        role ?? "\u00a0"), adds);
    const power = make("button", { type: "button", className: "tc-power", onclick: () => toggle(head) },
      make("span", { className: "tc-hidden" }, `Head ${head} `), "on");
    heads.moves(pick, () => tiles.map((each) => each.pick), layer * data.n_heads + h, -data.n_heads, (other) =>
      choose(tiles[other].head));
    pick.addEventListener("keydown", (event) => event.key === "x" && toggle(head));
    return { head, layer, h, canvas, adds, pick, power, box: make("div", { className: "tc-switch" }, pick, power) };
  }

  function buildDoor() {
    const button = (text, onclick) => make("button", { type: "button", onclick }, text), tiles = ui.tiles = [];
    const random = ({ words, length }) => {
      const drawn = new Set();
      while (drawn.size < length) drawn.add(words[Math.floor(Math.random() * words.length)]);
      return [...drawn, ...[...drawn].slice(0, -2)].join("");
    };
    ui.texts.append(...Object.entries(data.sentences).map(([label, { text }]) => button(label, () => set({ text }))),
      ...facts.texts.map((each) => button(each.label, () => set({ text: each.text ?? random(each) }))));
    for (const layer of [0, 1]) for (let h = 0; h < data.n_heads; h++) tiles.push(tile(layer, h, tiles));
    [ui.first, ui.second].forEach((row, layer) =>
      row.append(...tiles.filter((each) => each.layer === layer).map((each) => each.box)));
    for (const side of "QKV") ui[side].onchange = () => {
      const pair = [number(state.high), side, number(state.low)], rest = state.edits.cut.filter((each) =>
        !alike(each, pair));
      edit({ cut: ui[side].checked ? rest : [...rest, pair] });
    };
    ui.mean.onchange = () => edit({ mean: ui.mean.checked });
    ui.frozen.onchange = () => edit({ frozen: ui.frozen.checked });
    ui.reset.onclick = () => preset("intact");
    ui.reset.after(heads.link("Link to this", link));
  }

  function drawDoor() {
    if (!ui.door.open || !ui.tiles || !(past() || result)) return;
    const then = past(), { patterns, adds } = result ?? {}, n = then ? door.length() : result.n;
    const ink = (layer) => heads.ink(root, layer ? "--tc-second" : "--tc-first");
    const of = (layer, h) => {
      if (then) return door.pattern(layer, h);
      const values = patterns?.[layer].subarray(h * n * n, (h + 1) * n * n);
      return values && ((i, j) => 255 * values[i * n + j]);
    };
    ui.door.classList.toggle("tc-then", then);
    for (const each of ui.tiles) {
      const { head, layer, h } = each, chosen = head === state.low || head === state.high, off = isOff(head);
      const alpha = of(layer, h);
      if (alpha) heads.paint(each.canvas, n, alpha, ink(layer), 56);
      each.pick.setAttribute("aria-checked", chosen), (each.pick.tabIndex = chosen ? 0 : -1);
      each.power.setAttribute("aria-pressed", !off), (each.power.tabIndex = chosen ? 0 : -1);
      each.power.lastChild.data = off ? "off" : "on", each.box.classList.toggle("tc-off", off);
      each.adds.textContent = !then && state.layers === 2 ? signed(adds[layer][h]) : "";
    }
    if (then) return;
    ui.adds.replaceChildren(...say`Below each head: what it adds to the logit of ${[result.now.answer]}, `,
      "above the mean of all tokens.");
    ui.pair.textContent = `Head ${state.high} reads head ${state.low} with its`;
    for (const side of "QKV") ui[side].checked = !isCut(side);
    ui.mean.checked = state.edits.mean, ui.frozen.checked = state.edits.frozen;
  }

  // ---- from here ----------------------------------------------------------------------------------------------------
  const link = () => address.write(state, data, { moment: door.moment(), step: stageOf.now.step });
  function remember() {
    clearTimeout(noted); // what the reader did comes back with the page
    noted = setTimeout(() => history.replaceState(null, "", `#${link()}`), 300);
  }
  async function fromAddress() {
    const found = address.read(location.hash, data);
    Object.assign(state, found.state);
    if (found.step === 8 && kind() === "intact") state.edits.cut = notes();
    if (found.film) await door.open(...found.film);
    if (Number.isFinite(found.state.at)) state.at = found.state.at;
    ui.text.value = state.text;
    door.draw();
    return found.step;
  }

  async function load(worker, model, file) {
    const { facts: found, bytes } = await dom.load(`play/${file}`, base);
    await worker("load", { name: model, model: found, bytes: new Uint8Array(bytes) });
    return found;
  }

  async function open() {
    try {
      data = (await dom.load("follow/data.js", base)).facts;
    } catch (error) {
      return status(error.message, true);
    }
    const cut = (what) => (past() || (what === "notes" ? preset(kind() === "cut" ? "intact" : "cut") :
      toggle(state[what])));
    const own = { views, preset, cut, choose: (i) => { state.at = i, run(); }, stepped: remember };
    stageOf = stage.start(ui.here, data, { step: await fromAddress(), own });
    const controls = ui.here.querySelector(".tc-controls");
    controls.append(ui.film), controls.after(ui.time, ui.which);
    ui.film.hidden = door.isOpen(), ui.door.hidden = false;
    ui.text.addEventListener("input", () => set({ text: ui.text.value }));
    ui.door.addEventListener("toggle", () => model().then(drawDoor));
    for (const touch of ["focusin", "pointerdown"]) root.addEventListener(touch, model, { once: true });
    await run();
    root.dataset.ready = "yes";
    new MutationObserver(drawDoor).observe(document.documentElement,
      { attributes: true, attributeFilter: ["data-theme"] });
    heads.linked(async () => { stageOf.now.step = await fromAddress(), run(); });
    // For the console: `await play.run("some text", { off: [[0, 6]] })` has patterns and logits.
    window.play = { encode: async (texts) => (await model(), ask("encode", { texts })),
      run: async (text, edits = {}, name = "two") => {
        await (name === "one" ? oneLayer() : model());
        return ask("run", { name, text, edits, logits: true });
      } };
  }

  /** Load the model, once: it is large, and the prepared sentences do without it. */
  const model = () => (loading ??= (async () => {
    try {
      const worker = dom.worker([playTokenizer, forwardMemory, forwardPlaces, forwardPass, playEngine], playServer);
      ({ facts } = await load(worker, "two", "model.js"));
      ask = worker;
    } catch (error) {
      return status(`${error.message} Only the prepared sentences are shown.`, true);
    }
    status("");
    buildDoor();
  })());
  const oneLayer = async () => (await model(), await (oneLoaded ??= load(ask, "one", "one.js")));
  open();
})();
