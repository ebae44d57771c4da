// The view of dropped packets: by reason, Service and client, with the meaning of each reason.

import {ask, askAll} from './ask.js';
import {el, facts, say} from './dom.js';
import {count, perSecond, time} from './format.js';
import {Rates} from './rates.js';
import {Table} from './table.js';

let meanings; // by reason; the same for all views

async function meaningsOf(signal) {
  if (!meanings) {
    const {value} = await ask('reasons', undefined, signal);
    meanings = new Map(value.map((r) => [r.reason, r]));
  }
  return meanings;
}

export const drops = {
  name: 'drops',
  title: 'Drops',
  open() {
    const rates = new Rates();
    const over = el('select', {}, el('option', {value: '1m'}, 'the last minute'),
      el('option', {value: '10m'}, 'the last 10 minutes'));
    const note = el('p', {class: 'muted'});
    const kernel = el('dl', {class: 'facts'});
    const sampled = sampleTable();
    const totals = totalTable();
    return {
      element: el('div', {}, el('p', {class: 'fields'}, el('label', {}, 'Drops of', over)), sampled.element, note,
        el('h2', {}, 'All drops since the start'), totals.element,
        el('h2', {}, 'Dropped by the kernel program'), kernel),
      async ask(signal) {
        const known = await meaningsOf(signal);
        return {...await askAll({drops: ['drops', {over: over.value}], stats: ['stats']}, signal), known};
      },
      show({drops, stats, known, at}) {
        rates.next(at);
        const seconds = Math.max(1, (new Date(drops.until) - new Date(drops.since)) / 1000);
        const of = (reason) => known.get(reason) ?? {packet: 'a reason of another version', advice: '-'};
        sampled.update(drops.drops.map((d) => ({...d, rate: d.packets / seconds, meaning: of(d.reason)})));
        say(note, `Estimates by samples of ${Math.round(seconds)} s. The numbers below are exact.`);
        totals.update(totalsOf(stats).map((d) => ({...d, rate: rates.of(d.reason, d.packets), meaning: of(d.reason)})));
        facts(kernel, Object.entries(drops.kernelProgram ?? {}).map(([name, n]) => [name, count(n)]));
      },
    };
  },
};

// totalsOf adds the drops of all workers by reason.
function totalsOf(stats) {
  const sums = new Map();
  for (const w of stats.workers) {
    for (const [reason, n] of Object.entries(w.drops ?? {})) {
      sums.set(reason, (sums.get(reason) ?? 0) + n);
    }
  }
  return [...sums].map(([reason, packets]) => ({reason, packets}));
}

const meaningColumns = [
  {name: 'The packet', long: true, text: (d) => d.meaning.packet},
  {name: 'What to do', long: true, text: (d) => d.meaning.advice},
];

// shares lists the clients of a drop with their part of its packets.
function shares(d) {
  const parts = (d.clients ?? []).slice(0, 3)
    .map((c) => `${c.client || 'unknown'} ${Math.round(100 * c.packets / Math.max(1, d.packets))} %`);
  const others = (d.clients ?? []).length - parts.length + (d.moreClients ?? 0);
  return [...parts, ...(others > 0 ? [others + ' more'] : [])].join(', ') || '-';
}

function sampleTable() {
  return new Table({
    title: 'Drops', empty: 'no packet was dropped in this time', filter: true, sort: 'Packets',
    key: (d) => d.reason + ' ' + (d.service ?? ''),
    columns: [
      {name: 'Reason', text: (d) => d.reason},
      {name: 'Service', text: (d) => d.service || '-'},
      {name: 'Packets', hint: 'an estimate', text: (d) => count(d.packets), number: (d) => d.packets},
      {name: 'Rate', text: (d) => perSecond(d.rate), number: (d) => d.rate},
      {name: 'Clients with most', long: true, text: shares},
      {name: 'Last', text: (d) => time(d.last)},
      ...meaningColumns,
    ],
  });
}

function totalTable() {
  return new Table({
    title: 'Reasons', empty: 'no packet was dropped', key: (d) => d.reason, sort: 'Packets',
    columns: [
      {name: 'Reason', text: (d) => d.reason},
      {name: 'Packets', text: (d) => count(d.packets), number: (d) => d.packets},
      {name: 'Rate', text: (d) => perSecond(d.rate), number: (d) => d.rate},
      ...meaningColumns,
    ],
  });
}
