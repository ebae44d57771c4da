// The page: views by the hash of the URL, each read again and again while it is shown.

import {ask} from './ask.js';
import {el, facts, say, set} from './dom.js';
import {plural, time} from './format.js';
import {attention} from './attention.js';
import {drops} from './drops.js';
import {events} from './events.js';
import {explain} from './explain.js';
import {flows} from './flows.js';
import {node} from './node.js';
import {services} from './services.js';

// A view has a name, a title and open(path), which returns an element, ask(signal) and show(answer),
// and, if its title differs, title. A view that is read once has once. path are the parts of the
// hash after the name.
const views = [node, services, flows, drops, events, explain];

const every = 1000; // milliseconds from one answer to the next
const headEvery = 5000;

// The next request waits so many times as long as the gateway worked on the last one: it works for a
// twentieth of a CPU at most, as for sluice top.
const rest = 19;

const byID = (id) => document.getElementById(id);
const content = byID('content');

let paused = false;
let shown = new AbortController(); // of the view
let wake = () => {};

// open shows the view that the hash names. follow: the reader asked for it, so that it gets the focus.
function open(follow) {
  shown.abort();
  shown = new AbortController();
  const [name, ...path] = location.hash.slice(1).split('/').map(decoded);
  const view = views.find((v) => v.name === name) ?? views[0];
  const page = view.open(path);
  const title = el('h1', {tabindex: -1}, page.title ?? view.title);
  content.replaceChildren(title, page.element);
  for (const link of byID('views').querySelectorAll('a')) {
    set(link, 'aria-current', link.dataset.view === view.name ? 'page' : null);
  }
  document.title = title.textContent + ' - Sluice';
  if (follow) {
    title.focus({preventScroll: true});
    window.scrollTo(0, 0);
  }
  read(page, shown.signal);
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// read reads a view until signal aborts.
async function read(page, signal) {
  while (!signal.aborted) {
    let wait = every;
    const began = performance.now();
    try {
      const answer = await page.ask(signal);
      if (signal.aborted) {
        return;
      }
      page.show(answer);
      wait = Math.max(every, rest * answer.took);
      problem('');
      const how = wait > every ? ', each ' + (wait / 1000).toFixed(0) + ' s as answers take long' : '';
      say(byID('sampled'), 'read at ' + new Date(answer.at * 1000).toISOString().slice(11, 19) + ' UTC' + how);
      if (page.once) {
        return;
      }
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      problem(error.message);
    }
    await ready(Math.max(0, wait - (performance.now() - began)));
  }
}

// ready waits for a time, and then until the page is visible and not paused.
async function ready(milliseconds) {
  await new Promise((resolve) => setTimeout(resolve, milliseconds));
  while (document.hidden || paused) {
    await new Promise((resolve) => {
      const before = wake;
      wake = () => {
        before();
        resolve();
      };
    });
  }
}

function problem(text) {
  const box = byID('problem');
  set(box, 'hidden', text ? null : true);
  say(box, text ? text + '. What is shown is older.' : '');
}

// readHead reads the lines above all views.
async function readHead() {
  for (;;) {
    try {
      const {value} = await ask('status');
      say(byID('node'), value.node);
      const state = value.draining ? 'draining' : value.ready ? 'ready' : 'NOT READY';
      say(byID('state'), `${value.version.version}, ${state}, since ${time(value.startedAt)}`);
      const list = attention(value);
      say(byID('attention'), list.length ? plural(list.length, 'thing') + ' to look at: ' + list[0].name +
        (list.length > 1 ? ' and more, on the view Node' : ', on the view Node') : '');
    } catch (error) {
      say(byID('state'), 'does not answer');
    }
    await ready(headEvery);
  }
}

function pause() {
  paused = !paused;
  set(byID('pause'), 'aria-pressed', String(paused));
  woken();
}

function woken() {
  const resolve = wake;
  wake = () => {};
  resolve();
}

// keys are the shortcuts: [key, what it does, function].
const keys = [
  ...views.map((v, i) => [String(i + 1), 'Show ' + v.title, () => { location.hash = v.name; }]),
  ['/', 'Filter the table', (e) => {
    const field = content.querySelector('[data-filter]');
    if (field) {
      e.preventDefault();
      field.focus();
    }
  }],
  ['p', 'Pause, or go on', pause],
  ['Escape', 'Leave the filter, or go back to the list', () => {
    if (document.activeElement.matches('input, select')) {
      document.activeElement.blur();
    } else if (location.hash.includes('/')) {
      location.hash = location.hash.slice(1).split('/')[0];
    }
  }],
  ['?', 'Show these keys', () => byID('help').showModal()],
];

function key(e) {
  const typing = e.target.matches('input:not([type=checkbox]), select');
  if (e.key.length === 1 && (typing || !byID('keys-on').checked)) {
    return;
  }
  if (e.ctrlKey || e.altKey || e.metaKey || byID('help').open) {
    return;
  }
  keys.find(([name]) => name === e.key)?.[2](e);
}

byID('views').append(...views.map((v) => el('li', {}, el('a', {href: '#' + v.name, 'data-view': v.name}, v.title))));
facts(byID('help-keys'), keys.map(([name, what]) => [name, what]));
byID('pause').addEventListener('click', pause);
byID('keys').addEventListener('click', () => byID('help').showModal());
document.querySelector('.skip').addEventListener('click', (e) => {
  e.preventDefault(); // the hash names the view
  content.focus();
});
document.addEventListener('keydown', key);
document.addEventListener('visibilitychange', woken);
window.addEventListener('hashchange', () => open(true));
open(false);
readHead();
