// The address of the stage: one link holds text, heads, cuts and moment of training. Links of earlier editions work.
const address = (() => {
  "use strict";
  const { clamp } = dom, ATTENDS = /^(?:1\.(\d{1,2})|\*)([QKV])(?:0\.(\d{1,2})|\*)$/;
  const star = (layer, head) => (head < 0 ? "*" : `${layer}.${head}`);
  const index = (digits) => (digits === undefined ? -1 : Number(digits)); // -1 is every head

  /** What stands behind the "#" for a state of full.js; `moment`: its name, and `step`: of the explanation. */
  function write({ text, at, ids, low, high, layers, edits }, { heads }, { moment, step }) {
    const values = ids ? { film: "1" } : { text };
    if (moment) values.t = moment;
    if (Number.isFinite(at)) values.at = String(at);
    if (low !== heads.previous) values.low = low;
    if (high !== heads.induction) values.high = high;
    if (edits.off.length) values.off = edits.off.join(" ");
    if (edits.cut.length) values.cut = edits.cut.map(([r, side, w]) => `${star(1, r)}${side}${star(0, w)}`).join(" ");
    for (const key of ["mean", "frozen"]) if (edits[key]) values[key] = "1";
    if (layers === 1) values.layers = "1";
    if (step) values.step = String(step);
    return new URLSearchParams(values);
  }

  /** The state that an address holds, its step, and its film: the name of a moment, and the number of a text. */
  function read(hash, { n_heads, heads, sentences }) {
    const values = new URLSearchParams(hash.slice(1)), every = (key) => (values.get(key) ?? "").split(" ");
    const isHead = (text, layer) => Array.from({ length: n_heads }, (_, h) => `${layer}.${h}`).includes(text);
    const head = (key, layer, other) => (isHead(values.get(key), layer) ? values.get(key) : other);
    const cut = every("cut").flatMap((each) => {
      const [found, reader, side, writer] = ATTENDS.exec(each) ?? [];
      return found && index(reader) < n_heads && index(writer) < n_heads ? [[index(reader), side, index(writer)]] : [];
    });
    const off = [...new Set(every("off"))].filter((each) => isHead(each, 0) || isHead(each, 1));
    const state = { text: values.get("text") ?? Object.values(sentences)[0].text, ids: null, moment: Infinity,
      at: /^\d+$/.test(values.get("at") ?? "") ? Number(values.get("at")) : Infinity,
      low: head("low", 0, heads.previous), high: head("high", 1, heads.induction),
      layers: values.get("layers") === "1" ? 1 : 2,
      edits: { off, cut, mean: values.has("mean"), frozen: values.has("frozen") } };
    const step = clamp(Math.round(Number(values.get("step"))) || 0, 0, 8);
    return { state, step, film: values.has("t") ? [values.get("t"), values.get("film") === "1" ? 1 : 0] : null };
  }
  return Object.freeze({ write, read });
})();
