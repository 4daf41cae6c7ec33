// Snapshots of training (book_build/pages/film.py) on the stage: what the model did, at each of them, with one of two
// texts, and a slider through them. full.js loads this when a reader asks for it.
const film = (() => {
  "use strict";
  const { make, svg, percent } = dom, EACH = 500; // milliseconds of a snapshot that plays
  const still = matchMedia("(prefers-reduced-motion: reduce)");
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
    return { show, stop, play: () => still.matches || play() };
  }
  return Object.freeze({ load, nearest, pattern, view, timeline, short });
})();
