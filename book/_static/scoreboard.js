// The scoreboard: a link to a claim opens its card; a square that is pointed at says its sentence.
(() => {
  function open() {
    const card = location.hash.startsWith("#claim-") && document.getElementById(location.hash.slice(1));
    if (!card) return;
    for (let fold = card.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    card.scrollIntoView();
  }
  addEventListener("hashchange", open);
  open();
  const said = document.querySelector(".tc-sentence");
  for (const cell of document.querySelectorAll("a.tc-cell"))
    for (const event of ["pointerenter", "focus"])
      cell.addEventListener(event, () => { said.textContent = cell.dataset.sentence; });
})();
