// The view of the node: charts, what to look at, facts, workers and interfaces.

import {askAll} from './ask.js';
import {attention, problemText} from './attention.js';
import {Chart} from './chart.js';
import {el, facts} from './dom.js';
import {bits, count, percent, perSecond, plural, short, time} from './format.js';
import {Rates} from './rates.js';
import {Table} from './table.js';

export const node = {
  name: 'node',
  title: 'Node',
  open() {
    const rates = new Rates();
    const charts = {
      packets: new Chart({title: 'Packets', series: ['in', 'out'], format: perSecond}),
      bits: new Chart({title: 'Bits', series: ['in', 'out'], format: bits}),
      created: new Chart({title: 'New flows', series: [''], format: perSecond}),
      drops: new Chart({title: 'Dropped packets', series: [''], format: perSecond}),
      flows: new Chart({title: 'Flows', series: ['IPv4', 'IPv6'], format: short}),
      load: new Chart({title: 'Load of the workers', series: ['all', 'busiest'], format: percent}),
    };
    const look = attentionTable();
    const list = el('dl', {class: 'facts'});
    const workers = workerTable();
    const tables = flowTables();
    const interfaces = interfaceTable();
    return {
      element: el('div', {}, el('div', {class: 'charts'}, Object.values(charts).map((c) => c.element)),
        el('h2', {}, 'To look at'), look.element, el('h2', {}, 'State'), list,
        el('h2', {}, 'Workers'), workers.element, el('h2', {}, 'Flow tables'), tables.element,
        el('h2', {}, 'Interfaces'), interfaces.element),
      ask: (signal) => askAll({status: ['status'], stats: ['stats']}, signal),
      show({status, stats, at}) {
        rates.next(at);
        const rows = stats.workers.map((w) => workerRow(w, rates));
        draw(charts, at, rows, stats);
        look.update(lookAt(status));
        facts(list, state(status));
        workers.update(rows);
        tables.update(stats.flows);
        interfaces.update(status.interfaces ?? []);
      },
    };
  },
};

// workerRow has a worker's counters, per second from the second answer on.
function workerRow(w, rates) {
  const rate = (name) => rates.of(w.worker + ' ' + name, w[name]);
  const row = {...w, rates: {}, load: null};
  for (const name of ['rx', 'rxBytes', 'tx', 'txBytes', 'dropped', 'flowsCreated', 'busyNanos']) {
    row.rates[name] = rate(name);
  }
  if (row.rates.busyNanos !== null) {
    row.load = Math.min(1, row.rates.busyNanos / 1e9);
  }
  return row;
}

// sum adds the rates of all workers; null before there are any.
function sum(rows, name) {
  return rows.some((r) => r.rates[name] === null) ? null : rows.reduce((all, r) => all + r.rates[name], 0);
}

function draw(charts, at, rows, stats) {
  const bytes = (name) => {
    const n = sum(rows, name);
    return n === null ? null : 8 * n;
  };
  charts.packets.add(at, sum(rows, 'rx'), sum(rows, 'tx'));
  charts.bits.add(at, bytes('rxBytes'), bytes('txBytes'));
  charts.created.add(at, sum(rows, 'flowsCreated'));
  charts.drops.add(at, sum(rows, 'dropped'));
  const used = (family) => stats.flows.find((t) => t.family === family)?.used ?? null;
  charts.flows.add(at, used('ipv4'), used('ipv6'));
  const loads = rows.map((r) => r.load).filter((l) => l !== null);
  charts.load.add(at, loads.length ? loads.reduce((a, b) => a + b) / loads.length : null,
    loads.length ? Math.max(...loads) : null);
}

// lookAt lists what needs an operator, then warnings about objects that are served.
function lookAt(status) {
  const warnings = (status.problems ?? []).filter((p) => p.warning)
    .map((p) => ({name: 'warning', text: problemText(p), served: true}));
  return [...attention(status), ...warnings];
}

function attentionTable() {
  return new Table({
    title: 'To look at', empty: 'nothing needs attention', key: (v) => v.name + ' ' + v.text, urgent: (v) => !v.served,
    columns: [{name: 'What', text: (v) => v.name}, {name: 'Detail', text: (v) => v.text, long: true}],
  });
}

function state(v) {
  const rows = [
    ['ready', v.ready ? 'yes' : 'no: ' + (v.notReady ?? []).join('; '), !v.ready],
    ['applied', v.applied ? 'yes' : 'no: newer objects are read than published', !v.applied],
    ['daemon', `${v.version.version}, pid ${v.pid}, since ${time(v.startedAt)}`],
    ['serving', `${plural(v.snapshot.services, 'service port')}, ${plural(v.snapshot.frontends, 'frontend')}, ` +
      plural(v.snapshot.backends, 'backend')],
    ['configuration', `${v.config.file}, read ${time(v.config.loadedAt)}`],
  ];
  for (const s of v.sources ?? []) {
    const text = s.error ? s.error : s.synced ? plural(s.objects, 'object') : 'not read completely yet';
    rows.push(['source ' + s.name, text, Boolean(s.error) || !s.synced]);
  }
  for (const m of v.group?.members ?? []) {
    rows.push(['member ' + m.name, m.error || `${plural(m.copies, 'copy').replace('copys', 'copies')}, lag ${m.lag}`,
      Boolean(m.error)]);
  }
  return rows;
}

function workerTable() {
  const rate = (name, field, format = perSecond) =>
    ({name, text: (w) => format(w.rates[field]), number: (w) => w.rates[field]});
  const total = (name, field, hint) => ({name, hint, text: (w) => count(w[field]), number: (w) => w[field]});
  return new Table({
    title: 'Workers', key: (w) => String(w.worker),
    columns: [
      {name: 'Worker', text: (w) => String(w.worker)},
      {name: 'CPU', text: (w) => (w.cpu < 0 ? 'any' : String(w.cpu))},
      {name: 'Load', text: (w) => percent(w.load), number: (w) => w.load},
      rate('In', 'rx'), rate('Out', 'tx'), rate('Dropped', 'dropped'), rate('New flows', 'flowsCreated'),
      total('Packets in', 'rx', 'since the start'), total('Packets out', 'tx', 'since the start'),
      total('Packets dropped', 'dropped', 'since the start'),
      {name: 'Last pass', text: (w) => (w.pulseNanos < 0 ? 'never' : Math.round(w.pulseNanos / 1e6) + ' ms ago'),
        number: (w) => w.pulseNanos},
    ],
  });
}

const fill = (t) => (t.capacity ? t.used / t.capacity : null);

function flowTables() {
  return new Table({
    title: 'Flow tables', key: (t) => t.family,
    columns: [
      {name: 'Family', text: (t) => t.family},
      {name: 'Flows', text: (t) => count(t.used), number: (t) => t.used},
      {name: 'Capacity', text: (t) => count(t.capacity), number: (t) => t.capacity},
      {name: 'Fill', text: (t) => percent(fill(t)), number: fill},
      {name: 'Half open', text: (t) => count(t.halfOpen), number: (t) => t.halfOpen},
      {name: 'States', long: true, text: (t) => Object.entries(t.states ?? {}).filter(([, n]) => n > 0)
        .map(([name, n]) => name + '=' + n).join(', ') || '-'},
    ],
  });
}

function interfaceTable() {
  return new Table({
    title: 'Interfaces', key: (v) => v.name, urgent: (v) => !v.up,
    columns: [
      {name: 'Interface', text: (v) => v.name},
      {name: 'State', text: (v) => (v.up ? 'up' : 'DOWN')},
      {name: 'Driver', text: (v) => v.driver || '-'},
      {name: 'Mode', text: (v) => v.mode || '-'},
      {name: 'MTU', text: (v) => String(v.mtu), number: (v) => v.mtu},
      {name: 'Queues', text: (v) => String(v.queues.length), number: (v) => v.queues.length},
      {name: 'Sockets', long: true, text: (v) => v.queues.map((q) => 'queue ' + q.queue + ' worker ' + q.worker + ' ' +
        (!q.bound ? 'not bound' : q.zeroCopy ? 'zero-copy' : 'copy')).join(', ')},
    ],
  });
}
