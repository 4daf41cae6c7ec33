// What the scripts of the pages "Play" and "Watch it learn" share: an element of HTML or of SVG with its properties and children, in one call.
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
  return { make, svg };
})();
