// Snapshots of training (book_build/pages/engine.py) on the stage: what the model did, at each of them, with one of two
// texts, and a slider through them.
const film = (() => {
  "use strict";
  const { make, svg, percent } = dom, EACH = 500; // milliseconds of a snapshot that plays
  const short = (t) => (t >= 1e6 ? `${+(t / 1e6).toPrecision(3)}M` : t >= 1e3 ? `${Math.round(t / 1e3)}K` : `${t}`);

  /** Load a film: facts, with the arrays of each text. */
  async function load(file, base) {
    const { facts, bytes } = await dom.load(file, base), { texts, tokens, n_heads, n_layers, top } = facts;
    let from = 0;
    function take(name, Type, size) {
      for (const text of texts) {
        text[name] = new Type(bytes, from, tokens.length * size(text.ids.length));
        from += text[name].byteLength;
      }
    }
    take("best", Uint16Array, (n) => n * top);
    take("chance", Uint8Array, (n) => n * top);
    take("patterns", Uint8Array, (n) => (n_layers * n_heads * n * (n + 1)) / 2);
    return facts;
  }

  /** The snapshot that is nearest to a number of tokens, such as "1.4M". */
  function nearest({ tokens }, words) {
    const [, number, unit] = /^(\d+\.?\d*)([KM]?)$/i.exec(words) ?? [0, "1", "M"];
    const wanted = Number(number) * { "": 1, K: 1e3, M: 1e6 }[unit.toUpperCase()];
    const away = tokens.map((t) => Math.abs(t - wanted));
    return away.indexOf(Math.min(...away));
  }

  /** The attention of a head at snapshot s, as a function of destination and source, 0 to 255. */
  function pattern({ n_layers, n_heads }, { ids, patterns }, s, layer, head) {
    const size = (ids.length * (ids.length + 1)) / 2, from = ((s * n_layers + layer) * n_heads + head) * size;
    return (i, j) => patterns[from + (i * (i + 1)) / 2 + j];
  }

  /** The view of snapshot s for picture.js, from the token `at`; `low` and `high` are heads, as numbers. */
  function view(facts, text, s, { at, low, high }) {
    const { n_layers, n_heads, top, names: known } = facts, { names, ids } = text, last = n_layers - 1;
    const followed = heads.lastTime(ids, at), one = last === 0;
    const row = (layer, head, i) => {
      const of = pattern(facts, text, s, layer, head);
      return Array.from({ length: i + 1 }, (_, j) => of(i, j) / 255);
    };
    const seen = Array.from({ length: n_heads }, (_, h) => row(0, h, at)[followed] ?? 0);
    const h = one ? seen.indexOf(Math.max(...seen)) : high, from = (s * names.length + at) * top;
    const next = Array.from({ length: top }, (_, k) => [known[text.best[from + k]], text.chance[from + k] / 255]);
    const answer = names[followed] ?? next[0][0];
    if (!next.some(([name]) => name === answer)) next.push([answer, NaN]); // not recorded
    return { names, at, followed, answer, low: `0.${low}`, high: `${last}.${h}`, row: row(last, h, at), next,
      then: short(facts.tokens[s]), ...(one ? {} : { back: names.map((_, i) => row(0, low, i)) }) };
  }

  /** Fill `host` with curves and a slider along them, which calls `go(s)` with a snapshot. */
  function timeline(host, { tokens, curves }, go) {
    const last = tokens.length - 1, percents = (s) => `${(100 * s) / last}%`;
    const line = ({ values, color }) => svg("polyline", { points: values.map((y, s) => `${s},${1 - y}`).join(" "),
      style: `stroke: var(--s-${color})` });
    const dashed = ({ threshold, color }) => svg("line", { x1: 0, x2: last, y1: 1 - threshold, y2: 1 - threshold,
      style: `stroke: var(--s-${color})` });
    const chart = svg("svg", { viewBox: `0 0 ${last} 1`, preserveAspectRatio: "none", "aria-hidden": "true" },
      ...curves.map(dashed), ...curves.map(line));
    const values = curves.map(() => make("b")), cursor = make("i"), now = make("b");
    const key = curves.map(({ label, color }, k) => make("span", {}, make("i", { style:
      `background: var(--s-${color})` }), `${label}: `, values[k]));
    const ticks = tokens.flatMap((t, s) => (s % 6 ? [] : [make("span", { style: `left: ${percents(s)}` }, short(t))]));
    const slider = make("input", { type: "range", min: 0, max: last, step: 1, ariaLabel: "Tokens read in training",
      oninput: () => (stop(), go(Number(slider.value))) });
    const button = make("button", { type: "button", onclick: () => (timer ? stop() : play()) });
    let timer = 0;
    function stop() {
      clearTimeout(timer);
      timer = 0;
      button.textContent = "▶ Play";
    }
    function play(from = slider.value === String(last) ? 0 : Number(slider.value)) {
      button.textContent = "❚❚ Pause";
      timer = setTimeout(() => (from + 1 < last ? play(from + 1) : stop(), go(Math.min(last, from + 1))), EACH);
    }
    const flags = curves.flatMap(({ values: all, threshold, role }) => {
      const s = all.findLastIndex((y) => y < threshold) + 1; // it stays above it
      return s > last ? [] : [make("button", { type: "button", onclick: () => (stop(), go(s)) },
        `${short(tokens[s])}: ${role}`)];
    });
    function show(s) {
      slider.value = String(s), slider.ariaValueText = `${short(tokens[s])} tokens`;
      now.textContent = `${short(tokens[s])} of ${short(tokens[last])} tokens read`;
      cursor.style.left = percents(s);
      values.forEach((each, k) => (each.textContent = percent(curves[k].values[s])));
    }
    stop();
    host.replaceChildren(make("div", { className: "tc-row" }, button, now, ...flags),
      make("p", { className: "tc-row tc-key" }, ...key), make("div", { className: "tc-chart" }, chart, cursor), slider,
      make("div", { className: "tc-ticks", ariaHidden: "true" }, ...ticks));
    return { show, stop, play: () => matchMedia("(prefers-reduced-motion: reduce)").matches || play() };
  }

  /** The films' side of full.js. `state`: what its page shows; `run()` shows it; `known()`: is its text prepared? */
  function door(ui, state, { base, known, run, status }) {
    const reels = {};
    let reel = null, line = null; // the film of the model on the stage, and its slider
    const taken = () => (!reel ? -1 : state.ids ? 1 : reel.texts[0].text === state.text ? 0 : -1);
    const text = () => reel.texts[taken()], shown = () => Math.min(state.moment, reel.tokens.length - 1);
    const past = () => taken() >= 0 && state.moment < reel.tokens.length - 1;
    const pick = (k) => ({ text: reel.texts[k].text, ids: k ? reel.texts[k].ids : null, at: reel.texts[k].place });

    /** Open the slider, or the one of the other model: perhaps at a moment, such as "1.4M", and with text k. */
    async function open(moment = null, k = 0) {
      const file = state.layers === 1 ? "film_one.js" : "film.js";
      try {
        reel = await (reels[file] ??= load(`play/${file}`, base));
      } catch (error) {
        return status(error.message, true);
      }
      if (moment) state.moment = nearest(reel, moment);
      ui.film.hidden = true;
      if (k || (taken() < 0 && (moment || known()))) Object.assign(state, pick(k));
      draw();
    }
    /** Show the film of the other model, when the stage does. */
    const follow = async () => reel && reel.n_layers !== state.layers && open();

    function draw() {
      if (!reel) return;
      const k = taken(), label = k < 0 ? "Snapshots were kept of two texts, not of yours." : "Text";
      const choices = heads.choices(label, reel.texts.map((each) => each.label), k, take);
      line?.stop();
      line = k < 0 ? null : timeline(ui.time, reel, goTo);
      ui.time.hidden = k < 0;
      ui.which.replaceChildren(choices, ...(k < 0 ? [] : [ui.then]));
      ui.text.value = state.text;
      moved();
    }
    function moved() {
      line?.show(shown());
      ui.then.textContent = past() ? "Snapshots show what the model did then; cuts are for the finished model." :
        "This is the finished model: cut what you like.";
    }
    function goTo(moment) {
      state.moment = moment;
      moved();
      run();
    }
    function take(k) {
      Object.assign(state, pick(k));
      if (!past()) state.moment = nearest(reel, "1M");
      draw();
      run();
    }
    ui.film.onclick = async () => {
      await open();
      if (!reel) return;
      state.moment = nearest(reel, "1M");
      moved();
      await run();
      line?.play();
      (line ? ui.time : ui.which).querySelector(line ? "input" : "button").focus({ preventScroll: true });
    };

    return { past, open, follow, draw, isOpen: () => Boolean(reel), length: () => text().ids.length,
      moment: () => (taken() < 0 ? "" : short(reel.tokens[shown()])),
      pattern: (layer, head) => (layer < reel.n_layers ? pattern(reel, text(), state.moment, layer, head) : null),
      view: () => view(reel, text(), state.moment, { at: Math.min(state.at, text().ids.length - 1),
        low: Number(state.low.slice(2)), high: Number(state.high.slice(2)) }) };
  }
  return Object.freeze({ door });
})();
