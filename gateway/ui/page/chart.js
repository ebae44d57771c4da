// A small line chart of the last minutes.

import {el, printable, say, set, svg} from './dom.js';

const width = 300;
const height = 84;

// minutes is the time that a chart shows.
const minutes = 5;

// gap is the time in seconds without a sample that breaks a line.
const gap = 60;

// Chart shows series, two at most: [{name}]. format prints a value.
export class Chart {
  #title;
  #format;
  #series;
  #samples = []; // {at, values}
  #image;
  #range;

  constructor({title, series, format}) {
    this.#title = title;
    this.#format = format;
    this.#image = svg('svg', {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img'},
      svg('path', {class: 'axis', d: `M0 ${height - 0.5}H${width}`}));
    this.#range = el('p', {class: 'range'});
    this.#series = series.map((name, i) => {
      const style = i ? 'second' : 'first';
      const line = svg('path', {class: 'line ' + style});
      this.#image.append(line);
      return {name, line, label: el('li', {class: style})};
    });
    this.element = el('figure', {}, el('figcaption', {}, title), el('ul', {}, this.#series.map((s) => s.label)),
      this.#image, this.#range);
  }

  // add adds a sample: a time in seconds and a value of each series, or null if it is not known.
  add(at, ...values) {
    this.#samples.push({at, values});
    while (this.#samples[0].at < at - 60 * minutes) {
      this.#samples.shift();
    }
    const known = this.#samples.flatMap((s) => s.values).filter((v) => v !== null);
    const top = Math.max(...known, 0);
    this.#series.forEach((s, i) => {
      set(s.line, 'd', this.#path(i, at, top || 1));
      say(s.label, (s.name + ' ' + this.#format(values[i])).trim());
    });
    const text = known.length ? 'greatest of the last ' + minutes + ' min: ' + this.#format(top) : 'no rate yet';
    say(this.#range, text);
    set(this.#image, 'aria-label', printable(this.#title + '. ' +
      this.#series.map((s) => s.label.textContent).join(', ') + '; ' + text));
  }

  #path(i, now, top) {
    let d = '';
    let last = null;
    for (const {at, values} of this.#samples) {
      if (values[i] === null) {
        last = null;
        continue;
      }
      const x = width * (1 - (now - at) / (60 * minutes));
      const y = height - 1 - (height - 3) * values[i] / top;
      d += (last !== null && at - last <= gap ? 'L' : 'M') + x.toFixed(1) + ' ' + y.toFixed(1);
      last = at;
    }
    return d;
  }
}
