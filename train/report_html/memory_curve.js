// The curves as the charts read them: totals, the plan's beside the run's (in the run's ticks), and what is alive at a tick.
function prepareCurve(curve) {
  const rows = kinds.map(kind => curve.bytes[kind] || null);
  const totals = curve.ticks.map((_, i) => sum(rows, row => row ? row[i] : 0));
  return {ticks: curve.ticks, seconds: curve.seconds || [], rows, totals, top: totals.reduce((a, b) => Math.max(a, b), 0)};
}
const curve = prepareCurve(data.curve);
const planned = !data.planned && data.planned_curve && data.planned_curve.ticks.length ? prepareCurve(data.planned_curve) : null;
const endTick = curve.ticks.length ? curve.ticks[curve.ticks.length - 1] + 1 : 1;
const pointAt = (ticks, tick) => upperBound(ticks, tick) - 1;

// Whether the plan has as many events as the run from its first step on, and neither curve is thinned or stretched.
function hasSameEvents() {
  const isWhole = ticks => ticks[ticks.length - 1] - ticks[0] + 1 === ticks.length;
  const first = data.marks.find(mark => mark.label !== 'build');
  return first && isWhole(curve.ticks) && isWhole(planned.ticks) && endTick - first.tick === planned.ticks.length;
}

// The largest difference at the ticks of both. Between them a thinned curve says nothing, and each is thinned in its own way.
function largestDifference() {
  const index = new Map(planned.ticks.map((tick, i) => [tick, i]));
  let largest = 0;
  curve.ticks.forEach((tick, i) => {
    if (index.has(tick)) largest = Math.max(largest, Math.abs(curve.totals[i] - planned.totals[index.get(tick)]));
  });
  return largest;
}

function ownersAt(tick, limit) {
  const owners = [];
  for (const block of data.blocks) {
    if (block[BIRTH] > tick) break;  // blocks lie in the order of their births
    if (block[DEATH] < 0 || block[DEATH] > tick) owners.push(block);
  }
  return owners.sort((a, b) => b[BYTES] - a[BYTES]).slice(0, limit);
}
