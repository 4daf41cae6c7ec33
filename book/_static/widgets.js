// What the theme's controls lack on each page. Its menu button is the first of the page, which would be in the header
// that we hide (pydata-sphinx-theme, issue 2451); labels name what is seen; the sidebar is a landmark.
for (const hidden of document.querySelectorAll("#pst-header .sidebar-toggle")) hidden.remove();
for (const named of document.querySelectorAll(
  ".search-button-field, .theme-switch-button, details.hide > summary")) named.removeAttribute("aria-label");
for (const summary of document.querySelectorAll("nav summary")) summary.setAttribute("aria-label", "Pages below");
for (const bar of document.querySelectorAll(".bd-sidebar-primary")) {
  for (const [key, value] of [["role", "complementary"], ["aria-label", "The book"]]) bar.setAttribute(key, value);
}

// The stage (follow/stage.js) and pictures that answer (live.js): loaded only on pages that have them.
(() => {
  const base = new URL(".", document.currentScript.src);
  const STEPS = { "01_": 3, "03_": 7, "06_": 3, "07_": 4 }; // of chapters: the step at which it waits
  const add = (name, properties) =>
    new Promise((resolve) => document.head.append(Object.assign(document.createElement(name), properties,
      { onload: resolve })));
  const load = (name) => add("script", { src: new URL(name, base) });
  const style = (name) => add("link", { rel: "stylesheet", href: new URL(name, base) });
  document.addEventListener("DOMContentLoaded", async () => {
    const still = document.querySelector('img[src*="follow_a_name"]'),
      answers = document.querySelector(".tc-live, details[data-answer]");
    if (!still && !answers) return;
    if (!document.querySelector('script[src*="dom.js"]')) await load("dom.js").then(() => load("heads.js"));
    if (answers) style("live.css"), load("live.js");
    if (!still) return;
    const [{ facts }] = await Promise.all([dom.load("follow/data.js", base), style("follow/follow.css"),
      load("follow/picture.js")]);
    await load("follow/stage.js");
    const host = document.createElement("div"), step = STEPS[location.pathname.split("/").pop().slice(0, 3)] ?? 0;
    (still.closest("figure, p") ?? still).replaceWith(host);
    stage.start(host, facts, { step, steps: !document.querySelector(".tc-doors") });
  });
})();
