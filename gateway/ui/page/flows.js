// The view of flows: the clients with most, and a listing by filters, as of sluice flows.

import {askAll} from './ask.js';
import {el, say} from './dom.js';
import {bits, count, perSecond, short} from './format.js';
import {Table} from './table.js';

// The filters of a listing, in the hash as name=value, and words that are allowed.
const texts = [['client', 'Client'], ['vip', 'VIP or node port'], ['backend', 'Backend'], ['service', 'Service']];
const protocols = ['tcp', 'udp', 'sctp', 'icmp', 'icmpv6'];

// hrefOfFlows is the hash of a listing by filters: {client: '192.0.2.1'}.
export const hrefOfFlows = (filters) => '#flows' + Object.entries(filters).filter(([, value]) => value)
  .map(([name, value]) => '/' + name + '=' + encodeURIComponent(value)).join('');

export const flows = {
  name: 'flows',
  title: 'Flows',
  open(path) {
    const filters = Object.fromEntries(path.map((part) => part.split(/=(.*)/s).slice(0, 2)));
    const form = filterForm(filters);
    const note = el('p', {class: 'muted', role: 'status'});
    const listing = flowTable();
    const clients = clientTable();
    const clientNote = el('p', {class: 'muted'});
    return {
      element: el('div', {}, form.element, listing.element, note, el('h2', {}, 'Clients'), clients.element, clientNote),
      ask: (signal) => askAll({flows: ['flows', filters], clients: ['clients'], states: ['states']}, signal),
      show(answer) {
        form.states(answer.states);
        listing.update(answer.flows.flows);
        say(note, answer.flows.more ? 'There are more flows than these: give a filter.' : '');
        clients.update(answer.clients.clients.map((c) => ({...c, bits: c.rated ? 8 * c.bytes : null,
          packets: c.rated ? c.packets : null})));
        const more = answer.clients.more ? count(answer.clients.more) + ' clients with less are not shown.' : '';
        say(clientNote, [more, answer.clients.note].filter(Boolean).join(' '));
      },
    };
  },
};

// filterForm has a field of each filter.
function filterForm(filters) {
  const fields = texts.map(([name, label]) => [name, label,
    el('input', {name, value: filters[name] ?? '', autocomplete: 'off', spellcheck: 'false'})]);
  const option = (name, value) => el('option', {value, selected: filters[name] === value}, value || 'any');
  const select = (name, words) => el('select', {name}, ['', ...words].map((w) => option(name, w)));
  const state = select('state', filters.state ? [filters.state] : []);
  const protocol = select('protocol', protocols);
  const all = [...fields, ['state', 'State', state], ['protocol', 'Protocol', protocol]];
  const element = el('form', {class: 'fields', submit: (e) => {
    e.preventDefault();
    location.hash = hrefOfFlows(Object.fromEntries(all.map(([name, , field]) => [name, field.value.trim()])));
  }}, all.map(([, label, field]) => el('label', {}, label, field)), el('button', {}, 'List'),
  el('a', {href: '#flows'}, 'No filter'));
  return {
    element,
    states(words) {
      const known = [...state.options].map((o) => o.value);
      state.append(...words.filter((w) => !known.includes(w)).map((w) => option('state', w)));
    },
  };
}

const bytesOf = (v) => (v.traffic ? v.traffic.toBackendBytes + v.traffic.toClientBytes : null);

function flowTable() {
  return new Table({
    title: 'Flows', empty: 'no flow matches', key: (v) => v.protocol + v.client + v.vip,
    columns: [
      {name: 'Protocol', text: (v) => v.protocol},
      {name: 'State', text: (v) => v.state},
      {name: 'Client', text: (v) => v.client},
      {name: 'VIP', text: (v) => v.vip},
      {name: 'Backend', text: (v) => v.backend},
      {name: 'Service', text: (v) => v.service || '-'},
      {name: 'Source', hint: 'the address and port that the backend sees', text: (v) => v.snat},
      {name: 'Bytes', text: (v) => short(bytesOf(v), 'B'), number: bytesOf},
      {name: 'Idle', text: (v) => v.idleSeconds + ' s', number: (v) => v.idleSeconds},
      {name: 'Ends in', text: (v) => v.expiresSeconds + ' s', number: (v) => v.expiresSeconds},
      {name: 'Copies', hint: 'at other gateways of the group', text: (v) => v.group || '-'},
    ],
  });
}

function clientTable() {
  return new Table({
    title: 'Clients', empty: 'there are no flows', key: (c) => c.client, sort: 'Flows',
    columns: [
      {name: 'Client', text: (c) => c.client, href: (c) => hrefOfFlows({client: c.client})},
      {name: 'Flows', text: (c) => count(c.flows), number: (c) => c.flows},
      {name: 'Opening', hint: 'TCP flows whose handshake is not complete', text: (c) => count(c.opening),
        number: (c) => c.opening},
      {name: 'Packets', text: (c) => perSecond(c.packets), number: (c) => c.packets},
      {name: 'Bits', text: (c) => bits(c.bits), number: (c) => c.bits},
    ],
  });
}
