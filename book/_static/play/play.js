// The page "Play" (book_build/pages/play.py). The model is engine.js, its data model.js, which the build writes.
(() => {
  const root = document.getElementById("play");
  const folder = new URL(".", document.currentScript.src);
  const { make, svg, fixed: nats, percent, clamp } = dom;
  const signed = (x) => dom.signed(x, Math.abs(x) < 9.95 ? 1 : 0);
  const headName = (/** @type {number[]} */ [layer, head]) => `${layer}.${head}`;
  const aloud = (text) => make("span", { className: "play-aloud" }, text); // for those who listen
  const LARGEST_LOSS = 12; // nats at which a bar is full; the chart says so if there are more

  // ---- the model, in a worker ------------------------------------------------------------------------------------------------

  let ask; // a question to engine.js, in a worker

  // ---- what the page holds -----------------------------------------------------------------------------------------------------

  let facts; // what the build says of the model
  let result = null; // of the last run
  let shown = null; // and of the last look at one of its tokens
  let preview = null; // a token that the pointer is on
  const state = { text: "", head: /** @type {[number, number]} */ ([1, 0]), at: 0, target: undefined, weighted: false, edits: {} };
  const none = () => ({ off: [], mean: false, from: "", cut: "", frozen: false });
  state.edits = none();
  const edited = () => state.edits.off.length || state.edits.cut;
  const isOff = (layer, head) => state.edits.off.some(([l, h]) => l === layer && h === head);
  const at = () => Math.min(preview ?? state.at, result.n - 1);

  /** @type {Record<string, any>} */
  const ui = Object.fromEntries(Array.from(root.querySelectorAll("[data-ui]"), (element) => [element.dataset.ui, element]));
  const { app, say } = heads.page(root, "play", () => result && (draw(), shown && drawNext()));

  // ---- running: at most one question at a time, and always the latest ----------------------------------------------------------

  let running = false, again = false, noted;

  async function run(since = performance.now()) {
    if (running) return void (again = true);
    running = true;
    try {
      do {
        again = false;
        const found = await ask("run", { text: state.text, edits: state.edits });
        const same = result && found.n === result.n && found.ids.every((id, i) => id === result.ids[i]);
        result = Object.assign(found, { number: 1 + (result?.number ?? 0) });
        state.at = Math.min(state.at, found.n - 1);
        if (!same) {
          preview = null;
          drawTokens();
        }
        draw();
        await look();
        root.dataset.milliseconds = String(Math.round(performance.now() - since));
        root.dataset.runs = String(1 + Number(root.dataset.runs ?? 0));
        clearTimeout(noted); // the address has what the reader did: it comes back with the page
        noted = setTimeout(() => history.replaceState(null, "", `#${address()}`), 300);
        ui.time.textContent = `${result.n} ${result.n > 1 ? "tokens" : "token"}, ${root.dataset.milliseconds} ms`;
        since = performance.now();
      } while (again);
    } catch (error) {
      say(`The model stopped: ${error.message}. Reload the page.`, true);
    }
    running = false;
  }

  let looking = 0;
  async function look() {
    const mine = ++looking, found = await ask("look", { text: state.text, edits: state.edits, at: at(), target: state.target });
    if (mine !== looking || found.i !== at()) return;
    shown = found;
    drawNext();
  }

  function select(i, keep = false) {
    preview = null;
    if (i !== state.at && !keep) state.target = undefined;
    state.at = clamp(i, 0, result.n - 1);
    drawAttention();
    look();
  }

  function hover(i) {
    if (i === preview) return;
    preview = i;
    drawAttention();
    look();
  }

  function edit(change) {
    Object.assign(state.edits, change);
    root.classList.toggle("play-edited", Boolean(edited()));
    drawSwitches();
    run();
  }

  function toggle(layer, head) {
    const off = state.edits.off.filter(([l, h]) => l !== layer || h !== head);
    edit({ off: isOff(layer, head) ? off : [...off, [layer, head]] });
  }

  // ---- the numbers that are drawn ----------------------------------------------------------------------------------------------

  // Attention of a head, [destination, source], weighted by |v| over the head's largest if asked for.
  function attention([layer, head], intact = false) {
    const { n } = result, patterns = intact && layer ? result.intactPatterns : result.patterns[layer];
    const mine = patterns.subarray(head * n * n, (head + 1) * n * n);
    if (!state.weighted) return mine;
    const lengths = (intact && layer ? result.intactLengths : result.lengths[layer]).subarray(head * n, (head + 1) * n);
    const most = lengths.reduce((a, b) => Math.max(a, b), 1e-9);
    return mine.map((a, place) => (a * lengths[place % n]) / most);
  }

  const lastTime = (i) => heads.lastTime(result.ids, i);

  // Tokens that follow their predecessor as they did before in this text: what an induction head can know.
  function comesBack() {
    const seen = new Set(), found = [];
    for (let i = 0; i + 1 < result.n; i++) {
      const pair = result.ids[i] * 65536 + result.ids[i + 1];
      if (seen.has(pair)) found.push(i);
      seen.add(pair);
    }
    return found;
  }

  const inkColor = () => heads.ink(root, "--play-ink");

  // ---- drawing -----------------------------------------------------------------------------------------------------------------

  function drawTokens() {
    const { names, ids } = result, pieces = [];
    ids.forEach((id, i) => {
      const piece = heads.token(i, "play", names[i]);
      pieces.push(piece);
      if (names[i].endsWith("↵")) pieces.push(make("br"));
    });
    ui.tokens = pieces.filter((piece) => piece.tagName === "SPAN");
    ui.strip.replaceChildren(ui.arcs, ...pieces);
    ui.cut.hidden = !result.cut;
    const { strip } = ui, { offsetTop, offsetHeight } = ui.tokens[at()]; // the chosen token comes into view
    if (offsetTop < strip.scrollTop || offsetTop + offsetHeight > strip.scrollTop + strip.clientHeight)
      strip.scrollTop = offsetTop - strip.clientHeight / 2;
  }

  function draw() {
    drawHeads();
    drawLosses();
    drawAttention();
    drawSummary();
  }

  function drawAttention() {
    const i = at(), { n } = result, values = attention(state.head).subarray(i * n, (i + 1) * n), next = lastTime(i);
    heads.attend(ui.tokens, (j) => values[j], i, next, "play");
    drawArc(i, next);
    const best = Array.from(values.subarray(0, i + 1).keys()).sort((a, b) => values[b] - values[a]).slice(0, 3).filter((j) => values[j] >= 0.01);
    const name = (j) => make("code", { className: "play-word" }, result.names[j]);
    const list = best.flatMap((j, k) => [k ? ", " : "", name(j), ` (${j}) ${percent(values[j])}`]);
    const intact = () => percent(attention(state.head, true)[i * n + next]);
    const then = next < 0 ? [i ? "This token is new in the text." : ""]
      : [name(next), ` (${next}) followed last time: ${percent(values[next])}${edited() ? `, intact ${intact()}` : ""}.`];
    ui.where.replaceChildren("From ", name(i), ` (${i}), head ${headName(state.head)} ${state.weighted ? "moves most from" : "attends to"} `,
      ...(list.length ? list : ["no token with 1% or more"]), ". ", ...then);
    drawPattern(i);
    drawMark();
  }

  function drawArc(i, j) {
    ui.arcs.replaceChildren();
    const { strip, tokens } = ui;
    ui.arcs.setAttribute("height", 0);
    ui.arcs.setAttribute("width", strip.scrollWidth), ui.arcs.setAttribute("height", strip.scrollHeight);
    if (j < 0) return;
    const place = (token) => [token.offsetLeft + token.offsetWidth / 2, token.offsetTop];
    const [[x1, y1], [x2, y2]] = [place(tokens[i]), place(tokens[j])], high = Math.min(y1, y2) - Math.min(26, 8 + Math.abs(x1 - x2) / 8);
    ui.arcs.append(svg("path", { d: `M${x1},${y1} C${x1},${high} ${x2},${high} ${x2},${y2 - 1}`, "marker-end": "url(#play-arrow)" }), arrow());
  }

  const arrow = () =>
    svg("marker", { id: "play-arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      svg("path", { d: "M0,0 L8,4 L0,8z" }));

  // Whether a head of the second layer attends otherwise than in the intact model.
  function changed(head) {
    const { n, patterns, intactPatterns } = result, end = (head + 1) * n * n;
    for (let place = head * n * n; place < end; place++) if (Math.abs(patterns[1][place] - intactPatterns[place]) > 1e-4) return true;
    return false;
  }

  function drawPattern(i) {
    const { n, number } = result, [layer, head] = state.head, before = layer === 1 && changed(head), off = isOff(layer, head);
    const role = facts.roles[headName(state.head)], key = [number, state.head, state.weighted, inkColor()].join();
    ui.before.hidden = !before;
    ui.caption.textContent = before ? "now" : off ? "where it would attend" : "";
    for (const [pattern, intact] of before ? [[ui.pattern, false], [ui.patternBefore, true]] : [[ui.pattern, false]]) {
      const values = attention(state.head, intact);
      pattern.draw(result.ids, (q, k) => 255 * values[q * n + k], inkColor(), i, key);
    }
    ui.patternTitle.textContent = `Head ${headName(state.head)}${role ? `, ${role}` : ""}${off ? ", off" : ""}`;
  }

  function drawHeads() {
    for (const tile of ui.tiles) {
      const { layer, head } = tile, off = isOff(layer, head), chosen = state.head[0] === layer && state.head[1] === head;
      const values = attention([layer, head]);
      heads.paint(tile.canvas, result.n, (i, j) => 255 * values[i * result.n + j], inkColor(), 56);
      tile.box.classList.toggle("play-off", off);
      tile.pick.setAttribute("aria-checked", chosen);
      tile.pick.tabIndex = chosen ? 0 : -1;
      tile.power.setAttribute("aria-pressed", !off);
      tile.power.lastChild.data = off ? "off" : "on";
      tile.power.tabIndex = chosen ? 0 : -1; // as its head: arrow keys lead there
    }
  }

  function drawNext() {
    const { rows, target, next, i, adds, direct, name } = shown, changed = edited();
    ui.nextTitle.replaceChildren("Next after ", make("code", { className: "play-word" }, result.names[i]), ` (${i})`);
    const body = rows.map((row) => {
      const pick = make("button", { type: "button", className: "play-word", onclick: () => ((state.target = row.id), look()) }, row.name);
      pick.setAttribute("aria-pressed", row.id === target);
      const bar = (p, kind) => svg("svg", { class: `play-bar ${kind}`, viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { width: 100 * p, height: 10 }));
      const cells = [make("th", { scope: "row" }, pick, row.id === next ? make("span", { className: "play-truth" }, " comes next") : "")];
      cells.push(make("td", { className: "play-bars" }, bar(row.now, "play-is"), ...(changed ? [bar(row.intact, "play-was")] : [])));
      cells.push(make("td", {}, percent(row.now)));
      if (changed) cells.push(make("td", { className: "play-was" }, percent(row.intact)));
      return make("tr", { className: `${row.id === target ? "play-target" : ""} ${row.id === next ? "play-true" : ""}` }, ...cells);
    });
    const titles = ["token", aloud("bar"), changed ? "now" : "probability", ...(changed ? ["intact"] : [])].map((title) => make("th", { scope: "col" }, title));
    ui.next.replaceChildren(make("thead", {}, make("tr", {}, ...titles)), make("tbody", {}, ...body));
    const most = Math.max(1, ...adds.flat().map(Math.abs));
    for (const tile of ui.tiles) {
      const amount = adds[tile.layer][tile.head];
      tile.adds.textContent = signed(amount);
      tile.adds.classList.toggle("play-large", Math.abs(amount) > 0.25 * most && Math.abs(amount) >= 0.5);
    }
    ui.target.replaceChildren(
      "Below each head: what it adds to the logit of ", make("code", { className: "play-word" }, name), " after ",
        make("code", { className: "play-word" }, result.names[i]),
      ` (${i}), minus its mean over all tokens. The largest numbers are underlined. The embedding alone adds ${signed(direct)}. `,
      "Click a head to see where it attends, or a prediction to see another token. Keys: arrows choose a head, x turns it off or on.",
    );
    const loss = i < result.losses.length ? ` Loss ${nats(result.losses[i])} nats${changed ? `, intact ${nats(result.intactLosses[i])}` : ""}.` : "";
    ui.loss.textContent = next === null ? "The text ends here." : loss;
    drawMark();
  }

  // A bar for each token with a loss, in front of a line where the intact model's would end.
  function drawLosses() {
    const { losses, intactLosses } = result, most = Math.max(LARGEST_LOSS, ...losses, ...intactLosses);
    ui.bars = Array.from(losses, (loss, i) =>
      make("i", { style: `--now: ${loss / most}; --was: ${edited() ? intactLosses[i] / most : -1}`, data: { i } }));
    ui.chart.replaceChildren(...ui.bars);
    ui.tokens.forEach((token, i) => token.style.setProperty("--l", i ? Math.min(1, losses[i - 1] / LARGEST_LOSS).toFixed(3) : 0));
    ui.most.textContent = `${most.toFixed(0)} nats`;
  }

  function drawMark() { // the token that the prediction is about, in the chart
    const i = Math.min(at(), result.n - 2);
    ui.bars.forEach((bar, k) => bar.classList.toggle("play-mark", k === i));
    ui.lossOf.textContent = i < 0 ? "" : `${result.names[i + 1]} (${i + 1}): ${nats(result.losses[i])} nats${edited() ? `, intact ${nats(result.intactLosses[i])}` : ""}`;
  }

  function drawSummary() {
    const mean = (values, places) => places.reduce((sum, i) => sum + values[i], 0) / places.length;
    const all = Array.from(result.losses.keys()), back = comesBack();
    if (!all.length) return ui.summary.replaceChildren();
    const line = (name, places) => {
      const [now, was] = [mean(result.losses, places), mean(result.intactLosses, places)];
      return make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, nats(now)),
        ...(edited() ? [make("td", { className: "play-was" }, nats(was)),
          make("td", {}, `${now > was ? "+" : ""}${nats(now - was)}`)] : []));
    };
    const heads = ["mean loss, nats per token", edited() ? "now" : "", ...(edited() ? ["intact", "change"] : [])];
    ui.summary.replaceChildren(
      make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)))),
      make("tbody", {}, line(all.length > 1 ? `all ${all.length} tokens` : "the only token", all),
        ...(back.length ? [line(`${back.length} that followed the same token before`, back)] : [])),
    );
  }

  function drawSwitches() {
    const { edits } = state;
    for (const side of "QKV") ui[side].checked = !edits.cut.includes(side), ui[side].disabled = edits.frozen && side !== "V";
    ui.frozen.checked = edits.frozen, ui.mean.value = edits.mean ? "mean" : "", ui.from.value = edits.from;
    ui.weighted.checked = state.weighted;
    ui.reset.disabled = !edited() && !edits.frozen;
    const off = edits.off.map(headName).sort((a, b) => a.localeCompare(b, "en", { numeric: true })), sides = { Q: "queries", K: "keys", V: "values" };
    const parts = [];
    if (off.length) parts.push(`off: ${off.join(", ")}${edits.from ? ` (first-layer heads only for the ${sides[edits.from]} of the second layer)` : ""}`);
    if (edits.cut) parts.push(`${Array.from(edits.cut, (side) => sides[side]).join(" and ")} of the second layer read the embedding alone`);
    if (edits.frozen) parts.push("patterns frozen");
    ui.edits.textContent = parts.length ? parts.join("; ") : "all heads on";
  }

  // ---- the page ----------------------------------------------------------------------------------------------------------------

  // A mouse on what stands for a token shows what is predicted after it; a click chooses it.
  function points(box) {
    const place = (event) => event.target.closest?.("[data-i]")?.dataset.i;
    box.addEventListener("pointermove", (event) => event.pointerType === "mouse" && place(event) && hover(Number(place(event))));
    box.addEventListener("pointerleave", () => hover(null));
    box.addEventListener("click", (event) => place(event) && select(Number(place(event))));
  }

  // Fill in the page's own markup (templates/play.md).
  function build() {
    app.hidden = false;
    ui.box.addEventListener("input", () => {
      state.text = ui.typed = ui.box.value, state.target = undefined, state.at = Infinity;
      say("");
      ui.note.textContent = "";
      run();
    });
    const button = (text, onclick, rest = {}) => make("button", { type: "button", onclick, ...rest }, text);
    ui.texts.prepend(...facts.texts.map((text, i) => button(text.label, () => prepared(i), { data: { text: i } })));
    ui.back.onclick = () => set({ ...state, text: ui.typed, at: Infinity, edits: {} });
    const listed = [...root.querySelectorAll("li button[data-do]")]; // none on the twin's page
    ui.steps.hidden = !listed.length;
    ui.steps.append(...listed.map((step) => button(`${step.dataset.step}. ${step.textContent}`, () => does(step))));
    for (const step of listed) step.onclick = () => does(step);

    ui.arcs = svg("svg", { class: "play-arcs", "aria-hidden": "true" });
    const strip = heads.strip(() => state.at, (i) => (select(i), ui.tokens[state.at].scrollIntoView({ block: "nearest" })), "play");
    ui.strip.replaceWith(strip), ui.strip = strip;
    points(ui.strip), points(ui.chart);

    ui.tiles = [0, 1].flatMap((layer) => Array.from({ length: facts.n_heads }, (_, head) => tile(layer, head)));
    app.querySelectorAll(".play-tiles").forEach((box, layer) => box.append(...ui.tiles.filter((tile) => tile.layer === layer).map((tile) => tile.box)));
    for (const all of app.querySelectorAll("[data-layer]")) all.onclick = () => wholeLayer(Number(all.dataset.layer));
    for (const side of "QKV") ui[side].onchange = () => edit({ cut: [..."QKV"].filter((each) => !ui[each].checked).join("") });
    ui.frozen.onchange = () => edit({ frozen: ui.frozen.checked });
    ui.mean.onchange = () => edit({ mean: ui.mean.value === "mean" });
    ui.from.onchange = () => edit({ from: ui.from.value });
    ui.weighted.onchange = () => (state.weighted = ui.weighted.checked, draw());
    ui.reset.onclick = () => (state.edits = none(), edit({}));
    ui.reset.after(heads.link("Link to this", address));
    ui.pattern = heads.pattern(select, "play", hover), ui.patternBefore = heads.pattern(select, "play", hover);
    ui.after.append(ui.pattern.square), ui.before.append(ui.patternBefore.square);

    heads.belowHeader(root, "--play-top"); // on a phone the line of attention stays in view
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (result && entry.contentRect.width !== width) drawArc(at(), lastTime(at()));
      width = entry.contentRect.width;
    }).observe(root);
  }

  function tile(layer, head) {
    const name = headName([layer, head]), role = facts.roles[name];
    const canvas = make("canvas", { "aria-hidden": "true" }), adds = make("span", { className: "play-adds" });
    const pick = make("button", { type: "button", className: "play-pick", role: "radio", onclick: () => chooseHead(layer, head),
      title: `Head ${name}: ${facts.scores[layer][head]}` },
      canvas, make("span", { className: "play-name" }, aloud("Head "), name, aloud(" ")), ...(role ? [make("span", { className: "play-role", data: { role } }, role.replace("without", "no").split(/-| head/)[0])] : []), adds);
    const here = layer * facts.n_heads + head, picks = () => ui.tiles.map((tile) => tile.pick); // the first layer is above
    heads.moves(pick, picks, here, -facts.n_heads, (other) => chooseHead(ui.tiles[other].layer, ui.tiles[other].head));
    pick.addEventListener("keydown", (event) => event.key === "x" && toggle(layer, head));
    const power = make("button", { type: "button", className: "play-power", onclick: () => toggle(layer, head) }, aloud(`Head ${name} `), "on");
    return { layer, head, canvas, adds, pick, power, box: make("div", { className: "play-tile" }, pick, power) };
  }

  function chooseHead(layer, head) {
    state.head = [layer, head];
    drawHeads();
    drawAttention();
  }

  function wholeLayer(layer) {
    const rest = state.edits.off.filter(([l]) => l !== layer), all = Array.from({ length: facts.n_heads }, (_, head) => [layer, head]);
    edit({ off: all.every(([l, h]) => isOff(l, h)) ? rest : [...rest, ...all] });
  }

  // ---- prepared texts, steps, links ------------------------------------------------------------------------------------------

  function randomTokens({ length, copies, words }) {
    const drawn = new Set();
    while (drawn.size < length) drawn.add(words[Math.floor(Math.random() * words.length)]);
    return Array(copies).fill([...drawn].join("")).join("");
  }

  // A prepared text, with the switches of `edits` and no others.
  function prepared(i, edits = {}) {
    const { random, text, note, head, at } = facts.texts[i];
    ui.note.textContent = note;
    return set({ text: random ? randomTokens(random) : text, head, at, edits });
  }

  function set({ text, head, at, edits }) {
    ui.box.value = text;
    ui.back.hidden = ui.typed === undefined || ui.typed === text;
    Object.assign(state, { text, head, at, target: undefined, edits: { ...none(), ...edits } });
    root.classList.toggle("play-edited", Boolean(edited()));
    drawSwitches();
    return run();
  }

  // A step of the instructions, from the first text. Its sentence appears above the tokens, and these come into view.
  function does(button) {
    prepared(0, JSON.parse(button.dataset.do));
    ui.note.replaceChildren(button.closest("li").firstChild.cloneNode(true));
    ui.note.scrollIntoView({ block: "nearest" });
    if (ui.where.getBoundingClientRect().bottom > innerHeight) ui.note.scrollIntoView({ block: "start" });
  }

  function address() {
    const { edits } = state, values = { text: state.text, head: headName(state.head), at: String(state.at) };
    if (edits.off.length) values.off = edits.off.map(headName).join(" ");
    for (const key of ["cut", "from"]) if (edits[key]) values[key] = edits[key];
    for (const key of ["mean", "frozen"]) if (edits[key]) values[key] = "1";
    if (state.weighted) values.weighted = "1";
    return new URLSearchParams(values);
  }

  function fromAddress() {
    const values = new URLSearchParams(location.hash.slice(1));
    const pair = (name) => {
      const found = /^([01])\.(\d+)$/.exec(name);
      return found && Number(found[2]) < facts.n_heads ? [Number(found[1]), Number(found[2])] : null;
    };
    state.weighted = values.has("weighted");
    if (!values.has("text")) return prepared(0);
    const off = [...new Set((values.get("off") ?? "").split(" "))].map(pair).filter(Boolean), from = values.get("from") ?? "";
    const cut = [..."QKV"].filter((side) => (values.get("cut") ?? "").includes(side)).join("");
    const edits = { off, cut, from: /^[QKV]$/.test(from) ? from : "", mean: values.has("mean"), frozen: values.has("frozen") };
    const head = pair(values.get("head")) ?? facts.texts[0].head, at = Math.max(0, parseInt(values.get("at")) || 0);
    const text = values.get("text"), known = facts.texts.find((each) => each.text === text);
    ui.note.textContent = known?.note ?? "";
    if (!known) ui.typed = text;
    return set({ text, head, at, edits });
  }

  // ---- from here ---------------------------------------------------------------------------------------------------------------

  async function open() {
    const began = performance.now(), twin = location.search === "?planted", file = twin ? "planted.js" : "model.js";
    root.querySelector(`.play-models a[href="?${twin ? "planted" : ""}"]`).setAttribute("aria-current", "page");
    if (twin) for (const element of root.querySelectorAll("h2, h2 ~ *")) element.remove(); // the steps are the other model's
    say("Loading the model …");
    let model, memory;
    try {
      const { facts, bytes } = await dom.load(file, folder);
      model = facts;
      ask = dom.worker([playTokenizer, forwardMemory, forwardPlaces, forwardPass, playEngine], playServer);
      memory = await ask("load", { model, bytes: new Uint8Array(bytes) });
    } catch (error) {
      return say(error.message, true);
    }
    facts = { ...model.facts, n_heads: model.config.n_heads, n_ctx: model.config.n_ctx };
    root.dataset.load = String(Math.round(performance.now() - began));
    root.dataset.memory = memory.bytes;
    build();
    say("");
    app.inert = true;
    await fromAddress();
    app.inert = false;
    for (const button of root.querySelectorAll("button")) if (button.dataset.do) button.disabled = false;
    root.dataset.ready = "yes";
    heads.linked(fromAddress);
    // The text stays when the model is switched.
    for (const link of root.querySelector(".play-models").querySelectorAll("a")) link.addEventListener("click", () => (link.hash = String(address())));
    // For the console: `await play.run("some text", { off: [[0, 6]] })` has patterns, losses and logits.
    window.play = { run: (text, edits = {}) => ask("run", { text, edits, logits: true }), encode: (texts) => ask("encode", { texts }) };
  }

  open();
})();
