// Tokens to point at (transformer_circuits/figures/widgets.py): those that the pointed one attends to are shaded and
// named.
for (const box of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".tc-attend"))) {
  const text = box.querySelector(".tc-attend-text"), says = box.querySelector(".tc-attend-says"),
    buttons = box.querySelectorAll("button");
  const tokens = /** @type {HTMLElement[]} */ ([...text.children]), { heads, head: first, at } =
    JSON.parse(box.querySelector("script").textContent);
  const chip = (textContent) => Object.assign(document.createElement("code"), { className: "token", textContent });
  let head = first, chosen = at, pointed = at;

  function listed() {
    const row = heads[head][pointed], most = [...row.keys()].sort((j, k) => row[k] - row[j]).slice(0, 3).filter((j) =>
      row[j] >= 3);
    tokens.forEach((token, j) => (token.style.setProperty("--a", `${row[j] ?? 0}%`),
      token.classList.toggle("tc-ahead", j > pointed)));
    return most.map((j) => [tokens[j].textContent, row[j]]);
  }

  function draw() {
    const list = listed(), verb = list.length ? " attends to " : " attends to nothing here";
    tokens.forEach((token, j) => (token.classList.toggle("tc-here", j === pointed),
      token.setAttribute("aria-selected", String(j === chosen))));
    text.setAttribute("aria-activedescendant", tokens[chosen].id);
    buttons.forEach((button, h) => button.setAttribute("aria-pressed", String(h === head)));
    if (buttons.length) box.dataset.layer = buttons[head].dataset.layer;
    says.replaceChildren(chip(tokens[pointed].textContent), verb,
      ...list.flatMap(([name, percent]) => [chip(name), ` ${percent}%  `]));
  }

  function point(i, stay = false) {
    pointed = Math.min(Math.max(i, 0), tokens.length - 1);
    if (stay) chosen = pointed;
    draw();
  }
  text.addEventListener("pointerleave", () => point(chosen));
  tokens.forEach((token, i) => (token.addEventListener("pointerenter", () => point(i)),
    token.addEventListener("click", () => point(i, true))));
  text.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    point(to, true);
  });
  buttons.forEach((button, h) => button.addEventListener("click", () => ((head = h), draw())));
  draw();
}
