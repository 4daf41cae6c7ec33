// The scoreboard: a link to a claim opens its card.
(() => {
  function open() {
    const card = location.hash.startsWith("#claim-") && document.getElementById(location.hash.slice(1));
    if (!card) return;
    for (let fold = card.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    card.scrollIntoView();
  }
  addEventListener("hashchange", open);
  open();
})();
