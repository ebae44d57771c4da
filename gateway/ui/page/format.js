// Numbers and times as texts.

const whole = new Intl.NumberFormat('en-US', {maximumFractionDigits: 0});
const prefixes = ['', 'k', 'M', 'G', 'T', 'P'];

// count is a number with separators: 12,345.
export function count(n) {
  return n === null || n === undefined ? '-' : whole.format(n);
}

// short is a number with three digits and an SI prefix: 12.3 M.
export function short(n, unit = '') {
  if (n === null || n === undefined) {
    return '-';
  }
  let i = 0;
  let value = n;
  for (; value >= 999.5 && i < prefixes.length - 1; i++) {
    value /= 1000;
  }
  const digits = i === 0 ? whole.format(value) : value.toPrecision(3);
  return (digits + ' ' + prefixes[i] + unit).trim();
}

export const perSecond = (n) => short(n, '/s');
export const bits = (n) => short(n, 'bit/s');
export const percent = (part) => (part === null ? '-' : (100 * part).toFixed(1) + ' %');

// time is a moment of an answer, in UTC as the commands print it.
export function time(text) {
  const at = new Date(text);
  return !text || Number.isNaN(at.getTime()) ? '-' : at.toISOString().replace('T', ' ').replace(/\.\d+Z/, 'Z');
}

// plural is a number with its noun.
export const plural = (n, noun) => count(n) + ' ' + noun + (n === 1 ? '' : 's');
