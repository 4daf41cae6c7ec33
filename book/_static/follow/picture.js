// The picture of the stage: a text with what one head of each layer does in it. Below the tokens, arcs of a first-layer
// head and the notes that it leaves; above, arcs of a second-layer head, or the scores that make them; beside, the next
// token. A view holds the numbers (pages/follow.py, or `view` in full.js): names, at (the token that asks), followed
// (the one that came after it last time, or -1), answer, low and high (heads), back (pattern of the low one), row
// (attention of the high one from `at`), parts of its scores, next (tokens with probabilities), adds, paths.
const picture = (() => {
  "use strict";
  const { make, svg, clamp, signed, percent } = dom;
  const WIDE = 600; // pixels from which on tokens stand side by side; below, one under the other
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
      const bar = make("i", { style: `width: ${(100 * p).toFixed(1)}%` });
      const mark = changed ? [make("u", { style: `left: ${(100 * was).toFixed(1)}%`,
        title: `intact ${percent(was)}` })] : [];
      const small = changed ? [make("small", {}, ` was ${percent(was)}`)] : [];
      return make("li", { className: answer ? "answer" : "" }, code(name), make("b", {}, bar, ...mark),
        make("em", {}, percent(p), ...small));
    });
  }

  // ---- where everything is ---------------------------------------------------------------------------------------

  /** `place(i, depth)`: a point above (depth > 0) or below a token; on a narrow page, to its right or left. */
  function geometry(names, width) {
    const sizes = names.map((name) => [...name].length), n = names.length;
    if (width < WIDE) {
      const gap = 19.5, longest = Math.min(14, Math.max(...sizes)), left = 72, right = left + 12 + 8 * longest;
      const y = (i) => 14 + gap * i, place = (i, depth) => [depth > 0 ? right + depth : left + depth, y(i)];
      return { wide: false, width, height: gap * n + 8, place, room: width - right - 70, below: 30, start: 6, font: 13,
        token: (i) => [right, y(i) + 4], box: (i) =>
          ({ x: left, y: y(i) - gap / 2, width: right - left + 4, height: gap }) };
    }
    const letter = n > 22 ? 8 : 8.6, least = sizes.map((size) => Math.max(20, letter * size + 12));
    const sum = least.reduce((a, b) => a + b), spread = Math.max(0, width - 8 - sum) / n, base = 176, X = [], W = [];
    let x = 4;
    for (const size of least) X.push(x + (size + spread) / 2), W.push(size + spread), (x += size + spread);
    return { wide: true, width: Math.max(width, x + 4), height: 298, room: 118, below: 32, start: 20, font: n > 22 ?
      13.5 : 14.5,
      place: (i, depth) => [X[i], base - depth + (depth > 0 ? 0 : 4)], token: (i) => [X[i], base + 1],
      box: (i) => ({ x: X[i] - W[i] / 2, y: base - 18, width: W[i], height: 30 }), slot: (i) => W[i] };
  }

  /** An arc from token i to token k, on the side and as far out as `depth` says. */
  function arc(G, i, k, depth) {
    const side = Math.sign(depth), from = G.place(i, side * (side > 0 ? G.start : 8)),
      to = G.place(k, side * (side > 0 ? G.start : 8));
    const [out, back] = [G.place(i, depth), G.place(k, depth)];
    if (i === k) for (const point of G.wide ? [[out, 0, 9], [back, 0, -9]] :
      [[out, 1, 7], [back, 1, -7]]) point[0][point[1]] += point[2];
    return `M${from} C${out} ${back} ${to}`;
  }

  // ---- the picture ------------------------------------------------------------------------------------------------

  /** Put a picture into `host`. `choose(i)`: a token is chosen; `cut(what)`: "low", "high" or "notes" is clicked. */
  function create(host, { choose = null, cut = null } = {}) {
    const root = svg("svg", { class: "tc-arcs" }), layers = ["low", "chips", "high", "scores", "tokens"].map((name) =>
      svg("g", { class: `tc-${name}`, ...(name === "tokens" ? {} : { "aria-hidden": "true" }) }));
    const [low, chips, high, scores, tokens] = layers, labels = make("div", { className: "tc-labels" });
    const scroll = make("div", { className: "tc-scroll" }, make("div", { className: "tc-sheet" }, root, labels));
    const list = make("ul", { className: "tc-next" });
    const panel = make("div", { className: "tc-panel" }, make("p", { className: "tc-panel-title" },
      "The model’s next token"), list);
    let G, drawn = "", known = new Map(), last = null;
    root.append(...layers);
    host.replaceChildren(scroll, panel);
    if (choose) {
      for (const [key, value] of Object.entries({ role: "listbox", tabindex: 0,
        "aria-label": "Tokens: arrow keys choose the one that asks" }))
        tokens.setAttribute(key, value);
      tokens.addEventListener("keydown", (event) => {
        const { at, names } = last.view, end = names.length - 1;
        const to = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0,
          End: end }[event.key];
        if (to === undefined) return;
        event.preventDefault(), event.stopPropagation();
        choose(clamp(to, 0, end));
      });
    }
    if (cut) low.addEventListener("click", () => cut("notes")), high.addEventListener("click", () => cut("high"));

    /** The element of a group called `key`, made when it is asked for the first time; those not asked for fade away. */
    function element(group, key, name, attributes) {
      const found = known.get(key) ?? svg(name, attributes);
      if (!known.has(key)) known.set(key, found), group.append(found);
      found.asked = true;
      return found;
    }

    function build(view) {
      const width = Math.floor(scroll.clientWidth || 640), key = JSON.stringify([view.names, width]);
      if (key === drawn) return;
      drawn = key, G = geometry(view.names, width), known = new Map();
      for (const layer of layers) layer.replaceChildren();
      for (const [name, value] of Object.entries({ viewBox: `0 0 ${G.width} ${G.height}`, width: G.width,
        height: G.height })) root.setAttribute(name, value);
      host.classList.toggle("tc-tall", !G.wide);
      view.names.forEach((name, i) => {
        const [x, y] = G.token(i), anchor = G.wide ? "middle" : "end";
        const text = svg("text", { x, y: G.wide ? y + 4 : y, "text-anchor": anchor, "font-size": G.font }, name);
        const option = svg("g", choose ? { role: "option", id: `tc-token-${i}` } : {},
          svg("rect", { ...G.box(i), rx: 5 }), text);
        if (choose) option.addEventListener("click", () => choose(i));
        tokens.append(option);
      });
    }

    /** Draw a view at a step: 0 is the whole picture, 1 to 8 are those of the explanation. */
    function show(view, { step = 0, before = view, words = {} } = {}) {
      last = { view, step, before, words };
      build(view);
      for (const each of known.values()) each.asked = false;
      const { at, followed, names } = view, hot = followed >= 0 ? followed : null, start = G.start;
      if (!choose) root.setAttribute("role", "img"), root.setAttribute("aria-label", describe(view));
      else tokens.setAttribute("aria-activedescendant", `tc-token-${at}`);

      // The run of tokens that occurs twice, and the tokens that matter.
      let run = 0;
      while (hot !== null && hot - 1 - run >= 0 && names[at - run] === names[hot - 1 - run] &&
        at - run > hot - 1) run++;
      [...tokens.children].forEach((token, i) => {
        const again = (i > at - run && i <= at) || (hot !== null && i < hot && i >= hot - run);
        const key = i === at || i === hot || i === hot - 1;
        token.setAttribute("class", [key ? "key" : "", i === at ? "asks" : "", i === hot && step !== 1 ? "found" : "",
          i > at ? "ahead" : "", again && step === 1 ? "again" : ""].join(" "));
        if (choose) token.setAttribute("aria-selected", i === at);
      });

      // The low head: where it looks, and what it notes.
      const looks = view.back && step !== 1 && !view.lowOff;
      for (let i = 0; looks && i < names.length; i++) for (let k = 0; k <= i; k++) {
        const weight = view.back[i][k];
        if (weight < 0.04 || (i === k && (i === 0 || weight < 0.3))) continue;
        const main = i === hot && k === hot - 1, depth = -(G.below + (i - k > 1 ? Math.min(20, 3 * (i - k)) : 0)) - 8;
        const path = element(low, `low ${i} ${k}`, "path", { d: arc(G, i, k, depth) });
        const faint = view.cut ? 0.2 : 0.42, strong = step === 2 ? 0.9 : main && view.noted ? 1 : faint;
        path.style.strokeWidth = `${(main && view.noted ? 4.5 : 1 + 1.4 * weight) * (main ? weight : 1)}px`;
        path.style.opacity = String(main && view.cut ? 0.3 : step > 3 && !main ? 0.25 : strong);
      }
      const noting = looks && view.noted, every = step === 3 || step === 8;
      const shown = !noting ? [] : names.map((_, i) => i).filter((i) => every || (step > 3 && i === hot));
      const crowded = G.wide && shown.length > 1 && names.some((_, i) => 7 * [...note(view, i)].length +
        10 > G.slot(i));
      for (const i of shown) {
        const text = note(view, i), size = (G.wide ? 7 : 6.7) * [...text].length + 8;
        if (!text) continue;
        const [x, y] = G.place(i, -(G.wide ? 58 + (crowded && i % 2 ? 17 : 0) : 34)), left = G.wide ? x - size / 2 :
          Math.max(1, x - size);
        const chip = element(chips, `chip ${i}`, "g", {});
        chip.replaceChildren(svg("rect", { x: left, y: y - 9, width: size, height: 17, rx: 8 }),
          svg("text", { x: left + size / 2, y: y + 4 }, text));
        chip.setAttribute("class", `${i === hot ? "hot" : ""} ${view.cut ? "cut" : ""}`), (chip.style.opacity = "1");
      }

      // The scores of all keys, split into the note and the rest.
      const scored = step === 4 && view.parts, scale = before.parts ? before : view;
      const most = scored ? Math.max(1, ...names.slice(0, at + 1).map((_, i) => score(scale, i))) : 1;
      for (let i = 0; scored && i <= at; i++) {
        const whole = Math.max(0, score(view, i)), of = Math.min(whole, Math.max(0, above(view.parts.note, i)));
        const unit = (G.wide ? 104 : G.room) / most, rest = start + unit * (whole - of), end = start + unit * whole;
        for (const [kind, from, to] of /** @type {[string, number, number][]} */ (
          [["rest", start, rest], ["note", rest, end]])) {
          const [x0, y0] = G.place(i, from), [x1, y1] = G.place(i, to), bar = element(scores, `${kind} ${i}`, "rect",
            { class: kind });
          const size = G.wide ? { x: x0 - 8, y: y1, width: 16, height: y0 - y1 } :
            { x: x0, y: y0 - 6, width: x1 - x0, height: 12 };
          for (const [name, value] of Object.entries(size)) bar.setAttribute(name, Math.max(0, value));
          bar.style.opacity = "1";
        }
        const [x, y] = G.place(i, end + (G.wide ? 6 : 5)), number = element(scores, `score ${i}`, "text",
          { x, y: G.wide ? y : y + 4 });
        for (const [name, value] of Object.entries({ x, y: G.wide ? y : y + 4 })) number.setAttribute(name, value);
        number.textContent = score(view, i) > 0.5 ? signed(score(view, i)) : "";
        number.setAttribute("class", i === hot ? "hot" : ""), (number.style.opacity = "1");
      }

      // The high head: where it attends from the token that asks.
      const attends = (step === 0 || step > 4) && view.row, far = (k) =>
        (G.wide ? Math.min(146, 34 + 0.3 * Math.abs(G.place(at, 1)[0] - G.place(k, 1)[0])) :
          Math.min(1.3 * G.room, 22 + 0.5 * Math.abs(G.place(at, 1)[1] - G.place(k, 1)[1])));
      const depth = (k) => start + far(k);
      for (let k = 0; attends && k <= at; k++) {
        const weight = view.row[k];
        if (weight < 0.015) continue;
        const path = element(high, `high ${at} ${k}`, "path", { d: arc(G, at, k, depth(k)) });
        path.style.strokeWidth = `${Math.max(1.2, (G.wide ? 8 : 7) * weight)}px`;
        path.style.opacity = k === hot || (hot === null && weight > 0.3) ? "1" : "0.5";
        if (weight < 0.08) continue;
        const [x, y] = G.place(k, start + 4), share = element(high, `share ${k}`, "text", G.wide ? { x, y } :
          { x: x + 12, y: y - 5 });
        if (G.wide) share.setAttribute("x", x < 50 ? x + 44 : x - 7);
        share.textContent = percent(weight), (share.style.opacity = "1");
      }
      root.classList.toggle("one", Boolean(view.one)), root.classList.toggle("off", Boolean(view.highOff));
      for (const [key, each] of known) if (!each.asked) each.style.opacity = "0", key.startsWith("share") &&
        (each.textContent = "");
      chips.querySelector(".moving")?.remove();
      if (step === 6 && hot !== null && attends) {
        const text = view.answer, size = 8 * [...text].length + 12, chip = svg("g", { class: "moving" },
          svg("rect", { x: -size / 2, y: -10, width: size, height: 20, rx: 10 }), svg("text", { y: 4 }, text));
        chip.style.offsetPath = `path("${arc(G, hot, at, depth(hot))}")`;
        high.querySelector(".moving")?.remove(), high.append(chip);
      } else high.querySelector(".moving")?.remove();
      tell(view, step, words, hot, depth);
      list.replaceChildren(...next(view, before));
      const [x, y] = G.place(at, 0), seen = `${drawn}${at}`; // the token that asks comes into view
      if (scroll.dataset.seen !== seen) scroll.scrollTo({ left: x - 0.8 * scroll.clientWidth, top: G.wide ? 0 :
        y - 0.8 * scroll.clientHeight });
      scroll.dataset.seen = seen;
      panel.classList.toggle("tc-lit", step === 7);
    }

    /** The words at the arcs, with scissors. */
    function tell(view, step, words, hot, depth) {
      const names = (end) => Array.from({ length: end + 1 }, (_, k) => k);
      const mid = (i, k, d) => [0, 1].map((axis) => (G.place(i, d)[axis] + G.place(k, d)[axis]) / 2), { at } = view;
      const put = (kind, [x, y], text, what, off, into = labels) => {
        const box = make("div", { className: `tc-label tc-label-${kind}` }, ...text);
        if (cut && what) box.append(make("button", { type: "button", className: "tc-cut", onclick: () => cut(what),
          ariaPressed: String(Boolean(off)),
          ariaLabel: off ? `Put head ${view[what]} back` : `Cut head ${view[what]} out`, title: off ? "Put it back" :
            "Cut it out" }, off ? "↺" : "✂"));
        box.style.left = `${clamp(x, 0, G.width)}px`, box.style.top = `${y}px`;
        into.append(box);
        const half = box.offsetWidth / 2; // inside the picture
        if (G.wide) box.style.left = `${clamp(x, half + 2, G.width - half - 2)}px`;
      };
      labels.replaceChildren();
      const target = hot ?? 0, seen = names(at).filter((k) => step !== 4 && (k === target || view.row[k] >= 0.015));
      const top = step === 4 ? G.place(at, 1)[1] - 52 :
        Math.min(...seen.map((k) => G.place(k, G.start + 0.75 * (depth(k) - G.start))[1])) - 27;
      const x = step === 4 ? G.width : mid(at, target, 0)[0], low = step === 3 || step === 8 ? 276 : step > 3 ? 260 :
        246;
      if (words.high && G.wide) put("high", [x, Math.max(0, top)], words.high, "high", view.highOff);
      if (words.low && G.wide) put("low", [hot === null ? G.width / 2 : mid(hot, Math.max(0, hot - 1), 0)[0], low],
        words.low, "low", view.lowOff);
      if (G.wide) return;
      const corner = make("div", { className: "tc-label-phone" });
      labels.append(corner);
      if (words.high) put("high", [0, 0], words.high, "high", view.highOff, corner);
      if (words.low) put("low", [0, 0], words.low, "low", view.lowOff, corner);
    }

    /** What those hear who do not see the picture. */
    function describe({ names, at, followed, high: head, row, answer, next: guesses }) {
      const best = [...guesses].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([name, p]) => `${name} ${percent(p)}`);
      const finds = `From the last token, head ${head} puts ${percent(row[followed])} of its attention on ${answer}`;
      const found = followed < 0 ? "" : `${finds}, which followed ${names[at]} before. `;
      return `The tokens ${names.slice(1).join(" ")}. ${found}The model's next token: ${best.join(", ")}.`;
    }

    let width = 0;
    if (window.ResizeObserver) new ResizeObserver(() => last && redraw()).observe(scroll);
    else addEventListener("resize", () => last && redraw());
    function redraw() {
      if (scroll.clientWidth === width || !scroll.clientWidth) return;
      width = scroll.clientWidth;
      show(last.view, last);
    }
    return { show, panel, scroll };
  }
  return Object.freeze({ create, say, bars, note, score, above, alone, code });
})();
