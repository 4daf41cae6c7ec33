// Tables and outputs that are wider than the screen show that they scroll; what is folded is printed, code apart.
(() => {
  const boxes = [".pst-scrollable-table-container", ".token-table", ".head-dump .dt-layout-full", ".cell_output pre",
    ".cell_output .output.text_html:has(table)", "mjx-container[display=true]", ".tc-scroll"].join();
  function mark() {
    for (const box of document.querySelectorAll(boxes)) {
      const hidden = box.scrollWidth - box.clientWidth;
      box.classList.toggle("tc-scrolls", hidden > 4);
      box.classList.toggle("tc-more", hidden - box.scrollLeft > 4);
      if (hidden > 4) box.tabIndex = 0; // for those without a mouse
    }
  }
  addEventListener("load", () => {
    mark();
    window.MathJax?.startup?.promise?.then(mark); // formulas widen a table when they are typeset
  });
  addEventListener("resize", mark);
  addEventListener("tc-drawn", mark); // by head_dump.js, and picture.js
  addEventListener("toggle", mark, true); // what was folded had no width
  addEventListener("scroll", mark, { capture: true, passive: true });
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("article details:not(.hide):not(.tc-criterion):not([open])")];
    for (const fold of opened) fold.open = true;
  });
  addEventListener("afterprint", () => opened.forEach((fold) => (fold.open = false)));
})();
