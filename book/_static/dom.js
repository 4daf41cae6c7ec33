// What the scripts of the pages "Play", "Watch it learn" and "Grow one" share: an element of HTML or of SVG with its properties and children, in one
// call; a worker that answers questions; and the data of a page.
const dom = (() => {
  const make = (name, properties = {}, ...children) => {
    const { data = {}, ...rest } = properties, element = document.createElement(name);
    for (const [key, value] of Object.entries(rest)) key in element && key !== "role" ? (element[key] = value) : element.setAttribute(key, value);
    Object.assign(element.dataset, data);
    element.append(...children);
    return element;
  };
  const svg = (name, attributes = {}, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };

  // What `kinds[kind]` returns for a question { id, kind, ... }, as { id, ... }, or { id, error }.
  const answer = (kinds, { id, kind, ...rest }) => {
    try {
      return { id, ...kinds[kind](rest) };
    } catch (error) {
      return { id, error: error.message };
    }
  };

  // Returns `ask(kind, rest)`, which promises the answer of `server()[kind](rest)`, in a worker made from the source text of `functions`: a page opened
  // from disk may not load one from a file.
  function worker(functions, server) {
    const after = `const answer = ${answer}, kinds = ${server.name}(); onmessage = (e) => postMessage(answer(kinds, e.data));`;
    const thread = new Worker(URL.createObjectURL(new Blob([[...functions, server, after].join("\n")], { type: "text/javascript" })));
    const waiting = new Map();
    thread.onmessage = ({ data }) => {
      const { resolve, reject } = waiting.get(data.id);
      waiting.delete(data.id);
      data.error ? reject(new Error(data.error)) : resolve(data);
    };
    let asked = 0;
    return (kind, rest = {}) => new Promise((resolve, reject) => {
      waiting.set(++asked, { resolve, reject });
      thread.postMessage({ id: asked, kind, ...rest });
    });
  }

  // Loads what the build wrote for a page: a script, since a page opened from disk may load nothing else, that calls `pageData(facts, data)`. `data`:
  // bytes, gzipped, which checks their sum, in base64. Returns { facts, bytes }; an error says in a sentence what is wrong.
  const waiting = new Map(); // by address: what to do with the data
  window.pageData = (...given) => waiting.get(document.currentScript.src)(given);
  async function load(file, folder) {
    const again = "build the book again (make book)", src = new URL(file, folder).href;
    if (!window.DecompressionStream) throw new Error("This page needs a newer browser, of 2023 or later: this one cannot unpack its data (it has no DecompressionStream).");
    const [facts, data] = await new Promise((resolve, reject) => {
      waiting.set(src, resolve);
      const missing = () => reject(new Error(`The file ${file} is missing or damaged; ${again}.`)); // of no effect if the data has arrived
      document.head.append(make("script", { src, onerror: missing, onload: missing }));
    });
    try {
      const packed = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      const bytes = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
      return { facts, bytes };
    } catch {
      throw new Error(`The file ${file} is damaged; ${again}.`);
    }
  }
  return { make, svg, worker, load };
})();
