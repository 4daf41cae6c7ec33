// The theme's menu button is the first of the page, which would be in the header that we hide (pydata-sphinx-theme, issue 2451).
for (const hidden of document.querySelectorAll("#pst-header .sidebar-toggle")) hidden.remove();

// Interactive figures (transformer_circuits/figures/widgets.py): CircuitsVis's script is loaded once, and only on pages that have one.
(() => {
  const source = new URL("circuitsvis/iife.js", document.currentScript.src);
  document.addEventListener("DOMContentLoaded", () => {
    const widgets = document.querySelectorAll(".circuits-widget");
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
  });
})();

// "Follow a name" (follow/follow.js): its script is loaded only on pages that have the picture, or the still picture that it replaces.
(() => {
  const base = new URL(".", document.currentScript.src), STEPS = { "01_": 1, "03_": 6, "06_": 3, "07_": 4 }; // of chapters: the step at which it waits
  document.addEventListener("DOMContentLoaded", () => {
    const still = document.querySelector('img[src*="follow_a_name"]');
    const host = document.querySelector(".tc-follow-here") ?? (still && document.createElement("div"));
    if (!host) return;
    const step = STEPS[location.pathname.split("/").pop().slice(0, 3)] ?? 1;
    const load = (name) => new Promise((resolve) => document.head.append(Object.assign(document.createElement("script"), { src: new URL(name, base), onload: resolve })));
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("follow/follow.css", base) }));
    const common = document.querySelector('script[src*="dom.js"]') ? Promise.resolve() : load("dom.js");
    Promise.all([common, load("follow/data.js")]).then(() => load("follow/follow.js")).then(() => {
      if (still) still.replaceWith(host);
      follow.start(host, { step, play: Boolean(host.dataset.play), whole: Boolean(host.dataset.whole) });
    });
  });
})();
