// What the scripts of the pages "Play", "Watch it learn" and "Grow one" share: an element of HTML or of SVG with its properties and children, in one
// call; and a worker that answers questions.
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

  // Returns `ask(kind, rest)`, which promises the answer of `server()`, a function from messages { id, kind, ... } to { id, ... } or { id, error }.
  // It runs in a worker made from the source text of `functions`, since a page opened from disk may not load one from a file; or in the page
  // itself where a worker is refused.
  function worker(functions, server) {
    const waiting = new Map();
    let asked = 0;
    function answered(data) {
      const { resolve, reject } = waiting.get(data.id);
      waiting.delete(data.id);
      data.error ? reject(new Error(data.error)) : resolve(data);
    }
    const asking = (port) => (kind, rest = {}) => new Promise((resolve, reject) => {
      const id = ++asked;
      waiting.set(id, { resolve, reject });
      port({ id, kind, ...rest });
    });
    const inPage = () => {
      const serve = server();
      return asking((message) => setTimeout(() => answered(serve(message))));
    };
    return new Promise((resolve) => {
      try {
        const parts = [...functions, server].map(String).join("\n");
        const after = `const serve = ${server.name}(); onmessage = (e) => postMessage(serve(e.data)); postMessage(null);`;
        const address = URL.createObjectURL(new Blob([`${parts}\n${after}`], { type: "text/javascript" }));
        const thread = new Worker(address);
        thread.onerror = () => resolve(inPage());
        thread.onmessage = (event) => {
          if (event.data) return answered(event.data);
          URL.revokeObjectURL(address);
          resolve(asking((message) => thread.postMessage(message)));
        };
      } catch {
        resolve(inPage());
      }
    });
  }
  return { make, svg, worker };
})();
