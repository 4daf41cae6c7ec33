// The scoreboard: choose claims by verdict and chapter; a link to a card opens it. Without scripts every card opens by a click.
(() => {
  const cards = [...document.querySelectorAll(".tc-scoreboard details.tc-claim")];
  const bar = document.querySelector(".tc-filter");
  if (!bar) return;
  const counted = Object.assign(document.createElement("span"), { className: "tc-counted" });
  counted.setAttribute("role", "status");

  const choices = ["verdict", "chapter"].map((key) => {
    const select = document.createElement("select");
    const label = Object.assign(document.createElement("label"), { textContent: `${key[0].toUpperCase()}${key.slice(1)} ` });
    const values = [...new Set(cards.map((card) => card.dataset[key]))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    for (const value of ["", ...values]) select.add(new Option(value || "all", value));
    select.addEventListener("change", choose);
    label.append(select);
    bar.append(label);
    return [key, select];
  });
  bar.append(counted);
  bar.hidden = false;

  function choose() {
    for (const card of cards) card.hidden = choices.some(([key, { value }]) => value && card.dataset[key] !== value);
    // A section, or the fold with the identities, without a card to show goes too.
    for (const list of document.querySelectorAll(".tc-scoreboard")) {
      const empty = [...list.querySelectorAll("details.tc-claim")].every((card) => card.hidden);
      list.closest("section").hidden = empty;
      const fold = list.closest("details.tc-folded");
      if (fold && choices.some(([, { value }]) => value)) fold.open = !empty;
    }
    const shown = cards.filter((card) => !card.hidden).length;
    counted.textContent = shown < cards.length ? `${shown} of ${cards.length} claims` : "";
  }

  function open() {
    const card = cards.find(({ id }) => `#${id}` === location.hash);
    if (!card) return;
    for (const [, select] of choices) select.value = "";
    choose();
    for (let fold = card; fold; fold = fold.parentElement.closest("details")) fold.open = true;
    card.scrollIntoView();
  }
  addEventListener("hashchange", open);
  open();
})();
