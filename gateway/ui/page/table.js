// A table that is sorted and filtered, and whose rows are updated in place, so that focus and scroll
// positions stay.

import {el, printable, say, set} from './dom.js';

// mostRows bounds the rows that are drawn.
const mostRows = 500;

const words = new Intl.Collator('en', {numeric: true});

let tables = 0; // made, for their names

// Table shows rows. columns: name, text (of a row, a text), number (by which it is sorted; then the
// column is aligned to the right), long (it may wrap), href (of a row: the first column links there),
// hint (a title). key identifies a row. urgent rows come first unless a column is chosen. sort is the
// name of the column by which rows are sorted at first, numbers downwards.
export class Table {
  #columns;
  #key;
  #urgent;
  #sort;
  #down;
  #filter = '';
  #rows = [];
  #drawn = new Map();
  #body = el('tbody');
  #heads;
  #caption;
  #title;

  constructor({title, columns, key, urgent = () => false, sort = '', filter = false, empty = 'none'}) {
    this.#columns = columns;
    this.#key = key;
    this.#urgent = urgent;
    this.#sort = sort;
    this.#down = Boolean(columns.find((c) => c.name === sort)?.number);
    this.#title = title;
    this.empty = empty;
    this.#caption = el('caption', {id: 'table-' + tables++});
    this.#heads = columns.map((c) => el('th', {scope: 'col', class: c.number ? 'number' : null},
      el('button', {type: 'button', title: c.hint, click: () => this.#sortBy(c)}, c.name)));
    const table = el('table', {}, this.#caption, el('thead', {}, el('tr', {}, this.#heads)), this.#body);
    const scroll = el('div',
      {class: 'scroll', tabindex: 0, role: 'region', 'aria-labelledby': this.#caption.id}, table);
    this.element = filter ? el('div', {}, this.#field(), scroll) : scroll;
  }

  // update shows other rows.
  update(rows) {
    this.#rows = rows;
    this.draw();
  }

  #field() {
    const input = el('input', {type: 'search', autocomplete: 'off', spellcheck: 'false', 'data-filter': true,
      input: () => {
        this.#filter = input.value.toLowerCase();
        this.draw();
      }});
    return el('p', {class: 'fields'}, el('label', {}, 'Only rows with', input));
  }

  #sortBy(column) {
    if (this.#sort === column.name) {
      this.#down = !this.#down;
    } else {
      this.#sort = column.name;
      this.#down = Boolean(column.number);
    }
    this.draw();
  }

  // #compare orders rows by the chosen column; unknown numbers are last.
  #compare(a, b) {
    const column = this.#columns.find((c) => c.name === this.#sort);
    let order = 0;
    if (!column) {
      order = this.#urgent(b) - this.#urgent(a);
    } else if (column.number) {
      const [x, y] = [column.number(a), column.number(b)];
      order = x === null || y === null ? (x === null) - (y === null) : (x - y) * (this.#down ? -1 : 1);
    } else {
      order = words.compare(column.text(a), column.text(b)) * (this.#down ? -1 : 1);
    }
    return order;
  }

  draw() {
    this.#columns.forEach((c, i) => set(this.#heads[i], 'aria-sort',
      c.name !== this.#sort ? null : this.#down ? 'descending' : 'ascending'));
    const matching = this.#rows.filter((row) => !this.#filter ||
      this.#columns.some((c) => printable(c.text(row)).toLowerCase().includes(this.#filter)));
    const rows = matching.sort((a, b) => this.#compare(a, b)).slice(0, mostRows);
    const kept = new Map();
    for (const row of rows) {
      const key = this.#key(row);
      kept.set(key, this.#line(this.#drawn.get(key), row));
    }
    for (const [key, line] of this.#drawn) {
      if (!kept.has(key)) {
        line.remove();
      }
    }
    this.#drawn = kept;
    this.#place([...kept.values()]);
    let text = this.#title + ': ' + this.#rows.length;
    if (this.#filter) {
      text += ', ' + matching.length + ' with “' + this.#filter + '”';
    }
    if (matching.length > mostRows) {
      text += '; the first ' + mostRows + ' are shown, a filter selects others';
    }
    say(this.#caption, this.#rows.length ? text : this.#title + ': ' + this.empty);
  }

  // #line makes or updates a row.
  #line(line, row) {
    if (!line) {
      line = el('tr', {}, this.#columns.map((c, i) => i === 0 ? el('th', {scope: 'row'}) :
        el('td', {class: c.number ? 'number' : c.long ? 'long' : null})));
    }
    set(line, 'class', this.#urgent(row) ? 'urgent' : null);
    this.#columns.forEach((c, i) => {
      const cell = line.cells[i];
      const href = c.href?.(row);
      if (!href) {
        say(cell, c.text(row));
        return;
      }
      if (!cell.firstElementChild) {
        cell.replaceChildren(el('a'));
      }
      set(cell.firstElementChild, 'href', href);
      say(cell.firstElementChild, c.text(row));
    });
    return line;
  }

  // #place puts rows into order. The row with the focus does not move, the others move around it: a
  // moved element loses the focus.
  #place(lines) {
    const fixed = lines.findIndex((line) => line.contains(document.activeElement));
    let next = null;
    for (let i = lines.length - 1; i >= 0; i--) {
      if (i !== fixed && (lines[i].nextSibling !== next || !lines[i].parentNode)) {
        this.#body.insertBefore(lines[i], next);
      }
      next = lines[i];
    }
  }
}
