// What pages and pictures share to show heads: buttons, lines between layers, a list of tokens, a pattern with rings;
// and what the frame of "Grow one" needs: a line of status, a link, a header that stays in view.
const heads = (() => {
  const { make, svg, clamp } = dom;

  // The position after the last earlier occurrence of the token at i; -1 for a new token.
  const lastTime = (ids, i) => (i ? ids.lastIndexOf(ids[i], i - 1) + 1 || -1 : -1);

  // Arrow keys of a radio button that stands for head `here` of layers of `n_heads`, the later layer above: choose
  // another head, and go there.
  function moves(button, buttons, here, n_heads, choose) {
    button.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: n_heads, ArrowDown: -n_heads }[event.key];
      if (step === undefined || !buttons()[here + step]) return;
      event.preventDefault();
      choose(here + step);
      buttons()[here + step].focus();
    });
    return button;
  }

  const name = (head, n_heads) => `${Math.floor(head / n_heads)}.${head % n_heads}`;

  // A button for each head, the second layer above the first, and between them a line, or several, for each pair of
  // heads [reader, writer].
  function graph(n_layers, n_heads, choose, { content = (head) => [name(head, n_heads)], strands = 1 } = {}) {
    const lines = [], buttons = Array.from({ length: n_layers * n_heads }, (_, head) =>
      moves(make("button", { type: "button", role: "radio", onclick: () => choose(head) }, ...content(head)), () =>
        buttons, head, n_heads, choose));
    for (let pair = 0; n_layers > 1 && pair < n_heads ** 2; pair++) for (let strand = 0; strand < strands; strand++) {
      const at = 0.5 + 0.06 * (strand - (strands - 1) / 2);
      lines.push(svg("line", { x1: (pair % n_heads) + at, y1: 1, x2: Math.floor(pair / n_heads) + at, y2: 0 }));
    }
    const layer = (l) => make("div", { className: "tc-head-row", style: `--heads: ${n_heads}` },
      ...buttons.slice(l * n_heads, (l + 1) * n_heads));
    const between = () => svg("svg", { viewBox: `0 0 ${n_heads} 1`, preserveAspectRatio: "none", class: "tc-lines",
      "aria-hidden": "true" }, ...lines);
    const box = make("div", { role: "radiogroup", "aria-label": "Heads: arrow keys choose one" },
      ...(n_layers > 1 ? [layer(1), between()] : []), layer(0));
    return { box, buttons, lines };
  }

  // Which head is chosen, what it does, and how it is called aloud.
  function mark(button, chosen, role, label) {
    button.dataset.role = role;
    button.setAttribute("aria-checked", chosen);
    button.tabIndex = chosen ? 0 : -1;
    button.setAttribute("aria-label", label);
  }

  // A line as wide as a composition ratio is above chance, colored from `composes` on.
  function width(line, ratio, widest, composes) {
    const wide = (10 * (ratio - 1)) / (widest - 1);
    line.style.strokeWidth = wide > 0.15 ? wide.toFixed(2) : 0;
    line.classList.toggle("grow-composes", ratio >= composes);
  }

  // The list of tokens, of which one is chosen: by a click, or by arrow keys from the one `at()`.
  function strip(at, choose) {
    const label = "Tokens: arrow keys choose the one to look from";
    const list = make("div", { className: "grow-strip", role: "listbox", tabIndex: 0, "aria-label": label });
    list.addEventListener("click", (event) => {
      const i = /** @type {any} */ (event.target).closest?.("[data-i]")?.dataset.i;
      if (i !== undefined) choose(Number(i));
    });
    list.addEventListener("keydown", (event) => {
      const last = list.querySelectorAll("[data-i]").length - 1;
      const i = { ArrowLeft: at() - 1, ArrowRight: at() + 1, Home: 0, End: last }[event.key];
      if (i === undefined) return;
      event.preventDefault();
      choose(clamp(i, 0, last));
    });
    return list;
  }

  const token = (i, ...content) =>
    make("span", { className: "grow-token", role: "option", id: `grow-token-${i}`, data: { i } }, ...content);

  // Tokens colored by the attention from the one at i, 0 to 1; a dashed frame around the token at `next`.
  function attend(tokens, attention, i, next) {
    tokens.forEach((each, j) => {
      const a = j <= i ? attention(j) : 0;
      each.style.setProperty("--a", a.toFixed(3));
      for (const [name, on] of [["ahead", j > i], ["lasttime", j === next]])
        each.classList.toggle(`grow-${name}`, on);
      each.setAttribute("aria-selected", j === i);
    });
    tokens[i].parentElement.setAttribute("aria-activedescendant", tokens[i].id);
  }

  // The ink of a pattern of n positions; `alpha(i, j)` is 0 to 255. With more than `most` positions, each point is the
  // largest of several.
  function paint(canvas, n, alpha, ink, most = n) {
    const side = Math.min(n, most), point = Uint16Array.from({ length: n }, (_, i) => (i * side) / n);
    if (canvas.width !== side) canvas.width = canvas.height = side;
    const context = canvas.getContext("2d"), image = context.createImageData(side, side), { data } = image;
    for (let at = 0; at < data.length; at += 4) data.set(ink, at);
    for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) {
      const at = 4 * (point[i] * side + point[j]) + 3, a = alpha(i, j);
      if (a > data[at]) data[at] = a;
    }
    context.putImageData(image, 0, 0);
  }

  // A pattern, with rings around tokens that followed last time, and a frame around the chosen row. A click chooses
  // one.
  function pattern(choose) {
    const canvas = make("canvas", { role: "img", "aria-label": "Attention pattern: rows attend to columns" });
    const rings = svg("g"), row = svg("rect", { x: 0, height: 1 });
    const over = svg("svg", { preserveAspectRatio: "none", "aria-hidden": "true" }, rings, row);
    const square = make("div", { className: "grow-square" }, canvas, over);
    let size = 0;
    square.addEventListener("click", (event) => {
      const box = square.getBoundingClientRect();
      choose(clamp(Math.floor(((event.clientY - box.top) / box.height) * size), 0, size - 1));
    });
    function draw(ids, alpha, ink, chosen) {
      const n = size = ids.length, places = ids.map((_, i) => [i, lastTime(ids, i)]).filter(([, k]) => k >= 0);
      paint(canvas, n, alpha, ink);
      rings.replaceChildren(...places.map(([i, k]) => svg("circle", { cx: k + 0.5, cy: i + 0.5, r: 0.7 })));
      over.setAttribute("viewBox", `0 0 ${n} ${n}`);
      row.setAttribute("y", chosen), row.setAttribute("width", chosen + 1);
    }
    return { square, draw };
  }

  // A color of the palette as a canvas takes it: red, green, blue.
  const ink = (root, variable) => (getComputedStyle(root).getPropertyValue(variable).match(/[\da-f]{2}/gi) ?? [])
    .map((part) => parseInt(part, 16));
  // Choices of which one is on, or none yet (-1); `chosen` is called with the number of the new one.
  function choices(label, names, on, chosen) {
    const group = make("div", { className: "tc-choices", role: "group", "aria-label": label }, make("span", {}, label));
    const press = (k) => [...group.querySelectorAll("button")].forEach((each, i) =>
      each.setAttribute("aria-pressed", i === k));
    group.append(...names.map((text, k) => make("button", { type: "button", onclick: () => (press(k), chosen(k)) },
      text)));
    press(on);
    return group;
  }

  // ---- the frame of a page ------------------------------------------------------------------------------------------
  const section = (title, ...children) => make("section", {}, typeof title === "string" ? make("h2", {}, title) : title,
    ...children);

  // Where a page draws, and `say(text, trouble)` for its line of status. `draw` is called when the theme changes.
  function page(root, draw) {
    const [status, app] = ["status", "app"].map((part) => root.querySelector(`.grow-${part}`));
    new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    const say = (text, trouble = false) => {
      status.textContent = text;
      status.classList.toggle("grow-trouble", trouble);
    };
    return { app, say };
  }

  // The height of the theme's header, if it stays in view, as a variable: what the page keeps in view is below it.
  function belowHeader(root, variable) {
    const header = document.querySelector(".bd-header-article");
    if (header && getComputedStyle(header).position === "sticky") root.style.setProperty(variable,
      `${header.offsetHeight}px`);
  }

  // A button that writes what is shown into the address; `address()` is the part behind its "#".
  function link(label, address, rest = {}) {
    const button = make("button", { type: "button", ...rest, onclick: () => {
      globalThis.history.replaceState(null, "", `#${address()}`);
      navigator.clipboard?.writeText(location.href).catch(() => {});
      button.textContent = "The link is in the address";
      setTimeout(() => (button.textContent = label), 2000);
    } }, label);
    return button;
  }

  // Calls `take` when the address becomes another such link. One within the page, such as "#main-content" or "#", must
  // not undo the reader's work.
  const linked = (take) => addEventListener("hashchange", () => location.hash.includes("=") && take());
  return Object.freeze({ lastTime, moves, name, graph, mark, width, strip, token, attend, paint, pattern, ink, choices,
    section, page, belowHeader, link, linked });
})();
