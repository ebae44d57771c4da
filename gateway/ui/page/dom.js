// Elements and texts. Every text of an answer becomes a text node or the value of an attribute: no
// function here, or elsewhere in the page, parses a text as HTML.

// printable replaces characters that are not shown, or that change the order or the place of others.
export function printable(text) {
  return String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu,
    (c) => '\\u{' + c.codePointAt(0).toString(16) + '}');
}

// el returns an element. An attribute that is a function listens to the event of its name; one that
// is null or false is left out. Children are nodes or texts.
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

// svg is el for SVG.
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') {
      element.addEventListener(name, value);
    } else {
      set(element, name, value);
    }
  }
  for (const child of children.flat()) {
    element.append(child instanceof Node ? child : printable(child));
  }
  return element;
}

// set sets an attribute if it changes; null or false removes it.
export function set(element, name, value) {
  if (value === null || value === undefined || value === false) {
    element.removeAttribute(name);
    return;
  }
  const text = value === true ? '' : printable(value);
  if (element.getAttribute(name) !== text) {
    element.setAttribute(name, text);
  }
}

// say sets the text of an element if it changes: a live region is read out again otherwise.
export function say(element, text) {
  const shown = printable(text);
  if (element.textContent !== shown) {
    element.textContent = shown;
  }
}

// facts fills a list of names and values: [name, value, bad].
export function facts(list, rows) {
  const text = JSON.stringify(rows);
  if (list.shown === text) {
    return;
  }
  list.shown = text;
  list.replaceChildren(...rows.flatMap(([name, value, bad]) =>
    [el('dt', {}, name), el('dd', bad ? {class: 'bad'} : {}, value)]));
}
