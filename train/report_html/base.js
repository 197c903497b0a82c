// What every part of the page uses: the data, numbers as text, elements, colours. Text from the data reaches the page through
// text nodes and attributes only, never as markup.
const problems = [];  // what went wrong while the page was made or used; the self-check reads it
window.addEventListener('error', event => problems.push(String(event.message)));
window.addEventListener('unhandledrejection', event => problems.push(String(event.reason)));

const data = JSON.parse(document.getElementById('memory').textContent);
const page = document.getElementById('page');
const ID = 0, BYTES = 1, KIND = 2, PHASE = 3, MODULE = 4, OP = 5, BIRTH = 6, DEATH = 7;  // of a block

const kKindWords = {
  parameter: 'parameters',
  gradient: 'gradients',
  optimizer_state: 'optimizer state',
  saved: 'saved activations',
  temporary: 'temporaries',
  workspace: 'workspace',
  input: 'input',
  communication: 'communication',
  staging: 'staging',
};
// Bottom to top: what stays comes first, what comes and goes lies on it.
const kKindOrder = ['parameter', 'optimizer_state', 'gradient', 'saved', 'temporary', 'workspace', 'input', 'communication', 'staging'];
const kinds = kKindOrder.filter(kind => data.kinds.includes(kind)).concat(data.kinds.filter(kind => !kKindOrder.includes(kind)));

const kindWord = kind => kKindWords[kind] || kind;
const kindOf = block => data.kinds[block[KIND]];
const moduleOf = block => data.modules[block[MODULE]] || '';
const opOf = block => data.ops[block[OP]] || '';
const phaseOf = block => data.phases[block[PHASE]] || '';
const colourVariable = kind => kKindOrder.includes(kind) ? `var(--${kind})` : 'var(--muted)';
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const kindColour = kind => colour(kKindOrder.includes(kind) ? `--${kind}` : '--muted');

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on'))
      made.addEventListener(name.slice(2), value);
    else if (name === 'style')
      Object.assign(made.style, value);
    else if (value === true)
      made.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined)
      made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return made;
}
const chip = kind => element('span', {class: 'chip', style: {background: colourVariable(kind)}});

const kUnits = [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]];
function bytesText(bytes) {
  for (const [unit, size] of kUnits) {
    if (Math.abs(bytes) < size * 0.9995) continue;
    const value = bytes / size;
    return value.toFixed(Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2) + '\u00a0' + unit;
  }
  return bytes + '\u00a0B';
}
const exactText = bytes => bytes.toLocaleString('en-US') + ' bytes';
const bytesElement = (bytes, more) => element('span', {class: 'bytes', title: exactText(bytes), ...more}, bytesText(bytes));
function percentText(share) {
  if (!isFinite(share)) return '–';
  const percent = share * 100;
  return (percent !== 0 && Math.abs(percent) < 9.95 ? percent.toFixed(Math.abs(percent) < 0.095 ? 2 : 1) : percent.toFixed(0)) + '\u00a0%';
}
const countText = count => count.toLocaleString('en-US');
function numberText(value) {
  if (value === null || value === undefined || !isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return size >= 1000 ? countText(Math.round(value)) : String(Number(value.toPrecision(4)));
}
const secondsText = seconds => seconds >= 100 ? seconds.toFixed(0) + ' s' :
    seconds >= 1                              ? seconds.toFixed(2) + ' s' :
                                                (seconds * 1000).toFixed(2) + ' ms';
const lifetimeText = block =>
    `born at ${countText(block[BIRTH])}, ` + (block[DEATH] < 0 ? 'alive at the end' : `dies at ${countText(block[DEATH])}`);

const sum = (list, of) => list.reduce((total, item) => total + of(item), 0);
// The first index whose value exceeds x in a sorted list.
function upperBound(list, x) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= x)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

function section(title, note, controls) {
  const made = element(
      'section', {'aria-label': title},
      element(
          'div', {class: 'head'}, element('h2', {}, title), note ? element('span', {class: 'muted'}, note) : null,
          controls && controls.length ? element('div', {class: 'controls'}, controls) : null));
  page.append(made);
  return made;
}

// A canvas as wide as its box, drawn again whenever size or colours change. draw(context, width, height) in CSS pixels.
const redraws = [];
function plot(parent, height, label, draw) {
  const canvas = element('canvas', {tabindex: 0, role: 'img', 'aria-label': label, style: {height: height + 'px'}});
  const box = element('div', {class: 'plot'}, canvas);
  parent.append(box);
  const shown = {canvas, box, width: 0, height};
  let waits = false;
  shown.drawNow = () => {
    waits = false;
    const ratio = window.devicePixelRatio || 1;
    shown.width = Math.max(50, box.clientWidth);
    canvas.width = Math.round(shown.width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = '12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';
    draw(context, shown.width, height);
  };
  shown.redraw = () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(shown.drawNow);
  };
  redraws.push(shown.drawNow);
  new ResizeObserver(shown.redraw).observe(box);
  return shown;
}
const redrawAll = () => redraws.forEach(redraw => redraw());
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redrawAll);
window.matchMedia('print').addEventListener('change', redrawAll);

// Where a tip goes: beside the pointer, inside its box. On narrow screens the style sheet puts it below instead.
function placeTip(tip, box, x, y) {
  tip.hidden = false;
  const left = x + 18 + tip.offsetWidth <= box.clientWidth ? x + 18 : Math.max(0, x - 18 - tip.offsetWidth);
  tip.style.left = left + 'px';
  tip.style.top = Math.max(0, Math.min(y - 20, box.clientHeight - tip.offsetHeight)) + 'px';
}
