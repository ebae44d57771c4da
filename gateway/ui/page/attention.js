// What an operator has to look at, as sluice top and sluice status list it.

// problemText is a problem with its object, or with its source if it has none.
export function problemText(p) {
  return [p.object?.trim() || p.source, p.field, p.message].filter(Boolean).join(': ');
}

// attention lists conditions, problems and the refused configuration of a status: {name, text}.
// Warnings about objects that are served are not in it.
export function attention(status) {
  const list = [];
  if (!status.ready) {
    list.push({name: 'not ready', text: (status.notReady ?? []).join('; ')});
  }
  for (const c of status.conditions ?? []) {
    if (c.level !== 'ok') {
      list.push({name: c.name, text: c.level + ': ' + c.detail});
    }
  }
  for (const p of status.problems ?? []) {
    if (!p.warning) {
      list.push({name: 'problem', text: problemText(p)});
    }
  }
  if (status.config.error) {
    list.push({name: 'configuration', text: 'the present file is refused: ' + status.config.error});
  }
  return list;
}
