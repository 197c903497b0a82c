// report.html#selftest: the page checks itself and says so in its title and in <pre id="selftest">. Sums are checked against
// what is on the page, not only against the data.
async function selfTest(parts) {
  const lines = [];
  const expect = (name, isTrue, got) => lines.push(isTrue ? `ok ${name}` : `FAILED ${name}${got === undefined ? '' : `: ${got}`}`);
  const same = (name, got, wanted) => expect(name, got === wanted, `expected ${wanted}, got ${got}`);
  const settled = () => new Promise(resolve => setTimeout(resolve, 60));  // frames may not come in a hidden page
  await settled();

  const hasPeak = curve.ticks.length > 0 && data.peak.tick >= curve.ticks[0] && data.peak.tick < endTick;
  if (hasPeak) {
    same('the curve is highest at the peak', curve.top, data.peak_bytes);
    same('the curve at the peak\'s tick is the peak', curve.totals[pointAt(curve.ticks, data.peak.tick)], data.peak_bytes);
    for (const kind of kinds)
      same(
          `${kind} at the peak`, data.curve.bytes[kind] ? data.curve.bytes[kind][pointAt(curve.ticks, data.peak.tick)] : 0,
          peakOfKind(kind));
  } else
    expect('the curve stays below the peak', curve.top <= data.peak_bytes, curve.top);
  expect('ticks rise', curve.ticks.every((tick, i) => i === 0 || tick > curve.ticks[i - 1]));
  same('the tensors at the peak sum to the peak', sum(peakBlocks, block => block[BYTES]), data.peak_bytes);
  expect('reserved holds the peak', data.reserved_bytes >= data.peak_bytes, data.reserved_bytes);

  const rows = [...parts.receipt.table.querySelectorAll('tr.group')];
  same('the receipt sums to the peak', sum(rows, row => Number(row.dataset.bytes)), data.peak_bytes);
  same('every group is in the receipt', rows.length, data.groups.length);
  for (const group of receiptGroups) {
    same(`bytes of ${group.name}`, sum(group.blocks, block => block[BYTES]), group.bytes);
    same(`count of ${group.name}`, group.blocks.length, group.count);
  }
  if (rows.length) {
    parts.receipt.table.querySelector('.fold').click();
    expect('a group unfolds', parts.receipt.table.querySelectorAll('td.inside tbody tr').length > 0);
    parts.receipt.table.querySelector('.fold').click();
    parts.receipt.filter = '\u0001 no such thing';
    same('the filter hides all', parts.receipt.table.querySelectorAll('tr.group').length, 0);
    parts.receipt.filter = '';
    same('the filter shows all again', parts.receipt.table.querySelectorAll('tr.group').length, rows.length);
    parts.receipt.table.querySelectorAll('th button')[2].click();
    const ascending = [...parts.receipt.table.querySelectorAll('tr.group')].map(row => Number(row.dataset.bytes));
    expect('sorting by bytes turns round', ascending.every((bytes, i) => i === 0 || bytes >= ascending[i - 1]));
    parts.receipt.table.querySelectorAll('th button')[2].click();
  }

  same('the treemap holds the peak', parts.treemap.root.bytes, data.peak_bytes);
  const areas = squarify([...parts.treemap.root.children.values()], 0, 0, 1000, 400);
  const covered = sum(areas, area => area.width * area.height);
  expect('the treemap fills its box', !peakBlocks.length || Math.abs(covered - 400000) < 1, covered);
  expect(
      'areas are as the bytes',
      areas.every(area => Math.abs(area.width * area.height / 400000 - area.node.bytes / data.peak_bytes) < 1e-6));
  const outer = parts.treemap.box.querySelectorAll('button.outer').length;
  expect('the treemap is drawn', outer > 0 || !peakBlocks.length, outer);
  if (outer) {
    parts.treemap.box.querySelector('button.outer').click();
    expect('a click goes into the treemap', document.querySelectorAll('.crumbs button').length === 1);
    parts.treemap.go(parts.treemap.root);
  }

  if (curve.ticks.length > 20) {
    memoryChart.reset();
    const {canvas} = memoryChart.drawn, box = canvas.getBoundingClientRect(), whole = memoryChart.to - memoryChart.from;
    const pointer = (type, x) => canvas.dispatchEvent(
        new PointerEvent(type, {clientX: box.left + x, clientY: box.top + 120, pointerId: 1, pointerType: 'mouse', bubbles: true}));
    const painted = () => {
      const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      let count = 0;
      for (let i = 3; i < pixels.length; i += 4) count += pixels[i] > 0;
      return count;
    };
    memoryChart.drawn.drawNow();
    expect('the chart is painted', painted() > canvas.width * canvas.height * 0.02, painted());
    pointer('pointermove', box.width * 0.5);
    expect('the tip names owners', canvas.parentNode.querySelectorAll('.tip .owners tr').length > 0);
    pointer('pointerdown', box.width * 0.3);
    pointer('pointermove', box.width * 0.6);
    pointer('pointerup', box.width * 0.6);
    expect('dragging zooms', memoryChart.to - memoryChart.from < whole * 0.5, memoryChart.to - memoryChart.from);
    canvas.dispatchEvent(new KeyboardEvent('keydown', {key: '0'}));
    same('0 shows all again', memoryChart.to - memoryChart.from, whole);
    canvas.focus();
    canvas.dispatchEvent(new WheelEvent('wheel', {deltaY: -200, clientX: box.left + 300, ctrlKey: true, cancelable: true}));
    expect('the wheel zooms', memoryChart.to - memoryChart.from < whole * 0.9);
    canvas.dispatchEvent(new KeyboardEvent('keydown', {key: 'Home'}));
    const byTime = [...document.querySelectorAll('.controls button')].find(button => button.textContent === 'by time');
    if (byTime) {
      byTime.click();
      memoryChart.drawn.drawNow();
      expect('by time the last moment is the last second', memoryChart.to === curve.seconds[curve.seconds.length - 1], memoryChart.to);
      expect('by time it is painted', painted() > canvas.width * canvas.height * 0.02, painted());
      byTime.click();
    }
    same('back by allocations all is shown', memoryChart.to - memoryChart.from, whole);
    const began = performance.now();
    for (let i = 0; i < 5; ++i) {
      memoryChart.stillKey = '';
      memoryChart.drawn.drawNow();
    }
    lines.push(`info one drawing of ${curve.ticks.length} points takes ${((performance.now() - began) / 5).toFixed(1)} ms`);
  }
  if (planned && hasSameEvents()) same('plan and run differ by no byte', largestDifference(), 0);
  else if (planned) lines.push(`info plan and run differ by ${largestDifference()} bytes at most`);
  expect(
      'nothing is loaded from elsewhere', performance.getEntriesByType('resource').length === 0,
      performance.getEntriesByType('resource').map(entry => entry.name).join(' '));
  expect(
      'nothing from the data became markup',
      document.querySelectorAll('main b b, main script, main img, main iframe, main a, main object, main form').length === 0);
  expect('no object is shown as text', !page.textContent.includes('[object '));
  expect(
      'the page does not scroll sideways', document.documentElement.scrollWidth <= window.innerWidth, document.documentElement.scrollWidth);
  await settled();
  expect('no error', problems.length === 0, problems.join(' | '));
  const failed = lines.filter(line => line.startsWith('FAILED')).length;
  lines.push(failed ? `FAILED: ${failed} of ${lines.length}` : 'all ok');
  page.append(element('pre', {id: 'selftest'}, lines.join('\n')));
  document.title = failed ? `selftest FAILED (${failed})` : 'selftest ok';
}
