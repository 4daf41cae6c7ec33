// Attention to explore (`explore` in transformer_circuits/figures/widgets.py): the tokens that the pointed one attends to are shaded, and named below.
for (const box of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".tc-attend"))) {
  const [text, says] = box.querySelectorAll("p:not(.tc-choices)"), buttons = box.querySelectorAll("button"), data = box.querySelector("script");
  const tokens = /** @type {HTMLElement[]} */ ([...text.children]), heads = JSON.parse(data.textContent);
  const chip = (j) => Object.assign(document.createElement("code"), { className: "token", textContent: tokens[j].textContent });
  let head = 0, chosen = Number(data.dataset.at), pointed = chosen;

  function draw() {
    const row = heads[head][pointed], order = [...row.keys()].sort((j, k) => row[k] - row[j]).slice(0, 3).filter((j) => row[j] >= 3);
    tokens.forEach((token, j) => {
      token.style.setProperty("--a", `${row[j] ?? 0}%`);
      token.classList.toggle("tc-here", j === pointed);
      token.classList.toggle("tc-ahead", j > pointed);
      token.setAttribute("aria-selected", String(j === chosen));
    });
    text.setAttribute("aria-activedescendant", tokens[chosen].id);
    buttons.forEach((button, h) => button.setAttribute("aria-pressed", String(h === head)));
    if (buttons.length) box.dataset.layer = buttons[head].dataset.layer;
    says.replaceChildren(chip(pointed), order.length ? " attends to " : " attends to nothing here", ...order.flatMap((j) => [chip(j), ` ${row[j]}%  `]));
  }

  function point(i, stay = false) {
    pointed = Math.min(Math.max(i, 0), tokens.length - 1);
    if (stay) chosen = pointed;
    draw();
  }
  text.addEventListener("pointerleave", () => point(chosen));
  tokens.forEach((token, i) => (token.addEventListener("pointerenter", () => point(i)), token.addEventListener("click", () => point(i, true))));
  text.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    point(to, true);
  });
  buttons.forEach((button, h) => button.addEventListener("click", () => ((head = h), draw())));
  draw();
}
