// What pages and pictures share to show heads: buttons, lines between layers, the ink of a pattern, choices, a link.
const heads = (() => {
  const { make, svg } = dom;

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

  // A button that writes what is shown into the address; `address()` is the part behind its "#".
  function link(label, address) {
    const button = make("button", { type: "button", onclick: () => {
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
  return Object.freeze({ lastTime, moves, name, graph, mark, paint, ink, choices, link, linked });
})();
