// What the theme's controls lack on each page. The theme's menu button is the first of the page, which would be in the header that we hide
// (pydata-sphinx-theme, issue 2451); labels name what is seen.
for (const hidden of document.querySelectorAll("#pst-header .sidebar-toggle")) hidden.remove();
for (const named of document.querySelectorAll(".search-button-field, .theme-switch-button, details.hide > summary")) named.removeAttribute("aria-label");
for (const summary of document.querySelectorAll("nav summary")) summary.setAttribute("aria-label", "Pages below");

// Interactive figures (transformer_circuits/figures/widgets.py): CircuitsVis's script is loaded once, and only on pages that have one.
(() => {
  const widgets = document.querySelectorAll(".circuits-widget"), source = new URL("circuitsvis/iife.js", document.currentScript.src);
  if (!widgets.length) return;
  const script = document.createElement("script");
  script.src = source;
  script.onload = () => {
    for (const widget of widgets) {
      const properties = document.querySelector(`script[data-for="${widget.id}"]`);
      CircuitsVis.render(widget.id, CircuitsVis[widget.dataset.component], JSON.parse(properties.textContent));
    }
  };
  document.head.append(script);
})();
