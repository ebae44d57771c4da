// The view that explains a packet: its path through the gateway, step by step, as sluice explain
// finds it.

import {ask, askAll} from './ask.js';
import {problemText} from './attention.js';
import {el} from './dom.js';
import {Table} from './table.js';

export const explain = {
  name: 'explain',
  title: 'Explain',
  open(path) {
    const [from = '', to = '', protocol = 'TCP', established = ''] = path;
    const vips = el('datalist', {id: 'vips'});
    const result = el('div', {'aria-live': 'polite'});
    return {
      once: true, // an answer is not read again: the reader asks
      element: el('div', {},
        el('p', {}, 'What would the gateway do with this packet, and why? The question changes nothing.'),
        questionForm({from, to, protocol, established}), vips, result),
      async ask(signal) {
        const services = await askAll({services: ['services']}, signal);
        if (!from || !to) {
          return services;
        }
        const query = {from, to: to + '/' + protocol, ...(established ? {established: 'true'} : {})};
        return {...services, answer: (await ask('explain', query, signal)).value};
      },
      show({services, answer}) {
        const addresses = services.flatMap((v) => v.frontends.filter((f) => f.kind !== 'NodePort')
          .map((f) => ({value: f.address, label: v.namespace + '/' + v.name})));
        vips.replaceChildren(...addresses.map((a) => el('option', a)));
        result.replaceChildren(...(answer ? drawn(answer) : []));
      },
    };
  },
};

function questionForm({from, to, protocol, established}) {
  const field = (value, placeholder, list) =>
    el('input', {value, placeholder, list, required: true, autocomplete: 'off', spellcheck: 'false'});
  const client = field(from, '198.51.100.7 or 198.51.100.7:40000');
  const vip = field(to, '203.0.113.10:80', 'vips');
  const kind = el('select', {}, ['TCP', 'UDP', 'SCTP'].map((value) =>
    el('option', {value, selected: value === protocol}, value)));
  const open = el('input', {type: 'checkbox', checked: Boolean(established)});
  return el('form', {class: 'fields', submit: (e) => {
    e.preventDefault();
    const parts = [client.value.trim(), vip.value.trim(), kind.value, ...(open.checked ? ['established'] : [])];
    const hash = '#explain/' + parts.map(encodeURIComponent).join('/');
    if (location.hash === hash) {
      window.dispatchEvent(new HashChangeEvent('hashchange')); // ask again
    } else {
      location.hash = hash;
    }
  }}, el('label', {}, 'Client', client), el('label', {}, 'VIP and port', vip), el('label', {}, 'Protocol', kind),
  el('label', {class: 'check'}, open, 'of an open connection'), el('button', {}, 'Explain'));
}

const verdicts = {
  forward: 'forwarded', reject: 'rejected: the sender gets an ICMP error or an RST', drop: 'dropped without an answer',
  pass: 'passed to the kernel, as without Sluice',
};

// drawn returns the path of the packet: the client, a box of each step, and the verdict.
function drawn(v) {
  const packet = v.protocol === 'UDP' ? 'a datagram' : v.opens ? 'opens a connection' : 'of an open connection';
  const assumed = v.anyPort ? ', the source port is assumed' : '';
  const box = (kind, name, ...content) => el('li', {class: kind}, el('strong', {}, name), ' ', ...content);
  const good = v.verdict === 'forward';
  const steps = v.steps.filter((s) => s.name !== 'verdict').map((s) => box(s.unknown ? 'step assumed' : 'step', s.name,
    s.text + (s.unknown ? ' (assumed)' : '')));
  const target = good && v.backend ? ' to ' + v.backend + (v.backendUnknown ? ' or another backend' : '') : '';
  const parts = [
    el('h2', {}, 'Path of the packet'),
    el('ol', {class: 'path'},
      box('end', 'client', `${v.from}, ${v.protocol} to ${v.to}: ${packet}${assumed}`), ...steps,
      box(good ? 'verdict' : 'verdict stopped', 'verdict', (verdicts[v.verdict] ?? v.verdict) + target +
        (v.reason ? ' (' + v.reason + ')' : ''))),
  ];
  if (v.advice) {
    parts.push(el('p', {}, el('strong', {}, 'What to do: '), v.advice));
  }
  for (const p of v.problems ?? []) {
    parts.push(el('p', {class: 'bad'}, problemText(p)));
  }
  if (v.endpoints?.length) {
    parts.push(el('h2', {}, 'Endpoints of ' + (v.service ?? 'the Service')), endpoints(v).element);
  }
  return parts;
}

function endpoints(v) {
  const table = new Table({
    title: 'Endpoints', key: (e) => e.address, urgent: (e) => !e.in,
    columns: [
      {name: 'Endpoint', text: (e) => e.address + (e.address === v.backend ? ' (chosen)' : '')},
      {name: 'New flows?', text: (e) => (e.in ? 'in' : 'out')},
      {name: 'Why', long: true, text: (e) => e.why},
      {name: 'Weight', text: (e) => String(e.weight), number: (e) => e.weight},
    ],
  });
  table.update(v.endpoints);
  return table;
}
