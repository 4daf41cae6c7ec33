// The picture of the stage: a text with what one head of each layer does in it. Below the tokens, arcs of a first-layer
// head and the notes that it leaves; above, arcs of a second-layer head, or the scores that make them; beside, the next
// token. A view holds the numbers (pages/follow.py, or `view` in full.js): names, at (the token that asks), followed
// (the one that came after it last time, or -1), answer, low and high (heads), back (pattern of the low one), row
// (attention of the high one from `at`), parts of its scores, next (tokens with probabilities), adds, paths.
const picture = (() => {
  "use strict";
  const { make, svg, set, clamp, signed, percent } = dom;
  const WIDE = 600, BESIDE = 860; // pixels from which on tokens stand side by side, and the next token beside them
  const LONG = 38; // tokens from which on it stands below them
  const code = (token) => make("code", { className: "token", textContent: token });
  /** Tagged template: strings, and elements or tokens (each in a list of its own). */
  const say = (strings, ...values) => strings.flatMap((string, i) => {
    const text = string.replace(/\s+/g, " "), value = values[i];
    if (i >= values.length) return [text];
    return [text, Array.isArray(value) ? code(value[0]) : value instanceof Node ? value : String(value)];
  });
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const above = (values, i) => values[i] - mean(values);

  /** What the score of key i is made of, above the mean of all keys, which softmax does not see. */
  const score = (view, i) => Object.values(view.parts).reduce((sum, part) => sum + above(part, i), 0);
  /** The tokens that the low head mostly attended to from token i: its note there. */
  const note = (view, i) => view.names.filter((_, j) => i > 0 && view.back?.[i][j] >= 0.3).join(" ");
  /** The attention to token i if all keys were made of `part` alone. */
  function alone(part, i) {
    const most = Math.max(...part), all = part.map((x) => Math.exp(x - most));
    return all[i] / all.reduce((a, b) => a + b, 0);
  }

  /** A list of bars, from zero to the right or to the left: [words, value, color, note]. */
  function bars(rows, format = signed) {
    const most = Math.max(...rows.map(([, x]) => Math.abs(x))), low = Math.min(0, ...rows.map(([, x]) => x)) / most;
    const zero = (-100 * low) / (1 - low), unit = 100 - zero;
    return make("ul", { className: "tc-bars" }, ...rows.map(([words, x, color, small = ""]) => {
      const size = (unit * Math.abs(x)) / most, left = x < 0 ? zero - size : zero;
      const style = `left: ${left.toFixed(1)}%; width: ${size.toFixed(1)}%; background: var(--s-${color})`;
      const bar = make("i", { style });
      return make("li", {}, make("span", {}, ...[words].flat()), make("b", {}, bar), make("em", {}, format(x), small));
    }));
  }

  /** The likeliest next tokens and the answer; `before`: the view of the intact model. */
  function next(view, before = view) {
    const listed = [...view.next].sort((a, b) => b[1] - a[1]), known = view.followed >= 0, best = listed.slice(0, 5);
    if (known && !best.some(([name]) => name === view.answer)) best[4] = listed.find(([name]) => name === view.answer);
    const was = before.next.find(([name]) => name === view.answer)?.[1];
    return best.map(([name, p]) => {
      const answer = known && name === view.answer, changed = answer && was !== undefined && Math.abs(was - p) >= 0.005;
      const bar = make("i", { hidden: Number.isNaN(p), style: `width: ${(100 * (p || 0)).toFixed(1)}%` });
      const mark = changed ? [make("u", { style: `left: ${(100 * was).toFixed(1)}%`,
        title: `intact ${percent(was)}` })] : [];
      const small = changed ? [make("small", {}, ` was ${percent(was)}`)] : [];
      return make("li", { className: answer ? "answer" : "" }, code(name), make("b", {}, bar, ...mark),
        make("em", {}, Number.isNaN(p) ? "not in the best 5" : percent(p), ...small));
    });
  }

  // ---- where everything is ---------------------------------------------------------------------------------------
  /** `place(i, depth)`: a point above (depth > 0) or below a token; on a narrow page, to its right or left. */
  function geometry(names, width, dense) {
    const sizes = names.map((name) => [...name].length), n = names.length;
    if (width < WIDE - 1) {
      const [gap, font] = dense ? [13, 11.5] : [19.5, 13], y = (i) => 14 + gap * i, left = 72;
      const right = left + 12 + 8 * Math.min(14, Math.max(...sizes));
      return { wide: false, width, height: gap * n + 8, room: width - right - 70, below: 30, start: 6, font,
        place: (i, depth) => [depth > 0 ? right + depth : left + depth, y(i)], token: (i) => [right, y(i) + 4],
        box: (i) => ({ x: left, y: y(i) - gap / 2, width: right - left + 4, height: gap }), slot: (_) => Infinity };
    }
    const letter = n > 28 ? 7 : n > 22 ? 8 : 8.6, pad = n > 34 ? 3 : n > 28 ? 6 : 12, base = 176;
    const least = sizes.map((size) => Math.max(8 + pad, letter * size + pad));
    const spread = Math.max(0, width - 8 - least.reduce((a, b) => a + b)) / n, X = [], W = [];
    let x = 4;
    for (const size of least) X.push(x + (size + spread) / 2), W.push(size + spread), (x += size + spread);
    return { wide: true, width: Math.max(width, x + 4), height: 298, room: 104, below: 32, start: 20,
      font: letter + (n > 28 ? 5.2 : 6),
      place: (i, depth) => [X[i], base - depth + (depth > 0 ? 0 : 4)], token: (i) => [X[i], base + 5],
      box: (i) => ({ x: X[i] - W[i] / 2, y: base - 18, width: W[i], height: 30 }), slot: (i) => W[i] };
  }

  /** An arc from token i to token k, on the side and as far out as `depth` says. */
  function arc(G, i, k, depth) {
    const near = depth > 0 ? G.start : -8, [out, back] = [G.place(i, depth), G.place(k, depth)];
    const [axis, wide] = G.wide ? [0, 9] : [1, 7];
    if (i === k) (out[axis] += wide), (back[axis] -= wide);
    return `M${G.place(i, near)} C${out} ${back} ${G.place(k, near)}`;
  }

  // ---- the picture ------------------------------------------------------------------------------------------------
  /** Put a picture into `host`. `choose(i)`: a token is chosen; `cut(what)`: "low", "high" or "notes" is clicked. */
  function create(host, { choose = null, cut = null } = {}) {
    const group = (name) => svg("g", { class: `tc-${name}`, ...(name === "tokens" ? {} : { "aria-hidden": "true" }) });
    const layers = ["low", "chips", "high", "scores", "tokens"].map(group), [low, chips, high, scores, tokens] = layers;
    const root = svg("svg", { class: "tc-arcs" }, ...layers), labels = make("div", { className: "tc-labels" });
    const scroll = make("div", { className: "tc-scroll" }, make("div", { className: "tc-sheet" }, root, labels));
    const title = make("p", { className: "tc-panel-title" }, "The model’s next token");
    const list = make("ul", { className: "tc-next" }), panel = make("div", { className: "tc-panel" }, title, list);
    let G, drawn = "", known = new Map(), last = null, width = 0;
    host.replaceChildren(scroll, panel);
    if (choose) {
      set(tokens, { role: "listbox", tabindex: 0, "aria-label": "Tokens: arrow keys choose the one that asks" });
      tokens.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -1e6, End: 1e6 }[event.key];
        if (!by) return;
        event.preventDefault(), event.stopPropagation();
        choose(clamp(last.view.at + by, 0, last.view.names.length - 1));
      });
    }
    if (cut) low.addEventListener("click", () => cut("notes")), high.addEventListener("click", () => cut("high"));

    /** The element of a layer called `key`, made when it is asked for the first time; those not asked for fade away. */
    function element(layer, key, name, attributes, opacity = 1) {
      const found = known.get(key) ?? svg(name);
      if (!known.has(key)) known.set(key, found), layer.append(found);
      found.asked = true;
      found.style.opacity = String(opacity);
      return set(found, attributes);
    }

    function build({ names, then }) {
      const whole = host.clientWidth || WIDE;
      host.classList.toggle("tc-tall", whole < WIDE);
      host.classList.toggle("tc-below", whole < BESIDE || names.length > LONG);
      const wide = Math.floor(scroll.clientWidth || WIDE), dense = Boolean(then) && names.length > 28; // for the slider
      const key = JSON.stringify([names, wide, dense]);
      if (key === drawn) return;
      drawn = key, G = geometry(names, wide, dense), known = new Map();
      for (const layer of layers) layer.replaceChildren();
      set(root, { viewBox: `0 0 ${G.width} ${G.height}`, width: G.width, height: G.height });
      names.forEach((name, i) => {
        const [x, y] = G.token(i), anchor = G.wide ? "middle" : "end";
        const text = svg("text", { x, y, "text-anchor": anchor, "font-size": G.font }, name);
        const box = svg("rect", { ...G.box(i), rx: 5 });
        const option = svg("g", choose ? { role: "option", id: `tc-token-${i}` } : {}, box, text);
        if (choose) option.addEventListener("click", () => choose(i));
        tokens.append(option);
      });
    }

    /** Draw a view at a step: 0 is the whole picture, 1 to 8 are those of the explanation. */
    function show(view, { step = 0, before = view, words = {} } = {}) {
      last = { view, step, before, words };
      build(view);
      for (const each of known.values()) each.asked = false;
      const { at, followed } = view, hot = followed >= 0 ? followed : null;
      if (choose) tokens.setAttribute("aria-activedescendant", `tc-token-${at}`);
      else set(root, { role: "img", "aria-label": describe(view) });
      root.classList.toggle("one", Boolean(view.one)), root.classList.toggle("off", Boolean(view.highOff));
      drawTokens(view, step, hot);
      if (view.back && step !== 1 && !view.lowOff) drawLow(view, step, hot), view.noted && drawNotes(view, step, hot);
      if (step === 4 && view.parts) drawScores(view, before.parts ? before : view, hot);
      high.querySelector(".moving")?.remove();
      if (step === 0 || step > 4) drawHigh(view, step, hot);
      for (const each of known.values()) if (!each.asked) each.style.opacity = "0";
      list.replaceChildren(...next(view, before));
      panel.classList.toggle("tc-lit", step === 7);
      const seen = `${drawn}${at}`, into = (axis, size) => { // the token that asks comes into view, and the found one
        const asks = G.place(at, 0)[axis], found = G.place(hot ?? at, 0)[axis] - (axis ? 24 : 50);
        return clamp(Math.min(asks - 0.8 * size, found), asks - size + (axis ? 20 : 40), asks);
      };
      if (scroll.dataset.seen !== seen) scroll.scrollTo({ left: into(0, scroll.clientWidth),
        top: G.wide ? 0 : into(1, scroll.clientHeight) });
      scroll.dataset.seen = seen;
      scroll.classList.toggle("tc-down", scroll.scrollHeight - scroll.clientHeight > 4);
      tell(view, step, words, hot);
    }

    /** The tokens that matter, and, at the first step, the run that occurs twice. */
    function drawTokens({ at, names }, step, hot) {
      let run = 0;
      while (hot !== null && hot - 1 - run >= 0 && names[at - run] === names[hot - 1 - run] && at - run >= hot) run++;
      [...tokens.children].forEach((token, i) => {
        const again = (i > at - run && i <= at) || (hot !== null && i < hot && i >= hot - run);
        const on = { key: i === at || i === hot || i === hot - 1, asks: i === at, found: i === hot && step !== 1,
          ahead: i > at, again: again && step === 1 };
        token.setAttribute("class", Object.keys(on).filter((name) => on[name]).join(" "));
        if (choose) token.setAttribute("aria-selected", i === at);
      });
    }

    /** Where the low head looks. */
    function drawLow(view, step, hot) {
      view.names.forEach((_, i) => {
        for (let k = 0; k <= i; k++) {
          const weight = view.back[i][k], main = i === hot && k === hot - 1 && view.noted;
          if (weight < 0.1 || (i === k && (i === 0 || weight < 0.3))) continue;
          const depth = -G.below - 8 - (i - k > 1 ? Math.min(20, 3 * (i - k)) : 0);
          const opacity = step === 2 ? 0.9 : main ? (view.cut ? 0.3 : 1) : view.cut ? 0.2 : step > 3 ? 0.25 : 0.42;
          const path = element(low, `low ${i} ${k}`, "path", { d: arc(G, i, k, depth) }, opacity);
          path.style.strokeWidth = `${main ? 4.5 * weight : 1 + 1.4 * weight}px`;
        }
      });
    }

    /** What it notes: at all tokens, or at the one that is found. */
    function drawNotes(view, step, hot) {
      const every = step === 3 || step === 8, shown = [...view.names.keys()].filter((i) => every ||
        (step > 3 && i === hot));
      const size = (i) => (G.wide ? 7 : 6.7) * [...note(view, i)].length + 8;
      const crowded = shown.length > 1 && shown.some((i) => size(i) + 2 > G.slot(i));
      for (const i of shown.filter((k) => note(view, k))) {
        const [x, y] = G.place(i, G.wide ? (crowded && i % 2 ? -75 : -58) : -34), wide = size(i);
        const left = G.wide ? x - wide / 2 : Math.max(1, x - wide);
        const chip = element(chips, `chip ${i}`, "g", { class: `${i === hot ? "hot" : ""} ${view.cut ? "cut" : ""}` });
        chip.replaceChildren(svg("rect", { x: left, y: y - 9, width: wide, height: 17, rx: 8 }),
          svg("text", { x: left + wide / 2, y: y + 4 }, note(view, i)));
      }
    }

    /** The scores of all keys, split into the note and the rest. */
    function drawScores(view, scale, hot) {
      const keys = [...view.names.keys()].slice(0, view.at + 1),
        most = Math.max(1, ...keys.map((i) => score(scale, i)));
      for (const i of keys) {
        const whole = Math.max(0, score(view, i)), of = Math.min(whole, Math.max(0, above(view.parts.note, i)));
        const at = (part) => G.start + (G.room / most) * part, [x, y] = G.place(i, at(whole) + 6);
        for (const [kind, from, to] of [["rest", at(0), at(whole - of)], ["note", at(whole - of), at(whole)]]) {
          const [[x0, y0], [x1, y1]] = [G.place(i, Number(from)), G.place(i, Number(to))];
          const wide = { x: x0 - 8, y: y1, width: 16, height: y0 - y1 }, tall = { x: x0, y: y0 - 6, width: x1 - x0,
            height: 12 };
          element(scores, `${kind} ${i}`, "rect", { class: kind, ...(G.wide ? wide : tall) });
        }
        const number = { x, y: G.wide ? y : y + 4, class: i === hot ? "hot" : "" }, value = score(view, i);
        element(scores, `score ${i}`, "text", number).textContent = value > 0.5 ? signed(value) : "";
      }
    }

    /** How far out the arc to token k is. */
    function depth(at, k) {
      const axis = G.wide ? 0 : 1, apart = Math.abs(G.place(at, 1)[axis] - G.place(k, 1)[axis]);
      return G.start + (G.wide ? Math.min(146, 34 + 0.3 * apart) : Math.min(1.3 * G.room, 22 + 0.5 * apart));
    }

    /** Where the high head attends from the token that asks; at the sixth step, what it copies. */
    function drawHigh({ at, row, answer }, step, hot) {
      for (let k = 0; k <= at; k++) {
        if (row[k] < 0.015) continue;
        const d = arc(G, at, k, depth(at, k)), opacity = k === hot || (hot === null && row[k] > 0.3) ? 1 : 0.5;
        const path = element(high, `high ${at} ${k}`, "path", { d }, opacity), [x, y] = G.place(k, G.start + 4);
        path.style.strokeWidth = `${Math.max(1.2, (G.wide ? 8 : 7) * row[k])}px`;
        const place = G.wide ? { x: x < 50 ? x + 44 : x - 6 - 4 * row[k], y } : { x: x + 12, y: y - 5 - 3 * row[k] };
        const hidden = G.slot(k) < 36 && Math.max(row[k - 1] ?? 0, row[k + 1] ?? 0) > row[k]; // by a larger neighbor's
        if (row[k] >= 0.1 && !hidden) element(high, `share ${k}`, "text", place).textContent = percent(row[k]);
      }
      if (step !== 6 || hot === null) return;
      const size = 8 * [...answer].length + 12,
        back = svg("rect", { x: -size / 2, y: -10, width: size, height: 20, rx: 10 });
      const chip = svg("g", { class: "moving" }, back, svg("text", { y: 4 }, answer));
      chip.style.offsetPath = `path("${arc(G, hot, at, depth(at, hot))}")`;
      high.append(chip);
    }

    /** The words at the arcs, with scissors. */
    function tell(view, step, words, hot) {
      const { at, row } = view, keys = [...row.keys()].filter((k) => k === (hot ?? 0) || row[k] >= 0.015);
      const tops = keys.map((k) => G.place(k, G.start + 0.75 * (depth(at, k) - G.start))[1]), middle = (i, k) =>
        (G.place(i, 0)[0] + G.place(k, 0)[0]) / 2;
      const places = {
        high: step === 4 ? [G.width, 0] : [middle(at, hot ?? 0), Math.max(0, Math.min(...tops) - 27)],
        low: [hot === null ? G.width / 2 : middle(hot, Math.max(0, hot - 1)), step === 3 || step === 8 ? 276 :
          step > 3 ? 260 : 236], };
      const into = G.wide ? labels : make("div", { className: "tc-label-phone" });
      labels.replaceChildren(...(G.wide ? [] : [into]));
      for (const what of ["high", "low"].filter((each) => words[each])) {
        const box = make("div", { className: `tc-label tc-label-${what}` }, ...words[what]),
          off = Boolean(view[`${what}Off`]);
        const names = { ariaLabel: off ? `Put head ${view[what]} back` : `Cut head ${view[what]} out`,
          ariaPressed: String(off), disabled: Boolean(view.then) };
        if (cut && !view.one) {
          box.append(make("button", { type: "button", className: "tc-cut", onclick: () => cut(what), ...names },
            off ? "↺" : "✂"));
        }
        into.append(box);
        const [x, y] = places[what], half = box.offsetWidth / 2 + 2, from = scroll.scrollLeft; // within what is seen
        box.style.left = `${clamp(x, from + half, from + scroll.clientWidth - half)}px`, box.style.top = `${y}px`;
      }
    }

    /** What those hear who do not see the picture. */
    function describe({ names, at, followed, high: head, row, answer, next: guesses }) {
      const best = [...guesses].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([name, p]) => `${name} ${percent(p)}`);
      const finds = `From the last token, head ${head} puts ${percent(row[followed])} of its attention on ${answer}`;
      const found = followed < 0 ? "" : `${finds}, which followed ${names[at]} before. `;
      return `The tokens ${names.slice(1).join(" ")}. ${found}The model’s next token: ${best.join(", ")}.`;
    }

    function resized() {
      if (!last || !host.clientWidth || host.clientWidth === width) return;
      width = host.clientWidth;
      show(last.view, last);
    }
    new ResizeObserver(resized).observe(host);
    return { show };
  }
  return Object.freeze({ create, say, bars, score, above, alone, code });
})();
