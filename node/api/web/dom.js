// Element builders. Text always becomes a text node, so data from other nodes is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name === "className" ? "class" : name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export const h = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// Replaces the content and restores the focus by data-key.
export function show(container, ...children) {
  const key = container.contains(document.activeElement)
    ? document.activeElement.getAttribute("data-key") : null;
  container.replaceChildren();
  append(container, children);
  if (key) container.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

// Redraws content only when its data has changed.
export function redrawn(container, draw) {
  let before;
  return (data) => {
    const now = JSON.stringify(data);
    if (now === before) return;
    before = now;
    show(container, draw(data));
  };
}
