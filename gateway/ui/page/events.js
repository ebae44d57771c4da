// The view of events: what changed, and what began or ended, newest first.

import {ask} from './ask.js';
import {el} from './dom.js';
import {time} from './format.js';
import {Table} from './table.js';

// mostEvents bounds the events that the page keeps.
const mostEvents = 5000;

export const events = {
  name: 'events',
  title: 'Events',
  open() {
    let list = []; // newest first
    let since = '';
    const level = el('select', {change: () => draw()}, el('option', {value: ''}, 'all'),
      el('option', {value: 'WARN'}, 'warnings and errors'), el('option', {value: 'ERROR'}, 'errors'));
    const table = eventTable();
    const shown = {'': () => true, WARN: (e) => e.level !== 'INFO', ERROR: (e) => e.level === 'ERROR'};
    const draw = () => table.update(list.filter(shown[level.value]));
    return {
      element: el('div', {}, el('p', {class: 'fields'}, el('label', {}, 'Level', level)), table.element),
      ask: (signal) => ask('events', since ? {since} : undefined, signal),
      show({value}) {
        if (value.length) {
          since = value[value.length - 1].time;
        }
        list = [...value.reverse(), ...list].slice(0, mostEvents);
        draw();
      },
    };
  },
};

const details = (e) => Object.entries(e.details ?? {}).sort(([a], [b]) => (a < b ? -1 : 1))
  .map(([name, value]) => name + '=' + value).join('  ');

function eventTable() {
  return new Table({
    title: 'Events', empty: 'there are none', filter: true, key: (e) => e.time + e.message,
    columns: [
      {name: 'Time', text: (e) => time(e.time)},
      {name: 'Level', text: (e) => e.level},
      {name: 'Event', long: true, text: (e) => e.message},
      {name: 'About', long: true, text: (e) => details(e) || '-'},
    ],
  });
}
