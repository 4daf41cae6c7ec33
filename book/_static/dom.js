// What the scripts of all pages share: an element of HTML or of SVG with its properties and children, in one call;
// numbers as words; a worker that answers questions; and the data of a page.
const dom = (() => {
  /**
   * @template {keyof HTMLElementTagNameMap} K
   * @typedef {{ [P in Exclude<keyof HTMLElementTagNameMap[K], "style" | "children">]?:
   *   string extends HTMLElementTagNameMap[K][P] ? string | number : HTMLElementTagNameMap[K][P] }} Own
   */
  /**
   * @template {keyof HTMLElementTagNameMap} K
   * @typedef {Own<K> & { [aria: `aria-${string}`]: any, role?: string, style?: string, data?: object }} Properties
   */
  /**
   * @template {keyof HTMLElementTagNameMap} K
   * @param {K} name
   * @param {Properties<K>} properties
   * @param {...(Node | string)} children
   * @returns {HTMLElementTagNameMap[K]}
   */
  const make = (name, properties = /** @type {Properties<K>} */ ({}), ...children) => {
    const { data = {}, ...rest } = /** @type {any} */ (properties), element = document.createElement(name);
    for (const [key, value] of Object.entries(rest)) {
      if (key in element && key !== "role") element[key] = value;
      else element.setAttribute(key, value);
    }
    Object.assign(element.dataset, data);
    element.append(...children);
    return element;
  };
  /**
   * @template {Element} E
   * @param {E} element
   * @param {Record<string, any>} attributes
   * @returns {E}
   */
  const set = (element, attributes) => {
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  /**
   * @template {keyof SVGElementTagNameMap} K
   * @param {K} name
   * @param {Record<string, any>} attributes
   * @param {...(Node | string)} children
   * @returns {SVGElementTagNameMap[K]}
   */
  const svg = (name, attributes = {}, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    element.append(...children);
    return set(element, attributes);
  };

  const clamp = (x, low = 0, high = 1) => Math.min(high, Math.max(low, x));
  const fixed = (x, digits = 2) => (Math.abs(x) < 0.5 * 10 ** -digits ? 0 : x).toFixed(digits).replace("-", "−");
  const signed = (x, digits = 1) => (x > 0.05 ? "+" : "") + fixed(x, digits);
  function percent(p) {
    if (Number.isNaN(p)) return "–";
    const near = (p > 0 && p < 0.0995) || (p > 0.99 && p < 0.9995); // to 0 or 1: a digit more
    return p > 0 && p < 0.001 ? "<0.1%" : `${(100 * p).toFixed(near ? 1 : 0)}%`;
  }

  // What `kinds[kind]` returns for a question { id, kind, ... }, as { id, ... }, or { id, error }.
  const answer = (kinds, { id, kind, ...rest }) => {
    try {
      return { id, ...kinds[kind](rest) };
    } catch (error) {
      return { id, error: error.message };
    }
  };

  // An error in a sentence, if this browser is too old for the pages.
  function modern() {
    const lacks = !window.DecompressionStream ? "DecompressionStream" : [].at ? "" : "Array.at";
    if (lacks) throw new Error(`This page needs a newer browser, of 2023 or later: this one has no ${lacks}.`);
  }

  // Returns `ask(kind, rest)`, which promises the answer of `server()[kind](rest)`, in a worker made from the source
  // text of `functions`: a page opened from disk may not load one from a file.
  function worker(functions, server) {
    modern();
    const after = `const answer = ${answer}, kinds = ${server.name}();
      onmessage = (e) => postMessage(answer(kinds, e.data));`;
    const source = new Blob([[...functions, server, after].join("\n")], { type: "text/javascript" }),
      waiting = new Map();
    let asked = 0, answered = false, broken = null, thread;
    function fail(event = {}) { // a server's policy may forbid workers, at once or a moment later
      broken = new Error(answered ? `The worker stopped (${event.message ?? "no reason given"}).`
        : "The model cannot run here: this browser, or the server of the page, does not let the page start a worker.");
      for (const { reject } of waiting.values()) reject(broken);
      waiting.clear();
    }
    try {
      thread = new Worker(URL.createObjectURL(source));
      thread.onerror = thread.onmessageerror = (event) => { event.preventDefault(), fail(event); };
      thread.onmessage = ({ data }) => {
        const { resolve, reject } = waiting.get(data.id);
        answered = true;
        waiting.delete(data.id);
        data.error ? reject(new Error(data.error)) : resolve(data);
      };
    } catch {
      fail();
    }
    return (kind, rest = {}) => new Promise((resolve, reject) => {
      if (broken) return reject(broken);
      waiting.set(++asked, { resolve, reject });
      thread.postMessage({ id: asked, kind, ...rest });
    });
  }

  // Loads what the build wrote for a page: a script, since a page opened from disk may load nothing else, that calls
  // `pageData(facts, data)`. `data`: none, or bytes, gzipped, which checks their sum, in base64. Returns { facts, bytes
  // }; an error says in a sentence what is wrong.
  const waiting = new Map(); // by address: what to do with the data
  window.pageData = (...given) => waiting.get(document.currentScript.src)(given);
  async function load(file, folder) {
    const again = "build the book again (make book)", src = new URL(file, folder).href;
    const [facts, data] = await new Promise((resolve, reject) => {
      waiting.set(src, resolve);
      // Of no effect if the data has arrived.
      const missing = () => reject(new Error(`The file ${file} is missing or damaged; ${again}.`));
      document.head.append(make("script", { src, onerror: missing, onload: missing }));
    });
    if (data === undefined) return { facts };
    modern();
    try {
      const letters = atob(data), packed = new Uint8Array(letters.length);
      for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
      const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      const bytes = await new Response(unpacked).arrayBuffer();
      return { facts, bytes };
    } catch {
      throw new Error(`The file ${file} is damaged; ${again}.`);
    }
  }
  return Object.freeze({ make, svg, set, clamp, fixed, signed, percent, worker, load });
})();
