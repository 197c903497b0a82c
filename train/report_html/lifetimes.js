// Every allocation as a bar from birth to death, in the part of the run that the chart above shows. Up is the offset in the
// arena where the data tells it, else the lowest free place of the size (first fit), which shows the shape as well.
function placeBlocks() {
  const told = data.blocks.length > 0 && data.blocks.every(block => block.length > 8);
  if (told) return data.blocks.map(block => block[8]);
  const offsets = new Array(data.blocks.length), live = [];  // live: indices by offset
  const deaths = data.blocks.map((block, i) => i)
                     .filter(i => data.blocks[i][DEATH] >= 0)
                     .sort((a, b) => data.blocks[a][DEATH] - data.blocks[b][DEATH]);
  let next = 0;
  data.blocks.forEach((block, i) => {
    for (; next < deaths.length && data.blocks[deaths[next]][DEATH] <= block[BIRTH]; ++next) {
      const at = live.indexOf(deaths[next]);
      if (at >= 0) live.splice(at, 1);
    }
    let offset = 0, at = 0;
    for (; at < live.length && offsets[live[at]] - offset < block[BYTES]; ++at)
      offset = Math.max(offset, offsets[live[at]] + data.blocks[live[at]][BYTES]);
    offsets[i] = offset;
    live.splice(at, 0, i);
  });
  return offsets;
}

function showLifetimes() {
  if (!data.blocks.length || !curve.ticks.length) return;
  const view = memoryChart, left = 74, right = 12, top = 4, bottom = 8;
  const made = section('Lifetimes', 'one bar an allocation, from birth to death, in the same stretch as above');
  let offsets = null, height = 1, found = null;
  const drawn = plot(made, 300, 'Allocations as bars from birth to death', (context, width, tall) => {
    context.clearRect(0, 0, width, tall);
    if (!offsets) return;
    const scale = (width - left - right) / (view.to - view.from), y = bytes => tall - bottom - bytes / height * (tall - top - bottom);
    const colours = data.kinds.map(kindColour), edge = colour('--card');
    context.fillStyle = colour('--line');
    context.fillRect(left, tall - bottom, width - left - right, 1);
    found = [];
    data.blocks.forEach((block, i) => {
      const from = view.xOf(Math.max(block[BIRTH], curve.ticks[0])), to = block[DEATH] < 0 ? view.end() : view.xOf(block[DEATH]);
      if (to < view.from || from > view.to) return;
      const x = left + Math.max(0, (from - view.from) * scale),
            wide = Math.max(0.6, left + Math.min((to - view.from) * scale, width - left - right) - x);
      const high = Math.max(0.4, y(offsets[i]) - y(offsets[i] + block[BYTES]));
      context.fillStyle = colours[block[KIND]];
      context.fillRect(x, y(offsets[i] + block[BYTES]), wide, high);
      if (high > 3) {
        context.fillStyle = edge;
        context.fillRect(x, y(offsets[i] + block[BYTES]), wide, 0.7);
      }
      if (high > 3 && wide > 3) {
        context.fillStyle = edge;
        context.fillRect(x, y(offsets[i] + block[BYTES]), 0.7, high);
      }
      found.push([x, y(offsets[i] + block[BYTES]), wide, high, block]);
    });
    context.fillStyle = colour('--muted');
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    context.fillText('0', left - 9, tall - bottom);
    context.fillText(bytesText(height), left - 9, top + 6);
  });
  const tip = element('div', {class: 'tip', hidden: true});
  drawn.canvas.removeAttribute('tabindex');  // nothing to do there with keys
  drawn.box.append(tip);
  drawn.canvas.addEventListener('pointermove', event => {
    const box = drawn.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const hit =
        found && [...found].reverse().find(([bx, by, wide, high]) => x >= bx - 1 && x <= bx + wide + 1 && y >= by && y <= by + high);
    tip.hidden = !hit;
    if (!hit) return;
    const block = hit[4];
    tip.replaceChildren(
        element('b', {}, bytesText(block[BYTES])), element('span', {class: 'muted'}, ` ${exactText(block[BYTES])}`),
        element('div', {}, chip(kindOf(block)), kindWord(kindOf(block)), ' of ', moduleOf(block) || '(no module)'),
        element('div', {class: 'muted'}, [opOf(block), phaseOf(block), lifetimeText(block)].filter(Boolean).join(', ')));
    placeTip(tip, drawn.box, x, y);
  });
  drawn.canvas.addEventListener('pointerleave', () => {
    tip.hidden = true;
  });
  view.linked = drawn.redraw;
  // Some thousand blocks take a moment to place: the rest of the page is there first.
  setTimeout(() => {
    offsets = placeBlocks();
    height = data.blocks.reduce((most, block, i) => Math.max(most, offsets[i] + block[BYTES]), 1);
    drawn.redraw();
  }, 0);
}
