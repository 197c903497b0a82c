// The curves as the charts read them: totals, the plan's beside the run's, and what is alive at a tick.
function prepareCurve(curve) {
  const rows = kinds.map(kind => curve.bytes[kind] || null);
  const totals = curve.ticks.map((_, i) => sum(rows, row => row ? row[i] : 0));
  return {ticks: curve.ticks, seconds: curve.seconds || [], rows, totals, top: totals.reduce((a, b) => Math.max(a, b), 0)};
}
const curve = prepareCurve(data.curve);
const planned = !data.planned && data.planned_curve && data.planned_curve.ticks.length ? prepareCurve(data.planned_curve) : null;
// Both show the same steps, counted from their own beginnings.
if (planned) {
  const shift = curve.ticks[0] - planned.ticks[0];
  planned.ticks = planned.ticks.map(tick => tick + shift);
}
const endTick = curve.ticks.length ? curve.ticks[curve.ticks.length - 1] + 1 : 1;
const pointAt = (ticks, tick) => upperBound(ticks, tick) - 1;

// The largest difference of the two step functions.
function largestDifference() {
  let largest = 0;
  for (const tick of new Set([...curve.ticks, ...planned.ticks])) {
    const a = pointAt(curve.ticks, tick), b = pointAt(planned.ticks, tick);
    if (a >= 0 && b >= 0) largest = Math.max(largest, Math.abs(curve.totals[a] - planned.totals[b]));
  }
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
