// The view of Services, and of the backends of one.

import {askAll} from './ask.js';
import {el, facts, say} from './dom.js';
import {hrefOfFlows} from './flows.js';
import {bits, count, perSecond, time} from './format.js';
import {Rates} from './rates.js';
import {Table} from './table.js';

export const services = {
  name: 'services',
  title: 'Services',
  open: (path) => (path.length === 4 ? one(path) : all()),
};

const portOf = (v) => (v.portName ? v.portName + ':' : '') + v.port + '/' + v.protocol;

// pathOf are the parts of the hash that name a service port.
const pathOf = (v, service) => [v.namespace, service, v.port, v.protocol];
const hrefOf = (v) => '#services/' + pathOf(v, v.name).map((part) => encodeURIComponent(part)).join('/');

// traffic adds the rates of a row to it.
function traffic(row, key, rates) {
  const rate = (name) => rates.of(key + ' ' + name, row.traffic[name]);
  const eight = (n) => (n === null ? null : 8 * n);
  return {
    ...row, created: rate('flows'), toBackend: eight(rate('toBackendBytes')), toClient: eight(rate('toClientBytes')),
  };
}

const trafficColumns = [
  {name: 'Created', hint: 'flows since the start of the daemon', text: (v) => count(v.traffic.flows),
    number: (v) => v.traffic.flows},
  {name: 'New flows', text: (v) => perSecond(v.created), number: (v) => v.created},
  {name: 'To backends', text: (v) => bits(v.toBackend), number: (v) => v.toBackend},
  {name: 'To clients', text: (v) => bits(v.toClient), number: (v) => v.toClient},
];

function all() {
  const rates = new Rates();
  const key = (v) => pathOf(v, v.name).join('/') + v.portName;
  const table = new Table({
    title: 'Service ports', empty: 'the gateway serves no Service', key, urgent: (v) => v.usable === 0, filter: true,
    columns: [
      {name: 'Service', text: (v) => v.namespace + '/' + v.name, href: hrefOf},
      {name: 'Port', text: portOf},
      {name: 'Backends', hint: 'usable ones of all', text: (v) => v.usable + '/' + v.backends,
        number: (v) => v.backends},
      ...trafficColumns,
      {name: 'Scheduler', text: (v) => v.scheduler},
      {name: 'Policy', text: policy},
      {name: 'Frontends', long: true, text: (v) => v.frontends.map((f) => f.address).join(', ') || '-'},
    ],
  });
  return {
    element: table.element,
    ask: (signal) => askAll({services: ['services']}, signal),
    show(answer) {
      rates.next(answer.at);
      table.update(answer.services.map((v) => traffic(v, key(v), rates)));
    },
  };
}

const policy = (v) => [v.externalPolicy, v.forwarding].filter(Boolean).join(', ');

function one(path) {
  const rates = new Rates();
  const is = (v, service) => pathOf(v, service).every((part, i) => String(part) === path[i]);
  const list = el('dl', {class: 'facts'});
  const frontends = frontendTable();
  const backends = backendTable();
  const gone = el('p', {role: 'status'});
  return {
    title: path[0] + '/' + path[1] + ' ' + path[2] + '/' + path[3],
    element: el('div', {}, el('p', {}, el('a', {href: '#services'}, 'All Services'), ' ',
      el('a', {href: hrefOfFlows({service: path[0] + '/' + path[1]})}, 'Flows of the Service')), gone, list,
      el('h2', {}, 'Backends'), backends.element, el('h2', {}, 'Frontends'), frontends.element),
    ask: (signal) => askAll({services: ['services'], backends: ['backends']}, signal),
    show(answer) {
      rates.next(answer.at);
      const service = answer.services.find((v) => is(v, v.name));
      say(gone, service ? '' : 'The gateway does not serve this service port.');
      facts(list, service ? settings(service) : []);
      frontends.update(service?.frontends ?? []);
      backends.update(answer.backends.filter((v) => is(v, v.service)).map((v) => traffic(v, v.address, rates)));
    },
  };
}

function settings(v) {
  const limits = Object.entries(v.limits ?? {}).map(([name, n]) => name + ' ' + n).join(', ');
  return [
    ['port', portOf(v)], ['scheduler', v.scheduler],
    ['affinity', v.affinitySeconds ? v.affinitySeconds + ' s by client' : 'none'],
    ['external policy', policy(v)], ['internal policy', v.internalPolicy],
    ['topology', [v.topologyIPv4, v.topologyIPv6].filter(Boolean).join(', ') || 'none'],
    ['PROXY protocol', v.proxyProtocol || 'none'], ['limits', limits || 'none'],
    ['usable backends', v.usable + ' of ' + v.backends, v.usable === 0],
  ];
}

function frontendTable() {
  const more = (f) => (f.moreSourceRanges ? ' and ' + f.moreSourceRanges + ' more' : '');
  const ranges = (f) => (f.sourceRanges ?? []).join(', ') + more(f);
  return new Table({
    title: 'Frontends', key: (f) => f.kind + f.address, urgent: (f) => f.usable === 0,
    columns: [
      {name: 'Address', text: (f) => f.address},
      {name: 'Kind', text: (f) => f.kind},
      {name: 'Usable backends', text: (f) => String(f.usable), number: (f) => f.usable},
      {name: 'Without backends', text: (f) => f.empty || '-'},
      {name: 'Client address', text: (f) => (f.keepClient ? 'kept' : 'replaced')},
      {name: 'Source ranges', long: true, text: (f) => ranges(f) || 'all'},
    ],
  });
}

// inOut says whether a backend gets new flows.
export function inOut(v) {
  if (!v.newFlows) {
    return 'out';
  }
  return v.podsOnly ? 'in, only from pods' : 'in';
}

// why is the reason of inOut.
export const why = (v) => v.why || v.state;

function health(v) {
  const h = v.health;
  if (!h) {
    return 'not checked';
  }
  const state = h.down ? 'DOWN' : h.slowStart ? 'up, slow start ' + h.slowStart + ' %' : 'up';
  const last = h.last ? ': ' + h.last + ' at ' + time(h.at) : '';
  return `${state} since ${time(h.since)}, ${h.check}${h.passive ? ' (passive)' : ''}${last}`;
}

function backendTable() {
  return new Table({
    title: 'Backends', empty: 'no endpoints', key: (v) => v.address,
    urgent: (v) => !v.newFlows || Boolean(v.health?.down),
    columns: [
      {name: 'Backend', text: (v) => v.address + (v.local ? ' (this node)' : ''),
        href: (v) => hrefOfFlows({backend: v.address})},
      {name: 'New flows?', text: inOut},
      {name: 'Why', long: true, text: why},
      {name: 'State', text: (v) => v.state},
      {name: 'Connections', text: (v) => count(v.connections), number: (v) => v.connections},
      ...trafficColumns,
      {name: 'Weight', text: (v) => String(v.weight), number: (v) => v.weight},
      {name: 'Health', long: true, text: health},
      {name: 'Next hop', text: (v) => v.nextHop || '-'},
    ],
  });
}
