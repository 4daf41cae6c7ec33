// Pictures that answer, inside chapters: figures/widgets.py puts the chapter's numbers into `.tc-live` elements, and
// the functions below draw them. And questions to predict: `<details data-answer="64" data-chance="0.3" data-max="100"
// data-unit="%">` gets a slider before it, one with `data-choices="keys|queries|values"` gets buttons, and opens when
// the reader has answered.
(() => {
  "use strict";
  const { make, svg, set, clamp, fixed: text } = dom;
  const button = (label, pressed, onclick) =>
    make("button", { type: "button", textContent: label, ariaPressed: String(pressed), onclick });

  /** A list of bars with names. `mark`: a line across them, such as chance. */
  function bars(rows, most, { mark = null, color = (_) => /** @type {string} */ ("ink") } = {}) {
    return make("ul", { className: "tc-live-bars" }, ...rows.map(([name, value, note = ""], i) => {
      const bar = make("i", { className: color(i),
        style: `width: ${(100 * clamp(Math.abs(value) / most, 0, 1)).toFixed(1)}%` });
      const box = make("b", {}, bar, ...(mark === null ? [] : [make("u", { style: `left: ${(100 * mark) / most}%` })]));
      return make("li", {}, make("span", {}, name), box, make("em", {}, text(value) + note));
    }));
  }

  function eigenvalues(host, { start }) {
    const rows = start.map((row) => [...row]), size = 260, unit = 36, center = size / 2;
    const plane = svg("svg", { viewBox: `0 0 ${size} ${size}` }),
      complex = svg("svg", { viewBox: `0 0 ${size} ${size}`, role: "img" }), said = make("p", { ariaLive: "polite" });
    const at = (/** @type {number[]} */ [x, y]) => [center + unit * x, center - unit * y];
    function axes(picture, across, up) {
      picture.append(svg("path", { d: `M0 ${center}H${size}M${center} 0V${size}`, stroke: "var(--live-faint)" }),
        svg("text", { x: size, y: 170, "text-anchor": "end" }, across), svg("text", { x: center + 5, y: 12 }, up),
        ...[-3, -1, 1, 3].flatMap((x) => [[center + unit * x, center + 21], [center - 11, center + 4 - unit * x]].map(
          (place) => svg("text", { x: place[0], y: place[1], class: "tc-live-tick" }, text(x, 0)))));
    }
    axes(plane, "raises token A", "raises token B");
    axes(complex, "real part", "imaginary part");
    const marks = rows.map((_, i) => ({ line: svg("line", { x1: center, y1: center, "stroke-width": 4,
      stroke: "var(--live-ink)" }), end: svg("circle", { r: 9, tabindex: 0, role: "slider", fill: "var(--live-ink)" }),
      name: svg("text", { class: "tc-live-end", "text-anchor": "middle" }, "AB"[i]) }));
    const points = [0, 1].map(() => svg("circle", { r: 7 }));
    marks.forEach(({ line, end, name }) => plane.append(line, end, name));
    complex.append(...points);
    function update() {
      const [[a, b], [c, d]] = rows, half = (a + d) / 2, root = half * half - (a * d - b * c), real = root >= 0,
        s = Math.sqrt(Math.abs(root));
      const values = real ? [[half + s, 0], [half - s, 0]] : [[half, s], [half, -s]],
        sizes = values.map(([x, y]) => Math.hypot(x, y)), whole = sizes[0] + sizes[1];
      const positivity = whole < 1e-9 ? 0 : (values[0][0] + values[1][0]) / whole;
      marks.forEach(({ line, end, name }, i) => {
        const [x, y] = at(rows[i]);
        set(line, { x2: x, y2: y }), set(name, { x, y: y + 4 });
        set(end, { cx: x, cy: y, "aria-label": `Token ${"AB"[i]}, when attended to`, "aria-valuenow": rows[i][0],
          "aria-valuetext": `raises A by ${text(rows[i][0], 1)} and B by ${text(rows[i][1], 1)}` });
      });
      points.forEach((point, i) => {
        const [x, y] = at(values[i].map((v) => clamp(v, -3.5, 3.5)));
        set(point, { cx: x, cy: y, fill: values[i][0] > 0 ? "var(--live-ink)" : "var(--live-red)" });
      });
      const named = values.map(([x, y]) => text(x) + (y ? ` ${y < 0 ? "−" : "+"} ${text(Math.abs(y))}i` : ""));
      complex.setAttribute("aria-label", `Eigenvalues ${named.join(" and ")}`);
      const own = [rows[0][0] > rows[0][1], rows[1][1] > rows[1][0]].filter(Boolean).length;
      said.replaceChildren(make("b", {}, `Positivity ${text(positivity)}`),
        `. ${["Neither token raises itself", "One token raises itself", "Both tokens raise themselves"][own]} most. `,
        real ? "" : "The two eigenvalues are complex: the head turns one token into the other.");
    }
    function moving(end, i) {
      end.addEventListener("pointerdown", (event) => {
        event.preventDefault(), end.setPointerCapture(event.pointerId), end.focus(); });
      end.addEventListener("pointermove", (event) => {
        if (!end.hasPointerCapture(event.pointerId)) return;
        const box = plane.getBoundingClientRect(), scale = size / box.width;
        rows[i] = [((event.clientX - box.left) * scale - center) / unit,
          (center - (event.clientY - box.top) * scale) / unit].map((x) => clamp(Math.round(10 * x) / 10, -3, 3));
        update();
      });
      end.addEventListener("keydown", (event) => {
        const by = { ArrowRight: [0.1, 0], ArrowLeft: [-0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[event.key];
        if (!by) return;
        event.preventDefault();
        rows[i] = rows[i].map((x, k) => clamp(Math.round(10 * (x + by[k])) / 10, -3, 3));
        update();
      });
    }
    marks.forEach(({ end }, i) => moving(end, i));
    host.replaceChildren(make("div", { className: "tc-live-two" }, make("figure", {}, plane, make("figcaption", {},
        "Drag the ends, or use the arrow keys: what tokens A and B raise when they are attended to.")),
      make("figure", {}, complex, make("figcaption", {}, "The two eigenvalues of this matrix, in the complex plane. ",
        "Right: copied. Left, in red: turned around."))), said);
    update();
  }

  function circuits(host, { head, sources }) {
    const box = make("div", { ariaLive: "polite" }), code = (token) =>
      make("code", { className: "token", textContent: token });
    function show(i) {
      const { source, destinations, outs, right, bugs } = sources[i];
      const most = (list) => Math.max(...list.map(([, x]) => x));
      const rows = destinations.map(([to], k) => make("tr", {}, make("th", { scope: "row" }, code(to)),
        ...outs.map(([out], j) => {
          const [kind, sign, words] = right[k][j] ? ["right", "✓", "right"] : bugs[k][j] ? ["bug", "✗", "a bug"] :
            ["", "·", "neither"];
          return make("td", { className: kind }, sign, make("span", { className: "tc-hidden" },
            `${source} … ${to} → ${out}: ${words}`));
        })));
      box.replaceChildren(make("div", { className: "tc-live-two" },
        make("div", {}, make("h4", {}, `QK: who looks for ${source}? (score)`),
          bars(destinations.map(([name, x]) => [code(name), x]), most(destinations))),
        make("div", {}, make("h4", {}, "OV: what does it raise? (logit)"),
          bars(outs.map(([name, x]) => [code(name), x]), most(outs)))),
      make("p", {}, "The head cannot choose pairs: every destination on the left gets every output on the right. ",
        "✓ marks right skip-trigrams: seen at least five times, and the source makes the output more likely. ✗ ",
        "marks bugs: never seen where they could be, and forced by two right ones. A dot is neither."),
      make("div", { className: "tc-live-table" },
        make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, `${source} …`),
          ...outs.map(([out]) => make("th", { scope: "col" }, code(out))))), make("tbody", {}, ...rows))));
    }
    host.replaceChildren(heads.choices(`Source token, head ${head}`, sources.map(({ source }) => source), 0, show),
      box);
    show(0);
  }

  function graph(host, { writers, readers, ratios, most, composes, works = [] }) {
    const sides = ["queries", "keys", "values"], n = writers.length, names = [...writers, ...readers];
    const told = make("div", { ariaLive: "polite" }), { box, buttons, lines } = heads.graph(2, n, show, { strands: 3 });
    const pairs = lines.map((_, k) => ({ side: k % 3, reader: Math.floor(k / 3 / n), writer: Math.floor(k / 3) % n }));
    const ratio = ({ side, reader, writer }) => ratios[side][reader][writer];
    const color = (pair) => (ratio(pair) >= composes ? "blue" : "faint");
    lines.forEach((line, k) => {
      line.style.stroke = `var(--live-${color(pairs[k])})`;
      line.style.strokeWidth = String(ratio(pairs[k]) > 1 ? Math.max(0.5, 3 * (ratio(pairs[k]) - 1)) : 0);
    });
    function show(head) {
      const reads = head >= n, own = pairs.filter(({ reader, writer }) => (reads ? reader : writer) === head % n);
      lines.forEach((line, k) => (line.style.display = own.includes(pairs[k]) ? "" : "none"));
      buttons.forEach((button, k) => heads.mark(button, k === head, works.length && !works.includes(names[k]) ? "idle" :
        "", `Head ${names[k]}`));
      const rows = own.sort((a, b) => ratio(b) - ratio(a)).slice(0, 6);
      const named = (pair) => (reads ? writers[pair.writer] : readers[pair.reader]);
      told.replaceChildren(make("p", {}, make("b", {}, `Head ${names[head]}`), reads ? " reads most strongly:" :
        " is read most strongly by:"),
        bars(rows.map((pair) => [`head ${named(pair)}, with its ${sides[pair.side]}`, ratio(pair), " × chance"]), most,
          { mark: 1, color: (i) => color(rows[i]) }));
    }
    buttons.forEach((button, head) => button.addEventListener("pointerenter", () => show(head)));
    host.replaceChildren(box, make("p", { className: "tc-live-key" },
      `Blue is at least ${composes} times chance. The mark in a bar is chance.`), told);
    show(n + pairs.reduce((a, b) => (ratio(b) > ratio(a) ? b : a)).reader);
  }

  /** `losses`: by the switches that are on, joined by +, such as "direct+layer 1", where the chapter measured them. */
  function paths(host, { switches, losses, uniform, at }) {
    const on = new Set(at), told = make("p", { ariaLive: "polite" }), bar = make("div", { className: "tc-live-loss" }),
      row = make("div", { className: "tc-choices", role: "group", ariaLabel: "Paths that act" },
        make("span", {}, "Paths that act"));
    const key = (set) => switches.filter((name) => set.has(name)).join("+"),
      full = losses[key(new Set(switches))] ?? Math.min(...Object.values(losses));
    const pressed = switches.map((name) => button(name, on.has(name), () => {
      const next = new Set(on);
      next.has(name) ? next.delete(name) : next.add(name);
      if (!(key(next) in losses)) { told.textContent =
        `The chapter did not measure ${[...next].join(" with ") || "no path at all"}.`; return; }
      on.clear();
      next.forEach((each) => on.add(each));
      show();
    }));
    row.append(...pressed);
    function show() {
      const loss = losses[key(on)];
      pressed.forEach((each, i) => (each.ariaPressed = String(on.has(switches[i]))));
      bar.replaceChildren(make("i", { style: `width: ${(100 * loss) / uniform}%` }),
        make("u", { style: `left: ${(100 * full) / uniform}%` }));
      told.replaceChildren(make("b", {}, `Loss ${text(loss)} nats per token`),
        loss === full ? " with every path. Switch one off." :
          ` of ${text(uniform)} for a uniform guess. With every path it is ${text(full)} (the mark).`);
    }
    host.replaceChildren(row, bar, told);
    show();
  }

  function predict(details) {
    const { answer, chance, choices, min = "0", max = "100", unit = "" } = details.dataset,
      box = make("div", { className: "tc-live tc-predict", role: "group", ariaLabel: "Your prediction" });
    const reveal = (words) => { details.open = true; told.textContent = words; };
    const told = make("p", { ariaLive: "polite" }), by = chance === undefined ? "" : ` By chance: ${chance}${unit}.`;
    if (choices) {
      const names = choices.split("|");
      box.append(heads.choices("Your guess", names, -1, (i) =>
        reveal(`${names[i] === answer ? "Right:" : "Not quite. The answer is:"} ${answer}.${by}`)), told);
    } else {
      const slider = make("input", { type: "range", min, max, step: (Number(max) - Number(min)) / 100,
        value: (Number(min) + Number(max)) / 2, ariaLabel: "Your guess", oninput: () =>
          (shown.textContent = `${Number(slider.value)}${unit}`) });
      const shown = make("output", {}, `${slider.value}${unit}`);
      box.append(slider, shown, button("That is my guess", false, () =>
        reveal(`You said ${slider.value}${unit}. It is ${answer}${unit}.${by}`)), told);
    }
    details.before(box);
  }

  const kinds = { eigenvalues, circuits, graph, paths };
  for (const host of document.querySelectorAll(".tc-live[data-kind]")) kinds[host.dataset.kind](host,
    JSON.parse(host.querySelector("script").textContent));
  for (const details of document.querySelectorAll("details[data-answer]")) predict(details);
})();
